"""`fmapviz models`: list the names of models."""

from __future__ import annotations

from typing import Annotated

import typer

from fmapviz.cli.printing import print_line, show_status
from fmapviz.cli.process import check_directory
from fmapviz.core import registry
from fmapviz.errors import RequestError, quote, suggest
from fmapviz.models.load import model_names


def list_models(
    pattern: Annotated[str, typer.Argument(metavar="[PATTERN]", help="Part of a name, or a glob.", show_default=False)] = "",
) -> None:
    """List the names that MODEL takes."""
    if ":" in pattern:  # the names of a source that is slow to import
        show_status(f"listing {pattern} ...")
        check_directory()
    names = model_names(pattern)
    if not names:
        source = pattern.removesuffix(":")
        hint = f"`fmapviz models '{source}:*'`" if source in registry.sources() else suggest(pattern, model_names())
        hint = hint or "`fmapviz models` lists all names"
        raise RequestError(f"no model name matches {quote(pattern)}", hint=hint)
    print_line("\n".join(names))
