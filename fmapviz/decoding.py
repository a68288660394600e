"""Decode images in processes of their own: a decoder that crashes, or does not come to an end, costs one image.

A *nursery* is a fresh interpreter that imports the decoders, looks into no file and forks a *helper* for each thread that
reads. A helper is handed files that are open already, decodes one after the other with `fmapviz.images`, and leaves the
pixels in memory that it shares with the run, which copies them. However it ends, the nursery tells how, and forks another.

What a helper says is trusted as little as the picture that it has read: numbers are checked, words are made printable. It is
no sandbox: code that a picture might smuggle in runs with the rights of the user.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import fcntl
import gc
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from mmap import PROT_READ, PROT_WRITE, mmap
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, Self

from PIL import Image as PillowImage

from fmapviz.errors import InputError, printable, quote
from fmapviz.images import decode, explained, open_image, read_image
from fmapviz.samples import MAX_PIXELS, MAX_VALUES
from fmapviz.values import Bands, Image, Notice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fmapviz.values import ImageFile

# For an image, and one more for each million pixels and for each megabyte of the file. The slowest decoder is that of QOI,
# which is Python: 89 megapixels take it 34 seconds on a busy machine, and get 137; JPEG 2000 takes 10 and gets 113.
TIMEOUT_SECONDS = 10.0
START_SECONDS = 60.0  # for an interpreter to start, from a slow disk
# Of address space for each helper: the largest array allowed, three times 89 million float64, takes 4.9 GiB.
MEMORY_BYTES = 8 * 2**30

_PARTING_SECONDS = 2.0  # for the helpers to be ended
_TOLD_PIXELS = 1_000_000  # what has fewer gets no time for them
_LONGEST_LINE = 1 << 20
_ROOM_BYTES = 4 * MAX_VALUES
_KEPT_BYTES = 64 * 2**20
_PIXEL_BYTES = {"L": 1, "RGB": 4, "F": 4}  # as Pillow keeps them
_PR_SET_PDEATHSIG = 1
_PROGRAM = """
import sys
sys.path[:] = sys.argv[3:]
from fmapviz.decoding import nurse
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
_started: list[_Nursery] = []


def start() -> None:
    """Start the nursery, which takes a fifth of a second, and keep it for all runs of this process."""
    if not _kept():
        with suppress(OSError, ValueError):  # told when it is needed
            _started.append(_Nursery())
            atexit.register(_started[-1].close)


