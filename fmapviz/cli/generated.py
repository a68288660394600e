"""`fmapviz --generate WHAT`: files for packages and other programs, made of what the package declares and holds."""

from __future__ import annotations

from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fmapviz.cli.manual import manual
from fmapviz.cli.shells import SCRIPTS
from fmapviz.errors import RequestError, quote, suggest

if TYPE_CHECKING:
    from collections.abc import Callable

# What each name generates, given the context of the group of commands. Any: the class of contexts is not public.
GENERATORS: dict[str, Callable[[Any], str]] = {
    "man": manual,
    **{f"complete-{shell}": partial(lambda script, _context: script, script) for shell, script in SCRIPTS.items()},
    "schema": lambda _context: _read("json.schema.json"),
    "skill": lambda _context: _read("skill", "SKILL.md"),
}


def generate(name: str, context: Any) -> str:  # Any: as above
    """Return a file.

    Args:
        name: A key of `GENERATORS`.
        context: That of the group of commands.

    Raises:
        RequestError: There is none of this name.
    """
    if name not in GENERATORS:
        hint = suggest(name, GENERATORS) or f"there are: {', '.join(GENERATORS)}"
        raise RequestError(f"nothing to generate is called {quote(name)}", hint=hint)
    return GENERATORS[name](context).rstrip("\n")


def _read(*path: str) -> str:
    return files("fmapviz").joinpath("guide", *path).read_text(encoding="utf-8")
