"""Run the stages of many images in a few threads, and bound the memory between the stages.

Each thread takes the next step: write what is drawn, else draw what is read, else read what is listed. So an image is
finished before another one is begun. Memory is bounded in bytes: no image is read while `READ_BYTES` wait to be drawn, and
no batch is drawn while `DRAWN_BYTES` wait to be written. A slow disk or a slow reader of events slows a run down and never
fills memory.
"""

from __future__ import annotations

import time
from bisect import insort
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, takewhile
from operator import itemgetter
from queue import Empty, Full, Queue
from threading import Condition, Thread
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from fmapviz.core.events import Notice, Outcome, Staged
    from fmapviz.engine.pipeline.stages import Preprocessed, Result
    from fmapviz.runs.shard_grouping import Item

    Event = Outcome | Notice | Staged
    Tell = Callable[[Event], None]
    Step = Callable[[Tell], None]

READ_BYTES = 64 * 2**20
DRAWN_BYTES = 64 * 2**20
BATCH_SECONDS = 0.1  # how long an incomplete batch waits for another image
PARTING_SECONDS = 1.5  # how long a run that has ended waits for its threads
_SIGNAL_SECONDS = 0.25  # worst-case signal latency


class StoppedError(Exception):
    """The run has ended; images in work are dropped."""


class Stop:
    """Tells the stages that the run has ended.

    Attributes:
        stopped: Whether it has.
    """

    def __init__(self) -> None:
        self.stopped = False

    def check(self) -> None:
        """Return if the run goes on.

        Raises:
            StoppedError: The run has ended.
        """
        if self.stopped:
            raise StoppedError


