"""Two commands on one run at the same time: their files are all recorded, or the second is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from faults import Net
from image_files import paint
from tiny_runs import AS_IT_IS, runner

import fmapviz
from fmapviz.config import Part
from fmapviz.errors import RefusedError
from fmapviz.formats.html.two_runs import write_two_runs
from fmapviz.store import run_files
from fmapviz.store.listing import list_runs
from fmapviz.store.remove import check_removable, remove_run
from fmapviz.store.verify import verify

draw = runner(Net, to=["png", "stats", "html"], preprocessing=AS_IT_IS, workers=1, name="run")


def paint_some(folder, count):
    for number in range(count):
        paint(folder / f"{number}.png", number)
    return folder


def problems(place):
    return [(problem.path.name, problem.message) for each in verify(place) for problem in each.problems]


def recorded(run):
    return {entry["name"] for entry in json.loads((run / "products.json").read_text())["files"]}


def while_running(place, do, *, at=3, count=5, **options):
    """Draw a run, and call a function with its directory in the middle of it; return what that returns, and the run."""
    seen, results = [], []

    def on_event(event):
        if getattr(event, "status", "") == "done":
            seen.append(event)
            if len(seen) == at:
                results.append(do(place / "out" / "run"))

    summary = draw(paint_some(place / "in", count), out=place / "out", on_event=on_event, **options)
    assert (summary.done, summary.exit_code) == (count, 0)
    return results[0], summary.directory


def check_whole(run):
    assert problems(run) == []
    visible = {path.name for path in run.iterdir() if path.is_file()}
    assert visible - {"run.json", "products.json", "failures.jsonl"} == recorded(run)
    check_removable(run)


def check_that_top_can_be_drawn_again(run, model=None):
    """Images that a run may have got since are reported, and drawing top images again leaves nothing to be reported."""
    assert problems(run) in ([], [("top.csv", "out of date: images were added, changed or removed")])
    assert not fmapviz.top_images(run, k=2, model=model).notices[1:]
    check_whole(run)


@pytest.mark.thorough
def test_top_of_a_run_that_is_being_written_is_recorded(tmp_path):
    top, run = while_running(tmp_path, lambda run: fmapviz.top_images(run, k=2, model=Net(), to="png"))
    assert {"top.csv", "stats.csv", "index.html"} <= recorded(run)
    assert top.table == run / "top.csv"
    check_that_top_can_be_drawn_again(run, Net())
    remove_run(run)
    assert not run.exists()


@pytest.mark.thorough
def test_a_run_that_ends_between_pages_and_table_of_top_writes_the_table(tmp_path):
    run = draw(paint_some(tmp_path / "in", 3), out=tmp_path / "out").directory
    publish = run_files.publish

    def after_another(*args, **options):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run_files, "publish", publish)
            draw(paint_some(tmp_path / "in", 4), out=tmp_path / "out")
        return publish(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_files, "publish", after_another)
        top = fmapviz.top_images(run, k=2, model=Net(), to="png")
    assert "top.csv" in recorded(run)
    assert any("show fewer or other images" in notice for notice in top.notices)
    assert problems(run)
    check_that_top_can_be_drawn_again(run, Net())


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", [None, Part(1, 2)])
def test_a_second_command_of_the_same_run_adds_its_images(part, tmp_path):
    more = paint_some(tmp_path / "more", 7)
    _, run = while_running(tmp_path, lambda _: draw(more, out=tmp_path / "out", part=part))
    check_whole(run)


def test_a_run_that_is_being_written_is_not_removed(tmp_path):
    def remove(run):
        for do in (check_removable, remove_run):
            with pytest.raises(RefusedError, match="a command is writing"):
                do(run)

    _, run = while_running(tmp_path, remove)
    check_whole(run)


@pytest.mark.thorough
def test_a_run_whose_top_images_are_drawn_is_not_removed(tmp_path):
    run = draw(paint_some(tmp_path / "in", 3), out=tmp_path / "out").directory
    states = []

    def on_event(_):
        states.extend(each.state for each in list_runs(run.parent))
        with pytest.raises(RefusedError, match="a command is writing"):
            check_removable(run)

    fmapviz.top_images(run, k=2, model=Net(), to="png", on_event=on_event)
    assert {*states} == {"running"}
    check_whole(run)


@pytest.mark.thorough
def test_a_report_of_a_running_run_shows_its_finished_images(tmp_path):
    other = draw(paint_some(tmp_path / "in", 2), out=tmp_path / "out", name="other").directory
    page, run = while_running(tmp_path, lambda run: _page(run, other))
    assert page is None or page.is_file()
    check_whole(run)
    check_whole(other)


def _page(run, other):
    try:
        return write_two_runs([run, other])
    except fmapviz.errors.RequestError:  # it has no report yet
        return None


def test_records_of_other_commands_are_kept_and_obsolete_ones_removed(tmp_path):
    run = draw(paint_some(tmp_path / "in", 2), out=tmp_path / "out", to=["png"]).directory
    run_files.publish(run, lambda _: ({"a.csv": b"a", "b.csv": b"b"}, []), variant="1", owned={"a.csv", "b.csv"})
    run_files.publish(run, lambda _: ({"c.csv": b"c"}, []), variant="2", owned={"c.csv"})
    assert recorded(run) == {"a.csv", "b.csv", "c.csv"}
    run_files.publish(run, lambda _: ({"a.csv": b"a2"}, []), variant="3", owned={"a.csv", "b.csv"})
    assert recorded(run) == {"a.csv", "c.csv"}
    assert not (run / "b.csv").exists()


def test_publishing_threads_take_turns(tmp_path):
    run = draw(paint_some(tmp_path / "in", 2), out=tmp_path / "out", to=["png"]).directory

    def publish(number):
        name = f"{number}.csv"
        run_files.publish(run, lambda _: ({name: b"x" * 1000}, []), variant=name, owned={name})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(publish, range(24)))
    assert recorded(run) == {f"{number}.csv" for number in range(24)}


NETWORK = """
import time
import torch
from torch import nn


