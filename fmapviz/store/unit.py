"""Units: the directory that holds the files of one image, or of many, and a record of them.

A unit is written to a hidden directory, and renamed when it is complete; an older one is replaced without losing it. So a
directory with a record under a name without a leading dot is complete.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from fmapviz.core import checksummed_json, files, platforms
from fmapviz.core.checksummed_json import FORMAT
from fmapviz.core.file_names import UNIT_FILE, signatures
from fmapviz.core.files import hidden, leftovers
from fmapviz.core.urls import is_path
from fmapviz.data import ImageFile
from fmapviz.errors import RefusedError, quote
from fmapviz.store.unit_key import IMAGE, SHARD, image_version, is_key, is_version, key_of, possible_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from fmapviz.store.unit_key import UnitKey

MOST_SHARDS = 2**31  # in one run: the number of a shard and that of an image in it fit into 64 bits
REPLACED = "-old"  # ends the name of a finished unit that is being replaced
UNRECORDED = "-damaged"  # ends the name of a unit without a record that is being replaced


@dataclass(slots=True, eq=False)
class Group:
    """The images of one unit, in listing order.

    Attributes:
        number: Number of the shard, from 0; None: the unit of a single image.
        size: Largest number of images.
        members: The images listed so far.
        replaced: Key of the shard that is replaced; None: the unit is new, or of a single image.
        keep: Positions of images that the replaced shard holds and that must not be lost.
        reported: Positions of images that were reported as finished before the shard was drawn again.
        redraw: Whether to replace an up-to-date unit.
        complete: Whether all members are listed, which is true once the last one is processed.
    """

    number: int | None
    size: int
    members: list[ImageFile] = field(default_factory=list)
    replaced: UnitKey | None = None
    keep: frozenset[int] = frozenset()
    reported: frozenset[int] = frozenset()
    redraw: bool = False
    complete: bool = False

    @classmethod
    def of_one(cls, file: ImageFile, *, redraw: bool = False) -> Group:
        """Return the group of an image that has a unit of its own."""
        return cls(None, 1, [file], redraw=redraw, complete=True)

    def key(self, position: int) -> int:
        """Return the number of an image, unique in the run; 0 for an image that has a unit of its own."""
        return position if self.number is None else self.number * self.size + position


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One image of a group.

    Attributes:
        group: The images of its unit.
        position: Index of the image among them.
    """

    group: Group
    position: int

    @property
    def file(self) -> ImageFile:
        """The image."""
        return self.group.members[self.position]


def find_done(
    run: Path, key: UnitKey, fingerprint: object = None, *, is_intact: Callable[[Path], bool] | None = None
) -> Path | None:
    """Return the finished unit that a key names, if it is up to date.

    Args:
        run: The run directory.
        key: The key.
        fingerprint: Of the run; units of other runs do not count.
        is_intact: Returns False for a unit that needs repair; with it, units without a record must not be in the way either.
    """
    directory, record = find_own(run, key) or (None, None)
    if directory is None or record is None or not is_current(record, key, fingerprint):
        return None
    if is_intact and (any(map(lacks_record, possible_paths(run, key))) or not is_intact(directory)):
        return None
    return directory


def find_own(run: Path, key: UnitKey) -> tuple[Path, dict[str, Any]] | None:
    """Return the unit that a key names, of any version, and its record; None if there is none."""
    for directory in possible_paths(run, key):
        if is_of(record := read_unit(directory), key):
            return directory, record
    return None


def holds_images(record: Mapping[str, Any] | None) -> bool:
    """Return True for the record of a unit of one image or of a shard; also without a record, which may have been one."""
    return record is None or record["unit"]["kind"] in {IMAGE, SHARD}


def images_of(record: Mapping[str, Any] | None) -> list[ImageFile]:
    """Return the images of a unit: one, or those of a shard; none of another kind of unit, or without a record."""
    if record is None or not holds_images(record):
        return []
    key = record["unit"]
    if key["kind"] == IMAGE:
        return [image_file({**key["version"], **key})]
    return [image_file(entry) for entry in record["images"] if "failed" not in entry]


