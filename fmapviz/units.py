"""An output directory per image: stage it, commit it, ask whether it is done.

The directory is the commit. It is written under a hidden staging name and renamed when it is whole, so what stands under a
name without a leading dot is complete.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from fmapviz import files, records
from fmapviz.errors import RefusedError, quote
from fmapviz.inputs import path_hash
from fmapviz.records import FORMAT, seal
from fmapviz.staging import ASIDE, WRECK, hidden, leftovers
from fmapviz.values import ImageFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

UNIT_FILE = "unit.json"
EVENTS_FILE = "events.out.tfevents.fmapviz"
_OURS = (UNIT_FILE, "input.png", EVENTS_FILE, "index.parquet")  # of these every finished directory has one at least
_SIGNATURE_BYTES = 13


def find_done(run: Path, file: ImageFile, fingerprint: object = None) -> Path | None:
    """Give the finished directory of an input, if its size and time of modification are still the same.

    Args:
        run: The run directory.
        file: The input.
        fingerprint: That of the run, if it has one; somebody may have laid a directory of another run there.
    """
    directory = find_own(run, file)
    record = read_unit(directory) if directory else None
    return directory if record is not None and _is_current(record, file, fingerprint) else None


def find_own(run: Path, file: ImageFile) -> Path | None:
    """Give the directory that an input has already, of whatever state of it."""
    return next((directory for directory in places_of(run, file) if _is_of(read_unit(directory), file)), None)


def find_places(run: Path, record: Mapping[str, Any]) -> list[Path]:
    """List where in a run the directory with this record may be."""
    return places_of(run, _file_of(record))


def read_unit(directory: Path) -> dict[str, Any] | None:
    """Read the record of a finished directory; None if there is none, or none that is whole, or the directory is a link."""
    if directory.is_symlink():
        return None
    record = records.load(directory / UNIT_FILE)
    return record if is_complete(record) else None


def paths_of(record: Mapping[str, Any]) -> list[str]:
    """Give the paths of the images that a directory holds: of one, of a shard's, or of none if it is the model's."""
    if record.get("kind") == "shard":
        return [image["path"] for image in record["images"] if "failed" not in image]
    return [] if record.get("kind") else [record["source"]["path"]]


def is_damaged(directory: Path) -> bool:
    """Tell whether the record of a finished directory is not byte for byte as it was written."""
    try:
        return not records.is_sealed(records.read(directory / UNIT_FILE))
    except OSError:
        return True


def commit(
    staging: Path,
    run: Path,
    file: ImageFile,
    record: dict[str, Any],
    *,
    members: Mapping[str, int] | None = None,
    force: bool = False,
    sync: bool = False,
) -> Path:
    """List the staged files in `unit.json` and rename the directory to its final name.

    Args:
        staging: See `fmapviz.staging.stage`; holds everything but `unit.json`.
        run: The run directory.
        file: Which input it belongs to.
        record: What else `unit.json` tells.
        members: Of files that are made of many: how many. One that is cut between two of them may look whole otherwise.
        force: Replace a finished directory of the same input even if it is up to date.
        sync: Wait until all of it would survive a power failure.

    Returns:
        The finished directory. If another process was faster, that is the other's.

    Raises:
        RefusedError: All names are taken by something else.
        OSError: The disk is full, say.
    """
    source = {"path": file.path, "size": file.size, "mtime_ns": file.mtime_ns}
    with os.scandir(staging) as staged:
        entries = [_entry(file, members or {}) for file in sorted(staged, key=lambda file: file.name)]
    document = {"fmapviz": FORMAT, "unit": file.unit, "source": source, **record, "files": entries}
    files.write(staging / UNIT_FILE, seal(document))
    if sync:
        for name in (*(entry["name"] for entry in entries), UNIT_FILE, "."):
            files.sync(staging / name)
    unit: Path | None = None
    own: Path | None
    aside: list[Path] = []
    try:
        # Its own old place first: another's name may be free for the moment in which that is replaced.
        own = find_own(run, file)
        wrecks = [place for place in places_of(run, file) if force and is_wreck(place)]
        names = dict.fromkeys([*wrecks, own or run / file.unit, *places_of(run, file)])
        places = (name for name in names if _place(staging, name, run, file, record.get("run"), force=force, aside=aside))
        unit = next(places, None)
        if unit and sync:
            files.sync_folders(unit.parent, run)
        if unit and own and own != unit and _is_of(read_unit(own), file):
            with suppress(FileNotFoundError):
                aside.append(_move_aside(own, run, ASIDE))  # it had to make do with another name
    finally:
        for old in aside:
            _hand_down(old, unit, sync=sync) if unit else _put_back(old, run)
    if unit is None:
        raise RefusedError(f"no free name for {quote(file.path)} in {quote(run)}")
    return unit


def sweep(run: Path) -> None:
    """Remove what killed processes left staged, and put back what one had moved aside and not yet replaced."""
    for leftover in leftovers(run):
        if leftover.name.endswith(ASIDE):
            _put_back(leftover, run)
        elif not leftover.name.endswith(WRECK):
            files.remove_tree(leftover)


def is_wreck(directory: Path) -> bool:
    """Tell a directory of ours whose record is lost from somebody else's, as well as that can be told."""
    return not directory.is_symlink() and any(_is_no_folder(directory / name) for name in _OURS) and not read_unit(directory)


