"""Messages about arguments in Python, as the command line prints them."""

import ast
import re
from pathlib import Path

import pytest
import typer
from typer.main import get_command

import fmapviz
from fmapviz.cli.app import app
from fmapviz.cli.options import GROUPS, as_typed
from fmapviz.cli.run import _configure
from fmapviz.config import options_of
from fmapviz.errors import RequestError

PACKAGE = Path(fmapviz.__file__).parent
OPTIONS = {name for group in GROUPS for name, option in options_of(group).items() if option.panel}
OPTIONS |= {"against", "reference"}  # of `fmapviz diff`
NAMED = re.compile(rf"(?<![\w.])({'|'.join(OPTIONS)})=")


def texts(source):
    """The texts of a module, with a letter for each value in them, without docstrings."""
    nodes = [*ast.walk(ast.parse(source))]
    skipped = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            yield "".join(part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.value


def test_every_argument_that_the_library_names_is_printed_as_its_option():
    sources = [path.read_text() for path in PACKAGE.rglob("*.py") if path.parent.name != "cli"]
    named = [text for source in sources for text in texts(source) if NAMED.search(text)]
    assert len(named) > 20
    for text in named:
        typed = as_typed(text)
        assert not NAMED.search(typed), text
        assert len(re.findall("--[a-z]", typed)) == len(NAMED.findall(text)), text


def test_texts_that_name_no_argument_are_not_changed():
    for text in (
        "layer='auto' finds one",
        "f(size=(3, 4))",
        "https://x.org/?size=64&force=True",
        "the file 'force=True.png'",
        "",
    ):
        assert as_typed(text) == text


RUN = get_command(app).commands["run"]
TYPED = [
    option for each in RUN.params for option in each.opts if option.startswith("--") and not getattr(each, "is_flag", 0)
]
WRONG = ("0", "-1", "0x5", "1.5", "256,256", "9999999", "nan", "x")
PYTHON = re.compile(
    r"""\b(?:True|False|None|Engine|Style|Sequence|tuple|str)\b|\(\d[^()]*, |\w=(?![.,\s])|[({\[]['"]|\w_\w"""
)


def refuse(option, text):
    """Return the library's error for a value that is typed for an option of `fmapviz run`; None if there is none."""
    try:
        typed = RUN.make_context("run", ["alexnet", "a.jpg", "--no-config", option, text]).params
        typed = {name: [*value] or None if isinstance(value, tuple) else value for name, value in typed.items()}  # as Typer
        _configure("alexnet", ["a.jpg"], typed, null=False, open_report=False)
    except RequestError as error:
        return error
    except typer.TyperException:  # the parser's own
        return None
    return None


@pytest.mark.parametrize("option", TYPED)
def test_what_is_said_of_a_refused_value_is_in_the_words_of_the_command(option):
    """Its value as it was typed, no spelling of Python, and a proposal that the command takes."""
    for text in WRONG:
        if error := refuse(option, text):
            hint = as_typed(error.hint or "")
            assert not PYTHON.search(re.sub("my_(net|view|format)", "", f"{error} {hint}")), (error, hint)
            assert any(repr(each) in str(error) for each in (text, text.split(",")[0])) or "package" in str(error)
            proposed = re.findall(r"(--[a-z-]+) ([a-z\d:.]\S*[^\s;,])", hint)
            assert not any(refuse(*each) for each in proposed if each[0] in TYPED), hint
