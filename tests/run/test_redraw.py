"""A sample of a run that is drawn again proves that its pictures are right, or finds those that are not."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import textwrap
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import often, thorough
from image_files import paint
from PIL import Image
from recorded_runs import CODE, KINDS, OFTEN, comment, digest_of, draw, forge, furnish
from trees import snapshot, stamps

from fmapviz.config.sample import SampleSize
from fmapviz.core import checksummed_json
from fmapviz.errors import RequestError
from fmapviz.run.loop import visualize
from fmapviz.run.redraw import redraw
from fmapviz.store import run_files
from fmapviz.store.digest import Digests
from fmapviz.store.remote.local_copy import local_copy
from fmapviz.store.run import read_run
from fmapviz.store.verify import verify_copy


def run_again(place, sample="all"):
    """Verify runs, and draw a sample again; return the results, and the digests."""
    with local_copy(place) as copy:
        digests = Digests()
        assert not any(checked.problems for checked in verify_copy(copy, digests=digests))
        return list(redraw(copy, digests, SampleSize.parse(sample)))


def statuses(place, sample="all"):
    return {each.path.name: each.status for each in run_again(place, sample)}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a network and three images."""
    return furnish(tmp_path_factory.mktemp("redraw"))


@pytest.fixture(scope="module")
def plain(place):
    """A run of pictures and values."""
    return draw(place, place / "plain", to="png,raw,stats,tensorboard")


@pytest.fixture
def forged(plain, tmp_path):
    """A copy of it that a test may forge."""
    return shutil.copytree(plain, tmp_path / "run")


# --- right runs


@pytest.mark.parametrize("kind", often(OFTEN[:1], of=KINDS))
def test_a_run_is_drawn_again_with_the_same_bytes(kind, place, tmp_path):
    run = draw(place, tmp_path, **KINDS[kind])
    before = stamps(run)
    found = run_again(run)
    assert [each for each in found if each.status not in {"same"} and each.images] == []
    assert sum(each.images for each in found) == 3
    assert [each.reason for each in found if not each.images and each.status != "same"] == (
        ["pictures of several images: _top"] if kind == "pages of several images" else []
    )
    assert stamps(run) == before


@pytest.mark.thorough
def test_images_of_any_name_are_drawn_again(place, tmp_path):
    shutil.copy(place / "net.py", tmp_path)
    names = ("_top/a.png", "12:30.png", "con.png", "x~0123abcd.png", f"{'n' * 200}.png", "A.png", "a.png", "film.gif/a.png")
    for number, name in enumerate(names):
        paint(tmp_path / "in" / name, number, (24, 24))
    first, *others = [Image.new("L", (24, 24), grey) for grey in (0, 90, 180)]
    first.save(tmp_path / "in/film.GIF", save_all=True, append_images=others)
    shutil.copy(tmp_path / "in/film.GIF", tmp_path / "in/_top")
    run = draw(tmp_path, tmp_path / "out", to="png", layers="0")
    found = run_again(run)
    assert {(each.status, each.reason) for each in found} == {("same", "")}
    assert sum(each.images for each in found) == len(names) + 6


@pytest.mark.thorough
def test_a_sample_shares_values_of_all_images(place, tmp_path):
    run = draw(place, tmp_path, **KINDS["values of all images"])
    for number in range(3):
        expected = snapshot(run)
        assert [each.status for each in run_again(run, "1")] == ["same"], number
        assert snapshot(run) == expected


@pytest.mark.thorough
def test_a_remote_run_is_drawn_again(bucket, place):
    draw(place, "s3://photos/runs", to="png,stats")
    found = {each.path.name: each for each in run_again("s3://photos/runs")}
    unproven = found.pop("net.py_build")
    assert {name: each.status for name, each in found.items()} == {"a.png": "same", "b.png": "same", "c.png": "same"}
    assert unproven.reason == "files of all images, which are not proven: stats.csv, stats.json"


@pytest.mark.thorough
def test_a_sample_follows_from_the_digest_and_has_an_image_at_least(plain, tmp_path):
    moved = shutil.copytree(plain, tmp_path / "elsewhere")
    for sample, number in (("0.1%", 1), ("50%", 2), ("2", 2), ("99", 3)):
        names = [list(statuses(run, sample)) for run in (plain, plain, moved)]
        assert names[0] == names[1] == names[2]
        assert len(names[0]) == number


