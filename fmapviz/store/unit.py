"""Units: the directory that holds the files of one image, or of many, and a record of them.

A unit is written to a hidden directory, and renamed when it is complete; an older one is replaced without losing it. So a
directory with a record under a name without a leading dot is complete.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from fmapviz.core import checksummed_json, files
from fmapviz.core.checksummed_json import FORMAT
from fmapviz.core.file_names import UNIT_FILE, signatures
from fmapviz.core.files import hidden, leftovers
from fmapviz.errors import RefusedError, quote
from fmapviz.images.find import path_hash
from fmapviz.images.frames import frames_of
from fmapviz.types import ImageFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

KIND = "shard"
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
        identity: Identity of the shard that is replaced; None: the unit is new, or of a single image.
        keep: Positions of images that the replaced shard holds and that must not be lost.
        reported: Positions of images that were reported as finished before the shard was drawn again.
        redraw: Whether to replace an up-to-date unit.
        complete: Whether all members are listed; so it is once the last one is in work.
    """

    number: int | None
    size: int
    members: list[ImageFile] = field(default_factory=list)
    identity: ImageFile | None = None
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
    run: Path,
    file: ImageFile,
    fingerprint: object = None,
    *,
    is_intact: Callable[[Path], bool] | None = None,
    marks: Mapping[str, object] = MappingProxyType({}),
) -> Path | None:
    """Return the finished unit of an image, if the image still has the same size and time of modification.

    Args:
        run: The run directory.
        file: The image.
        fingerprint: Of the run; units of other runs do not count.
        is_intact: Returns False for a unit that needs repair; with it, units without a record must not be in the way either.
        marks: Further fields that its record must have.
    """
    directory, record = find_own(run, file) or (None, None)
    if directory is None or record is None or not is_current(record, file, fingerprint):
        return None
    if any(record.get(name) != value for name, value in marks.items()):
        return None
    if is_intact and (any(map(lacks_record, possible_paths(run, file))) or not is_intact(directory)):
        return None
    return directory


def find_own(run: Path, file: ImageFile) -> tuple[Path, dict[str, Any]] | None:
    """Return the unit of an image, of any state of the image, and its record; None if there is none."""
    for directory in possible_paths(run, file):
        if is_of(record := read_unit(directory), file):
            return directory, record
    return None


def possible_paths(run: Path, file: ImageFile) -> list[Path]:
    """Return the paths that the unit of an image may have.

    They are its own name, that name with a hash, and the same at the top of the run, in case another unit is in the way.
    """
    distinct = distinct_name(file)
    last = distinct.split("/")[-2 if frames_of(file.path) else -1 :]
    return [run / name for name in dict.fromkeys((file.unit, distinct, "/".join(last)))]


def distinct_name(file: ImageFile) -> str:
    """Return the name of an image's unit with a hash that distinguishes it from others of its name.

    Of a frame it is the film that has the hash, so that all its frames stay together.
    """
    if frames := frames_of(file.path):
        film, _, frame = file.unit.rpartition("/")
        return f"{film}~{path_hash(frames.film)}/{frame}"
    return f"{file.unit}~{path_hash(file.path)}"


def plain_name(file: ImageFile) -> str:
    """Return the name of an image's unit without that hash."""
    if frames := frames_of(file.path):
        film, _, frame = file.unit.rpartition("/")
        return f"{film.removesuffix(f'~{path_hash(frames.film)}')}/{frame}"
    return file.unit.removesuffix(f"~{path_hash(file.path)}")


def image_of(record: Mapping[str, Any]) -> ImageFile:
    """Return the image of a record, or what stands for those of a shard."""
    source = record["source"]
    return ImageFile(source["path"], str(record.get("unit")), source.get("size"), source.get("mtime_ns"))


def paths_of(record: Mapping[str, Any]) -> list[str]:
    """Return the paths of the images in a unit: one, those of a shard, or none if the unit is of the model."""
    if record.get("kind") == KIND:
        return [image["path"] for image in record["images"] if "failed" not in image]
    return [] if record.get("kind") else [record["source"]["path"]]


def holds_images(record: Mapping[str, Any]) -> bool:
    """Return True for the record of a unit of one image or of a shard; False if the unit shows the model, for example."""
    return record.get("kind") in {None, KIND}


