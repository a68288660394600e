"""Shards: directories that hold many images each, and what is known of those that a run has already.

A shard has the promises of an image's directory: it is written under a hidden name, renamed when it is whole, and its record
lists every file. Its images are `N` that follow each other in the order in which they were found. An image that is in a
shard stays in it, whatever is found before or behind it later; new images make new shards. So the shards of a run that was
interrupted are the first, or any, of those that it would have had, and the others come out as they would have.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fmapviz import records
from fmapviz.inputs import in_natural_order
from fmapviz.units import EVENTS_FILE, UNIT_FILE, discard_wreck, is_damaged, read_unit
from fmapviz.values import ImageFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from fmapviz.options import Part

KIND = "shard"
PREFIX = "shard-"
_GONE = -1
_FILES = {UNIT_FILE, EVENTS_FILE, "index.parquet", "pictures.tar", "stats.parquet"}


@dataclass(slots=True, eq=False)
class Shard:
    """Images that share a directory, as they are found.

    Attributes:
        number: Which one, from 0.
        size: How many images there may be.
        members: The images, in order.
        own: What the directory is known as that it is to replace; None: it is new.
        before: Images that this directory holds; of each its position here.
        told: Positions of images of which it was told that they are there.
        whole: Whether all members are known.
    """

    number: int
    size: int
    members: list[ImageFile] = field(default_factory=list)
    own: ImageFile | None = None
    before: frozenset[int] = frozenset()
    told: frozenset[int] = frozenset()
    whole: bool = False

    @property
    def name(self) -> str:
        """What its directory is called.

        Example:
            >>> Shard(42, 100).name
            'shard-000042'
        """
        return f"{PREFIX}{self.number:06}"

    def key(self, position: int) -> int:
        """Give the number of an image, unlike that of any other in the run."""
        return self.number * self.size + position

    def identify(self, positions: Sequence[int]) -> ImageFile:
        """Tell a shard from others as an image is told from others.

        Args:
            positions: Of the images that are in it.

        Returns:
            In place of a path what stands for all paths, and of the time what stands for all states. A shard that takes the
            place of another one is known as that.
        """
        paths = hashlib.sha256(b"\0".join(os.fsencode(file.path) for file in self.members)).hexdigest()[:16]
        held = [self.members[position] for position in positions]
        states = hashlib.sha256(repr([(file.size, file.mtime_ns) for file in held]).encode())
        return ImageFile(
            path=self.own.path if self.own else f"{KIND}:{paths}",
            unit=self.own.unit if self.own else self.name,
            size=sum(file.size for file in held),
            mtime_ns=int.from_bytes(states.digest()[:7]),  # a number that JSON keeps everywhere
        )


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One image of a shard.

    Attributes:
        shard: Which one.
        position: Its place in it, from 0.
        file: The image.
    """

    shard: Shard
    position: int
    file: ImageFile


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of an image that a shard holds, or that was to be in it.

    Attributes:
        place: The number of the shard, as `Known` counts; negative: it failed.
        state: Whether the image is as it was then.
        index: Of its entry.
    """

    place: int
    same: bool
    index: int


class Known:
    """What the shards of a run hold when it is looked at: some 20 bytes for each image."""

    def __init__(self, run: Path, fingerprint: str, *, damaged_too: bool = True) -> None:
        """Read all records.

        Args:
            run: The run directory.
            fingerprint: That of the run; shards of others are not its own.
            damaged_too: Whether a record counts of which a byte has changed, as long as it can be read.
        """
        self.places: list[Path] = []
        self.numbers: list[int] = []
        keys: list[NDArray[np.uint64]] = []
        states: list[NDArray[np.uint64]] = []
        owners: list[NDArray[np.int32]] = []
        for directory in find_shards(run):
            record = read_unit(directory)
            if record is None or record.get("run") != fingerprint or not (damaged_too or not is_damaged(directory)):
                continue
            images = record["images"]
            owner = np.full(len(images), len(self.places), np.int32)
            owner[[index for index, image in enumerate(images) if "failed" in image]] = _GONE
            keys.append(np.fromiter((_key(image["path"]) for image in images), np.uint64, len(images)))
            states.append(
                np.fromiter((_state(image["size"], image["mtime_ns"]) for image in images), np.uint64, len(images))
            )
            owners.append(owner)
            self.places.append(directory)
            self.numbers.append(record["shard"])
        all_keys = np.concatenate(keys) if keys else np.zeros(0, np.uint64)
        all_owners = np.concatenate(owners) if keys else np.zeros(0, np.int32)
        # Of an image that failed in one shard and is in another one, the latter counts.
        order = np.lexsort((all_owners == _GONE, all_keys))
        self._keys, self._owners = all_keys[order], all_owners[order]
        self._states = (np.concatenate(states) if keys else np.zeros(0, np.uint64))[order]
        self._told = np.zeros(len(order), np.bool_)

    def find(self, file: ImageFile) -> Entry | None:
        """Look an image up; None if it is new."""
        key = _key(file.path)
        index = int(np.searchsorted(self._keys, np.uint64(key)))
        if index == len(self._keys) or int(self._keys[index]) != key:
            return None
        same = int(self._states[index]) == _state(file.size, file.mtime_ns)
        return Entry(int(self._owners[index]), same, index)

    def tell(self, entry: Entry) -> None:
        """Remember that it was told of an image that it is there."""
        self._told[entry.index] = True

    def was_told(self, file: ImageFile) -> bool:
        """Say whether that was told."""
        entry = self.find(file)
        return entry is not None and bool(self._told[entry.index])


def find_shards(run: Path) -> Iterator[Path]:
    """Give the directories of a run that may be shards, in order."""
    with os.scandir(run) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False)]
    for name in sorted(names, key=lambda name: in_natural_order([name])):
        yield run / name


def discard_wrecks(run: Path, part: Part | None = None) -> None:
    """Remove shards whose records are lost; their images have been put into others, as far as they are there.

    Raises:
        OSError: One could not be removed.
    """
    for directory in find_shards(run):
        number = directory.name.removeprefix(PREFIX).partition("~")[0]
        if number.isdecimal() and (part is None or part.has(int(number))):
            discard_wreck(directory, run, _FILES)


def image_record(file: ImageFile) -> dict[str, Any]:
    """Describe an image in its shard's record."""
    return {"path": file.path, "name": file.unit, "size": file.size, "mtime_ns": file.mtime_ns}


def members_of(record: Mapping[str, Any]) -> list[ImageFile]:
    """List the images of a shard's record, those that failed too."""
    return [ImageFile(image["path"], image["name"], image["size"], image["mtime_ns"]) for image in record["images"]]


def _key(path: str) -> int:
    return _digest(os.fsencode(path) if records.is_path(path) else path.encode("utf-8", "surrogatepass"))


def _state(size: int, mtime_ns: int) -> int:
    return _digest(b"%d %d" % (size, mtime_ns))


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest())
