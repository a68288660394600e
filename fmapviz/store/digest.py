"""Compute the digest of a run: one checksum of its settings and of all that its units hold, to cite the run by.

It is the SHA-256 of a list like that of `sha256sum`, with a line for `run.json` and one for each `unit.json`, sorted by the
bytes of their paths. Of `run.json` only the line with the settings counts. Of `unit.json`, which has the checksums of the
other files, all lines count except those of its source, of the images of a shard, and of files that hold a path or a time.
So two runs with the same settings, inputs and results have the same digest, wherever and whenever they were drawn. What
other commands make from the units of a run, such as its top images, does not count. The page *reliability* of the guide
computes it with shell tools.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from fmapviz.core import checksummed_json, registry
from fmapviz.core.file_names import INDEX_FILE, RUN_FILE, UNIT_FILE
from fmapviz.core.members import load
from fmapviz.store.unit import read_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_SETTINGS, _KEY, _ITEM = b' "settings": ', b' "', b"  "  # begin lines of records


class Digests:
    """Collects the contents of units by run; runs are noted before their units."""

    def __init__(self) -> None:
        self._lines: dict[Path, list[bytes]] = {}
        self._incomplete = set[Path]()

    def note(self, directory: Path, content: str, *, is_run: bool = False, is_sound: bool = True) -> None:
        """Note what was found in a directory.

        Args:
            directory: A run, a unit, or a directory in a run.
            content: Its content, see `content_of`; empty: unknown.
            is_run: Whether it is a run.
            is_sound: Whether it is finished and undamaged.
        """
        if is_run and directory not in self._lines:
            self._lines[directory] = []
        run = self.run_of(directory)
        if run is None:
            return
        if not (is_sound and content):
            self._incomplete.add(run)
        if content and not is_of_other_command(directory, run):
            record = directory.relative_to(run) / (RUN_FILE if is_run else UNIT_FILE)
            self._lines[run].append(os.fsencode(f"{content}  ./{record.as_posix()}\n"))

    def run_of(self, directory: Path) -> Path | None:
        """Return the run that is or holds a directory; None if none was noted."""
        return next((path for path in (directory, *directory.parents) if path in self._lines), None)

    def digest(self, run: Path, *, partial: bool = False) -> str | None:
        """Return the digest of a run, `sha256:` and 64 hexadecimal digits; None if the run is damaged or not finished.

        Args:
            run: The run.
            partial: Return the digest of what is sound in place of None.
        """
        if run in self._incomplete and not partial:
            return None
        lines = sorted(self._lines[run], key=lambda line: line[64:])
        return f"sha256:{hashlib.sha256(b''.join(lines)).hexdigest()}"

    def contents(self, run: Path) -> dict[str, str]:
        """Return the contents of a run's records by their paths in the run."""
        lines = (os.fsdecode(line).rstrip("\n").split("  ./", 1) for line in self._lines[run])
        return {path: content for content, path in lines}

    @property
    def runs(self) -> Mapping[Path, str | None]:
        """The digest of each run."""
        return {run: self.digest(run) for run in self._lines}


def content_of(directory: Path, open_file: Callable[[Path], BinaryIO]) -> str:
    """Return the SHA-256 of what counts in the record of a unit or run, hexadecimal; empty if it cannot be read.

    Args:
        directory: The unit or run; its files are as the record lists them.
        open_file: Opens a file of the unit.

    Raises:
        ValueError: The record, or a file that counts in part, is not formatted as fmapviz does it.
    """
    name = UNIT_FILE if os.path.isfile(directory / UNIT_FILE) else RUN_FILE
    try:
        data = checksummed_json.read(directory / name)
        if not checksummed_json.is_formatted(data):
            raise ValueError("not formatted as fmapviz does it")
        lines = _lines_of_unit(data, directory, open_file) if name == UNIT_FILE else _lines_of_run(data)
        return hashlib.sha256(b"".join(lines)).hexdigest()
    except OSError:
        return ""


def _lines_of_run(data: bytes) -> Iterator[bytes]:
    return (line for line in BytesIO(data) if line.startswith(_SETTINGS))


def _lines_of_unit(data: bytes, unit: Path, open_file: Callable[[Path], BinaryIO]) -> Iterator[bytes]:
    record = checksummed_json.parse(data) or {}
    other, listed = lasting_files(), [entry["name"] for entry in record["files"]]
    for entry in record["files"]:
        entry.pop("object", None)  # the name of a remote file, if it is another one
    del record["sha256"]
    key, items = b"", iter(listed)
    for line in BytesIO(checksummed_json.dumps(record)):
        if line.startswith(_KEY):
            key = line.split()[0]
        is_item = line.startswith(_ITEM)
        if key in {b'"unit":', b'"sha256":'} and not line.startswith(b"}"):
            continue
        if is_item and (key == b'"images":' or (key == b'"files":' and next(items) in other)):
            continue
        yield line
    for name in sorted({*listed} & other.keys()):
        if other[name]:
            with open_file(unit / name) as file:
                yield f"{load(other[name])(file)}  {name}\n".encode()


def is_of_other_command(unit: Path, run: Path) -> bool:
    """Return True for a unit that another command makes; an image may have a directory of its name."""
    name = unit.relative_to(run).as_posix()
    own = [each for each in units_of_other_commands() if f"{name}/".startswith((f"{each}/", f"{each}~"))]
    record = read_unit(unit) if own else None
    return record is not None and f"_{record['unit']['kind']}" in own


@cache
def units_of_other_commands() -> frozenset[str]:
    """Return the names of units that other commands make from those of a run, such as the one of `fmapviz top`."""
    return frozenset(each.unit for each in registry.aggregates().values() if each.command)


@cache
def lasting_files() -> Mapping[str, str]:
    """Return the files of units that hold a time or path, see `lasting` of `fmapviz.core.members.Format`."""
    return {INDEX_FILE: "", **{name: each for form in registry.formats().values() for name, each in form.lasting}}
