"""A package whose modules are interchangeable: list them, describe them, fetch one.

The directory is the register: a file's name is the name on the command line (`_` is written `-` there), its docstring's
first line is the help text, and it is imported only when somebody asks for it.
"""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING

from fmapviz.errors import RequestError, quote, suggest

if TYPE_CHECKING:
    from types import ModuleType

# The families there are.
SOURCES, VIEWS, WRITERS = "fmapviz.sources", "fmapviz.views", "fmapviz.writers"


def names(package: str) -> list[str]:
    """List the members of a package, without importing any of them.

    Example:
        >>> names("fmapviz.writers")
        ['png', 'tensorboard']
    """
    found = (entry.name for entry in files(package).iterdir())
    return sorted(_spoken(name) for name in found if name.endswith(".py") and not name.startswith("_"))


def describe(package: str, name: str) -> str:
    """Give the first line of a member's docstring, without importing it."""
    source = files(package).joinpath(f"{_written(name)}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def check(package: str, name: str) -> None:
    """Make sure that a member exists, without importing it.

    Raises:
        RequestError: There is none of that name; the nearest ones are in the hint.
    """
    known = names(package)
    if name not in known:
        kind = package.rpartition(".")[2].removesuffix("s")
        raise RequestError(
            f"no such {_KINDS.get(kind, kind)}: {quote(name)}",
            hint=suggest(name, known) or f"there are: {', '.join(known)}",
        )


def fetch(package: str, name: str) -> ModuleType:
    """Import one member.

    Raises:
        RequestError: There is none of that name; the nearest ones are in the hint.
    """
    check(package, name)
    return import_module(f"{package}.{_written(name)}")


# What a member of the package is called on the command line, where it is not the package's own name.
_KINDS = {"writer": "format", "source": "model source"}


def _spoken(file_name: str) -> str:
    return file_name.removesuffix(".py").replace("_", "-")


def _written(name: str) -> str:
    return name.replace("-", "_")
