"""Decode images in worker processes: a decoder that crashes or hangs costs one image.

Each reading thread has a worker, a fresh interpreter that runs `fmapviz.images.decode_worker`: it imports neither PyTorch
nor the user's `__main__`. A worker receives open files and leaves the pixels in shared memory, from which they are copied.
Its answers are checked, but it is no sandbox: code smuggled in by a picture would run with the rights of the user.

Measured on two cores, beside decoding in a thread, with JPEG files of 0.2 and 12 megapixels:

| | 0.2 MP | 12 MP | first image | a crash costs | a decoder that hangs when the run is killed |
|---|---|---|---|---|---|
| this module | + 0.4 ms | + 1 to 7 % | 120 ms | 1 image | is killed |
| pebble 5.2 | + 0.4 to 1 ms | + 20 to 50 % | 160 to 400 ms | 1 image, 100 to 400 ms | is left |
| loky 3.7 | + 0.4 ms | + 7 to 20 % | 500 ms | every image in work (25 of 25) | is left |

pebble imports `__main__` again; loky has no time limit. Both unpickle the answers, which lets a hostile worker run code
here, and neither can pass open files. A server that forks workers starts one in 5 ms, but takes 120 more lines.
"""

from __future__ import annotations

import atexit
import errno
import io
import json
import mmap
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from math import prod
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar

import numpy as np
from PIL import Image as PillowImage
from PIL.ImageFile import ImageFile as PillowFile

from fmapviz.core import platforms
from fmapviz.core.object_store import download
from fmapviz.core.samples import Samples
from fmapviz.core.urls import is_url
from fmapviz.errors import InputError, printable, quote
from fmapviz.events import Notice
from fmapviz.images.decode import Image, decode
from fmapviz.images.decode_worker import SHARED_BYTES
from fmapviz.images.errors import MAX_PIXELS, MAX_VALUES, explain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmapviz.data import ImageFile

    _Stored = tuple[list[Any], tuple[str, ...], int]  # description of the pixels, notices, orientation

T = TypeVar("T")

# For an image, and one more for each million pixels and for each megabyte of the file. The slowest decoder is that of QOI,
# which is Python: 89 megapixels take it 34 seconds on a busy machine, and get 137; JPEG 2000 takes 10 and gets 113.
TIMEOUT_SECONDS = 10.0
FILM_SECONDS = 3600.0  # for all frames between two requested ones
START_SECONDS = 60.0  # for an interpreter to start, from a slow disk
# Address space of each worker: the largest array allowed, three times 89 million float64, takes 4.9 GiB.
MEMORY_BYTES = 8 * 2**30
_KEPT_BYTES = 64 * 2**20  # of shared memory, after an image that needed more
_LONGEST_ANSWER = 1 << 20
_KILL_SECONDS = 2.0  # for a killed process to end
_PROGRAM = """
import sys
sys.path[:] = sys.argv[5:]
from fmapviz.images.decode_worker import main
main(*map(int, sys.argv[1:5]))
"""
# Threads and malloc's arenas reserve address space. Without blocks that Pillow uses again, a third of the time of a large
# image goes into new pages.
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    "PILLOW_BLOCKS_MAX": "8",
}
_kept: list[DecodeProcess] = []  # idle, for all pools of this process
_keeps_workers = Event()


def start() -> None:
    """Start a worker in the background, and keep idle workers for all later pools of this process."""
    _keeps_workers.set()
    if not any(worker.is_idle() for worker in _kept):
        with suppress(OSError, ValueError, RuntimeError):  # reported when a worker is needed
            _kept.append(start_worker())


@atexit.register
def stop() -> None:
    """End the idle workers."""
    _keeps_workers.clear()
    while _kept:
        _kept.pop().end()


