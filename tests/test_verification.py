from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from fmapviz import png, registry
from fmapviz.errors import RequestError
from fmapviz.options import Style
from fmapviz.runs import note_failure, open_run
from fmapviz.units import commit, seal, stage
from fmapviz.values import Failure, ImageFile, Picture, RunInfo
from fmapviz.verification import verify

INFO = RunInfo(
    "net", "random weights, seed 0", None, "crop", ("Conv2d",), (), (), ("maps",), ("png", "tensorboard"), Style()
)
FILES = ["00_conv.maps.png", "events.out.tfevents.fmapviz", "unit.json"]


def finish(run, unit):
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    picture = Picture("maps", "00 conv", png.encode(pixels, {"Layer": "conv"}), 4, 3, {"Layer": "conv"})
    with stage(run) as staging:
        for form in INFO.formats:
            with registry.fetch("fmapviz.writers", form).open_writer(staging, None) as write:
                write(picture)
        return commit(staging, run, ImageFile(f"/photos/{unit}", unit, 10, 20), {"model": "net", "layers": []})


@pytest.fixture
def out(tmp_path):
    """Two runs, one of them with a folder and a failure."""
    first = open_run(tmp_path / "out", INFO)
    finish(first, "a.png")
    finish(first, "cats/b.png")
    note_failure(first, Failure("/photos/c.png", "E_DECODE", "damaged"))
    finish(open_run(tmp_path / "out", INFO, name="other"), "a.png")
    return tmp_path / "out"


@pytest.fixture
def unit(out):
    return out / "net/cats/b.png"


def problems(directory):
    return [(str(problem.path), problem.message) for place in verify(directory) for problem in place.problems]


# --- what is whole


def test_a_whole_tree_has_no_problems(out):
    assert sorted((str(place.directory.relative_to(out)), place.files, place.problems) for place in verify(out)) == [
        ("net", 1, ()),
        ("net/a.png", 2, ()),
        ("net/cats/b.png", 2, ()),
        ("other", 1, ()),
        ("other/a.png", 2, ()),
    ]


def test_a_run_or_one_unit_can_be_looked_through_alone(out, unit):
    assert [str(place.directory.relative_to(out)) for place in verify(out / "other")] == ["other", "other/a.png"]
    assert [(place.directory, place.files) for place in verify(unit)] == [(unit, 2)]
    assert [place.directory for place in verify(unit.parent)] == [unit]


def test_a_moved_tree_is_still_whole(out, unit, tmp_path):
    shutil.copytree(out, tmp_path / "copy")
    shutil.copytree(unit, tmp_path / "single")
    assert problems(tmp_path / "copy") == []
    assert problems(tmp_path / "single") == []


def test_what_is_being_written_is_not_looked_at(out):
    with stage(out) as in_out, stage(out / "net") as in_run:
        (in_out / "run.json").write_text("{")
        (in_run / "unit.json").write_text("{")
        (in_run / "00.png").write_text("half")
        assert problems(out) == []
        assert len(list(verify(out))) == 5


def test_a_run_without_an_image_is_whole(tmp_path):
    directory = open_run(tmp_path, INFO)
    assert [(place.directory, place.problems) for place in verify(tmp_path)] == [(directory, ())]


def test_folders_that_are_empty_are_no_problem(out):
    (out / "net/dogs").mkdir()
    assert problems(out) == []


# --- what is not


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_byte_is_named(name, unit):
    path = unit / name
    whole = path.read_bytes()
    message = "damaged" if name == "unit.json" else "other content than was written"
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert (str(path), message) in problems(unit), position
    path.write_bytes(whole)
    assert problems(unit) == []


def test_every_flipped_byte_of_a_run_is_named(out):
    path = out / "net/run.json"
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert problems(out) == [(str(path), "damaged")], position


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", ["cut", "longer", "emptied"])
def test_a_file_of_another_length_is_named(name, change, unit):
    path = unit / name
    whole = path.read_bytes()
    path.write_bytes({"cut": whole[:-1], "longer": whole + b"\n", "emptied": b""}[change])
    found = "damaged" if name == "unit.json" else f"{path.stat().st_size} bytes instead of {len(whole)}"
    assert problems(unit) == [(str(path), found)]


@pytest.mark.parametrize("name", FILES[:2])
def test_a_missing_file_is_named(name, unit):
    (unit / name).unlink()
    assert problems(unit) == [(str(unit / name), "missing")]


def test_a_unit_without_its_record_is_named(out, unit):
    (unit / "unit.json").unlink()
    assert problems(out) == [(str(unit / name), "not made by fmapviz") for name in FILES[:2]]


@pytest.mark.parametrize("name", FILES[:2])
@pytest.mark.parametrize("kind", ["folder", "dangling link"])
def test_something_else_in_a_files_place_is_named(name, kind, unit):
    (unit / name).unlink()
    if kind == "folder":
        (unit / name).mkdir()
    else:
        (unit / name).symlink_to("nowhere")
    assert [path for path, _ in problems(unit)] == [str(unit / name)]


