"""Divide the work of a run into tasks, do one, and account for how it ended.

A task is a shard, or a few images that have directories of their own. Only paths and events travel, never pixels. A task may
be done twice: the rename of a unit decides which of the two counts.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fmapviz.data import Failure, ImageFile
from fmapviz.errors import FmapvizError, OutputError, quote
from fmapviz.events import Advanced, Notice, Outcome, Staged
from fmapviz.run.pipeline.progress import Progress
from fmapviz.run.pipeline.work import work
from fmapviz.store.run import remedy_of
from fmapviz.store.shards.grouping import Failed
from fmapviz.store.unit import Group, Member

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fmapviz.run.pipeline.scheduler import Tell
    from fmapviz.run.session import Session
    from fmapviz.store.shards.grouping import Item

IMAGES = 16  # in a task, if each has its own directory
ATTEMPTS = 3  # at an image over which workers die
MOST_UNEXPLAINED = 6  # deaths in one task over no known image


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """The work of one call of a worker.

    Attributes:
        items: Images, each of its own or all of one shard.
        deaths: Number of workers that died, by the image that they had begun last; None: unknown.
        lost: Images that are not tried again, by path.
        accepted: Whether something was drawn of any image, so that the request as such is valid.
    """

    items: tuple[Member | ImageFile, ...]
    deaths: Mapping[str | None, int] = field(default_factory=dict)
    lost: Mapping[str, Failure] = field(default_factory=dict)
    accepted: bool = False

    @property
    def careful(self) -> bool:
        """True if images are drawn one by one, each reported before it begins."""
        return bool(self.deaths)

    @property
    def paths(self) -> list[str]:
        """The images that are still to be tried."""
        paths = (item.file.path if isinstance(item, Member) else item.path for item in self.items)
        return [path for path in paths if path not in self.lost]


@dataclass(frozen=True, slots=True)
class Begun(Notice):
    """A careful task is about to read the image of this path; a notice for the driver only."""


@dataclass(frozen=True, slots=True, eq=False)
class Receipt:
    """The result of a task.

    Attributes:
        events: The events that were not yielded; units are relative to the run's directory.
        progress: Its progress.
        error: The error that ends the whole run.
    """

    events: tuple[Outcome | Notice, ...] = ()
    progress: Progress = field(default_factory=Progress)
    error: FmapvizError | None = None


def do(session: Session, task: Task) -> Iterator[Begun | Staged | Receipt]:
    """Do a task; yield its reports, and its receipt at the end.

    A careful task continues with an image only after the image's `Begun` was consumed.
    """
    progress = Progress(accepted=task.accepted)
    reported: list[Outcome | Notice] = []
    error: FmapvizError | None = None
    taken = threading.Semaphore(0)

    def begin(file: ImageFile, tell: Tell) -> None:
        tell(Begun(file.path))
        taken.acquire()

    if task.careful:
        session = replace(session, workers=1, batch_size=1)
    try:
        on_begun = begin if task.careful else None
        with closing(work(session, _items(task), progress=progress, on_begun=on_begun)) as events:
            for event in events:
                if isinstance(event, Staged):
                    yield event
                elif isinstance(event, Begun):
                    yield event
                    taken.release()
                elif isinstance(event, Outcome) and event.unit:
                    reported.append(replace(event, unit=event.unit.relative_to(session.directory)))
                elif not isinstance(event, Advanced):
                    reported.append(event)
    except FmapvizError as failure:
        error = failure
        if isinstance(error, OutputError):
            error.advise(error.hint or remedy_of(error))  # its cause does not travel
    yield Receipt(tuple(reported), progress, error)


def divide(items: Iterable[Item]) -> Iterator[Task | Outcome]:
    """Make tasks of inputs; those that are finished or cannot be read end at once."""
    images: list[ImageFile] = []
    for item in items:
        if isinstance(item, Failure):
            yield Outcome(item.path, "failed", failure=item)
        elif isinstance(item, Outcome):
            yield item
        elif isinstance(item, ImageFile):
            images.append(item)
            if len(images) == IMAGES:
                yield Task(tuple(images))
                images = []
        elif isinstance(item, Member) and item.group.complete and item.position == len(item.group.members) - 1:
            yield Task(tuple(Member(item.group, position) for position in range(len(item.group.members))))
    if images:
        yield Task(tuple(images))


def after_death(task: Task, under_way: str | None) -> Task:
    """Return a task as it is retried after its worker died.

    At the first death any image of a task may be to blame: from then on they are drawn one by one, each reported before
    it is begun. An image over which workers died twice more is not tried again.

    Args:
        task: The task that the worker did.
        under_way: The image that it had begun last, if that is known.
    """
    deaths = Counter(task.deaths)
    deaths[under_way] += 1
    lost = dict(task.lost)
    if under_way is None and deaths[None] >= MOST_UNEXPLAINED:
        lost |= {path: _blame(path) for path in task.paths}
    elif under_way is not None and deaths[under_way] >= ATTEMPTS - 1:
        lost[under_way] = _blame(under_way)
    return replace(task, deaths=deaths, lost=lost)


def _items(task: Task) -> Iterator[Item]:
    for item in task.items:
        member = item if isinstance(item, Member) else Member(Group.of_one(item), 0)
        failure = task.lost.get(member.file.path)
        yield Failed(member, failure) if failure else item


def _blame(path: str) -> Failure:
    return Failure(
        path,
        "E_WORKER",
        f"its worker died {ATTEMPTS} times: {quote(path)}",
        hint="it may have run out of memory, or crashed in the network's own code; see the workers' logs",
    )
