"""Write the images of a shard one after the other, in whichever order they are drawn, and give it its name when it is whole.

Several threads draw images of one shard. What comes before its turn is held back, encoded but not written; how much that is
is told, so that no more is drawn meanwhile than memory has room for.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from fmapviz import index, registry
from fmapviz.errors import quote
from fmapviz.pages import Page
from fmapviz.registry import SHARD_WRITERS
from fmapviz.runs import writing_to
from fmapviz.schedule import StoppedError
from fmapviz.shards import KIND, image_record
from fmapviz.staging import stage
from fmapviz.units import commit
from fmapviz.values import Failure, Outcome, Staged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from fmapviz.index import Index, Stored
    from fmapviz.shards import Member, Shard
    from fmapviz.values import ImageFile, Notice, Picture, RunInfo, Unit

    Deliver = Callable[[Path], Path]
    Tell = Callable[[Outcome | Notice | Staged], None]


class ShardWriter(Protocol):
    """Puts images into a file of a shard, one after the other."""

    @property
    def members(self) -> Mapping[str, int]:
        """Of files that are made of many: how many, by the file's name."""

    def add(self, key: int, unit: Unit, pictures: Sequence[Picture], /) -> list[Stored]:
        """Add an image, and say where each of its pictures is; empty if the pictures are nowhere."""


class ShardWork:
    """A shard that is being written; its methods may be called in several threads at once.

    Args:
        shard: Which one.
        run: The run directory.
        info: The run's settings.
        force: Whether to replace what is there even if less would be in it than was.
        anew: Whether to replace what is there even if it is up to date.
        sync: Whether to wait until it would survive a power failure.
        deliver: Lets others have the finished directory.
    """

    def __init__(
        self, shard: Shard, run: Path, info: RunInfo, *, force: bool, anew: bool, sync: bool, deliver: Deliver
    ) -> None:
        self._shard = shard
        self._run = run
        self._info = info
        self._force = force
        self._anew = anew or shard.own is not None
        self._sync = sync
        self._deliver = deliver
        self._lock = Lock()
        self._pending: dict[int, Page | Failure] = {}
        self._next = 0
        self._busy = self._ended = False
        self._staging: Path | None = None
        self._staged = ExitStack()
        self._open = ExitStack()
        self._index: Index | None = None
        self._writers: list[ShardWriter] = []
        self._finished: dict[int, Outcome] = {}
        self._failed: dict[int, Failure] = {}
        self._not_executed: set[str] = set()
        self._undrawn: dict[str, str] = {}

    @property
    def held(self) -> int:
        """How many bytes wait for the turn of their image."""
        with self._lock:
            return sum(page.bytes for page in self._pending.values() if isinstance(page, Page))

    @property
    def ended(self) -> bool:
        """Whether all of its images are accounted for."""
        return self._ended

    def put(self, position: int, page: Page | Failure, tell: Tell) -> None:
        """Take an image that is drawn, or word that it could not be, and write whatever has its turn.

        Raises:
            OutputError: The disk is full, say.
        """
        with self._lock:
            self._pending[position] = page
        self.go_on(tell)

    def go_on(self, tell: Tell) -> None:
        """Write whatever has its turn, unless another thread is at it, and end when there is no more to come."""
        while True:
            with self._lock:
                if self._busy or self._ended:
                    return
                self._busy = True
            self._write_pending(tell)
            with self._lock:
                self._busy = False
                if self._shard.whole and self._next == len(self._shard.members):
                    self._ended = True
                elif self._next in self._pending:  # it came while this thread was leaving
                    continue
                else:
                    return
            with writing_to(self._run):
                self._finish(tell)
            return

    def close(self) -> None:
        """Remove what is staged of a shard that will not be finished."""
        with suppress(OSError):  # the disk may be full
            self._open.__exit__(StoppedError, StoppedError(), None)
        self._staged.close()

    def _write_pending(self, tell: Tell) -> None:
        """Write what has its turn, until nothing that is there has."""
        while True:
            with self._lock:
                page = self._pending.get(self._next)
            if page is None:
                return
            file = self._shard.members[self._next]
            key = self._shard.key(self._next)
            if isinstance(page, Failure):
                self._failed[self._next] = page
                if self._index:
                    self._index.add_failure(key, file, page)
            else:
                with writing_to(self._run):
                    self._write(key, page, file, tell)
            with self._lock:
                del self._pending[self._next]
                self._next += 1

    def _write(self, key: int, page: Page, file: ImageFile, tell: Tell) -> None:
        known = self._index or self._begin()
        stored: list[Stored] = []
        written = 0
        for writer in self._writers:
            places = writer.add(key, page.unit, page.pictures)
            stored = stored or places
            written += page.bytes if places else 0
        known.add(key, page.unit, page.pictures, stored)
        self._not_executed.update(page.unit.drawn.not_executed)
        self._undrawn.update(page.unit.drawn.undrawn)
        self._finished[self._next] = Outcome(
            file.path,
            "done",
            notices=page.unit.notices,
            pictures=len(page.pictures),
            seconds=page.seconds,
            predictions=page.unit.drawn.predictions,
            bytes=written,
        )
        tell(Staged(file.path, written))

    def _begin(self) -> Index:
        """Open the shard's files; before its first image, so that nothing is there of a shard without any."""
        self._staging = self._staged.enter_context(stage(self._run))
        for form in self._info.formats:
            opened: AbstractContextManager[ShardWriter] = registry.fetch(SHARD_WRITERS, form).open_shard(
                self._staging, self._info
            )
            self._writers.append(self._open.enter_context(opened))
        self._index = self._open.enter_context(index.create(self._staging))
        for position, failure in self._failed.items():
            self._index.add_failure(self._shard.key(position), self._shard.members[position], failure)
        return self._index

    def _finish(self, tell: Tell) -> None:
        """Give the shard its name, and tell of each image that it is done."""
        lost = sorted(self._shard.before & self._failed.keys())
        if lost and not self._force:  # better the old pictures of some images than none
            self.close()
            self._tell_kept(lost[0], tell)
            return
        place: Path | None = None
        if self._staging:
            self._open.close()
            positions = sorted(self._finished)
            members = {name: count for writer in self._writers for name, count in writer.members.items()}
            file = self._shard.identify(positions)
            place = commit(
                self._staging, self._run, file, self._record(), members=members, force=self._anew, sync=self._sync
            )
            place = self._deliver(place)
        self._staged.close()
        for position, outcome in self._finished.items():
            if position not in self._shard.told:
                tell(replace(outcome, unit=place))

    def _tell_kept(self, lost: int, tell: Tell) -> None:
        why = f"its shard is left as it was, because another image of it failed, {quote(self._shard.members[lost].path)}"
        for position, outcome in self._finished.items():
            if position not in self._shard.told:
                failure = Failure(
                    outcome.path,
                    "E_SHARD",
                    f"{why}: {quote(outcome.path)}",
                    hint="--force draws the shard without that",
                )
                tell(Outcome(outcome.path, "failed", failure=failure))

    def _record(self) -> dict[str, Any]:
        """Say what `unit.json` tells of the shard."""
        return {
            "kind": KIND,
            "run": self._info.fingerprint,
            "model": self._info.label,
            "weights": self._info.weights,
            "shard": self._shard.number,
            "first_key": self._shard.key(0),
            "not_executed": sorted(self._not_executed),
            "undrawn": dict(sorted(self._undrawn.items())),
            "images": [
                {**image_record(file), **self._image_record(position)} for position, file in enumerate(self._shard.members)
            ],
        }

    def _image_record(self, position: int) -> dict[str, Any]:
        if position in self._failed:
            return {"failed": self._failed[position].code}
        outcome = self._finished[position]
        return {"pictures": outcome.pictures, **({"notices": list(outcome.notices)} if outcome.notices else {})}


