"""Hand out the steps of many images to a few threads, and bound what waits between the steps.

Each thread does whatever comes next: write what is drawn, draw what is read, read what is listed, in this order, so that an
image is finished before another is begun. What waits is bounded in bytes: no image is read while `READ_BYTES` wait to be
drawn, and no batch is drawn while `DRAWN_BYTES` wait to be written. A slow disk, or a slow reader of what is told, slows a
run down and never fills memory.
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
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

READ_BYTES = 64 * 2**20
DRAWN_BYTES = 64 * 2**20
PATIENCE_SECONDS = 0.1  # how long an incomplete batch waits for another image
PARTING_SECONDS = 1.5  # how long a run that is ended waits for the steps under way
_ALERT_SECONDS = 0.25  # how late a signal may be heeded that came just before the wait for an event, and did not end it


class StoppedError(Exception):
    """The run has ended; what is in flight is dropped."""


@dataclass(slots=True)
class Limits:
    """How much may be done at once; the steps may change it on the way.

    Attributes:
        threads: Steps at the same time.
        drawing: Batches drawn at the same time.
        batch_size: Images in a batch.
        drawn_ahead: Images that may wait to be written when a thread draws another batch instead of writing them.
    """

    threads: int
    drawing: int
    batch_size: int
    drawn_ahead: int = 0


class Read(Protocol):
    """What waits to be drawn."""

    @property
    def bytes(self) -> int:
        """How much memory it takes."""

    @property
    def shape(self) -> object:
        """Only what has the same shape goes into one batch."""


class Drawn(Protocol):
    """What waits to be written."""

    @property
    def bytes(self) -> int:
        """How much memory it takes."""


Item = TypeVar("Item")
R = TypeVar("R", bound=Read)
D = TypeVar("D", bound=Drawn)
Event = TypeVar("Event")
Told_co = TypeVar("Told_co", covariant=True)


class Steps(Protocol[Item, R, D, Told_co]):
    """What is done with each image. All but `listed` are called in many threads."""

    limits: Limits

    @property
    def held(self) -> int:
        """How many bytes are drawn, but cannot be written before something that was listed earlier is."""

    def listed(self, item: Item) -> Item:
        """Take note of an input, in order."""

    def read(self, item: Item, tell: Callable[[Told_co], None]) -> R | None:
        """Read an input; None if that is all there is to do with it."""

    def draw(self, batch: list[R], tell: Callable[[Told_co], None]) -> tuple[list[D], list[R]]:
        """Draw a batch; what could not be drawn now is given back, to be drawn again."""

    def write(self, drawn: D, tell: Callable[[Told_co], None]) -> None:
        """Write what was drawn of one image."""


class Schedule(Generic[Item, R, D, Event]):
    """What waits between the steps, and what comes next. Everything in it changes under one lock."""

    def __init__(self, steps: Steps[Item, R, D, Event]) -> None:
        self.stopped = False
        self._steps = steps
        self._limits = steps.limits
        self._events: Queue[Event | _Ended] = Queue(2 * steps.limits.threads)
        self._changed = Condition()
        self._listed: deque[tuple[int, Item]] = deque()
        self._read: list[tuple[int, R]] = []  # in the order in which they were listed
        self._drawn: deque[D] = deque()
        self._listing = True
        self._reading = self._drawing = self._writing = 0
        self._last_read = 0.0
        self._tried = False  # the first batch is drawn alone: it may show that there cannot be several at once

    def run(self, found: Iterable[Item]) -> Generator[Event, None, None]:
        """Do everything with every input, and give what the steps tell.

        The inputs are listed in a thread of their own, since a list on standard input may be slow to arrive. When it is
        closed nothing goes on behind it, but for a step that does not come to an end: nobody waits long for it.

        Raises:
            BaseException: Whatever a step or the listing raised.
        """
        threads = [Thread(target=self._work, daemon=True) for _ in range(self._limits.threads)]
        listing = Thread(target=self._list, args=(found,), daemon=True)
        try:
            for thread in (listing, *threads):
                thread.start()
            while not isinstance(event := self._event(), _Ended):
                yield event
            if event.error is not None:
                raise event.error
        finally:
            self._stop()
            until = time.monotonic() + PARTING_SECONDS
            for thread in threads:
                if thread.ident is not None:
                    thread.join(max(0.0, until - time.monotonic()))

    def _event(self) -> Event | _Ended:
        while True:
            with suppress(Empty):
                return self._events.get(timeout=_ALERT_SECONDS)

    def _list(self, found: Iterable[Item]) -> None:
        try:
            for number, item in enumerate(found):
                noted = self._steps.listed(item)
                with self._changed:
                    self._listed.append((number, noted))
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self.stopped or len(self._listed) < 2 * self._limits.threads)
                if self.stopped:
                    return
        except BaseException as error:  # noqa: BLE001  it is raised again in the caller's thread
            self._fail(error)
        with self._changed:
            self._listing = False
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            while step := self._next():
                step()
                del step  # and what it was about, before waiting for another
        except StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001  it is raised again in the caller's thread
            self._fail(error)

    def _stop(self) -> None:
        with self._changed:
            self.stopped = True
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with suppress(StoppedError):
            self._tell(_Ended(error))
        self._stop()

    def _tell(self, event: Event | _Ended) -> None:
        while not self.stopped:
            with suppress(Full):
                self._events.put(event, timeout=PATIENCE_SECONDS)
                return
        raise StoppedError

    def _next(self) -> Callable[[], None] | None:
        """Wait for something to do; None when everything is done."""
        with self._changed:
            while not self.stopped:
                step = self._choose()
                if step is not None:
                    return step
                if not self._is_anything_left():
                    break
                self._changed.wait(PATIENCE_SECONDS)
            self._changed.notify_all()
        self._tell(_Ended(None))
        return None

    def _is_anything_left(self) -> bool:
        waiting = self._listing or self._listed or self._read or self._drawn
        return bool(waiting or self._reading or self._drawing or self._writing)

    def _choose(self) -> Callable[[], None] | None:
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
        """Tell whether another batch may be drawn now, and one is complete, or will not be for a while."""
        if not self._read or self._drawing >= (self._limits.drawing if self._tried else 1):
            return False
        held = self._steps.held
        if sum(each.bytes for each in self._drawn) + held >= DRAWN_BYTES and not (held and self._is_idle()):
            return False
        batch = len(self._next_batch())
        if batch == self._limits.batch_size or batch < len(self._read):
            return True
        more = self._reading or ((self._listing or self._listed) and self._may_read())
        return not more or time.monotonic() >= self._last_read + PATIENCE_SECONDS

    def _is_idle(self) -> bool:
        """Tell whether nothing is under way, so that what others wait for is the first that was read."""
        return not (self._reading or self._drawing or self._writing or self._drawn)

    def _next_batch(self) -> list[tuple[int, R]]:
        shape = self._read[0][1].shape
        return list(takewhile(lambda each: each[1].shape == shape, islice(self._read, self._limits.batch_size)))

    def _read_next(self) -> Callable[[], None]:
        number, item = self._listed.popleft()
        self._reading += 1
        self._changed.notify_all()  # there is room in the list

        def step() -> None:
            read = self._steps.read(item, self._tell)
            with self._changed:
                self._reading -= 1
                if read is not None:
                    insort(self._read, (number, read), key=itemgetter(0))
                    self._last_read = time.monotonic()
                self._changed.notify_all()

        return step

    def _draw_next(self) -> Callable[[], None]:
        batch = self._next_batch()
        del self._read[: len(batch)]
        self._drawing += 1

        def step() -> None:
            drawn, back = self._steps.draw([each for _, each in batch], self._tell)
            numbers = {id(each): number for number, each in batch}
            with self._changed:
                self._drawing -= 1
                self._tried = True
                self._drawn += drawn
                for each in back:
                    insort(self._read, (numbers[id(each)], each), key=itemgetter(0))
                self._changed.notify_all()

        return step

    def _write_next(self) -> Callable[[], None]:
        drawn = self._drawn.popleft()
        self._writing += 1

        def step() -> None:
            self._steps.write(drawn, self._tell)
            with self._changed:
                self._writing -= 1
                self._changed.notify_all()

        return step


@dataclass(frozen=True, slots=True)
class _Ended:
    """The last event of a run."""

    error: BaseException | None
