"""The processes in which images are decoded, as the run sees them; `fmapviz.nursing` is what they do.

What a helper says is trusted as little as the picture that it has read: numbers are checked, words are made printable.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from mmap import PROT_READ
from threading import Lock
from typing import Any, BinaryIO

from fmapviz.errors import InputError, printable
from fmapviz.pixels import MAX_PIXELS, MAX_VALUES
from fmapviz.shared_pixels import Found, Shared, make_memory
from fmapviz.wire import Line

# For an image, and one more for each million pixels and for each megabyte of the file. The slowest decoder is that of QOI,
# which is Python: 89 megapixels take it 34 seconds on a busy machine, and get 137; JPEG 2000 takes 10 and gets 113.
TIMEOUT_SECONDS = 10.0
START_SECONDS = 60.0  # for an interpreter to start, from a slow disk
ANSWER_SECONDS = 10.0  # for a process to fork
# Of address space for each helper: the largest array allowed, three times 89 million float64, takes 4.9 GiB.
MEMORY_BYTES = 8 * 2**30
_PARTING_SECONDS = 2.0  # for the helpers to be ended
_KEPT_BYTES = 64 * 2**20
_RESTING_BYTES = 8 * 2**20  # between two runs, which may be long after each other
_PROGRAM = """
import sys
sys.path[:] = sys.argv[3:]
from fmapviz.nursing import nurse
nurse(int(sys.argv[1]), int(sys.argv[2]))
"""
# A process of several threads must not fork; each arena reserves address space; without blocks that are used again a third
# of the time goes into new pages.
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    "PILLOW_BLOCKS_MAX": "8",
}


class Nursery:
    """The process that forks helpers, as the run sees it."""

    def __init__(self) -> None:
        if getattr(sys, "frozen", False) or not sys.executable:
            raise OSError(errno.ENOSYS, "this program is no Python interpreter")
        self._owner = os.getpid()
        self._has_hatched = False
        self._is_up = False
        self._is_closed = False
        self._lock = Lock()
        self._idle: list[Helper] = []
        ours, theirs = socket.socketpair()
        self._line = Line(ours)
        options = ["-I"] if sys.flags.isolated else []
        arguments = [str(theirs.fileno()), str(MEMORY_BYTES), *map(str, sys.path)]
        with theirs:
            try:
                self._process = subprocess.Popen(  # noqa: S603  this interpreter, and a program of our own
                    [sys.executable, *options, "-c", _PROGRAM, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env=os.environ | _ENVIRONMENT,
                    process_group=0,  # Ctrl-C and Ctrl-Z at the terminal are for the run
                )
            except BaseException:
                ours.close()
                raise

    @property
    def is_ours(self) -> bool:
        """Whether this process has started it, and was not forked from the one that has."""
        return self._owner == os.getpid()

    def take(self) -> Helper:
        """Give a helper that has nothing to do, or a new one.

        Raises:
            OSError: There can be none.
        """
        with suppress(IndexError):
            while self.is_ours:
                helper = self._idle.pop()
                if helper.is_there():
                    return helper
                self.end(helper)
        return self._hatch()

    def put_back(self, helper: Helper) -> None:
        """Keep a helper for the next image, unless it has grown."""
        if helper.is_bloated:
            self.end(helper)
        else:
            self._idle.append(helper)
            if self._is_closed:  # meanwhile, by the thread that ends the run
                self._close_idle()

    def rest(self) -> None:
        """Keep only small helpers until the next run."""
        idle: list[Helper] = []
        with suppress(IndexError):  # another run may take one
            while True:
                idle.append(self._idle.pop())
        for helper in idle:
            if helper.largest_bytes > _RESTING_BYTES:
                self.end(helper)
            else:
                self._idle.append(helper)

    def end(self, helper: Helper) -> str | None:
        """End a helper if it has not ended by itself, and say how it ended; None if this process is gone as well."""
        helper.close()
        return self.kill(helper.pid)

    def kill(self, pid: int) -> str | None:
        """Do the same to one that a thread may still wait for."""
        try:
            code = self._ask(pid)
        except (OSError, ValueError):
            return None
        return f"crashed ({_signal_name(-code)})" if code < 0 else f"ended with exit code {code}"

    def close(self) -> None:
        """End the process and its helpers."""
        self._is_closed = True
        self._close_idle()
        if self.is_ours:
            self._line.shut()
            with suppress(subprocess.TimeoutExpired):  # without helpers it may still be at its imports
                self._process.wait(_PARTING_SECONDS if self._has_hatched else 0)
            self._process.kill()
            self._process.wait()
        self._line.close()

    def _close_idle(self) -> None:
        with suppress(IndexError):  # a thread that goes on may do the same
            while True:
                self._idle.pop().close()

    def _hatch(self) -> Helper:
        self._has_hatched = True
        with ExitStack() as undo:
            memory = Shared(make_memory(), PROT_READ)
            undo.callback(memory.close)
            ours, theirs = socket.socketpair()
            undo.callback(ours.close)
            with theirs:
                pid = self._ask(0, theirs.fileno(), memory.descriptor)
            undo.pop_all()
        return Helper(pid, Line(ours), memory)

    def _ask(self, pid: int, *descriptors: int) -> int:
        with self._lock:
            if not self.is_ours:
                raise OSError(errno.ECHILD, os.strerror(errno.ECHILD))
            try:
                self._line.send(pid, *descriptors)
                answer = self._line.receive(until=time.monotonic() + (ANSWER_SECONDS if self._is_up else START_SECONDS))
            except (EOFError, ConnectionError) as error:
                raise OSError(errno.ESRCH, "it has ended by itself") from error
            except TimeoutError:
                self._line.shut()  # an answer that comes too late is not to be taken for that to the next question
                raise
            self._is_up = True
        if not isinstance(answer, int):
            raise OSError(errno.EAGAIN, str(answer))
        return answer


class Helper:
    """A process that decodes, as the run sees it."""

    def __init__(self, pid: int, line: Line, memory: Shared) -> None:
        self.pid = pid
        self.memory = memory
        self.is_bloated = False
        self.largest_bytes = 0
        self._line = line

    def ask(self, stream: BinaryIO, path: str, *, channels: int) -> Found | InputError:
        """Have a file decoded.

        Raises:
            LostError: It is not to be used again.
        """
        begun, seconds = time.monotonic(), TIMEOUT_SECONDS + os.fstat(stream.fileno()).st_size / 1e6
        try:
            self._line.send([path, channels, seconds], stream.fileno())
            answer = self._line.receive(until=begun + seconds)
            if isinstance(answer, int):
                seconds += min(answer, MAX_PIXELS) / 1e6
                answer = self._line.receive(until=begun + seconds)
            checked = check(answer, channels)
        except TimeoutError as error:
            raise LostError(f"did not come to an end within {seconds:.3g} s") from error
        except (OSError, EOFError) as error:
            raise LostError from error
        except (ValueError, RecursionError) as error:
            raise LostError("gave no answer that makes sense") from error
        if isinstance(checked, Found):
            # It keeps the memory that its largest image took. Where all are large, each needs that again.
            self.largest_bytes = max(self.largest_bytes, checked.bytes)
            self.is_bloated = self.largest_bytes > max(_KEPT_BYTES, 4 * checked.bytes)
        return checked

    def is_there(self) -> bool:
        """Tell whether it still waits for a file."""
        return self._line.is_quiet()

    def close(self) -> None:
        """Close the connection, at which it ends by itself, and give the memory back."""
        self._line.close()
        self.memory.close()


class LostError(Exception):
    """A helper is not to be used again; says what it did, unless it has ended."""


# Any: whatever a helper may have said.
def check(answer: Any, channels: int) -> Found | InputError:
    """Believe what can be true.

    Raises:
        ValueError: It cannot.
    """
    match answer:
        case [str(code), str(message), None | str() as hint] if re.fullmatch("E_[A-Z_]+", code):
            return InputError(code, printable(message), hint=printable(hint) if hint else None)
        case [str(mode), int(width), int(height), int(planes), list(notices)] if min(width, height) > 0:
            picture = mode == {1: "L", 3: "RGB"}.get(channels) and planes == 1
            bands = mode == "F" and (planes == channels or (planes == 1 and channels == 3))
            if (picture or bands) and width * height <= MAX_PIXELS and planes * width * height <= MAX_VALUES:
                return Found(mode, (width, height), planes, tuple(printable(str(notice)) for notice in notices))
    raise ValueError


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
