"""Keep a local copy of runs in an object store: their run-level files, and the records of their units.

An object store has no directories to rename. A unit is finished on the local disk. Then its files are uploaded, each to an
object that does not exist, and `unit.json` last. So all objects that a `unit.json` lists exist, and are complete.

Objects never change. A file whose name is taken, by the unit that it replaces or by an attempt that was killed, gets
another name, which `unit.json` lists as its `object`. Objects that no `unit.json` lists are removed: those of a replaced
unit at once, those of a killed command when they are a day old.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from contextlib import suppress
from itertools import groupby
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from fmapviz.core import checksummed_json, files
from fmapviz.core.file_names import FAILURES_FILE, RUN_FILE, UNIT_FILE, own_run_files
from fmapviz.core.files import FOREIGN_SECONDS
from fmapviz.core.urls import is_path
from fmapviz.errors import RefusedError, quote
from fmapviz.store.unit import is_current, is_of, is_truncated_record, parse_unit, read_unit
from fmapviz.store.unit_key import key_of, possible_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet
    from concurrent.futures import Executor
    from pathlib import Path

    from fmapviz.core.object_store import Entry, Store

TRIES = 8  # while other processes write the same object
_MARK = re.compile(r"\.[0-9a-f]{12}(?=\.|$)")  # in the name of an object whose file's name was taken


class RunSync:
    """Copies runs between a store and a local directory; safe in several threads.

    Objects are named relative to the directory of all runs: `run/run.json`, `run/unit/unit.json`.

    Args:
        store: The directory of all runs.
        directory: The local copy.
        pool: Threads for several objects.
        copied: See below.

    Attributes:
        copied: Names of files of units that are copied with their record, such as those that the run's aggregates read.
    """

    def __init__(self, store: Store, directory: Path, pool: Executor, *, copied: AbstractSet[str] = frozenset()) -> None:
        self.copied = copied
        self._store = store
        self._directory = directory
        self._pool = pool
        self._writing = threading.Lock()
        # Single operations of these are atomic.
        self._known: dict[str, Entry] = {}  # the last state of each object
        self._busy: set[str] = set()  # the records of units that are being uploaded
        self._created: set[str] = set()  # run-level files
        self._uploaded = 0  # bytes of failures.jsonl

    def name(self, path: Path) -> str:
        """Return the name of the object of a local path."""
        return path.relative_to(self._directory).as_posix()

    def is_known(self, name: str) -> bool:
        """Return True if the store had an object at the last look."""
        return name in self._known

    def download(self, *names: str) -> bool:
        """Copy objects, and remove the local files of those that the store does not have.

        Returns:
            True if the content of a local file has changed.

        Raises:
            OSError: One cannot be read.
        """
        return any(list(self._pool.map(self._download, names)))

    def upload(self, name: str) -> bool:
        """Copy a run-level file to the store; download it instead if another process has written other content.

        Returns:
            True if the store has the content of the local file, or there is no such file.

        Raises:
            OSError: It cannot be written.
        """
        path, known = self._directory / name, self._known.get(name)
        if not files.exists(path):
            return True
        data = files.read(path)
        found = self._store.fetch(name) if known else None
        if found and found[0] == data:
            return True
        if entry := self._store.write(name, data, seen=known):
            if not known:
                self._created.add(name)
            self._known[name] = entry
            return True
        self.download(name)
        return files.exists(path) and files.read(path) == data

    def append_failures(self, name: str) -> None:
        """Append the failures that are not yet in the store; other processes may do so at the same time.

        Raises:
            OSError: They cannot be written.
        """
        if not (lines := files.read(self._directory / name, start=self._uploaded)):
            return
        for _ in range(4 * TRIES):
            data, entry = self._store.fetch(name) or (b"", None)
            if data.endswith(lines) or self._store.write(name, data + lines, seen=entry):
                self._uploaded += len(lines)
                return
        raise _contended()

    def refresh(self, run: str) -> bool:
        """Copy what other processes have changed in a run, except units that are being uploaded; remove orphaned objects.

        Returns:
            True if anything has changed.

        Raises:
            OSError: Something cannot be read.
        """
        busy = self._busy.copy()
        known = {name: entry.state for name, entry in [*self._known.items()] if name.startswith(f"{run}/")}
        found: dict[str, Entry] = {}
        marked: dict[str, list[Entry]] = {}  # the entries of units with objects that are not named like their files
        for folder, listed in groupby(list_objects(self._store, run), lambda entry: entry.name.rpartition("/")[0]):
            entries, copied = list(listed), {UNIT_FILE} if folder else own_run_files()
            found |= {f"{run}/{entry.name}": entry for entry in entries if entry.name.rpartition("/")[2] in copied}
            if folder and any(_MARK.search(entry.name) for entry in entries):
                marked[f"{run}/{folder}"] = entries
        gone = [name for name in known.keys() - found.keys() - busy if name.endswith(f"/{UNIT_FILE}")]
        for name in gone:
            self._known.pop(name, None)
            files.remove_tree((self._directory / name).parent)
        changed = self.download(*(name for name in found.keys() - busy if known.get(name) != found[name].state))
        for unit, entries in marked.items():
            if f"{unit}/{UNIT_FILE}" in found.keys() - busy:
                self._remove_orphans(unit, entries)
        return changed or bool(gone)

    def discard(self, run: str) -> None:
        """Remove the `run.json` that this process has created, unless the run holds anything else."""
        record = f"{run}/{RUN_FILE}"
        with suppress(OSError):
            if record in self._created and [entry.name for entry in self._store.list(run)] == [RUN_FILE]:
                self._store.remove(record)

    def is_intact(self, unit: Path, record: Mapping[str, Any]) -> bool:
        """Return True if all files of a record exist with their recorded content.

        Raises:
            OSError: One cannot be read.
        """
        name = self.name(unit)
        return all(self._pool.map(lambda entry: self._holds(f"{name}/{object_of(entry)}", entry), record["files"]))

    def commit(self, unit: Path) -> Path:
        """Upload a unit; then its directory holds only the record that the store has, and the files that are copied.

        Args:
            unit: The local directory of the finished unit.

        Returns:
            The directory, which is renamed if the store has the unit of another input under its name.

        Raises:
            RefusedError: No name is free.
            OSError: It cannot be written.
        """
        document = read_unit(unit)
        assert document
        key, run = key_of(document), self._directory / self.name(unit).partition("/")[0]
        busy = {self.name(unit / UNIT_FILE)}
        self._busy.update(busy)
        try:
            while not self._commit(unit, document):
                place = next((place for place in possible_paths(run, key) if not files.exists(place)), None)
                if place is None:
                    raise RefusedError(f"no free name for {quote(key.path)} in {quote(run)}")
                busy.add(self.name(place / UNIT_FILE))
                self._busy.update(busy)
                files.make_folders(place.parent)
                files.rename(unit, place)
                self._download(self.name(unit / UNIT_FILE))
                unit = place
        finally:
            self._busy.difference_update(busy)
        return unit

    def _commit(self, unit: Path, document: Mapping[str, Any]) -> bool:
        """Upload a unit; return False if its name belongs to another input."""
        name, key, created = self.name(unit), key_of(document), set[str]()
        target = f"{name}/{UNIT_FILE}"
        before = self._store.fetch(target) if target in self._known else None
        for _ in range(TRIES):
            objects = list(self._pool.map(lambda entry: self._upload(name, unit, entry, created), document["files"]))
            data = _format(document, objects)
            entry = self._store.write(target, data, seen=before[1] if before else None)
            found = (data, entry) if entry else self._store.fetch(target)
            record = parse_unit(found[0]) if found else None
            if found and found[0] == data:  # if another process seems to have written it, the answer was lost
                self._remove(name, object_names(parse_unit(before[0]) if before else None) - {*objects})
            elif found and is_of(record, key) and is_current(record, key, document.get("run")):
                self._remove(name, created - object_names(record))
            elif found and not is_of(record, key) and (record or not is_truncated_record(found[0])):
                self._remove(name, created)
                return False
            else:
                before = found
                continue
            self._keep(target, *found)
            return True
        raise _contended()

    def _download(self, name: str) -> bool:
        """Copy an object; return True if the content of the local file has changed."""
        if not is_safe(name):
            return False
        path = self._directory / name
        found = self._store.fetch(name)
        if found is None:
            self._known.pop(name, None)
            if os.path.isfile(path):
                files.remove(path)
            return False
        data, entry = found
        if path.name == FAILURES_FILE:
            self._uploaded = len(data)
        changed = not os.path.isfile(path) or files.read(path) != data
        if changed:
            self._keep(name, data, entry)
        self._known[name] = entry
        return changed

    def _keep(self, name: str, data: bytes, entry: Entry) -> None:
        """Write the content of an object to the local file; of the other files of a unit, keep those that are copied."""
        path, contents = self._directory / name, dict[str, bytes]()
        kept = {UNIT_FILE}
        if path.name == UNIT_FILE:
            for each in (parse_unit(data) or {"files": ()})["files"]:
                local = path.with_name(each["name"])
                if each["name"] not in self.copied:
                    continue
                if files.exists(local) and files.measure(local)[1] == each["sha256"]:
                    kept.add(each["name"])
                elif found := self._store.fetch(f"{name.removesuffix(UNIT_FILE)}{object_of(each)}"):
                    contents[each["name"]] = found[0]
        # Another thread may store the same record, and another unit may be in the way.
        with self._writing, suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
            files.make_folders(path.parent)
            files.write_over(path, data)
            for other in path.parent.iterdir() if path.name == UNIT_FILE else ():
                if other.name not in kept and os.path.isfile(other):
                    files.remove(other)
            for file, content in contents.items():
                files.write(path.with_name(file), content)
        self._known[name] = entry

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

    def _remove_orphans(self, name: str, found: Iterable[Entry]) -> None:
        """Remove the objects in a unit's folder that a command has left which was killed long ago."""
        local = self._directory / name
        times = {entry.name.rpartition("/")[2]: entry.time for entry in found}
        orphans = orphans_of(times.keys(), (read_unit(local) or {"files": ()})["files"])
        old = {each for each in orphans if times[each] <= time.time() - FOREIGN_SECONDS}
        with suppress(OSError):
            record = self._store.fetch(f"{name}/{UNIT_FILE}") if old else None
            if record and record[0] == files.read(local / UNIT_FILE):
                self._remove(name, old)

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
    return is_path(name) and all(part not in {"", ".", ".."} for part in name.split("/"))


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


def _contended() -> OSError:
    return OSError(errno.EBUSY, "other processes write to it all the time")
