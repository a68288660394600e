"""The schema of `--json` and the tables of the guide, against what commands print and the dataclasses of the events.

The fixture `fmapviz` and the catalogue of faults compare each line that they see with the schema, see `json_lines.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from json_lines import check_line, schema, types_in, types_of

from fmapviz import data
from fmapviz.core import registry
from fmapviz.data import Failure, LayerInfo
from fmapviz.errors import FmapvizError
from fmapviz.events import Notice, Outcome, RunSummary
from fmapviz.run.estimate import Estimate
from fmapviz.store import listing
from fmapviz.store.listing import ListedRun
from fmapviz.store.verify import _REMEDIES

ROOT = Path(__file__).parents[2]
STAR = str(ROOT / "sample_images/shapes/star.jpg")
PAGE = (ROOT / "fmapviz/guide/folders-and-scripts.md").read_text()
SECTION = PAGE.partition("## The lines of `--json`")[2].partition("\n## ")[0]
OF_RUN, OF_OTHERS = (
    [[cell.strip() for cell in row.strip("|").split("|")] for row in part.splitlines() if row.startswith("| `")]
    for part in SECTION.split("| command |")
)
WORDS = {row[0].strip("`"): {*re.findall(r"`(\w+)`", row[-1])} for row in OF_RUN if row[0].count(" ") == 0}


KINDS = {each["$ref"].rpartition("/")[2] for each in schema()["oneOf"]}
DEFINED = schema()["$defs"]
# Fields of a dataclass that `--json` shows under another name, or not at all.
OF_CLASSES = {
    "notice": (Notice, {}),
    "image": (Outcome, {"failure": ("code", "message")}),
    "plan": (Estimate, {}),
    "layer": (LayerInfo, {}),
    "contents": (ListedRun, {}),
    "failure": (Failure, {}),
    "summary_of_run": (
        RunSummary,
        {
            "results": ("dead", "differences", "trust"),
            **dict.fromkeys(("model_pictures", "units", "highlights", "notices", "same"), ()),
        },
    ),
}
# Added by the command; `layers` of a comparison is a list.
ADDED = {
    "plan": {"fits", "config"},
    "layer": {"receptive_field", "reason", "ungated"},
    "contents": {"name"},
    "summary_of_run": {"exit_code", "tensorboard", "report", "digest", "digest_before"},
}


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
    inner = {"model_pictures", "units", "highlights", "notices", "results", "same"}
    shown = {"dead", "exit_code", "tensorboard", "report"}
    assert WORDS["summary"] == {each.name for each in fields(RunSummary)} - inner | shown


@pytest.mark.thorough
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


def hints_of(kind):
    names = {**vars(data), **vars(listing), "Mapping": Mapping, "Status": Literal["done", "skipped", "failed"], "Any": Any}
    return {each.name: eval(each.type, names) for each in fields(kind)}


@pytest.mark.parametrize("name", OF_CLASSES)
def test_the_schema_agrees_with_the_dataclass(name):
    kind, renamed = OF_CLASSES[name]
    shown = {field for each in fields(kind) for field in renamed.get(each.name, (each.name,))}
    properties = DEFINED[name]["properties"]
    assert {*properties} - {"event"} == shown | ADDED.get(name, set())
    for field, hint in hints_of(kind).items():
        if field not in renamed:
            expected = types_of(hint)
            expected |= {"array"} if (name, field) == ("summary_of_run", "layers") else set()
            assert types_in(properties[field]) == expected, field


def test_the_schema_lists_all_codes_states_and_remedies():
    source = "".join(path.read_text("utf-8") for path in (ROOT / "fmapviz").rglob("*.py"))
    assert {*DEFINED["code"]["enum"]} == {*re.findall(r'"(E_[A-Z_]+)"', source)}
    assert {*DEFINED["exit_code"]["enum"]} == {
        *(0, 1, 3, 129, 130, 143),
        *(kind.exit_code for kind in (FmapvizError, *FmapvizError.__subclasses__())),
    }
    assert {*DEFINED["contents"]["properties"]["state"]["enum"]} == {*get_args(listing.State)}
    assert {*DEFINED["problem"]["properties"]["remedy"]["enum"]} == {*_REMEDIES, "top", "none"}


def test_every_part_of_the_schema_is_described_and_refuses_further_fields():
    for name, part in DEFINED.items():
        if part.get("type") == "object" or "allOf" in part:
            assert part["description"], name
            closed = {"additionalProperties", "unevaluatedProperties"} & {*part}
            assert name == "contents" or [part[each] for each in closed] == [False], name
            assert {*part["required"]} <= {*part["properties"]}, name


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory, warm):
    """A line of each kind that the schema has, as a command printed it."""
    from conftest import captured

    place = tmp_path_factory.mktemp("kinds")
    (place / "bad.jpg").write_text("x")
    few = ("--layers", "features.7*")
    found = {}
    for words in (
        ("shapesnet", STAR, "bad.jpg", *few, "--alpha", "0.1", "--to", "png,stats", "--out", "out"),
        ("shapesnet", STAR, *few, "--plan"),
        ("layers", "shapesnet", "--receptive-field"),
        ("verify", "out", "--no-hash"),
        ("verify", "out", "--redraw", "1"),
        ("runs", "out"),
        ("top", "out/shapesnet", "-k", "1"),
        ("diff", "shapesnet", STAR, *few, "--against", "random", "--out", "out", "--to", "numbers"),
        ("runs", "remove", "out/shapesnet", "--yes"),
        ("shapesnet", "nofile.jpg"),
    ):
        ended = captured(warm, [*words, "--json"], directory=place)
        if words[0] in {"top", "diff"} - registry.commands().keys():  # without a feature
            continue
        for line in lines(ended):
            found.setdefault(check_line(line), []).append(line)
        if words[0] == "shapesnet" and "--to" in words:
            (place / "out/shapesnet/star.jpg/note.txt").write_text("mine")
        elif words[0] == "verify":
            (place / "out/shapesnet/star.jpg/note.txt").unlink(missing_ok=True)
    return found


@pytest.mark.thorough
def test_commands_print_all_kinds_of_lines(every_kind):
    assert {*every_kind} == KINDS - ({"summary_of_top"} if "top" not in registry.commands() else set())


@pytest.mark.thorough
@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_the_schema_refuses_a_line_with_a_field_more_or_less_or_of_another_type(every_kind, data):
    kind = data.draw(st.sampled_from(sorted(every_kind)))
    line = dict(data.draw(st.sampled_from(every_kind[kind])))
    check_line(line)
    field = data.draw(st.sampled_from(sorted({*line} - {"event"})))
    changed = data.draw(st.sampled_from(("more", "less", "other")))
    if changed == "more":
        line["another"] = line[field]
    elif changed == "less":
        optional = {"ungated", "differences"}
        del line[field if field not in optional else "event"]
    else:
        line[field] = {"no": {"such": "type"}, "exit_code": -1}
    with pytest.raises((AssertionError, KeyError)):
        assert check_line(line) != kind