class Decoding:
    """Reads images in helpers, one for each thread that reads, until it is closed.

    Example:
        >>> from fmapviz.values import ImageFile
        >>> with Decoding() as decoding:
        ...     image = decoding.read(ImageFile("sample_images/shapes.png", "shapes.png", 0, 0), channels=1, tell=print)
        >>> image.pixels.mode, image.pixels.size
        ('L', (640, 480))
    """

    def __init__(self) -> None:
        self._nursery: _Nursery | None = None
        self._helpers: set[int] = set()
        self._idle: list[_Helper] = []
        self._lock = Lock()
        self._possible = True
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End all helpers, also those that a thread still waits for."""
        self._closed = True
        if self._nursery in _started:
            for pid in [*self._helpers]:
                self._nursery.end(pid)
        elif self._nursery:
            self._nursery.close()
        self._close_idle()

    def read(self, file: ImageFile, *, channels: int, tell: Callable[[Notice], None]) -> Image:
        """Do what `fmapviz.images.read_image` does. Safe to call from several threads.

        Args:
            file: As it was found.
            channels: What the network takes.
            tell: Called once if there can be no helpers, and images are decoded in this process.

        Raises:
            InputError: As there; `E_DECODE` too if the decoder crashed or did not come to an end.
        """
        with open_image(file.path) as stream:
            helper = self._take(tell)
            if helper is None:
                return read_image(file, channels=channels)
            try:
                answer = helper.ask(stream, file.path, channels=channels)
            except _LostError as lost:
                ended = self._end(helper)
                raise InputError("E_DECODE", f"the decoder {str(lost) or ended}: {quote(file.path)}") from lost
        try:
            if isinstance(answer, InputError):
                raise answer
            with explained(file.path):
                return Image(file, _pick_up(answer, helper.memory, channels=channels), answer.notices)
        finally:
            self._put_back(helper)

    def _take(self, tell: Callable[[Notice], None]) -> _Helper | None:
        """Give a helper that has nothing to do, or a new one; None if there can be none."""
        reason = ""
        with self._lock:
            while self._idle:
                helper = self._idle.pop()
                if helper.is_there():
                    return helper
                self._end(helper)
            self._require_open()
            for _ in range(2 if self._possible else 0):  # a nursery that somebody has killed is replaced
                try:
                    return self._hatch()
                except (OSError, ValueError) as error:
                    reason = reason or getattr(error, "strerror", None) or str(error)
            self._possible = False
        if reason:
            tell(Notice(f"no process to decode in could be started ({reason}): a decoder that crashes ends the run"))
        return None

    def _hatch(self) -> _Helper:
        if self._nursery is None:
            self._nursery = _kept() or _Nursery()
        try:
            helper = self._nursery.hatch()
        except (OSError, ValueError):
            self._require_open()
            self._nursery.close()
            if self._nursery in _started:
                _started.remove(self._nursery)
            self._nursery = None
            raise
        self._helpers.add(helper.pid)
        if self._closed:
            self._end(helper)
        self._require_open()
        return helper

    def _require_open(self) -> None:
        """Make a thread that goes on behind the run end, and decode nothing by itself."""
        if self._closed:
            raise InputError("E_DECODE", "the run has ended")

    def _put_back(self, helper: _Helper) -> None:
        if self._closed or helper.is_bloated:
            self._end(helper)
        else:
            self._idle.append(helper)
            if self._closed:
                self._close_idle()

    def _close_idle(self) -> None:
        with suppress(IndexError):  # a thread that goes on may do the same
            while True:
                self._idle.pop().close()

    def _end(self, helper: _Helper) -> str:
        """End a helper if it has not ended by itself, and say how it ended."""
        helper.close()
        self._helpers.discard(helper.pid)
        return self._nursery.end(helper.pid) if self._nursery else ""


def _kept() -> _Nursery | None:
    return next((nursery for nursery in _started if nursery.is_ours), None)


class _Nursery:
    """The process that forks helpers, as the run sees it."""

    def __init__(self) -> None:
        if getattr(sys, "frozen", False) or not sys.executable:
            raise OSError(errno.ENOSYS, "this program is no Python interpreter")
        self._owner = os.getpid()
        self._has_hatched = False
        self._lock = Lock()
        ours, theirs = socket.socketpair()
        self._line = _Line(ours)
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

    def hatch(self) -> _Helper:
        """Give a new helper.

        Raises:
            OSError: There can be none.
        """
        self._has_hatched = True
        with ExitStack() as undo:
            memory = _Shared(_make_memory(), PROT_READ)
            undo.callback(memory.close)
            ours, theirs = socket.socketpair()
            undo.callback(ours.close)
            with theirs:
                pid = self._ask(0, theirs.fileno(), memory.descriptor)
            undo.pop_all()
        return _Helper(pid, _Line(ours), memory)

    def end(self, pid: int) -> str:
        """End a helper if it has not ended by itself, and say how it ended."""
        try:
            code = self._ask(pid)
        except (OSError, ValueError):
            return "was ended"
        return f"crashed ({_signal_name(-code)})" if code < 0 else f"ended with exit code {code}"

    def close(self) -> None:
        """End the process and its helpers."""
        if self.is_ours:
            self._line.shut()
            with suppress(subprocess.TimeoutExpired):  # without helpers it may still be at its imports
                self._process.wait(_PARTING_SECONDS if self._has_hatched else 0)
            self._process.kill()
            self._process.wait()
        self._line.close()

    def _ask(self, pid: int, *descriptors: int) -> int:
        with self._lock:
            if not self.is_ours:
                raise OSError(errno.ECHILD, os.strerror(errno.ECHILD))
            try:
                self._line.send(pid, *descriptors)
                answer = self._line.receive(until=time.monotonic() + START_SECONDS)
            except (EOFError, ConnectionError) as error:
                raise OSError(errno.ESRCH, "it has ended by itself") from error
        if not isinstance(answer, int):
            raise OSError(errno.EAGAIN, str(answer))
        return answer


class _Helper:
    """A process that decodes, as the run sees it."""

    def __init__(self, pid: int, line: _Line, memory: _Shared) -> None:
        self.pid = pid
        self.memory = memory
        self.is_bloated = False
        self._line = line
        self._largest = 0

    def ask(self, stream: BinaryIO, path: str, *, channels: int) -> _Found | InputError:
        """Have a file decoded.

        Raises:
            _LostError: It is not to be used again.
        """
        begun, seconds = time.monotonic(), TIMEOUT_SECONDS + os.fstat(stream.fileno()).st_size / 1e6
        try:
            self._line.send([path, channels, seconds], stream.fileno())
            answer = self._line.receive(until=begun + seconds)
            if isinstance(answer, int):
                seconds += min(answer, MAX_PIXELS) / 1e6
                answer = self._line.receive(until=begun + seconds)
            checked = _check(answer, channels)
        except TimeoutError as error:
            raise _LostError(f"did not come to an end within {seconds:.3g} s") from error
        except (OSError, EOFError) as error:
            raise _LostError from error
        except (ValueError, RecursionError) as error:
            raise _LostError("gave no answer that makes sense") from error
        if isinstance(checked, _Found):
            # It keeps the memory that its largest image took. Where all are large, each needs that again.
            self._largest = max(self._largest, checked.bytes)
            self.is_bloated = self._largest > max(_KEPT_BYTES, 4 * checked.bytes)
        return checked

    def is_there(self) -> bool:
        """Tell whether it still waits for a file."""
        return self._line.is_quiet()

    def close(self) -> None:
        self._line.close()
        self.memory.close()


class _LostError(Exception):
    """A helper is not to be used again; says what it did, unless it has ended."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What lies in the shared memory: planes of one mode and size, one after the other."""

    mode: str
    size: tuple[int, int]
    planes: int
    notices: tuple[str, ...]

    @property
    def plane_bytes(self) -> int:
        return _PIXEL_BYTES[self.mode] * self.size[0] * self.size[1]

    @property
    def bytes(self) -> int:
        return self.plane_bytes * self.planes