def listed_images_of(record: Mapping[str, Any] | None) -> list[ImageFile]:
    """Return the images of a unit, of a shard also those that failed: each keeps its position."""
    if record and record["unit"]["kind"] == SHARD:
        return [image_file(entry) for entry in record["images"]]
    return images_of(record)


def has_changed(before: ImageFile, now: ImageFile) -> bool:
    """Return True if an image has another size or entity tag; its time of modification does not count."""
    return any(now.version.get(key) != before.version.get(key) for key in ("size", "etag"))


def image_file(entry: Mapping[str, Any]) -> ImageFile:
    """Return the image that an entry of a shard's record describes."""
    return ImageFile(entry["path"], entry["name"], image_version(entry))


def read_unit(directory: Path) -> dict[str, Any] | None:
    """Read the record of a unit; None if it is missing or incomplete, or the directory is a link."""
    if os.path.islink(directory):
        return None
    try:
        return parse_unit(checksummed_json.read(directory / UNIT_FILE))
    except OSError:
        return None


def parse_unit(data: bytes) -> dict[str, Any] | None:
    """Parse the record of a unit; None if it lacks a field, or cannot be parsed. It may have been tampered with."""
    record = checksummed_json.parse(data)
    if record is None or checksummed_json.entries(record) is None or not is_key(key := record.get("unit")):
        return None
    images, number = record.get("images"), record.get("shard")
    if key["kind"] == SHARD and not (
        isinstance(images, list) and all(map(_is_image, images)) and isinstance(number, int) and 0 <= number < MOST_SHARDS
    ):
        return None
    return record


def is_of(record: dict[str, Any] | None, key: UnitKey) -> TypeGuard[dict[str, Any]]:
    """Return True if a record has the kind and path of a key, in any version."""
    return record is not None and (record["unit"]["kind"], record["unit"]["path"]) == (key.kind, key.path)


def is_current(record: dict[str, Any], key: UnitKey, fingerprint: object) -> bool:
    """Return True if a record has the version of a key, and is of the run with this fingerprint."""
    return bool(record["unit"]["version"] == key.version and record.get("run") == fingerprint)


def lacks_record(directory: Path) -> bool:
    """Return True for a unit whose record is missing or cannot be read, by the names of its files."""
    if os.path.islink(directory):
        return False
    for path in map(directory.joinpath, signatures()):
        is_folder = os.path.isdir(path) and not os.path.islink(path)
        if os.path.lexists(path) and not is_folder:  # a directory would be an image's of such a name
            return not read_unit(directory)
    return False


def is_truncated_record(data: bytes) -> bool:
    """Return True for the rest of a unit's record that only fmapviz or a power failure can have left."""
    return checksummed_json.is_truncated(data) or b'\n "unit": {"kind": "' in data


def has_intact_record(directory: Path) -> bool:
    """Return True if the record of a unit is as it was written, so that it names the unit's files."""
    try:
        return checksummed_json.is_intact(checksummed_json.read(directory / UNIT_FILE))
    except OSError:
        return False


def check_only_own_files(
    directory: Path, record: Mapping[str, Any], *, shown: Path | None = None, change: str = "replaced"
) -> None:
    """Check that a unit that is to be replaced or removed holds no files but its own.

    Args:
        directory: The unit.
        record: Its record.
        shown: The path of the unit for the message, if it is another one.
        change: The planned change, for the message.

    Raises:
        RefusedError: It holds another file.
    """
    own = {UNIT_FILE, *(entry["name"] for entry in record["files"])}
    with suppress(FileNotFoundError), os.scandir(directory) as entries:  # another process is replacing it
        # A directory would be an image's of such a name.
        foreign = [entry.name for entry in entries if entry.name not in own or entry.is_dir(follow_symlinks=False)]
        if foreign:
            raise RefusedError(
                f"{quote((shown or directory) / min(foreign))} was not made by fmapviz, and the directory around it would "
                f"be {change}",
                hint="move it away, and the same call continues",
            )


