"""Files that are made of all images of a run: the report's page, the statistics.

They can be made again at any time of what the images' directories hold, and say nothing that is not in those. A sealed
record lists them.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fmapviz import files, records
from fmapviz.inputs import in_natural_order
from fmapviz.records import FORMAT, SEAL_BYTES, seal
from fmapviz.runs import read_failures
from fmapviz.staging import HIDDEN, stage
from fmapviz.units import UNIT_FILE, make_way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    Publish = Callable[[Path, list[Path]], tuple[Mapping[str, bytes], list[Path]]]

FILE = "products.json"
_TRIES = 8  # while other processes add images


def publish(run: Path, makers: Iterable[Publish], *, sync: bool = False) -> list[Path]:
    """Make what is made of all images, if it is not there or of other images; replace what was made before.

    Processes that write into one run at once each look again when they have finished: the last one sees every image.

    Args:
        run: The run directory.
        makers: Each gives contents by file name, for the run directory and those of its images in natural order, and those
            of them that it had to leave out because they are damaged.
        sync: Wait until all of it would survive a power failure.

    Returns:
        The images' directories that were left out; as long as there are any, everything is made anew every time.

    Raises:
        RefusedError: A file of such a name is there that fmapviz did not make.
        OSError: The disk is full, say.
    """
    makers = list(makers)
    left_out: list[Path] = []
    for _ in range(_TRIES if makers else 0):
        units = find_units(run)
        state = _state(run, units)
        if _is_current(run, state):
            return []
        contents, left_out = _make(run, units, makers)
        _write(run, "" if left_out else state, contents, sync=sync)
        if left_out and left_out == _make(run, [unit for unit in left_out if unit.exists()], makers)[1]:
            return left_out  # they are damaged, and not just being replaced by another process
    return left_out


def find_units(run: Path) -> list[Path]:
    """List the directories of a run's images in natural order."""
    return sorted(_units(run), key=lambda unit: in_natural_order(unit.relative_to(run).parts))


def has_units(run: Path) -> bool:
    """Tell whether a run has a directory of an image, or of the model, at all."""
    return next(_units(run), None) is not None


def read(run: Path) -> dict[str, Any] | None:
    """Read the record of what was made of all images; None if there is none, or none that is whole."""
    document = records.load(run / FILE, sealed=True)
    return document if document and records.entries(document) is not None else None


def is_of_all(run: Path) -> bool:
    """Tell whether what was made of all images of a run was made of those that it has now."""
    record = read(run)
    return record is None or bool(record.get("of") == _state(run, find_units(run)))


def _make(run: Path, units: list[Path], makers: Iterable[Publish]) -> tuple[dict[str, bytes], list[Path]]:
    """Give the contents of all files, and the images that had to be left out."""
    made = [make(run, units) for make in makers]
    contents = {name: content for contents, _ in made for name, content in contents.items()}
    return contents, list(dict.fromkeys(unit for _, left_out in made for unit in left_out))


def _units(place: Path) -> Iterator[Path]:
    with os.scandir(place) as entries:
        folders = [
            entry.name for entry in entries if not entry.name.startswith(HIDDEN) and entry.is_dir(follow_symlinks=False)
        ]
    for name in folders:
        with suppress(FileNotFoundError):  # another process is just replacing it
            if (place / name / UNIT_FILE).exists():
                yield place / name
            else:
                yield from _units(place / name)


def _state(run: Path, units: Iterable[Path]) -> str:
    """Give a digest of what all images' directories hold: of their names, and the ends of their records."""
    failures = [{**failure, "time": None} for failure in read_failures(run)]  # the page tells them too
    state = hashlib.sha256(json.dumps(failures).encode())
    for unit in units:
        state.update(os.fsencode(unit.relative_to(run)) + b"\0" + _end(unit / UNIT_FILE))
    return state.hexdigest()


def _end(record: Path) -> bytes:
    with suppress(OSError):
        return files.read(record, start=-SEAL_BYTES)
    return b""


def _is_current(run: Path, state: str) -> bool:
    record = read(run)
    if record is None or record.get("of") != state:
        return False
    return all(_is_whole(run / entry["name"], entry) for entry in record["files"])


def _is_whole(path: Path, entry: Mapping[str, Any]) -> bool:
    try:
        return files.measure(path) == (entry["size"], entry["sha256"])
    except OSError:
        return False


def _write(run: Path, state: str, contents: Mapping[str, bytes], *, sync: bool) -> None:
    entries = [
        {"name": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in sorted(contents.items())
    ]
    known = {entry["name"] for entry in (read(run) or {"files": ()})["files"]}
    contents = {FILE: seal({"fmapviz": FORMAT, "of": state, "files": entries}), **contents}
    for name, content in contents.items():
        make_way(run / name, content, known=name in known)
    with stage(run) as staging:
        for name, content in contents.items():
            files.write(staging / name, content)
            if sync:
                files.sync(staging / name)
        for name in contents:
            files.replace(staging / name, run / name)
        if sync:
            files.sync(run)
