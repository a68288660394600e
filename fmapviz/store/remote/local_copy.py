"""Read runs: a local directory, or a temporary one with copies of a remote directory's records."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fmapviz.core import files
from fmapviz.core.file_names import UNIT_FILE, own_run_files
from fmapviz.core.files import reading_from
from fmapviz.core.object_store import open_store
from fmapviz.core.urls import UrlPath, is_url
from fmapviz.errors import DamagedError, RefusedError, RequestError
from fmapviz.store.remote.run_sync import RunSync, is_safe, list_objects, object_of, orphans_of
from fmapviz.store.unit import read_unit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from fmapviz.core.object_store import Store

_THREADS = 16  # for requests
_CHUNK_BYTES = 2**20


@dataclass(frozen=True, slots=True, eq=False)
class LocalCopy:
    """A local directory of runs, or a local copy of a remote one: records and some files; others only have their size.

    Attributes:
        directory: The local directory.
        pool: Threads for reading several files.
        store: The remote directory; None: the files are in the local one.
        uncopied: Objects whose name no local file can have.
        orphans: By unit, the number of objects that no record lists.
        objects: Objects that are not named like their file, by its path.
    """

    directory: Path
    pool: ThreadPoolExecutor
    store: Store | None = None
    uncopied: list[UrlPath] = field(default_factory=list)
    orphans: dict[Path, int] = field(default_factory=dict)
    objects: dict[Path, str] = field(default_factory=dict)

    def address_of(self, path: Path) -> Path:
        """Return the address of a local path."""
        return UrlPath(self.store.url, *path.relative_to(self.directory).parts) if self.store else path

    def read(self, path: Path, *, start: int, most: int) -> bytes:
        """Read a part of a file of a unit.

        Raises:
            OSError: It cannot be read.
        """
        if self.store is None:
            return files.read(path, start=start, most=most)
        return self.store.read(self._object_of(path), start=start, most=most)

    def open(self, path: Path) -> BinaryIO:
        """Open a file of a unit for reading; what is read is not kept."""
        return BufferedReader(_File(self, path), _CHUNK_BYTES)

    def checksum(self, path: Path) -> str:
        """Read a file and return its SHA-256, hexadecimal.

        Raises:
            OSError: It is missing, for example.
            OutputError: The object cannot be read.
        """
        if self.store is None:
            return files.measure(path)[1]
        with reading_from(self.address_of(path.parent)):
            return self.store.checksum(self._object_of(path))

    def _object_of(self, path: Path) -> str:
        return self.objects.get(path) or path.relative_to(self.directory).as_posix()


class _File(RawIOBase):
    """A file of a copy, read from its beginning to its end."""

    def __init__(self, copy: LocalCopy, path: Path) -> None:
        self._copy, self._path, self._position = copy, path, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # Any: the type of buffers is not public before Python 3.12
        left = self._path.stat().st_size - self._position
        data = self._copy.read(self._path, start=self._position, most=min(len(buffer), left)) if left > 0 else b""
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


@contextmanager
def local_copy(directory: Path | str, wanted: AbstractSet[str] = frozenset()) -> Iterator[LocalCopy]:
    """Open a directory of runs, a run or a unit; copy the records of a remote one to a temporary directory.

    Args:
        directory: The path or address.
        wanted: Names of files that are copied besides records.

    Raises:
        RequestError: The address is invalid.
        OutputError: It cannot be read.
    """
    if not is_url(directory):
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            yield LocalCopy(Path(directory), pool)
        return
    store = open_store(str(directory))
    with tempfile.TemporaryDirectory(prefix="fmapviz-") as here, ThreadPoolExecutor(_THREADS) as pool:
        copy = LocalCopy(Path(here), pool, store)
        with reading_from(str(directory)):
            _download(copy, store, RunSync(store, copy.directory, pool, copied=wanted))
        with naming_addresses(copy.directory, store):
            yield copy


@contextmanager
def naming_addresses(directory: Path, store: Store) -> Iterator[None]:
    """Name addresses in place of the paths of local copies in errors."""
    try:
        yield
    except (RefusedError, RequestError, DamagedError) as error:
        error.args = (str(error).replace(str(directory), store.url),)
        raise


def _download(copy: LocalCopy, store: Store, sync: RunSync) -> None:
    """Copy all records, and the name and size of every other object."""
    records: list[str] = []
    folders: dict[str, dict[str, int]] = {}
    uncopied: list[str] = []
    for entry in list_objects(store):
        folder, _, name = entry.name.rpartition("/")
        if not is_safe(entry.name):
            uncopied.append(entry.name)
        elif name == UNIT_FILE or name in own_run_files():
            records.append(entry.name)
        else:
            folders.setdefault(folder, {})[name] = entry.size
    sync.download(*records)
    uncopied += [name for name in records if sync.is_known(name) and not os.path.isfile(copy.directory / name)]
    for folder, sizes in folders.items():
        directory = copy.directory / folder
        entries = (read_unit(directory) or {"files": []})["files"]
        names = {object_of(entry): entry["name"] for entry in entries}
        unlisted = orphans_of(sizes.keys(), entries)
        copy.orphans[directory] = len(unlisted)
        for name in sizes.keys() - unlisted:
            path, target = directory / names.get(name, name), f"{folder}/{name}".lstrip("/")
            if path.name != name:
                copy.objects[path] = target
            if path.name in sync.copied and os.path.isfile(path):
                continue
            try:
                files.make_folders(path.parent)
                files.outline(path, sizes[name])
            except (FileExistsError, NotADirectoryError):  # a folder has the name, for example
                uncopied.append(f"{folder}/{path.name}".lstrip("/"))
    copy.uncopied.extend(UrlPath(store.url, name) for name in uncopied)