@pytest.mark.parametrize("text", ["", "0", "0%", "-1", "101%", "half", "1e3", "1.5", "1%%", "nan"])
def test_other_samples_are_refused(text):
    with pytest.raises(RequestError, match="no such sample"):
        SampleSize.parse(text)


# --- forged runs


def change_picture(unit, name, by):
    picture = Image.open(unit / name)
    pixels = np.array(picture)
    pixels[5, 7] = pixels[5, 7] - by if pixels[5, 7].min() > 127 else pixels[5, 7] + by
    changed, data = Image.fromarray(pixels), BytesIO()
    if picture.mode == "P":
        changed.putpalette(picture.getpalette())
    from PIL.PngImagePlugin import PngInfo

    facts = PngInfo()
    for key, value in picture.text.items():
        facts.add_text(key, value)
    changed.save(data, "PNG", pnginfo=facts)
    forge(unit, name, data.getvalue())


@pytest.mark.parametrize("by", [1, *thorough(100)])
def test_one_pixel_of_a_forged_picture_is_found(by, forged):
    change_picture(forged / "b.png", "00_0.maps.png", by)
    shutil.rmtree(forged / "none", ignore_errors=True)
    (forged / "products.json").unlink()  # run-level files are made again
    for name in ("stats.csv", "stats.json"):
        (forged / name).unlink()
    found = {each.path.name: each for each in redrawn_with_problems(forged)}
    assert {name: each.status for name, each in found.items()} == {
        "a.png": "same", "b.png": "differs", "c.png": "same",
    }  # fmt: skip
    (difference,) = found["b.png"].differences
    assert difference.startswith("00_0.maps.png: 1 of ")
    assert difference.endswith(f"pixels differs, by up to {by} grey level{'s' if by > 1 else ''}")


def redrawn_with_problems(run):
    with local_copy(run) as copy:
        digests = Digests()
        list(verify_copy(copy, digests=digests))
        return list(redraw(copy, digests, SampleSize.parse("all")))


def test_forged_values_events_and_records_are_found(forged):
    values = bytearray((forged / "a.png/raw.safetensors").read_bytes())
    values[-1] ^= 64  # the exponent of the last number
    forge(forged / "a.png", "raw.safetensors", bytes(values))
    events = (forged / "b.png/events.out.tfevents.fmapviz").read_bytes()
    position = events.index(b"IDAT") + 12
    forge(
        forged / "b.png",
        "events.out.tfevents.fmapviz",
        events[:position] + bytes([events[position] ^ 1]) + events[position + 1 :],
    )
    record = json.loads((forged / "more/c.png/unit.json").read_bytes())
    del record["sha256"]
    record["layers"][0]["max"] = 7.5
    (forged / "more/c.png/unit.json").write_bytes(checksummed_json.dumps(record))
    found = {each.path.name: each for each in redrawn_with_problems(forged)}
    assert found.pop("run").reason == "files of all images, which are not proven: stats.csv, stats.json"  # out of date
    assert {each.status for each in found.values()} == {"differs"}
    assert [each.differences[0].partition(":")[0].partition(",")[0] for _, each in sorted(found.items())] == [
        "raw.safetensors", "events.out.tfevents.fmapviz", "unit.json",
    ]  # fmt: skip
    assert "1 number differs" in found["a.png"].differences[0]


def rename_kind(unit, kind):
    """Let the record of a unit say that it is of another kind; its checksum is right."""
    record = json.loads((unit / "unit.json").read_bytes())
    del record["sha256"]
    record["unit"]["kind"] = kind
    (unit / "unit.json").write_bytes(checksummed_json.dumps(record))


@pytest.mark.parametrize("kinds", ["film x model", *thorough("top page filmstrip", "step _ IMAGE", "frames  diff")])
def test_an_image_is_not_hidden_by_another_kind(kinds, forged):
    names = dict(zip(("a.png", "b.png", "more/c.png"), kinds.split(" "), strict=True))
    for name, kind in names.items():
        rename_kind(forged / name, kind)
    found = {each.path.relative_to(forged).as_posix(): each for each in redrawn_with_problems(forged) if each.path != forged}
    assert found.keys() == names.keys()
    for name, kind in names.items():
        assert (found[name].status, found[name].images) == ("differs" if kind == "model" else "undrawn", 1)
        assert f"its record says that it is of the kind '{kind}', and the " in found[name].describe()


@pytest.mark.thorough
def test_an_image_of_another_kind_is_an_error_of_each_sample(forged, fmapviz):
    rename_kind(forged / "a.png", "film")
    done = fmapviz("verify", forged, "--redraw", "2")
    assert (done.returncode, done.stdout.count(b"of the kind 'film', and the run has no such unit of this name")) == (3, 1)