def read_unit(directory: Path) -> dict[str, Any] | None:
    """Read the record of a unit; None if it is missing or incomplete, or the directory is a link."""
    if directory.is_symlink():
        return None
    try:
        return parse_unit(checksummed_json.read(directory / UNIT_FILE))
    except OSError:
        return None


def parse_unit(data: bytes) -> dict[str, Any] | None:
    """Parse the record of a unit; None if it lacks a field, or cannot be parsed. It may have been tampered with."""
    record = checksummed_json.parse(data)
    if record is None or checksummed_json.entries(record) is None:
        return None
    source = record.get("source")
    if not isinstance(source, dict) or not checksummed_json.is_path(source.get("path")):
        return None
    images, number = record.get("images"), record.get("shard")
    if record.get("kind") == KIND and not (
        isinstance(images, list) and all(map(_is_image, images)) and isinstance(number, int) and 0 <= number < MOST_SHARDS
    ):
        return None
    return record


def is_of(record: dict[str, Any] | None, file: ImageFile) -> TypeGuard[dict[str, Any]]:
    """Return True if a record is of an image, in any state."""
    return record is not None and record["source"]["path"] == file.path


def is_current(record: dict[str, Any], file: ImageFile, fingerprint: object) -> bool:
    """Return True if a record is of this state of its image, and of the run with this fingerprint."""
    source = record["source"]
    known = (source.get("size"), source.get("mtime_ns"), record.get("run"))
    return bool(known == (file.size, file.mtime_ns, fingerprint))


def lacks_record(directory: Path) -> bool:
    """Return True for a unit whose record is missing or cannot be read, by the names of its files."""
    if directory.is_symlink():
        return False
    for path in map(directory.joinpath, signatures()):
        if path.is_symlink() or (path.exists() and not path.is_dir()):  # a directory would be an image's of such a name
            return not read_unit(directory)
    return False


def is_truncated_record(data: bytes) -> bool:
    """Return True for the rest of a unit's record that only fmapviz or a power failure can have left."""
    return checksummed_json.is_truncated(data) or b'\n "source": {"path": "' in data