def discard_wreck(directory: Path, run: Path, ours: AbstractSet[str]) -> None:
    """Remove a directory of ours whose record is lost, unless somebody else has laid something into it.

    Raises:
        OSError: It could not be given another name.
    """
    if is_wreck(directory) and {path.name for path in directory.iterdir()} <= ours:
        files.remove_tree(_move_aside(directory, run, ""))


def _is_no_folder(path: Path) -> bool:
    """Tell whether this is there, and no directory: that would be an image's of such a name."""
    return files.exists(path) and (path.is_symlink() or not path.is_dir())


def has_wreck(run: Path, file: ImageFile) -> bool:
    """Tell whether a directory that an input may have had has lost its record."""
    return any(map(is_wreck, places_of(run, file)))


def make_way(path: Path, content: bytes, *, known: bool = False) -> None:
    """Make sure that what is to be replaced, if anything is there, was made by fmapviz.

    What we make begins alike each time, also where its end was damaged. A power failure leaves nothing of a file, or zeros.

    Args:
        path: What is to be replaced.
        content: What by, or the beginning of that.
        known: Whether a record that is whole says that a file of that name is ours, whatever its content is now.

    Raises:
        RefusedError: It was not.
    """
    try:
        there = files.read(path, most=_SIGNATURE_BYTES)
        ours = known or records.begins_like(there, content[:_SIGNATURE_BYTES])
    except FileNotFoundError:
        return
    except OSError:  # a directory, say
        ours = False
    if not ours:
        raise RefusedError(f"{quote(path)} was not made by fmapviz", hint="move it away, or choose another --name")


def places_of(run: Path, file: ImageFile) -> list[Path]:
    """List where in a run the directory of an input may be.

    Under its own name; told apart by a hash; the same outside the tree, which another one may block.
    """
    distinct = f"{file.unit}~{path_hash(file.path)}"
    flat = distinct.rpartition("/")[2]
    return [run / name for name in dict.fromkeys((file.unit, distinct, flat))]


def _is_of(record: dict[str, Any] | None, file: ImageFile) -> TypeGuard[dict[str, Any]]:
    return record is not None and record["source"]["path"] == file.path


def _is_current(record: dict[str, Any], file: ImageFile, fingerprint: object) -> bool:
    source = record["source"]
    known = (source.get("size"), source.get("mtime_ns"), record.get("run"))
    return bool(known == (file.size, file.mtime_ns, fingerprint))


def is_complete(record: Any) -> TypeGuard[dict[str, Any]]:
    """Tell whether a record says what it should of a directory; whoever wrote it may have made it up."""
    # Any: whatever a JSON file may hold.
    source = record.get("source") if isinstance(record, dict) else None
    if not isinstance(source, dict) or not records.is_path(source.get("path")) or records.entries(record) is None:
        return False
    return record.get("kind") != "shard" or records.is_shard(record)


def _place(
    staging: Path, directory: Path, run: Path, file: ImageFile, fingerprint: object, *, force: bool, aside: list[Path]
) -> bool:
    """Rename to one of the candidates, and tell whether the input now has a finished directory there.

    An older directory of the same input is moved aside first, and noted in `aside`.
    """
    while (result := _rename(staging, directory, run)) == "taken":
        with suppress(FileNotFoundError):  # another process is just replacing it: once more
            record = _read_standing(directory)
            if record is None and (_is_remnant(directory) or (force and is_wreck(directory))):
                aside.append(_move_aside(directory, run, WRECK))
                continue
            if not _is_of(record, file):
                return False  # another image's, or not ours
            if _is_current(record, file, fingerprint) and not force:
                return True  # another process was faster
            aside.append(_move_aside(directory, run, ASIDE))
    return result == "placed"


def _move_aside(directory: Path, run: Path, ending: str) -> Path:
    place = hidden(run, ending)
    files.rename(directory, place)
    return place


def _is_remnant(directory: Path) -> bool:
    try:
        return is_ours(records.read(directory / UNIT_FILE))
    except OSError:
        return False


