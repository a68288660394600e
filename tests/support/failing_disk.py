"""A disk whose n-th operation fails: replaces `os` and `shutil` in `fmapviz.core.files`, which writes all output."""

from __future__ import annotations

import errno
import io
import mmap
import os
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path

from fmapviz.core import files

CRASH, TORN = "crash", "torn write"  # the process ends; it ends in the middle of a write
POWER, NAMES = "power failure", "power failure that takes names too"  # the process ends, see `cut_power`
FULL, PART = "disk full", "disk full within a write"
ENDS = {CRASH, TORN, POWER, NAMES}
GROWING = {"open", "write", "mkdir", "link"}


class Crash(BaseException):
    """The process has ended: further operations have no effect."""


class Disk:
    """Counts the operations of each process and makes one fail; from then on the disk is full in forks of it, too.

    Args:
        number: Number of the operation that fails, from 1; 0: none.
        fault: How it fails.
    """

    def __init__(self, number=0, fault=CRASH):
        self.number, self.fault = number, fault
        self.operations = []
        self._failed = mmap.mmap(-1, 16)  # of this process and its forks
        self.unsynced = set()  # inodes of files whose content is not yet on the disk
        self.names = []  # renames not yet on the disk: inode of the directory, old path, new path
        self._lock = threading.Lock()

    @property
    def failed(self):
        """Name of the operation that failed; empty before."""
        return self._failed[:].rstrip(b"\0").decode()

    def __getattr__(self, name):
        return getattr(os, name)

    def _operate(self, operation, do, half=lambda: None):
        """Do one operation, or make it fail."""
        with self._lock:
            if self.failed and self.fault in ENDS:
                raise Crash
            self.operations.append(operation)
            if len(self.operations) == self.number and not self.failed:
                self._failed[: len(operation)] = operation.encode()
                if self.fault in {TORN, PART}:
                    half()
                if self.fault in ENDS:
                    raise Crash
                if self.fault == FULL:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if operation == "write":
                    return half.written
            if self.failed and operation in GROWING:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return do()

    # Called by fmapviz.core.files.

    def open(self, path, flags, mode=0o777):
        if not flags & os.O_CREAT:
            if self.failed and self.fault in ENDS:
                raise Crash
            return os.open(path, flags, mode)
        return self._operate("open", lambda: os.open(path, flags, mode))

    def write(self, file, data):
        self.unsynced.add(os.fstat(file).st_ino)
        half = _Half(file, data)
        return self._operate("write", lambda: os.write(file, data), half)

    def fdopen(self, file, _mode, buffering):
        return io.BufferedWriter(_File(self, file), buffering)

    def fsync(self, file):
        def do():
            os.fsync(file)
            status = os.fstat(file)
            self.unsynced.discard(status.st_ino)
            self.names = [name for name in self.names if name[0] != status.st_ino]

        self._operate("fsync", do)

    def mkdir(self, path):
        self._operate("mkdir", lambda: os.mkdir(path))

    def rename(self, source, target):
        def do():
            os.rename(source, target)
            self.names.append((Path(target).parent.stat().st_ino, Path(source), Path(target)))

        self._operate("rename", do)

    def replace(self, source, target):
        self._operate("replace", lambda: os.replace(source, target))

    def link(self, source, target):
        self._operate("link", lambda: os.link(source, target))

    def unlink(self, path):
        self._operate("unlink", lambda: os.unlink(path))

    def rmdir(self, path):
        self._operate("rmdir", lambda: os.rmdir(path))

    def rmtree(self, path, *, ignore_errors):
        def half():
            for each in sorted(Path(path).iterdir())[::2]:
                each.unlink()

        try:
            self._operate("rmtree", lambda: shutil.rmtree(path, ignore_errors=ignore_errors), half)
        except OSError:
            assert ignore_errors

    def cut_power(self, place, *, names):
        """Empty files whose content was not synchronized, and undo renames that were not.

        Args:
            place: Directory.
            names: Whether renames are undone; a name may reach the disk before its content.
        """
        for path in place.rglob("*"):
            if path.is_file() and path.stat().st_ino in self.unsynced:
                path.write_bytes(b"")
        for _, source, target in reversed(self.names if names else ()):
            if target.exists() and source.parent.exists() and not source.exists():
                target.rename(source)


class _File(io.RawIOBase):
    """A file open for writing."""

    def __init__(self, disk, file):
        self._disk, self._file = disk, file

    def writable(self):
        return True

    def seekable(self):
        return True

    def write(self, data, /):
        return self._disk.write(self._file, data)

    def seek(self, offset, whence=os.SEEK_SET, /):
        return os.lseek(self._file, offset, whence)

    def close(self):
        if not self.closed:
            try:
                super().close()
            finally:
                os.close(self._file)


class _Half:
    """Writes the first half of the data."""

    def __init__(self, file, data):
        self._file, self._data = file, data
        self.written = 0

    def __call__(self):
        half = memoryview(self._data)[: len(memoryview(self._data)) // 2]
        self.written = os.write(self._file, half) if half else 0


@contextmanager
def put_in(monkeypatch, disk):
    """Write all output through a disk, under the identity of a new process."""
    report = threading.excepthook

    def report_unless_dead(ended):  # the thread that counts inputs ends with the process
        if ended.exc_type is not Crash:
            report(ended)

    with monkeypatch.context() as patch:
        patch.setattr(threading, "excepthook", report_unless_dead)
        patch.setattr(files, "os", disk)
        patch.setattr(files, "shutil", disk)
        patch.setattr(files, "_THIS", f"{id(disk):x}")
        yield disk


@contextmanager
def limited_files(limit):
    """Limit the size of files, bytes, which stands for a full disk: it needs no special rights and no mount."""
    import resource  # not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
