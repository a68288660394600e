"""Put images into shards as they are found: those that a shard of the run holds stay there, the others make new ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmapviz.errors import quote
from fmapviz.inputs import look_again
from fmapviz.records import load
from fmapviz.shards import Known, Member, Shard, members_of
from fmapviz.units import UNIT_FILE
from fmapviz.values import Failure, ImageFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from fmapviz.options import Part


@dataclass(frozen=True, slots=True, eq=False)
class There:
    """An image that is finished.

    Attributes:
        file: Which one.
        place: The directory that holds it.
    """

    file: ImageFile
    place: Path


@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """Word that a shard has no more members than those given."""

    shard: Shard


@dataclass(frozen=True, slots=True, eq=False)
class Lost:
    """An image that is not to be tried again.

    Attributes:
        item: Which one.
        failure: Why.
    """

    item: Member | ImageFile
    failure: Failure


Item = ImageFile | Failure | Member | There | Ending | Lost


class Grouping:
    """Decides of each image in which shard it is, and whether anything is to be done with it.

    Args:
        run: The run directory.
        fingerprint: That of the run.
        size: Images in a shard.
        part: Which of the shards are wanted.
        force: Whether to draw anew what is finished.
        repair: Tells whether a shard is whole, and need not be drawn anew; None: all are taken to be.
    """

    def __init__(
        self,
        run: Path,
        fingerprint: str,
        size: int,
        *,
        part: Part | None = None,
        force: bool = False,
        repair: Callable[[Path], bool] | None = None,
    ) -> None:
        self._known = Known(run, fingerprint, damaged_too=not repair)
        self._size = size
        self._part = part
        self._force = force
        self._repair = repair
        self._taken = set(self._known.numbers)
        self._next = 0
        self._failures = 0
        self._open: Shard | None = None
        self._sound: dict[int, bool] = {}
        self._anew: dict[int, ImageFile | None] = {}
        self._tried: set[str] = set()  # that failed before, in shards that are drawn anew

    def items(self, found: Iterable[ImageFile | Failure]) -> Iterator[Item]:
        """Say of each input what is to be done with it, as it is found; of those of other parts nothing."""
        again = []
        for file in found:
            if isinstance(file, Failure):
                self._failures += 1
                if self._is_mine(self._failures - 1):
                    yield file
                continue
            entry = self._known.find(file)
            if entry is None:
                yield from self._add(file)
            elif entry.place < 0:
                again.append(file)
            elif self._is_mine(self._known.numbers[entry.place]) and self._anew.get(entry.place, file) is not None:
                if entry.same and not self._force and self._is_sound(entry.place):
                    self._known.tell(entry)
                    yield There(file, self._known.places[entry.place])
                else:
                    yield from self._draw_anew(entry.place, file)
        yield from self._end()
        # Those that failed before come last: should they succeed now, no other shard has other images for that.
        for file in again:
            if file.path not in self._tried:
                yield from self._add(file)
        yield from self._end()

    def _is_mine(self, index: int) -> bool:
        return self._part is None or self._part.has(index)

    def _add(self, file: ImageFile) -> Iterator[Item]:
        """Put an image into the shard that is filled just now."""
        if self._open is None:
            while self._next in self._taken:
                self._next += 1
            self._taken.add(self._next)
            self._open = Shard(self._next, self._size)
        shard = self._open
        shard.members.append(file)
        if len(shard.members) == self._size:
            shard.whole, self._open = True, None
        if self._is_mine(shard.number):
            yield Member(shard, len(shard.members) - 1, file)

    def _end(self) -> Iterator[Item]:
        shard, self._open = self._open, None
        if shard and self._is_mine(shard.number):
            yield Ending(shard)

    def _is_sound(self, place: int) -> bool:
        """Tell whether a shard need not be repaired."""
        if not self._repair:
            return True
        if place not in self._sound:
            self._sound[place] = self._repair(self._known.places[place])
        return self._sound[place]

    def _draw_anew(self, place: int, file: ImageFile) -> Iterator[Item]:
        """Have all images of a shard drawn once more, because one has changed, say.

        As long as any of the others is gone nothing is, since it would be lost.
        """
        if place not in self._anew:
            shard, gone = self._read(place)
            if shard is None or (gone and not self._force):
                self._anew[place] = gone or file
            else:
                self._anew[place] = None
                self._tried.update(member.path for place, member in enumerate(shard.members) if place not in shard.before)
                for position, member in enumerate(shard.members):
                    yield Member(shard, position, member)
        lost = self._anew[place]
        if lost is not None:
            yield Failure(
                file.path,
                "E_SHARD",
                f"not drawn anew, because another image of its shard is gone, {quote(lost.path)}: {quote(file.path)}",
                hint="--force draws the shard without that",
            )

    def _read(self, place: int) -> tuple[Shard | None, ImageFile | None]:
        """Give a shard of the disk, with its images as they are now, and one that is gone."""
        directory = self._known.places[place]
        record = load(directory / UNIT_FILE)
        if record is None:  # it was there a moment ago
            return None, None
        failed = {index for index, image in enumerate(record["images"]) if "failed" in image}
        source = record["source"]
        own = ImageFile(source["path"], record["unit"], source["size"], source["mtime_ns"])
        members: list[ImageFile] = []
        before: set[int] = set()
        gone: ImageFile | None = None
        for index, member in enumerate(members_of(record)):
            now = look_again(member)
            if now is None:
                gone = gone if index in failed else member
                continue
            if index not in failed:
                before.add(len(members))
            members.append(now)
        told = frozenset(position for position, member in enumerate(members) if self._known.was_told(member))
        number = self._known.numbers[place]
        return Shard(number, self._size, members, own, frozenset(before), told, whole=True), gone


def of_part(found: Iterable[ImageFile | Failure], part: Part) -> Iterator[ImageFile | Failure]:
    """Give the inputs of one part, where each image has a directory of its own."""
    return (item for index, item in enumerate(found) if part.has(index))
