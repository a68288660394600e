"""Find image files at addresses, `s3://bucket/folder`."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fmapviz.core import checksummed_json, object_store
from fmapviz.core.errors import quote
from fmapviz.core.layout import RUN_FILE
from fmapviz.core.object_store import Store
from fmapviz.core.types import Failure, ImageFile
from fmapviz.core.urls import join, root_of, scheme_of
from fmapviz.images.decode import system_error
from fmapviz.images.names import in_natural_order, is_candidate, unit_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmapviz.core.object_store import Entry

SORTED = 10_000  # files of a folder tree that are sorted; a larger one is read in the order of the store


class Finder:
    """Finds image files one by one, each once, even if it is named several times.

    In a folder and all folders in it, files with an image's suffix are found; hidden ones are not. Memory grows with the
    number of addresses and folders, not with that of files.

    Args:
        avoid: The address of the output: a folder that is skipped inside other folders.
    """

    def __init__(self, avoid: str | None = None) -> None:
        self.avoid = avoid.rstrip("/") if avoid else None
        self._walked: set[str] = set()
        self.named: set[str] = set()

    def find(self, url: str) -> Iterator[ImageFile | Failure]:
        """Find the image at an address, or those in the folder there."""
        url = _normalize(url)
        folder, _, name = url.rpartition("/")
        try:
            entry = object_store.find(url)
        except OSError as error:
            yield _failure(error, url)
            return
        if entry.is_folder:
            yield from _Walk(url, self).find()
            self._walked.add(url)
        elif url not in self.named and not (is_candidate(name) and self.was_walked(folder)):
            self.named.add(url)
            yield _image(entry, url, name)

    def was_walked(self, folder: str) -> bool:
        """Return True if a folder was searched, by itself or as a visible folder inside another one."""
        while folder not in self._walked:
            folder, slash, name = folder.rpartition("/")
            if not slash or name.startswith("."):
                return False
        return True


class _Walk:
    """Goes through one folder and all folders in it."""

    def __init__(self, url: str, finder: Finder) -> None:
        self._store = Store(url)
        self._url = url
        self._finder = finder
        self._skipped: dict[str, bool] = {"": finder.was_walked(url)}
        self._records: set[str] | None = None  # folders with a run.json; None: not known yet

    def find(self) -> Iterator[ImageFile | Failure]:
        """Yield the files in natural order, or those of many files in the order of the store."""
        if self._skipped[""]:
            return
        try:
            entries = filter(_is_relevant, self._store.list())
            first = list(islice(entries, SORTED + 1))
            if len(first) <= SORTED:
                names = (entry.name.rpartition("/") for entry in first)
                self._records = {folder for folder, _, name in names if name == RUN_FILE}
                first.sort(key=lambda entry: in_natural_order(entry.name.split("/")))
            for entry in chain(first, entries):
                yield from self._look(entry)
        except OSError as error:
            yield _failure(error, self._url)

    def _look(self, entry: Entry) -> Iterator[ImageFile | Failure]:
        folder, _, name = entry.name.rpartition("/")
        url = join(self._url, entry.name) if entry.name else self._url
        if entry.is_folder:
            if not self._is_skipped(entry.name):
                yield Failure(url, "E_TYPE", f"a folder with a file whose name no local file can have: {quote(url)}")
        elif name != RUN_FILE and not self._is_skipped(folder) and url not in self._finder.named:
            yield _image(entry, url, entry.name)

    def _is_skipped(self, folder: str) -> bool:
        """Return True for folders that are hidden, searched already, the output, or runs of fmapviz."""
        if folder not in self._skipped:
            above, _, name = folder.rpartition("/")
            url = join(self._url, folder)
            self._skipped[folder] = (
                self._is_skipped(above)
                or name.startswith(".")
                or url == self._finder.avoid
                or self._finder.was_walked(url)
                or self._is_run(folder)
            )
        return self._skipped[folder]

    def _is_run(self, folder: str) -> bool:
        if self._records is not None and folder not in self._records:
            return False
        try:
            data = self._store.read(f"{folder}/{RUN_FILE}")
        except FileNotFoundError:
            return False
        record = checksummed_json.parse(data) or {}
        return "fmapviz" in record and "fingerprint" in record


def look_again(file: ImageFile) -> ImageFile | None:
    """Return the current state of an image that was found earlier; None if it is gone."""
    try:
        entry = object_store.find(file.path)
    except OSError:
        return None
    found = _image(entry, file.path, file.unit)
    return None if entry.is_folder else ImageFile(file.path, file.unit, found.size, found.mtime_ns)


def _is_relevant(entry: Entry) -> bool:
    name = entry.name.rpartition("/")[2]
    return entry.is_folder or name == RUN_FILE or is_candidate(name)


def _normalize(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme.lower()}://{rest if scheme.lower() in {'http', 'https'} else rest.strip('/')}"


def _image(entry: Entry, url: str, relative: str) -> ImageFile:
    if scheme_of(url) in {"http", "https"}:
        relative = urlsplit(url).path.rpartition("/")[2] or urlsplit(root_of(url)).netloc
    return ImageFile(url, unit_name(relative, url), entry.size, object_store.number_of(entry.state))


def _failure(error: OSError, url: str) -> Failure:
    refusal = system_error(error, url)
    return Failure(url, refusal.code, str(refusal), refusal.hint)
