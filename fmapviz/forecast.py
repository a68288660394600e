"""What a run will write, and whether there is room for it."""

from __future__ import annotations

import os
import shutil
import threading
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from fmapviz.errors import RefusedError, printable, quote
from fmapviz.shards import Known
from fmapviz.units import find_done
from fmapviz.values import Failure, Outcome, Staged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from fmapviz.options import Part
    from fmapviz.values import Event, ImageFile

BLOCK_BYTES = 4096  # what file systems give out at least
_ENOUGH = 8  # images that an estimate is made of


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run will do.

    Attributes:
        directory: The run directory, which may not be there yet.
        model: Name and weights.
        images: Inputs found.
        to_draw: Those of them that are not finished.
        failing: The share of images of the sample that failed, 0..1.
        sampled: Images that were drawn to find this out.
        pictures: In all.
        bytes: By format, in whole blocks of the file system; under `records` what tells of them.
        files: In all.
        seconds: On this machine.
        free: Bytes of room; None: nobody knows.
        free_files: Files that there is room for; None: nobody knows.
    """

    directory: Path
    model: str
    images: int
    to_draw: int
    failing: float
    sampled: int
    pictures: int
    bytes: Mapping[str, int]
    files: int
    seconds: float
    free: int | None
    free_files: int | None

    @property
    def all_bytes(self) -> int:
        """What it will take in all formats together."""
        return sum(self.bytes.values())

    @property
    def fits(self) -> bool:
        """Whether there is room for it."""
        fit_bytes = self.free is None or self.all_bytes <= self.free
        return fit_bytes and (self.free_files is None or self.files <= self.free_files)

    def lines(self) -> list[str]:
        """Say it in words."""
        there = self.images - self.to_draw
        told = [
            f"{self.images:,} images{f', {there:,} of them there already or of other parts' if there else ''}",
            f"{printable(self.model)} into {printable(str(self.directory))}",
            f"{self.pictures:,} pictures in {self.files:,} files and directories",
            *(f"  {form:<12}{say_bytes(size):>10}" for form, size in self.bytes.items()),
            f"  {'in all':<12}{say_bytes(self.all_bytes):>10}",
        ]
        if self.free is not None:
            told.append(f"  {'free':<12}{say_bytes(self.free):>10}{'' if self.fits else ': it does not fit'}")
        if self.free_files is not None and self.files > self.free_files:
            told.append(f"only {self.free_files:,} more files fit on that disk: --shard N puts N images into a few files")
        if self.failing:
            told.append(f"{self.failing:.0%} of the sample could not be drawn")
        rate = self.to_draw / self.seconds if self.seconds else 0.0
        told.append(f"about {say_time(self.seconds)} on this machine, {rate:.3g} images/s")
        told.append(f"from {self.sampled} images drawn into a temporary directory; nothing was written to that named above")
        return told


class Counting:
    """Counts the inputs in a thread of its own; a run begins before it is known how many there are.

    Args:
        find: Lists them; None: they can be listed once only, and nobody will know.
    """

    def __init__(self, find: Callable[[], Iterable[object]] | None) -> None:
        self.total: int | None = None
        self._find = find
        if find:
            threading.Thread(target=self._count, daemon=True).start()

    def _count(self) -> None:
        assert self._find
        try:
            self.total = sum(1 for _ in self._find())
        except Exception:  # noqa: BLE001  only the time left would be missing; the run itself says what is wrong
            return


class Room:
    """Watches whether what a run still has to write fits on the disk.

    Args:
        directory: The run directory.
        remaining: Counts the inputs that are still to be drawn; takes its time.
        part: Which part of the work is done here.
    """

    def __init__(self, directory: Path, remaining: Callable[[], int], *, part: Part | None) -> None:
        self._directory = directory
        self._remaining = remaining
        self._parts = part.count if part else 1
        self._images = self._bytes = self._accounted = self._staged = 0
        self._next = _ENOUGH

    def look(self, event: Event, total: int | None) -> None:
        """Take note of an image that was written.

        Args:
            event: What was told of it.
            total: How many inputs there are, if that is known.

        Raises:
            RefusedError: The others will not fit.
        """
        if not isinstance(event, Staged | Outcome):
            return
        done = isinstance(event, Staged) or event.status == "done"
        if isinstance(event, Staged):
            self._staged += 1
        elif done and self._staged:
            self._staged -= 1  # it was counted then
            return
        self._accounted += 1
        if not done:
            return
        self._images += 1
        self._bytes += event.bytes
        if total is None or self._images < min(self._next, total):
            return
        self._next *= 2
        free = free_space(self._directory)[0]
        each = self._bytes / self._images
        if free is None or each * (total / self._parts - self._accounted) <= free:
            return
        left = ceil(self._remaining() / self._parts)  # the others may be there already
        if each * left > free:
            raise RefusedError(
                f"{left:,} more images will not fit: {say_bytes(each * left)} at {say_bytes(each)} each, "
                f"and {say_bytes(free)} are free in {quote(self._directory)}",
                hint="another --out, --to stats, fewer --layers; --plan says what is written; --force goes on regardless",
            )


def count_to_draw(
    found: Iterable[ImageFile | Failure], run: Path | None, fingerprint: str, *, shards: bool
) -> tuple[int, int]:
    """Count the inputs, and those of them that are not finished.

    Args:
        found: The inputs.
        run: The run directory; None: there is none yet.
        fingerprint: That of the run.
        shards: Whether many images share a directory.
    """
    known = Known(run, fingerprint) if run and shards else None
    images = to_draw = 0
    for file in found:
        images += 1
        if isinstance(file, Failure):
            continue
        if known:
            entry = known.find(file)
            to_draw += entry is None or entry.place < 0 or not entry.same
        else:
            to_draw += run is None or find_done(run, file, fingerprint) is None
    return images, to_draw


def free_space(place: Path) -> tuple[int | None, int | None]:
    """Give the bytes and the number of files that there is room for, where a directory is or will be."""
    while not place.exists():
        place = place.parent
    try:
        status = os.statvfs(place)
    except OSError:
        return None, None
    # Some file systems make as many files as are wanted.
    return shutil.disk_usage(place).free, status.f_favail if status.f_files else None


def room_of(sizes: Iterable[int]) -> int:
    """Give the bytes that files of these sizes take on a disk.

    Example:
        >>> room_of([1, 4096, 5000])
        16384
    """
    return sum(-(-size // BLOCK_BYTES) * BLOCK_BYTES for size in sizes)


def size_of(directory: Path) -> int:
    """Give the bytes that the files of a directory take on a disk, and it itself."""
    with os.scandir(directory) as entries:
        return room_of([1, *(entry.stat(follow_symlinks=False).st_size for entry in entries)])


def say_bytes(number: float) -> str:
    """Say a size in words.

    Example:
        >>> say_bytes(999), say_bytes(2_500_000), say_bytes(2.5e12)
        ('999 bytes', '2.5 MB', '2.5 TB')
    """
    units = ["kB", "MB", "GB", "TB"]
    unit = "bytes"
    while number >= 999.5 and units:
        number, unit = number / 1000, units.pop(0)
    return f"{number:.3g} {unit}"


def say_time(seconds: float) -> str:
    """Say how long something takes, in words.

    Example:
        >>> say_time(42), say_time(100), say_time(9000), say_time(400_000)
        ('42 s', '2 min', '2.5 h', '4.6 days')
    """
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 2 else f"{seconds:.1f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.2g} h" if seconds < 172_800 else f"{seconds / 86400:.2g} days"
