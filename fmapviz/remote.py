"""Files elsewhere, `s3://` and others, by fsspec: list, read and write them.

Whatever fsspec and what is below it raise becomes an OSError with a number and one line of text, as if of a disk.
fsspec is imported when the first address is opened, and not before: that takes half a second.

Shortcuts of fsspec's that do something else than they say are not used: `walk` and `find` leave out a folder that cannot be
listed; `cat`, `get`, `put` and `rm` take names for patterns; `url_to_fs` takes `::` in a name for a chain of file systems.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO

from fmapviz.errors import printable
from fmapviz.urls import join, root_of, scheme_of

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE_BYTES = 2**24  # what is read at once of a large file
_CONNECTIONS = 32
_ATTEMPTS = 5
_UPLOADS = 4  # pieces of a large file that are sent at once

# What file systems call what changes with the content, the best first.
_MARKS = ("ETag", "etag", "md5Hash", "content_md5", "generation", "blob_id", "sha256", "sha", "crc32c")
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")
_FOREIGN = {
    *("aiobotocore", "aiohttp", "azure", "adlfs", "boto3", "botocore", "fsspec", "gcsfs", "google", "httpx"),
    *("huggingface_hub", "paramiko", "requests", "s3fs", "smbprotocol", "ssl", "urllib3"),
}
_NUMBERS: dict[type[Exception], int] = {
    FileNotFoundError: errno.ENOENT,
    PermissionError: errno.EACCES,
    FileExistsError: errno.EEXIST,
    IsADirectoryError: errno.EISDIR,
    NotImplementedError: errno.EROFS,
    TimeoutError: errno.ETIMEDOUT,
}
_NO_CREDENTIALS = re.compile("NoCredentials|PartialCredentials|CredentialRetrieval|TokenRetrieval")
_NOT_REACHED = re.compile("EndpointConnection|ConnectTimeout|ProxyConnection|ClientConnector")
_TAKEN = {"PreconditionFailed", "412", "ConditionalRequestConflict", "409"}
_UNKNOWN = {"NotImplemented", "501"}


@dataclass(frozen=True, slots=True)
class Entry:
    """Something in a folder.

    Attributes:
        name: In the folder.
        is_folder: Whether there is more below it.
        size: Bytes; 0 if nobody tells.
        state: What changes with the content: its checksum, or the time; empty if nobody tells.
        time: Of modification, in seconds since 1970; 0 if nobody tells.
    """

    name: str
    is_folder: bool
    size: int = 0
    state: str = ""
    time: float = 0.0


class Store:
    """Everything below an address; its methods may be called in several threads at once, but not across a fork.

    Args:
        url: Of a folder, which need not be there.

    Raises:
        OSError: Nobody knows how to get there.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._scheme = scheme_of(url)
        with _told():
            kind: Any = import_module("fsspec").get_filesystem_class(self._scheme)
            options = kind._get_kwargs_from_urls(url)
            self._root: str = kind._strip_protocol(url).rstrip("/")
            if not self._root.strip("/") and self._scheme != "memory":
                raise FileNotFoundError(errno.ENOENT, "the name of a bucket or host is missing")
            self._s3 = self._scheme in {"s3", "s3a"}
            if self._s3 or self._scheme in {"gs", "gcs", "az", "abfs", "abfss"}:
                options["use_listings_cache"] = False  # it would hold a kilobyte for each file, for ever
            if self._s3:
                options["config_kwargs"] = _patience()
            self._system: Any = kind(**options)
            _hush()

    def address(self, *names: str) -> str:
        """Give the address of something in it."""
        return join(self.url, *names)

    def list(self, folder: str = "") -> Iterator[Entry]:
        """Give what is in a folder, in no certain order, as answers arrive; nothing if it is not there.

        Raises:
            OSError: It could not be listed.
        """
        with _told():
            yield from self._pages(folder, deep=False) if self._s3 else self._listed(folder)

    def list_all(self, folder: str) -> Iterator[Entry]:
        """Give all files in a folder and in those in it; names are relative to it.

        Raises:
            OSError: One could not be listed.
        """
        with _told():
            if self._s3:
                yield from self._pages(folder, deep=True)
                return
            ahead = [""]
            while ahead:
                below = ahead.pop()
                for entry in self._listed("/".join(filter(None, (folder, below)))):
                    name = "/".join(filter(None, (below, entry.name)))
                    if entry.is_folder:
                        ahead.append(name)
                    else:
                        yield Entry(name, False, entry.size, entry.state, entry.time)

    def look(self, name: str = "") -> Entry:
        """Say what a file, or a folder, is like.

        Raises:
            OSError: There is none, say.
        """
        with _told():
            return _entry(name, self._system.info(self._path(name)))

    def read(self, name: str = "", *, start: int = 0, most: int | None = None) -> bytes:
        """Read a file, or a part of it.

        Raises:
            OSError: There is none, say.
        """
        options: dict[str, Any] = {}
        if start or most is not None:
            options = {"start": start, "end": None if most is None else start + most}
        elif self._s3:
            options = {"max_concurrency": 1}  # or it would ask for the size first
        if most == 0:
            return b""
        with _told():
            data: bytes = self._system.cat_file(self._path(name), **options)
        return data

    def pieces(self, name: str, size: int) -> Iterator[bytes]:
        """Read a file piece by piece.

        Raises:
            OSError: There is none, say.
        """
        if size <= PIECE_BYTES:
            yield self.read(name)
            return
        for start in range(0, size, PIECE_BYTES):
            yield self.read(name, start=start, most=PIECE_BYTES)

    def measure(self, name: str) -> tuple[int, str]:
        """Give the size of a file and the SHA-256 of what it holds, hexadecimal.

        Raises:
            OSError: There is none, say.
        """
        digest, size = hashlib.sha256(), 0
        for piece in self.pieces(name, self.look(name).size):
            digest.update(piece)
            size += len(piece)
        return size, digest.hexdigest()

    def create(self, name: str, data: bytes) -> bool:
        """Write a file unless there is one of that name, and tell whether it was written.

        An answer that is lost on the way looks like the refusal of a second attempt: what is there should be looked at.

        Raises:
            OSError: It could not be written.
        """
        return self._exclusively(name, lambda path, mode: self._system.pipe_file(path, data, **mode), io.BytesIO(data))

    def upload(self, name: str, file: str) -> bool:
        """Write a file of this machine, as `create` does."""
        with open(file, "rb") as stream:  # noqa: PTH123  fsspec wants names
            if os.fstat(stream.fileno()).st_size < PIECE_BYTES:
                return self.create(name, stream.read())
            pieces = {"chunksize": PIECE_BYTES, "max_concurrency": _UPLOADS} if self._s3 else {}
            return self._exclusively(name, lambda path, mode: self._system.put_file(file, path, **pieces, **mode), stream)

    def replace(self, name: str, data: bytes, *, state: str | None = None) -> bool:
        """Write a file in the place of one that is there, in a single step.

        Args:
            name: Which.
            data: What is to be in it.
            state: What it is thought to be like. If it is not any more, nothing is done, where the store can tell.

        Returns:
            Whether it was written.

        Raises:
            OSError: It could not be.
        """
        options = {"IfMatch": state} if self._s3 and state else {}
        with _told():
            try:
                self._system.pipe_file(self._path(name), data, **options)
            except OSError as error:
                if options and (isinstance(error, FileNotFoundError) or _code(error) in _TAKEN):
                    return False
                if not options or _code(error) not in _UNKNOWN:
                    raise
                self._system.pipe_file(self._path(name), data)
        return True

    def copy(self, source: str, target: str) -> None:
        """Copy a file there, in the place of one that may be there.

        Raises:
            OSError: It could not be.
        """
        with _told():
            self._system.cp_file(self._path(source), self._path(target))

    def remove(self, name: str) -> None:
        """Remove a file, if it is there.

        Raises:
            OSError: It could not be.
        """
        with _told(), suppress(FileNotFoundError):
            self._system.rm_file(self._path(name))

    def _exclusively(self, name: str, write: Any, source: BinaryIO) -> bool:
        # Any: a function with options of all kinds.
        path = self._path(name)
        with _told():
            if not (self._s3 or self._scheme in {"gs", "gcs"}):  # fsspec itself only looks first
                return self._exclusively_by_name(path, source)
            for attempt in range(_ATTEMPTS):
                try:
                    write(path, {"mode": "create"})
                except OSError as error:
                    code = _code(error)
                    if code in _UNKNOWN:  # an old server of another make
                        if self._system.exists(path):
                            return False
                        write(path, {})
                        return True
                    if not isinstance(error, FileExistsError) and code not in _TAKEN:
                        raise
                    if code not in {"ConditionalRequestConflict", "409"} or attempt == _ATTEMPTS - 1:
                        return False
                else:
                    return True
        return False

    def _exclusively_by_name(self, path: str, source: BinaryIO) -> bool:
        try:
            with self._system.open(path, "xb") as stream:
                shutil.copyfileobj(source, stream)
        except FileExistsError:
            return False
        except (NotImplementedError, ValueError):  # it knows no such mode
            if self._system.exists(path):
                return False
            with self._system.open(path, "wb") as stream:
                shutil.copyfileobj(source, stream)
        return True

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _pages(self, folder: str, *, deep: bool) -> Iterator[Entry]:
        """List a folder a thousand names at a time; fsspec has no call for that."""
        bucket, _, prefix = self._path(folder).partition("/")
        prefix = f"{prefix}/" if prefix else ""
        call = {"Bucket": bucket, "Prefix": prefix, **({} if deep else {"Delimiter": "/"})}
        while True:
            page = self._system.call_s3("list_objects_v2", **call)
            for sub in page.get("CommonPrefixes", ()):
                yield Entry(sub["Prefix"][len(prefix) : -1], is_folder=True)
            for found in page.get("Contents", ()):
                name = found["Key"][len(prefix) :]
                if name and not name.endswith("/"):  # so consoles mark a folder
                    yield _entry(name, {"type": "file", "size": found["Size"], **found})
            if not page.get("IsTruncated"):
                return
            call["ContinuationToken"] = page["NextContinuationToken"]

    def _listed(self, folder: str) -> Iterator[Entry]:
        path = self._path(folder)
        self._system.invalidate_cache(path)
        try:
            found = self._system.ls(path, detail=True)
        except FileNotFoundError:
            return
        for each in found:
            name = each["name"].rstrip("/")
            if name.strip("/") != path.strip("/"):
                yield _entry(name.rpartition("/")[2], each)


