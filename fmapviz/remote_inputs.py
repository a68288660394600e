"""Find image files at addresses, `s3://` and others, and open them."""

from __future__ import annotations

import tempfile
from itertools import chain, islice
from typing import TYPE_CHECKING, BinaryIO, cast
from urllib.parse import urlsplit

from fmapviz import remote
from fmapviz.images import system_error
from fmapviz.inputs import in_natural_order, is_candidate, unit_name
from fmapviz.urls import join, root_of, scheme_of
from fmapviz.values import Failure, ImageFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Set as AbstractSet

    from fmapviz.remote import Entry

SORTED = 10_000  # files of a folder that are brought into natural order; more come in the order of the store
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

    def _walk(self, top: str) -> Iterator[ImageFile | Failure]:
        ahead = [(top, "")]
        while ahead:
            folder, relative = ahead.pop()
            if folder in self._walked or (relative and folder == self._avoid):
                continue
            self._walked.add(folder)
            store, path = remote.split(folder)
            folders: list[str] = []
            files = (entry for entry in store.list(path) if not _is_folder(entry, folders) and is_candidate(entry.name))
            known: AbstractSet[str] = self._named.get(folder, frozenset())
            try:
                for entry in _in_order(files):
                    if entry.name not in known:
                        yield _image(entry, join(folder, entry.name), relative + entry.name)
            except OSError as error:
                yield _failure(error, folder)
            folders.sort(key=lambda name: in_natural_order([name]), reverse=True)
            ahead += [(join(folder, name), f"{relative}{name}/") for name in folders]


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


def _is_folder(entry: Entry, folders: list[str]) -> bool:
    """Tell whether it is a folder, and remember it if it is to be looked into."""
    if entry.is_folder and entry.name not in {"", ".", ".."} and not entry.name.startswith("."):
        folders.append(entry.name)
    return entry.is_folder


def _in_order(files: Iterable[Entry]) -> Iterator[Entry]:
    """Give the files of a folder in natural order; of very many as they come, so that nobody waits for the last."""
    files = iter(files)
    first = list(islice(files, SORTED + 1))
    if len(first) <= SORTED:
        first.sort(key=lambda entry: in_natural_order([entry.name]))
    return chain(first, files)


def _image(entry: Entry, url: str, relative: str) -> ImageFile:
    if scheme_of(url) in {"http", "https"}:
        relative = urlsplit(url).path.rpartition("/")[2] or urlsplit(root_of(url)).netloc
    return ImageFile(url, unit_name(relative, url), entry.size, remote.number_of(entry.state))


def _failure(error: OSError, url: str) -> Failure:
    refusal = system_error(error, url)
    return Failure(url, refusal.code, str(refusal), refusal.hint)