class ShardsAtWork:
    """The shards that are being written."""

    def __init__(self, run: Path, info: RunInfo, *, force: bool, repair: bool, sync: bool, deliver: Deliver) -> None:
        self._run = run
        self._info = info
        self._force = force
        self._repair = repair
        self._sync = sync
        self._deliver = deliver
        self._lock = Lock()
        self._works: dict[int, ShardWork] = {}

    @property
    def held(self) -> int:
        """How many bytes wait for the turn of their image, in all of them."""
        with self._lock:
            works = list(self._works.values())
        return sum(work.held for work in works)

    def put(self, member: Member, page: Page | Failure, tell: Tell) -> None:
        """Take an image of any of them; see `ShardWork.put`."""
        work = self._work(member.shard)
        work.put(member.position, page, tell)
        self._release(member.shard, work)

    def end(self, shard: Shard, tell: Tell) -> None:
        """Take note that a shard has no more members than are known."""
        shard.whole = True
        work = self._work(shard)
        work.go_on(tell)
        self._release(shard, work)

    def close(self) -> None:
        """Remove what will not be finished."""
        with self._lock:
            works = list(self._works.values())
        for work in works:
            work.close()

    def _work(self, shard: Shard) -> ShardWork:
        with self._lock:
            if shard.number not in self._works:
                self._works[shard.number] = ShardWork(
                    shard,
                    self._run,
                    self._info,
                    force=self._force,
                    anew=self._force or self._repair,
                    sync=self._sync,
                    deliver=self._deliver,
                )
            return self._works[shard.number]

    def _release(self, shard: Shard, work: ShardWork) -> None:
        if work.ended:
            with self._lock:
                self._works.pop(shard.number, None)
