"""Keys of units: the source of a unit, the name of its directory, and what must be equal for it to be up to date."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from fmapviz.core.urls import is_path
from fmapviz.images.find import path_hash
from fmapviz.images.frames import frames_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fmapviz.data import ImageFile

    Version = Mapping[str, str | int]

IMAGE, SHARD = "image", "shard"  # the kinds of units that hold images; all others are words of those that write them
_OF_IMAGES = ("size", "mtime_ns", "etag", "sha256")  # what sources of images state, see `fmapviz.types.ImageFile`


@dataclass(frozen=True, slots=True)
class UnitKey:
    """What a unit is of, and in which state.

    Attributes:
        kind: `image`, `shard`, or a word of the feature that writes it, such as `model`.
        path: Its source, in any version: the path of an image, or a text of the feature.
        name: Name of its directory, relative to the run directory, with `/`; if it is taken, see `possible_paths`.
        version: Values that must be equal for it to be up to date, such as the size of an image file. `step` is the step of
            a training that the unit shows.
    """

    kind: str
    path: str
    name: str
    version: Version

    @property
    def step(self) -> int | None:
        """The step of a training; None if the unit belongs to no series of steps."""
        step = self.version.get("step")
        return step if isinstance(step, int) and self.series else None

    @property
    def series(self) -> str:
        """The name that the units of all steps have in common."""
        return self.name.rpartition("/")[0]

    @property
    def record(self) -> dict[str, Any]:
        """The key as `unit.json` records it."""
        return {"kind": self.kind, "path": self.path, "name": self.name, "version": dict(self.version)}


def key_of(record: Mapping[str, Any]) -> UnitKey:
    """Return the key that the record of a unit holds."""
    return UnitKey(**record["unit"])


def image_key(file: ImageFile) -> UnitKey:
    """Return the key of the unit of a single image."""
    return UnitKey(IMAGE, file.path, file.unit, file.version)


def image_version(recorded: Mapping[str, Any]) -> Version:
    """Return the version of an image: a part of the version of its unit, and of its entry in the record of a shard."""
    return {name: recorded[name] for name in _OF_IMAGES if name in recorded}


def is_key(value: object) -> TypeGuard[dict[str, Any]]:
    """Return True for a key as `unit.json` records it; the record may have been tampered with."""
    if not isinstance(value, dict) or value.keys() != {"kind", "path", "name", "version"}:
        return False
    version = value["version"]
    return (
        isinstance(value["kind"], str)
        and is_path(value["path"])
        and is_path(value["name"])
        and isinstance(version, dict)
        and is_version(version)
    )


def is_version(version: Mapping[str, Any]) -> bool:
    """Return True for a version as records hold it."""
    return all(type(value) in {str, int} for value in version.values())


def possible_paths(run: Path, key: UnitKey) -> list[Path]:
    """Return the paths that a unit may have.

    They are its own name, that name with a hash, and the same at the top of the run, in case another unit is in the way.
    """
    return [run / name for name in possible_names(key.name, key.path)]


def possible_names(name: str, path: str) -> list[str]:
    """Return the names of `possible_paths`."""
    distinct = distinct_name(name, path)
    last = distinct.split("/")[-2 if frames_of(path) else -1 :]
    return [*dict.fromkeys((name, distinct, "/".join(last)))]


def distinct_name(name: str, path: str) -> str:
    """Return the name of a unit with a hash that distinguishes it from others of its name.

    For a frame, the film's directory gets the hash, so that all frames stay together.
    """
    if frames := frames_of(path):
        film, _, frame = name.rpartition("/")
        return f"{film}~{path_hash(frames.film)}/{frame}"
    return f"{name}~{path_hash(path)}"


def plain_name(name: str, path: str) -> str:
    """Return the name of a unit without that hash."""
    if frames := frames_of(path):
        film, _, frame = name.rpartition("/")
        return f"{film.removesuffix(f'~{path_hash(frames.film)}')}/{frame}"
    return name.removesuffix(f"~{path_hash(path)}")
