"""Functions of Windows that `fmapviz.core.platforms` calls, with the means of this system; see `sitecustomize`.

The module stands for `sys`, `_winapi` and `msvcrt` there.
"""

import fcntl
import os
import shutil
import socket
import sys
import threading
from secrets import token_hex
from types import SimpleNamespace

platform = "win32"
STILL_ACTIVE = 259
LK_NBLCK = 2
_locking = fcntl.flock
_unix, _send, _receive = socket.AF_UNIX, socket.send_fds, socket.recv_fds
_statvfs = os.statvfs


def __getattr__(name):
    return getattr(sys, name)


def prepare():
    """Give modules what they have on Windows."""
    socket.socket.share, socket.fromshare, socket.socketpair = share, fromshare, socketpair
    shutil.disk_usage = disk_usage


def OpenProcess(_access, _inherit, pid):  # noqa: N802
    if not os.path.exists(f"/proc/{pid}"):
        error = OSError("no such process")
        error.winerror = 87
        raise error
    return pid


def GetExitCodeProcess(process):  # noqa: N802
    try:
        with open(f"/proc/{process}/stat", "rb") as status:
            state = status.read().rpartition(b")")[2].split()[0]
    except OSError:
        return 0
    return 0 if state in {b"Z", b"X"} else STILL_ACTIVE


def CloseHandle(_process):  # noqa: N802
    pass


def locking(file, mode, _size):
    assert mode == LK_NBLCK
    try:
        _locking(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PermissionError(13, "Permission denied") from None


def socketpair():
    with socket.create_server(("127.0.0.1", 0)) as place:
        ours = socket.create_connection(place.getsockname())
        return ours, place.accept()[0]


def share(connection, _pid):
    """Return the address at which a thread waits to pass a connection on."""
    address = f"\0fmapviz-{token_hex(8)}".encode()
    place = socket.socket(_unix)
    place.bind(address)
    place.listen()
    passed = connection.dup()

    def wait():
        with place, passed, place.accept()[0] as other:
            _send(other, [b"\0"], [passed.fileno()])

    threading.Thread(target=wait, daemon=True).start()
    return address


def fromshare(address):
    with socket.socket(_unix) as other:
        other.connect(address)
        _, (number, *_), _, _ = _receive(other, 1, 1)
    return socket.socket(fileno=number)


def disk_usage(path):
    status = _statvfs(path)
    return SimpleNamespace(free=status.f_bavail * status.f_frsize)