def is_ours(data: bytes) -> bool:
    """Tell whether this is left of a directory's record that only we can have written, or a power failure."""
    return records.is_remnant(data) or b'\n "source": {"path": "' in data


def _read_standing(directory: Path) -> dict[str, Any] | None:
    """Read the record of a directory that other processes may be replacing.

    Raises:
        FileNotFoundError: There is none, but maybe only because the directory was moved aside in the meantime.
    """
    try:
        handle = os.open(directory, os.O_RDONLY)  # as long as it is open, its inode number is not given to a successor
    except PermissionError:
        return None
    try:
        record = read_unit(directory)
        if record is None and not os.path.samestat(os.fstat(handle), directory.stat()):
            raise FileNotFoundError
        return record
    finally:
        os.close(handle)


def _rename(staging: Path, directory: Path, run: Path) -> Literal["placed", "taken", "blocked"]:
    """Give a directory its final name, unless that is taken, or blocked by a file or by another image's directory above."""
    if _is_out_of_bounds(directory, run):
        return "blocked"
    try:
        files.make_folders(directory.parent)
        files.rename(staging, directory)
    except OSError as error:
        if error.errno == errno.ENOTDIR or (error.errno == errno.EEXIST and not directory.parent.is_dir()):
            return "blocked"
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST} or (error.errno == errno.ENOENT and staging.exists()):
            return "taken"  # ENOENT: the folder around it is just being replaced by another image's directory
        raise
    if _is_out_of_bounds(directory, run):  # which took the name of a folder that was still empty
        files.rename(directory, staging)
        return "blocked"
    return "placed"


def _is_out_of_bounds(directory: Path, run: Path) -> bool:
    """Tell whether it would lie in another image's directory, or behind a link."""
    between = [parent for parent in directory.parents if parent != run and parent.is_relative_to(run)]
    return any((parent / UNIT_FILE).exists() or parent.is_symlink() for parent in between)


def _hand_down(old: Path, successor: Path, *, sync: bool = False) -> None:
    """Move what somebody else has laid into a directory to the one that replaces it, and remove the rest."""
    record = read_unit(old) or read_unit(successor)  # one whose record is lost held what its successor holds
    if record is None:
        return
    ours = [*(entry["name"] for entry in record["files"]), UNIT_FILE]  # that last: a sweep goes by it
    with suppress(OSError):  # another process is at it as well, or replaces the successor: a sweep finds what is left
        if _move_others(old, successor, ours) and sync:
            files.sync(successor)
        waste = _move_aside(old, old.parent, "")  # half of it must never be put back
        for name in ours:
            with suppress(FileNotFoundError):
                files.remove(waste / name)
        # Another process may have found the directory under its old name, and put something into it only now.
        _move_others(waste, successor, ours)
        files.remove_folder(waste)


def _move_others(old: Path, successor: Path, ours: Sequence[str]) -> bool:
    """Move what is not ours, and tell whether there was anything."""
    others = [path for path in old.iterdir() if path.name not in ours or not _is_no_folder(path)]
    for path in others:
        taken = files.exists(successor / path.name)
        files.rename(path, successor / (f"{path.name}~{token_hex(4)}" if taken else path.name))
    return bool(others)


def _put_back(old: Path, run: Path) -> None:
    """Give a directory that was moved aside its name again, unless its input has another one by now."""
    record = read_unit(old)
    if record is None:
        with suppress(OSError):
            files.remove_folder(old)  # if nothing is left of it
        return
    file = _file_of(record)
    if not _is_inside(file.unit):
        return
    candidates = places_of(run, file)
    successor = find_own(run, file)
    if successor:
        _hand_down(old, successor)
        return
    with suppress(FileNotFoundError):  # another process is at it as well
        for directory in candidates:
            result = _rename(old, directory, run)
            if result == "placed" or (result == "taken" and _is_of(_read_standing(directory), file)):
                break


def _file_of(record: Mapping[str, Any]) -> ImageFile:
    source = record["source"]
    return ImageFile(source["path"], str(record.get("unit")), source.get("size"), source.get("mtime_ns"))


def _is_inside(unit: str) -> bool:
    """Tell whether a name that a record claims leads to a place in the run; whoever may write there may have made it up."""
    return records.is_path(unit) and all(part and not part.startswith(".") for part in unit.split("/"))


def _entry(file: os.DirEntry[str], members: Mapping[str, int]) -> dict[str, Any]:
    size, sha256 = files.measure(file.path)
    count = {"members": members[file.name]} if file.name in members else {}
    return {"name": file.name, "size": size, "sha256": sha256, **count}
