"""List, read and write objects in S3, Google Cloud Storage and Azure, and read files from the web.

obstore was measured against fsspec with s3fs. It is imported in 0.03 s instead of 0.75 s, needs no further package for each
kind of store, and has conditional writes in all of them. A run of 50 images to a local server takes 559 requests instead of
613, and 3.6 s of processor time instead of 6.1 s.
It refuses a page of a listing that holds a name such as `a//b`, and does not repeat a write whose answer is lost: this
module does both. It has no `hf://`, `sftp://`, `smb://`, `ftp://` or `hdfs://`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from itertools import chain
from secrets import token_hex
from typing import TYPE_CHECKING, BinaryIO, cast

from fmapviz.core.store_connection import attempts, call, connect, obstore, open_address
from fmapviz.core.urls import INSTALL, check_address, is_web, join, split
from fmapviz.errors import RequestError, quote

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from obstore import ObjectMeta, PutMode

PIECE_BYTES = 2**24  # of a large object that are sent or read at once
_PARALLEL_PIECES = 4
_PAGE = 1000  # entries of a listing


@dataclass(frozen=True, slots=True)
class Entry:
    """An object of a store, or a folder.

    Attributes:
        name: Its name, relative to the folder that was listed.
        is_folder: True for a folder; in a listing only for one that cannot be listed.
        size: Bytes.
        state: The entity tag, which changes with the content; may be empty.
        time: Of modification, in seconds since 1970.
        version: The generation of the object, in stores that have it.
    """

    name: str
    is_folder: bool = False
    size: int = 0
    state: str = ""
    time: float = 0.0
    version: str = ""


class Store:
    """The objects below an address; safe in several threads, but not after a fork.

    Args:
        url: The address of a folder, which need not exist.

    Raises:
        OSError: obstore is missing, or the address is invalid.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        bucket, self._folder = split(url)
        if is_web(url):
            raise OSError(errno.ENOENT, "a web address cannot be listed")
        if bucket.endswith("://"):
            raise OSError(errno.ENOENT, "the name of a bucket is missing")
        self._objects = connect(bucket, os.getpid())

    def address(self, *names: str) -> str:
        """Return the address of an object."""
        return join(self.url, *names)

    def list(self, folder: str = "") -> Iterator[Entry]:
        """List a folder and all folders in it, as the pages of the listing arrive.

        obstore refuses pages with a name that is no path, `a//b`. The folders are then listed one by one, and those
        that hold such names are returned as folders.

        Raises:
            OSError: The folder cannot be listed.
        """
        top = self._path(folder)
        last = ""
        pages = obstore().list(self._objects, top, chunk_size=_PAGE)
        try:
            for meta in _without_markers(chain.from_iterable(iter(lambda: call(next, pages, None), None))):
                last = meta["path"]
                yield _entry(meta, last[len(top) :].strip("/"))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            yield from self._list_folders(top, top, last)

    def find(self, name: str = "") -> Entry:
        """Return the entry of an object or a folder.

        Raises:
            OSError: Neither exists, for example.
        """
        try:
            return _entry(call(obstore().head, self._objects, self._path(name)), name)
        except FileNotFoundError:
            if next(self.list(name), None):
                return Entry(name, is_folder=True)
            raise

    def read(self, name: str, *, start: int, most: int) -> bytes:
        """Read a part of an object.

        Raises:
            OSError: It does not exist, for example.
        """
        path = self._path(name)
        return bytes(call(obstore().get_range, self._objects, path, start=start, length=most)) if most else b""

    def fetch(self, name: str) -> tuple[bytes, Entry] | None:
        """Return the content of an object and its entry in that state; None if it does not exist.

        Raises:
            OSError: It cannot be read.
        """
        try:
            answer = call(obstore().get, self._objects, self._path(name))
        except FileNotFoundError:
            return None
        return bytes(call(answer.bytes)), _entry(answer.meta, name)

    def stream(self, name: str) -> Iterator[bytes]:
        """Read an object piece by piece, in one request.

        Raises:
            OSError: It does not exist, for example.
        """
        pieces = call(obstore().get, self._objects, self._path(name)).stream(PIECE_BYTES)
        yield from map(bytes, iter(lambda: call(next, pieces, None), None))

    def checksum(self, name: str) -> str:
        """Read an object and return its SHA-256, hexadecimal.

        Raises:
            OSError: It does not exist, for example.
        """
        digest = hashlib.sha256()
        for piece in self.stream(name):
            digest.update(piece)
        return digest.hexdigest()

    def write(self, name: str, data: bytes, *, seen: Entry | None = None) -> Entry | None:
        """Write an object, and return its entry; None if another process has written it.

        If an answer is lost, the request is repeated, and may then find its own object: compare the content.

        Args:
            name: The object.
            data: Its content.
            seen: The state that is replaced; None: the object must not exist.

        Raises:
            OSError: It cannot be written.
        """
        mode: PutMode = "create"
        if seen:
            mode = {"version": seen.version} if seen.version else {"e_tag": seen.state}
        for attempt in range(attempts()):
            try:
                result = call(obstore().put, self._objects, self._path(name), data, mode=mode)
                return Entry(name, size=len(data), state=result["e_tag"] or "", version=result["version"] or "")
            except FileExistsError:
                return None
            except ConnectionError as error:
                lost = error
                time.sleep(0.1 * 2**attempt)
        raise lost

    def upload(self, name: str, file: Path) -> bool:
        """Write a local file to an object that does not exist; return False if it exists.

        A large file is sent in pieces under another name, and copied inside the store: obstore has no conditional upload
        in pieces.

        Raises:
            OSError: It cannot be written.
        """
        if file.stat().st_size < PIECE_BYTES:
            return self.write(name, file.read_bytes()) is not None
        path = self._path(name)
        attempt = f"{path}.{token_hex(6)}"
        pieces = {"chunk_size": PIECE_BYTES, "max_concurrency": _PARALLEL_PIECES}
        call(obstore().put, self._objects, attempt, file, **pieces)
        try:
            call(obstore().copy, self._objects, attempt, path, overwrite=False)
        except FileExistsError:
            return False
        finally:
            call(obstore().delete, self._objects, [attempt])
        return True

    def remove(self, *names: str) -> None:
        """Remove objects.

        Raises:
            OSError: One cannot be removed, or does not exist.
        """
        if names:
            call(obstore().delete, self._objects, [self._path(name) for name in names])

    def _path(self, name: str) -> str:
        return "/".join(filter(None, (self._folder, name)))

    def _list_folders(self, top: str, folder: str, after: str) -> Iterator[Entry]:
        try:
            found = call(obstore().list_with_delimiter, self._objects, folder)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            yield Entry(folder[len(top) :].strip("/"), is_folder=True)
            return
        inside = set(found["common_prefixes"])
        for meta in found["objects"]:
            if meta["path"] > after and meta["path"] not in inside:
                yield _entry(meta, meta["path"][len(top) :].strip("/"))
        for each in sorted(inside):
            yield from self._list_folders(top, each, after)


