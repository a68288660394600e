"""Families of interchangeable modules: list, describe and import their members.

The folder is the registry. The name of a file is the name on the command line, with `-` for `_` and `++` for `_pp` at its
end; the first line of its docstring is the help text. A member is imported on first use. What is needed earlier is a
constant in it, for instance `REQUIRES`: a package that the member needs and that the extra of the member's name installs, or
the extra named in `EXTRA`.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fmapviz.core.synonyms import meant_member
from fmapviz.errors import RequestError, quote, suggest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

SOURCES, VIEWS, WRITERS = "fmapviz.models.sources", "fmapviz.views", "fmapviz.formats"
AGGREGATES = "fmapviz.store.aggregates"


def names(package: str) -> list[str]:
    """Return the names of the members of a package, sorted.

    Example:
        >>> names("fmapviz.formats")
        ['channels', 'gif', 'html', 'mp4', 'npz', 'numbers', 'png', 'raw', 'stats', 'svg', 'tar', 'tensorboard']
    """
    found = (entry for entry in files(package).iterdir() if not entry.name.startswith(("_", "base.")))
    return sorted(_spoken(entry.name) for entry in found if entry.name.endswith(".py") or entry.is_dir())


def describe(package: str, name: str) -> str:
    """Return the first line of the docstring of a member, without importing it."""
    return (ast.get_docstring(_parsed(package, name)) or "").partition("\n")[0]


def constant(package: str, name: str, key: str) -> str | None:
    """Return a top-level constant of a member as text, without importing it; None if it has no such constant."""
    assigned = (statement for statement in _parsed(package, name).body if isinstance(statement, ast.Assign))
    values = (each.value for each in assigned if any(isinstance(at, ast.Name) and at.id == key for at in each.targets))
    return next((str(value.value) for value in values if isinstance(value, ast.Constant)), None)


def constants(package: str, key: str) -> dict[str, str]:
    """Return the value of a top-level constant for each member that has it, without importing any.

    Example:
        >>> constants("fmapviz.formats", "PAGE")
        {'html': 'index.html'}
    """
    values = ((name, constant(package, name, key)) for name in names(package))
    return {name: value for name, value in values if value is not None}


def any_has(package: str, members: Iterable[object], key: str) -> bool:
    """Return True if one of the given members has a top-level constant; names of other members are ignored."""
    return not constants(package, key).keys().isdisjoint(map(str, members))


def check(package: str, name: str) -> None:
    """Check that a member exists and that its extra is installed, without importing it.

    Raises:
        RequestError: The member does not exist, or its extra is not installed.
    """
    known, spoken = names(package), kind(package)
    if name not in known:
        raise RequestError(f"no such {spoken}: {quote(name)}", hint=_meant(package, name))
    needed = constant(package, name, "REQUIRES")
    if needed and find_spec(needed) is None:
        extra = constant(package, name, "EXTRA") or name
        raise RequestError(f"the {spoken} {quote(name)} needs the package {needed}", hint=f"pip install 'fmapviz[{extra}]'")


def _meant(package: str, name: str) -> str:
    """Return a hint for a name that is no member: a similar one, the word of another tool, or a member of another family."""
    known = names(package)
    for other, option in ((VIEWS, "views"), (WRITERS, "to")):
        if other != package and package in {VIEWS, WRITERS} and name.lower() in names(other):
            return f"{quote(name.lower())} is a {kind(other)}: {option}={quote(name.lower())}"
    return meant_member(kind(package), name, known) or suggest(name, known) or f"there are: {', '.join(known)}"


def fetch(package: str, name: str) -> ModuleType:
    """Import one member.

    Raises:
        RequestError: See `check`.
    """
    check(package, name)
    return import_module(f"{package}.{_written(name)}")


def kind(package: str) -> str:
    """Return the word for a member of a package in messages.

    Example:
        >>> kind("fmapviz.views"), kind("fmapviz.formats")
        ('view', 'format')
    """
    word = package.rpartition(".")[2].removesuffix("s")
    return {"writer": "format", "source": "model source"}.get(word, word)


@cache
def _parsed(package: str, name: str) -> ast.Module:
    member = files(package).joinpath(_written(name))
    module = member.joinpath("__init__.py") if member.is_dir() else files(package).joinpath(f"{_written(name)}.py")
    return ast.parse(module.read_text(encoding="utf-8"))


def _spoken(file_name: str) -> str:
    """Return the name on the command line of a file.

    Example:
        >>> _spoken("smooth_grad.py"), _spoken("gradcam_pp.py")
        ('smooth-grad', 'gradcam++')
    """
    return re.sub(r"_pp$", "++", file_name.removesuffix(".py")).replace("_", "-")


def _written(name: str) -> str:
    return re.sub(r"\+\+$", "_pp", name).replace("-", "_")
