"""Find image files at addresses, `s3://` and others, and open them."""

from __future__ import annotations

import tempfile
from itertools import chain, islice
from typing import TYPE_CHECKING, BinaryIO, cast
from urllib.parse import urlsplit

from fmapviz import records, remote
from fmapviz.errors import quote
from fmapviz.images import system_error
from fmapviz.inputs import RUN_FILE, in_natural_order, is_candidate, unit_name
from fmapviz.urls import join, root_of, scheme_of
from fmapviz.values import Failure, ImageFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fmapviz.remote import Entry, Store

SORTED = 10_000  # entries of a folder that are brought into natural order; more come in the order of the store
_SMALL_BYTES = 2**25


class Finder:
    """Finds image files one by one, each once, however often it is named.

    Of a folder and all folders in it, the files with an image's suffix are taken; what is hidden is not looked at. What is
    remembered grows with the addresses given and the folders, not with the files in the folders.

    Args:
        avoid: The address of a folder that is not entered from a folder above it: the output.
    """

    def __init__(self, avoid: str | None = None) -> None:
        self._avoid = avoid.rstrip("/") if avoid else None
        self._walked: set[str] = set()
        self._named: dict[str, set[str]] = {}

    def find(self, url: str) -> Iterator[ImageFile | Failure]:
        """Give the image at an address, or those in the folder there."""
        url = _tidy(url)
        folder, _, name = url.rpartition("/")
        try:
            store, path = remote.split(url)
            entry = store.look(path) if path or scheme_of(url) in {"http", "https"} else None
        except OSError as error:
            yield _failure(error, url)
            return
        if entry is None or entry.is_folder:
            yield from self._walk(url)
        elif name not in self._named.setdefault(folder, set()) and not (folder in self._walked and is_candidate(name)):
            self._named[folder].add(name)
            yield _image(entry, url, name)

    def _walk(self, folder: str, relative: str = "") -> Iterator[ImageFile | Failure]:
        if folder in self._walked or (relative and folder == self._avoid):
            return
        self._walked.add(folder)
        store, path = remote.split(folder)
        later: list[Entry] = []
        try:
            entries = (
                entry for entry in store.list(path) if entry.is_folder or entry.name == RUN_FILE or is_candidate(entry.name)
            )
            for entry in _in_order(entries, later):
                if entry.name == RUN_FILE and relative and _is_run(store, f"{path}/{RUN_FILE}"):
                    return  # of our own
                yield from self._look(entry, folder, relative)
        except OSError as error:
            yield _failure(error, folder)
        for entry in later:
            yield from self._look(entry, folder, relative)

    def _look(self, entry: Entry, folder: str, relative: str) -> Iterator[ImageFile | Failure]:
        name = entry.name
        if entry.is_folder and name in {"", ".", ".."}:
            where = f"{folder}/{name}/"
            yield Failure(where, "E_TYPE", f"a folder of no name that a disk could have: {quote(where)}")
        elif entry.is_folder and not name.startswith("."):
            yield from self._walk(join(folder, name), f"{relative}{name}/")
        elif not entry.is_folder and is_candidate(name) and name not in self._named.get(folder, ()):
            yield _image(entry, join(folder, name), relative + name)


def look_again(file: ImageFile) -> ImageFile | None:
    """Give an image that was found once as it is now; None if it is gone."""
    try:
        store, path = remote.split(file.path)
        entry = store.look(path)
    except OSError:
        return None
    found = _image(entry, file.path, file.unit)
    return None if entry.is_folder else ImageFile(file.path, file.unit, found.size, found.mtime_ns)


def open_file(url: str, size: int = 0) -> BinaryIO:
    """Bring a file to this machine, for as long as it is open; it has no name here.

    Args:
        url: Where it is.
        size: Bytes, as far as that is known.

    Raises:
        OSError: It could not be read.
    """
    store, path = remote.split(url)
    stream = cast("BinaryIO", tempfile.TemporaryFile(prefix="fmapviz-"))  # noqa: SIM115  the caller closes it
    try:
        for piece in store.pieces(path, size) if size > _SMALL_BYTES else [store.read(path)]:
            stream.write(piece)
        stream.seek(0)  # flushes, too
    except BaseException:
        stream.close()
        raise
    return stream


def _tidy(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme.lower()}://{rest}" if scheme.lower() in {"http", "https"} else f"{scheme.lower()}://{rest.strip('/')}"


def _in_order(entries: Iterable[Entry], later: list[Entry]) -> Iterator[Entry]:
    """Give what is in a folder in natural order, but a run's record first.

    Of very many the files come as they are listed, so that nobody waits for the last, and the folders are put off.
    """
    entries = iter(entries)
    first = list(islice(entries, SORTED + 1))
    if len(first) <= SORTED:
        yield from sorted(first, key=lambda entry: (entry.name != RUN_FILE, in_natural_order([entry.name])))
        return
    for entry in chain(first, entries):
        if entry.is_folder:
            later.append(entry)
        else:
            yield entry
    later.sort(key=lambda entry: in_natural_order([entry.name]))


def _is_run(store: Store, name: str) -> bool:
    record = records.parse(store.read(name)) or {}
    return "fmapviz" in record and "fingerprint" in record


def _image(entry: Entry, url: str, relative: str) -> ImageFile:
    if scheme_of(url) in {"http", "https"}:
        relative = urlsplit(url).path.rpartition("/")[2] or urlsplit(root_of(url)).netloc
    return ImageFile(url, unit_name(relative, url), entry.size, remote.number_of(entry.state))


def _failure(error: OSError, url: str) -> Failure:
    refusal = system_error(error, url)
    return Failure(url, refusal.code, str(refusal), refusal.hint)
