"""A package whose modules are interchangeable: list them, describe them, fetch one.

The directory is the register: a file's name is the name on the command line (`_` is written `-` there, and `_pp` at its end
`++`), its docstring's first line is the help text, and it is imported only when somebody asks for it. What must be known
before that, such as `REQUIRES`, the package that it needs and that the extra of its name brings, is a constant in it.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fmapviz.errors import RequestError, quote, suggest

if TYPE_CHECKING:
    from types import ModuleType

# The families there are.
SOURCES, VIEWS, WRITERS = "fmapviz.sources", "fmapviz.views", "fmapviz.writers"
SHARD_WRITERS = "fmapviz.shard_writers"  # what of the writers is for shards


def names(package: str) -> list[str]:
    """List the members of a package, without importing any of them.

    Example:
        >>> names("fmapviz.writers")
        ['html', 'npz', 'png', 'raw', 'stats', 'tar', 'tensorboard']
    """
    found = (entry.name for entry in files(package).iterdir())
    return sorted(_spoken(name) for name in found if name.endswith(".py") and not name.startswith("_"))


def describe(package: str, name: str) -> str:
    """Give the first line of a member's docstring, without importing it."""
    return (ast.get_docstring(_parsed(package, name)) or "").partition("\n")[0]


def constant(package: str, name: str, key: str) -> str | None:
    """Give a text that a member defines at its top level, without importing it; None if it does not."""
    assigned = (statement for statement in _parsed(package, name).body if isinstance(statement, ast.Assign))
    values = (each.value for each in assigned if any(isinstance(at, ast.Name) and at.id == key for at in each.targets))
    return next((str(value.value) for value in values if isinstance(value, ast.Constant)), None)


def check(package: str, name: str) -> None:
    """Make sure that a member exists and has the package it needs, without importing it.

    Raises:
        RequestError: There is none of that name, the nearest ones are in the hint; or its extra is not installed.
    """
    known = names(package)
    kind = package.rpartition(".")[2].removesuffix("s")
    spoken = _KINDS.get(kind, kind)
    if name not in known:
        raise RequestError(f"no such {spoken}: {quote(name)}", hint=suggest(name, known) or f"there are: {', '.join(known)}")
    needed = constant(package, name, "REQUIRES")
    if needed and find_spec(needed) is None:
        raise RequestError(
            f"the {spoken} {quote(name)} needs one more package, {needed}", hint=f"pip install 'fmapviz[{name}]'"
        )


def fetch(package: str, name: str) -> ModuleType:
    """Import one member.

    Raises:
        RequestError: See `check`.
    """
    check(package, name)
    return import_module(f"{package}.{_written(name)}")


# What a member of the package is called on the command line, where it is not the package's own name.
_KINDS = {"writer": "format", "source": "model source"}


@cache
def _parsed(package: str, name: str) -> ast.Module:
    return ast.parse(files(package).joinpath(f"{_written(name)}.py").read_text(encoding="utf-8"))


def _spoken(file_name: str) -> str:
    """Turn a file's name into the one on the command line.

    Example:
        >>> _spoken("smooth_grad.py"), _spoken("gradcam_pp.py")
        ('smooth-grad', 'gradcam++')
    """
    return re.sub(r"_pp$", "++", file_name.removesuffix(".py")).replace("_", "-")


def _written(name: str) -> str:
    return re.sub(r"\+\+$", "_pp", name).replace("-", "_")
