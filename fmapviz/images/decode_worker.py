"""The worker process of `fmapviz.images.decode_pool`: decode one open file after the other into shared memory.

Nothing here needs PyTorch. A request is a byte with an open file, then a line of JSON: `[channels, seconds]`. The
answer is a line of JSON: the stored pixels, `[mode, width, height, planes, notices, orientation]`, or an error,
`[code, message, hint]`. A large image is announced by its number of pixels, which extends the time limit.

Shared memory is a nameless file (`memfd_create`): it is freed however the processes end, and is not bounded by the size of
`/dev/shm`, as `multiprocessing.shared_memory` is. Planes follow each other. Those of 8 bits are stored as Pillow stores
them, because its `tobytes` and `frombytes` take ten times as long as a copy.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import resource
import select
import signal
import socket
import sys
import tempfile
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import Any, BinaryIO, NoReturn

from PIL import Image as PillowImage

from fmapviz.core.bands import Bands
from fmapviz.core.errors import InputError
from fmapviz.images.decode import decode
from fmapviz.images.errors import MAX_VALUES, classify

SHARED_BYTES = 4 * MAX_VALUES
_ANNOUNCED_PIXELS = 1_000_000
_IDLE_MILLISECONDS = 1000  # until Pillow's cache of memory blocks is emptied
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
            _serve(socket.socket(fileno=connection), mmap.mmap(shared, 0))
    os._exit(0)


def _limit(memory_bytes: int) -> None:
    """Keep a decoder from writing files and core dumps, and bound its memory."""
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
    arrival = select.poll()
    arrival.register(connection, select.POLLIN)
    _send(connection, "ready")
    while True:
        if not arrival.poll(_IDLE_MILLISECONDS):
            PillowImage.core.clear_cache()  # type: ignore[attr-defined]  # Pillow's types leave it out
        _, files, _, _ = socket.recv_fds(connection, 1, 1)
        if not files:
            return
        channels, seconds = json.loads(requests.readline())
        with os.fdopen(files[0], "rb") as stream:
            _send(connection, _answer(stream, channels, seconds=seconds, connection=connection, memory=memory))


def _answer(
    stream: BinaryIO, channels: int, *, seconds: float, connection: socket.socket, memory: mmap.mmap
) -> list[object]:
    def announce(pixels: int) -> None:
        if pixels >= _ANNOUNCED_PIXELS:
            _send(connection, pixels)
            _end_in(seconds + pixels / 1e6)

    _end_in(seconds)
    try:
        pixels, notices, orientation = decode(stream, channels=channels, expect=announce)
        return [*_store(pixels, memory), notices, orientation]
    except Exception as error:  # noqa: BLE001 - a decoder may raise anything
        refusal = error if isinstance(error, InputError) else classify(error)
        return [refusal.code, str(refusal), refusal.hint]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _store(pixels: PillowImage.Image | Bands, memory: mmap.mmap) -> tuple[str, int, int, int]:
    """Copy pixels into the shared memory, plane after plane. Return their mode, width, height and number of planes."""
    planes = pixels.planes if isinstance(pixels, Bands) else (pixels,)
    planes = planes[:1] if all(plane is planes[0] for plane in planes) else planes  # grey, repeated for a network of RGB
    mode, size = planes[0].mode, planes[0].size
    if mode == "F":
        memory.seek(0)
        for plane in planes:
            memory.write(plane.tobytes())
    else:
        stored_mode = "RGBX" if mode == "RGB" else mode
        buffer: Any = memory  # Pillow's types do not accept an mmap, its code accepts any buffer
        view = PillowImage.frombuffer(stored_mode, size, buffer, "raw", stored_mode, 0, 1)
        view.im.paste(planes[0].im, (0, 0, *size))
    return mode, *size, len(planes)


def create_shared_memory() -> BinaryIO:
    """Return a sparse file of `SHARED_BYTES` without a name, whose size is fixed.

    Raises:
        OSError: The system has none, or limits the size of files.
    """
    can_seal = hasattr(os, "memfd_create")
    with ExitStack() as on_error:
        file: BinaryIO = on_error.enter_context(
            os.fdopen(os.memfd_create("fmapviz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+b", buffering=0)
            if can_seal
            else tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  closed by the stack
        )
        file.truncate(SHARED_BYTES)
        if can_seal:  # if a worker shortened the file, reading it would crash the run
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        on_error.pop_all()
    return file


def _send(connection: socket.socket, message: object) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _end_in(seconds: float) -> None:
    """Ask the system to end this process a second after the parent should have, in case that is gone."""
    signal.setitimer(signal.ITIMER_REAL, seconds + 1)
