"""Keep a local copy of a remote run: its run-level files, and the records of its units."""

from __future__ import annotations

import errno
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from fmapviz.core import files
from fmapviz.core.layout import FAILURES_FILE, RUN_FILE, UNIT_FILE, own_run_files
from fmapviz.runs.storage.remote_units import TRIES, RemoteRecord, is_marked, is_safe, list_objects, object_of
from fmapviz.runs.unit import read_unit

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet
    from concurrent.futures import Executor
    from pathlib import Path

    from fmapviz.core.object_store import Entry, Store


class RunSync:
    """Copies small objects between a store and a local directory; safe in several threads.

    Objects are named relative to the directory of all runs: `run/run.json`, `run/unit/unit.json`.

    Args:
        store: The directory of all runs.
        directory: The local copy.
        pool: Threads for several objects.

    Attributes:
        copied: Names of files of units that are copied with their record: the run's aggregates need them.
    """

    def __init__(self, store: Store, directory: Path, pool: Executor) -> None:
        self.copied: AbstractSet[str] = frozenset()
        self._store = store
        self._directory = directory
        self._pool = pool
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}  # as they were seen last
        self._changes = 0  # objects that turned out to be others than those known
        self._created: set[str] = set()
        self._uploaded = 0  # bytes of failures.jsonl

    def is_known(self, name: str) -> bool:
        """Return True if the store had an object when it was last looked at."""
        with self._lock:
            return name in self._entries

    def download(self, name: str) -> bool:
        """Copy an object; return False if the store does not have it, and remove the local file.

        Raises:
            OSError: It cannot be read.
        """
        path = self._directory / name
        try:
            if not is_safe(name):
                return False
            data, entry = self._store.fetch(name)
        except FileNotFoundError:
            with self._lock:
                self._entries.pop(name, None)
            if path.is_file():
                files.remove(path)
            return False
        if path.name == FAILURES_FILE:
            self._uploaded = len(data)
        if not path.is_file() or files.read(path) != data:
            self.store(name, RemoteRecord(data, entry))
        with self._lock:
            self._entries[name] = entry
        return True

    def store(self, name: str, found: RemoteRecord) -> None:
        """Write the content of an object of another process to the local file."""
        path = self._directory / name
        folder = name.removesuffix(UNIT_FILE)
        contents: dict[str, bytes] = {}
        for entry in (found.record or {"files": []})["files"] if path.name == UNIT_FILE else ():
            if entry["name"] in self.copied:
                with suppress(FileNotFoundError):
                    contents[entry["name"]] = self._store.read(f"{folder}{object_of(entry)}")
        # Another thread may store the same record, and another unit may be in the way.
        with self._lock, suppress(FileExistsError, NotADirectoryError):
            files.make_folders(path.parent)
            files.write_over(path, found.data)
            self._entries[name] = found.entry
            self._changes += 1
            for other in path.parent.iterdir() if path.name == UNIT_FILE else ():
                if other != path:
                    files.remove(other)
            for file, content in contents.items():
                files.write(path.parent / file, content)

    def reduce(self, name: str, committed: RemoteRecord) -> None:
        """Reduce an uploaded unit to its record and the files that are copied."""
        path = self._directory / name
        files.write_over(path, committed.data)
        for entry in (read_unit(path.parent) or {"files": []})["files"]:
            if entry["name"] not in self.copied:
                files.remove(path.parent / entry["name"])
        with self._lock:
            self._entries[name] = committed.entry

    def upload(self, name: str) -> bool:
        """Copy a run-level file to the store, unless another process has written other content: then download that.

        Returns:
            True if the store has the content of the local file, or there is no such file.

        Raises:
            OSError: It cannot be written.
        """
        path = self._directory / name
        if not files.exists(path):
            return True
        data = files.read(path)
        known = self._entries.get(name)
        with suppress(FileNotFoundError):
            if known and self._store.read(name) == data:
                return True
        entry = self._store.replace(name, data, seen=known) if known else self._store.create(name, data)
        if entry is None:
            return self.download(name) and files.read(path) == data
        if not known:
            self._created.add(name)
        self._entries[name] = entry
        return True

    def append_failures(self, name: str) -> None:
        """Append the failures that are not yet in the store; other processes may do so at the same time.

        Raises:
            OSError: They cannot be written.
        """
        path = self._directory / name
        lines = files.read(path, start=self._uploaded) if self._uploaded < path.stat().st_size else b""
        for _ in range(4 * TRIES if lines else 0):
            try:
                data, entry = self._store.fetch(name)
            except FileNotFoundError:
                done = self._store.create(name, lines)
            else:
                done = entry if data.endswith(lines) else self._store.replace(name, data + lines, seen=entry)
            if done:
                self._uploaded += len(lines)
                return
        if lines:
            raise OSError(errno.EBUSY, "other processes write to it all the time")

    def refresh(self, run: str, busy: AbstractSet[str]) -> tuple[bool, dict[str, list[Entry]]]:
        """Copy what other processes have changed in a run.

        Args:
            run: The run's name.
            busy: The records of units that this process uploads at the moment; they are skipped.

        Returns:
            Whether anything has changed; and all entries of each unit with objects that are not named like their files, by
            the name of its record.

        Raises:
            OSError: Something cannot be read.
        """
        before = self._changes
        found: dict[str, Entry] = {}
        folders: dict[str, list[Entry]] = {}
        folder = ""
        for entry in list_objects(self._store, run):
            above, _, name = entry.name.rpartition("/")
            if above != folder:
                if not any(is_marked(each.name) for each in folders.get(folder, ())):
                    folders.pop(folder, None)
                folder = above
            folders.setdefault(above, []).append(entry)
            if name == UNIT_FILE if above else name in own_run_files():
                found[f"{run}/{entry.name}"] = entry
        with self._lock:
            known = {name: entry.state for name, entry in self._entries.items() if name.startswith(f"{run}/")}
        changed = [name for name, entry in found.items() if name not in busy and known.get(name) != entry.state]
        list(self._pool.map(self.download, changed))
        for name in known.keys() - found.keys() - busy:
            if name.endswith(f"/{UNIT_FILE}"):
                with self._lock:
                    del self._entries[name]
                    self._changes += 1
                files.remove_tree((self._directory / name).parent)
        units = {f"{run}/{above}/{UNIT_FILE}": entries for above, entries in folders.items()}
        marked = {name: entries for name, entries in units.items() if name in found.keys() - busy}
        return self._changes > before, marked

    def discard(self, run: str) -> None:
        """Remove the `run.json` that this process has written."""
        if f"{run}/{RUN_FILE}" in self._created:
            with suppress(OSError):
                self._store.remove(f"{run}/{RUN_FILE}")
