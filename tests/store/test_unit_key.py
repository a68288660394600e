from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fmapviz.core.files import staging_folder
from fmapviz.images.find import path_hash
from fmapviz.store.unit import commit, find_done, find_own, images_of, read_unit
from fmapviz.store.unit_key import UnitKey, distinct_name, image_key, is_key, key_of, plain_name, possible_paths
from fmapviz.types import ImageFile

FILE = ImageFile("/photos/cats/lena.png", "cats/lena.png", {"size": 1000, "mtime_ns": 123})
FRAME = ImageFile("/films/clip.mp4/000042", "clip.mp4/000042", {"size": 1000, "mtime_ns": 123})
KEYS = [
    image_key(FILE),
    image_key(FRAME),
    image_key(
        replace(FILE, unit="cats/lena.png/step_000010", version={**FILE.version, "step": 10, "weights": "/epoch_10.pt"})
    ),
    UnitKey("of a feature", "model:net (random)", "_model", {"checksum": 2**53 + 1, "weights": "/\udcff.pt"}),
]


def finish(run, key, **options):
    with staging_folder(run) as staging:
        (staging / "input.png").write_text("pixels")
        return commit(staging, run, key, {}, **options)


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_record_holds_the_key_of_its_unit(key, tmp_path):
    unit = finish(tmp_path, key)
    assert is_key(json.loads(json.dumps(key.record)))
    assert key_of(read_unit(unit)) == key
    assert find_done(tmp_path, key) == unit == possible_paths(tmp_path, key)[0]


def test_a_unit_of_another_version_is_found_but_not_done(tmp_path):
    key = KEYS[2]
    unit = finish(tmp_path, key)
    for version in ({}, {**key.version, "weights": "/epoch_20.pt"}, {**key.version, "more": 1}):
        other = replace(key, version=version)
        assert find_own(tmp_path, other)[0] == unit
        assert find_done(tmp_path, other) is None


def test_units_of_two_kinds_never_share_a_name(tmp_path):
    one, other = (UnitKey(kind, "/a", "a", {"checksum": 1}) for kind in ("top", "film"))
    assert finish(tmp_path, one, force=True) == tmp_path / "a"
    assert finish(tmp_path, other, force=True) == tmp_path / f"a~{path_hash('/a')}"
    assert find_done(tmp_path, one) == tmp_path / "a"


def test_only_units_of_images_hold_images(tmp_path):
    assert [images_of(read_unit(finish(tmp_path, key))) for key in KEYS] == [
        [FILE], [FRAME], [replace(FILE, unit="cats/lena.png/step_000010")], [],
    ]  # fmt: skip
    assert images_of(None) == []


def test_a_step_is_one_of_a_series():
    assert [(key.step, key.series) for key in KEYS] == [
        (None, "cats"), (None, "clip.mp4"), (10, "cats/lena.png"), (None, ""),
    ]  # fmt: skip
    assert UnitKey("image", "/a", "a", {"step": 1}).step is None  # a step of nothing


@pytest.mark.parametrize("file", [FILE, FRAME], ids=["file", "frame"])
def test_a_distinct_name_contains_the_plain_one(file):
    distinct = distinct_name(file.unit, file.path)
    assert distinct != file.unit
    assert plain_name(distinct, file.path) == plain_name(file.unit, file.path) == file.unit
