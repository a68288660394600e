"""A run is reported as done only if its finished images exist."""

from __future__ import annotations

import shutil

import pytest
from extras import needs
from faults import Net
from image_files import paint
from tiny_runs import AS_IT_IS, runner

from fmapviz.errors import OutputError
from fmapviz.store.listing import list_runs
from fmapviz.store.presence import Presence
from fmapviz.store.verify import verify

draw = runner(Net, to=["png"], preprocessing=AS_IT_IS, workers=1, name="run")


def remove_contents(run):
    """Remove what `rm -r` removes of a directory in which files appear meanwhile."""
    for path in run.iterdir():
        if path.name.startswith(".fmapviz-"):
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def remove_directory(run):
    """Remove the directory, in which an image may be staged meanwhile."""
    while run.exists():
        shutil.rmtree(run, ignore_errors=True)


def replace_by_another(run):
    run.rename(run.parent / "moved")
    shutil.copytree(run.parent / "moved", run, ignore=shutil.ignore_patterns(".fmapviz-*"))


DAMAGES = {
    "all that is there": (remove_contents, "the record of the run is gone: '.*run.json'"),
    "the directory": (remove_directory, "is gone|No such file"),
    "a unit": (lambda run: shutil.rmtree(run / "1.png"), r"1 of \d+ finished directories is gone from '.*run'"),
    "the record of a unit": (lambda run: (run / "0.png" / "unit.json").unlink(), "1 of . finished directories is gone"),
    "a folder of units": (lambda run: shutil.rmtree(run / "cats"), "2 of . finished directories are gone from"),
    "run.json": (lambda run: (run / "run.json").unlink(), "the record of the run is gone"),
    "the place of the run": (replace_by_another, "another directory is in the place of the run|No such file"),
    "the place of out": (lambda run: run.parent.rename(run.parent.parent / "away"), "is gone|No such file"),
}


def damaging(place, do, at, **options):
    """Draw a run, and let something happen to it when some images are done."""
    for number, name in enumerate(("0.png", "1.png", "cats/2.png", "cats/3.png", "x4.png", "x5.png")):
        paint(place / "in" / name, number)
    seen = []

    def on_event(event):
        if getattr(event, "status", "") in {"done", "skipped"}:
            seen.append(event)
            if len(seen) == at:
                do(place / "out" / "run")

    return draw(place / "in", out=place / "out", on_event=on_event, **options)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("at", [4, 6])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_that_is_damaged_while_it_is_drawn_is_not_done(damage, at, tmp_path):
    do, message = DAMAGES[damage]
    with pytest.raises(OutputError, match=message) as caught:
        damaging(tmp_path, do, at)
    assert caught.value.hint
    if (tmp_path / "out" / "run" / "run.json").exists():
        assert next(each for each in list_runs(tmp_path / "out") if each.name == "run").state in {"failed", "interrupted"}
    assert draw(tmp_path / "in", out=tmp_path / "out", repair=True).found == 6
    assert not [problem for each in verify(tmp_path / "out" / "run") for problem in each.problems]


@pytest.mark.thorough
def test_missing_images_of_earlier_commands_are_reported(tmp_path):
    damaging(tmp_path, bool, 1)
    with pytest.raises(OutputError, match="1 of 6 finished directories is gone"):
        damaging(tmp_path, lambda run: shutil.rmtree(run / "0.png"), 6)


@pytest.mark.thorough
@needs("pyarrow", "scale")
def test_a_removed_shard_is_reported_as_missing(tmp_path):
    def remove(run):
        shutil.rmtree(run / "shard-000000")

    with pytest.raises(OutputError, match="1 of 3 finished directories is gone"):
        damaging(tmp_path, remove, 6, shard=2, to=["tar"])


@pytest.mark.thorough
@needs("obstore", "remote")
@pytest.mark.parametrize("lost", ["0.png/unit.json", "run.json"])
def test_a_unit_removed_from_a_store_is_reported_as_missing(lost, tmp_path, bucket):
    for number in range(3):
        paint(tmp_path / "in" / f"{number}.png", number)
    seen = []

    def on_event(event):
        seen.extend([event] * (getattr(event, "status", "") == "done"))
        if len(seen) == 3 and event is seen[-1]:
            bucket.remove(f"runs/run/{lost}")

    with pytest.raises(OutputError, match="is gone"):
        draw(tmp_path / "in", out="s3://photos/runs", on_event=on_event)
    assert draw(tmp_path / "in", out="s3://photos/runs").exit_code == 0


def test_a_disk_that_is_replaced_is_another_directory(tmp_path):
    presence = Presence(tmp_path, tmp_path)
    presence._identity = (1, presence._identity[1])
    with pytest.raises(OutputError, match="another directory"):
        presence.check()
