"""Copy the records of remote runs to a temporary directory, so that `verify` and `extract` can read them."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmapviz.core import checksummed_json, files
from fmapviz.core.errors import OutputError, quote
from fmapviz.core.layout import RUN_FILES_RECORD, UNIT_FILE, own_run_files
from fmapviz.core.object_store import open_store
from fmapviz.core.urls import UrlPath
from fmapviz.runs.storage.remote_units import is_safe, list_objects, object_of, orphans_of
from fmapviz.runs.unit import read_unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from fmapviz.core.object_store import Store

_THREADS = 16


@dataclass(frozen=True, slots=True, eq=False)
class LocalCopy:
    """A local copy of a remote directory: records and some files; other files have their name and size only.

    Attributes:
        store: The remote directory.
        directory: The local one.
        uncopied: Objects whose name no local file can have.
        orphans: By unit, the number of objects that no record lists.
        pool: Threads for several requests.
    """

    store: Store
    directory: Path
    uncopied: tuple[str, ...]
    orphans: Mapping[Path, int]
    pool: ThreadPoolExecutor

    def address_of(self, path: Path) -> UrlPath:
        """Return the address of a local path."""
        return UrlPath(self.store.url, *path.relative_to(self.directory).parts)

    def read(self, path: Path, *, start: int = 0, most: int = -1) -> bytes:
        """Read a file of a unit, or a part of it, in the store.

        Raises:
            OSError: It cannot be read.
        """
        return self.store.read(self._object_of(path), start=start, most=most if most >= 0 else None)

    def changed_files(self, directory: Path, skipped: AbstractSet[Path]) -> Iterator[Path]:
        """Read all files that the record of a unit or a run lists, and yield those with other content.

        Args:
            directory: The local directory of the unit or run.
            skipped: Files that are not read.

        Raises:
            OutputError: One cannot be read.
        """
        if directory / UNIT_FILE in skipped:  # a damaged record
            return
        record: Any = read_unit(directory) or checksummed_json.load(directory / RUN_FILES_RECORD, intact=True)
        listed = (checksummed_json.entries(record) if record else None) or []
        entries = [entry for entry in listed if directory / entry["name"] not in skipped]

        def differs(entry: dict[str, Any]) -> bool:
            return bool(self.store.checksum(self._object_of(directory / entry["name"])) != entry["sha256"])

        try:
            for entry, changed in zip(entries, self.pool.map(differs, entries), strict=True):
                if changed:
                    yield directory / entry["name"]
        except OSError as error:
            address = quote(self.address_of(directory))
            raise OutputError(f"cannot read {address}: {error.strerror or error}") from error

    def _object_of(self, path: Path) -> str:
        entries = {entry["name"]: entry for entry in (read_unit(path.parent) or {"files": []})["files"]}
        name = object_of(entries[path.name]) if path.name in entries else path.name
        return (path.parent / name).relative_to(self.directory).as_posix()


@contextmanager
def local_copy(url: str, wanted: AbstractSet[str] = frozenset()) -> Iterator[LocalCopy]:
    """Copy a remote directory of runs, run or unit to a temporary directory.

    Args:
        url: The address.
        wanted: Names of files that are copied besides records.

    Raises:
        RequestError: The address is invalid.
        OutputError: It cannot be read.
    """
    store = open_store(url)
    with tempfile.TemporaryDirectory(prefix="fmapviz-") as here, ThreadPoolExecutor(_THREADS) as pool:
        directory = Path(here)
        try:
            uncopied, orphans = _copy(store, directory, pool, wanted)
        except OSError as error:
            raise OutputError(f"cannot read {quote(url)}: {error.strerror or error}") from error
        yield LocalCopy(store, directory, tuple(uncopied), orphans, pool)


def _copy(
    store: Store, directory: Path, pool: ThreadPoolExecutor, wanted: AbstractSet[str]
) -> tuple[list[str], dict[Path, int]]:
    """Return the objects that cannot be copied, and the numbers of orphans."""

    def download(name: str) -> bytes:
        with suppress(FileNotFoundError):  # removed in the meantime
            return store.read(name)
        return b""

    records: list[str] = []
    folders: dict[str, dict[str, int]] = {}
    uncopied = []
    for entry in list_objects(store):
        folder, _, name = entry.name.rpartition("/")
        if not is_safe(entry.name):
            uncopied.append(entry.name)
        elif name == UNIT_FILE or name in own_run_files():
            records.append(entry.name)
        else:
            folders.setdefault(folder, {})[name] = entry.size
    for name, data in zip(records, pool.map(download, records), strict=True):
        uncopied += _put(directory, name, data)
    fetched: dict[str, str] = {}
    orphans: dict[Path, int] = {}
    for folder, sizes in folders.items():
        entries = (read_unit(directory / folder) or {"files": []})["files"]
        names = {object_of(entry): entry["name"] for entry in entries}
        unlisted = orphans_of(sizes.keys(), entries)
        orphans[directory / folder] = len(unlisted)
        for name in sizes.keys() - unlisted:
            file = names.get(name, name)
            if names.get(name) in wanted:
                fetched[f"{folder}/{file}".lstrip("/")] = f"{folder}/{name}".lstrip("/")
            else:
                uncopied += _put(directory, f"{folder}/{file}".lstrip("/"), sizes[name])
    for file, data in zip(fetched, pool.map(download, fetched.values()), strict=True):
        uncopied += _put(directory, file, data)
    return uncopied, orphans


def _put(directory: Path, name: str, content: bytes | int) -> list[str]:
    """Write a local file with this content or size; return its name if that is impossible."""
    path = directory / name
    try:
        files.make_folders(path.parent)
        if isinstance(content, int):
            files.outline(path, content)
        else:
            files.write(path, content)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):  # a folder has the name, for example
        return [name]
    return []