def read_image(file: ImageFile, *, channels: int = 3, volume: bool = False) -> Image:
    """Read an image in this process; see `fmapviz.images.decode.decode`. Safe to call from several threads.

    Args:
        file: As found.
        channels: Number of channels that the model takes.
        volume: Whether it takes volumes.

    Raises:
        InputError: `E_MISSING`, `E_PERM`, `E_TYPE` (not a regular file), `E_READ` (any other error of the system),
            `E_EMPTY`, `E_FORMAT`, `E_TOO_LARGE`, `E_DECODE` or `E_CHANNELS`.
    """
    with open_file(file.path) as stream:
        try:
            image = decode(stream, channels=channels, volume=volume)
            return image._replace(pixels=image.pixels.copy()) if isinstance(image.pixels, PillowFile) else image
        except Exception as error:
            raise explain(error, file.path) from error


class DecodePool:
    """Decode images in workers, one for each thread that calls `read`.

    Example:
        >>> from fmapviz.data import ImageFile
        >>> with DecodePool() as pool:
        ...     image = pool.read(ImageFile("sample_images/shapes.png", "shapes.png"), channels=1, notify=print)
        >>> image.pixels.mode, image.pixels.size
        ('L', (640, 480))
    """

    def __init__(self) -> None:
        self._idle = _kept if _keeps_workers.is_set() else []
        self._busy: set[DecodeProcess] = set()
        self._lock = Lock()
        self._can_start = True
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers that a thread still waits for, and idle ones unless later pools use them."""
        with self._lock:
            self._is_closed = True
        for worker in [*self._busy]:
            worker.kill()
        # Another pool may share the list: a worker is taken from it before its memory is released.
        for worker in [*iter(partial(pop_idle, self._idle), None)]:
            if self._idle is _kept:
                worker.release_memory()
                _kept.append(worker)
            else:
                worker.end()

    def read(self, file: ImageFile, *, channels: int, volume: bool = False, notify: Callable[[Notice], None]) -> Image:
        """Read an image as `read_image` does. Safe to call from several threads.

        Args:
            file: As found.
            channels: Number of channels that the model takes.
            volume: Whether it takes volumes.
            notify: Called once if no worker can be started; images are then decoded in this process.

        Raises:
            InputError: As `read_image`; `E_DECODE` also if the decoder crashed or did not finish in time.
        """
        with open_file(file.path) as stream:
            worker = self._take(notify)
            if worker:
                try:
                    return worker.decode(stream, channels=channels, volume=volume)
                except Exception as error:
                    raise explain(error, file.path) from error
                finally:
                    self._put_back(worker)
        return read_image(file, channels=channels, volume=volume)

    def _take(self, notify: Callable[[Notice], None]) -> DecodeProcess | None:
        """Return a worker that is ready, or None if none can be started."""
        reason = ""
        for _ in range(2):  # a worker that was killed from outside is replaced
            worker = None
            try:
                worker = self._claim()
                if worker:
                    worker.wait_until_ready()
            except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: no more threads
                reason = reason or getattr(error, "strerror", None) or str(error)
                if worker:
                    self._put_back(worker)
            else:
                return worker
        with self._lock:
            is_first, self._can_start = self._can_start, False
        if is_first:
            notify(Notice(f"cannot start a process to decode in ({reason}): a decoder that crashes ends the run"))
        return None

    def _claim(self) -> DecodeProcess | None:
        with self._lock:
            if self._is_closed:
                raise InputError("E_DECODE", "the run has ended")
            if not self._can_start:
                return None
            worker = pop_idle(self._idle) or start_worker()
            self._busy.add(worker)
            return worker

    def _put_back(self, worker: DecodeProcess) -> None:
        with self._lock:
            self._busy.discard(worker)
            if worker.is_usable and not self._is_closed:
                self._idle.append(worker)
                return
        worker.end()


class DecodeProcess:
    """The run's side of a process that runs `fmapviz.images.decode_worker`."""

    def __init__(self) -> None:
        if getattr(sys, "frozen", False) or not sys.executable:
            raise OSError(errno.ENOSYS, "this program is not a Python interpreter")
        self.is_usable = False
        self._owner = os.getpid()
        self._received = b""
        self._memory: mmap.mmap | None = None
        self._shared: BinaryIO | None = None
        self._last: BinaryIO | None = None  # stream of the last request
        self._until = 0.0  # when an answer must be complete
        passes = platforms.PASSES_FILES
        interpreter, variables, group = platforms.program(sys.executable)
        with ExitStack() as on_error:
            self._connection, theirs = map(on_error.enter_context, socket.socketpair())
            inherited = [theirs.fileno()]
            if passes:
                self._shared = on_error.enter_context(platforms.create_shared_memory(SHARED_BYTES))
                inherited.append(self._shared.fileno())
            arguments = [*(inherited if passes else (0, 0)), self._owner, MEMORY_BYTES, *sys.path]
            options = ["-I"] if sys.flags.isolated else []
            self._process = subprocess.Popen(  # noqa: S603  this interpreter, and a program of our own
                [interpreter, *options, "-c", _PROGRAM, *map(str, arguments)],
                stdin=subprocess.DEVNULL if passes else subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=inherited if passes else (),
                env=os.environ | _ENVIRONMENT | variables,
                **group,
            )
            on_error.callback(self._process.kill)
            platforms.share_connection(theirs, self._process)
            on_error.pop_all()
        theirs.close()

    def wait_until_ready(self) -> None:
        """Wait for a new process to import the decoders.

        Raises:
            OSError: It ended, or did not start in time.
        """
        if not self.is_usable:
            try:
                self._until = time.monotonic() + START_SECONDS
                self._receive()
            except (EOFError, ConnectionError) as error:
                raise OSError(errno.ESRCH, "it ended at once") from error
            self.is_usable = True

    def is_idle(self) -> bool:
        """Return True if the process waits for a request; False in a fork of the process that started it."""
        if self._owner != os.getpid() or self._received:
            return False
        if not self.is_usable:
            return self._process.poll() is None
        self._connection.settimeout(0)
        try:
            self._connection.recv(1, socket.MSG_PEEK)
        except OSError as error:  # an idle worker sends nothing, an ended one has closed its end
            return isinstance(error, BlockingIOError)
        return False

    def decode(self, stream: BinaryIO, *, channels: int, volume: bool = False) -> Image:
        """Decode an open file; see `fmapviz.images.decode.decode`.

        Raises:
            InputError: The file cannot be decoded. The worker may no longer be usable.
            Exception: The pixels cannot be copied.
        """
        check = partial(_check_answer, channels=channels, volume=volume)
        return self._load(*self._request(stream, [channels, volume], check))

    def ask(self, stream: BinaryIO, question: str, number: int = 0, *, channels: int = 3) -> list[Any]:
        """Return the answer to a question about an open film; see `fmapviz.images.decode_worker.Films`.

        Raises:
            InputError: As `decode`.
        """
        asked = [channels, False, question, number]
        if question == "read":
            return [*self._load(*self._request(stream, asked, partial(_check_answer, channels=channels)))]
        return self._request(stream, asked, partial(_check_film_answer, question=question))

    # Any: what JSON can hold.
    def _request(self, stream: BinaryIO, asked: list[object], check: Callable[[Any], T]) -> T:
        """Send a request about an open file, and return its checked answer.

        Args:
            stream: The file.
            asked: Number of channels that the model takes, and whether it takes volumes; for a film the question and the
                number of a frame, too.
            check: Takes the answer; raises `ValueError` if that is impossible.

        Raises:
            InputError: The worker reports an error, or has ended.
        """
        self.is_usable = False
        size = os.fstat(stream.fileno()).st_size
        seconds = TIMEOUT_SECONDS + size / 1e6
        begun = time.monotonic()
        self._until = begun + seconds
        with self._reporting(begun):
            self._send(stream, size, [seconds, *asked])
            while isinstance(answer := self._receive(), int):  # the number of pixels; of a film a sign of life, 0
                limit = seconds + min(answer, MAX_PIXELS) / 1e6
                self._until = min((time.monotonic() if len(asked) > 2 else begun) + limit, begun + FILM_SECONDS)
            checked = check(answer)
        self.is_usable = True
        return checked

    def _send(self, stream: BinaryIO, size: int, asked: list[object]) -> None:
        """Send a request about an open file, with its path or content where the file itself cannot be sent."""
        path = os.path.abspath(stream.name) if isinstance(stream, io.BufferedReader) else None  # noqa: PTH100
        sent = 0 if platforms.PASSES_FILES or path or stream is self._last else size
        self._connection.settimeout(self._until - time.monotonic())
        request = json.dumps([path, sent, *asked]).encode() + b"\n"
        platforms.send_file(self._connection, stream.fileno(), request)
        self._last = stream
        if sent:
            stream.seek(0)
            with self._connection.makefile("wb") as content:
                shutil.copyfileobj(stream, content)

    @contextmanager
    def _reporting(self, begun: float) -> Iterator[None]:
        """Turn a failure of the worker since `begun` into an `InputError`, and end the worker."""
        try:
            yield
        except InputError:
            self.is_usable = True
            raise
        except (OSError, EOFError, ValueError, RecursionError) as error:
            self.is_usable = False
            ended = self.kill()
            if isinstance(error, TimeoutError):
                ended = f"did not finish within {self._until - begun:.3g} s"
            elif isinstance(error, ValueError | RecursionError):
                ended = "returned an invalid answer"
            raise InputError("E_DECODE", f"the decoder {ended}") from error

    def release_memory(self, most: int = 0) -> None:
        """Return the shared memory to the system if an image took more than so many bytes."""
        if self._memory and len(self._memory) > most:
            platforms.release_pages(self._memory)
            self._memory = None

    def kill(self) -> str:
        """Kill the process unless it has ended, and return how it ended."""
        if self._owner == os.getpid():
            self._process.kill()  # one that is ending keeps its exit code
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILL_SECONDS)
        code = self._process.returncode
        if code is None:
            return "cannot be killed"
        if code >= 0:
            return f"exited with code {code}"
        names = {number.value: number.name for number in signal.Signals}
        return f"crashed ({names.get(-code, f'signal {-code}')})"

    def end(self) -> None:
        """Kill the process and release its memory."""
        self._connection.close()
        self._memory = self._last = None
        if self._shared:
            self._shared.close()
        self.kill()

    # Any: what JSON can hold.
    def _receive(self) -> Any:
        """Return the next answer.

        Raises:
            EOFError: The process has ended.
            TimeoutError: It has not answered in time.
            ValueError: The answer is not JSON.
        """
        while b"\n" not in self._received:
            self._received += self._wait_for_piece()
            if len(self._received) > _LONGEST_ANSWER:
                raise ValueError
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)

    def _wait_for_piece(self) -> bytes:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError(errno.ETIMEDOUT, "no answer in time")
        self._connection.settimeout(left)
        piece = self._connection.recv(1 << 16)
        if not piece:
            raise EOFError
        return piece

    def _load(self, described: list[Any], notices: tuple[str, ...], orientation: int) -> Image:
        """Copy pixels out of the shared memory, or receive them."""
        pixels: PillowImage.Image | Samples
        if len(described) == 3:
            mode, width, height = described
            used = width * height * (1 if mode == "L" else 4)  # as Pillow keeps them
            stored_mode = "RGBX" if mode == "RGB" else mode
            view = PillowImage.frombuffer(stored_mode, (width, height), self._map(used), "raw", stored_mode, 0, 1)
            pixels = PillowImage.new(mode, (width, height), None)
            pixels.im.paste(view.im, (0, 0, width, height))
        else:
            dtype, shape, black, white, facts = described
            used = prod(shape) * dtype.itemsize
            values = np.frombuffer(self._map(used), dtype, prod(shape)).reshape(shape).copy()
            pixels = Samples(values, black, white, **facts)
        self.release_memory(max(_KEPT_BYTES, 4 * used))
        return Image(pixels, notices, orientation)

    def _map(self, used: int) -> Any:  # Any: an mmap, as in `fmapviz.images.decode_worker`
        if self._shared is None:
            begun, pixels = time.monotonic(), bytearray(self._received)
            with self._reporting(begun):
                while len(pixels) < used:
                    pixels += self._wait_for_piece()
            self._received = b""
            return pixels
        if self._memory is None or len(self._memory) < used:
            self._memory = mmap.mmap(self._shared.fileno(), used)
        return self._memory