# --- shards


@pytest.fixture(scope="module")
def sharded(place):
    """A run with two shards."""
    return draw(place, place / "sharded", to="tar", layers="0", shard=2)


def edit_record(unit, change):
    """Change the record of a unit or run, and correct its checksum."""
    path = unit if unit.suffix == ".json" else unit / "unit.json"
    record = json.loads(path.read_bytes())
    del record["sha256"]
    change(record)
    path.write_bytes(checksummed_json.dumps(record))


def list_none(record):
    record["images"] = []


def fail_all(record):
    for image in record["images"]:
        image["failed"] = "E_FORMAT"
        del image["pictures"]


def fail_gone(record):
    fail_all(record)
    for image in record["images"]:
        image["path"] = "/nowhere/x.jpg"


def fail_first(record):
    record["images"][0]["failed"] = "E_FORMAT"
    record["images"][0]["path"] = "/nowhere/a.png"


@pytest.mark.thorough
@pytest.mark.parametrize("change", [list_none, *thorough(fail_all, fail_first, fail_gone)])
def test_a_shard_is_not_hidden_by_its_list_of_images(change, sharded, tmp_path, fmapviz):
    run = shutil.copytree(sharded, tmp_path / "run")
    for name in ("pictures.tar", "index.parquet"):
        forge(run / "shard-000000", name, (run / "shard-000001" / name).read_bytes())
    edit_record(run / "shard-000000", change)
    for sample in ("1", "all") if change is not fail_first else ["all"]:
        found = {each.path.name: each for each in run_again(run, sample)}
        assert found["shard-000000"].status == "undrawn"
        assert found["shard-000000"].images > 0
    done = fmapviz("verify", run, "--redraw", "all")
    assert (done.returncode, b"shard-000000: not drawn again: " in done.stdout) == (3, True)


@pytest.mark.thorough
def test_an_image_is_not_named_as_another(sharded, plain, tmp_path):
    run = shutil.copytree(plain, tmp_path / "run")
    shutil.rmtree(run / "a.png")
    (run / "b.png").rename(run / "a.png")

    def name(record):
        record["unit"]["name"] = "a.png"

    edit_record(run / "a.png", name)
    found = {each.path.name: each for each in redrawn_with_problems(run)}
    assert (found["a.png"].status, found["a.png"].reason.partition(", and")[0]) == ("undrawn", "its record calls it 'a.png'")
    shards = shutil.copytree(sharded, tmp_path / "shards")
    edit_record(shards / "shard-000000", lambda record: record["images"][1].update(name="c.png"))
    found = {each.path.name: each for each in run_again(shards)}
    assert found["shard-000000"].status == "undrawn"


def test_other_settings_of_the_same_fingerprint_are_refused(plain, tmp_path):
    run = shutil.copytree(plain, tmp_path / "run")
    edit_record(run / "run.json", lambda record: record["settings"].update(sha256="0" * 64))
    (found, _) = run_again(run)
    assert (found.status, found.reason.partition(": ")[0]) == ("undrawn", "it was drawn with something else")


# --- run-level files


def forge_run_file(run, name):
    """Change a run-level file, and correct its size and checksum."""
    data = (run / name).read_bytes().replace(b"0.", b"0.9", 1) + b" "
    forge(run, name, data, record="products.json")


@pytest.mark.thorough
def test_each_forged_run_level_file_is_found(place, tmp_path, fmapviz):
    run = draw(place, tmp_path, to="html,stats", layers="0,2", views="maps,top")
    assert [each.path.name for each in run_again(run, "1") if each.status == "differs"] == []
    names = [entry["name"] for entry in json.loads((run / "products.json").read_bytes())["files"]]
    assert {"index.html", "stats.csv", "stats.json"} <= {*names}
    for number, name in enumerate(names, 1):
        forge_run_file(run, name)
        found = [each for each in run_again(run, "1") if each.status != "same" and "_top" not in each.reason]
        assert [(each.path.name, each.status) for each in found] == [(each, "differs") for each in names[:number]]
    done = fmapviz("verify", run, "--redraw", "1")
    assert (done.returncode, done.stdout.count(b"the units of the run make another file")) == (3, len(names))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "to", "where"),
    [
        ("summary.html", "html,stats", "verify"),
        *thorough(("stats.js", "png", "redraw"), ("index.html", "png,stats", "redraw")),
    ],
)
def test_a_run_level_file_that_nothing_writes_is_found(name, to, where, *, place, tmp_path, fmapviz):
    run = draw(place, tmp_path, to=to, layers="0")
    (run / name).write_text("<h1>tumour</h1>")
    if not (run / "products.json").exists():
        state = run_files._state(run, run_files.find_units(run))
        (run / "products.json").write_bytes(checksummed_json.dumps({"fmapviz": 2, "of": state, "files": []}))
    entry = {"name": name, "size": 15, "sha256": hashlib.sha256(b"<h1>tumour</h1>").hexdigest()}
    edit_record(run / "products.json", lambda record: record["files"].append(entry))
    done = fmapviz("verify", run, "--redraw", "1")
    assert done.returncode == 3
    why = "not made by fmapviz" if where == "verify" else "the units of the run make no such file"
    assert any(name in line and why in line for line in done.stdout.decode().splitlines())


