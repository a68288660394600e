"""Messages about arguments in Python, as the command line prints them."""

import ast
import re
from pathlib import Path

import fmapviz
from fmapviz.cli.options import GROUPS, as_typed
from fmapviz.config import options_of

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
