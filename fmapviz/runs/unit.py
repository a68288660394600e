"""Units: the directory that holds the files of one image, or of many, and a record of them.

A unit is written under a hidden name and renamed when it is complete, see `fmapviz.runs.commit`. So a directory with a
record under a name without a leading dot is complete.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard

from fmapviz.core import checksummed_json, files
from fmapviz.core.errors import RefusedError, quote
from fmapviz.core.layout import UNIT_FILE, signatures
from fmapviz.core.types import ImageFile
from fmapviz.images.find import path_hash

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

KIND = "shard"
PREFIX = "shard-"
_SIGNATURE_BYTES = 13


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
        complete: Whether all members are listed.
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

    @property
    def name(self) -> str:
        """Name of the unit.

        Example:
            >>> Group(42, 100).name
            'shard-000042'
        """
        return self.members[0].unit if self.number is None else f"{PREFIX}{self.number:06}"

    def key(self, position: int) -> int:
        """Return the number of an image, unique in the run; 0 for an image that has a unit of its own."""
        return position if self.number is None else self.number * self.size + position

    def identify(self, positions: Sequence[int]) -> ImageFile:
        """Return what tells the unit from others: the image itself, or a value of the same form for a shard.

        Args:
            positions: The images that are in the unit.

        Returns:
            For a shard a digest of all paths in place of the path, and of all states in place of the time. A shard that
            replaces another one keeps its path.
        """
        if self.number is None:
            return self.members[0]
        paths = hashlib.sha256(b"\0".join(os.fsencode(file.path) for file in self.members)).hexdigest()[:16]
        held = [self.members[position] for position in positions]
        states = hashlib.sha256(repr([(file.size, file.mtime_ns) for file in held]).encode())
        return ImageFile(
            path=self.identity.path if self.identity else f"{KIND}:{paths}",
            unit=self.identity.unit if self.identity else self.name,
            size=sum(file.size for file in held),
            mtime_ns=int.from_bytes(states.digest()[:7]),  # a number that JSON keeps everywhere
        )


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


def find_done(run: Path, file: ImageFile, fingerprint: object = None) -> Path | None:
    """Return the finished unit of an image, if the image still has the same size and time of modification.

    Args:
        run: The run directory.
        file: The image.
        fingerprint: Of the run; units of other runs do not count.
    """
    directory = find_own(run, file)
    record = read_unit(directory) if directory else None
    return directory if record is not None and is_current(record, file, fingerprint) else None


def find_own(run: Path, file: ImageFile) -> Path | None:
    """Return the unit of an image, of any state of the image; None if there is none."""
    for directory in possible_paths(run, file):
        if is_of(read_unit(directory), file):
            return directory
    return None


def possible_paths(run: Path, file: ImageFile) -> list[Path]:
    """Return the paths that the unit of an image may have.

    They are its own name, that name with a hash, and the same at the top of the run, in case another unit is in the way.
    """
    distinct = f"{file.unit}{distinction(file)}"
    flat = distinct.rpartition("/")[2]
    return [run / name for name in dict.fromkeys((file.unit, distinct, flat))]


def distinction(file: ImageFile) -> str:
    """Return the ending that distinguishes an image from others of its name."""
    return f"~{path_hash(file.path)}"


def possible_paths_of(run: Path, record: Mapping[str, Any]) -> list[Path]:
    """Return the paths that the unit with this record may have."""
    return possible_paths(run, image_of(record))


def image_of(record: Mapping[str, Any]) -> ImageFile:
    """Return the image of a record, or what stands for those of a shard."""
    source = record["source"]
    return ImageFile(source["path"], str(record.get("unit")), source.get("size"), source.get("mtime_ns"))


def paths_of(record: Mapping[str, Any]) -> list[str]:
    """Return the paths of the images in a unit: one, those of a shard, or none if the unit is of the model."""
    if record.get("kind") == "shard":
        return [image["path"] for image in record["images"] if "failed" not in image]
    return [] if record.get("kind") else [record["source"]["path"]]


def read_unit(directory: Path) -> dict[str, Any] | None:
    """Read the record of a unit; None if it is missing or incomplete, or the directory is a link."""
    if directory.is_symlink():
        return None
    record = checksummed_json.load(directory / UNIT_FILE)
    return record if is_complete(record) else None


def is_complete(record: Any) -> TypeGuard[dict[str, Any]]:
    """Return True if a record has all fields of a unit's record; it may be made up."""
    # Any: a JSON file may hold any value.
    source = record.get("source") if isinstance(record, dict) else None
    if (
        not isinstance(source, dict)
        or not checksummed_json.is_path(source.get("path"))
        or checksummed_json.entries(record) is None
    ):
        return False
    return record.get("kind") != "shard" or checksummed_json.is_shard(record)


def is_of(record: dict[str, Any] | None, file: ImageFile) -> TypeGuard[dict[str, Any]]:
    """Return True if a record is of an image, in any state."""
    return record is not None and record["source"]["path"] == file.path


def is_current(record: dict[str, Any], file: ImageFile, fingerprint: object) -> bool:
    """Return True if a record is of this state of its image, and of the run with this fingerprint."""
    source = record["source"]
    known = (source.get("size"), source.get("mtime_ns"), record.get("run"))
    return bool(known == (file.size, file.mtime_ns, fingerprint))


def is_damaged(directory: Path) -> bool:
    """Return True if the record of a unit differs from its checksum."""
    try:
        return not checksummed_json.is_sealed(checksummed_json.read(directory / UNIT_FILE))
    except OSError:
        return True


def lacks_record(directory: Path) -> bool:
    """Return True for a unit whose record is missing or cannot be read, by the names of its files."""
    if directory.is_symlink() or not any(_is_no_folder(directory / name) for name in signatures()):
        return False
    return not read_unit(directory)


def has_unit_without_record(run: Path, file: ImageFile) -> bool:
    """Return True if a directory that may be an image's unit has no record."""
    return any(map(lacks_record, possible_paths(run, file)))


def is_truncated_record(data: bytes) -> bool:
    """Return True for the rest of a unit's record that only fmapviz or a power failure can have left."""
    return checksummed_json.is_remnant(data) or b'\n "source": {"path": "' in data


def check_only_own_files(directory: Path, own: Collection[str], *, shown: Path | None = None) -> None:
    """Check that a unit that is to be replaced holds no files but its own.

    Args:
        directory: The unit.
        own: The names of its files.
        shown: The path of the unit for the message, if it is another one.

    Raises:
        RefusedError: It holds another file.
    """
    for path in sorted(directory.iterdir()):
        # A directory would be an image's of such a name. A file that is gone was replaced by another process.
        if path.name not in own or (path.is_dir() and not path.is_symlink()):
            raise RefusedError(
                f"{quote((shown or directory) / path.name)} was not made by fmapviz, and the directory around it would be "
                "replaced",
                hint="move it away, and the same command continues",
            )


def own_files(record: Mapping[str, Any]) -> set[str]:
    """Return the names of all files of a unit."""
    return {UNIT_FILE, *(entry["name"] for entry in record["files"])}


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
        raise RefusedError(f"{quote(path)} was not made by fmapviz", hint="move it away, or choose another --name")


def _is_no_folder(path: Path) -> bool:
    """Return True if a path exists and is not a directory, which would be an image's of such a name."""
    return files.exists(path) and (path.is_symlink() or not path.is_dir())
