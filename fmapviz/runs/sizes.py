"""The space that the directories of a run occupy, and the record of it in runs of many units.

The files of 88,000 units are a million: to look at each of them takes `fmapviz runs` longer than anything else. A command
that ends therefore records what each unit occupies. The record is a cache, and may be deleted. What it says of a unit holds
for as long as the directory of this name has the same inode, which a unit that was drawn again has not.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from fmapviz.core import checksummed_json, files
from fmapviz.core.checksummed_json import FORMAT
from fmapviz.core.file_names import RUN_FILE, SIZES_FILE, UNIT_FILE
from fmapviz.core.files import BLOCK_BYTES, locked, stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MANY = 1000  # units of a run that has the record; the files of fewer are looked at in a tenth of a second


class Folder(NamedTuple):
    """A directory of a run, without what is below it.

    Attributes:
        path: Its path in the run; as text, since a `Path` takes longer to make than a directory to read.
        inode: Its inode.
        bytes: Space on the disk, with its files.
        written: When its newest file was written, in seconds since 1970; 0 without files.
        recorded: When its `unit.json` was written; None if it has none.
    """

    path: str
    inode: int
    bytes: int
    written: float
    recorded: float | None


def walk(run: Path) -> Iterator[Folder]:
    """Yield all directories of a run in any order; their files are not opened, and links not followed."""
    top, recorded = str(run), _read(run)
    pending = [("", 0)]
    while pending:
        path, inode = pending.pop()
        known = recorded.get(path)
        yield known if known and known.inode == inode else _look_into(top, path, inode, pending)


def record_sizes(run: Path) -> None:
    """Record what the units of a run occupy, if they are many, and if the record can be written."""
    with suppress(OSError), locked(run):
        if not files.exists(run / RUN_FILE):  # the run was removed
            return
        former = _read(run)
        units = {each.path: each for each in walk(run) if each.recorded is not None and each.path[:1] not in {"", "."}}
        if len(units) < MANY or units == former:
            return
        document = {"fmapviz": FORMAT, "units": {path: list(units[path][1:]) for path in sorted(units)}}
        with stage(run) as staging:
            files.write(staging / SIZES_FILE, checksummed_json.dumps(document))
            files.replace(staging / SIZES_FILE, run / SIZES_FILE)


def _read(run: Path) -> dict[str, Folder]:
    """Return the recorded units by their paths; none if there is no record, or if it is damaged."""
    units = (checksummed_json.load(run / SIZES_FILE, intact=True) or {}).get("units")
    if not isinstance(units, dict):
        return {}
    return {path: Folder(path, *values) for path, values in units.items() if _are_sizes(values)}


def _are_sizes(values: object) -> bool:
    """Return True for the fields of a unit but its path: anybody may have written the record."""
    return isinstance(values, list) and len(values) == len(Folder._fields) - 1 and set(map(type, values)) <= {int, float}


def _look_into(top: str, path: str, inode: int, pending: list[tuple[str, int]]) -> Folder:
    """Measure a directory of a run, and add the directories in it, with their inodes, to those that are pending."""
    size, written, recorded = BLOCK_BYTES, 0.0, None  # a directory occupies a block
    with suppress(OSError), os.scandir(f"{top}/{path}") as entries:  # it is being replaced, or may not be read
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                pending.append((f"{path}/{entry.name}" if path else entry.name, entry.inode()))
                continue
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                size += -(-status.st_size // BLOCK_BYTES) * BLOCK_BYTES
                time = status.st_mtime
                written = time if time > written else written  # `max` takes as long as all of the rest
                if entry.name == UNIT_FILE:
                    recorded = time
    return Folder(path, inode, size, written, recorded)