def check_only_own_files(
    directory: Path, record: Mapping[str, Any], *, shown: Path | None = None, change: str = "replaced"
) -> None:
    """Check that a unit that is to be replaced or removed holds no files but its own.

    Args:
        directory: The unit.
        record: Its record.
        shown: The path of the unit for the message, if it is another one.
        change: What will be done to it, for the message.

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
    file: ImageFile,
    record: dict[str, Any],
    *,
    members: Mapping[str, int] | None = None,
    force: bool = False,
    sync: bool = False,
) -> Path:
    """List the staged files in `unit.json` and rename the directory to its final name.

    Args:
        staging: From `stage`; holds everything but `unit.json`.
        run: The run directory.
        file: The image of the unit, or what stands for those of a shard.
        record: Further fields of `unit.json`.
        members: Numbers of records in files that are sequences of them; such a file may look complete when truncated.
        force: Whether to replace an up-to-date unit of the same image.
        sync: Whether to wait until the unit would survive a power failure.

    Returns:
        The finished unit; if another process was faster, that of the other process.

    Raises:
        RefusedError: No name is free, or the unit to be replaced holds files that fmapviz did not make.
        OSError: The disk is full, for example.
    """
    document = _write_record(staging, file, record, members or {}, sync=sync)
    replacement = _Replacement(staging, run, file, document, force)
    unit: Path | None = None
    try:
        # The image's present path first: another image's may be free for the moment in which that is replaced.
        present, _ = find_own(run, file) or (None, None)
        paths = possible_paths(run, file)
        damaged = [path for path in paths if force and lacks_record(path)]
        names = dict.fromkeys([*damaged, present or run / file.unit, *paths])
        unit = next(filter(replacement.rename_to, names), None)
        if unit and present and present != unit and is_of(read_unit(present), file):
            with suppress(FileNotFoundError):
                replacement.move_aside(present, REPLACED)  # it was under another name
    finally:
        for old in replacement.aside:
            if unit:
                with suppress(OSError):  # another process may be at it as well: a sweep finds what is left
                    discard(old, run)
            else:
                _restore(old, run)
    if unit is None:
        raise RefusedError(f"no free name for {quote(file.path)} in {quote(run)}")
    if sync:
        files.sync_folders(unit.parent, run)
    return unit


def sweep(run: Path) -> None:
    """Remove what killed processes left staged, and restore units that they had moved aside and not yet replaced."""
    for leftover in leftovers(run):
        if leftover.name.endswith(REPLACED):
            _restore(leftover, run)
        elif not leftover.name.endswith(UNRECORDED):
            files.remove_tree(leftover)


def _is_image(image: object) -> bool:
    """Return True for an image in the record of a shard."""
    if not isinstance(image, dict) or not checksummed_json.is_path(image.get("path")):
        return False
    return isinstance(image.get("name"), str) and all(isinstance(image.get(key), int) for key in ("size", "mtime_ns"))


def _write_record(
    staging: Path, file: ImageFile, record: dict[str, Any], members: Mapping[str, int], *, sync: bool
) -> dict[str, Any]:
    """Write `unit.json`, the last file of a unit, and return its content."""
    entries: list[dict[str, Any]] = []
    for path in sorted(staging.iterdir()):
        name, (size, sha256) = path.name, files.measure(path)
        entries.append({"name": name, "size": size, "sha256": sha256})
        if name in members:
            entries[-1]["members"] = members[name]
    source = {"path": file.path, "size": file.size, "mtime_ns": file.mtime_ns}
    document = {"fmapviz": FORMAT, "unit": file.unit, "source": source, **record, "files": entries}
    files.write(staging / UNIT_FILE, checksummed_json.dumps(document))
    if sync:
        for name in (*(entry["name"] for entry in entries), UNIT_FILE, "."):
            files.sync(staging / name)
    return document


@dataclass(frozen=True, slots=True, eq=False)
class _Replacement:
    """Names a staged unit; older units of the same image are moved aside first."""

    staging: Path
    run: Path
    file: ImageFile
    document: Mapping[str, Any]
    force: bool
    aside: list[Path] = field(default_factory=list)

    def rename_to(self, directory: Path) -> bool:
        """Return True if the image now has a finished unit of this name."""
        while (result := _rename(self.staging, directory, self.run)) == "taken":
            with suppress(FileNotFoundError):  # another process is replacing it: once more
                record = _read_existing(directory)
                if record is None and (_has_truncated_record(directory) or (self.force and lacks_record(directory))):
                    self.move_aside(directory, UNRECORDED)
                    continue
                if not is_of(record, self.file):
                    return False  # of another image, or not made by fmapviz
                if is_current(record, self.file, self.document.get("run")) and not self.force:
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
            check_only_own_files(directory, record or self.document, shown=shown)
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
    """Rename a unit that was moved aside back, unless its image has another unit by now."""
    record = read_unit(old)
    if record is None:
        with suppress(OSError):
            files.remove_folder(old)  # if it is empty
        return
    file = image_of(record)
    if not _is_inside(file.unit):
        return
    with suppress(FileNotFoundError):  # another process is at it as well
        if find_own(run, file):
            with suppress(RefusedError, OSError):
                check_only_own_files(old, record)
                discard(old, run)
            return
        for directory in possible_paths(run, file):
            result = _rename(old, directory, run)
            if result == "placed" or (result == "taken" and is_of(_read_existing(directory), file)):
                break


def _read_existing(directory: Path) -> dict[str, Any] | None:
    """Read the record of a directory that other processes may be replacing.

    Raises:
        FileNotFoundError: There is none, but possibly only because the directory was moved aside in the meantime.
    """
    try:
        handle = os.open(directory, os.O_RDONLY)  # while it is open, no other directory gets its inode number
    except PermissionError:
        return None
    try:
        record = read_unit(directory)
        if record is None and not os.path.samestat(os.fstat(handle), directory.stat()):
            raise FileNotFoundError
        return record
    finally:
        os.close(handle)


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
        if error.errno == errno.ENOTDIR or (error.errno == errno.EEXIST and not directory.parent.is_dir()):
            return "blocked"
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST} or (error.errno == errno.ENOENT and staging.exists()):
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
        if (parent / UNIT_FILE).exists() or parent.is_symlink():
            return True
    return False


def _is_inside(unit: str) -> bool:
    """Return True if a name leads to a path in the run: the record it is from may be made up."""
    return checksummed_json.is_path(unit) and all(part and not part.startswith(".") for part in unit.split("/"))
