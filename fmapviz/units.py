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
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from fmapviz.errors import RefusedError, quote
from fmapviz.inputs import path_hash
from fmapviz.values import ImageFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNIT_FILE = "unit.json"
SMALL_BYTES = 2**20
FORMAT = 1
HIDDEN = ".fmapviz-"
ASIDE = "-old"  # ends the hidden name of a finished directory that another one is to replace
WRECK = "-damaged"  # ends the hidden name of one whose record was lost
_SIGNATURE_BYTES = 13
_SEAL = b',\n "sha256": "'


def find_done(run: Path, file: ImageFile) -> Path | None:
    """Give the finished directory of an input, if its size and time of modification are still the same."""
    directory = find_own(run, file)
    record = read_unit(directory) if directory else None
    return directory if record is not None and _is_current(record, file) else None


def find_own(run: Path, file: ImageFile) -> Path | None:
    """Give the directory that an input has already, of whatever state of it."""
    return next((directory for directory in _candidates(run, file) if _is_of(read_unit(directory), file)), None)


def read_unit(directory: Path) -> dict[str, Any] | None:
    """Read the record of a finished directory; None if there is none, or none that is whole."""
    try:
        record = json.loads((directory / UNIT_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return record if _is_complete(record) else None


@contextmanager
def stage(parent: Path) -> Iterator[Path]:
    """Make a hidden directory to write into; whatever is left of it in the end is removed."""
    staging = _hidden(parent)
    staging.mkdir()
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
    with os.scandir(staging) as staged:
        files = [_entry(file) for file in sorted(staged, key=lambda file: file.name)]
    document = {"fmapviz": FORMAT, "unit": file.unit, "source": source, **record, "files": files}
    (staging / UNIT_FILE).write_bytes(seal(document))
    unit: Path | None = None
    aside: list[Path] = []
    try:
        # Its own old place first: another's name may be free for the moment in which that is replaced.
        names = dict.fromkeys([find_own(run, file) or run / file.unit, *_candidates(run, file)])
        places = (name for name in names if _place(staging, name, run, file, force=force, aside=aside))
        unit = next(places, None)
    finally:
        for old in aside:
            _hand_down(old, unit) if unit else _put_back(old, run)
    if unit is None:
        raise RefusedError(f"no free name for {quote(file.path)} in {quote(run)}")
    return unit


def sweep(run: Path) -> None:
    """Remove what killed processes of this host left staged, and put back what one had moved aside and not yet replaced."""
    for leftover in run.glob(f"{HIDDEN}{_host()}-*"):
        pid = leftover.name.removeprefix(f"{HIDDEN}{_host()}-").partition("-")[0]
        if not pid.isdecimal() or _alive(int(pid)):
            continue
        if leftover.name.endswith(ASIDE):
            _put_back(leftover, run)
        elif not leftover.name.endswith(WRECK):
            shutil.rmtree(leftover, ignore_errors=True)


def seal(document: dict[str, Any]) -> bytes:
    """Write a record as JSON whose last entry is the SHA-256 of all before it, so that no byte changes unnoticed.

    Example:
        >>> is_sealed(seal({"fmapviz": 1})), is_sealed(seal({"fmapviz": 1}).replace(b"1", b"2", 1))
        (True, False)
    """
    # A line for each entry, and for each of a list of records; json's own `indent` is written in Python, and slow.
    entries = (f"{_dumps(key)}: {_lines(value)}" for key, value in document.items())
    body = ("{\n " + ",\n ".join(entries)).encode("ascii")
    return body + _SEAL + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def is_sealed(data: bytes) -> bool:
    """Tell whether a record is byte for byte as `seal` wrote it."""
    body, _, end = data.rpartition(_SEAL)
    return end == hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def make_way(path: Path, content: bytes) -> None:
    """Make sure that what is to be replaced, if anything is there, was made by fmapviz.

    What we make begins alike each time, also where its end was damaged. An empty file is left by a full disk.

    Raises:
        RefusedError: It was not.
    """
    try:
        with path.open("rb") as file:
            ours = file.read(_SIGNATURE_BYTES) in {content[:_SIGNATURE_BYTES], b""}
    except FileNotFoundError:
        return
    except OSError:  # a directory, say
        ours = False
    if not ours:
        raise RefusedError(f"{quote(path)} was not made by fmapviz", hint="move it away, or choose another --name")


def digest(path: Path) -> str:
    """Give the SHA-256 of a file, hexadecimal."""
    return _measure(path)[1]


def _measure(path: str | Path) -> tuple[int, str]:
    """Give the size and the SHA-256 of a file."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123  a Path for each of 50 small files takes as long as this
        size = os.fstat(file.fileno()).st_size
        if size > SMALL_BYTES:
            return size, hashlib.file_digest(file, "sha256").hexdigest()
        return size, hashlib.sha256(file.read(size)).hexdigest()  # `file_digest` begins with a buffer of 256 KiB


def _candidates(run: Path, file: ImageFile) -> list[Path]:
    """List the names a unit may have: its own; told apart by a hash; the same outside the tree, which a unit may block."""
    distinct = f"{file.unit}~{path_hash(file.path)}"
    flat = distinct.rpartition("/")[2]
    return [run / name for name in dict.fromkeys((file.unit, distinct, flat))]


def _is_of(record: dict[str, Any] | None, file: ImageFile) -> TypeGuard[dict[str, Any]]:
    return record is not None and record["source"]["path"] == file.path


def _is_current(record: dict[str, Any], file: ImageFile) -> bool:
    source = record["source"]
    return bool((source.get("size"), source.get("mtime_ns")) == (file.size, file.mtime_ns))


def _is_complete(record: Any) -> bool:
    # Any: whatever a JSON file may hold.
    source, files = (record.get("source"), record.get("files")) if isinstance(record, dict) else (None, None)
    if not isinstance(source, dict) or not isinstance(files, list) or not isinstance(source.get("path"), str):
        return False
    return all(isinstance(entry, dict) and {"name", "size", "sha256"} <= entry.keys() for entry in files)


def _place(staging: Path, directory: Path, run: Path, file: ImageFile, *, force: bool, aside: list[Path]) -> bool:
    """Rename to one of the candidates, and tell whether the input now has a finished directory there.

    An older directory of the same input is moved aside first, and noted in `aside`.
    """
    while (result := _rename(staging, directory, run)) == "taken":
        with suppress(FileNotFoundError):  # another process is just replacing it: once more
            record = _read_standing(directory)
            if force and record is None and _is_wreck(directory):
                directory.rename(_hidden(run, WRECK))
                continue
            if not _is_of(record, file):
                return False  # another image's, or not ours
            if _is_current(record, file) and not force:
                return True  # another process was faster
            old = _hidden(run, ASIDE)
            directory.rename(old)
            aside.append(old)
    return result == "placed"


def _is_wreck(directory: Path) -> bool:
    """Tell a directory of ours whose record is lost from somebody else's. It is hidden, not removed, in case it is not."""
    return any((directory / name).exists() for name in (UNIT_FILE, "input.png", "events.out.tfevents.fmapviz"))


def _read_standing(directory: Path) -> dict[str, Any] | None:
    """Read the record of a directory that other processes may be replacing.

    Raises:
        FileNotFoundError: There is none, but maybe only because the directory was moved aside in the meantime.
    """
    try:
        handle = os.open(directory, os.O_RDONLY)  # as long as it is open, its inode number is not given to a successor
    except PermissionError:
        return None
    try:
        record = read_unit(directory)
        if record is None and not os.path.samestat(os.fstat(handle), directory.stat()):
            raise FileNotFoundError
        return record
    finally:
        os.close(handle)


def _rename(staging: Path, directory: Path, run: Path) -> Literal["placed", "taken", "blocked"]:
    """Give a directory its final name, unless that is taken, or blocked by a file or by another image's directory above."""
    if _is_inside_unit(directory, run):
        return "blocked"
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        staging.rename(directory)
    except OSError as error:
        if error.errno == errno.ENOTDIR or (error.errno == errno.EEXIST and not directory.parent.is_dir()):
            return "blocked"
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST} or (error.errno == errno.ENOENT and staging.exists()):
            return "taken"  # ENOENT: the folder around it is just being replaced by another image's directory
        raise
    if _is_inside_unit(directory, run):  # which took the name of a folder that was still empty
        directory.rename(staging)
        return "blocked"
    return "placed"


def _is_inside_unit(directory: Path, run: Path) -> bool:
    return any((parent / UNIT_FILE).exists() for parent in directory.parents if parent != run and parent.is_relative_to(run))


def _hand_down(old: Path, successor: Path) -> None:
    """Move what somebody else has laid into a directory to the one that replaces it, and remove the rest."""
    record = read_unit(old)
    if record is None:
        return
    ours = {UNIT_FILE, *(entry["name"] for entry in record["files"])}
    with suppress(OSError):  # another process is at it as well, or replaces the successor: a sweep finds what is left
        for path in old.iterdir():
            if path.name not in ours:
                taken = os.path.lexists(successor / path.name)
                path.rename(successor / (f"{path.name}~{token_hex(4)}" if taken else path.name))
        waste = _hidden(old.parent)
        old.rename(waste)  # half of it must never be put back
        shutil.rmtree(waste, ignore_errors=True)


def _put_back(old: Path, run: Path) -> None:
    """Give a directory that was moved aside its name again, unless its input has another one by now."""
    record = read_unit(old)
    if record is None:
        return
    source = record["source"]
    file = ImageFile(source["path"], str(record.get("unit")), source.get("size"), source.get("mtime_ns"))
    candidates = _candidates(run, file)
    successor = find_own(run, file)
    if successor:
        _hand_down(old, successor)
        return
    with suppress(FileNotFoundError):  # another process is at it as well
        for directory in candidates:
            result = _rename(old, directory, run)
            if result == "placed" or (result == "taken" and _is_of(_read_standing(directory), file)):
                break


class Json(str):
    """A value that is JSON already: lists of many numbers, which the encoder takes long for."""

    __slots__ = ()


_dumps = json.JSONEncoder(allow_nan=False).encode


def _lines(value: object) -> str:
    if isinstance(value, Json):
        return value
    if not isinstance(value, list) or not any(isinstance(item, dict) for item in value):
        return _dumps(value)
    return "[\n  " + ",\n  ".join(map(_dumps, value)) + "]"


def _entry(file: os.DirEntry[str]) -> dict[str, Any]:
    size, sha256 = _measure(file.path)
    return {"name": file.name, "size": size, "sha256": sha256}


def _hidden(parent: Path, ending: str = "") -> Path:
    return parent / f"{HIDDEN}{_host()}-{os.getpid()}-{token_hex(4)}{ending}"


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
