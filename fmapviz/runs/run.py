"""The directory of a run: find or make the one whose settings are these, and note what failed in it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import count
from typing import TYPE_CHECKING, Any

from fmapviz import files, records
from fmapviz.errors import OutputError, RefusedError, RequestError, quote
from fmapviz.inputs import RESERVED, RUN_FILE
from fmapviz.records import FORMAT, seal
from fmapviz.staging import HIDDEN, stage
from fmapviz.units import UNIT_FILE, read_unit, sweep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from fmapviz.values import Failure, RunInfo

FAILURES_FILE = "failures.jsonl"
SURVEY_FILE = "survey.json"
LONGEST_LOG = 2**30  # bytes; of three million failures
_GOOD_NAME = "1 to 200 bytes that can be printed, without slashes and double quotes, not beginning with a dot"
_LONGEST_STEM = 180  # bytes; file systems allow 255
_LINE_BEGINS = b'{"time": '
# What helps against a failure to write.
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room and run the same command again"),
    **dict.fromkeys(
        (errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO), "move that away, and the same command continues"
    ),
    errno.EFBIG: "allow larger files (ulimit -f), and the same command continues",
}
_LINE_SEAL = b', "sha256": "'


def check_output(out: Path) -> None:
    """Make sure, without writing anything, that a directory can be made and written to.

    Raises:
        OutputError: It cannot.
    """
    place = out.absolute()
    with writing_to(out), suppress(FileNotFoundError, NotADirectoryError):
        place.lstat()  # too long, say
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        raise OutputError(f"not a directory: {quote(place)}", hint="choose another place with --out")
    if not os.access(place, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write to {quote(place)}: read-only, or not permitted", hint="another --out may do")


def check_name(name: str | None) -> None:
    """Make sure that this can be the name of a run's directory.

    Raises:
        RequestError: It cannot.
    """
    if name is not None and not _is_good(name):
        raise RequestError(f"no good name for a directory: {quote(name)}", hint=_GOOD_NAME)


def open_run(out: Path, info: RunInfo, *, name: str | None = None, sync: bool = False) -> Path:
    """Find the run with the same settings, or begin a new one.

    Args:
        out: The directory of all runs.
        info: The settings.
        name: The run's directory in `out`. None: the model's name, or the first of `alexnet-2`, `alexnet-3`, ... whose
            settings are the same or that is free.
        sync: Wait until what is written would survive a power failure.

    Raises:
        RefusedError: The named directory belongs to a run with other settings, was not made by fmapviz, or was made by a
            newer version.
        OutputError: The disk is full, say.
    """
    check_name(name)
    for candidate in names_of(info, name):
        directory = out / candidate
        if _make(directory, info, sync=sync) or _is_same(directory, info, sync=sync):
            with writing_to(directory):
                sweep(out)
                sweep(directory)
            return directory
    raise _not_this(directory)


def find_run(out: Path, info: RunInfo, *, name: str | None = None) -> Path | None:
    """Give the directory that a run with these settings would continue; None if it would begin a new one.

    Raises:
        RefusedError: The named directory belongs to something else.
    """
    for candidate in names_of(info, name):
        directory = out / candidate
        if not files.exists(directory):
            return None
        known = read_run(directory)
        if known and known.get("fingerprint") == info.fingerprint:
            return directory
    raise _not_this(directory)


def name_run(out: Path, info: RunInfo) -> str:
    """Give the name that a new run would have."""
    return next(name for name in names_of(info) if not files.exists(out / name))


def names_of(info: RunInfo, name: str | None = None) -> Iterator[str]:
    """Give the names that a run with these settings may have: that which is wanted, or any of very many."""
    if name is not None:
        yield name
        return
    model = re.sub(r"^[^(]*/(?=[^(/]*\.py:)", "", info.model)  # where code of the user's own lies
    stem = "".join(ch if ch.isalnum() or ch in "._-" else "_" for ch in model).lstrip(".").rstrip("_") or "model"
    stem = stem.encode()[:_LONGEST_STEM].decode(errors="ignore")
    yield stem
    yield from (f"{stem}-{number}" for number in count(2))


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
                files.remove(run / RUN_FILE)
                files.remove_folder(run)
                if out_too:
                    files.remove_folder(run.parent)
        raise


def note_failure(run: Path, failure: Failure, *, sync: bool = False) -> None:
    """Append one line to `failures.jsonl`, in one piece, so that many processes can.

    Raises:
        OutputError: The disk is full, say.
    """
    fields = asdict(failure)
    if failure.report is None:
        del fields["report"]
    line = _sealed_line({"time": round(time.time(), 3), **fields})
    with writing_to(run / FAILURES_FILE):
        files.append(run / FAILURES_FILE, line)
        if sync:
            files.sync(run / FAILURES_FILE)
            files.sync(run)


def is_whole_failure(line: bytes) -> bool:
    """Tell whether a line of `failures.jsonl` is as it was written, or the beginning of one that was cut off."""
    if line[: len(_LINE_BEGINS)] != _LINE_BEGINS[: len(line)]:
        return False
    body, _, end = line.rpartition(_LINE_SEAL)
    seal_of_line = hashlib.sha256(body).hexdigest().encode() + b'"}'
    return end == seal_of_line or not (line.endswith(b"}") or (body and len(end) >= len(seal_of_line)))


def _sealed_line(fields: Mapping[str, Any]) -> bytes:
    body: bytes = json.dumps(fields).removesuffix("}").encode("ascii")
    return body + _LINE_SEAL + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


def read_failures(run: Path) -> list[dict[str, Any]]:
    """Read what `failures.jsonl` tells, of each input the last, in the order of their paths; empty if there is none."""
    last: dict[str, dict[str, Any]] = {}
    with suppress(OSError):
        for line in files.read(run / FAILURES_FILE, most=LONGEST_LOG).splitlines():
            if failure := records.parse(line):  # not a line that was cut off
                failure.pop("sha256", None)
                last[str(failure.get("path"))] = failure
    return [last[path] for path in sorted(last)]


def is_surveyed(settings: Mapping[str, Any]) -> bool:
    """Tell from a run's settings whether something that it draws depends on all of its images."""
    style = settings["style"]
    return bool(style["norm"] == "run" or (style["pca"] == "shared" and "pca" in settings["views"]))


