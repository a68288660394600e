"""The finished images of a run, with their predictions, for the report."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from itertools import chain
from math import nan
from typing import TYPE_CHECKING, Any

from fmapviz.core.file_names import UNIT_FILE
from fmapviz.store.unit import read_unit
from fmapviz.store.unit_key import image_version, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from fmapviz.config import RunInfo


@dataclass(frozen=True, slots=True)
class Step:
    """The step of a training at which a unit shows its image, or the model; the units of one image are a series.

    Attributes:
        series: Name of the series.
        number: Number of the step.
        source: The version of the image; empty for the model.
        layers: The recorded feature maps.
    """

    series: str
    number: int
    source: Mapping[str, str | int]
    layers: tuple[RecordedMap, ...]


@dataclass(frozen=True, slots=True)
class RecordedMap:
    """A feature map in the record of a unit.

    Attributes:
        layer: Name of the layer.
        of: Kind of the map, and its class: `output`, `gradient top1`.
        mean: Mean of its finite values; NaN if there is none.
        dead: Number of dead channels.
    """

    layer: str
    of: str
    mean: float
    dead: int


@dataclass(frozen=True, slots=True)
class ListedUnit:
    """An image's unit in the list of a run, or one of the model, for example.

    Attributes:
        directory: The unit's directory.
        path: The image file.
        kind: Kind of the unit: `image`, or `model` for example.
        predictions: As `unit.json` records them; any JSON value in a record that was tampered with.
        finished: Time of completion, in seconds since the epoch.
        objects: In an object store, the names of objects that are not named like their files, by the name of the file.
        step: The step of a training; None if the unit belongs to no series.
    """

    directory: Path
    path: str
    kind: str
    predictions: Any
    finished: float
    objects: Mapping[str, str]
    step: Step | None = None


def summarize(unit: Path) -> list[ListedUnit]:
    """Read a unit's record; the list is empty if that is damaged."""
    record = read_unit(unit)
    if record is None:
        return []
    objects = {entry["name"]: entry["object"] for entry in record["files"] if "object" in entry}
    key = key_of(record)
    return [ListedUnit(unit, key.path, key.kind, record.get("predictions"), _time_of(unit), objects, _step_of(record))]


def merge(summaries: Iterable[list[ListedUnit]]) -> list[ListedUnit]:
    """Join lists."""
    return list(chain.from_iterable(summaries))


def publish(_summary: list[ListedUnit], _info: RunInfo) -> dict[str, bytes]:
    """Return no files: the list is part of the report's page."""
    return {}


def report(_run: Path) -> tuple[dict[str, Any], list[str]]:
    """Return nothing: the command counts the images itself."""
    return {}, []


def _step_of(record: Mapping[str, Any]) -> Step | None:
    """Return the step of a record; None if it has none, or the record was tampered with."""
    key = key_of(record)
    if key.step is None or not 0 <= key.step < 2**53:  # what JavaScript can represent
        return None
    layers = record.get("layers")
    maps = [_map_of(each) for each in layers if isinstance(each, dict)] if isinstance(layers, list) else []
    return Step(key.series, key.step, image_version(key.version), tuple(maps))


def _map_of(layer: Mapping[str, Any]) -> RecordedMap:
    mean, dead = layer.get("mean"), layer.get("dead_channels")
    return RecordedMap(
        sys.intern(str(layer.get("name"))),  # the same at all steps
        sys.intern(f"{layer.get('of', 'output')} {layer.get('target', '')}".rstrip()),
        mean if isinstance(mean, float) else nan,
        len(dead) if isinstance(dead, list) else 0,
    )


def _time_of(unit: Path) -> float:
    try:
        return (unit / UNIT_FILE).stat().st_mtime
    except FileNotFoundError:  # another process is replacing the directory now
        return time.time()
