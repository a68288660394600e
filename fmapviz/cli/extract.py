"""`fmapviz extract`: write one picture of a shard to a file."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from fmapviz.cli.printing import print_bytes, print_line, show_status
from fmapviz.core.errors import RequestError, printable, quote
from fmapviz.core.urls import is_unknown, is_url


def extract(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A run with --shard, or one of its shards.")],
    image: Annotated[str, typer.Option(metavar="NAME", help="Path of the image, the end of it, or its number.")],
    layer: Annotated[str, typer.Option(metavar="NAME", help="Name of the layer; input is the preprocessed input.")],
    view: Annotated[str | None, typer.Option(metavar="NAME", help="View of the layer.", show_default="the only one")] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="top1|INT|NAME", help="Class of a gradient or map.", show_default="the only one"),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Output file; - is standard output.", show_default="a name in this directory"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE.")] = False,
) -> None:
    """Write one picture of a shard to a file and print its path."""
    if find_spec("pyarrow") is None:
        raise RequestError("fmapviz extract needs the package pyarrow", hint="pip install 'fmapviz[scale]'")
    if out and (is_url(out) or is_unknown(out)):
        raise RequestError(f"--out must be a local file: {quote(out)}", hint="--out FILE, or - for a pipe")
    show_status(f"reading {directory} ...")
    from fmapviz.runs.extract import extract as find
    from fmapviz.runs.extract import put

    found = find(directory, image=image, layer=layer, view=view, target=target)
    if out == "-":
        print_bytes(found.png)
        return
    path = Path(out or found.name)
    put(path, found.png, force=force)
    print_line(printable(str(path)))
