"""Units in a store of objects, which has no directories to rename: nothing there changes in one step but a single object.

A unit is finished on this machine first. Then its files go there, each under a name that nothing has, and `unit.json` last:
what that names is there and whole, whatever happened on the way. What it names is never written over. Where a file of that
name is in the way, left by a command that was killed, or of the unit that is to be replaced, the new one goes under another
name, which the new `unit.json` tells as its `object`. When that is there, the file gets its own name, and then `unit.json`
says so. What no record names any more is removed.
"""

from __future__ import annotations

import errno
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from fmapviz import files, records
from fmapviz.remote import PIECE_BYTES
from fmapviz.staging import FOREIGN_SECONDS
from fmapviz.units import UNIT_FILE, is_complete, is_ours, read_unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet
    from concurrent.futures import Executor
    from pathlib import Path

    from fmapviz.remote import Entry, Store

TRIES = 8
_MARK = re.compile(r"\.[0-9a-f]{12}(?=\.|$)")  # in the name of what had to go under another one


@dataclass(frozen=True, slots=True)
class Standing:
    """A unit's record as it is there now.

    Attributes:
        data: The whole file.
        state: What changes with it.
    """

    data: bytes
    state: str

    @property
    def record(self) -> dict[str, Any] | None:
        """What it says; None if it is damaged."""
        record = records.parse(self.data)
        return record if is_complete(record) else None


@dataclass(frozen=True, slots=True)
class Sealed:
    """How a unit came to be there.

    Attributes:
        record: Its `unit.json` as it is there now.
        is_anothers: Whether another process was faster, and its files are there instead.
    """

    record: bytes
    is_anothers: bool = False


class Sealer:
    """Brings units to a store; its methods may be called in several threads at once.

    Args:
        store: Where to.
        pool: Threads for several files at once.
    """

    def __init__(self, store: Store, pool: Executor) -> None:
        self._store = store
        self._pool = pool

    def standing(self, name: str) -> Standing | None:
        """Look at a unit's record; None if there is none.

        Raises:
            OSError: It could not be read.
        """
        key = f"{name}/{UNIT_FILE}"
        try:
            state = self._store.look(key).state
            return Standing(self._store.read(key), state)
        except FileNotFoundError:
            return None

    def is_whole(self, name: str, record: Mapping[str, Any]) -> bool:
        """Tell whether the files that a record names are there, and hold what it says.

        Raises:
            OSError: One could not be read.
        """
        return all(self._pool.map(lambda entry: self._holds(f"{name}/{object_of(entry)}", entry), record["files"]))

    def seal(self, name: str, unit: Path, *, is_known: bool, is_bare: bool) -> Sealed | None:
        """Bring a unit there.

        Args:
            name: Of its directory there.
            unit: Where it is on this machine, finished.
            is_known: Whether there is a record already, which is to be replaced.
            is_bare: Whether there are files, but no record.

        Returns:
            What is there now; None if the name is another input's.

        Raises:
            OSError: It could not be written.
        """
        document = records.load(unit / UNIT_FILE)
        assert document
        ours: set[str] = set()
        standing = self.standing(name) if is_known else None
        for _ in range(TRIES):
            objects = list(self._pool.map(lambda entry: self._put(name, unit, entry, ours), document["files"]))
            data = _named(document, objects) or files.read(unit / UNIT_FILE)
            if self._write_record(name, data, standing):
                break
            standing = self.standing(name)
            if standing is None:
                continue
            if standing.data == data:  # the answer was lost
                break
            is_taken = _is_taken(standing, document)
            if is_taken or _is_as_new(standing, document):  # another process was faster
                self._take_back(name, ours, standing)
                return None if is_taken else Sealed(standing.data, is_anothers=True)
        else:
            raise OSError(errno.EBUSY, "other processes write to it all the time")
        if standing or is_bare or len(ours) < len(objects):
            sealed = self.standing(name)
            if sealed and sealed.data == data:
                data = self.settle(name, sealed)
                self._tidy(name, unit, records.parse(data) or document, standing)
        return Sealed(data)

    def settle(self, name: str, standing: Standing) -> bytes:
        """Give files their own names, where others were in the way, and give the record that is there then, or was.

        The record leads to the one name or the other, and both are whole whenever it does. Nothing is done from the moment
        on when it is another process's: whoever writes to a name looks at that name, then at the record, and then writes on
        condition that the name holds what it held.
        """
        record = standing.record
        moved = [entry for entry in record["files"] if "object" in entry] if record else []
        if record is None or not moved or not all(self._move(name, entry, standing.state) for entry in moved):
            return standing.data
        data = _named(record, [entry["name"] for entry in record["files"]])
        if data is None:
            return standing.data
        if not self._store.replace(f"{name}/{UNIT_FILE}", data, state=standing.state):
            now = self.standing(name)
            if now is None or now.data != data:  # otherwise only the answer was lost
                return now.data if now else standing.data
        for entry in moved:
            with suppress(OSError):
                self._store.remove(f"{name}/{entry['object']}")
        return data

    def remove_old(self, name: str, unit: Path, found: Iterable[Entry]) -> None:
        """Remove what commands that were killed have left in a unit's directory, long ago: it may be of one that runs."""
        record = read_unit(unit)
        if record is None:
            return
        times = {entry.name: entry.time for entry in found}
        stale = stale_of(times.keys(), record["files"], object_names(record))
        old = [each for each in stale if times[each] <= time.time() - FOREIGN_SECONDS]
        with suppress(OSError):
            if old and self._store.read(f"{name}/{UNIT_FILE}") == files.read(unit / UNIT_FILE):
                for each in old:
                    self._store.remove(f"{name}/{each}")

    def _move(self, name: str, entry: Mapping[str, Any], state: str) -> bool:
        """Bring a file to its name, as long as the record is in a certain state."""
        source, target = f"{name}/{entry['object']}", f"{name}/{entry['name']}"
        for _ in range(TRIES):
            before = self._state(target)
            if self._state(f"{name}/{UNIT_FILE}") != state:
                return False
            try:
                if entry["size"] >= PIECE_BYTES:
                    self._store.copy(source, target)
                    return True
                data = self._store.read(source)
            except FileNotFoundError:  # another process has moved it already
                return False
            if self._store.create(target, data) if before is None else self._store.replace(target, data, state=before):
                return True
        return False

    def _write_record(self, name: str, data: bytes, standing: Standing | None) -> bool:
        key = f"{name}/{UNIT_FILE}"
        return self._store.replace(key, data, state=standing.state) if standing else self._store.create(key, data)

    def _put(self, name: str, unit: Path, entry: Mapping[str, Any], ours: set[str]) -> str:
        """Bring a file there, and give the name that it has there."""
        stem, dot, ending = entry["name"].partition(".")
        for mark in ("", f".{entry['sha256'][:12]}", f".{token_hex(6)}"):
            target = f"{stem}{mark}{dot}{ending}"
            key = f"{name}/{target}"
            if self._store.upload(key, str(unit / entry["name"])):
                ours.add(target)
                return target
            if self._holds(key, entry):
                return target
        raise OSError(errno.EEXIST, "other files are in the way")

    def _holds(self, key: str, entry: Mapping[str, Any]) -> bool:
        """Tell whether an object is what a record says of a file."""
        try:
            size: int = self._store.look(key).size
            return (
                (size, self._store.measure(key)[1]) == (entry["size"], entry["sha256"]) if size == entry["size"] else False
            )
        except FileNotFoundError:
            return False

    def _tidy(self, name: str, unit: Path, document: Mapping[str, Any], old: Standing | None) -> None:
        """Remove what of ours no record names; what somebody else has laid there stays."""
        objects = [object_of(entry) for entry in document["files"]]
        there = {entry.name for entry in self._store.list(name) if not entry.is_folder}
        before = old.record if old else None
        outdated = object_names(before) if before else set()
        stale = (outdated & there - {*objects}) | stale_of(there, document["files"], {*objects})
        standing = self.standing(name) if stale else None
        for each in stale if standing and standing.record and object_names(standing.record) == {*objects} else ():
            with suppress(OSError):  # what may not be removed does no harm
                self._store.remove(f"{name}/{each}")
        for entry, target in zip(document["files"], objects, strict=True):
            if target not in there:  # another process took it for left over
                self._store.upload(f"{name}/{target}", str(unit / entry["name"]))

    def _take_back(self, name: str, ours: set[str], standing: Standing) -> None:
        """Remove what was brought there for nothing."""
        for mine in ours - object_names(standing.record or {"files": []}):
            with suppress(OSError):
                self._store.remove(f"{name}/{mine}")

    def _state(self, name: str) -> str | None:
        try:
            return self._store.look(name).state
        except FileNotFoundError:
            return None