@cache
def _hush() -> None:
    """Keep from standard error what connections say that break: whoever waits for an answer is told by an error."""
    loop = import_module("fsspec.asyn").get_loop()
    loop.call_soon_threadsafe(loop.set_exception_handler, lambda *_: None)


@cache
def _opened(root: str, _process: int) -> Store:
    return Store(root)


def split(url: str) -> tuple[Store, str]:
    """Give the store that something is in, which is kept open, and its name there.

    Raises:
        OSError: Nobody knows how to get there.
    """
    root = root_of(url)
    if scheme_of(url) in {"http", "https"}:
        return Store(url), ""  # names there are whole addresses
    return _opened(root, os.getpid()), url[len(root) :].strip("/")


def number_of(state: str) -> int:
    """Give a number in place of a checksum or a time, which JSON keeps everywhere; 0 for none."""
    return int.from_bytes(hashlib.sha256(state.encode()).digest()[:6]) if state else 0


def _patience() -> dict[str, Any]:
    """Say how often and how long to try, unless the environment does."""
    known: dict[str, Any] = {"max_pool_connections": _CONNECTIONS}
    if "AWS_MAX_ATTEMPTS" not in os.environ and "AWS_RETRY_MODE" not in os.environ:
        known["retries"] = {"mode": "standard", "total_max_attempts": _ATTEMPTS}
    return known


