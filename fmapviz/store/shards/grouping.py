"""Put images into shards in listing order: images of an existing shard stay there, the others make new shards."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from fmapviz.data import Failure, ImageFile
from fmapviz.errors import quote
from fmapviz.events import Outcome
from fmapviz.images.find import look_again
from fmapviz.store.shards.shard import KnownImages
from fmapviz.store.unit import Group, Member, check_only_own_files, has_intact_record, image_file, read_unit
from fmapviz.store.unit_key import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from fmapviz.config import Part


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """An image that could not be read or drawn, or is not tried again."""

    member: Member
    failure: Failure
    bytes: int = 0


Item = ImageFile | Failure | Member | Failed | Outcome


@dataclass(slots=True, eq=False)
class Grouping:
    """Assigns each image to a shard and decides whether it is drawn.

    Attributes:
        run: The run directory.
        fingerprint: Of the run.
        size: Images in a shard.
        part: The shards to draw; None: all of them.
        force: Whether to redraw finished shards.
        is_intact: With `--repair`, returns False for a shard that needs repair; else None.
    """

    run: Path
    fingerprint: str
    size: int
    part: Part | None = None
    force: bool = False
    is_intact: Callable[[Path], bool] | None = None
    _known: KnownImages = field(init=False)
    _taken: set[int] = field(init=False)
    _next: int = 0
    _failures: int = 0
    _open: Group | None = None
    _redrawn: dict[int, ImageFile | None] = field(default_factory=dict)  # by shard: a missing image prevents it
    _retried: set[str] = field(default_factory=set)  # images that failed before, in shards that are redrawn

    def __post_init__(self) -> None:
        if self.is_intact:
            self.is_intact = cache(self.is_intact)  # it is asked for each image
        self._known = KnownImages(self.run, self.fingerprint, accept_damaged=self.is_intact is None)
        self._taken = set(self._known.numbers)

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
                unit = self._known.directories[entry.shard]
                if entry.same and not self.force and (self.is_intact is None or self.is_intact(unit)):
                    self._known.report(entry)
                    yield Outcome(file.path, "skipped", unit=unit)
                else:
                    yield from self._redraw(entry.shard, file)
        yield from self._end()
        # Images that failed before come last, so that the shards of other images do not depend on their success.
        for file in failed_before:
            if file.path not in self._retried:
                yield from self._add(file)
        yield from self._end()

    def _is_mine(self, index: int) -> bool:
        return self.part is None or self.part.has(index)

    def _add(self, file: ImageFile) -> Iterator[Item]:
        """Add an image to the shard that is being filled, and yield the one before it, which is not the last one then."""
        if self._open is None:
            while self._next in self._taken:
                self._next += 1
            self._taken.add(self._next)
            self._open = Group(self._next, self.size, redraw=self.force or self.is_intact is not None)
        self._open.members.append(file)
        count = len(self._open.members)
        if count > 1:
            yield from self._member(count - 2)
        if count == self.size:
            yield from self._end()

    def _end(self) -> Iterator[Item]:
        """Yield the last image of the shard that is being filled."""
        if self._open:
            self._open.complete = True
            yield from self._member(len(self._open.members) - 1)
            self._open = None

    def _member(self, position: int) -> Iterator[Item]:
        if self._open and self._open.number is not None and self._is_mine(self._open.number):
            yield Member(self._open, position)

    def _redraw(self, shard: int, file: ImageFile) -> Iterator[Item]:
        """Redraw all images of a shard because one has changed, unless another one is missing: it would be lost."""
        if shard not in self._redrawn:
            group, missing, failed = self._read(shard)
            if group is None or (missing and not self.force):
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
                hint="force=True redraws the shard without that image",
            )

    def _read(self, shard: int) -> tuple[Group | None, ImageFile | None, set[str]]:
        """Return an existing shard with its images in their present state, a missing image, and paths that failed before."""
        record = read_unit(self._known.directories[shard])
        if record is None:  # it was there a moment ago
            return None, None, set()
        if has_intact_record(self._known.directories[shard]):
            check_only_own_files(self._known.directories[shard], record)  # before its images are drawn in vain
        group = Group(self._known.numbers[shard], self.size, replaced=key_of(record), redraw=True, complete=True)
        keep: set[int] = set()
        failed: set[str] = set()
        missing: ImageFile | None = None
        for image in record["images"]:
            member = image_file(image)
            now = look_again(member)
            if now is None:
                missing = missing if "failed" in image else member
                continue
            if "failed" in image:
                failed.add(now.path)
            elif not self.force:  # better the old pictures of an image than none
                keep.add(len(group.members))
            group.members.append(now)
        group.keep = frozenset(keep)
        group.reported = frozenset(
            position for position, member in enumerate(group.members) if self._known.was_reported(member)
        )
        return group, missing, failed
