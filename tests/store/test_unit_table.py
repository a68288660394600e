"""The table of a large run's units does not change results."""

from __future__ import annotations

import hashlib
import shutil
from functools import partial
from pathlib import Path

import pytest
from run_infos import run_info
from trees import problems

import fmapviz
from fmapviz.core import checksummed_json, files
from fmapviz.core.file_names import UNIT_TABLE
from fmapviz.core.files import staging_folder
from fmapviz.store.listing import describe_run
from fmapviz.store.remove import remove_run
from fmapviz.store.run import open_run
from fmapviz.store.unfinished import unfinished
from fmapviz.store.unit import commit, find_done
from fmapviz.store.unit_key import image_key
from fmapviz.store.unit_table import UnitTable, walk, write_table
from fmapviz.types import ImageFile

ROOT = Path(__file__).resolve().parents[2]
INFO = run_info(to=("png",))
MANY = 10


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch):
    monkeypatch.setattr("fmapviz.store.unit_table.MANY", MANY)


def finish(run, unit, size=5000, *, force=False, run_of=INFO.fingerprint):
    with staging_folder(run) as staging:
        (staging / "input.png").write_bytes(b"x" * size)
        commit(
            staging,
            run,
            image_key(ImageFile(f"/photos/{unit}", unit, {"size": 10, "mtime_ns": 20})),
            {"run": run_of},
            force=force,
        )


@pytest.fixture
def run(tmp_path):
    """A run of many units, in two folders and at the top, whose command has just ended."""
    directory = open_run(tmp_path / "out", INFO)
    with unfinished(directory, ["/photos"], lambda _: MANY + 1):
        for number in range(MANY + 1):
            unit = directory / f"{('', 'cats/', 'cats/grey/')[number % 3]}{number}.png"
            unit.mkdir(parents=True)
            (unit / "input.png").write_bytes(b"x" * 5000)
            (unit / "unit.json").write_bytes(b"{}")
    return directory


def folders(run):
    """Return the entries of all directories of a run except its own."""
    return {each for each in walk(run) if each.path}


def test_the_unit_table_records_the_disk_usage_of_units(run):
    with_record = folders(run)
    occupied = sum(-(-path.stat().st_size // 4096) if path.is_file() else 1 for path in [run, *run.rglob("*")]) * 4096
    listed = describe_run(run)
    assert (listed.images, listed.bytes, listed.state) == (MANY + 1, occupied, "finished")
    (run / UNIT_TABLE).unlink()
    assert folders(run) == with_record


def test_files_of_recorded_units_are_not_read(run):
    before = describe_run(run)
    (run / "0.png/input.png").unlink()
    assert describe_run(run) == before
    (run / UNIT_TABLE).unlink()
    assert describe_run(run).bytes < before.bytes - 2 * 4096


def test_files_of_changed_units_are_read(run):
    shutil.rmtree(run / "cats/1.png")
    finish(run, "new.png")
    write_table(run)
    finish(run, "new.png", 50_000, force=True)
    finish(run, "cats/new.png")
    found = folders(run)
    write_table(run)
    assert folders(run) == found
    (run / UNIT_TABLE).unlink()
    assert folders(run) == found
    assert describe_run(run).images == MANY + 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda data: data[:-100],
        lambda data: data[:100] + b"\0" * (len(data) - 100),
        lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
        lambda _: checksummed_json.dumps({"fmapviz": 2, "units": {}}),
        lambda data: data[:-32] + hashlib.sha256(data[:-32]).digest(),  # as a version with other columns would
    ],
    ids=["empty", "truncated", "zeros", "another bit", "another file", "other columns"],
)
def test_a_damaged_record_is_ignored(run, damage):
    expected = folders(run)
    (run / UNIT_TABLE).write_bytes(damage((run / UNIT_TABLE).read_bytes()))
    assert folders(run) == expected
    write_table(run)
    assert folders(run) == expected


