"""Messages about arguments in Python, as the command line prints them."""

import ast
import re
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
import typer
from typer.main import get_command

import fmapviz
from fmapviz.cli.app import app
from fmapviz.cli.options import GROUPS, as_typed
from fmapviz.cli.run import _configure
from fmapviz.config import RunConfig, options_of, split
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


@pytest.mark.thorough
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


@pytest.mark.sampled(12)
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


OPEN = "[a" * 20_000  # fnmatch would take seconds, or minutes
LONG_GLOBS = [OPEN, f"layer,{OPEN}", "*" * 1001, "a" * 1000 + "?", f"{OPEN}]", "[!" * 9999]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("glob", LONG_GLOBS, ids=range(len(LONG_GLOBS)))
@pytest.mark.parametrize("name", ["layers", "exclude", "types"])
def test_a_glob_that_is_too_long_is_refused_in_one_sentence(name, glob):
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3))
    for call in (RunConfig, fmapviz.list_layers):
        with pytest.raises(RequestError) as caught:
            call(net, **{name: glob})
        assert len(str(caught.value)) < 120
        assert caught.value.hint


@pytest.mark.thorough
@pytest.mark.parametrize("command", [["models"], ["layers", "shapesnet", "--layers"], ["layers", "shapesnet", "--exclude"]])
def test_a_typed_glob_that_is_too_long_is_refused(command, fmapviz):
    result = fmapviz(*command, OPEN)
    assert result.returncode == 2
    assert result.stderr.decode().startswith("error: a glob has more than 1,000 characters: '[a[a[a")


def test_globs_as_long_as_allowed_and_names_of_any_length_are_taken():
    globs = ["[a" * 500, "*" * 1000, f"[{'a,' * 498}]", "[a,b].*", "[]a,b]", "[!],b]"]
    assert split(",".join(globs)) == (*globs,)
    name = "a" * 5000
    net = torch.nn.Sequential(OrderedDict({name: torch.nn.Conv2d(3, 2, 3)}))
    assert [layer.name for layer in fmapviz.list_layers(net, layers=name)] == [name]


def test_the_glob_of_a_declared_layout_is_bounded():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3))
    net.layout = {OPEN: "N C H W"}
    with pytest.raises(RequestError, match="a glob has more than 1,000 characters"):
        fmapviz.visualize(net, torch.rand(1, 3, 8, 8))
