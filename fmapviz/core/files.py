"""File operations: the only module that changes the disk, so that a test can let the n-th operation of a run fail."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import socket
import stat
import tempfile
import time
from contextlib import contextmanager, nullcontext, suppress
from secrets import token_hex
from threading import Lock
from typing import TYPE_CHECKING, BinaryIO

from fmapviz.core import platforms
from fmapviz.core.file_names import HIDDEN
from fmapviz.errors import OutputError, hint_behind, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from typing_extensions import Buffer

BLOCK_BYTES = 4096  # smallest allocation of common file systems
BUFFER_BYTES = 2**20
SMALL_BYTES = 2**20
FOREIGN_SECONDS = 86_400  # age after which what another host staged counts as left over
_MOMENT_SECONDS = 0.02
_SLACK_SECONDS = 5.0  # of clocks that are compared
_THIS = token_hex(3)  # distinguishes processes of the same number, as in containers
_under_way: set[Path] = set()

_BINARY = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY  # O_EXCL does not follow links either
_LINE = os.O_RDWR | os.O_APPEND | os.O_CREAT | platforms.NO_LINK | platforms.NO_WAIT | _BINARY
_READ = os.O_RDONLY | platforms.NO_LINK | platforms.NO_WAIT | _BINARY  # a pipe in the place of a file must not block


def writing_to(path: Path | str) -> AbstractContextManager[None]:
    """Turn a failure to write into an `OutputError` that names the file.

    Raises:
        OutputError: In place of an OSError.
    """
    return _explaining("cannot write to", path)


def reading_from(path: Path | str) -> AbstractContextManager[None]:
    """Turn a failure to read a run into an `OutputError` that names the file.

    Raises:
        OutputError: In place of an OSError.
    """
    return _explaining("cannot read", path)


def removing(path: Path | str) -> AbstractContextManager[None]:
    """Turn a failure to remove a run into an `OutputError` that names it.

    Raises:
        OutputError: In place of an OSError.
    """
    return _explaining("cannot remove", path)


@contextmanager
def _explaining(failure: str, path: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"{failure} {quote(path)}: {error.strerror or error}", hint=hint_behind(error)) from error


def make_folders(path: Path) -> None:
    """Create a directory and its parents, unless they exist.

    Raises:
        OSError: For instance, the disk is full, or a file has the name.
    """
    try:
        os.mkdir(path)
    except FileNotFoundError:
        if path.parent == path or os.path.isdir(path.parent):  # nothing can be created in it, for instance below /proc
            raise
        make_folders(path.parent)
        make_folders(path)
    except OSError:
        if not os.path.isdir(path):
            raise


def protect(path: Path) -> None:
    """Make a directory accessible to its owner only.

    Raises:
        OSError: For instance, it belongs to another user.
    """
    os.chmod(path, 0o700)


def write(path: Path, *parts: Buffer) -> None:
    """Write a new file.

    Raises:
        OSError: For instance, the disk is full, or the file exists.
    """
    write_pieces(path, parts)


def write_pieces(path: Path, parts: Iterable[Buffer]) -> None:
    """Write a new file from an iterator of pieces.

    Raises:
        OSError: As `write`.
    """
    with _opened(path, _NEW) as file:  # system calls: a file object takes twice the time for a small file
        for part in parts:
            left = memoryview(part)
            while left:  # a disk that fills up writes a part
                left = left[os.write(file, left) :]


def outline(path: Path, size: int) -> None:
    """Create a sparse file of a given size.

    Raises:
        OSError: For instance, it exists.
    """
    with _opened(path, _NEW) as file:
        os.ftruncate(file, size)


def create(path: Path) -> BinaryIO:
    """Open a new file for writing; closing it raises `OSError` if some of it could not be written.

    Raises:
        OSError: For instance, it exists.
    """
    return os.fdopen(os.open(path, _NEW, 0o666), "wb", BUFFER_BYTES)


class Scratch:
    """An unnamed file that disappears with the process; safe in several threads.

    Raises:
        OSError: It cannot be created.
    """

    def __init__(self, directory: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  closed by `close`
        self._lock = Lock()

    def write(self, data: Buffer, position: int) -> None:
        """Write bytes at a position.

        Raises:
            OSError: For instance, the disk is full.
        """
        with self._lock:  # Windows has no pwrite
            self._file.seek(position)
            self._file.write(data)
            self._file.flush()

    def read(self, size: int, position: int) -> bytes:
        """Read bytes that were written at a position."""
        with self._lock:
            self._file.seek(position)
            return self._file.read(size)

    def close(self) -> None:
        """Close the file, which frees its space."""
        self._file.close()


def append(path: Path, line: bytes) -> None:
    """Append a line to a file in one write, so that many processes can; a truncated last line is ended first.

    Raises:
        OSError: For instance, the disk is full, or the path is not a regular file.
    """
    with _alone_where_needed(path), _opened(path, _LINE) as file:
        size = _size_of_file(file)
        if size and os.lseek(file, size - 1, os.SEEK_SET) and os.read(file, 1) != b"\n":
            time.sleep(_MOMENT_SECONDS)
            if os.fstat(file).st_size == size:  # otherwise another process was writing the line
                line = b"\n" + line
        if os.write(file, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def extend(path: Path, data: bytes) -> None:
    """Append data to a file, which is created if necessary, in one write.

    Raises:
        OSError: For instance, the disk is full, or the path is not a regular file.
    """
    with _alone_where_needed(path), _opened(path, _LINE) as file:
        if os.write(file, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def _alone_where_needed(path: Path) -> Iterator[None]:
    """Hold the lock of the directory around a file, unless the system appends at once."""
    with nullcontext() if platforms.appends_at_once() else locked(path.parent):
        yield


def rename(source: Path, target: Path) -> None:
    """Rename a directory, which replaces an empty one only, or a file to a new name.

    No file in the directory may be open: Windows would refuse.

    Raises:
        OSError: For instance, the name is in use.
    """
    if not platforms.rename_replaces(target):
        with suppress(OSError):
            os.rmdir(target)
    platforms.persist(lambda: os.rename(source, target))


def replace(source: Path, target: Path) -> None:
    """Rename a file atomically, replacing another file.

    Raises:
        OSError: For instance, a directory has the name.
    """
    platforms.persist(lambda: os.replace(source, target))


def link(source: Path, target: Path) -> None:
    """Create a hard link; unlike `rename`, it never replaces a file.

    Raises:
        OSError: The name is in use, or the file system has no links.
    """
    os.link(source, target)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of an existing file or directory, which one thread of one process has at a time.

    The lock is released when its process ends, however it ends. A file system without locks grants it to all.
    """
    try:
        while (release := platforms.take_lock(path)) is None:
            time.sleep(_MOMENT_SECONDS)  # signals do not interrupt a blocking call
    except OSError:
        yield
        return
    try:
        yield
    finally:
        release()


