"""Look at runs elsewhere: bring here what tells of them, and read the rest where it is."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmapviz import files, records
from fmapviz.errors import OutputError, RequestError, quote
from fmapviz.mirror import TOP, open_store
from fmapviz.sealing import object_of, stale_of
from fmapviz.units import UNIT_FILE, read_unit
from fmapviz.urls import UrlPath
from fmapviz.verification import Problem, Verified
from fmapviz.verification import verify as look_through

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from fmapviz.remote import Store

_THREADS = 16


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """A directory here of what is elsewhere: records and what else was wanted; of other files only names and sizes.

    Attributes:
        store: Where it is.
        place: The directory here.
        strange: What has no counterpart here, because no disk could have it.
        unnamed: How many files of units there are that commands have written which still run, or were killed.
        pool: To ask for several things at once.
    """

    store: Store
    place: Path
    strange: tuple[str, ...]
    unnamed: Mapping[Path, int]
    pool: ThreadPoolExecutor

    def told(self, path: Path) -> UrlPath:
        """Give the address of something."""
        return UrlPath(self.store.url, *path.relative_to(self.place).parts)

    def read(self, path: Path, *, start: int = 0, most: int = -1) -> bytes:
        """Read a file of a unit, or a part of it, where it is.

        Raises:
            OSError: There is none, say.
        """
        return self.store.read(self.object_of(path), start=start, most=most if most >= 0 else None)

    def object_of(self, path: Path) -> str:
        """Give what a file of a unit is called there."""
        entries = {entry["name"]: entry for entry in (read_unit(path.parent) or {"files": []})["files"]}
        name = object_of(entries[path.name]) if path.name in entries else path.name
        return (path.parent / name).relative_to(self.place).as_posix()


@contextmanager
def copied(url: str, wanted: AbstractSet[str] = frozenset()) -> Iterator[Copy]:
    """Have a copy of a directory of runs, of a run or of a unit for a while.

    Args:
        url: Of which.
        wanted: The names of files that are to be here, other than records.

    Raises:
        RequestError: Nobody knows how to get there, or there is nothing.
        OutputError: It could not be read.
    """
    store = open_store(url)
    with tempfile.TemporaryDirectory(prefix="fmapviz-") as here, ThreadPoolExecutor(_THREADS) as pool:
        place = Path(here)
        try:
            strange, unnamed = _outline(store, place, pool, wanted)
        except OSError as error:
            raise OutputError(f"cannot read {quote(url)}: {error.strerror or error}") from error
        yield Copy(store, place, tuple(strange), unnamed, pool)


def verify(url: str, *, hashed: bool) -> Iterator[Verified]:
    """Do what `fmapviz.verification.verify` does.

    Raises:
        RequestError: Nothing there was made by fmapviz.
        OutputError: It could not be read.
    """
    with copied(url) as copy:
        try:
            found = list(look_through(copy.place, hashed=False))
        except RequestError as error:
            raise RequestError(f"no run of fmapviz: {quote(url)}") from error
        for place in found:
            problems = [*place.problems, *(_changed(copy, place) if hashed else ())]
            told = tuple(replace(problem, path=copy.told(problem.path)) for problem in problems)
            hidden = place.hidden + copy.unnamed.get(place.directory, 0)
            yield replace(place, directory=copy.told(place.directory), problems=told, hidden=hidden)
        for name in copy.strange:
            path = UrlPath(url, name)
            yield Verified(path, 0, (Problem(path, "not made by fmapviz", "remove"),))


def _outline(
    store: Store, place: Path, pool: ThreadPoolExecutor, wanted: AbstractSet[str]
) -> tuple[list[str], dict[Path, int]]:
    """Make the copy, and give what cannot be in it, and how much in units' directories is named by no record."""
    whole: list[str] = []
    units: dict[str, dict[str, int]] = {}
    strange = []
    for entry in store.list_all(""):
        folder, _, name = entry.name.rpartition("/")
        if not _is_safe(entry.name):
            strange.append(entry.name)
        elif name == UNIT_FILE or name in TOP:
            whole.append(entry.name)
        if _is_safe(entry.name) and name != UNIT_FILE:
            units.setdefault(folder, {})[name] = entry.size
    for name, data in zip(whole, pool.map(_reader(store), whole), strict=True):
        strange += _put(place, name, data)
    fetched: dict[str, str] = {}
    unnamed: dict[Path, int] = {}
    for folder, sizes in units.items():
        entries = (read_unit(place / folder) or {"files": []})["files"]
        names = {object_of(entry): entry["name"] for entry in entries}
        stale = stale_of(sizes.keys(), entries, names.keys())
        unnamed[place / folder] = len(stale)
        for name in sizes.keys() - stale:
            size = sizes[name]
            shown = f"{folder}/{names.get(name, name)}".lstrip("/")
            if names.get(name) in wanted:
                fetched[shown] = f"{folder}/{name}".lstrip("/")
            elif shown not in whole:
                strange += _put(place, shown, size)
    for shown, data in zip(fetched, pool.map(_reader(store), fetched.values()), strict=True):
        strange += _put(place, shown, data)
    return strange, unnamed


def _reader(store: Store) -> Callable[[str], bytes]:
    def read(name: str) -> bytes:
        with suppress(FileNotFoundError):  # it was there a moment ago
            return store.read(name)
        return b""

    return read


def _put(place: Path, name: str, content: bytes | int) -> list[str]:
    """Have a file here, or one of that size, and give its name if that cannot be: a directory is called so, say."""
    path = place / name
    try:
        files.make_folders(path.parent)
        if isinstance(content, int):
            files.outline(path, content)
        else:
            files.write(path, content)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        return [name]
    return []


def _is_safe(name: str) -> bool:
    return records.is_path(name) and all(part not in {"", ".", ".."} for part in name.split("/"))


def _changed(copy: Copy, looked_at: Verified) -> Iterator[Problem]:
    """Read every file of a unit or a run, and name those that are not as they were written."""
    directory = looked_at.directory
    known = {problem.path for problem in looked_at.problems}
    if directory / UNIT_FILE in known:  # what a damaged record says is worth nothing
        return
    record: Any = read_unit(directory) or records.load(directory / "products.json", sealed=True)
    listed = (records.entries(record) if record else None) or []
    entries = [entry for entry in listed if directory / entry["name"] not in known]
    is_unit = files.exists(directory / UNIT_FILE)

    def differs(entry: dict[str, Any]) -> bool:
        path = directory / entry["name"]
        return bool(copy.store.measure(copy.object_of(path))[1] != entry["sha256"])

    try:
        for entry, changed in zip(entries, copy.pool.map(differs, entries), strict=True):
            if changed:
                yield Problem(directory / entry["name"], "other content than was written", "repair" if is_unit else "again")
    except OSError as error:
        raise OutputError(f"cannot read {quote(copy.told(directory))}: {error.strerror or error}") from error
