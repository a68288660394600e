"""The table of the guide on the lines of `--json`, against what commands print and the dataclasses of the events."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from fmapviz.events import Notice, Outcome, RunSummary

ROOT = Path(__file__).parents[2]
STAR = str(ROOT / "sample_images/shapes/star.jpg")
PAGE = (ROOT / "fmapviz/guide/folders-and-scripts.md").read_text()
SECTION = PAGE.partition("## The lines of `--json`")[2].partition("\n## ")[0]
OF_RUN, OF_OTHERS = (
    [[cell.strip() for cell in row.strip("|").split("|")] for row in part.splitlines() if row.startswith("| `")]
    for part in SECTION.split("| command |")
)
WORDS = {row[0].strip("`"): {*re.findall(r"`(\w+)`", row[-1])} for row in OF_RUN if row[0].count(" ") == 0}


def lines(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def printed(fmapviz, tmp_path):
    """Objects that real commands print."""
    (tmp_path / "bad.jpg").write_text("x")
    run = ("shapesnet", STAR, "--json", "--out", "out", "--to", "png")
    first = lines(fmapviz(*run, str(tmp_path / "bad.jpg"), "--columns", "3", "--layers", "features.7*", "--alpha", "0.1"))
    again = lines(fmapviz(*run, "--columns", "3", "--layers", "features.7*"))
    return first, again


def test_the_events_of_a_run_have_the_fields_that_the_guide_lists(printed):
    seen = set()
    for found in (each for run in printed for each in run):
        event = found.pop("event")
        seen.add(event)
        optional = {"predictions", "code", "message"} if event == "image" else set()
        assert WORDS[event] - optional <= {*found} <= WORDS[event], event
    assert seen == {"run", "notice", "image", "summary"}


def test_documented_fields_equal_those_of_the_events():
    assert WORDS["image"] == {each.name for each in fields(Outcome)} - {"failure"} | {"code", "message"}
    assert WORDS["notice"] == {each.name for each in fields(Notice)}
    inner = {"model_pictures", "units", "highlights", "notices", "results"}
    shown = {"dead", "exit_code", "tensorboard", "report"}
    assert WORDS["summary"] == {each.name for each in fields(RunSummary)} - inner | shown


def test_the_events_of_other_commands_have_the_fields_that_the_guide_lists(fmapviz, printed):
    del printed
    for words, event in (
        (("shapesnet", STAR, "--plan"), "plan"),
        (("layers", "shapesnet"), "layer"),
        (("runs", "out"), "run"),
    ):
        (found, *_) = lines(fmapviz(*words, "--json"))
        assert found.pop("event") == event
        (said,) = [{*re.findall(r"`(\w+)`", row[-1])} for row in OF_OTHERS if row[1] == f"`{event}`"]
        assert {*found} == said
    (error,) = lines(fmapviz("shapesnet", "nofile.jpg", "--json"))
    assert {*error} - {"event"} == {"exit_code", "error", "hint"}
