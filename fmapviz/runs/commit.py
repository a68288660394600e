"""Stage and commit units: rename a complete directory to its final name, and replace an older one without losing it.

A unit is written to a hidden directory until it is complete. The hidden name holds host and process, so that leftovers of
killed processes differ from the work of running ones.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import time
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Literal

from fmapviz.core import checksummed_json, files
from fmapviz.core.checksummed_json import FORMAT, seal
from fmapviz.core.errors import RefusedError, quote
from fmapviz.core.layout import HIDDEN, UNIT_FILE
from fmapviz.runs.unit import (
    check_only_own_files,
    find_own,
    image_of,
    is_current,
    is_of,
    is_truncated_record,
    lacks_record,
    own_files,
    possible_paths,
    read_unit,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from fmapviz.core.types import ImageFile
REPLACED = "-old"  # ends the name of a finished unit that is being replaced
UNRECORDED = "-damaged"  # ends the name of a unit without a record that is being replaced
FOREIGN_SECONDS = 86_400  # age after which what another host staged counts as left over

_THIS = token_hex(3)  # another process of this number, in another container, say, has another
_under_way: set[Path] = set()


@contextmanager
def stage(parent: Path, ending: str = "") -> Iterator[Path]:
    """Make a hidden directory to write to; remove it at the end, unless it was renamed."""
    staging = hidden(parent, ending)
    _under_way.add(staging)
    try:
        files.make_folder(staging)
        yield staging
    finally:
        if files.exists(staging):
            files.remove_tree(staging)
        _under_way.discard(staging)


def hidden(parent: Path, ending: str = "") -> Path:
    """Return a hidden path that does not exist."""
    return parent / f"{HIDDEN}{_host()}-{os.getpid()}-{_THIS}-{token_hex(4)}{ending}"


def commit(
    staging: Path,
    run: Path,
    file: ImageFile,
    record: dict[str, Any],
    *,
    members: Mapping[str, int] | None = None,
    force: bool = False,
    sync: bool = False,
) -> Path:
    """List the staged files in `unit.json` and rename the directory to its final name.

    Args:
        staging: From `stage`; holds everything but `unit.json`.
        run: The run directory.
        file: The image of the unit, or what stands for those of a shard.
        record: Further fields of `unit.json`.
        members: Numbers of records in files that are sequences of them; such a file may look complete when truncated.
        force: Whether to replace an up-to-date unit of the same image.
        sync: Whether to wait until the unit would survive a power failure.

    Returns:
        The finished unit; if another process was faster, that of the other process.

    Raises:
        RefusedError: No name is free, or the unit to be replaced holds files that fmapviz did not make.
        OSError: The disk is full, for example.
    """
    source = {"path": file.path, "size": file.size, "mtime_ns": file.mtime_ns}
    with os.scandir(staging) as staged:
        entries = [_entry(entry, members or {}) for entry in sorted(staged, key=lambda entry: entry.name)]
    document = {"fmapviz": FORMAT, "unit": file.unit, "source": source, **record, "files": entries}
    files.write(staging / UNIT_FILE, seal(document))
    if sync:
        for name in (*(entry["name"] for entry in entries), UNIT_FILE, "."):
            files.sync(staging / name)
    replacement = _Replacement(staging, run, file, document, force=force)
    unit = replacement.place()
    if unit is None:
        raise RefusedError(f"no free name for {quote(file.path)} in {quote(run)}")
    if sync:
        files.sync_folders(unit.parent, run)
    return unit


def sweep(run: Path) -> None:
    """Remove what killed processes left staged, and restore units that they had moved aside and not yet replaced."""
    for leftover in leftovers(run):
        if leftover.name.endswith(REPLACED):
            _restore(leftover, run)
        elif not leftover.name.endswith(UNRECORDED):
            files.remove_tree(leftover)


def remove_damaged(directory: Path, run: Path, own: Collection[str]) -> None:
    """Remove a unit without a record, unless it holds other files.

    Raises:
        OSError: It could not be renamed.
    """
    if lacks_record(directory) and {path.name for path in directory.iterdir()} <= {*own}:
        _discard(directory, run)


def leftovers(place: Path) -> Iterator[Path]:
    """Return the hidden directories of processes that no longer run."""
    for leftover in place.glob(f"{HIDDEN}*"):
        host, _, rest = leftover.name.removeprefix(HIDDEN).partition("-")
        pid, _, rest = rest.partition("-")
        if pid.isdecimal() and (_is_gone(int(pid), rest) if host == _host() else _is_old(leftover)):
            yield leftover


def remove_staged() -> None:
    """Remove what this process has staged, while its threads may still write."""
    for staging in tuple(_under_way):
        waste = hidden(staging.parent)
        with suppress(OSError):
            files.rename(staging, waste)  # so that no thread adds another file
            files.remove_tree(waste)


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]


def _is_gone(pid: int, rest: str) -> bool:
    if pid == os.getpid():
        return not rest.startswith(f"{_THIS}-")
    return not is_running(pid)


def is_running(pid: int) -> bool:
    """Return True if this machine has a process of this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _is_old(leftover: Path) -> bool:
    with suppress(OSError):
        return leftover.lstat().st_mtime < time.time() - FOREIGN_SECONDS
    return False


