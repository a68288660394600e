"""Commit units to an object store, which has no directories to rename.

A unit is finished on the local disk. Then its files are uploaded, each to an object that does not exist, and `unit.json`
last. So all objects that a `unit.json` lists exist, and are complete.

Objects never change. A file whose name is taken, by the unit that it replaces or by an attempt that was killed, gets
another name, which `unit.json` lists as its `object`. Objects that no `unit.json` lists are removed: those of a replaced
unit at once, those of a killed command when they are a day old.
"""

from __future__ import annotations

import errno
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from fmapviz.core import checksummed_json, files
from fmapviz.core.file_names import UNIT_FILE
from fmapviz.core.files import FOREIGN_SECONDS
from fmapviz.store.unit import is_current, is_of, is_truncated_record, parse_unit, read_unit
from fmapviz.store.unit_key import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet
    from concurrent.futures import Executor
    from pathlib import Path

    from fmapviz.core.object_store import Entry, Store

TRIES = 8
_MARK = re.compile(r"\.[0-9a-f]{12}(?=\.|$)")  # in the name of an object whose file's name was taken


@dataclass(frozen=True, slots=True)
class RemoteRecord:
    """The `unit.json` of a unit in the store.

    Attributes:
        data: Its content.
        entry: Its entry in the store.
    """

    data: bytes
    entry: Entry

    @property
    def record(self) -> dict[str, Any] | None:
        """The parsed content; None if it is damaged."""
        return parse_unit(self.data)


class RemoteUnits:
    """The units in a store; safe in several threads.

    Args:
        store: The directory of all runs.
        pool: Threads for the files of a unit.
    """

    def __init__(self, store: Store, pool: Executor) -> None:
        self._store = store
        self._pool = pool

    def is_intact(self, name: str, record: Mapping[str, Any]) -> bool:
        """Return True if all files of a record exist with their recorded content.

        Raises:
            OSError: One cannot be read.
        """
        return all(self._pool.map(lambda entry: self._holds(f"{name}/{object_of(entry)}", entry), record["files"]))

    def commit(self, name: str, unit: Path, *, replaces: bool) -> tuple[RemoteRecord, bool] | None:
        """Upload a unit.

        Args:
            name: The unit's name in the store.
            unit: The local directory of the finished unit.
            replaces: True if the unit is known to exist in the store, and is to be replaced.

        Returns:
            The record that is in the store now, and whether another process has committed it first; None if the name
            belongs to another input.

        Raises:
            OSError: It cannot be written.
        """
        document = read_unit(unit)
        assert document
        key, fingerprint = key_of(document), document.get("run")
        created: set[str] = set()
        before = self._find(name) if replaces else None
        for _ in range(TRIES):
            objects = list(self._pool.map(lambda entry: self._upload(name, unit, entry, created), document["files"]))
            data, target = _format(document, objects), f"{name}/{UNIT_FILE}"
            entry = self._store.replace(target, data, seen=before.entry) if before else self._store.create(target, data)
            found = RemoteRecord(data, entry) if entry else self._find(name)
            if found and found.data == data:  # if it was found, the answer to the request was lost
                self._remove(name, object_names(before.record if before else None) - {*objects})
                return found, False
            record = found.record if found else None
            if found and is_of(record, key) and is_current(record, key, fingerprint):
                self._remove(name, created - object_names(record))
                return found, True
            if found and not is_of(record, key) and (record or not is_truncated_record(found.data)):
                self._remove(name, created)
                return None
            before = found
        raise OSError(errno.EBUSY, "other processes write to it all the time")

    def remove_orphans(self, name: str, local: Path, found: Iterable[Entry]) -> None:
        """Remove the objects in a unit's folder that a command has left which was killed long ago.

        Args:
            name: The unit's name in the store.
            local: The local copy of its record.
            found: The entries of the folder.
        """
        record = read_unit(local.parent)
        times = {entry.name.rpartition("/")[2]: entry.time for entry in found}
        orphans = orphans_of(times.keys(), record["files"] if record else ())
        old = {each for each in orphans if times[each] <= time.time() - FOREIGN_SECONDS}
        with suppress(OSError):
            if old and self._store.read(f"{name}/{UNIT_FILE}") == files.read(local):
                self._remove(name, old)

    def _find(self, name: str) -> RemoteRecord | None:
        try:
            return RemoteRecord(*self._store.fetch(f"{name}/{UNIT_FILE}"))
        except FileNotFoundError:
            return None

    def _upload(self, name: str, unit: Path, entry: Mapping[str, Any], created: set[str]) -> str:
        """Upload a file unless the store has it, and return the name of the object."""
        stem, dot, ending = entry["name"].partition(".")
        for mark in ("", f".{entry['sha256'][:12]}", f".{token_hex(6)}"):
            target = f"{stem}{mark}{dot}{ending}"
            if self._store.upload(f"{name}/{target}", unit / entry["name"]):
                created.add(target)
                return target
            if self._holds(f"{name}/{target}", entry):
                return target
        raise OSError(errno.EEXIST, "other files have its names")

    def _holds(self, key: str, entry: Mapping[str, Any]) -> bool:
        try:
            return bool(self._store.find(key).size == entry["size"] and self._store.checksum(key) == entry["sha256"])
        except FileNotFoundError:
            return False

    def _remove(self, name: str, objects: AbstractSet[str]) -> None:
        with suppress(OSError):  # the next command tries again
            self._store.remove(*(f"{name}/{each}" for each in sorted(objects)))