@dataclass(slots=True)
class Limits:
    """Limits of what is done at once; the runner may change them.

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

    def read(self, item: Item, tell: Tell, /) -> tuple[Preprocessed | None, Result | None]:
        """Read an input; return an image to be drawn, or a result to be written, or neither."""


class Runner(Protocol):
    """Draws batches, in many threads."""

    @property
    def limits(self) -> Limits:
        """Limits of what is done at once."""

    def draw(self, batch: list[Preprocessed], tell: Tell, /) -> tuple[list[Result], list[Preprocessed]]:
        """Draw a batch; return the results, and images to be drawn again later."""


class Writer(Protocol):
    """Writes results, in many threads."""

    @property
    def held(self) -> int:
        """Bytes of results that cannot be written before an image that was listed earlier."""

    def write(self, result: Result, tell: Tell, /) -> None:
        """Write a result."""


class Queues:
    """The queues between the stages, and the choice of the next step. All of it changes under one lock.

    Each step is a function that takes a function `tell`, which passes an event on.
    """

    def __init__(self, reader: Reader, runner: Runner, writer: Writer, stop: Stop) -> None:
        self._reader = reader
        self._runner = runner
        self._writer = writer
        self._stop = stop
        self._limits = runner.limits
        self._changed = Condition()
        self._listed: deque[tuple[int, Item]] = deque()
        self._read: list[tuple[int, Preprocessed]] = []  # in listing order
        self._drawn: deque[Result] = deque()
        self._listing = True
        self._reading = self._drawing = self._writing = 0
        self._last_read = 0.0
        self._tried = False  # the first batch is drawn alone: it may show that there cannot be several at once

    def add(self, number: int, item: Item) -> None:
        """Add an input, and wait until there is room for another one."""
        with self._changed:
            self._listed.append((number, item))
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stop.stopped or len(self._listed) < 2 * self._limits.threads)

    def end_list(self) -> None:
        """Note that there are no further inputs."""
        with self._changed:
            self._listing = False
            self._changed.notify_all()

    def end(self) -> None:
        """End the run."""
        with self._changed:
            self._stop.stopped = True
            self._changed.notify_all()

    def next_step(self) -> Step | None:
        """Wait for the next step; None when everything is done, or the run has ended."""
        with self._changed:
            while not self._stop.stopped:
                if step := self._choose():
                    return step
                waiting = self._listing or self._listed or self._read or self._drawn
                if not (waiting or self._reading or self._drawing or self._writing):
                    break
                self._changed.wait(BATCH_SECONDS)
            self._changed.notify_all()
        return None

    def _choose(self) -> Step | None:
        if len(self._drawn) > self._limits.drawn_ahead:
            return self._write_next()
        if self._may_draw():
            return self._draw_next()
        if self._drawn:
            return self._write_next()
        if self._listed and self._may_read():
            return self._read_next()
        return None

    def _may_read(self) -> bool:
        ahead = len(self._read) + self._reading
        wanted = self._limits.batch_size * self._limits.drawing + self._limits.threads
        return ahead < wanted and sum(each.bytes for _, each in self._read) < READ_BYTES

    def _may_draw(self) -> bool:
        """Return True if a batch may be drawn now, and is complete or will not be completed soon."""
        if not self._read or self._drawing >= (self._limits.drawing if self._tried else 1):
            return False
        held = self._writer.held
        # If no step is running, the first image that was read is the one that the held ones wait for.
        idle = not (self._reading or self._drawing or self._writing or self._drawn)
        if sum(each.bytes for each in self._drawn) + held >= DRAWN_BYTES and not (held and idle):
            return False
        batch = len(self._next_batch())
        if batch == self._limits.batch_size or batch < len(self._read):
            return True
        more = self._reading or ((self._listing or self._listed) and self._may_read())
        return not more or time.monotonic() >= self._last_read + BATCH_SECONDS

    def _next_batch(self) -> list[tuple[int, Preprocessed]]:
        shape = self._read[0][1].shape
        return list(takewhile(lambda each: each[1].shape == shape, islice(self._read, self._limits.batch_size)))

    def _read_next(self) -> Step:
        number, item = self._listed.popleft()
        self._reading += 1
        self._changed.notify_all()  # there is room in the list

        def step(tell: Tell) -> None:
            read, result = self._reader.read(item, tell)
            with self._changed:
                self._reading -= 1
                if read is not None:
                    insort(self._read, (number, read), key=itemgetter(0))
                    self._last_read = time.monotonic()
                if result is not None:
                    self._drawn.append(result)
                self._changed.notify_all()

        return step

    def _draw_next(self) -> Step:
        batch = self._next_batch()
        del self._read[: len(batch)]
        self._drawing += 1

        def step(tell: Tell) -> None:
            drawn, back = self._runner.draw([each for _, each in batch], tell)
            numbers = {id(each): number for number, each in batch}
            with self._changed:
                self._drawing -= 1
                self._tried = True
                self._drawn += drawn
                for each in back:
                    insort(self._read, (numbers[id(each)], each), key=itemgetter(0))
                self._changed.notify_all()

        return step

    def _write_next(self) -> Step:
        drawn = self._drawn.popleft()
        self._writing += 1

        def step(tell: Tell) -> None:
            self._writer.write(drawn, tell)
            with self._changed:
                self._writing -= 1
                self._changed.notify_all()

        return step


class Schedule:
    """The threads of a run, and the events that they report."""

    def __init__(
        self,
        reader: Reader,
        runner: Runner,
        writer: Writer,
        *,
        stop: Stop | None = None,
    ) -> None:
        self._stop = stop or Stop()
        self._queues = Queues(reader, runner, writer, self._stop)
        self._threads = runner.limits.threads
        self._events: Queue[Event | _Ended] = Queue(2 * self._threads)

    def run(self, found: Iterable[Item]) -> Generator[Event, None, None]:
        """Take every input through all stages, and yield the events.

        The inputs are listed in a thread of their own, because a list on standard input may be slow to arrive. Closing the
        generator ends the threads, but waits `PARTING_SECONDS` at most for steps that do not end.

        Raises:
            BaseException: What a step or the listing raised.
        """
        threads = [Thread(target=self._work, daemon=True) for _ in range(self._threads)]
        listing = Thread(target=self._list, args=(found,), daemon=True)
        try:
            for thread in (listing, *threads):
                thread.start()
            while True:
                try:
                    event = self._events.get(timeout=_SIGNAL_SECONDS)
                except Empty:
                    continue
                if not isinstance(event, _Ended):
                    yield event
                    continue
                if event.error is not None:
                    raise event.error
                return
        finally:
            self._queues.end()
            until = time.monotonic() + PARTING_SECONDS
            for thread in threads:
                if thread.ident is not None:
                    thread.join(max(0.0, until - time.monotonic()))

    def _list(self, found: Iterable[Item]) -> None:
        try:
            for number, item in enumerate(found):
                self._queues.add(number, item)
                if self._stop.stopped:
                    return
        except BaseException as error:  # noqa: BLE001  it is raised again in the caller's thread
            self._fail(error)
        self._queues.end_list()

    def _work(self) -> None:
        try:
            while step := self._queues.next_step():
                step(self._tell)
                del step  # and its image, before waiting for another
            self._tell(_Ended(None))
        except StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001  it is raised again in the caller's thread
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with suppress(StoppedError):
            self._tell(_Ended(error))
        self._queues.end()

    def _tell(self, event: Event | _Ended) -> None:
        while not self._stop.stopped:
            with suppress(Full):
                self._events.put(event, timeout=BATCH_SECONDS)
                return
        raise StoppedError


@dataclass(frozen=True, slots=True)
class _Ended:
    """The last event of a run."""

    error: BaseException | None