class _Replacement:
    """Gives a staged unit its name; older units of the same image are moved aside first."""

    def __init__(self, staging: Path, run: Path, file: ImageFile, document: Mapping[str, Any], *, force: bool) -> None:
        self._staging = staging
        self._run = run
        self._file = file
        self._fingerprint = document.get("run")
        self._own = own_files(document)
        self._force = force
        self._aside: list[Path] = []

    def place(self) -> Path | None:
        """Rename to the first name that can be had; return it, or None."""
        run, file = self._run, self._file
        unit: Path | None = None
        try:
            # The image's present path first: another image's may be free for the moment in which that is replaced.
            present = find_own(run, file)
            paths = possible_paths(run, file)
            damaged = [path for path in paths if self._force and lacks_record(path)]
            names = dict.fromkeys([*damaged, present or run / file.unit, *paths])
            unit = next(filter(self._rename_to, names), None)
            if unit and present and present != unit and is_of(read_unit(present), file):
                with suppress(FileNotFoundError):
                    self._move_aside(present, REPLACED)  # it was under another name
        finally:
            for old in self._aside:
                if unit:
                    with suppress(OSError):  # another process may be at it as well: a sweep finds what is left
                        _discard(old, run)
                else:
                    _restore(old, run)
        return unit

    def _rename_to(self, directory: Path) -> bool:
        """Return True if the image now has a finished unit of this name."""
        while (result := _rename(self._staging, directory, self._run)) == "taken":
            with suppress(FileNotFoundError):  # another process is replacing it: once more
                record = _read_existing(directory)
                if record is None and (_has_truncated_record(directory) or (self._force and lacks_record(directory))):
                    self._move_aside(directory, UNRECORDED)
                    continue
                if not is_of(record, self._file):
                    return False  # of another image, or not made by fmapviz
                if is_current(record, self._file, self._fingerprint) and not self._force:
                    return True  # another process was faster
                self._move_aside(directory, REPLACED)
        return result == "placed"

    def _move_aside(self, directory: Path, ending: str) -> None:
        self._check(directory, shown=directory)
        aside = hidden(self._run, ending)
        files.rename(directory, aside)
        try:
            self._check(aside, shown=directory)  # a file may have been added in the meantime
        except RefusedError:
            files.rename(aside, directory)
            raise
        self._aside.append(aside)

    def _check(self, directory: Path, *, shown: Path) -> None:
        record = read_unit(directory)
        try:
            check_only_own_files(directory, own_files(record) if record else self._own, shown=shown)
        except RefusedError:
            if read_unit(directory) != record:
                raise FileNotFoundError from None  # another process has just replaced it
            raise


def _discard(directory: Path, run: Path) -> None:
    """Remove a unit that holds no files but its own."""
    waste = hidden(run)
    files.rename(directory, waste)  # a part of it must never be restored
    files.remove_tree(waste)


def _restore(old: Path, run: Path) -> None:
    """Rename a unit that was moved aside back, unless its image has another unit by now."""
    record = read_unit(old)
    if record is None:
        with suppress(OSError):
            files.remove_folder(old)  # if it is empty
        return
    file = image_of(record)
    if not _is_inside(file.unit):
        return
    with suppress(FileNotFoundError):  # another process is at it as well
        if find_own(run, file):
            with suppress(RefusedError, OSError):
                check_only_own_files(old, own_files(record))
                _discard(old, run)
            return
        for directory in possible_paths(run, file):
            result = _rename(old, directory, run)
            if result == "placed" or (result == "taken" and is_of(_read_existing(directory), file)):
                break


def _read_existing(directory: Path) -> dict[str, Any] | None:
    """Read the record of a directory that other processes may be replacing.

    Raises:
        FileNotFoundError: There is none, but possibly only because the directory was moved aside in the meantime.
    """
    try:
        handle = os.open(directory, os.O_RDONLY)  # while it is open, no other directory gets its inode number
    except PermissionError:
        return None
    try:
        record = read_unit(directory)
        if record is None and not os.path.samestat(os.fstat(handle), directory.stat()):
            raise FileNotFoundError
        return record
    finally:
        os.close(handle)


def _has_truncated_record(directory: Path) -> bool:
    try:
        return is_truncated_record(checksummed_json.read(directory / UNIT_FILE))
    except OSError:
        return False


def _rename(staging: Path, directory: Path, run: Path) -> Literal["placed", "taken", "blocked"]:
    """Rename a unit, unless the name is taken, or blocked by a file or by another unit above it."""
    if _is_out_of_bounds(directory, run):
        return "blocked"
    try:
        files.make_folders(directory.parent)
        files.rename(staging, directory)
    except OSError as error:
        if error.errno == errno.ENOTDIR or (error.errno == errno.EEXIST and not directory.parent.is_dir()):
            return "blocked"
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST} or (error.errno == errno.ENOENT and staging.exists()):
            return "taken"  # ENOENT: the folder around it is being replaced by another unit
        raise
    if _is_out_of_bounds(directory, run):  # another unit took the name of a folder that was still empty
        files.rename(directory, staging)
        return "blocked"
    return "placed"


def _is_out_of_bounds(directory: Path, run: Path) -> bool:
    """Return True if a path is inside another unit, or behind a link."""
    between = [parent for parent in directory.parents if parent != run and parent.is_relative_to(run)]
    return any((parent / UNIT_FILE).exists() or parent.is_symlink() for parent in between)


def _is_inside(unit: str) -> bool:
    """Return True if a name leads to a path in the run: the record it is from may be made up."""
    return checksummed_json.is_path(unit) and all(part and not part.startswith(".") for part in unit.split("/"))


def _entry(file: os.DirEntry[str], members: Mapping[str, int]) -> dict[str, Any]:
    size, sha256 = files.measure(file.path)
    count = {"members": members[file.name]} if file.name in members else {}
    return {"name": file.name, "size": size, "sha256": sha256, **count}
