"""The directory of a run: find or make the one whose settings are these, and note what failed in it."""

from __future__ import annotations

import errno
import json
import os
import re
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import count
from typing import TYPE_CHECKING, Any

from fmapviz.errors import OutputError, RefusedError, RequestError, quote
from fmapviz.units import FORMAT, seal, stage, sweep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fmapviz.values import Failure, RunInfo

RUN_FILE = "run.json"
FAILURES_FILE = "failures.jsonl"


def check_output(out: Path) -> None:
    """Make sure, without writing anything, that a directory can be made and written to.

    Raises:
        OutputError: It cannot.
    """
    place = out.absolute()
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        raise OutputError(f"not a directory: {quote(place)}", hint="choose another place with --out")
    if not os.access(place, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write to {quote(place)}: read-only, or not permitted", hint="another --out may do")


def open_run(out: Path, info: RunInfo, *, name: str | None = None) -> Path:
    """Find the run with the same settings, or begin a new one.

    Args:
        out: The directory of all runs.
        info: The settings.
        name: The run's directory in `out`. None: the model's name, or the first of `alexnet-2`, `alexnet-3`, ... whose
            settings are the same or that is free.

    Raises:
        RefusedError: The named directory belongs to a run with other settings, was not made by fmapviz, or was made by a
            newer version.
        OutputError: The disk is full, say.
    """
    if name is not None and not _is_good(name):
        raise RequestError(f"no good name for a directory: {quote(name)}", hint="without slashes, not beginning with a dot")
    names = [name] if name else _numbered(info.model)
    for candidate in names:
        directory = out / candidate
        if _make(directory, info) or _fingerprint(directory) == info.fingerprint:
            with writing_to(directory):
                sweep(out)
                sweep(directory)
            return directory
    raise RefusedError(
        f"{quote(directory)} {_description(directory)}",
        hint="choose another --name, or leave it out: a free one is found",
    )


@contextmanager
def forgetting_refused(run: Path, *, out_too: bool) -> Iterator[None]:
    """Remove a run's directory if it turns out that the request is wrong and nothing but the request is in it.

    Args:
        run: The directory.
        out_too: Whether the one it is in is to go with it, if there is nothing else in it.
    """
    try:
        yield
    except RequestError:
        with suppress(OSError):  # whatever is left does no harm
            if [entry.name for entry in run.iterdir()] == [RUN_FILE]:
                (run / RUN_FILE).unlink()
                run.rmdir()
                if out_too:
                    run.parent.rmdir()
        raise


def note_failure(run: Path, failure: Failure) -> None:
    """Append one line to `failures.jsonl`, in one piece, so that many processes can.

    Raises:
        OutputError: The disk is full, say.
    """
    fields = asdict(failure)
    if failure.report is None:
        del fields["report"]
    line = (json.dumps({"time": round(time.time(), 3), **fields}) + "\n").encode("ascii")
    with writing_to(run):
        file = os.open(run / FAILURES_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            if os.write(file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(file)


def read_failures(run: Path) -> list[dict[str, Any]]:
    """Read what `failures.jsonl` tells, of each input the last, in the order of their paths; empty if there is none."""
    last: dict[str, dict[str, Any]] = {}
    with suppress(FileNotFoundError):
        for line in (run / FAILURES_FILE).read_text(encoding="ascii", errors="replace").splitlines():
            with suppress(ValueError):  # a line that was cut off
                failure = json.loads(line)
                if isinstance(failure, dict):
                    last[str(failure.get("path"))] = failure
    return [last[path] for path in sorted(last)]


@contextmanager
def writing_to(place: Path) -> Iterator[None]:
    """Say of a failure to write what could not be written.

    Raises:
        OutputError: In place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write to {quote(place)}: {error.strerror or error}") from error


def _is_good(name: str) -> bool:
    fits = 0 < len(os.fsencode(name)) <= 200
    return fits and name.isprintable() and not name.startswith(".") and not set(name) & {"/", "\\", '"'}


def _numbered(model: str) -> Any:
    # Any: an endless iterator, or the list of one name.
    model = re.sub(r"^[^(]*/(?=[^(/]*\.py:)", "", model)  # where code of the user's own lies
    stem = "".join(ch if ch.isalnum() or ch in "._-" else "_" for ch in model).lstrip(".").rstrip("_") or "model"
    yield stem
    yield from (f"{stem}-{number}" for number in count(2))


def _make(directory: Path, info: RunInfo) -> bool:
    """Begin a run, and tell whether it was free to do so: the rename decides between many processes."""
    if os.path.lexists(directory / RUN_FILE):
        return False
    document = {
        "fmapviz": FORMAT,
        "fingerprint": info.fingerprint,
        "settings": info.settings,
        "versions": dict(info.versions),
    }
    with writing_to(directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
        with stage(directory.parent) as staging:
            (staging / RUN_FILE).write_bytes(seal(document))
            try:
                staging.rename(directory)
            except OSError as error:
                if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
                    return False
                raise
    return True


def _fingerprint(directory: Path) -> str | None:
    document = read_run(directory)
    if document is None:
        return None
    if document["fmapviz"] > FORMAT:
        raise RefusedError(
            f"{quote(directory)} was made by a newer version of fmapviz", hint="pip install --upgrade fmapviz"
        )
    fingerprint = document.get("fingerprint")
    return fingerprint if isinstance(fingerprint, str) else None


def read_run(directory: Path) -> dict[str, Any] | None:
    """Read a run's `run.json`; None if there is none, or none that is whole."""
    try:
        document = json.loads((directory / RUN_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) and isinstance(document.get("fmapviz"), int) else None


def _description(directory: Path) -> str:
    return "holds a run with other settings" if read_run(directory) else "holds files that fmapviz did not make"