def open_store(url: str) -> Store:
    """Return the store of an address.

    Raises:
        RequestError: obstore is missing, or the address is invalid.
    """
    check_address(url)
    try:
        return Store(url)
    except OSError as error:
        hint = INSTALL if error.errno == errno.ENOSYS else None
        raise RequestError(f"cannot open {quote(url)}: {error.strerror}", hint=hint) from error


def find(url: str) -> Entry:
    """Return the entry of a remote file or folder.

    Raises:
        OSError: Neither exists, for example.
    """
    if is_web(url):
        with open_address(url) as answer:
            return Entry("", size=answer.length or 0, state=answer.headers.get("ETag") or "")
    bucket, name = split(url)
    return Store(bucket).find(name) if name else Entry("", is_folder=True)


def download(url: str) -> BinaryIO:
    """Copy a remote file into a temporary file without a name.

    Raises:
        OSError: It cannot be read.
    """
    file = cast("BinaryIO", tempfile.TemporaryFile(prefix="fmapviz-"))  # noqa: SIM115  the caller closes it
    try:
        if is_web(url):
            with open_address(url) as answer:
                shutil.copyfileobj(answer, file, PIECE_BYTES)
        else:
            bucket, name = split(url)
            file.writelines(Store(bucket).stream(name))
        file.seek(0)  # flushes, too
    except BaseException:
        file.close()
        raise
    return file


def _without_markers(found: Iterator[ObjectMeta]) -> Iterator[ObjectMeta]:
    """Leave out the empty objects `folder/` that consoles create; obstore lists them as `folder`."""
    before: ObjectMeta | None = None
    for meta in found:
        if before and (before["size"] or not meta["path"].startswith(f"{before['path']}/")):
            yield before
        before = meta
    if before:
        yield before


def _entry(meta: ObjectMeta, name: str) -> Entry:
    time = meta["last_modified"].timestamp()
    return Entry(name, size=meta["size"], state=meta["e_tag"] or "", time=time, version=meta["version"] or "")
