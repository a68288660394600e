"""What runs in the process that forks helpers, and in the helpers, which decode images.

`fmapviz.nursery` is how the run sees them. Nothing here needs PyTorch, and nothing looks into a file before a helper does.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module
from mmap import PROT_READ, PROT_WRITE
from typing import BinaryIO, NoReturn

from PIL import Image as PillowImage

from fmapviz.errors import InputError
from fmapviz.images import decode, explained
from fmapviz.shared_pixels import Shared, lay_down
from fmapviz.wire import Line

_TOLD_PIXELS = 1_000_000  # what has fewer gets no time for them
_PR_SET_PDEATHSIG = 1


def nurse(control: int, memory_bytes: int) -> NoReturn:
    """Fork and end helpers on request, until the run closes the connection.

    Args:
        control: The descriptor of the connection. A request is 0, with a connection and shared memory for a new helper,
            whose process number is the answer; or the number of one that is to end, whose exit code is the answer.
        memory_bytes: Address space for each.
    """
    run = os.getppid()

    def look_up(*_: object) -> None:
        if os.getppid() != run:
            raise EOFError

    _restrain(memory_bytes)
    # The connection tells as much, unless a process forked from the run has it too. Linux tells when a thread ends.
    signal.signal(signal.SIGUSR1, look_up)
    _tell_end_of_parent(signal.SIGUSR1)
    _import_decoders()
    gc.freeze()  # or each helper would copy what they have in common when it collects garbage
    helpers: set[int] = set()
    line = Line(socket.socket(fileno=control))
    with suppress(EOFError, OSError):
        while True:
            pid, files = line.receive_files(2)
            line.send(_end(pid, helpers) if pid else _fork(line, files, helpers))
    for pid in [*helpers]:
        _end(pid, helpers)
    os._exit(0)


def _import_decoders() -> None:
    """Import what pictures are decoded with; a helper imports the rest, such as NumPy, when it meets an array.

    Pillow looks for a format that it does not know among all its plugins, which takes four times as long.
    """
    PillowImage.preinit()
    for name in ("WebP", "Avif", "Tiff", "Jpeg2K", "Qoi", "Tga"):
        import_module(f"PIL.{name}ImagePlugin")


def _restrain(memory_bytes: int) -> None:
    """Take care that a decoder harms nobody else: it writes no file, leaves no core, and its memory is bounded."""
    sys.dont_write_bytecode = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGALRM, signal.SIGCHLD):  # the run may be of a process that ignores or blocks them
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for limit, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_AS, memory_bytes)):
        with suppress(OSError, ValueError):  # there is a lower one, or the system knows none
            resource.setrlimit(limit, (value, value))


def _tell_end_of_parent(number: int) -> None:
    """Have Linux send a signal when the thread that started this process ends, or the process of that thread."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def _fork(line: Line, files: list[int], helpers: set[int]) -> int | str:
    """Give the process number of a new helper, or why there is none."""
    try:
        pid = os.fork()
    except OSError as error:
        return str(error)
    if not pid:
        line.close()
        _help(*files)
    helpers.add(pid)
    for descriptor in files:
        os.close(descriptor)
    return pid


def _end(pid: int, helpers: set[int]) -> int | str:
    """End a helper and give its exit code, negative for a signal; one that is ending already keeps its own."""
    if pid not in helpers:
        return "no such helper"
    helpers.discard(pid)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _help(connection: int, shared: int) -> NoReturn:
    """Decode until the run closes the connection."""
    _tell_end_of_parent(signal.SIGKILL)
    line, memory = Line(socket.socket(fileno=connection)), Shared(shared, PROT_READ | PROT_WRITE)
    with suppress(EOFError, OSError):
        while True:
            (path, channels, seconds), files = line.receive_files(1)
            with os.fdopen(files[0], "rb") as stream:
                line.send(_answer(stream, path, channels, seconds=seconds, line=line, memory=memory))
    os._exit(0)


def _answer(stream: BinaryIO, path: str, channels: int, *, seconds: float, line: Line, memory: Shared) -> list[object]:
    """Decode a file into the shared memory and say what there is, or why there is nothing."""

    def expect(pixels: int) -> None:
        if pixels >= _TOLD_PIXELS:
            line.send(pixels)
            _end_in(seconds + pixels / 1e6)

    _end_in(seconds)
    try:
        pixels, notices = decode(stream, path, channels=channels, expect=expect)
        with explained(path):
            return [*lay_down(pixels, memory), notices]
    except InputError as refusal:
        return [refusal.code, str(refusal), refusal.hint]
    finally:
        _end_in(0)


def _end_in(seconds: float) -> None:
    """Have the system end this process if nobody else does, because the run is gone; 0: no more."""
    signal.setitimer(signal.ITIMER_REAL, seconds and seconds + 1)