class Slow(nn.Sequential):
    def forward(self, x):
        time.sleep(0.1)
        return super().forward(x)


def build():
    torch.manual_seed(0)
    return Slow(nn.Conv2d(3, 4, 3))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("other", ["top", "run", "verify", "top top", "remove", "runs"])
def test_concurrent_processes_leave_a_valid_run(other, tmp_path):
    (tmp_path / "net.py").write_text(NETWORK)
    paint_some(tmp_path / "in", 12)
    python = [sys.executable, "-m", "fmapviz"]
    run = [*python, "net.py:build", "in", "--fit", "none", "--to", "png,stats,html", "--out", "out", "--name", "run"]
    commands = {
        "run": run,
        "top": [*python, "top", "out/run", "-k", "2"],
        "verify": [*python, "verify", "out"],
        "remove": [*python, "runs", "remove", "out/run", "--yes"],
        "runs": [*python, "runs", "out"],
    }
    subprocess.run([*run, "--strict"], cwd=tmp_path, check=True, capture_output=True)
    paint_some(tmp_path / "in", 24)
    first = subprocess.Popen(run, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    others = [subprocess.run(commands[word], cwd=tmp_path, capture_output=True, check=False) for word in other.split()]
    _, errors = first.communicate()
    codes = [each.returncode for each in others]
    assert all(code in ({0, 6} if other == "remove" else {0}) for code in codes), others
    assert first.returncode == 0, errors
    run = tmp_path / "out" / "run"
    if "top" in other and problems(run):  # the run went on after its images were ranked
        subprocess.run(commands["top"], cwd=tmp_path, check=True, capture_output=True)
    if run.exists():
        check_whole(run)