def pop_idle(workers: list[DecodeProcess]) -> DecodeProcess | None:
    """Remove and return a worker that waits for a request."""
    with suppress(IndexError):  # several pools may share the list
        while True:
            worker = workers.pop()
            if worker.is_idle():
                return worker
            worker.end()
    return None


def start_worker() -> DecodeProcess:
    """Start a worker, in a thread that lives as long as this process."""
    return _starter(os.getpid()).submit(DecodeProcess).result()


@cache
def _starter(_process: int) -> ThreadPoolExecutor:
    """Return the thread that starts workers: Linux ends a worker together with the thread that started it."""
    return ThreadPoolExecutor(1, "decode-workers")


# Any: the worker may have sent anything.
def _raise_reported(answer: Any) -> None:
    """Raise InputError if a worker reports one."""
    match answer:
        case [str(code), str(message), None | str() as hint] if re.fullmatch("E_[A-Z_]+", code):
            raise InputError(code, printable(message), hint=printable(hint) if hint else None)


# Any: the worker may have sent anything.
def _check_film_answer(answer: Any, question: str) -> list[Any]:
    """Return the answer to a question about a film.

    Raises:
        InputError: It reports that the film cannot be decoded.
        ValueError: The answer is impossible.
    """
    _raise_reported(answer)
    match answer:
        case [bool(is_so)] if question in {"has", "animated"}:
            return [is_so]
        case [None | int() as announced, int(above), int(below)] if question == "facts" and above > 0 and below > 0:
            return [announced, above, below]
        case [list(times)] if question == "times" and all(isinstance(time, float) for time in times):
            return [times]
    raise ValueError