def list_objects(store: Store, folder: str = "") -> Iterator[Entry]:
    """List all objects below a folder.

    Raises:
        OSError: It cannot be listed, or holds a name such as `a//b`.
    """
    for entry in store.list(folder):
        if entry.is_folder:
            raise OSError(errno.EINVAL, "it holds an object whose name no local file can have")
        yield entry


def is_safe(name: str) -> bool:
    """Return True if an object can have a local copy under this name."""
    return checksummed_json.is_path(name) and all(part not in {"", ".", ".."} for part in name.split("/"))


def is_marked(name: str) -> bool:
    """Return True for an object whose name is not that of its file.

    Example:
        >>> is_marked("a.0123456789ab.png"), is_marked("a.png")
        (True, False)
    """
    return _MARK.search(name) is not None


def orphans_of(names: AbstractSet[str], entries: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the objects in a unit's folder that are named like a file of the unit, but are not listed.

    Example:
        >>> entries = [{"name": "a.png", "object": "a.0123456789ab.png"}]
        >>> orphans_of({"a.png", "a.0123456789ab.png", "notes.txt"}, entries)
        {'a.png'}
    """
    listed = {entry["name"]: object_of(entry) for entry in entries}
    return {name for name in names - {*listed.values()} if _MARK.sub("", name, count=1) in listed}


def object_names(record: Mapping[str, Any] | None) -> set[str]:
    """Return the names of a unit's objects; none for a damaged record."""
    return set(map(object_of, record["files"])) if record else set()


def object_of(entry: Mapping[str, Any]) -> str:
    """Return the name of a file's object.

    Example:
        >>> object_of({"name": "a.png"}), object_of({"name": "a.png", "object": "a.0123456789ab.png"})
        ('a.png', 'a.0123456789ab.png')
    """
    name: str = entry.get("object", entry["name"])
    return name


def _format(document: Mapping[str, Any], objects: list[str]) -> bytes:
    """Format the record of a unit, which lists the names of objects that are not those of the files."""
    entries = [
        entry if target == entry["name"] else {**entry, "object": target}
        for entry, target in zip(document["files"], objects, strict=True)
    ]
    return checksummed_json.dumps({key: value for key, value in document.items() if key != "sha256"} | {"files": entries})
