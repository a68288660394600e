"""Run the phases of many images in a few threads, and bound the memory between the phases.

Each thread takes the next job: write what is drawn, else draw what is read, else read what is listed. So an image is
finished before another one is begun. Memory is bounded in bytes: no image is read while `READ_BYTES` wait to be drawn, and
no batch is drawn while `DRAWN_BYTES` wait to be written. A slow disk or a slow reader of events slows a run down and never
fills memory.
"""

from __future__ import annotations

import time
from bisect import insort
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, takewhile
from operator import attrgetter
from queue import Empty, Full, Queue
from threading import Condition, Thread
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fmapviz.core import platforms
from fmapviz.store.shards.grouping import Failed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

    import torch
    from torch import Tensor

    from fmapviz.data import ImageResult
    from fmapviz.events import Advanced, Notice, Outcome, Staged
    from fmapviz.run.kept_passes import Kept
    from fmapviz.store.shards.grouping import Item
    from fmapviz.store.unit import Member

    Event = Outcome | Notice | Staged | Advanced
    Tell = Callable[[Event], None]

READ_BYTES = 64 * 2**20
DRAWN_BYTES = 64 * 2**20
BATCH_SECONDS = 0.1  # how long an incomplete batch waits for another image
PARTING_SECONDS = 1.5  # how long a run that has ended waits for its threads
_SIGNAL_SECONDS = 0.25  # worst-case signal latency


@dataclass(frozen=True, slots=True, eq=False)
class Preprocessed:
    """An image as the network gets it.

    Attributes:
        number: Position in listing order.
        member: The image and its unit.
        notices: Remarks on its decoding, for the user.
        values: float32 `(C, H, W)`, on the CPU.
        size: Width and height of the upright picture, before it was prepared.
        orientation: EXIF orientation of the file, 1 to 8.
        as_given: Whether it was given as a prepared tensor, which the preprocessing has not changed.
        facts: Facts of its picture, in place of those of a preprocessed input.
        kept: Outputs of its layers, if it is drawn without a forward pass.
    """

    number: int
    member: Member
    notices: tuple[str, ...]
    values: Tensor
    size: tuple[int, int]
    orientation: int
    as_given: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)
    kept: Kept | None = None

    @property
    def bytes(self) -> int:
        """Bytes in memory."""
        return self.values.nbytes + (self.kept.nbytes if self.kept else 0)

    @property
    def shape(self) -> torch.Size:
        """Only images of one shape share a batch."""
        return self.values.shape


@dataclass(frozen=True, slots=True, eq=False)
class Processed:
    """An image and its results, before its pictures are encoded.

    Attributes:
        image: The image.
        drawn: The results.
        begun: Time at which its batch was begun, see `time.monotonic`.
    """

    image: Preprocessed
    drawn: ImageResult
    begun: float

    @property
    def bytes(self) -> int:
        """Bytes in memory."""
        return self.drawn.bytes


Result = Processed | Failed


class StoppedError(Exception):
    """The run has ended; images in work are dropped."""


class Stop:
    """A flag by which all phases learn that the run has ended.

    Attributes:
        stopped: Whether it has.
    """

    def __init__(self) -> None:
        self.stopped = False

    def check(self) -> None:
        """Raise if the run has ended.

        Raises:
            StoppedError: The run has ended.
        """
        if self.stopped:
            raise StoppedError


@dataclass(slots=True)
class Limits:
    """Limits on parallel work; the runner may change them.

    Attributes:
        threads: Number of threads.
        drawing: Largest number of batches drawn at once.
        batch_size: Images in a batch.
        drawn_ahead: Images that may wait to be written while a thread draws another batch instead of writing them.
    """

    threads: int
    drawing: int
    batch_size: int
    drawn_ahead: int = 0


class Reader(Protocol):
    """Reads inputs, in many threads."""

    def read(self, number: int, item: Item, tell: Tell, /) -> tuple[list[Preprocessed], list[Result]]:
        """Read an input; return an image to be drawn, or a result to be written, or neither."""


class Runner(Protocol):
    """Draws batches, in many threads."""

    @property
    def limits(self) -> Limits:
        """Limits on parallel work."""

    def draw(self, batch: list[Preprocessed], tell: Tell, /) -> tuple[list[Preprocessed], list[Result]]:
        """Draw a batch; return images to be drawn again later, and the results."""


class ResultWriter(Protocol):
    """Writes results, in many threads."""

    @property
    def held(self) -> int:
        """Bytes of results that cannot be written before an image that was listed earlier."""

    def write(self, result: Result, tell: Tell, /) -> None:
        """Write a result."""


