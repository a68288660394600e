"""List and read the frames of films; each open film is decoded by a worker process of its own.

A film is decoded once, in the order of its frames: listing a frame decodes it, and the worker keeps it until it is read.
Frames that are read in another order, or by another process, are decoded again.
"""

from __future__ import annotations

import atexit
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from fmapviz.core.file_names import folded
from fmapviz.core.words import counted
from fmapviz.data import Failure, ImageFile
from fmapviz.errors import InputError, RequestError, quote
from fmapviz.events import Notice
from fmapviz.images.decode import Image
from fmapviz.images.decode_pool import DecodeProcess, open_file, pop_idle, start_worker
from fmapviz.images.decode_worker import Films
from fmapviz.images.errors import explain
from fmapviz.images.film_decoder import HINT
from fmapviz.images.find import path_hash
from fmapviz.images.frames import file_of, frame_of, frames_of, is_film, may_be_film

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, BinaryIO

    from fmapviz.images.frames import Frames

_MOST_OPEN = 4  # films; each has a process
_open: OrderedDict[str, _OpenFilm] = OrderedDict()  # those used last come last
_idle: list[DecodeProcess] = []  # workers of films that were closed
_lock = Lock()


@dataclass(frozen=True, slots=True)
class FrameChoice:
    """Which frames of each film are images of a run.

    Attributes:
        start: Number of the first frame.
        stop: Number of the frame before which to end; None: the end of the film.
        every: Distance of two frames.
        clip: Number of frames that the network takes at once.
    """

    start: int = 0
    stop: int | None = None
    every: int = 1
    clip: int = 1

    def numbers(self, length: int | None) -> Iterator[tuple[int, int]]:
        """Yield the numbers of the first and the last frame of each image, the same of a single frame.

        Args:
            length: Number of frames of the film; None: there is no end.

        Example:
            >>> list(FrameChoice(stop=5, every=2).numbers(100)), list(FrameChoice(clip=4).numbers(11))
            ([(0, 0), (2, 2), (4, 4)], [(0, 3), (4, 7)])
        """
        ends = [end for end in (self.stop, length) if end is not None]
        span = self.every * (self.clip - 1)
        for first in count(self.start, self.every * self.clip):
            if ends and first + span >= min(ends):
                return
            yield first, first + span


def check_readable(inputs: Iterable[object]) -> None:
    """Check that named films can be read; an iterator is not checked, as it can be read only once.

    Raises:
        RequestError: PyAV is missing.
    """
    named = [str(path) for path in inputs if isinstance(path, str | Path)] if isinstance(inputs, Sequence) else []
    film = next((path for path in named if is_film(file_of(path))), None)
    if film is not None and not _has_pyav():
        raise RequestError(f"films need the package av: {quote(film)}", hint=HINT)


def without_unreadable(
    found: Iterable[ImageFile | Failure], notify: Callable[[Notice], None]
) -> Iterator[ImageFile | Failure]:
    """Leave out films, and report it once, if PyAV is missing."""
    noticed = False
    for file in found:
        if isinstance(file, Failure) or _has_pyav() or not is_film(file_of(file.path)):
            yield file
        elif not noticed:
            noticed = True
            notify(Notice(f"films are left out, {quote(file.path)} for example: {HINT} reads them"))


def list_frames(
    found: Iterable[ImageFile | Failure],
    choice: FrameChoice,
    notify: Callable[[Notice], None] | None = None,
    *,
    decode: bool = True,
) -> Iterator[ImageFile | Failure]:
    """Replace each film by its chosen frames, which are decoded while they are listed.

    A film that is damaged yields the frames before the damage, and one failure. What is no film stays.

    Args:
        found: All inputs.
        choice: Which frames.
        notify: Called with a `Notice` if frames are chosen, but there is no film.
        decode: False: list as many frames as the headers of films announce, without decoding any.
    """
    films: dict[str, str] = {}  # their paths by the names of their units
    for file in found:
        listed = 0
        try:
            if isinstance(file, Failure) or not _holds_frames(file.path):
                yield file
                continue
            if films.setdefault(folded(file.unit), file.path) != file.path:  # another film of this name
                file = replace(file, unit=f"{file.unit}~{path_hash(file.path)}")  # noqa: PLW2901  one of its own
            for first, last in choice.numbers(None if decode else ask(file.path, "facts")[0] or 0):
                if decode and not all(ask(file.path, "has", n)[0] for n in range(first, last + 1, choice.every)):
                    break
                listed += 1
                yield frame_of(file, first, last)
        except InputError as error:
            yield Failure(file.path, error.code, str(error), error.hint)
            continue
        if decode and not listed:
            yield _nothing_chosen(file, choice)
    if notify and not films and choice != FrameChoice(clip=choice.clip):
        notify(Notice("every= and frames= have no effect: no film is among the inputs"))