def commit(
    staging: Path,
    run: Path,
    key: UnitKey,
    record: dict[str, Any],
    *,
    members: Mapping[str, int] | None = None,
    force: bool = False,
    sync: bool = False,
) -> Path:
    """List the staged files in `unit.json` and rename the directory to its final name.

    Args:
        staging: From `staging_folder`; holds everything but `unit.json`.
        run: The run directory.
        key: The key of the unit.
        record: Further fields of `unit.json`.
        members: Numbers of records in files that are sequences of them; such a file may look complete when truncated.
        force: Whether to replace an up-to-date unit of the same key.
        sync: Whether to wait until the unit would survive a power failure.

    Returns:
        The finished unit; if another process was faster, that of the other process.

    Raises:
        RefusedError: No name is free, or the unit to be replaced holds files that fmapviz did not make.
        OSError: The disk is full, for example.
    """
    document = _write_record(staging, key, record, members or {}, sync=sync)
    replacement = _Replacement(staging, run, key, document, force)
    unit: Path | None = None
    try:
        # The unit's present path first: another unit's may be free for the moment in which that is replaced.
        present, _ = find_own(run, key) or (None, None)
        paths = possible_paths(run, key)
        damaged = [path for path in paths if force and lacks_record(path)]
        names = dict.fromkeys([*damaged, present or run / key.name, *paths])
        unit = next(filter(replacement.rename_to, names), None)
        if unit and present and present != unit and is_of(read_unit(present), key):
            with suppress(FileNotFoundError):
                replacement.move_aside(present, REPLACED)  # it was under another name
    finally:
        for old in replacement.aside:
            if unit:
                with suppress(OSError):  # another process may remove it, too; a sweep removes the rest
                    discard(old, run)
            else:
                _restore(old, run)
    if unit is None:
        raise RefusedError(f"no free name for {quote(key.path)} in {quote(run)}")
    if sync:
        files.sync_folders(unit.parent, run)
    return unit


def sweep(run: Path) -> None:
    """Remove the staged files of killed processes, and restore units that they moved aside but did not replace."""
    for leftover in leftovers(run):
        if leftover.name.endswith(REPLACED):
            _restore(leftover, run)
        elif not leftover.name.endswith(UNRECORDED):
            files.remove_tree(leftover)


def _is_image(image: object) -> bool:
    """Return True for an image in the record of a shard."""
    if not isinstance(image, dict) or not is_path(image.get("path")):
        return False
    return isinstance(image.get("name"), str) and is_version(image_version(image))


def _write_record(
    staging: Path, key: UnitKey, record: Mapping[str, Any], members: Mapping[str, int], *, sync: bool
) -> dict[str, Any]:
    """Write `unit.json`, the last file of a unit, and return its content."""
    entries: list[dict[str, Any]] = []
    for path in sorted(staging.iterdir()):
        name, (size, sha256) = path.name, files.measure(path)
        entries.append({"name": name, "size": size, "sha256": sha256})
        if name in members:
            entries[-1]["members"] = members[name]
    document = {"fmapviz": FORMAT, "unit": key.record, **record, "files": entries}
    files.write(staging / UNIT_FILE, checksummed_json.dumps(document))
    if sync:
        for name in (*(entry["name"] for entry in entries), UNIT_FILE, "."):
            files.sync(staging / name)
    return document