class Schedule:
    """The threads of a run, the queues between its phases, and the events that they report.

    The queues and the counts change under one lock.
    """

    def __init__(self, reader: Reader, runner: Runner, writer: ResultWriter, *, stop: Stop | None = None) -> None:
        self._reader = reader
        self._runner = runner
        self._writer = writer
        self._stop = stop or Stop()
        self._limits = runner.limits
        self._events: Queue[Event | BaseException | None] = Queue(2 * self._limits.threads)  # None: everything is done
        self._changed = Condition()
        self._listed: deque[_Read] = deque()
        self._read: list[Preprocessed] = []  # in listing order
        self._drawn: deque[Result] = deque()
        self._listing = True
        self._running: Counter[type[_Job]] = Counter()
        self._last_read = 0.0
        self._tried = False  # the first batch is drawn alone: it may show that there cannot be several at once

    def run(self, found: Iterable[Item]) -> Generator[Event, None, None]:
        """Take every input through all phases, and yield the events.

        The inputs are listed in a thread of their own, because a list on standard input may be slow to arrive. Closing the
        generator ends the threads, but waits `PARTING_SECONDS` at most for jobs that do not end.

        Raises:
            BaseException: An exception of a job or of the listing.
        """
        if not self._limits.threads:
            yield from self._run_here(found)
            return
        threads = [Thread(target=self._work, daemon=True) for _ in range(self._limits.threads)]
        listing = Thread(target=self._list, args=(found,), daemon=True)
        try:
            for thread in (listing, *threads):
                thread.start()
            while True:
                try:
                    event = self._events.get(timeout=_SIGNAL_SECONDS)
                except Empty:
                    continue
                if event is None:
                    listing.join()
                    return
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            self._end()
            until = time.monotonic() + PARTING_SECONDS
            for thread in threads:
                if thread.ident is not None:
                    platforms.wait_for_end(thread, until)

    def _run_here(self, found: Iterable[Item]) -> Generator[Event, None, None]:
        """Take one input after the other through all phases, in the thread of the caller."""
        events: list[Event] = []
        for number, item in enumerate(found):
            images, results = self._reader.read(number, item, events.append)
            while images:
                images, drawn = self._runner.draw(images, events.append)
                results += drawn
            for result in results:
                self._writer.write(result, events.append)
            yield from events
            events.clear()

    def _list(self, found: Iterable[Item]) -> None:
        try:
            for numbered in enumerate(found):
                with self._changed:
                    self._listed.append(_Read(*numbered))
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._stop.stopped or len(self._listed) < 2 * self._limits.threads)
                if self._stop.stopped:
                    return
        except BaseException as error:  # noqa: BLE001  it is raised again in the caller's thread
            self._fail(error)
        with self._changed:
            self._listing = False
            self._changed.notify_all()

    def _work(self) -> None:
        """Do one job after another, until everything is done or the run has ended."""
        try:
            while job := self._next_job():
                images: list[Preprocessed] = []
                results: list[Result] = []
                if isinstance(job, _Write):
                    self._writer.write(job.result, self._tell)
                elif isinstance(job, _Draw):
                    images, results = self._runner.draw(job.batch, self._tell)
                else:
                    images, results = self._reader.read(job.number, job.item, self._tell)
                self._finish(job, images, results)
                del job, images, results  # before waiting for another
            self._tell(None)
        except StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001  it is raised again in the caller's thread
            self._fail(error)

    def _next_job(self) -> _Job | None:
        """Wait for the next job; None when everything is done, or the run has ended."""
        with self._changed:
            while not self._stop.stopped:
                if job := self._choose():
                    self._running[type(job)] += 1
                    return job
                if not (self._listing or self._listed or self._read or self._drawn or any(self._running.values())):
                    break
                self._changed.wait(BATCH_SECONDS)
            self._changed.notify_all()
        return None

    def _choose(self) -> _Job | None:
        if self._drawn and len(self._drawn) > self._limits.drawn_ahead:
            return _Write(self._drawn.popleft())
        if self._may_draw():
            batch = _first_batch(self._read, self._limits.batch_size)
            del self._read[: len(batch)]
            return _Draw(batch)
        if self._drawn:
            return _Write(self._drawn.popleft())
        if self._listed and self._may_read():
            self._changed.notify_all()  # there is room in the list
            return self._listed.popleft()
        return None

    def _may_read(self) -> bool:
        ahead = len(self._read) + self._running[_Read]
        wanted = self._limits.batch_size * self._limits.drawing + self._limits.threads
        return ahead < wanted and sum(each.bytes for each in self._read) < READ_BYTES

    def _may_draw(self) -> bool:
        """Return True if a batch may be drawn now: it is complete, or no further image is about to arrive."""
        if not self._read or self._running[_Draw] >= (self._limits.drawing if self._tried else 1):
            return False
        held = self._writer.held
        # If no job is running, the first image that was read is the one that the held ones wait for.
        idle = not (self._drawn or any(self._running.values()))
        if sum(each.bytes for each in self._drawn) + held >= DRAWN_BYTES and not (held and idle):
            return False
        batch = len(_first_batch(self._read, self._limits.batch_size))
        if batch == self._limits.batch_size or batch < len(self._read):
            return True
        more = self._running[_Read] or ((self._listing or self._listed) and self._may_read())
        return not more or time.monotonic() >= self._last_read + BATCH_SECONDS

    def _finish(self, job: _Job, images: list[Preprocessed], results: list[Result]) -> None:
        """Queue the images to draw and the results to write that a job has produced."""
        with self._changed:
            self._running[type(job)] -= 1
            for image in images:
                insort(self._read, image, key=attrgetter("number"))
            self._drawn += results
            if isinstance(job, _Draw):
                self._tried = True
            elif images:
                self._last_read = time.monotonic()
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with suppress(StoppedError):
            self._tell(error)
        self._end()

    def _end(self) -> None:
        with self._changed:
            self._stop.stopped = True
            self._changed.notify_all()

    def _tell(self, event: Event | BaseException | None) -> None:
        while not self._stop.stopped:
            with suppress(Full):
                self._events.put(event, timeout=BATCH_SECONDS)
                return
        raise StoppedError


def _first_batch(images: list[Preprocessed], size: int) -> list[Preprocessed]:
    return list(takewhile(lambda each: each.shape == images[0].shape, islice(images, size)))


class _Read(NamedTuple):
    """Takes an input from the list, with its position."""

    number: int
    item: Item


class _Draw(NamedTuple):
    """Takes images that were read."""

    batch: list[Preprocessed]


class _Write(NamedTuple):
    """Takes a result."""

    result: Result


_Job = _Read | _Draw | _Write
