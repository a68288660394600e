"""An output directory per image: stage it, commit it, ask whether it is done.

The directory is the commit. It is written under a hidden staging name and renamed when it is whole, so what stands under a
name without a leading dot is complete. Staging names carry host and process, so that leftovers of a killed process can be
told from the work of a living one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import socket
from contextlib import contextmanager
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from fmapviz.errors import RefusedError, quote
from fmapviz.inputs import path_hash
from fmapviz.values import ImageFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNIT_FILE = "unit.json"
FORMAT = 1
HIDDEN = ".fmapviz-"


def find_done(run: Path, file: ImageFile) -> Path | None:
    """Give the finished directory of an input, if its size and time of modification are still the same."""
    for directory in _candidates(run, file):
        record = read_unit(directory)
        if record is not None and record["source"]["path"] == file.path:
            return directory if _same_source(record, file) else None
    return None


def read_unit(directory: Path) -> dict[str, Any] | None:
    """Read the record of a finished directory; None if there is none, or none that is whole."""
    try:
        record = json.loads((directory / UNIT_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    source = record.get("source") if isinstance(record, dict) else None
    complete = isinstance(source, dict) and "path" in source and isinstance(record.get("files"), list)
    return record if complete else None


@contextmanager
def stage(run: Path) -> Iterator[Path]:
    """Make a hidden directory to write into; whatever is left of it in the end is removed."""
    staging = run / f"{HIDDEN}{_host()}-{os.getpid()}-{token_hex(4)}"
    staging.mkdir(parents=True)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def commit(staging: Path, run: Path, file: ImageFile, record: dict[str, Any], *, force: bool = False) -> Path:
    """List the staged files in `unit.json` and rename the directory to its final name.

    Args:
        staging: See `stage`; holds everything but `unit.json`.
        run: The run directory.
        file: Which input it belongs to.
        record: What else `unit.json` tells.
        force: Replace a finished directory of the same input even if it is up to date.

    Returns:
        The finished directory. If another process was faster, that is the other's.

    Raises:
        RefusedError: All names are taken by something else.
        OSError: The disk is full, say.
    """
    source = {"path": file.path, "size": file.size, "mtime_ns": file.mtime_ns}
    files = [_entry(path, staging) for path in sorted(staging.iterdir())]
    document = {"fmapviz": FORMAT, "unit": file.unit, "source": source, **record, "files": files}
    (staging / UNIT_FILE).write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="ascii")
    for directory in _candidates(run, file):
        if _place(staging, directory, run, file, force=force):
            return directory
    raise RefusedError(f"no free name for {quote(file.path)} in {quote(run)}")


def sweep(run: Path) -> None:
    """Remove what killed processes of this host left staged, and put back what one had moved aside and not yet replaced."""
    for leftover in run.glob(f"{HIDDEN}{_host()}-*"):
        pid = leftover.name.removeprefix(f"{HIDDEN}{_host()}-").partition("-")[0]
        if not pid.isdecimal() or _alive(int(pid)):
            continue
        record = read_unit(leftover) if leftover.name.endswith("-old") else None
        if record is None or not _put_back(leftover, run, record):
            shutil.rmtree(leftover, ignore_errors=True)


def digest(path: Path) -> str:
    """Give the SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _candidates(run: Path, file: ImageFile) -> list[Path]:
    """List the names a unit may have: its own; told apart by a hash; the same outside the tree, which a unit may block."""
    distinct = f"{file.unit}~{path_hash(file.path)}"
    flat = distinct.rpartition("/")[2]
    return [run / name for name in dict.fromkeys((file.unit, distinct, flat))]


def _same_source(record: dict[str, Any], file: ImageFile) -> bool:
    source = record["source"]
    return bool((source["path"], source.get("size"), source.get("mtime_ns")) == (file.path, file.size, file.mtime_ns))


def _place(staging: Path, directory: Path, run: Path, file: ImageFile, *, force: bool) -> bool:
    """Rename to one of the candidates, and tell whether the input now has a finished directory there."""
    if any((parent / UNIT_FILE).exists() for parent in directory.parents if parent.is_relative_to(run) and parent != run):
        return False  # inside another image's directory
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        staging.rename(directory)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
            raise
    else:
        return True
    record = read_unit(directory)
    if record is None or record["source"]["path"] != file.path:
        return False  # another image's, or not ours
    if force or not _same_source(record, file):
        _replace(staging, directory, run, record)
    return True


def _replace(staging: Path, directory: Path, run: Path, record: dict[str, Any]) -> None:
    """Put a new directory where an old one stands; what somebody else has laid into the old one moves along."""
    old = run / f"{HIDDEN}{_host()}-{os.getpid()}-{token_hex(4)}-old"
    directory.rename(old)
    ours = {entry["name"] for entry in record["files"]} | {UNIT_FILE}
    for path in old.iterdir():
        if path.name not in ours and not (staging / path.name).exists():
            path.rename(staging / path.name)
    staging.rename(directory)
    shutil.rmtree(old, ignore_errors=True)


def _put_back(leftover: Path, run: Path, record: dict[str, Any]) -> bool:
    """Give a finished directory its name again, unless its input has another one by now."""
    source = record["source"]
    file = ImageFile(source["path"], str(record.get("unit")), source.get("size"), source.get("mtime_ns"))
    others = [read_unit(directory) for directory in _candidates(run, file)]
    if any(other and other["source"]["path"] == file.path for other in others):
        return False
    return _place(leftover, run / file.unit, run, file, force=False)


def _entry(path: Path, staging: Path) -> dict[str, Any]:
    return {"name": str(path.relative_to(staging)), "size": path.stat().st_size, "sha256": digest(path)}


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
