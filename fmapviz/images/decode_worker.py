"""The worker process of `fmapviz.images.decode_pool`: decode one open file after the other into shared memory.

Nothing here needs PyTorch. A request is a byte with an open file, then a line of JSON: `[path, channels, seconds]`. The
answer is a line of JSON: the stored pixels, `[mode, width, height, planes, notices]`, or an error, `[code, message, hint]`.
A large image is announced by its number of pixels, which extends the time limit.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module
from typing import BinaryIO, NoReturn

from PIL import Image as PillowImage

from fmapviz.core.errors import InputError
from fmapviz.images.decode import decode, explained
from fmapviz.images.pixels import SHARED_BYTES, store_pixels

_ANNOUNCED_PIXELS = 1_000_000
_IDLE_SECONDS = 1.0  # until Pillow's cache of memory blocks is emptied
_PR_SET_PDEATHSIG = 1


def main(connection: int, shared: int, parent: int, memory_bytes: int) -> NoReturn:
    """Decode until the parent process closes the connection or ends.

    Args:
        connection: Descriptor of the socket.
        shared: Descriptor of the shared memory.
        parent: Process that started this one.
        memory_bytes: Limit of the address space.
    """
    _limit(memory_bytes)
    if sys.platform == "linux":
        # Ends this process even inside a decoder that hangs. A closed connection says less: the parent's forks have it too.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _import_decoders()
    if os.getppid() == parent:
        with suppress(OSError):
            _serve(socket.socket(fileno=connection), mmap.mmap(shared, SHARED_BYTES))
    os._exit(0)


def _limit(memory_bytes: int) -> None:
    """Let a decoder write no file and no core dump, and bound its memory."""
    sys.dont_write_bytecode = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the run may be in a process that ignores or blocks signals
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for limit, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_AS, memory_bytes)):
        with suppress(OSError, ValueError):  # a lower limit is set already, or the system has no such limit
            resource.setrlimit(limit, (value, value))


def _import_decoders() -> None:
    """Import the plugins of the usual formats; NumPy follows with the first array.

    Pillow searches all its plugins for a format that is not loaded, which takes four times as long.
    """
    PillowImage.preinit()
    for name in ("WebP", "Avif", "Tiff", "Jpeg2K", "Qoi", "Tga"):
        import_module(f"PIL.{name}ImagePlugin")


def _serve(connection: socket.socket, memory: mmap.mmap) -> None:
    requests = connection.makefile("rb")
    _send(connection, "ready")
    while True:
        connection.settimeout(_IDLE_SECONDS)
        try:
            _, files, _, _ = socket.recv_fds(connection, 1, 1)
        except TimeoutError:
            PillowImage.core.clear_cache()  # type: ignore[attr-defined]  # Pillow's types leave it out
            connection.settimeout(None)
            _, files, _, _ = socket.recv_fds(connection, 1, 1)
        if not files:
            return
        connection.settimeout(None)
        path, channels, seconds = json.loads(requests.readline())
        with os.fdopen(files[0], "rb") as stream:
            _send(connection, _answer(stream, path, channels, seconds=seconds, connection=connection, memory=memory))


def _answer(
    stream: BinaryIO, path: str, channels: int, *, seconds: float, connection: socket.socket, memory: mmap.mmap
) -> list[object]:
    def announce(pixels: int) -> None:
        if pixels >= _ANNOUNCED_PIXELS:
            _send(connection, pixels)
            _end_in(seconds + pixels / 1e6)

    _end_in(seconds)
    try:
        pixels, notices = decode(stream, path, channels=channels, expect=announce)
        with explained(path):
            stored = store_pixels(pixels, memory)
    except InputError as error:
        return [error.code, str(error), error.hint]
    else:
        return [stored.mode, *stored.size, stored.planes, notices]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _send(connection: socket.socket, message: object) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _end_in(seconds: float) -> None:
    """Let the system end this process a second after the parent should have, in case that is gone."""
    signal.setitimer(signal.ITIMER_REAL, seconds + 1)