def _entry(name: str, info: dict[str, Any]) -> Entry:
    # Any: each file system tells other things.
    mark = next((str(info[key]) for key in _MARKS if info.get(key)), "")
    changed: Any = next((info[key] for key in _TIMES if info.get(key)), None)
    time = changed.timestamp() if hasattr(changed, "timestamp") else changed if isinstance(changed, int | float) else 0.0
    return Entry(name, info["type"] == "directory", info.get("size") or 0, mark or str(changed or ""), float(time))


@contextmanager
def _told() -> Iterator[None]:
    """Make an OSError with a number of whatever fails below; what is a bug of ours passes through."""
    try:
        yield
    except Exception as error:
        known = isinstance(error, OSError | ImportError | ValueError | NotImplementedError)
        if not known and type(error).__module__.partition(".")[0] not in _FOREIGN:
            raise
        if type(error) in {OSError, *_NUMBERS} and error.__cause__ is None and getattr(error, "strerror", None):
            raise
        raise OSError(*_explain(error)) from error


def _explain(error: Exception) -> tuple[int, str]:
    """Give a number and one line of text."""
    name = type(error).__name__
    said = printable(" ".join(str(error).split())) or name
    if _NO_CREDENTIALS.match(name):
        return errno.EIO, "no credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role"
    if _NOT_REACHED.match(name):
        return errno.EHOSTUNREACH, f"not reached: {said}"
    if isinstance(error, ImportError):
        return errno.ENOSYS, said
    number = getattr(error, "errno", None) or next(
        (number for kind, number in _NUMBERS.items() if isinstance(error, kind)), errno.EIO
    )
    number = errno.EIO if number == errno.EINVAL else number  # of a request: no word about the file
    status = getattr(error.__cause__, "status", None)  # of an answer over HTTP, which fsspec takes for a missing file
    if number == errno.ENOENT and status not in {None, 404, 410}:
        number, said = errno.EACCES if status in {401, 403} else errno.EIO, f"HTTP status {status}"
    text = re.sub(r"^\[Errno -?\d+\] ", "", said)
    code = _code(error)
    if code and code not in text:
        text = f"{code}: {text}"
    return number, text if isinstance(error, OSError) else f"{name}: {text}"


def _code(error: BaseException) -> str:
    """Give what S3 calls an error."""
    answer = getattr(error.__cause__, "response", None) or getattr(error, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""
