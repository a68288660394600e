"""The shards of a run: units of many images.

A shard holds N images that follow each other in listing order. An image stays in its shard, whatever is listed before or
after it later; new images make new shards. So an interrupted run holds some of the shards of the complete run, and the
missing ones come out as they would have. A shard is committed as any unit is, by `fmapviz.store.unit.commit`.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fmapviz.core import checksummed_json
from fmapviz.core.file_names import UNIT_FILE, shard_files
from fmapviz.images.find import in_natural_order
from fmapviz.store.unit import discard, lacks_record, read_unit
from fmapviz.store.unit_key import SHARD, UnitKey, image_version
from fmapviz.store.unit_table import digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from fmapviz.config import Part
    from fmapviz.data import Failure, ImageFile
    from fmapviz.events import Outcome
    from fmapviz.store.unit import Group

_PREFIX = "shard-"
_FAILED = -1
_ROW = np.dtype([("path", np.uint64), ("state", np.uint64), ("shard", np.int32)])


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """What the shards of a run record of an image.

    Attributes:
        shard: Index into `KnownImages.directories`; negative: the image failed.
        same: Whether the image has not changed.
        index: Index of the entry.
    """

    shard: int
    same: bool
    index: int


class KnownImages:
    """The images that the shards of a run hold when it is opened; about 20 bytes for each.

    Attributes:
        directories: The shards.
        numbers: Their numbers.
    """

    def __init__(self, run: Path, fingerprint: str, *, accept_damaged: bool = True) -> None:
        """Read all records.

        Args:
            run: The run directory.
            fingerprint: Of the run; shards of other runs are ignored.
            accept_damaged: Whether a record counts that differs from its checksum but can be parsed.
        """
        self.directories: list[Path] = []
        self.numbers: list[int] = []
        tables = [np.zeros(0, _ROW)]
        for directory in find_shards(run):
            record = read_unit(directory)
            if record is None or record.get("run") != fingerprint:
                continue
            if not accept_damaged and checksummed_json.load(directory / UNIT_FILE, intact=True) is None:
                continue
            shard = len(self.directories)
            rows = (_row(image, shard) for image in record["images"])
            tables.append(np.fromiter(rows, _ROW, len(record["images"])))
            self.directories.append(directory)
            self.numbers.append(record["shard"])
        table = np.concatenate(tables)
        # If an image failed in one shard and is in another one, the latter counts.
        table = table[np.lexsort((table["shard"] == _FAILED, table["path"]))]
        self._paths, self._states, self._shards = (np.ascontiguousarray(table[name]) for name in ("path", "state", "shard"))
        self._reported = np.zeros(len(table), np.bool_)

    def find(self, file: ImageFile) -> ShardEntry | None:
        """Return the entry of an image; None if it is new."""
        key = digest(file.path)
        index = int(np.searchsorted(self._paths, np.uint64(key)))
        if index == len(self._paths) or int(self._paths[index]) != key:
            return None
        return ShardEntry(int(self._shards[index]), int(self._states[index]) == _state_of(file.version), index)

    def report(self, entry: ShardEntry) -> None:
        """Note that an image was reported as finished."""
        self._reported[entry.index] = True

    def was_reported(self, file: ImageFile) -> bool:
        """Return True if an image was reported as finished."""
        entry = self.find(file)
        return entry is not None and bool(self._reported[entry.index])


def shard_key(group: Group, positions: Sequence[int]) -> UnitKey:
    """Return the key of a shard; one that replaces another keeps its path.

    Args:
        group: The images of the shard.
        positions: Those that are in it.
    """
    held = [group.members[position] for position in positions]
    if group.replaced:
        path, name = group.replaced.path, group.replaced.name
    else:
        paths = b"\0".join(os.fsencode(file.path) for file in group.members)
        path, name = f"{SHARD}:{hashlib.sha256(paths).hexdigest()[:16]}", f"{_PREFIX}{group.number:06}"
    states = hashlib.sha256(repr([tuple(file.version.values()) for file in held]).encode()).hexdigest()
    return UnitKey(SHARD, path, name, {"images": len(held), "states": states})


def find_shards(run: Path) -> Iterator[Path]:
    """Return the directories of a run that are named like shards, in natural order."""
    with os.scandir(run) as entries:
        names = [entry.name for entry in entries if is_named_like_shard(entry.name) and entry.is_dir(follow_symlinks=False)]
    for name in sorted(names, key=lambda name: in_natural_order([name])):
        yield run / name


def is_named_like_shard(name: str) -> bool:
    """Return True for the name of a directory that may be a shard, or an image's of such a name."""
    return name.startswith(_PREFIX)


def remove_damaged_shards(run: Path, part: Part | None = None) -> None:
    """Remove shards without a record; their images were put into other shards, as far as they still exist.

    Raises:
        OSError: One could not be removed.
    """
    for directory in find_shards(run):
        number = directory.name.removeprefix(_PREFIX).partition("~")[0]
        if not number.isdecimal() or (part is not None and not part.has(int(number))):
            continue
        if lacks_record(directory) and {path.name for path in directory.iterdir()} <= shard_files():
            discard(directory, run)


def describe_members(group: Group, written: Mapping[int, Outcome], failed: Mapping[int, Failure]) -> list[dict[str, Any]]:
    """Return what `unit.json` records of the images of a shard.

    Args:
        group: The images.
        written: Those that are in the shard, by position.
        failed: Those that are not, by position.
    """
    records = []
    for position, file in enumerate(group.members):
        if position in failed:
            outcome: dict[str, Any] = {"failed": failed[position].code}
        else:
            done = written[position]
            outcome = {"pictures": done.pictures, **({"notices": list(done.notices)} if done.notices else {})}
        records.append({"path": file.path, "name": file.unit, **file.version, **outcome})
    return records


def _row(image: Mapping[str, Any], shard: int) -> tuple[int, int, int]:
    return digest(image["path"]), _state_of(image_version(image)), _FAILED if "failed" in image else shard


def _state_of(version: Mapping[str, str | int]) -> int:
    return digest(sorted(version.items()))
