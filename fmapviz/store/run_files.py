"""Run-level files, made from all units of a run: the report's page, statistics.

They can be made again at any time from the units, and contain nothing else. A checksummed record lists them.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from fmapviz.core import checksummed_json, files
from fmapviz.core.checksummed_json import CHECKSUM_BYTES, FORMAT
from fmapviz.core.file_names import HIDDEN, RUN_FILES_RECORD, UNIT_FILE
from fmapviz.core.files import locked, staging_folder
from fmapviz.errors import RefusedError, quote
from fmapviz.images.find import in_natural_order
from fmapviz.store.failures import read_failures
from fmapviz.store.shards.shard import is_named_like_shard
from fmapviz.store.unit import images_of, read_unit
from fmapviz.store.unit_table import UnitTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path
    from typing import BinaryIO

    Content = bytes | Callable[[BinaryIO], None]  # files too large for memory write themselves

_SIGNATURE_BYTES = 13
_LOOKED_AT = 1000  # directories: some milliseconds
_TRIES = 8  # while other processes add images


def publish(
    run: Path,
    make: Callable[[list[Path]], tuple[Mapping[str, Content], list[Path]]],
    *,
    variant: str = "",
    owned: AbstractSet[str] = frozenset(),
    sync: bool = False,
) -> list[Path]:
    """Make the run-level files if they are missing, damaged or out of date; one command at a time.

    Files of other commands stay in the record. Of several processes that write into one run, each checks again when it has
    finished: the last one sees every image.

    Args:
        run: The run directory.
        make: Takes the directories of units in natural order; returns contents by file name, or what writes them, and the
            units that it left out because they are damaged.
        owned: Names of files that are removed if they were made before and are not made now.
        variant: Variant of the contents; files of another variant are written again.
        sync: Wait until the files would survive a power failure.

    Returns:
        The units left out; as long as there are any, the files are made every time.

    Raises:
        RefusedError: A file of such a name exists that fmapviz did not make.
        OSError: The disk is full, for example.
    """
    left_out: list[Path] = []
    for _ in range(_TRIES):
        with locked(run):
            units = find_units(run)
            state = _state(run, units)
            if _is_current(run, state, variant):
                return []
            contents, left_out = make(units)
            made = {"of": "" if left_out else state, **({"variant": variant} if variant else {})}
            _write(run, made, contents, owned=owned, sync=sync)
        if left_out and left_out == make([unit for unit in left_out if os.path.exists(unit)])[1]:
            return left_out  # they are damaged, not just being replaced by another process
    return left_out


def find_units(run: Path) -> list[Path]:
    """List the directories of a run's units in natural order."""
    return [run / name for name in sorted(unit_names(run), key=lambda name: in_natural_order(name.split("/")))]


def unit_names(run: Path) -> Iterator[str]:
    """Yield the names of a run's units, in any order; as text, since a `Path` takes longer to make than a file to find."""
    pending = [""]
    while pending:
        above = pending.pop()
        try:
            with os.scandir(f"{run}/{above}") as entries:
                folders = [each.name for each in entries if each.is_dir(follow_symlinks=False)]
        except FileNotFoundError:  # another process is replacing it now
            if not above:
                raise
            continue
        for name in folders:
            if name.startswith(HIDDEN):
                continue
            unit = f"{above}{name}"
            if os.path.exists(f"{run}/{unit}/{UNIT_FILE}"):
                yield unit
            else:
                pending.append(f"{unit}/")


def has_units(run: Path) -> bool:
    """Return True if a run has any unit."""
    return next(unit_names(run), None) is not None


def count_images(run: Path) -> int:
    """Return the number of finished images of a run; only the records of shards and of the model are read."""
    return sum(
        1 if is_named_like_image(name.split("/")) else len(images_of(read_unit(run / name))) for name in unit_names(run)
    )


def is_named_like_image(parts: Sequence[str]) -> bool:
    """Return True if a unit is of one image by the parts of its name; those of shards and of the model have others."""
    return not any(part.startswith("_") or is_named_like_shard(part) for part in parts)


def has_more_units(out: Path, file: str, most: int) -> bool:
    """Return True if more than `most` units below a directory have a file; in a large directory, some are counted."""
    walked = islice(os.walk(out), _LOOKED_AT)
    return sum(1 for _ in islice((here for here, _, names in walked if file in names), most + 1)) > most


