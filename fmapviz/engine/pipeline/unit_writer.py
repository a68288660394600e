"""Write units: collect the images of each in their order, encode their pictures, write, commit.

Several threads draw images of one unit. An image that comes before its turn is held, encoded but not written; the scheduler
draws no further images while too many bytes are held. With one image per unit nothing is ever held.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any

from fmapviz.core.errors import quote
from fmapviz.core.events import Outcome, Staged
from fmapviz.core.files import directory_size, writing_to
from fmapviz.core.types import Failure, UnitImage
from fmapviz.engine.pipeline.scheduler import StoppedError
from fmapviz.engine.pipeline.stages import Encoded, Ended, Failed, encoded
from fmapviz.images.preprocess import as_seen
from fmapviz.render.captions import empty_map_notices, heat_records, layer_records, overflow_notices
from fmapviz.render.picture import make_pictures
from fmapviz.runs.commit import commit, stage
from fmapviz.runs.shards import describe_members
from fmapviz.runs.unit import KIND, distinction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from fmapviz.core.config import RunInfo
    from fmapviz.core.types import ImageFile, Picture, Preparation, StoredAt
    from fmapviz.engine.pipeline.scheduler import Tell
    from fmapviz.engine.pipeline.stages import Processed, Result
    from fmapviz.engine.plan import Plan
    from fmapviz.runs.shard_index import Index
    from fmapviz.runs.unit import Group
    from fmapviz.writers.base import OpenWriter, Writer


@dataclass(frozen=True, slots=True, eq=False)
class UnitOutput:
    """Where and how units are written.

    Attributes:
        run: The run directory.
        info: The run's settings.
        writers: The formats.
        upload: Uploads a finished unit, and returns its directory; None: the run is local.
        release: Called with the image of each finished unit.
        sync: Whether to wait until a unit would survive a power failure.
    """

    run: Path
    info: RunInfo
    writers: Mapping[str, OpenWriter]
    upload: Callable[[Path], Path] | None
    release: Callable[[ImageFile], None]
    sync: bool


class UnitWriter:
    """Writes the units of a run; its methods may be called by several threads at once.

    Args:
        output: Where and how units are written.
        preparation: How images were preprocessed.
        plan: Whether pictures are made, and which views are sheets.
        check: Called between pictures; raises if the run has ended.
    """

    def __init__(self, output: UnitOutput, preparation: Preparation, *, plan: Plan, check: Callable[[], object]) -> None:
        self._output = output
        self._preparation = preparation
        self._plan = plan
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
        if isinstance(result, Ended):
            group = result.group
            group.complete = True
        else:
            member = result.member if isinstance(result, Failed) else result.image.member
            group = member.group
            if isinstance(result, Failed) and member.position not in group.reported:
                tell(Outcome(result.failure.path, "failed", failure=result.failure))
        page = None if isinstance(result, Ended) else result.failure if isinstance(result, Failed) else self._encode(result)
        with self._lock:
            unit = self._units.setdefault(id(group), _Unit(group, self._output, self._check))
        if page:
            unit.add(member.position, page)
        unit.advance(tell)
        if unit.ended:
            with self._lock:
                self._units.pop(id(group), None)

    def close(self) -> None:
        """Remove unfinished units."""
        with self._lock:
            units = list(self._units.values())
        for unit in units:
            unit.stop()

    def _encode(self, result: Processed) -> Encoded:
        member, drawn = result.image.member, result.drawn
        info = self._output.info
        seen = as_seen(result.image.values, self._preparation)
        file = member.file
        image = UnitImage(
            file=replace(file, unit=file.unit.removesuffix(distinction(file))),
            result=drawn,
            notices=(
                *result.image.notices,
                *drawn.notices,
                *empty_map_notices(drawn, sheets=self._plan.sheets),
                *overflow_notices(drawn),
            ),
            info=info,
            key=member.group.key(member.position),
        )
        pictures = make_pictures(drawn, seen, image.file, info, sheets=self._plan.sheets) if self._plan.drawn else ()
        made = list(_unless_stopped(pictures, self._check))
        record = _describe(image) if member.group.number is None else {}
        return encoded(image, made, record, begun=result.begun)


class _Unit:
    """A unit that is being written."""

    def __init__(self, group: Group, output: UnitOutput, check: Callable[[], object]) -> None:
        self.ended = False  # all images are accounted for
        self._group = group
        self._output = output
        self._check = check
        self._lock = Lock()
        self._pending: dict[int, Encoded | Failure] = {}
        self._next = 0
        self._busy = False
        self._staging: Path | None = None
        self._staged = ExitStack()
        self._open = ExitStack()
        self._index: Index | None = None
        self._writers: list[Writer] = []
        self._written: dict[int, Outcome] = {}
        self._failed: dict[int, Failure] = {}
        self._record: dict[str, Any] = {}  # of a single image
        self._begun = 0.0  # likewise
        self._not_executed: set[str] = set()
        self._undrawn: dict[str, str] = {}

    @property
    def held(self) -> int:
        """Bytes of encoded images that wait for their turn."""
        with self._lock:
            return sum(page.bytes for page in self._pending.values() if isinstance(page, Encoded))

    def add(self, position: int, page: Encoded | Failure) -> None:
        """Add an encoded image, or the reason why there is none."""
        with self._lock:
            self._pending[position] = page

    def advance(self, tell: Tell) -> None:
        """Write the images whose turn it is, unless another thread does, and finish the unit after the last one.

        Raises:
            OutputError: The output could not be written.
        """
        while True:
            with self._lock:
                page = self._pending.pop(self._next, None)
                is_last = page is None and self._group.complete and self._next == len(self._group.members)
                if self._busy or self.ended or not (page or is_last):
                    if page:
                        self._pending[self._next] = page
                    return
                self._busy, self.ended = True, is_last
            try:
                self._write(page, tell) if page else self._finish(tell)
            except BaseException:
                self._remove()
                raise
            with self._lock:
                self._busy = False
                self._next += 1

    def stop(self) -> None:
        """Remove what is staged, unless a thread is writing: that one removes it."""
        with self._lock:
            if self._busy:
                return
            self._busy = True
        self._remove()

    def _remove(self) -> None:
        with suppress(OSError):  # the disk may be full
            self._open.__exit__(StoppedError, StoppedError(), None)
        with suppress(OSError):
            self._staged.close()

    def _write(self, page: Encoded | Failure, tell: Tell) -> None:
        file, key = self._group.members[self._next], self._group.key(self._next)
        if isinstance(page, Failure):
            self._failed[self._next] = page
            if self._index:
                self._index.add_failure(key, file, page)
            return
        stored: Sequence[StoredAt] = ()
        size = 0
        with writing_to(self._output.run):
            for writer in self._writers or self._begin():
                positions = writer.add(page.image, _unless_stopped(page.pictures, self._check))
                stored = stored or positions
                size += page.bytes if positions else 0
            if self._index:
                self._index.add(page.image, page.pictures, stored)
        self._written[self._next] = page.outcome(file.path, size=size)
        self._record, self._begun = page.record, page.begun
        self._not_executed.update(page.image.result.not_executed)
        self._undrawn.update(page.image.result.undrawn)
        if self._group.number is not None:
            tell(Staged(file.path, size))

    def _begin(self) -> list[Writer]:
        """Open the files; only before the first image that is written, so that a unit without images leaves nothing."""
        self._staging = self._staged.enter_context(stage(self._output.run))
        many = self._group.number is not None
        self._writers = [
            self._open.enter_context(open_writer(self._staging, many=many)) for open_writer in self._output.writers.values()
        ]
        if many:
            from fmapviz.runs import shard_index  # noqa: PLC0415  needs pyarrow, which only shards do

            self._index = self._open.enter_context(shard_index.create(self._staging))
            for position, failure in self._failed.items():
                self._index.add_failure(self._group.key(position), self._group.members[position], failure)
        return self._writers

    def _finish(self, tell: Tell) -> None:
        """Commit the unit, and report its images."""
        lost = sorted(self._group.keep & self._failed.keys())
        if lost:
            self._remove()
            self._report_kept(self._group.members[lost[0]], tell)
            return
        if self._staging is None:
            return
        with writing_to(self._output.run):
            self._open.close()
            size = directory_size(self._staging)
            output, file = self._output, self._group.identify(sorted(self._written))
            record, members = self._make_record()
            unit = commit(
                self._staging, output.run, file, record, members=members, force=self._group.redraw, sync=output.sync
            )
            unit = output.upload(unit) if output.upload else unit
            self._staged.close()
        for position, outcome in self._written.items():
            self._output.release(self._group.members[position])
            if self._group.number is None:
                outcome = replace(outcome, seconds=time.monotonic() - self._begun, bytes=size)  # noqa: PLW2901
            if position not in self._group.reported:
                tell(replace(outcome, unit=unit))

    def _make_record(self) -> tuple[dict[str, Any], dict[str, int]]:
        """Return the fields of `unit.json`, and the numbers of records in files that are sequences of them."""
        group, info = self._group, self._output.info
        record: dict[str, Any] = {"run": info.fingerprint, "model": info.label, "weights": info.weights}
        members: dict[str, int] = {}
        if group.number is None:
            record |= self._record
        else:
            members = {name: count for writer in self._writers for name, count in writer.members.items()}
            record = {
                "kind": KIND,
                **record,
                "shard": group.number,
                "first_key": group.key(0),
                "not_executed": sorted(self._not_executed),
                "undrawn": dict(sorted(self._undrawn.items())),
                "images": describe_members(group, self._written, self._failed),
            }
        return record, members

    def _report_kept(self, failed: ImageFile, tell: Tell) -> None:
        for position in self._written:
            if position not in self._group.reported:
                path = self._group.members[position].path
                reason = f"its shard is kept as it was, because another image of it failed, {quote(failed.path)}"
                hint = "--force redraws the shard without that image"
                tell(Outcome(path, "failed", failure=Failure(path, "E_SHARD", f"{reason}: {quote(path)}", hint=hint)))


def _unless_stopped(pictures: Iterable[Picture], check: Callable[[], object]) -> Iterator[Picture]:
    for picture in pictures:
        check()
        yield picture


def _describe(image: UnitImage) -> dict[str, Any]:
    """Return what `unit.json` records of an image that has a unit of its own."""
    result = image.result
    return {
        "notices": list(image.notices),
        "layers": layer_records(result),
        **({"heat_maps": heat_maps} if (heat_maps := heat_records(result)) else {}),
        "not_executed": list(result.not_executed),
        "undrawn": dict(result.undrawn),
        **({"predictions": [each.record for each in result.predictions]} if image.info.config.top else {}),
    }
