"""Every value that the help of a command lists is taken by that command."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import get_args

import pytest
from cases import thorough
from image_files import paint
from trees import problems
from typer.core import TyperOption
from typer.main import get_command

from fmapviz import visualize
from fmapviz.cli.app import app
from fmapviz.config import Engine, InputOptions, RunConfig, Style, options_of
from fmapviz.config.checks import SCORES
from fmapviz.config.input_options import Fit
from fmapviz.config.options import ITEM
from fmapviz.config.style import COLORMAPS, NORMS
from fmapviz.core import registry
from fmapviz.errors import RequestError

STAR = str(Path(__file__).parents[2] / "sample_images/shapes/star.jpg")
ATTENTION = {"attention", "rollout"}  # shapesnet computes none


def listed(command, option):
    """Return the values that the help of a command lists for an option."""
    parameters = get_command(app).commands[command].params
    (help_,) = [each.help for each in parameters if option in each.opts]
    return [item.partition(":")[0] for item in help_.split(ITEM)[1:]]


def test_a_run_takes_each_view_that_its_help_lists(tmp_path):
    views = [view for view in listed("run", "--view") if view not in {*ATTENTION, "boxes"}]  # of other networks
    assert "diff" not in views
    assert len(views) > 20
    few = {"steps": 2, "samples": 4, "patch": 32, "preprocessing": InputOptions(size=64)}  # passes and pixels
    for seed, drawn in (("40,40", [view for view in views if view != "correspondence"]), (STAR, ["correspondence"])):
        options = {"views": drawn, "layers": "features", "style": Style(anchor=seed), **few}
        summary = visualize("shapesnet", STAR, out=tmp_path, to=["png"], **options)
        assert summary.exit_code == 0


@pytest.mark.thorough
def test_a_run_takes_each_format_that_its_help_lists(tmp_path):
    formats = listed("run", "--to")
    assert "numbers" not in formats
    small = paint(tmp_path / "a.png", size=(64, 64))
    summary = visualize("shapesnet", small, out=tmp_path / "out", to=formats, layers=["features.7.conv"])
    assert summary.exit_code == 0
    assert problems(summary.directory) == []


@pytest.mark.thorough
def test_diff_takes_each_format_that_its_help_lists(tmp_path, fmapviz):
    formats = listed("diff", "--to")
    assert {"numbers", "png"} <= {*formats}
    assert not {"raw", "npz", "stats"} & {*formats}
    done = fmapviz("diff", "shapesnet", STAR, "--against", "random", "--to", ",".join(formats), "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_diff_lists_no_range_of_a_run():
    (norm,) = [each for each in get_command(app).commands["diff"].params if "--norm" in each.opts]
    assert not re.search(r"\brun\b", norm.help)
    for word in re.findall(r"signed-\w+|channel|layer", norm.help):
        assert word in {"channel", "layer", "signed-layer"}


@pytest.mark.parametrize("group", [RunConfig, Style, InputOptions, Engine])
def test_each_word_in_the_help_of_an_option_is_a_value(group):
    for name, option in options_of(group).items():
        for word in option.words if not (option.family or option.parse) else ():
            value = {"fixed:": "fixed:0,1"}.get(word, word)
            given = {"model": "alexnet", "inputs": [STAR]} if group is RunConfig else {}
            group(**given, **{name: value})


GROUP = get_command(app)
# The words of a command that draws little.
CONTEXTS = {
    "run": ("shapesnet", "a.png", "-q"),
    "layers": ("shapesnet", "--types", "Linear"),
    "diff": ("shapesnet", "a.png", "-q"),
    "top": ("runs/shapesnet", "--layers", "features.0.conv", "-k", "1", "--force"),
}
# What else a value needs.
NEEDS = {"similarity": ("--anchor", "9,9"), "correspondence": ("--anchor", "a.png")}
WRITTEN = {"fixed:": "fixed:0,1", "model:": "model:shapesnet"}  # beginnings of values
ELSEWHERE = {"cuda", "mps", *ATTENTION}  # on other devices, in other networks


def values_of(name, option):
    """Return the values that help lists or completion offers for an option, or its form names."""
    context = GROUP.context_class(GROUP, info_name="fmapviz")
    command = GROUP.commands[name]
    of = command.context_class(command, info_name=name, parent=context)
    completed = [each.value for each in option.shell_complete(of, "")]
    in_help = [item.partition(":")[0] for item in (option.help or "").split(ITEM)[1:]]
    in_form = [word for word in re.split(r"[|,]", option.metavar or "") if re.fullmatch(r"[a-z][a-z\d]*", word)]
    return completed, in_help, in_form


OPTIONS = [
    (name, option)
    for name in GROUP.commands
    for option in GROUP.commands[name].params
    if isinstance(option, TyperOption) and not option.is_flag and any(values_of(name, option))
]


@pytest.mark.parametrize(("name", "option"), OPTIONS, ids=lambda each: each if isinstance(each, str) else each.opts[0])
def test_help_completion_and_form_of_an_option_list_the_same_values(name, option):
    completed, in_help, in_form = values_of(name, option)
    assert not in_help or {*in_help} == {*completed}
    assert name == "extract" or {*in_form} <= {*completed} | {"random", "ray", "all"}
    for word in completed if not in_help else ():
        text = f"{option.help} {option.metavar} {option.show_default}"
        assert (
            re.search(rf"(?<![\w-]){re.escape(word)}", text) or word in {"default", "random"} or word.startswith("dtype:")
        ), word


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a run that keeps statistics, and a report."""
    place = tmp_path_factory.mktemp("values")
    small = paint(place / "a.png", size=(64, 64))
    visualize("shapesnet", small, out=place / "runs", to=["stats", "html"], layers="features.0.conv", progress=False)
    return place


