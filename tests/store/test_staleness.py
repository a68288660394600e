"""Results of all images are drawn again after more images, or reported as out of date."""

from __future__ import annotations

import csv

import pytest
from extras import needs
from faults import Net
from image_files import paint
from tiny_runs import SAID, runner

import fmapviz
from fmapviz.store.verify import verify

draw = runner(Net, to=["png", "stats", "html"], preprocessing=SAID, workers=1, name="run")


def paint_some(folder, count, *, first=0):
    for number in range(first, first + count):
        paint(folder / f"{number}.png", number)
    return folder


def problems(place):
    return [(problem.path.name, problem.remedy) for each in verify(place) for problem in each.problems]


def images(run):
    return {row["image"] for row in csv.DictReader((run / "top.csv").read_text().splitlines())}


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("change", ["added", "changed"])
@pytest.mark.parametrize("shard", [None, pytest.param(2, marks=needs("pyarrow", "scale"))])
def test_top_images_of_fewer_images_are_reported_as_out_of_date(change, shard, tmp_path):
    options = {"shard": shard, "to": ["tar" if shard else "png", "stats"]}
    inputs = paint_some(tmp_path / "in", 4)
    run = draw(inputs, out=tmp_path / "out", **options).directory
    fmapviz.top_images(run, k=9, model=Net(), to="png")
    assert problems(run) == []
    assert not draw(inputs, out=tmp_path / "out", **options).notices
    if change == "added":
        paint_some(inputs, 4, first=4)
    else:
        paint(inputs / "2.png", 20, size=(24, 24))
    summary = draw(inputs, out=tmp_path / "out", **options)
    assert any("top.csv" in notice and f"`fmapviz top {run}` draws them again" in notice for notice in summary.notices)
    assert ("top.csv", "top") in problems(run)
    fmapviz.top_images(run, k=9, model=Net(), to="png")
    assert problems(run) == []
    assert not any("top.csv" in notice for notice in draw(inputs, out=tmp_path / "out", **options).notices)
    assert len(images(run)) == (8 if change == "added" else 4)


@pytest.mark.thorough
def test_top_images_that_the_run_draws_itself_are_drawn_again(tmp_path):
    inputs = paint_some(tmp_path / "in", 3)
    options = {"views": ["maps", "top"]}
    run = draw(inputs, out=tmp_path / "out", **options).directory
    assert len(images(run)) == 3
    paint_some(inputs, 3, first=3)
    assert not any("top.csv" in notice for notice in draw(inputs, out=tmp_path / "out", **options).notices)
    assert len(images(run)) == 6
    assert problems(run) == []
    assert draw(inputs, out=tmp_path / "out", **options).pictures == 0


def test_statistics_and_report_include_all_images(tmp_path):
    inputs = paint_some(tmp_path / "in", 2)
    run = draw(inputs, out=tmp_path / "out").directory
    paint_some(inputs, 2, first=2)
    draw(inputs, out=tmp_path / "out")
    assert {row["images"] for row in csv.DictReader((run / "stats.csv").read_text().splitlines())} == {"4"}
    assert all(f"{number}.png" in (run / "index.html").read_text() for number in range(4))
    assert problems(run) == []
