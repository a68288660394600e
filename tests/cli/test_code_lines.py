"""Code of the guide in narrow terminals: no line is cut inside a word, and what is copied is what was written."""

from __future__ import annotations

import ast
import re
import shlex

import pytest

from fmapviz.cli.code_lines import fit_code
from fmapviz.cli.guide import PAGES, _read, _render

BLOCKS = [(page, *found) for page in PAGES for found in re.findall(r"^```(\w*)\n(.*?)^```", _read(page), re.M | re.S)]


def joined(lines):
    return "\n".join(lines).replace("\\\n", "")


@pytest.mark.parametrize("width", [59, 79])
@pytest.mark.parametrize("language", ["sh", "console", "python", ""])
def test_code_of_the_guide_stays_the_same(language, width):
    blocks = [(page, code.rstrip()) for page, known, code in BLOCKS if known == language]
    assert blocks
    for page, code in blocks:
        lines = fit_code(code, language, width)
        if language == "python":
            assert ast.dump(ast.parse("\n".join(lines))) == ast.dump(ast.parse(code)), page
        elif language == "sh":
            assert shlex.split(joined(lines), comments=True) == shlex.split(code.replace("\\\n", ""), comments=True), page
        else:
            assert "\n".join(lines).replace("\\\n", "").split() == code.split(), page


@pytest.mark.parametrize("width", [59, 79])
def test_lines_fit_into_the_terminal(width):
    """What does not has no place to break: a long string, or a word."""
    long = [line for _, language, code in BLOCKS for line in fit_code(code.rstrip(), language, width) if len(line) > width]
    assert len(long) <= (2 if width == 79 else 20), long


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("fmapviz a --layers b --to png", ["fmapviz a --layers b \\", "    --to png"]),
        ("fmapviz 'a b c d e f g h' 'two words'", ["fmapviz 'a b c d e f g h' \\", "    'two words'"]),
        ("x | fmapviz - --to png -0 --name y", ["x | fmapviz - --to png -0 \\", "    --name y"]),
    ],
)
def test_a_command_is_broken_before_an_option(command, lines):
    assert fit_code(command, "sh", 27) == lines


def test_options_in_sentences_stay_beside_their_values(monkeypatch):
    monkeypatch.setattr("fmapviz.cli.guide._columns", lambda: 80)
    for page in PAGES:
        shown = re.sub(r"\x1b\[[0-9;]*m", "", _render(_read(page)))
        for option in re.findall(r"`(--[\w-]+ [^` \n]{1,12})`", _read(page)):
            assert option in shown, (page, option)
