"""Every value that the help of a command lists is taken by that command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from image_files import paint
from trees import problems
from typer.main import get_command

from fmapviz import visualize
from fmapviz.cli.app import app
from fmapviz.config import Engine, InputOptions, RunConfig, Style, options_of
from fmapviz.config.options import ITEM

STAR = str(Path(__file__).parents[2] / "sample_images/shapes/star.jpg")
ATTENTION = {"attention", "rollout"}  # shapesnet computes none


def listed(command, option):
    """Return the values that the help of a command lists for an option."""
    parameters = get_command(app).commands[command].params
    (help_,) = [each.help for each in parameters if option in each.opts]
    return [item.partition(":")[0] for item in help_.split(ITEM)[1:]]


def test_a_run_takes_each_view_that_its_help_lists(tmp_path):
    views = [view for view in listed("run", "--view") if view not in ATTENTION]
    assert "diff" not in views
    assert len(views) > 20
    for seed, some in (("40,40", {"correspondence"}), (STAR, {"similarity"})):
        drawn = [view for view in views if view not in some]
        summary = visualize(
            "shapesnet", STAR, out=tmp_path, to=["png"], views=drawn, layers="features", style=Style(anchor=seed)
        )
        assert summary.exit_code == 0


def test_a_run_takes_each_format_that_its_help_lists(tmp_path):
    formats = listed("run", "--to")
    assert "numbers" not in formats
    small = paint(tmp_path / "a.png", size=(64, 64))
    summary = visualize("shapesnet", small, out=tmp_path / "out", to=formats, layers=["features.7.conv"])
    assert summary.exit_code == 0
    assert problems(summary.directory) == []


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