@pytest.mark.parametrize(
    "record",
    [
        "",
        "{",
        "[]",
        '{"source": {"path": "a"}, "files": ["a"]}',
        '{"source": {"path": "a"}, "files": [{"name": "a"}]}',
        '{"source": {"path": "a"}, "files": {}}',
        '{"source": {"path": "a"}, "files": []}',
    ],
)
def test_a_damaged_record_is_named_and_the_rest_is_still_looked_through(record, out, unit):
    (unit / "unit.json").write_text(record)
    (out / "other/a.png/00_conv.maps.png").unlink()
    found = problems(out)
    assert (str(unit / "unit.json"), "damaged") in found
    assert (str(out / "other/a.png/00_conv.maps.png"), "missing") in found


@pytest.mark.parametrize("record", ["", "{", "[]", "{}", '{"fmapviz": "1"}', '{"fmapviz": 1, "fingerprint": "x"}'])
def test_a_damaged_run_is_named_and_its_units_are_still_looked_through(record, out, unit):
    (out / "net/run.json").write_text(record)
    (unit / "00_conv.maps.png").unlink()
    assert problems(out) == [(str(out / "net/run.json"), "damaged"), (str(unit / "00_conv.maps.png"), "missing")]


def test_what_fmapviz_did_not_make_is_named(out, unit):
    for path in (unit / "notes.txt", unit / ".hidden", unit.parent / "notes.txt", out / "net/notes.txt"):
        path.write_text("mine")
    (unit / "more").mkdir()
    assert sorted(problems(out)) == [
        (str(path), "not made by fmapviz")
        for path in (unit / ".hidden", unit / "more", unit / "notes.txt", unit.parent / "notes.txt", out / "net/notes.txt")
    ]


def test_a_strange_record_in_a_run_does_not_hide_its_units(out, unit):
    (out / "net/unit.json").write_bytes(seal({"source": {"path": "x"}, "files": []}))
    (unit / "00_conv.maps.png").unlink()
    assert problems(out) == [
        (str(out / "net/unit.json"), "not made by fmapviz"),
        (str(unit / "00_conv.maps.png"), "missing"),
    ]


def test_other_things_beside_the_runs_are_nobodys_business(out):
    (out / "notes.txt").write_text("mine")
    (out / "thesis/figures").mkdir(parents=True)
    (out / "thesis/figures/one.png").write_text("mine")
    assert problems(out) == []


@pytest.mark.parametrize("kind", ["empty", "foreign", "missing", "file"])
def test_a_directory_that_fmapviz_did_not_make_is_a_wrong_request(kind, tmp_path):
    place = tmp_path / "place"
    if kind == "file":
        place.write_text("mine")
    elif kind != "missing":
        place.mkdir()
        if kind == "foreign":
            (place / "notes.txt").write_text("mine")
    with pytest.raises(RequestError, match=f"no run of fmapviz: '{place}'"):
        list(verify(place))


UNPRIVILEGED = """
import os, sys
from pathlib import Path
from fmapviz.verification import verify

if os.getuid() == 0:
    os.setuid(65534)
for place in verify(Path(sys.argv[1])):
    for problem in place.problems:
        print(problem.path.relative_to(sys.argv[1]), problem.message, sep=": ")
"""


def test_what_cannot_be_looked_into_is_named():
    with tempfile.TemporaryDirectory() as folder:  # pytest's own cannot be entered by other users
        out = Path(folder)
        run = open_run(out, INFO)
        closed = [finish(run, "a.png"), finish(run, "b.png") / "00_conv.maps.png", finish(run, "c.png") / "unit.json"]
        out.chmod(0o755)
        for path in closed:
            path.chmod(0)
        command = [sys.executable, "-c", UNPRIVILEGED, folder]
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        for path in closed:
            path.chmod(0o700)
    assert sorted(result.stdout.splitlines()) == [
        "net/a.png: Permission denied",
        "net/b.png/00_conv.maps.png: Permission denied",
        "net/c.png/unit.json: Permission denied",
    ]


def test_a_path_that_is_no_text_is_named(out, unit):
    name = os.fsdecode(b"\xe9")
    (unit / name).write_text("mine")
    assert problems(unit) == [(str(unit / name), "not made by fmapviz")]


def test_looking_changes_nothing(out):
    def state():
        return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in out.rglob("*")}

    before = state()
    list(verify(out))
    assert state() == before


def test_records_are_json_that_anybody_can_read(out, unit):
    for path in (out / "net/run.json", unit / "unit.json"):
        record = json.loads(path.read_bytes())
        first, *_, last = record
        assert (first, last) == ("fmapviz", "sha256")
        assert path.read_bytes().isascii()
