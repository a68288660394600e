"""Have the work of a run done elsewhere: divide it into tasks, and account for what comes back.

A task is a shard, or a few images that have directories of their own. It is done as it would be here, by `fmapviz.work`;
only what it is about and how it ended travels, never pixels. A task may be done twice: the name that a directory is given
decides which of the two counts.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from fmapviz.errors import FmapvizError, OutputError, quote
from fmapviz.grouping import Ending, Lost, There
from fmapviz.runs import remedy_of
from fmapviz.shards import Member
from fmapviz.values import Failure, ImageFile, Notice, Outcome, Staged
from fmapviz.work import work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from fmapviz.grouping import Item
    from fmapviz.work import Job

IMAGES = 16  # in a task, if each has its own directory
ATTEMPTS = 3  # at an image over which workers die
MOST_UNEXPLAINED = 6  # deaths in one task over no image that is known


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """What a worker is given at once.

    Attributes:
        number: Unlike that of any other.
        items: Images, each of its own or all of one shard.
        lost: Images that are not to be tried again, by path.
        careful: Whether to do one after the other, and to note each before it is begun.
        accepted: Whether something was drawn of some image already, so that no request can be wrong as such.
    """

    number: int
    items: tuple[Member | ImageFile, ...]
    lost: Mapping[str, Failure] = field(default_factory=dict)
    careful: bool = False
    accepted: bool = False

    @property
    def counted(self) -> int:
        """How many of them it is told how they end."""
        return sum(not (isinstance(item, Member) and item.position in item.shard.told) for item in self.items)

    @property
    def paths(self) -> list[str]:
        """The images that are still to be tried."""
        paths = (item.file.path if isinstance(item, Member) else item.path for item in self.items)
        return [path for path in paths if path not in self.lost]


@dataclass(frozen=True, slots=True, eq=False)
class Receipt:
    """How a task ended.

    Attributes:
        number: Of the task.
        events: What was told.
        layers: Feature maps drawn of the last image.
        accepted: Whether something was drawn of some image.
        not_executed: Chosen layers that did not run.
        undrawn: Layers that ran but gave no picture, with the reason.
        error: What ends the whole run.
    """

    number: int
    events: tuple[Outcome | Notice | Staged, ...]
    layers: int
    accepted: bool
    not_executed: frozenset[str]
    undrawn: Mapping[str, str]
    error: FmapvizError | None = None


class Note(Protocol):
    """Remembers, wherever the worker may end, which image it has begun."""

    def __call__(self, file: ImageFile, /) -> None:
        """Remember an image."""


def do(job: Job, task: Task, note: Note, tell: Callable[[Staged], None]) -> Receipt:
    """Do a task, in the process that is meant to, and tell meanwhile how far it is."""
    job = replace(job, accepted=job.accepted or task.accepted)
    if task.careful:
        job = replace(job, workers=1, batch_size=1, on_begun=note)
    told: list[Outcome | Notice | Staged] = []
    error = None
    try:
        with closing(work(job, _without_lost(task))) as events:
            for event in events:
                told.append(event)
                if isinstance(event, Staged):
                    tell(event)
    except FmapvizError as failure:
        error = failure
        if isinstance(error, OutputError):
            error.hint = error.hint or remedy_of(error)  # its cause does not travel
    return Receipt(
        number=task.number,
        events=tuple(told),
        layers=job.last_drawn,
        accepted=job.accepted,
        not_executed=frozenset(job.not_executed),
        undrawn=dict(job.undrawn),
        error=error,
    )


def divide(items: Iterable[Item]) -> Iterator[Task | Outcome]:
    """Make tasks of what is to be done; what is done already, or cannot be, is told at once."""
    number = 0
    images: list[ImageFile] = []
    for item in items:
        task: tuple[Member | ImageFile, ...] = ()
        if isinstance(item, Failure):
            yield Outcome(item.path, "failed", failure=item)
        elif isinstance(item, There):
            yield Outcome(item.file.path, "skipped", unit=item.place)
        elif isinstance(item, Ending):
            item.shard.whole = True
            task = tuple(Member(item.shard, position, file) for position, file in enumerate(item.shard.members))
        elif isinstance(item, Member):
            shard = item.shard
            if shard.whole and item.position == len(shard.members) - 1:
                task = tuple(Member(shard, position, file) for position, file in enumerate(shard.members))
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
    """Counts how often workers died, and over which images, and decides how to go on.

    The first time any image of a task may be to blame: from then on they are tried one by one, each noted before it is
    begun. An image over which workers have died twice more is not tried again.
    """

    def __init__(self) -> None:
        self._over: Counter[tuple[int, str]] = Counter()
        self._unexplained: Counter[int] = Counter()

    def note(self, task: Task, under_way: str | None) -> Task:
        """Take note that a worker has died, and say how to try its task again.

        Args:
            task: What it was at.
            under_way: Which image it had begun, if it noted that.
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


def _blame(path: str) -> Failure:
    return Failure(
        path,
        "E_WORKER",
        f"its worker died {ATTEMPTS} times: {quote(path)}",
        hint="memory that ran out, say, or a crash in code of the network's; the workers' logs may tell",
    )


def _without_lost(task: Task) -> Iterator[Item]:
    for item in task.items:
        path = item.file.path if isinstance(item, Member) else item.path
        yield Lost(item, task.lost[path]) if path in task.lost else item


def account(job: Job, receipt: Receipt) -> Iterator[Outcome | Notice | Staged]:
    """Put together what a task has found out with what is known, and pass on what it told.

    Raises:
        FmapvizError: What ended it.
    """
    job.last_drawn = receipt.layers or job.last_drawn
    job.accepted |= receipt.accepted
    job.not_executed |= receipt.not_executed
    job.undrawn |= receipt.undrawn
    for event in receipt.events:
        if isinstance(event, Notice):
            if event.message in job.told:
                continue
            job.told.add(event.message)
        yield event
    if receipt.error:
        raise receipt.error
