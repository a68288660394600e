"""The record of what the units of a large run occupy: the table of the runs is the same with and without it."""

from __future__ import annotations

import shutil

import pytest
from run_infos import run_info
from trees import problems

from fmapviz.core import checksummed_json
from fmapviz.core.file_names import SIZES_FILE
from fmapviz.core.files import stage
from fmapviz.core.types import ImageFile
from fmapviz.runs.listing import describe_run
from fmapviz.runs.remove import remove_run
from fmapviz.runs.run import open_run
from fmapviz.runs.sizes import MANY, record_sizes, walk
from fmapviz.runs.unfinished import unfinished
from fmapviz.runs.unit import commit

INFO = run_info(to=("png",))


def finish(run, unit, size=5000, *, force=False):
    with stage(run) as staging:
        (staging / "input.png").write_bytes(b"x" * size)
        commit(staging, run, ImageFile(f"/photos/{unit}", unit, 10, 20), {"run": INFO.fingerprint}, force=force)


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
    """Return what is known of all directories of a run but its own."""
    return {each for each in walk(run) if each.path}


def test_the_command_that_ends_records_what_units_occupy_as_their_files_do(run):
    with_record = folders(run)
    occupied = sum(-(-path.stat().st_size // 4096) if path.is_file() else 1 for path in [run, *run.rglob("*")]) * 4096
    listed = describe_run(run)
    assert (listed.images, listed.bytes, listed.state) == (MANY + 1, occupied, "finished")
    (run / SIZES_FILE).unlink()
    assert folders(run) == with_record


def test_the_files_of_recorded_units_are_not_looked_at(run):
    before = describe_run(run)
    (run / "0.png/input.png").unlink()
    assert describe_run(run) == before
    (run / SIZES_FILE).unlink()
    assert describe_run(run).bytes < before.bytes - 2 * 4096


def test_units_that_were_drawn_again_removed_or_added_since_are_looked_at(run):
    shutil.rmtree(run / "cats/1.png")
    finish(run, "new.png")
    record_sizes(run)
    finish(run, "new.png", 50_000, force=True)
    finish(run, "cats/new.png")
    found = folders(run)
    record_sizes(run)
    assert folders(run) == found
    (run / SIZES_FILE).unlink()
    assert folders(run) == found
    assert describe_run(run).images == MANY + 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda data: data[:-100],
        lambda data: data.replace(b"[", b"{", 1),
        lambda _: checksummed_json.dumps({"fmapviz": 1, "units": [1, 2]}),
        lambda _: checksummed_json.dumps({"fmapviz": 1, "units": {"0.png": 7, "3.png": [1, 2], "6.png": ["a", 1, 2, 3]}}),
    ],
    ids=["empty", "truncated", "other bytes", "a list", "other fields"],
)
def test_a_damaged_record_is_none(run, damage):
    expected = folders(run)
    (run / SIZES_FILE).write_bytes(damage((run / SIZES_FILE).read_bytes()))
    assert folders(run) == expected
    record_sizes(run)
    assert folders(run) == expected


def test_the_record_belongs_to_the_run(tmp_path):
    directory = open_run(tmp_path / "out", INFO)
    with unfinished(directory, ["/photos"], lambda _: MANY):
        for number in range(MANY):
            finish(directory, f"{number}.png")
    assert (directory / SIZES_FILE).exists()
    assert not problems(directory)
    remove_run(directory)
    assert not directory.exists()


def test_a_run_of_few_units_has_no_record(tmp_path):
    directory = open_run(tmp_path / "out", INFO)
    with unfinished(directory, ["/photos"], lambda _: 1):
        finish(directory, "a.png")
    assert sorted(path.name for path in directory.iterdir()) == ["a.png", "run.json"]