@dataclass(frozen=True, slots=True, eq=False)
class _Replacement:
    """Names a staged unit; older units of the same key are moved aside first."""

    staging: Path
    run: Path
    key: UnitKey
    document: Mapping[str, Any]
    force: bool
    aside: list[Path] = field(default_factory=list)

    def rename_to(self, directory: Path) -> bool:
        """Return True if the key now has a finished unit of this name."""
        while (result := _rename(self.staging, directory, self.run)) == "taken":
            with suppress(FileNotFoundError):  # another process is replacing it: once more
                record = _read_existing(directory)
                if record is None and (_has_truncated_record(directory) or (self.force and lacks_record(directory))):
                    self.move_aside(directory, UNRECORDED)
                    continue
                if not is_of(record, self.key):
                    return False  # of another key, or not made by fmapviz
                if is_current(record, self.key, self.document.get("run")) and not self.force:
                    return True  # another process was faster
                self.move_aside(directory, REPLACED)
        return result == "placed"

    def move_aside(self, directory: Path, ending: str) -> None:
        self._check(directory, shown=directory)
        aside = hidden(self.run, ending)
        files.rename(directory, aside)
        try:
            self._check(aside, shown=directory)  # a file may have been added in the meantime
        except RefusedError:
            files.rename(aside, directory)
            raise
        self.aside.append(aside)

    def _check(self, directory: Path, *, shown: Path) -> None:
        record = read_unit(directory)
        try:
            known = record or self.document
            if record and not has_intact_record(directory):  # the name of a file may be damaged
                known = {"files": [*record["files"], *self.document["files"]]}
            check_only_own_files(directory, known, shown=shown)
        except RefusedError:
            if read_unit(directory) != record:
                raise FileNotFoundError from None  # another process has just replaced it
            raise


def discard(directory: Path, run: Path) -> None:
    """Remove a unit that holds no files but its own."""
    waste = hidden(run)
    files.rename(directory, waste)  # a part of it must never be restored
    files.remove_tree(waste)


def _restore(old: Path, run: Path) -> None:
    """Rename a unit that was moved aside back, unless its key has another unit by now."""
    record = read_unit(old)
    if record is None:
        with suppress(OSError):
            files.remove_folder(old)  # if it is empty
        return
    key = key_of(record)
    if not all(part and not part.startswith(".") for part in key.name.split("/")):
        return  # the record may be made up, and lead out of the run
    with suppress(FileNotFoundError):  # another process restores it, too
        if find_own(run, key):
            with suppress(RefusedError, OSError):
                check_only_own_files(old, record)
                discard(old, run)
            return
        for directory in possible_paths(run, key):
            result = _rename(old, directory, run)
            if result == "placed" or (result == "taken" and is_of(_read_existing(directory), key)):
                break


def _read_existing(directory: Path) -> dict[str, Any] | None:
    """Read the record of a directory that other processes may be replacing.

    Raises:
        FileNotFoundError: There is none, but possibly only because the directory was moved aside in the meantime.
    """
    with suppress(PermissionError), platforms.held(directory) as status:
        record = read_unit(directory)
        if record is None and not os.path.samestat(status, directory.stat()):
            raise FileNotFoundError
        return record
    return None


def _has_truncated_record(directory: Path) -> bool:
    try:
        return is_truncated_record(checksummed_json.read(directory / UNIT_FILE))
    except OSError:
        return False


def _rename(staging: Path, directory: Path, run: Path) -> Literal["placed", "taken", "blocked"]:
    """Rename a unit, unless the name is taken, or blocked by a file or by another unit above it."""
    if _is_out_of_bounds(directory, run):
        return "blocked"
    try:
        files.make_folders(directory.parent)
        files.rename(staging, directory)
    except OSError as error:
        if error.errno == errno.ENOTDIR or (error.errno == errno.EEXIST and not os.path.isdir(directory.parent)):
            return "blocked"
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST} or (error.errno == errno.ENOENT and os.path.exists(staging)):
            return "taken"  # ENOENT: the folder around it is being replaced by another unit
        raise
    if _is_out_of_bounds(directory, run):  # another unit took the name of a folder that was still empty
        files.rename(directory, staging)
        return "blocked"
    return "placed"


def _is_out_of_bounds(directory: Path, run: Path) -> bool:
    """Return True if a path is inside another unit, or behind a link."""
    for parent in directory.parents:
        if parent == run or not parent.is_relative_to(run):
            return False
        if os.path.exists(parent / UNIT_FILE) or os.path.islink(parent):
            return True
    return False
