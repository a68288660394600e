"""The finished images of a run, with their predictions: what a report lists."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from fmapviz.core.file_names import UNIT_FILE
from fmapviz.runs.unit import read_unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from fmapviz.core.config import RunInfo

READS = ""


@dataclass(frozen=True, slots=True)
class ListedUnit:
    """An image's unit in the list of a run, or one of the model, for example.

    Attributes:
        directory: The unit's directory.
        path: The image file.
        kind: What the unit shows if it is no image, such as `model`; else None.
        predictions: As `unit.json` records them; any JSON value in a record that was tampered with.
        finished: Time of completion, in seconds since the epoch.
        objects: In an object store, the names of objects that are not named like their files, by the name of the file.
    """

    directory: Path
    path: str
    kind: str | None
    predictions: Any
    finished: float
    objects: Mapping[str, str]


def summarize(unit: Path) -> list[ListedUnit]:
    """Read a unit's record; the list is empty if that is damaged."""
    record = read_unit(unit)
    if record is None:
        return []
    objects = {entry["name"]: entry["object"] for entry in record["files"] if "object" in entry}
    return [
        ListedUnit(unit, record["source"]["path"], record.get("kind"), record.get("predictions"), _time_of(unit), objects)
    ]


def merge(summaries: Iterable[list[ListedUnit]]) -> list[ListedUnit]:
    """Join lists."""
    return list(chain.from_iterable(summaries))


def publish(_summary: list[ListedUnit], _info: RunInfo) -> dict[str, bytes]:
    """Return no files: the list is part of the report's page."""
    return {}


def report(_run: Path) -> tuple[dict[str, Any], list[str]]:
    """Return nothing: the command counts the images itself."""
    return {}, []


def _time_of(unit: Path) -> float:
    try:
        return (unit / UNIT_FILE).stat().st_mtime
    except FileNotFoundError:  # another process is replacing the directory now
        return time.time()
