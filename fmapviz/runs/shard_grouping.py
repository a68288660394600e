"""Put images into shards in listing order: images of an existing shard stay there, the others make new shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmapviz.core.checksummed_json import load
from fmapviz.core.errors import quote
from fmapviz.core.layout import UNIT_FILE
from fmapviz.core.types import Failure, ImageFile
from fmapviz.images.find import look_again
from fmapviz.runs.shards import KnownImages, members_of
from fmapviz.runs.unit import Group, Member, check_only_own_files, own_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from fmapviz.core.config import Part


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """An image whose shard is up to date.

    Attributes:
        file: The image.
        unit: The shard's directory.
    """

    file: ImageFile
    unit: Path


@dataclass(frozen=True, slots=True, eq=False)
class GroupEnd:
    """Marks that a group has no further members."""

    group: Group


@dataclass(frozen=True, slots=True, eq=False)
class GivenUp:
    """An image that is not tried again.

    Attributes:
        item: The image.
        failure: The reason.
    """

    item: Member | ImageFile
    failure: Failure


Item = ImageFile | Failure | Member | Finished | GroupEnd | GivenUp


class Grouping:
    """Assigns each image to a shard and decides whether it is drawn.

    Args:
        run: The run directory.
        fingerprint: Of the run.
        size: Images in a shard.
        part: The shards to draw; None: all of them.
        force: Whether to redraw finished shards.
        is_intact: With `--repair`, returns False for a shard that needs repair; else None.
    """

    def __init__(
        self,
        run: Path,
        fingerprint: str,
        size: int,
        *,
        part: Part | None = None,
        force: bool = False,
        is_intact: Callable[[Path], bool] | None = None,
    ) -> None:
        self._known = KnownImages(run, fingerprint, accept_damaged=not is_intact)
        self._size = size
        self._part = part
        self._force = force
        self._is_intact = is_intact
        self._taken = set(self._known.numbers)
        self._next = 0
        self._failures = 0
        self._open: Group | None = None
        self._intact: dict[int, bool] = {}
        self._redrawn: dict[int, ImageFile | None] = {}  # by shard: a missing image that prevents it, or None
        self._retried: set[str] = set()  # images that failed before, in shards that are redrawn

    def items(self, found: Iterable[ImageFile | Failure]) -> Iterator[Item]:
        """Decide for each input what is done with it, in listing order; inputs of other parts are left out.

        Raises:
            RefusedError: A shard that would be replaced holds files that fmapviz did not make.
        """
        failed_before = []
        for file in found:
            if isinstance(file, Failure):
                self._failures += 1
                if self._is_mine(self._failures - 1):
                    yield file
                continue
            entry = self._known.find(file)
            if entry is None:
                yield from self._add(file)
            elif entry.shard < 0:
                failed_before.append(file)
            elif self._is_mine(self._known.numbers[entry.shard]) and self._redrawn.get(entry.shard, file) is not None:
                if entry.same and not self._force and self._needs_no_repair(entry.shard):
                    self._known.report(entry)
                    yield Finished(file, self._known.directories[entry.shard])
                else:
                    yield from self._redraw(entry.shard, file)
        yield from self._end()
        # Images that failed before come last, so that the shards of other images do not depend on their success.
        for file in failed_before:
            if file.path not in self._retried:
                yield from self._add(file)
        yield from self._end()

    def _is_mine(self, index: int) -> bool:
        return self._part is None or self._part.has(index)

    def _add(self, file: ImageFile) -> Iterator[Item]:
        """Add an image to the shard that is being filled."""
        if self._open is None:
            while self._next in self._taken:
                self._next += 1
            self._taken.add(self._next)
            self._open = Group(self._next, self._size, redraw=self._force or self._is_intact is not None)
        group = self._open
        group.members.append(file)
        if len(group.members) == self._size:
            group.complete, self._open = True, None
        if group.number is not None and self._is_mine(group.number):
            yield Member(group, len(group.members) - 1)

    def _end(self) -> Iterator[Item]:
        group, self._open = self._open, None
        if group and group.number is not None and self._is_mine(group.number):
            yield GroupEnd(group)

    def _needs_no_repair(self, shard: int) -> bool:
        if not self._is_intact:
            return True
        if shard not in self._intact:
            self._intact[shard] = self._is_intact(self._known.directories[shard])
        return self._intact[shard]

    def _redraw(self, shard: int, file: ImageFile) -> Iterator[Item]:
        """Redraw all images of a shard because one has changed, unless another one is missing: it would be lost."""
        if shard not in self._redrawn:
            group, missing, failed = self._read(shard)
            if group is None or (missing and not self._force):
                self._redrawn[shard] = missing or file
            else:
                self._redrawn[shard] = None
                self._retried |= failed
                for position in range(len(group.members)):
                    yield Member(group, position)
        missing = self._redrawn[shard]
        if missing is not None:
            yield Failure(
                file.path,
                "E_SHARD",
                f"not redrawn, because another image of its shard is missing, {quote(missing.path)}: {quote(file.path)}",
                hint="--force redraws the shard without that image",
            )

    def _read(self, shard: int) -> tuple[Group | None, ImageFile | None, set[str]]:
        """Return an existing shard with its images in their present state, a missing image, and paths that failed before."""
        record = load(self._known.directories[shard] / UNIT_FILE)
        if record is None:  # it was there a moment ago
            return None, None, set()
        check_only_own_files(self._known.directories[shard], own_files(record))  # before its images are drawn in vain
        source = record["source"]
        group = Group(
            self._known.numbers[shard],
            self._size,
            identity=ImageFile(source["path"], record["unit"], source["size"], source["mtime_ns"]),
            redraw=True,
            complete=True,
        )
        keep: set[int] = set()
        failed: set[str] = set()
        missing: ImageFile | None = None
        for image, member in zip(record["images"], members_of(record), strict=True):
            now = look_again(member)
            if now is None:
                missing = missing if "failed" in image else member
                continue
            if "failed" in image:
                failed.add(now.path)
            elif not self._force:  # better the old pictures of an image than none
                keep.add(len(group.members))
            group.members.append(now)
        group.keep = frozenset(keep)
        group.reported = frozenset(
            position for position, member in enumerate(group.members) if self._known.was_reported(member)
        )
        return group, missing, failed