# Any: the worker may have sent anything.
def _check_answer(answer: Any, *, channels: int, volume: bool = False) -> _Stored:
    """Return the description of the pixels that a worker reports, the notices and the orientation.

    Raises:
        InputError: It reports that the file cannot be decoded.
        ValueError: The answer is impossible.
    """
    _raise_reported(answer)
    match answer:
        case [str(mode), int(width), int(height), 1, list(notices), int(orientation)] if min(width, height) > 0:
            if mode == {1: "L", 3: "RGB"}.get(channels) and width * height <= MAX_PIXELS and orientation in range(1, 9):
                return [mode, width, height], tuple(printable(str(notice)) for notice in notices), orientation
        case [str(dtype), [*shape], black, white, nodata, bool(is_picture), list(notices), int(orientation)] if re.fullmatch(
            r"[<>|=][buif][1248]", dtype
        ):
            is_shape = len(shape) in ({3, 4} if volume else {3}) and all(
                isinstance(side, int) and side > 0 for side in shape
            )
            is_fitting = is_shape and (shape[0] == channels or (shape[0] == 1 and channels == 3))
            is_known = all(isinstance(number, int | float) for number in (black, white, nodata or 0))
            if is_fitting and is_known and prod(shape) <= MAX_VALUES and orientation in range(1, 9):
                facts = {"nodata": nodata, "channels": channels, "is_picture": is_picture}
                return (
                    [np.dtype(dtype), shape, black, white, facts],
                    tuple(printable(str(notice)) for notice in notices),
                    orientation,
                )
    raise ValueError


def open_file(path: str) -> BinaryIO:
    """Open a local file, or download a remote one."""
    try:
        if "://" in path and is_url(path):
            stream = download(path)
        else:  # without NO_WAIT, opening a pipe would wait for its writer
            stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | platforms.NO_WAIT))  # noqa: SIM115
        status = os.fstat(stream.fileno())
    except Exception as error:
        raise explain(error, path) from error
    if stat.S_ISREG(status.st_mode) and status.st_size:
        return stream
    stream.close()
    if stat.S_ISREG(status.st_mode):
        raise InputError("E_EMPTY", f"file is empty: {quote(path)}")
    raise InputError("E_TYPE", f"not a regular file: {quote(path)}")
