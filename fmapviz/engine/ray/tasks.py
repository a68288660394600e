"""Divide the work of a run into tasks, do one, and account for how it ended.

A task is a shard, or a few images that have directories of their own. Only paths and events travel, never pixels. A task may
be done twice: the rename of a unit decides which of the two counts.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fmapviz.core.errors import FmapvizError, OutputError, quote
from fmapviz.core.events import Notice, Outcome, Staged
from fmapviz.core.types import Failure, ImageFile
from fmapviz.engine.pipeline.work import Progress, work
from fmapviz.runs.run import remedy_of
from fmapviz.runs.shard_grouping import Finished, GivenUp, GroupEnd
from fmapviz.runs.unit import Member

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fmapviz.engine.session import Session
    from fmapviz.runs.shard_grouping import Item

IMAGES = 16  # in a task, if each has its own directory
ATTEMPTS = 3  # at an image over which workers die
MOST_UNEXPLAINED = 6  # deaths in one task over no known image


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """The work of one call of a worker.

    Attributes:
        number: Unlike that of any other task.
        items: Images, each of its own or all of one shard.
        lost: Images that are not tried again, by path.
        careful: Whether to draw one image after the other, and to report each before it is begun.
        accepted: Whether something was drawn of some image already, so that the request as such is valid.
    """

    number: int
    items: tuple[Member | ImageFile, ...]
    lost: Mapping[str, Failure] = field(default_factory=dict)
    careful: bool = False
    accepted: bool = False

    @property
    def counted(self) -> int:
        """Number of images whose end it reports."""
        return sum(not (isinstance(item, Member) and item.position in item.group.reported) for item in self.items)

    @property
    def paths(self) -> list[str]:
        """The images that are still to be tried."""
        paths = (item.file.path if isinstance(item, Member) else item.path for item in self.items)
        return [path for path in paths if path not in self.lost]


@dataclass(frozen=True, slots=True)
class Begun:
    """A careful task is about to read an image."""

    path: str


@dataclass(frozen=True, slots=True, eq=False)
class Receipt:
    """How a task ended.

    Attributes:
        events: What it reported.
        progress: What it found out.
        error: The error that ends the whole run.
    """

    events: tuple[Outcome | Notice | Staged, ...] = ()
    progress: Progress = field(default_factory=Progress)
    error: FmapvizError | None = None


def do(session: Session, task: Task) -> Iterator[Begun | Staged | Receipt]:
    """Do a task; yield what it reports meanwhile, and its receipt at the end.

    A careful task goes on with an image only after the `Begun` of it was taken.
    """
    progress = Progress(accepted=task.accepted)
    if task.careful:
        session = replace(session, workers=1, batch_size=1)
    reports: queue.Queue[tuple[Begun, threading.Event] | Outcome | Notice | Staged | Receipt] = queue.Queue(64)

    def begin(file: ImageFile) -> None:
        taken = threading.Event()
        reports.put((Begun(file.path), taken))
        taken.wait()

    def run() -> None:
        try:
            on_begun = begin if task.careful else None
            with closing(work(session, _items(task), progress=progress, on_begun=on_begun)) as events:
                for event in events:
                    reports.put(event)
            reports.put(Receipt())
        except FmapvizError as error:
            if isinstance(error, OutputError):
                error.hint = error.hint or remedy_of(error)  # its cause does not travel
            reports.put(Receipt(error=error))
        except BaseException as error:  # noqa: BLE001  a bug, raised in the caller's thread
            failures.append(error)
            reports.put(Receipt())

    failures: list[BaseException] = []
    reported: list[Outcome | Notice | Staged] = []
    threading.Thread(target=run, daemon=True).start()
    while True:
        report = reports.get()
        if isinstance(report, tuple):
            yield report[0]
            report[1].set()
        elif isinstance(report, Receipt):
            if failures:
                raise failures[0]
            yield replace(report, events=tuple(reported), progress=progress)
            return
        else:
            reported.append(report)
            if isinstance(report, Staged):
                yield report


def divide(items: Iterable[Item]) -> Iterator[Task | Outcome]:
    """Make tasks of inputs; those that are finished or cannot be read end at once."""
    number = 0
    images: list[ImageFile] = []
    for item in items:
        task: tuple[Member | ImageFile, ...] = ()
        if isinstance(item, Failure):
            yield Outcome(item.path, "failed", failure=item)
        elif isinstance(item, Finished):
            yield Outcome(item.file.path, "skipped", unit=item.unit)
        elif isinstance(item, GroupEnd):
            item.group.complete = True
            task = tuple(Member(item.group, position) for position in range(len(item.group.members)))
        elif isinstance(item, Member):
            group = item.group
            if group.complete and item.position == len(group.members) - 1:
                task = tuple(Member(group, position) for position in range(len(group.members)))
        elif isinstance(item, ImageFile):
            images.append(item)
            if len(images) == IMAGES:
                task, images = tuple(images), []
        if task:
            yield Task(number, task)
            number += 1
    if images:
        yield Task(number, tuple(images))


class Deaths:
    """Counts the deaths of workers by image, and decides how to go on.

    At the first death any image of a task may be to blame: from then on they are drawn one by one, each reported before
    it is begun. An image over which workers died twice more is not tried again.
    """

    def __init__(self) -> None:
        self._over: Counter[tuple[int, str]] = Counter()
        self._unexplained: Counter[int] = Counter()

    def note(self, task: Task, under_way: str | None) -> Task:
        """Count a death, and return the task as it is tried next.

        Args:
            task: The task that its worker did.
            under_way: The image that it had begun last, if that is known.
        """
        lost = dict(task.lost)
        if under_way is None:
            self._unexplained[task.number] += 1
            if self._unexplained[task.number] >= MOST_UNEXPLAINED:
                lost |= {path: _blame(path) for path in task.paths}
        else:
            self._over[task.number, under_way] += 1
            if self._over[task.number, under_way] >= ATTEMPTS - 1:
                lost[under_way] = _blame(under_way)
        return replace(task, lost=lost, careful=True)


def account(progress: Progress, receipt: Receipt) -> Iterator[Outcome | Notice | Staged]:
    """Add what a task found out to a run's progress, and yield its events, each notice once.

    Raises:
        FmapvizError: The error that ended the task.
    """
    progress.layers = receipt.progress.layers or progress.layers
    progress.accepted |= receipt.progress.accepted
    progress.not_executed |= receipt.progress.not_executed
    progress.undrawn |= receipt.progress.undrawn
    for event in receipt.events:
        if isinstance(event, Notice):
            if event.message in progress.reported:
                continue
            progress.reported.add(event.message)
        yield event
    if receipt.error:
        raise receipt.error


def _items(task: Task) -> Iterator[Item]:
    for item in task.items:
        path = item.file.path if isinstance(item, Member) else item.path
        yield GivenUp(item, task.lost[path]) if path in task.lost else item


def _blame(path: str) -> Failure:
    return Failure(
        path,
        "E_WORKER",
        f"its worker died {ATTEMPTS} times: {quote(path)}",
        hint="it may have run out of memory, or crashed in the network's own code; see the workers' logs",
    )