def rate_of(path: str) -> Fraction | None:
    """Return the frames per second of a film; None if it cannot be read."""
    try:
        _, above, below = ask(path, "facts")
    except InputError:
        return None
    return Fraction(above, below)


def times_of(path: str) -> list[float]:
    """Return when each frame of a film begins and the last one ends, in seconds.

    None are returned if the rate is constant, or if it is not known, because the film cannot be read, for example.
    """
    times: list[float] = []
    with suppress(InputError):
        while part := ask(path, "times", len(times))[0]:
            times += part
    return times


def ask(path: str, question: str, number: int = 0, *, channels: int = 3) -> list[Any]:
    """Return the answer to a question about a film; see `fmapviz.images.decode_worker.Films`.

    A film is opened if it is not; those that were not used for longest are closed.

    Raises:
        InputError: It cannot be read; the message names it.
    """
    while True:
        with _lock:
            film = _open.pop(path) if path in _open else _OpenFilm(path)
            _open[path] = film
            spare = [_open.popitem(last=False)[1]] if len(_open) > _MOST_OPEN else []
        for old in spare:
            old.close()
        with film.lock:
            if film.closed:  # by another thread
                continue
            try:
                return film.ask(question, number, channels)
            except InputError as error:
                raise error if quote(path) in str(error) else explain(error, path) from error
            except Exception as error:
                raise explain(error, path) from error


def read_frames(frames: Frames, *, channels: int, count: int) -> Iterator[Image]:
    """Read the frames of an image one after the other: one, or those of a clip.

    Args:
        frames: The frames in the path of the image.
        channels: Number of channels that the network takes.
        count: Number of frames that it takes at once.

    Raises:
        InputError: As `fmapviz.images.decode_pool.read_image`. `E_NOTHING`: the network takes no such clip.
    """
    for number in frames.numbers(count):
        yield Image(*ask(frames.film, "read", number, channels=channels))


@atexit.register
def close_films() -> None:
    """End the workers of all films."""
    with _lock:
        films = [*_open.values()]
        _open.clear()
    for film in films:
        film.close()
    while _idle:
        _idle.pop().end()


class _OpenFilm:
    """A film and what decodes it; one thread at a time may use it.

    Attributes:
        lock: Held while it is used.
        closed: Whether another thread has closed it.
    """

    def __init__(self, path: str) -> None:
        self.lock = Lock()
        self.closed = False
        self._path = path
        self._stream: BinaryIO | None = None
        self._decoder: DecodeProcess | Films | None = None

    def ask(self, question: str, number: int, channels: int) -> list[Any]:
        self._stream = self._stream or open_file(self._path)
        if isinstance(self._decoder, DecodeProcess) and not (self._decoder.is_usable and self._decoder.is_idle()):
            self._decoder.end()  # it crashed
            self._decoder = None
        self._decoder = self._decoder or _start_decoder()
        return self._decoder.ask(self._stream, question, number, channels=channels)

    def close(self) -> None:
        with self.lock:
            self.closed = True
            if isinstance(self._decoder, DecodeProcess) and self._decoder.is_usable:
                _idle.append(self._decoder)
            elif isinstance(self._decoder, DecodeProcess):
                self._decoder.end()
            self._decoder = None
            if self._stream:
                self._stream.close()


def _start_decoder() -> DecodeProcess | Films:
    """Return a worker; if none can be started, films are decoded in this process."""
    with suppress(OSError, ValueError, RuntimeError), ExitStack() as on_error:
        worker = pop_idle(_idle) or start_worker()
        on_error.callback(worker.end)
        worker.wait_until_ready()
        on_error.pop_all()
        return worker
    return Films()


def _holds_frames(path: str) -> bool:
    """Return True for the path of a film, not of a frame, and for a picture file that holds several pictures.

    Raises:
        InputError: It cannot be read.
    """
    if not may_be_film(path) or frames_of(path):
        return False
    return is_film(path) or bool(ask(path, "animated")[0])


def _nothing_chosen(file: ImageFile, choice: FrameChoice) -> Failure:
    length = 0
    with suppress(InputError):
        while ask(file.path, "has", length)[0]:
            length += 1
    if choice.clip > 1 and (choice.every, choice.start, choice.stop) == (1, 0, None):
        message = f"the film has {counted(length, 'frame')}, a clip needs {choice.clip}: {quote(file.path)}"
        return Failure(file.path, "E_NOTHING", message, hint="a single frame, FILM/000000, is repeated for a whole clip")
    what = f"clips of {choice.clip} frames" if choice.clip > 1 else "frames"
    chosen = f"every={choice.every}, frames={choice.start}:{'' if choice.stop is None else choice.stop}"
    message = f"no {what} of the film are chosen by {chosen}; it has {counted(length, 'frame')}: {quote(file.path)}"
    return Failure(file.path, "E_NOTHING", message, hint="other every= or frames=")


@cache
def _has_pyav() -> bool:
    return find_spec("av") is not None