# Any: whatever a helper may have said.
def _check(answer: Any, channels: int) -> _Found | InputError:
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
                return _Found(mode, (width, height), planes, tuple(printable(str(notice)) for notice in notices))
    raise ValueError


class _Line:
    """A connection between two processes: JSON, a value on each line, and open files."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""

    # Any: what JSON can hold.
    def send(self, message: Any, *descriptors: int) -> None:
        content = json.dumps(message).encode() + b"\n"
        self._connection.settimeout(None)
        sent = socket.send_fds(self._connection, [content], descriptors)
        self._connection.sendall(content[sent:])

    def receive(self, *, until: float | None = None) -> Any:
        """Give the next message.

        Raises:
            EOFError: The other side is gone.
            TimeoutError: Nothing came until then.
            ValueError: This is no message.
        """
        return self._receive(0, until)[0]

    def receive_files(self, most: int) -> tuple[Any, list[int]]:
        """Give the next message and the descriptors of the files that came with it."""
        return self._receive(most, None)

    def is_quiet(self) -> bool:
        """Tell whether the other side is there and has nothing to say."""
        self._connection.settimeout(0)
        try:
            self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return not self._rest
        except OSError:
            return False
        return False

    def shut(self) -> None:
        """Make whoever waits at either end go on."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()

    def _receive(self, most: int, until: float | None) -> tuple[Any, list[int]]:
        files: list[int] = []
        while b"\n" not in self._rest:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            self._connection.settimeout(left)
            piece, received, _, _ = socket.recv_fds(self._connection, 1 << 16, most)
            files += received
            self._rest += piece
            if not piece:
                raise EOFError
            if len(self._rest) > _LONGEST_LINE:
                raise ValueError
        content, _, self._rest = self._rest.partition(b"\n")
        return json.loads(content), files


class _Shared:
    """Memory of two processes, mapped as far as it is used."""

    def __init__(self, descriptor: int, protection: int) -> None:
        self.descriptor = descriptor
        self._protection = protection
        self._mapped: mmap | None = None

    def first(self, size: int) -> mmap:
        """Give at least so many bytes from the beginning."""
        if self._mapped is None or len(self._mapped) < size:
            try:
                self._mapped = mmap(self.descriptor, size, prot=self._protection)
            except OSError as error:
                raise MemoryError from error
        return self._mapped

    def close(self) -> None:
        self._mapped = None
        os.close(self.descriptor)


