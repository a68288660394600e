"""Write units: collect the images of each unit in order, encode their pictures, write and commit.

Several threads draw images of one unit. An image that comes before its turn is held, encoded but not written; the scheduler
draws no further images while too many bytes are held. With one image per unit nothing is ever held.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from fmapviz.core.files import directory_size, staging_folder, writing_to
from fmapviz.data import Failure
from fmapviz.errors import UserCodeError, quote
from fmapviz.events import Outcome, Staged
from fmapviz.images.notices import is_reported_once
from fmapviz.run.pipeline.scheduler import StoppedError
from fmapviz.run.units import describe_image, describe_result, draw_pictures, finish_unit
from fmapviz.store.shards.grouping import Failed
from fmapviz.store.shards.shard import describe_members, shard_key
from fmapviz.store.unit_key import image_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from fmapviz.data import ImageFile, ImageResult, Picture, StoredAt, UnitImage
    from fmapviz.formats.base import Writer
    from fmapviz.run.pipeline.scheduler import Processed, Result, Tell
    from fmapviz.run.session import Session
    from fmapviz.store.shards.index import Index
    from fmapviz.store.unit import Group

_NO_PIXELS = np.zeros((0, 0), np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class _Page:
    """An image with its encoded pictures, ready to be written.

    Attributes:
        image: The image and its results, without pixels.
        pictures: Its pictures.
        begun: Time at which its batch was begun, see `time.monotonic`.
        outcome: The reported event: with the duration until it was encoded, and the size of the encoded pictures.
    """

    image: UnitImage
    pictures: Sequence[Picture]
    begun: float
    outcome: Outcome


class UnitWriter:
    """Writes the units of a run; its methods may be called by several threads at once.

    Args:
        session: The session, for directory and formats of units.
        release: Called with the image of each finished unit.
        check: Called between pictures; raises if the run has ended.
    """

    def __init__(self, session: Session, release: Callable[[ImageFile], None], *, check: Callable[[], object]) -> None:
        self._session = session
        self._release = release
        self._check = check
        self._lock = Lock()
        self._units: dict[int, _Unit] = {}  # by the identity of the group

    @property
    def held(self) -> int:
        """Bytes of encoded images that wait for their turn."""
        with self._lock:
            units = list(self._units.values())
        return sum(unit.held for unit in units)

    def write(self, result: Result, tell: Tell) -> None:
        """Encode an image, and write it as soon as it is its turn.

        Raises:
            OutputError: The output could not be written.
        """
        member = result.member if isinstance(result, Failed) else result.image.member
        group, position = member.group, member.position
        if isinstance(result, Failed):
            page: _Page | Failure = result.failure
            if position not in group.reported:
                tell(Outcome(result.failure.path, "failed", failure=result.failure))
        else:
            page = self._encode(result)
        with self._lock:
            unit = self._units.setdefault(id(group), _Unit(group, self._session, self._release, self._check))
        try:
            for turn in unit.turns(position, page):
                if isinstance(turn, _Page):
                    unit.write(turn, tell)
                elif turn:
                    unit.note_failure(turn)
                else:
                    unit.finish(tell)
        except UserCodeError as error:  # a format of the user's own
            unit.remove()
            if group.number is not None:
                raise
            unit.ended = True
            path = member.file.path
            failed = Failure(path, "E_CODE", f"{error}: {quote(path)}", hint=error.hint, report=error.report)
            tell(Outcome(path, "failed", failure=failed))
        except BaseException:
            unit.remove()
            raise
        if unit.ended:
            with self._lock:
                self._units.pop(id(group), None)

    def close(self) -> None:
        """Remove unfinished units."""
        with self._lock:
            units = list(self._units.values())
        for unit in units:
            unit.stop()

    def _encode(self, result: Processed) -> _Page:
        pictures = []
        for picture in draw_pictures(result, self._session):
            self._check()
            pictures.append(picture)
        image = describe_result(result, self._session)
        _drop_pixels(result.drawn)  # the image may have to wait for its turn
        outcome = Outcome(
            image.path,
            "done",
            notices=tuple(notice for notice in image.notices if not is_reported_once(notice)),
            pictures=len(pictures),
            seconds=time.monotonic() - result.begun,
            predictions=result.drawn.predictions,
            bytes=sum(len(picture.png) for picture in pictures),
        )
        return _Page(image, pictures, result.begun, outcome)


class _Unit:
    """A unit that is being written."""

    def __init__(
        self, group: Group, session: Session, release: Callable[[ImageFile], None], check: Callable[[], object]
    ) -> None:
        self.ended = False  # all images are accounted for
        self._group = group
        self._session = session
        self._release = release
        self._check = check
        self._lock = Lock()
        self._pending: dict[int, _Page | Failure] = {}
        self._next = 0
        self._busy = False
        self._staging: Path | None = None
        self._staged = ExitStack()
        self._open = ExitStack()  # in the other one: files are closed before the unit is committed or removed
        self._index: Index | None = None
        self._writers: list[Writer] = []
        self._written: dict[int, Outcome] = {}
        self._failed: dict[int, Failure] = {}
        self._page: _Page | None = None  # the last that was written
        self._not_executed: set[str] = set()
        self._undrawn: dict[str, str] = {}

    @property
    def held(self) -> int:
        """Bytes of encoded images that wait for their turn."""
        with self._lock:
            return sum(page.outcome.bytes for page in self._pending.values() if isinstance(page, _Page))

    def turns(self, position: int, page: _Page | Failure) -> Iterator[_Page | Failure | None]:
        """Add an image; yield images in their order unless another thread does, and None after the last.

        If what is yielded cannot be written, nothing more of the unit is.
        """
        with self._lock:
            self._pending[position] = page
        del page
        while True:
            with self._lock:
                turn = self._pending.get(self._next)
                is_last = turn is None and self._group.complete and self._next == len(self._group.members)
                if self._busy or self.ended or not (turn or is_last):
                    return
                self._busy, self.ended = True, is_last
                self._pending.pop(self._next, None)
            yield turn
            with self._lock:
                self._busy = False
                self._next += 1

    def stop(self) -> None:
        """Remove the staged files, unless a thread is writing, which then removes them."""
        with self._lock:
            if self._busy:
                return
            self._busy = True
        self.remove()

    def remove(self) -> None:
        """Remove the staged files."""
        with suppress(OSError):  # the disk may be full
            self._staged.__exit__(StoppedError, StoppedError(), None)

    def note_failure(self, failure: Failure) -> None:
        """Record why the unit lacks the next image."""
        self._failed[self._next] = failure
        if self._index:
            self._index.add_failure(self._group.key(self._next), self._group.members[self._next], failure)

    def write(self, page: _Page, tell: Tell) -> None:
        """Write the next image.

        Raises:
            OutputError: The output could not be written.
        """
        stored: Sequence[StoredAt] = ()
        size = 0
        with writing_to(self._session.directory):
            for writer in self._writers or self._begin():
                positions = writer.add(page.image, _unless_stopped(page.pictures, self._check))
                stored = stored or positions
                size += page.outcome.bytes if positions else 0
            if self._index:
                self._index.add(page.image, page.pictures, stored)
        self._page = page
        self._written[self._next] = replace(page.outcome, bytes=size)
        self._not_executed.update(page.image.result.not_executed)
        self._undrawn.update(page.image.result.undrawn)
        if self._group.number is not None:
            tell(Staged(page.outcome.path, size))

    def _begin(self) -> list[Writer]:
        """Open the files before the first image, so that a unit without images leaves nothing."""
        self._staging = self._staged.enter_context(staging_folder(self._session.directory))
        self._staged.push(self._open)
        many = self._group.number is not None
        self._writers = [
            self._open.enter_context(open_writer(self._staging, many=many)) for open_writer in self._session.writers.values()
        ]
        if many:
            from fmapviz.store.shards import index as shard_index  # noqa: PLC0415  needs pyarrow, which only shards do

            self._index = self._open.enter_context(shard_index.create(self._staging))
            for position, failure in self._failed.items():
                self._index.add_failure(self._group.key(position), self._group.members[position], failure)
        return self._writers

    def finish(self, tell: Tell) -> None:
        """Commit the unit, and report its images.

        Raises:
            OutputError: The output could not be written.
        """
        session, group = self._session, self._group
        if lost := sorted(group.keep & self._failed.keys()):
            self.remove()
            self._report_kept(group.members[lost[0]], tell)
            return
        if self._staging is None:
            return
        with writing_to(session.directory):
            self._open.close()
            size = directory_size(self._staging)
            counted = [] if group.number is None else self._writers
            unit = finish_unit(
                session,
                self._staging,
                image_key(group.members[0]) if group.number is None else shard_key(group, sorted(self._written)),
                self._make_record(),
                members={name: count for writer in counted for name, count in writer.members.items()},
                force=group.redraw,
            )
            self._staged.close()
        for position, outcome in self._written.items():
            self._release(group.members[position])
            if self._page and group.number is None:
                outcome = replace(outcome, seconds=time.monotonic() - self._page.begun, bytes=size)  # noqa: PLW2901
            if position not in group.reported:
                tell(replace(outcome, unit=unit))

    def _make_record(self) -> dict[str, Any]:
        """Return the fields of `unit.json` about the images."""
        group = self._group
        if self._page and group.number is None:
            return describe_image(self._page.image)
        return {
            "shard": group.number,
            "first_key": group.key(0),
            "not_executed": sorted(self._not_executed),
            "undrawn": dict(sorted(self._undrawn.items())),
            "images": describe_members(group, self._written, self._failed),
        }

    def _report_kept(self, failed: ImageFile, tell: Tell) -> None:
        for position in self._written:
            if position not in self._group.reported:
                path = self._group.members[position].path
                reason = f"its shard is kept as it was, because another image of it failed, {quote(failed.path)}"
                hint = "force=True redraws the shard without that image"
                tell(Outcome(path, "failed", failure=Failure(path, "E_SHARD", f"{reason}: {quote(path)}", hint=hint)))


def _unless_stopped(pictures: Iterable[Picture], check: Callable[[], object]) -> Iterator[Picture]:
    for picture in pictures:
        check()
        yield picture


def _drop_pixels(result: ImageResult) -> None:
    """Drop the pixels of an image's drawings, and keep their descriptions."""
    for drawing in (drawing for layer in result.layers for drawing in layer.drawings):
        content: Any = drawing.content  # Any: of the classes of content
        if hasattr(content, "pixels"):
            drawing.content = replace(content, pixels=() if isinstance(content.pixels, tuple) else _NO_PIXELS)
