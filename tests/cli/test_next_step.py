"""The line at the end of a first run in a terminal names a command that works."""

import os
import re
import shlex

import pytest
from cases import thorough
from image_files import paint
from terminals import in_terminal

GRAY, END = "\x1b[90m", "\x1b[0m"
NETWORK = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
"""


@pytest.fixture
def terminal(warm, tmp_path, monkeypatch):
    """Run a command in a terminal, in a folder with an image; return its output and the command of its last line."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    (tmp_path / "net.py").write_text(NETWORK)
    (tmp_path / "bad.jpg").write_text("no image")
    paint(tmp_path / "my photo.png", size=(64, 64))

    def show(command, code=0, **environment):
        environment = {"DISPLAY": ":0", "BROWSER": "true", "PAGER": "cat", **environment}
        words = shlex.split(command)[1:]
        shown = in_terminal(warm, words, tmp_path, code=code, all_streams=True, environment=environment)
        found = re.findall(re.escape(GRAY) + r"([^\x1b]*): (fmapviz .*?)\r?\n?" + re.escape(END), shown)
        assert len(found) <= 1
        return found[0][1] if found else None

    return show


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("command", "added"),
    [
        ("fmapviz shapesnet 'my photo.png'", "--open"),
        *thorough(
            ("fmapviz shapesnet 'my photo.png' --to html", "--view gradcam"),
            ("fmapviz run --weights random shapesnet 'my photo.png' --layers 'features.[01].conv'", "--open"),
            ("fmapviz shapesnet --to npz -- 'my photo.png'", "--open"),
            ("fmapviz shapesnet 'my photo.png' --view mean --open --out o", "--view gradcam"),
            ("fmapviz diff shapesnet 'my photo.png' --against random", "--to html"),
            ("fmapviz diff shapesnet 'my photo.png' --against random --to png,numbers", "--to html"),
            ("fmapviz shapesnet 'my photo.png' bad.jpg", None),
        ),
    ],
)
def test_the_next_step_after_a_first_run_works_when_pasted(terminal, command, added):
    failed = "bad.jpg" in command
    step = terminal(command, code=3 if failed else 0)
    if failed:
        assert step == "fmapviz guide E_FORMAT"
    else:
        options = shlex.split(added)
        typed = shlex.split(command)
        end = typed.index("--") if "--" in typed else len(typed)
        assert shlex.split(step) == [*typed[:end], *options, *typed[end:]]
    again = terminal(step)
    assert again is None, "only a first run has a next step"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "command",
    [
        "fmapviz net.py:build 'my photo.png' --open",
        *thorough("fmapviz shapesnet 'my photo.png' --layers features.0.conv --to html"),
    ],
)
def test_heat_maps_are_no_next_step_without_predictions_or_for_chosen_layers(terminal, command):
    assert terminal(command) == "fmapviz guide layers-and-views"


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        ("", {"NO_COLOR": "1"}),
        *thorough(
            ("", {"TERM": "dumb"}), ("-q", {}), ("--json", {}), ("--name mine", {}), ("--part 1/2", {}), ("--plan", {})
        ),
    ],
)
def test_no_next_step_where_it_is_not_wanted_or_would_be_refused(terminal, words, environment):
    assert terminal(f"fmapviz shapesnet 'my photo.png' {words}", **environment) is None


@pytest.mark.thorough
def test_no_next_step_if_the_output_is_no_terminal(terminal, warm, fmapviz, tmp_path):
    shown = fmapviz("shapesnet", "my photo.png", "--out", "a")
    assert b"next" not in shown.stdout + shown.stderr
    assert b"\x1b" not in shown.stdout + shown.stderr
    assert "next" not in in_terminal(warm, ["shapesnet", "my photo.png", "--out", "b"], tmp_path)  # results go to a file


@pytest.mark.thorough
def test_no_next_step_of_very_many_inputs(terminal, tmp_path):
    names = [f"{number:030}.png" for number in range(12)]
    for name in names:
        os.link(tmp_path / "my photo.png", tmp_path / name)
    assert terminal(shlex.join(["fmapviz", "shapesnet", *names, "--layers", "features.0.conv"])) is None