def read(run: Path) -> dict[str, Any] | None:
    """Read the record of the run-level files; None if it is missing or damaged."""
    document = checksummed_json.load(run / RUN_FILES_RECORD, intact=True)
    return document if document and checksummed_json.entries(document) is not None else None


def is_up_to_date(run: Path) -> bool:
    """Return True if the run-level files were made from the units that the run has now, or if there are none."""
    record = read(run)
    return record is None or bool(record.get("of") == _state(run, find_units(run)))


def check_replaceable(path: Path, content: bytes, *, known: bool = False) -> None:
    """Check that a file of a run that is to be replaced was made by fmapviz, or does not exist.

    Files of fmapviz begin alike, also truncated ones. A power failure leaves an empty file, or zeros.

    Args:
        path: The file.
        content: The new content, or its beginning.
        known: Whether an intact record lists a file of that name, so that its content does not matter.

    Raises:
        RefusedError: It was not made by fmapviz.
    """
    try:
        existing = files.read(path, most=_SIGNATURE_BYTES)
        ours = known or checksummed_json.begins_like(existing, content[:_SIGNATURE_BYTES])
    except FileNotFoundError:
        return
    except OSError:  # a directory, for example
        ours = False
    if not ours:
        raise RefusedError(f"{quote(path)} was not made by fmapviz", hint="move it away, or choose another name=")


def _state(run: Path, units: list[Path]) -> str:
    """Return a digest of all units: of their names, and of the checksums that end their records."""
    failures = [{**failure, "time": None} for failure in read_failures(run)]  # the report lists them
    state = hashlib.sha256(json.dumps(failures).encode())
    top, table = len(str(run)) + 1, UnitTable(run)
    for unit in units:
        name = str(unit)[top:]
        state.update(os.fsencode(name) + b"\0")
        with suppress(OSError):
            state.update(table.end_of_record(name) or files.read(unit / UNIT_FILE, start=-CHECKSUM_BYTES))
    return state.hexdigest()


def _is_current(run: Path, state: str, variant: str) -> bool:
    """Return True if all run-level files are whole, of this variant, and made in this state of the run."""
    record = read(run)
    if record is None or (record.get("of"), record.get("variant", "")) != (state, variant):
        return False
    return all(_is_whole(run, entry) for entry in record["files"])


def _write(
    run: Path, made: Mapping[str, str], contents: Mapping[str, Content], *, owned: AbstractSet[str], sync: bool
) -> None:
    former = (read(run) or {"files": ()})["files"]
    known = {entry["name"] for entry in former}
    for name, content in contents.items():
        if isinstance(content, bytes):
            check_replaceable(run / name, content, known=name in known)
    with staging_folder(run) as staging:
        entries = []
        for name, content in sorted(contents.items()):
            if isinstance(content, bytes):
                files.write(staging / name, content)
            else:
                with files.create(staging / name) as file:
                    content(file)
                check_replaceable(run / name, files.read(staging / name, most=_SIGNATURE_BYTES), known=name in known)
            size, sha256 = files.measure(staging / name)
            entries.append({"name": name, "size": size, "sha256": sha256})
        others = [entry for entry in former if entry["name"] not in contents and _is_whole(run, entry)]
        entries += [entry for entry in others if entry["name"] not in owned]
        entries.sort(key=itemgetter("name"))
        record = checksummed_json.dumps({"fmapviz": FORMAT, **made, "files": entries})
        check_replaceable(run / RUN_FILES_RECORD, record)
        files.write(staging / RUN_FILES_RECORD, record)
        names = (RUN_FILES_RECORD, *contents)
        for name in names if sync else ():
            files.sync(staging / name)
        for name in names:
            files.replace(staging / name, run / name)
        for name in {entry["name"] for entry in others} & owned:
            files.remove(run / name)
        if sync:
            files.sync(run)


def _is_whole(run: Path, entry: Mapping[str, Any]) -> bool:
    """Return True if a file is as its entry in the record says."""
    try:
        return files.measure(run / entry["name"]) == (entry["size"], entry["sha256"])
    except OSError:
        return False