@pytest.mark.thorough
def test_run_level_files_of_a_run_without_images_are_made_again(plain, tmp_path, fmapviz):
    runs = tmp_path / "runs"
    shutil.copytree(plain, runs / "a")
    run = shutil.copytree(plain, runs / "b")
    for name in ("a.png", "b.png", "more"):
        shutil.rmtree(run / name)
    state = run_files._state(run, run_files.find_units(run))
    edit_record(run / "products.json", lambda record: record.update(of=state))
    found = [(each.path.name, each.status) for each in run_again(run, "1")]
    assert found == [("b", "undrawn"), ("stats.csv", "differs"), ("stats.json", "differs")]
    assert fmapviz("verify", runs, "--redraw", "1").returncode == 3


@pytest.mark.thorough
def test_films_of_a_run_are_named_and_no_error(place, tmp_path):
    run = draw(place, tmp_path, to="gif", layers="0")
    found = run_again(run)
    assert [(each.status, each.reason) for each in found if not each.images] == [
        ("undrawn", "pictures of several images: _film")
    ]  # fmt: skip
    shutil.copy(run / "a.png/00_0.maps.png", run / "_film")
    record = json.loads((run / "_film/unit.json").read_bytes())
    del record["sha256"]
    record["files"].append({"name": "00_0.maps.png", "size": 0, "sha256": ""})
    (run / "_film/unit.json").write_bytes(checksummed_json.dumps(record))
    forge(run / "_film", "00_0.maps.png", (run / "a.png/00_0.maps.png").read_bytes())
    assert ("_film", "undrawn", 1) in [(each.path.name, each.status, each.images) for each in run_again(run)]


@pytest.mark.thorough
def test_the_command_says_which_picture_and_how_much(forged, fmapviz):
    assert fmapviz("verify", forged).returncode == 0
    change_picture(forged / "b.png", "00_0.maps.png", 90)
    run = forged
    (run / "stats.csv").touch()
    done = fmapviz("verify", run, "--redraw", "all", "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["status"] for line in lines if line["event"] == "redrawn"].count("differs") == 1
    assert lines[-1]["redrawn"] == {"images": 3, "same": 2, "rounded": 0, "differs": 1, "undrawn": 0}
    assert done.returncode == 3


# --- what cannot be drawn again


def test_what_is_gone_is_named_and_the_rest_is_drawn(place, tmp_path):
    shutil.copytree(place / "in", tmp_path / "in")
    shutil.copy(place / "net.py", tmp_path)
    run = draw(tmp_path, tmp_path / "out", to="png")
    (tmp_path / "in/a.png").unlink()
    paint(tmp_path / "in/b.png", 5, (24, 25))
    found = {each.path.name: each for each in run_again(run)}
    assert {name: each.status for name, each in found.items()} == {"a.png": "undrawn", "b.png": "undrawn", "c.png": "same"}
    assert "its image is gone" in found["a.png"].reason
    assert "its image has changed" in found["b.png"].reason


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (comment, "it was drawn with something else: net.py has changed"),
        *thorough((Path.unlink, "no such file: 'net.py'")),
    ],
)
def test_a_network_that_is_gone_is_named(change, reason, place, tmp_path):
    shutil.copy(place / "net.py", tmp_path)
    shutil.copytree(place / "in", tmp_path / "in")
    run = draw(tmp_path, tmp_path / "out", to="png")
    change(tmp_path / "net.py")
    (found,) = run_again(run)
    assert (found.status, found.images, found.reason) == ("undrawn", 3, reason)