def remove(path: Path) -> None:
    """Remove a file.

    Raises:
        OSError: For instance, it does not exist.
    """
    platforms.persist(lambda: os.unlink(path))


def remove_folder(path: Path) -> None:
    """Remove an empty directory.

    Raises:
        OSError: For instance, it is not empty.
    """
    platforms.persist(lambda: os.rmdir(path))


def remove_tree(path: Path) -> None:
    """Remove a directory and its content, as far as possible, without following links."""
    shutil.rmtree(path, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until a file or the list of names of a directory is on the disk.

    Raises:
        OSError: The disk reports an error.
    """
    flags = platforms.flags_to_sync(path)
    if flags is not None:
        with _opened(path, flags | _BINARY) as file:
            os.fsync(file)


def sync_folders(path: Path, top: Path) -> None:
    """Call `sync` for a directory and its parents up to `top`.

    Raises:
        OSError: The disk reports an error.
    """
    sync(path)
    if path != top:
        sync_folders(path.parent, top)


@contextmanager
def staging_folder(parent: Path, ending: str = "") -> Iterator[Path]:
    """Make a hidden directory to write to; remove it at the end, unless it was renamed."""
    staging = hidden(parent, ending)
    _under_way.add(staging)
    try:
        os.mkdir(staging)
        yield staging
    finally:
        if exists(staging):
            remove_tree(staging)
        _under_way.discard(staging)


def write_over(path: Path, content: bytes, *, sync_too: bool = False) -> None:
    """Write a file that gets its name when it is complete, in place of an existing one.

    Raises:
        OSError: For instance, the disk is full.
    """
    with staging_folder(path.parent) as staging:
        write(staging / path.name, content)
        if sync_too:
            sync(staging / path.name)
        replace(staging / path.name, path)
        if sync_too:
            sync(path.parent)


def hidden(parent: Path, ending: str = "") -> Path:
    """Return a hidden path that does not exist.

    Its name holds host and process, so that leftovers of killed processes differ from the work of running ones.
    """
    return parent / f"{HIDDEN}{_host()}-{os.getpid()}-{_THIS}-{token_hex(4)}{ending}"


def remove_staged() -> None:
    """Remove the directories that this process has staged; its threads may still write."""
    for staging in tuple(_under_way):
        waste = hidden(staging.parent)
        with suppress(OSError):
            rename(staging, waste)  # so that no thread adds another file
            remove_tree(waste)


def leftovers(directory: Path) -> Iterator[Path]:
    """Return the hidden directories of processes that no longer run."""
    return filter(is_left_over, directory.glob(f"{HIDDEN}*"))


def is_left_over(staging: Path) -> bool:
    """Return True if the process that made a hidden directory no longer runs."""
    host, _, rest = staging.name.removeprefix(HIDDEN).partition("-")
    pid, _, rest = rest.partition("-")
    if not pid.isdecimal():
        return False
    if host != _host():
        try:
            return staging.lstat().st_mtime < time.time() - FOREIGN_SECONDS
        except OSError:
            return False
    if int(pid) == os.getpid():
        return not rest.startswith(f"{_THIS}-")
    return not platforms.is_running(int(pid)) or _began_later(int(pid), staging)


def _began_later(pid: int, staging: Path) -> bool:
    """Return True if a process began after a directory was last changed: its number was reused."""
    running = platforms.running_seconds(pid)
    try:
        return running is not None and running < time.time() - staging.lstat().st_mtime - _SLACK_SECONDS
    except OSError:
        return False


def read(path: Path, *, start: int = 0, most: int = -1) -> bytes:
    """Read a file or a part of it.

    Args:
        path: The file; links are refused.
        start: First byte; a negative number counts from the end.
        most: Maximum number of bytes; -1 for all.

    Raises:
        OSError: For instance, the path does not exist or is not a regular file.
    """
    platforms.refuse_link(path)
    with _opened(path, _READ) as descriptor:
        size = _size_of_file(descriptor)
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            file.seek(max(0, size + start) if start < 0 else start)
            return file.read(min(most, size) if most >= 0 else -1)


def measure(path: str | Path) -> tuple[int, str]:
    """Return the size of a file and its SHA-256 in hexadecimal.

    Raises:
        OSError: For instance, the path does not exist or is not a regular file.
    """
    platforms.refuse_link(path)
    with _opened(path, _READ) as descriptor:
        size = _size_of_file(descriptor)
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            if size > SMALL_BYTES:
                return size, hashlib.file_digest(file, "sha256").hexdigest()
            return size, hashlib.sha256(file.read(size)).hexdigest()  # `file_digest` allocates 256 KiB


def exists(path: Path) -> bool:
    """Return True if the path exists, or is a broken link."""
    return os.path.lexists(path)


def size_in_blocks(sizes: Iterable[int]) -> int:
    """Return the bytes that files of these sizes occupy on a disk.

    Example:
        >>> size_in_blocks([1, 4096, 5000])
        16384
    """
    return sum(-(-size // BLOCK_BYTES) * BLOCK_BYTES for size in sizes)


def directory_size(directory: Path) -> int:
    """Return the bytes that a directory and its files occupy on a disk."""
    with os.scandir(directory) as entries:
        return size_in_blocks([1, *(entry.stat(follow_symlinks=False).st_size for entry in entries)])


def format_bytes(number: float) -> str:
    """Format a size.

    Example:
        >>> format_bytes(999), format_bytes(2_500_000), format_bytes(2.5e12)
        ('999 bytes', '2.5 MB', '2.5 TB')
    """
    units = ["kB", "MB", "GB", "TB"]
    unit = "bytes"
    while number >= 999.5 and units:
        number, unit = number / 1000, units.pop(0)
    return f"{number:.3g} {unit}"


@contextmanager
def _opened(path: str | Path, flags: int) -> Iterator[int]:
    file = os.open(path, flags, 0o666)
    try:
        yield file
    finally:
        os.close(file)


def _size_of_file(file: int) -> int:
    """Return the size of an open file.

    Raises:
        OSError: It is a directory, for example.
    """
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return status.st_size


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]