def taken(words, capsys):
    """Run a command; return False if it refuses its words."""
    try:
        GROUP.main(list(words), prog_name="fmapviz", standalone_mode=False)
    except RequestError:
        return False
    finally:
        capsys.readouterr()
    return True


@pytest.mark.parametrize("name", ["layers", *thorough("top", "run", "diff")])
def test_a_command_takes_each_value_that_it_lists_and_no_other_view_or_format(name, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    context = (name, *CONTEXTS[name])
    pair = ("--against", "random") if name == "diff" else ()
    members = {"--view": registry.views(), "--to": registry.formats()}
    for of, option in OPTIONS:
        flag, values = option.opts[0], dict.fromkeys(chain(*values_of(of, option)))
        if of != name or flag in {"--reference", "--engine"}:
            continue
        for value in values.keys() - ELSEWHERE - {"boxes"}:  # which another network has
            words = (
                *context,
                flag,
                WRITTEN.get(value, value),
                *NEEDS.get(value, ()),
                *(pair if flag != "--against" else ()),
            )
            assert taken(words, capsys), words
        for value in members.get(flag, {}).keys() - values.keys():
            assert not taken((*context, flag, value, *pair), capsys), value


def test_every_accepted_word_is_listed():
    accepted = {
        ("run", "--norm"): {*NORMS, "fixed:"},
        ("run", "--colormap"): {*COLORMAPS},
        ("run", "--scores"): {*SCORES},
        ("run", "--fit"): {*get_args(Fit)},
        ("layers", "--fit"): {*get_args(Fit)},
        ("diff", "--norm"): {*NORMS, "fixed:"} - {"run", "signed-run"},
    }
    listed = {(name, option.opts[0]): {*values_of(name, option)[0]} for name, option in OPTIONS}
    for at, words in accepted.items():
        assert listed[at] == words, at


def test_diff_lists_the_rank_by_change_and_the_types_that_it_takes(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    context = ("shapesnet", "a.png", "--channels", "top:16:change")
    assert not taken(("run", *context), capsys)
    assert "top:16:change" in next(each.help for each in GROUP.commands["diff"].params if "--channels" in each.opts)
    assert "top:16:change" not in next(each.help for each in GROUP.commands["run"].params if "--channels" in each.opts)
    assert taken(("diff", *context, "--against", "dtype:float64", "--layers", "features.0.conv"), capsys)
