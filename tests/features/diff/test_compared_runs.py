"""Two runs that are compared while one is written, or while files of the comparison disappear."""

import shutil
from functools import partial
from pathlib import Path

import pytest
from faults import Net
from image_files import paint
from tiny_runs import AS_IT_IS, runner
from trees import problems

from fmapviz.config import RunConfig
from fmapviz.errors import OutputError
from fmapviz.features.diff.run import run_diff

draw = runner(Net, to=["raw"], preprocessing=AS_IT_IS, workers=1)


@pytest.fixture
def images(tmp_path):
    for number in range(3):
        paint(tmp_path / "in" / f"{number}.png", number)
    return tmp_path / "in"


@pytest.mark.thorough
def test_a_comparison_with_a_run_that_is_being_written_reports_it(images, tmp_path):
    other = draw(images, out=tmp_path / "out", name="other").directory
    told, compared, done = [], [], []

    def compare(event):
        done.extend([event.path] if getattr(event, "status", "") == "done" else [])
        if len(done) == 2 and not compared:
            config = RunConfig(
                str(tmp_path / "out/run"),
                [str(other)],
                views="diff",
                out=tmp_path / "diffs",
                to="numbers",
                on_event=told.append,
            )
            compared.append(run_diff(config, against=None).done)

    run = draw(images, out=tmp_path / "out", name="run", on_event=compare)
    assert run.done == 3
    assert compared == [2]
    assert any("still being written" in getattr(event, "message", "") for event in told)
    assert problems(run.directory) == []


@pytest.mark.thorough
def test_a_comparison_of_runs_reports_that_its_files_are_gone(images, tmp_path):
    runs = [draw(images, out=tmp_path / "out", name=name).directory for name in ("a", "b")]
    done = []  # images are finished in any order

    def on_event(event):
        if getattr(event, "status", "") == "done":
            done.append(Path(event.path).name)
            if len(done) == 3:
                shutil.rmtree(tmp_path / "diffs" / "d" / done[0])

    config = partial(RunConfig, str(runs[0]), [str(runs[1])], views="diff", out=tmp_path / "diffs", name="d", to=["numbers"])
    with pytest.raises(OutputError, match="1 of 3 finished"):
        run_diff(config(on_event=on_event), against=None)
    assert run_diff(config(), against=None).exit_code == 0
