"""Change what is on the disk: one function for each operation, and no other module of the output has one.

So a test can let the n-th operation of a run fail, for every n, and see what is left.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import stat
import time
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Buffer

BUFFER_BYTES = 2**20  # small pieces go to the disk together
SMALL_BYTES = 2**20
_MOMENT_SECONDS = 0.02

_BINARY = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY  # O_EXCL: not through a link either
_LINE = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | _BINARY
# Something else than a file, put in its place, must not be waited for.
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | _BINARY


def make_folder(path: Path) -> None:
    """Make a directory that is not there yet.

    Raises:
        OSError: It is, say.
    """
    os.mkdir(path)


def make_folders(path: Path) -> None:
    """Make sure that a directory is there, and those around it.

    Raises:
        OSError: The disk is full, say, or a file is in the way.
    """
    try:
        make_folder(path)
    except FileNotFoundError:
        if path.parent == path or path.parent.is_dir():  # nothing can be made in it: below /proc, say
            raise
        make_folders(path.parent)
        make_folders(path)
    except OSError:
        if not path.is_dir():
            raise


def protect(path: Path) -> None:
    """Let nobody else look into a directory.

    Raises:
        OSError: It is not ours, say.
    """
    os.chmod(path, 0o700)


def write(path: Path, *parts: Buffer) -> None:
    """Write a new file in one go.

    Raises:
        OSError: Not all of it could be written, or it is there already.
    """
    # Straight to the system: a file object takes as long again for a small file.
    file = os.open(path, _NEW, 0o666)
    try:
        for part in parts:
            left = memoryview(part)
            while left:  # a disk that fills takes a part, and refuses the rest
                left = left[os.write(file, left) :]
    finally:
        os.close(file)


def outline(path: Path, size: int) -> None:
    """Make a new file of a certain size, with nothing in it.

    Raises:
        OSError: It is there already, say.
    """
    file = os.open(path, _NEW, 0o666)
    try:
        os.ftruncate(file, size)
    finally:
        os.close(file)


def create(path: Path) -> BinaryIO:
    """Open a new file to be written piece by piece; whoever closes it is told if not all of it could be.

    Raises:
        OSError: It is there already, say.
    """
    return cast("BinaryIO", io.BufferedWriter(_NewFile(path), BUFFER_BYTES))


def append(path: Path, line: bytes) -> None:
    """Append a line to a file in one piece, so that many processes can; behind one that was cut off on a line of its own.

    Raises:
        OSError: Not all of it could be written, or the path leads to something else than a file.
    """
    file = os.open(path, _LINE, 0o666)
    try:
        _require_file(os.fstat(file))
        if _is_cut_off(file):
            line = b"\n" + line
        if os.write(file, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(file)


def rename(source: Path, target: Path) -> None:
    """Rename a file or directory; a directory takes the place of an empty one only.

    Raises:
        OSError: It is taken, say.
    """
    os.rename(source, target)


def replace(source: Path, target: Path) -> None:
    """Put a file in the place of another one, if there is one, in a single step.

    Raises:
        OSError: A directory is there, say.
    """
    os.replace(source, target)


def link(source: Path, target: Path) -> None:
    """Give a file a second name, if that is free: unlike a renaming, this never replaces anything.

    Raises:
        OSError: It is taken, or the file system knows no links.
    """
    os.link(source, target)


def remove(path: Path) -> None:
    """Remove a file.

    Raises:
        OSError: It is gone, say.
    """
    os.unlink(path)


def remove_folder(path: Path) -> None:
    """Remove a directory, if it is empty.

    Raises:
        OSError: It is not, say.
    """
    os.rmdir(path)


def remove_tree(path: Path) -> None:
    """Remove a directory with all that is in it, as far as that can be done; links in it are not followed."""
    shutil.rmtree(path, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until a file's content, or a directory's list of names, would survive a power failure.

    Raises:
        OSError: The disk says that it will not.
    """
    file = os.open(path, os.O_RDONLY | _BINARY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def sync_folders(path: Path, top: Path) -> None:
    """Do so with a directory and those around it, up to a certain one.

    Raises:
        OSError: The disk says that it will not.
    """
    sync(path)
    if path != top:
        sync_folders(path.parent, top)


def read(path: Path, *, start: int = 0, most: int = -1) -> bytes:
    """Read a file, or a part of it.

    Args:
        path: Not a link.
        start: Where to begin; a negative number counts from the end.
        most: How many bytes at most; -1: all.

    Raises:
        OSError: There is none, say, or something else than a file.
    """
    with open(path, "rb", buffering=0, opener=_open_to_read) as file:
        status = os.fstat(file.fileno())
        _require_file(status)
        if start:
            file.seek(max(0, status.st_size + start) if start < 0 else start)
        return file.read(min(most, status.st_size) if most >= 0 else -1)


def measure(path: str | Path) -> tuple[int, str]:
    """Give the size and the SHA-256 of a file, hexadecimal.

    Raises:
        OSError: There is none, say, or something else than a file.
    """
    with open(path, "rb", buffering=0, opener=_open_to_read) as file:
        status = os.fstat(file.fileno())
        _require_file(status)
        size = status.st_size
        if size > SMALL_BYTES:
            return size, hashlib.file_digest(file, "sha256").hexdigest()
        return size, hashlib.sha256(file.read(size)).hexdigest()  # `file_digest` begins with a buffer of 256 KiB


def exists(path: Path) -> bool:
    """Tell whether anything has this name, a link to nowhere too."""
    return os.path.lexists(path)


class _NewFile(io.RawIOBase):
    """A new file to write to."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, _NEW, 0o666)

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        return os.write(self._file, data)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return os.lseek(self._file, offset, whence)

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                os.close(self._file)


def _is_cut_off(file: int) -> bool:
    """Tell whether the last line has no end; half of what another process is just writing can be seen for a moment."""
    size = _size_of_cut_off(file)
    if not size:
        return False
    time.sleep(_MOMENT_SECONDS)
    return _size_of_cut_off(file) == size


def _size_of_cut_off(file: int) -> int:
    size = os.fstat(file).st_size
    return size if size and os.pread(file, 1, size - 1) != b"\n" else 0


def _open_to_read(path: str, _flags: int) -> int:
    return os.open(path, _READ)


def _require_file(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