def remedy_of(error: OutputError) -> str:
    """Say what helps against a failure to write."""
    return _REMEDIES.get(getattr(error.__cause__, "errno", None) or 0, "the same command continues")


@contextmanager
def writing_to(place: Path | str) -> Iterator[None]:
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


def _make(directory: Path, info: RunInfo, *, sync: bool) -> bool:
    """Begin a run, and tell whether it was free to do so: the rename decides between many processes."""
    if files.exists(directory / RUN_FILE):
        return False
    with writing_to(directory):
        files.make_folders(directory.parent)
        with stage(directory.parent) as staging:
            _write(staging, info, sync=sync)
            try:
                files.rename(staging, directory)
            except OSError as error:
                if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
                    return False
                raise
        if sync:
            files.sync_folders(directory.parent, directory.parent.parent)
    return True


def _write(staging: Path, info: RunInfo, *, sync: bool) -> None:
    document = {
        "fmapviz": FORMAT,
        "fingerprint": info.fingerprint,
        "settings": info.settings,
        "versions": dict(info.versions),
    }
    files.write(staging / RUN_FILE, seal(document))
    if sync:
        files.sync(staging / RUN_FILE)
        files.sync(staging)


def _is_same(directory: Path, info: RunInfo, *, sync: bool) -> bool:
    """Tell whether a directory holds the run with these settings; if so, a damaged `run.json` is made again."""
    if records.load(directory / RUN_FILE, sealed=True) is None and _is_remnant(directory, info):
        with writing_to(directory), stage(directory) as staging:
            _write(staging, info, sync=sync)
            files.replace(staging / RUN_FILE, directory / RUN_FILE)
            if sync:
                files.sync(directory)
    document = read_run(directory)
    if document is None:
        return False
    if document["fmapviz"] > FORMAT:
        raise RefusedError(
            f"{quote(directory)} was made by a newer version of fmapviz", hint="pip install --upgrade fmapviz"
        )
    return bool(document.get("fingerprint") == info.fingerprint)


def _is_remnant(directory: Path, info: RunInfo) -> bool:
    """Tell whether what is left of a damaged run is of these settings: its images say so, or there is nothing else."""
    try:
        data = records.read(directory / RUN_FILE)
        document = records.parse(data)
    except FileNotFoundError:
        data, document = None, None
    except OSError:
        return False
    if data is not None and (not records.is_remnant(data) or (document and _version(document) > FORMAT)):
        return False
    unit = next((record for path in directory.rglob(UNIT_FILE) if (record := read_unit(path.parent))), None)
    if unit is not None:
        return bool(unit.get("run") == info.fingerprint)
    if data is None:
        return False
    visible = (path for path in directory.rglob("*") if HIDDEN not in str(path.relative_to(directory)))
    return all(path.is_dir() or path.name in RESERVED or (path.parent / UNIT_FILE).exists() for path in visible)


def read_run(directory: Path) -> dict[str, Any] | None:
    """Read a run's `run.json`; None if there is none, or none that can be read."""
    document = records.load(directory / RUN_FILE)
    return document if document and _version(document) else None


def _version(document: Mapping[str, Any]) -> int:
    version = document.get("fmapviz")
    return version if isinstance(version, int) else 0


def _not_this(directory: Path) -> RefusedError:
    what = "a run with other settings" if read_run(directory) else "files that fmapviz did not make"
    return RefusedError(
        f"{quote(directory)} holds {what}", hint="choose another --name, or leave it out: a free one is found"
    )
