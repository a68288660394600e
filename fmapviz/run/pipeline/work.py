"""Take each image of a run through reading, drawing and writing, several at a time."""

from __future__ import annotations

import gc
from contextlib import closing, contextmanager
from itertools import takewhile
from threading import Lock
from typing import TYPE_CHECKING

import torch

from fmapviz.images.decode_pool import DecodePool
from fmapviz.observe.hooks import undisturbed
from fmapviz.run.pipeline.batch_runner import BatchRunner
from fmapviz.run.pipeline.reader import ImageReader, Naming, counted
from fmapviz.run.pipeline.scheduler import Schedule, Stop
from fmapviz.run.pipeline.unit_writer import UnitWriter
from fmapviz.store.shards.grouping import Failed, Grouping
from fmapviz.store.unit import Member

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from fmapviz.data import Failure, ImageFile
    from fmapviz.events import Advanced, Notice, Outcome, Staged
    from fmapviz.run.pipeline.progress import Progress
    from fmapviz.run.pipeline.scheduler import Result, Tell
    from fmapviz.run.session import Session
    from fmapviz.store.shards.grouping import Item


def work(
    session: Session,
    items: Iterable[Item],
    *,
    progress: Progress,
    on_begun: Callable[[ImageFile, Tell], None] | None = None,
    on_drawn: Callable[[Result], None] | None = None,
) -> Generator[Outcome | Notice | Staged | Advanced, None, None]:
    """Read, draw and write all inputs; yield events, in no certain order.

    Args:
        session: The session.
        items: The inputs, from `group`.
        progress: Counts them.
        on_begun: Called with each image, and with what reports events, before it is read.
        on_drawn: Called with the results of each image, or its failure, in any thread; they are then not written.

    Raises:
        OutputError: The output could not be written.
    """
    cores = torch.get_num_threads()
    stop, names = Stop(), Naming(session.directory)
    listed = counted(items, progress)
    try:
        with (
            undisturbed(),
            _frozen_objects(),
            closing(BatchRunner(session, progress, check=stop.check)) as runner,
            DecodePool() as decode_pool,
            closing(_Callback(on_drawn) if on_drawn else UnitWriter(session, names.release, check=stop.check)) as writer,
        ):
            reader = ImageReader(session, decode_pool, release=None if on_drawn else names.release, on_begun=on_begun)
            schedule = Schedule(reader, runner, writer, stop=stop)
            with closing(schedule.run(listed if on_drawn else map(names.claim, listed))) as events:
                yield from events
    finally:
        torch.set_num_threads(cores)  # the setting of a thread holds for new threads as well


def group(session: Session, found: Iterable[ImageFile | Failure]) -> Iterable[Item]:
    """Assign the inputs of a run to units; leave out those of other parts."""
    if not session.config.shard:
        part = session.config.part
        return (item for index, item in enumerate(found) if part.has(index)) if part else found
    grouping = Grouping(
        session.directory,
        session.info.fingerprint,
        session.config.shard,
        part=session.config.part,
        force=session.config.force,
        is_intact=session.output.is_intact if session.config.repair else None,
    )
    return grouping.items(found)


@contextmanager
def _frozen_objects() -> Iterator[None]:
    """Exclude the objects that exist now from garbage collection.

    To look at those of PyTorch takes 100 ms, in which no thread does anything else, once in a hundred images.
    """
    is_first = FREEZING.begin()
    try:
        yield
    finally:
        if is_first:
            FREEZING.end()


class Freezing:
    """Objects that are excluded from garbage collection: by a run, or by the user's code.

    Python counts them one by one, which takes up to 100 ms too: they are counted until the user's code has frozen some. If
    it unfreezes them later, runs are slower.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_run = False
        self._by_others = False

    def begin(self) -> bool:
        """Freeze all objects; return False if some are frozen already, by the user or by a run in another thread."""
        with self._lock:
            if self._by_run or self.is_by_others():
                return False
            gc.freeze()
            self._by_run = True
            return True

    def is_by_others(self) -> bool:
        """Return True if objects are frozen while no run has frozen any."""
        self._by_others = self._by_others or gc.get_freeze_count() > 0
        return self._by_others

    def end(self) -> None:
        """Undo `begin`."""
        with self._lock:
            gc.unfreeze()
            self._by_run = False


FREEZING = Freezing()


class UntilFailure:
    """Ends a run at its first failure, after all inputs listed before the failure are accounted for.

    Inputs are listed in another thread than the one that counts outcomes.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._open: dict[str, int] = {}  # positions of the inputs that are not accounted for
        self._failed: int | None = None  # position of the first failure

    def group(self, session: Session, found: Iterable[ImageFile | Failure]) -> Iterator[Item]:
        """Assign inputs to units as `group` does; a failure ends the list, and completes the shard that is being filled."""
        listed = takewhile(lambda _: self._failed is None, found)
        for position, item in enumerate(group(session, listed)):
            path = (
                item.member.file.path
                if isinstance(item, Failed)
                else item.file.path
                if isinstance(item, Member)
                else item.path
            )
            with self._lock:
                self._open[path] = position
            yield item

    def is_over(self, outcome: Outcome) -> bool:
        """Account for an input; return True if the run ends."""
        with self._lock:
            position = self._open.pop(outcome.path, 0)
            if outcome.status == "failed":
                self._failed = position if self._failed is None else min(self._failed, position)
            return self._failed is not None and all(each > self._failed for each in self._open.values())


class _Callback:
    """Passes results on instead of writing them."""

    held = 0

    def __init__(self, on_drawn: Callable[[Result], None]) -> None:
        self._on_drawn = on_drawn

    def write(self, result: Result, _tell: object) -> None:
        self._on_drawn(result)

    def close(self) -> None:
        pass