def test_the_record_belongs_to_the_run(tmp_path):
    directory = open_run(tmp_path / "out", INFO)
    with unfinished(directory, ["/photos"], lambda _: MANY):
        for number in range(MANY):
            finish(directory, f"{number}.png")
    assert (directory / UNIT_TABLE).exists()
    assert not problems(directory)
    remove_run(directory)
    assert not directory.exists()


def test_a_run_of_few_units_has_no_record(tmp_path):
    directory = open_run(tmp_path / "out", INFO)
    with unfinished(directory, ["/photos"], lambda _: 1):
        finish(directory, "a.png")
    assert sorted(path.name for path in directory.iterdir()) == ["a.png", "run.json"]


def truncate(unit):
    (unit / "unit.json").write_bytes((unit / "unit.json").read_bytes()[:50])


def link(unit):
    unit.rename(unit.parent / "moved")
    unit.symlink_to("moved")


CHANGES = {
    "nothing": lambda _run, _unit: None,
    "removed": lambda _run, unit: shutil.rmtree(unit),
    "no record": lambda _run, unit: (unit / "unit.json").unlink(),
    "a truncated record": lambda _run, unit: truncate(unit),
    "an empty record": lambda _run, unit: (unit / "unit.json").write_bytes(b""),
    "a link": lambda _run, unit: link(unit),
    "drawn again": lambda run, unit: finish(run, unit.name, 9000, force=True),
    "of another run": lambda run, unit: finish(run, unit.name, force=True, run_of="another"),
    "copied": lambda _run, unit: shutil.copytree(unit, unit.parent / "copy") and shutil.rmtree(unit),
    "exchanged": lambda _run, unit: unit.rename(unit.parent / "x") and (unit.parent / "1.png").rename(unit),
}


@pytest.mark.sampled
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("state", [(10, 20), (11, 20), (10, 21), ("10", "20")], ids=str)
def test_an_image_in_the_table_is_finished_only_if_its_record_confirms_it(tmp_path, change, state):
    run, version = open_run(tmp_path / "out", INFO), dict(zip(("size", "mtime_ns"), state, strict=True))
    for number in range(MANY):
        finish(run, f"{number}.png")
    write_table(run)
    CHANGES[change](run, run / "0.png")
    table = UnitTable(run)
    for name in ("0.png", "1.png", "x", "absent.png"):
        key = image_key(ImageFile(f"/photos/{name}", name, version))
        for fingerprint in (INFO.fingerprint, "another", None):
            assert not table.is_done(key, fingerprint) or find_done(run, key, fingerprint) == run / name
        end = table.end_of_record(name)
        assert end is None or end == files.read(run / name / "unit.json", start=-len(end))
    is_done = table.is_done(image_key(ImageFile("/photos/0.png", "0.png", version)), INFO.fingerprint)
    assert is_done == (change == "nothing" and state == (10, 20))  # so the record is not read


@pytest.mark.thorough
def test_records_of_finished_images_are_not_read_again(tmp_path, monkeypatch):
    photos, numbers = tmp_path / "photos", range(MANY)
    photos.mkdir()
    for number in numbers:
        shutil.copy(ROOT / "sample_images/shapes.png", photos / f"{number}.png")
    first = fmapviz.visualize("shapesnet", photos, out=tmp_path / "runs", layers="features.0.conv")
    assert (first.done, first.skipped) == (MANY, 0)
    read, of_records = files.read, []

    def counted(path, **options):
        of_records.extend([path] * (path.name == "unit.json"))
        return read(path, **options)

    monkeypatch.setattr(files, "read", counted)
    monkeypatch.setattr(checksummed_json, "read", partial(counted, most=2**20))
    second = fmapviz.visualize("shapesnet", photos, out=tmp_path / "runs", layers="features.0.conv")
    assert (second.done, second.skipped, [path for path in of_records if path.parent.name != "_top"]) == (0, MANY, [])
    (first.directory / "3.png/unit.json").write_bytes(b"")
    third = fmapviz.visualize("shapesnet", photos, out=tmp_path / "runs", layers="features.0.conv")
    assert (third.done, third.skipped) == (1, MANY - 1)