def _make_memory() -> int:
    """Give a nameless file whose size nobody can change, and which takes memory only where it is written."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            file.truncate(_ROOM_BYTES)
            return os.dup(file.fileno())
    descriptor = os.memfd_create("fmapviz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, _ROOM_BYTES)
        # A helper that made it smaller would crash the run, which reads it.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:  # files may not be so large
        os.close(descriptor)
        raise
    return descriptor


def _lay_down(pixels: PillowImage.Image | Bands, memory: _Shared) -> list[object]:
    """Put pixels where the other process finds them, and say what they are."""
    planes: Sequence[PillowImage.Image] = pixels.planes if isinstance(pixels, Bands) else [pixels]
    planes = planes[:1] if all(plane is planes[0] for plane in planes) else planes  # grey, for a network of RGB
    found = _Found(planes[0].mode, planes[0].size, len(planes), ())
    place = memory.first(found.bytes)
    for number, plane in enumerate(planes):
        if found.mode == "F":
            place[number * found.plane_bytes : (number + 1) * found.plane_bytes] = plane.tobytes()
        else:
            _paste(plane, _borrow(found, place))
    return [found.mode, *found.size, found.planes]


def _pick_up(found: _Found, memory: _Shared, *, channels: int) -> PillowImage.Image | Bands:
    """Copy pixels from where the other process has put them."""
    place = memory.first(found.bytes)
    if found.mode != "F":
        picture = PillowImage.new(found.mode, found.size, None)
        _paste(_borrow(found, place), picture)
        return picture
    starts = range(0, found.bytes, found.plane_bytes)
    planes = [PillowImage.frombytes("F", found.size, place[start : start + found.plane_bytes]) for start in starts]
    return Bands(tuple(planes * (channels // found.planes)))


def _borrow(found: _Found, place: mmap) -> PillowImage.Image:
    """Give a picture whose pixels are that memory: grey, or red, green, blue and a byte that means nothing."""
    mode = "RGBX" if found.mode == "RGB" else found.mode
    buffer: Any = place  # any buffer will do, which Pillow's types do not say
    return PillowImage.frombuffer(mode, found.size, buffer, "raw", mode, 0, 1)


def _paste(source: PillowImage.Image, target: PillowImage.Image) -> None:
    """Copy pixels from memory to memory; `tobytes` and `frombytes` take ten times as long."""
    target.im.paste(source.im, (0, 0, *source.size))


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


# What follows runs in the nursery and in helpers.


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
    PillowImage.init()  # all plugins: each helper would import them anew for a file that is no picture
    gc.freeze()  # or each helper would copy what they have in common when it collects garbage
    helpers: set[int] = set()
    line = _Line(socket.socket(fileno=control))
    with suppress(EOFError, OSError):
        while True:
            pid, files = line.receive_files(2)
            line.send(_end(pid, helpers) if pid else _fork(line, files, helpers))
    for pid in [*helpers]:
        _end(pid, helpers)
    os._exit(0)


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


def _fork(line: _Line, files: list[int], helpers: set[int]) -> int | str:
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
    line, memory = _Line(socket.socket(fileno=connection)), _Shared(shared, PROT_READ | PROT_WRITE)
    with suppress(EOFError, OSError):
        while True:
            (path, channels, seconds), files = line.receive_files(1)
            with os.fdopen(files[0], "rb") as stream:
                line.send(_answer(stream, path, channels, seconds=seconds, line=line, memory=memory))
    os._exit(0)


def _answer(stream: BinaryIO, path: str, channels: int, *, seconds: float, line: _Line, memory: _Shared) -> list[object]:
    """Decode a file into the shared memory and say what there is, or why there is nothing."""

    def expect(pixels: int) -> None:
        if pixels >= _TOLD_PIXELS:
            line.send(pixels)
            _end_in(seconds + pixels / 1e6)

    _end_in(seconds)
    try:
        pixels, notices = decode(stream, path, channels=channels, expect=expect)
        with explained(path):
            return [*_lay_down(pixels, memory), notices]
    except InputError as refusal:
        return [refusal.code, str(refusal), refusal.hint]
    finally:
        _end_in(0)


def _end_in(seconds: float) -> None:
    """Have the system end this process if nobody else does, because the run is gone; 0: no more."""
    signal.setitimer(signal.ITIMER_REAL, seconds and seconds + 1)
