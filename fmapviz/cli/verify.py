"""`fmapviz verify` and `fmapviz extract`: check finished runs, and write one picture of a shard to a file."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fmapviz.cli.printing import print_bytes, print_json, print_line, print_message, show_status
from fmapviz.cli.run import JsonOption, running_option
from fmapviz.core.urls import is_unknown, is_url
from fmapviz.core.words import counted
from fmapviz.errors import RequestError, printable, quote

if TYPE_CHECKING:
    from collections.abc import Mapping


def verify(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A directory of runs, a run, or an image in it.")],
    hashed: Annotated[bool, running_option("--hash/--no-hash", help="Compare checksums, or sizes only.")] = True,
    json: JsonOption = False,
) -> int:
    """Check that DIR holds the files that it records, unchanged, and no others. Report how to repair it.

    A run that is being written or was interrupted is not damaged, but reported.
    """
    show_status(f"checking {directory} ...")
    from fmapviz.store.verify import hints_of
    from fmapviz.store.verify import verify as verify_all

    units = files = damaged = hidden = 0
    needed = set()
    unfinished: dict[str, str] = {}
    for unit in verify_all(directory, hashed=hashed):
        units, files, damaged = units + 1, files + unit.files, damaged + unit.is_damaged
        hidden += unit.hidden
        if unit.state != "finished":
            unfinished[str(unit.directory)] = unit.state
        for problem in unit.problems:
            if problem.remedy == "finish" and not json:
                continue
            needed.add(problem.remedy)
            if json:
                fields = {"path": str(problem.path), "message": problem.message, "remedy": problem.remedy}
                print_json({"event": "problem", **fields})
            else:
                print_line(f"{printable(str(problem.path))}: {problem.message}")
    code = 3 if damaged else 0
    if json:
        counts = {"directories": units, "files": files, "damaged": damaged, "unfinished": len(unfinished), "hidden": hidden}
        print_json({"event": "summary", **counts, "exit_code": code})
    elif damaged:
        print_message(f"{damaged} of {counted(units, 'directory')} {'is' if damaged == 1 else 'are'} damaged")
        for hint in hints_of(needed):
            print_message(f"hint: {hint}")
    else:
        checked = f"{counted(units, 'directory')}, {counted(files, 'file')}: "
        print_line(checked + ("all finished ones are unchanged" if unfinished else "all complete and unchanged"))
    _notice_unfinished({} if json else unfinished)
    if hidden and not json:
        print_message(
            f"notice: {counted(hidden, 'hidden directory')} of running or killed commands; the next run removes the latter"
        )
    return code


def _notice_unfinished(runs: Mapping[str, str]) -> None:
    """Report unfinished runs.

    Args:
        runs: Their states by path.
    """
    for run, state in runs.items():
        if state == "running":
            print_message(f"notice: {quote(run)} is running: only what is finished was checked")
        else:
            how = "has failed" if state == "failed" else "was interrupted"
            print_message(f"notice: {quote(run)} {how}: only what is finished was checked; the original command finishes it")


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
    from fmapviz.store.extract import extract as find
    from fmapviz.store.extract import put

    picture = find(directory, image=image, layer=layer, view=view, target=target)
    if out == "-":
        print_bytes(picture.png)
        return
    path = Path(out or picture.name)
    put(path, picture.png, force=force)
    print_line(printable(str(path)))
