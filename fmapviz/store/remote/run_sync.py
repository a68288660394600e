"""Keep a local copy of a remote run: its run-level files, and the records of its units."""

from __future__ import annotations

import errno
import threading
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING

from fmapviz.core import files
from fmapviz.core.file_names import FAILURES_FILE, RUN_FILE, UNIT_FILE, own_run_files
from fmapviz.store.remote.remote_units import TRIES, RemoteRecord, is_marked, is_safe, list_objects, object_of
from fmapviz.store.unit import read_unit

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
        copied: See below.

    Attributes:
        copied: Names of files of units that are copied with their record: the run's aggregates need them, for example.
    """

    def __init__(self, store: Store, directory: Path, pool: Executor, *, copied: AbstractSet[str] = frozenset()) -> None:
        self.copied = copied
        self._store = store
        self._directory = directory
        self._pool = pool
        self._writing = threading.Lock()
        self._known: dict[str, Entry] = {}  # as they were seen last; its single operations are atomic
        self._created: set[str] = set()
        self._uploaded = 0  # bytes of failures.jsonl

    def is_known(self, name: str) -> bool:
        """Return True if the store had an object when it was last looked at."""
        return name in self._known

    def download(self, *names: str) -> bool:
        """Copy objects, and remove the local files of those that the store does not have.

        Returns:
            True if a local file has other content now.

        Raises:
            OSError: One cannot be read.
        """
        return any(list(self._pool.map(self._download, names)))

    def store(self, name: str, found: RemoteRecord) -> None:
        """Write the content of an object of another process to the local file."""
        path = self._directory / name
        contents: dict[Path, bytes] = {}
        if path.name == UNIT_FILE:
            for entry in (found.record or {"files": []})["files"]:
                if entry["name"] in self.copied:
                    with suppress(FileNotFoundError):
                        target = f"{name.removesuffix(UNIT_FILE)}{object_of(entry)}"
                        contents[path.parent / entry["name"]] = self._store.read(target)
        # Another thread may store the same record, and another unit may be in the way.
        with self._writing, suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
            files.make_folders(path.parent)
            files.write_over(path, found.data)
            for other in path.parent.iterdir() if path.name == UNIT_FILE else ():
                if other != path and other.is_file():
                    files.remove(other)
            for file, content in contents.items():
                files.write(file, content)
        self._known[name] = found.entry

    def reduce(self, name: str, committed: RemoteRecord) -> None:
        """Reduce an uploaded unit to its record and the files that are copied."""
        path = self._directory / name
        files.write_over(path, committed.data)
        for entry in (read_unit(path.parent) or {"files": []})["files"]:
            if entry["name"] not in self.copied:
                files.remove(path.parent / entry["name"])
        self._known[name] = committed.entry

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
        known = self._known.get(name)
        with suppress(FileNotFoundError):
            if known and self._store.read(name) == data:
                return True
        entry = self._store.replace(name, data, seen=known) if known else self._store.create(name, data)
        if entry is None:
            self.download(name)
            return files.exists(path) and files.read(path) == data
        if not known:
            self._created.add(name)
        self._known[name] = entry
        return True

    def append_failures(self, name: str) -> None:
        """Append the failures that are not yet in the store; other processes may do so at the same time.

        Raises:
            OSError: They cannot be written.
        """
        lines = files.read(self._directory / name, start=self._uploaded)
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
        known = {name: entry.state for name, entry in [*self._known.items()] if name.startswith(f"{run}/")}
        found: dict[str, Entry] = {}
        marked: dict[str, list[Entry]] = {}
        for folder, listed in groupby(list_objects(self._store, run), lambda entry: entry.name.rpartition("/")[0]):
            entries, copied = list(listed), {UNIT_FILE} if folder else own_run_files()
            found |= {f"{run}/{entry.name}": entry for entry in entries if entry.name.rpartition("/")[2] in copied}
            if folder and any(is_marked(entry.name) for entry in entries):
                marked[f"{run}/{folder}/{UNIT_FILE}"] = entries
        gone = [name for name in known.keys() - found.keys() - busy if name.endswith(f"/{UNIT_FILE}")]
        for name in gone:
            self._known.pop(name, None)
            files.remove_tree((self._directory / name).parent)
        changed = self.download(*(name for name in found.keys() - busy if known.get(name) != found[name].state))
        return changed or bool(gone), {name: entries for name, entries in marked.items() if name in found.keys() - busy}

    def discard(self, run: str) -> None:
        """Remove the `run.json` that this process has written."""
        if f"{run}/{RUN_FILE}" in self._created:
            with suppress(OSError):
                self._store.remove(f"{run}/{RUN_FILE}")

    def _download(self, name: str) -> bool:
        """Copy an object; return True if the local file has other content now."""
        if not is_safe(name):
            return False
        path = self._directory / name
        try:
            found = RemoteRecord(*self._store.fetch(name))
        except FileNotFoundError:
            self._known.pop(name, None)
            if path.is_file():
                files.remove(path)
            return False
        if path.name == FAILURES_FILE:
            self._uploaded = len(found.data)
        changed = not path.is_file() or files.read(path) != found.data
        if changed:
            self.store(name, found)
        self._known[name] = found.entry
        return changed
