"""`fmapviz runs`: list the runs of a directory, or remove some."""

from __future__ import annotations

import os
import shutil
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fmapviz.cli.printing import align, erase_status, is_terminal, print_json, print_line, print_message, show_status
from fmapviz.cli.run import JsonOption  # noqa: TC001  Typer reads it
from fmapviz.core.files import format_bytes
from fmapviz.core.words import counted
from fmapviz.errors import RequestError, printable, quote

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fmapviz.store.listing import ListedRun

REMOVE = "remove"
_USUAL = "runs"  # the directory of all runs
_HEADER = ("run", "model", "weights", "images", "failed", "size", "age", "formats", "state", "settings")
_RIGHT = {3, 4, 5, 6}  # columns of numbers
_LEAST = 24  # characters of the last column
_MINUTE, _HOUR, _DAY = 60, 3600, 86400  # seconds


def runs(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar=f"[DIR] | {REMOVE} NAME...",
            help=f"A directory of runs, or a run; or {REMOVE} and the names or paths of runs.",
            show_default="runs",
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="The directory of all runs.", show_default="runs")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove runs without asking.")] = False,
    json: JsonOption = False,
) -> None:
    """List the runs in DIR: contents, sizes, and the settings in which runs of one model differ.

    `fmapviz runs remove NAME...` removes runs. It asks first, and refuses a run that holds a file that fmapviz did not make.
    A directory called remove is ./remove. In a terminal, settings are shortened to its width; a pipe and --json have all.

    Exit codes: 0 done; 2 wrong request, such as no run of that name; 5 could not be removed; 6 refused, nothing was removed.
    """
    first, *names = words or [""]
    if first == REMOVE:
        if not names:
            raise RequestError(
                "missing argument 'NAME'", hint=f"`fmapviz runs {REMOVE} NAME...`; ./{REMOVE} is a directory of that name"
            )
        _remove(names, _USUAL if out is None else out, yes=yes, json=json)
        return
    if yes:
        raise RequestError("--yes needs something to remove", hint=f"`fmapviz runs {REMOVE} NAME... --yes`")
    if names or (words and out is not None):
        raise RequestError(
            f"one directory at a time: {quote(first)}, {quote((*names, out)[0])}", hint=f"`fmapviz runs {REMOVE} NAME...`"
        )
    directory = first if words else out
    _list(directory, json=json)


def _list(given: str | None, *, json: bool) -> None:
    directory = _USUAL if given is None else given
    show_status(f"listing {directory} ...")
    from fmapviz.store.listing import list_runs

    listed, is_first = [], given is None and not os.path.lexists(_USUAL)
    for run in () if is_first else list_runs(directory):
        listed.append(run)
        if json:
            print_json({"event": "run", "name": run.name, **_record(run)})
    images, size = sum(run.images for run in listed), sum(run.bytes for run in listed)
    if json:
        fields = {"runs": len(listed), "images": images, "failures": sum(run.failures for run in listed), "bytes": size}
        print_json({"event": "summary", "directory": directory, **fields, "exit_code": 0})
        return
    if not listed:
        print_message(f"{'nothing was drawn here yet: ' if is_first else ''}no runs in {quote(directory)}")
        return
    references = {run.first for run in listed if run.first is not None}
    rows = ((*_cells(run), _settings(run, references)) for run in listed)
    shown = len(_HEADER) if references else -1  # runs of different models have nothing to compare
    table = align([each[:shown] for each in (_HEADER, *rows)], right=_RIGHT)
    if is_terminal(sys.stdout):
        table = _fit(table, shutil.get_terminal_size().columns)
    print_line("\n".join(table))
    print_message(f"{counted(len(listed), 'run')}: {_describe(images, size)}")


def _remove(names: Sequence[str], out: str, *, yes: bool, json: bool) -> None:
    if not yes and not (sys.stdin is not None and sys.stdin.isatty()):
        raise RequestError("cannot ask without a terminal whether to remove runs", hint="--yes removes them without asking")
    show_status("checking ...")
    from fmapviz.store.listing import describe_run
    from fmapviz.store.remove import check_removable, find_run, remove_run

    directories = {os.path.realpath(directory): directory for directory in (find_run(name, out) for name in names)}
    for directory in directories.values():
        check_removable(directory)
    removed = []
    for directory in directories.values():
        run = describe_run(directory)
        described = f"{printable(str(directory))} ({_describe(run.images, run.bytes)})"
        if not yes and not _confirm(f"remove {described}?"):
            print_message(f"kept {described}")
            continue
        show_status(f"removing {directory} ...")
        remove_run(directory)
        removed.append(run)
        if json:
            print_json({"event": "removed", "name": run.name, **_record(run)})
        else:
            print_line(f"removed {described}")
    if json:
        fields = {
            "removed": len(removed),
            "kept": len(directories) - len(removed),
            "bytes": sum(run.bytes for run in removed),
        }
        print_json({"event": "summary", **fields, "exit_code": 0})


def _confirm(question: str) -> bool:
    """Ask in the terminal; return True for y or yes."""
    erase_status()
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):  # Ctrl-D
        print_message("")
    return answer.strip().lower() in {"y", "yes"}


def _record(run: ListedRun) -> dict[str, Any]:
    """Return a run as JSON values."""
    return {**asdict(run), "directory": str(run.directory)}


def _cells(run: ListedRun) -> tuple[str, ...]:
    killed = run.killed and run.state in {"finished", "running"}  # a command that left no record
    states = {"damaged": run.damaged, run.state: run.state != "finished", "killed": killed}
    reason = f" ({printable(run.reason)})" if run.reason else ""
    return (
        printable(run.name),
        printable(run.model or "-"),
        printable(run.weights or "-"),
        str(run.images) if run.expected is None else f"{run.images} of {run.expected}",
        str(run.failures),
        format_bytes(run.bytes),
        format_age(time.time() - run.written),
        printable(",".join(run.formats)) or "-",
        ", ".join(state for state, applies in states.items() if applies) + reason,
    )


def _settings(run: ListedRun, references: Collection[str]) -> str:
    """Return the settings in which a run differs from the reference run of its model."""
    if run.first is None:
        return "reference" if run.name in references else ""
    return "; ".join(run.differences) or f"as {printable(run.first)}"


def _fit(table: Sequence[str], columns: int) -> list[str]:
    """Shorten the last column of a table to the width of a terminal, but to no less than a few words.

    Example:
        >>> _fit(["size  settings", "9 MB  norm: layer, not channel; columns: 3, not 8"], 30)
        ['size  settings', '9 MB  norm: layer, not chan...']
    """
    most = max(columns, table[0].rindex(" ") + 1 + _LEAST)
    return [line if len(line) <= most else f"{line[: most - 3]}..." for line in table]


def _describe(images: int, size: int) -> str:
    return f"{counted(images, 'image')}, {format_bytes(size)}"


def format_age(seconds: float) -> str:
    """Format the time since something was written.

    Example:
        >>> format_age(59), format_age(200), format_age(7300), format_age(90_000), format_age(200_000)
        ('59 s', '3 min', '2 h', '1 day', '2 days')
    """
    if seconds < _HOUR:
        return f"{max(0, int(seconds))} s" if seconds < _MINUTE else f"{int(seconds // _MINUTE)} min"
    return f"{int(seconds // _HOUR)} h" if seconds < _DAY else counted(int(seconds // _DAY), "day")