def is_marked(name: str) -> bool:
    """Tell whether a file is called as one that had to go under another name.

    Example:
        >>> is_marked("a.0123456789ab.png"), is_marked("a.png")
        (True, False)
    """
    return _MARK.search(name) is not None


def stale_of(names: AbstractSet[str], entries: Iterable[Mapping[str, Any]], objects: AbstractSet[str]) -> set[str]:
    """Give what in a unit's directory is called as only we call something, but is not what its record names.

    Example:
        >>> stale_of({"a.png", "a.0123456789ab.png", "notes.txt"}, [{"name": "a.png"}], {"a.0123456789ab.png"})
        {'a.png'}
    """
    ours = {entry["name"] for entry in entries}
    return {name for name in names - objects if _MARK.sub("", name, count=1) in ours}


def object_names(record: Mapping[str, Any]) -> set[str]:
    """Give the names that the files of a unit have in a store."""
    return set(map(object_of, record["files"]))


def object_of(entry: Mapping[str, Any]) -> str:
    """Give the name that a file of a unit has in a store.

    Example:
        >>> object_of({"name": "a.png"}), object_of({"name": "a.png", "object": "a.0123456789ab.png"})
        ('a.png', 'a.0123456789ab.png')
    """
    name: str = entry.get("object", entry["name"])
    return name


def _is_taken(standing: Standing, document: Mapping[str, Any]) -> bool:
    """Tell whether a record is another input's, or none of ours."""
    record = standing.record
    if record is None:
        return not is_ours(standing.data)
    return bool(record["source"]["path"] != document["source"]["path"])


def _is_as_new(standing: Standing, document: Mapping[str, Any]) -> bool:
    """Tell whether a record is of the same state of the input, and of the same run."""
    record = standing.record or {}
    return all(record.get(key) == document.get(key) for key in ("source", "run"))


def _named(document: dict[str, Any], objects: list[str]) -> bytes | None:
    """Write a record that tells which object each file is; None if they have the files' names."""
    if objects == [entry["name"] for entry in document["files"]] and not any(
        "object" in entry for entry in document["files"]
    ):
        return None
    entries = []
    for entry, target in zip(document["files"], objects, strict=True):
        plain = {key: value for key, value in entry.items() if key != "object"}
        entries.append(plain if target == entry["name"] else {**plain, "object": target})
    return records.seal({**{key: value for key, value in document.items() if key != "sha256"}, "files": entries})