@pytest.mark.thorough
def test_an_image_that_was_only_touched_is_drawn_and_not_accused(place, tmp_path):
    shutil.copy(place / "net.py", tmp_path)
    shutil.copytree(place / "in", tmp_path / "in")
    run = draw(tmp_path, tmp_path / "out", to="png")
    os.utime(tmp_path / "in/a.png")
    assert statuses(run) == {"a.png": "same", "b.png": "same", "c.png": "same"}
    paint(tmp_path / "in/a.png", 9, (24, 24))
    shutil.copyfile(tmp_path / "in/a.png", tmp_path / "a")
    found = {each.path.name: each for each in run_again(run)}
    assert (found["a.png"].status, found["b.png"].status) == ("undrawn", "same")


@pytest.mark.thorough
def test_networks_and_images_of_python_are_named(place, tmp_path):
    from faults import Net

    image = Image.open(place / "in/a.png")
    given = visualize(Net(), place / "in", to="png", out=tmp_path / "network").directory
    (found,) = run_again(given)
    assert (found.status, "was given in Python" in found.reason) == ("undrawn", True)
    in_memory = visualize("squeezenet1_1", image, weights="random", layers="classifier.1", to="png", out=tmp_path).directory
    del image
    (found,) = run_again(in_memory)
    assert found.status in {"undrawn", "same"}


@pytest.mark.thorough
def test_other_versions_are_named(forged, monkeypatch):
    change_picture(forged / "b.png", "00_0.maps.png", 1)
    monkeypatch.setattr("torch.__version__", "1.0")
    found = {each.path.name: each for each in redrawn_with_problems(forged)}
    assert found["b.png"].status == "rounded"
    assert found["b.png"].reason.startswith("drawn again with torch 1.0, not ")


@pytest.mark.thorough
@pytest.mark.skipif(torch.backends.mps.is_available(), reason="this machine has the device")
def test_a_device_that_is_not_here_is_named_where_bytes_differ(forged):
    record = {name: value for name, value in read_run(forged).items() if name != "sha256"}
    record["request"]["execution"]["device"] = "mps"
    (forged / "run.json").write_bytes(checksummed_json.dumps(record))
    change_picture(forged / "b.png", "00_0.maps.png", 1)
    found = {each.path.name: each for each in redrawn_with_problems(forged)}
    assert (found["a.png"].status, found["b.png"].status) == ("same", "rounded")
    assert found["b.png"].reason == "drawn again with device cpu, not mps"


@pytest.mark.thorough
def test_a_run_that_needs_a_lost_survey_is_not_drawn(place, tmp_path):
    run = draw(place, tmp_path, **KINDS["values of all images"])
    (run / "survey.json").unlink()
    (found,) = redrawn_with_problems(run)
    assert (found.status, "survey.json" in found.reason) == ("undrawn", True)


@pytest.mark.thorough
def test_hostile_records_are_refused_in_a_sentence(forged, fmapviz):
    record = read_run(forged)
    for request in (
        {},
        {"model": 7},
        [],
        {**record["request"], "execution": {"threads": 10**9, "workers": "a", "device": 3}},
    ):
        (forged / "run.json").write_bytes(
            checksummed_json.dumps({**{name: record[name] for name in record if name != "sha256"}, "request": request})
        )
        done = fmapviz("verify", forged, "--redraw", "1")
        assert done.returncode in {0, 3, 4}, done.stderr
        assert b"Traceback" not in done.stderr


def test_no_hash_and_redraw_exclude_each_other(plain, fmapviz):
    done = fmapviz("verify", plain, "--redraw", "1", "--no-hash")
    assert done.returncode == 2
    assert digest_of(plain)


NETWORKS = """

    class Dropout(nn.Module):
        def forward(self, images):
            return nn.functional.dropout(images, 0.5, training=True)


    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, images):
            self.seen += images.mean()
            return images + self.seen


    def random():
        return nn.Sequential(Dropout(), build())


    def remembers():
        return nn.Sequential(Remembers(), build())
"""


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["random", "remembers"])
def test_random_numbers_and_kept_states_are_the_same_in_a_sample(name, place, tmp_path):
    (tmp_path / "net.py").write_text(textwrap.dedent(CODE) + textwrap.dedent(NETWORKS))
    shutil.copytree(place / "in", tmp_path / "in")
    run = draw(tmp_path, tmp_path / "out", model=f"net.py:{name}", to="png,raw")
    for sample in ("1", "2", "all"):
        assert {*statuses(run, sample).values()} == {"same"}
