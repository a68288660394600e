"""The table of a run's units, `.units.bin`: the space, the key and the run of each.

A command that ends writes it in a run of many units. With it, a second run over 20,000 finished images takes 11 s instead of
25 s on two cores, and `fmapviz runs` does not look at each file. It is a cache, and may be deleted. A row's space is valid
as long as the directory has the same inode, which changes when a unit is drawn again; its key, as long as `unit.json` is
the same file as well.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fmapviz.core import files
from fmapviz.core.checksummed_json import CHECKSUM_BYTES
from fmapviz.core.file_names import RUN_FILE, UNIT_FILE, UNIT_TABLE
from fmapviz.core.files import BLOCK_BYTES, locked, staging_folder
from fmapviz.store.unit import parse_unit
from fmapviz.store.unit_key import key_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fmapviz.store.unit_key import UnitKey

MANY = 1000  # units of a run that has the table; the files of fewer are looked at in a tenth of a second

_ROW = np.dtype(
    [
        ("name", "<u8"),  # digest of the path in the run
        ("inode", "<u8"),
        ("bytes", "<u8"),
        ("written", "<f8"),
        ("recorded", "<f8"),
        ("record", "<u8"),  # digest of what distinguishes one `unit.json` from another without reading it
        ("key", "<u8"),  # digest of the unit's key without its name, and of the run's fingerprint
        ("end", f"V{CHECKSUM_BYTES}"),  # of `unit.json`: its checksum
    ]
)


_CHECKSUM_BYTES = 32  # at the end of the file


class Folder(NamedTuple):
    """A directory of a run, without what is below it.

    Attributes:
        path: Its path in the run; as text, since a `Path` takes longer to make than a directory to read.
        inode: Its inode.
        bytes: Space on the disk, with its files.
        written: When its newest file was written, in seconds since 1970; 0 without files.
        recorded: When its `unit.json` was written; None if it has none.
    """

    path: str
    inode: int
    bytes: int
    written: float
    recorded: float | None


class UnitTable:
    """The present table of a run; without rows if it is missing or damaged."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self.rows = np.zeros(0, _ROW)
        with suppress(OSError):
            data = files.read(run / UNIT_TABLE)
            if data.endswith(_checksum(data[:-_CHECKSUM_BYTES])):
                self.rows = np.frombuffer(data[:-_CHECKSUM_BYTES], _ROW)
        self._names = np.ascontiguousarray(self.rows["name"])

    def folder(self, path: str, inode: int) -> Folder | None:
        """Return the directory of a unit; None if the table does not know it."""
        row = self.row(path, inode)
        return None if row is None else Folder(path, inode, *(row[name].item() for name in ("bytes", "written", "recorded")))

    def row(self, path: str, inode: int) -> np.void | None:
        """Return the row of the directory of a unit; None if the table has none."""
        name = digest(path)
        at = int(self._names.searchsorted(np.uint64(name)))
        return self.rows[at] if at < len(self.rows) and (self._names[at], self.rows["inode"][at]) == (name, inode) else None

    def is_done(self, key: UnitKey, fingerprint: object) -> bool:
        """Return True if a unit is finished as `find_done` says, under its own name; False if that is unknown."""
        row = self._current(key.name)
        return row is not None and bool(row["key"] == _digest_of_key(key, fingerprint))

    def end_of_record(self, path: str) -> bytes | None:
        """Return the end of a unit's record, with its checksum; None if that is unknown."""
        row = self._current(path)
        return None if row is None else bytes(row["end"])

    def _current(self, path: str) -> np.void | None:
        """Return the row of a unit, if its record is still the same file."""
        if len(self.rows):
            with suppress(OSError):
                row = self.row(path, os.lstat(f"{self._run}/{path}").st_ino)
                if row is not None and row["record"] == _digest_of_record(os.lstat(f"{self._run}/{path}/{UNIT_FILE}")):
                    return row
        return None


def walk(run: Path) -> Iterator[Folder]:
    """Yield all directories of a run in any order; their files are not opened, and links not followed."""
    top, table = str(run), UnitTable(run)
    pending = [("", 0)]
    while pending:
        path, inode = pending.pop()
        yield table.folder(path, inode) or _look_into(top, path, inode, pending)


def write_table(run: Path) -> None:
    """Write the table of a run, if its units are many, and if it can be written."""
    with suppress(OSError), locked(run):
        if not files.exists(run / RUN_FILE):  # the run was removed
            return
        table = UnitTable(run)
        units = (each for each in walk(run) if each.recorded is not None and each.path[:1] not in {"", "."})
        rows = np.fromiter((_row(run, each, table) for each in units), _ROW)
        rows.sort(order="name")
        if len(rows) < MANY or np.array_equal(rows, table.rows):
            return
        with staging_folder(run) as staging:
            files.write(staging / UNIT_TABLE, rows.tobytes(), _checksum(rows.tobytes()))
            files.replace(staging / UNIT_TABLE, run / UNIT_TABLE)


def digest(*values: object) -> int:
    """Return a 64-bit digest of values, of their text."""
    return int.from_bytes(hashlib.blake2b(os.fsencode("\0".join(map(str, values))), digest_size=8).digest())


def _row(run: Path, folder: Folder, table: UnitTable) -> tuple[object, ...]:
    """Return the row of a unit: the one that the table has, or a new one, for which its record is read."""
    if (known := table.row(folder.path, folder.inode)) is not None:
        return tuple(known.tolist())
    record = key = 0
    end = b""
    with suppress(OSError):
        path = run / folder.path / UNIT_FILE
        before = _digest_of_record(path.lstat())
        data = files.read(path)
        document = parse_unit(data)
        if document and before == _digest_of_record(path.lstat()):
            key, end, record = _digest_of_key(key_of(document), document.get("run")), data[-CHECKSUM_BYTES:], before
    return digest(folder.path), folder.inode, folder.bytes, folder.written, folder.recorded, record, key, end


def _checksum(rows: bytes) -> bytes:
    """Return the end of the file, which damaged files and tables with other columns do not have."""
    return hashlib.sha256(str(_ROW.descr).encode() + rows).digest()


def _digest_of_key(key: UnitKey, fingerprint: object) -> int:
    return digest(key.kind, key.path, sorted(key.version.items()), fingerprint)


def _digest_of_record(status: os.stat_result) -> int:
    return digest(status.st_ino, status.st_size, status.st_mtime_ns)


def _look_into(top: str, path: str, inode: int, pending: list[tuple[str, int]]) -> Folder:
    """Measure a directory of a run, and add the directories in it, with their inodes, to those that are pending."""
    size, written, recorded = BLOCK_BYTES, 0.0, None  # a directory occupies a block
    with suppress(OSError), os.scandir(f"{top}/{path}") as entries:  # it is being replaced, or may not be read
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                pending.append((f"{path}/{entry.name}" if path else entry.name, entry.inode()))
                continue
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                size += -(-status.st_size // BLOCK_BYTES) * BLOCK_BYTES
                time = status.st_mtime
                written = time if time > written else written  # `max` takes as long as all of the rest
                if entry.name == UNIT_FILE:
                    recorded = time
    return Folder(path, inode, size, written, recorded)
