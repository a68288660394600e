"""The table of the images with the largest values of each channel: `top.csv`.

Its rows are those of the unit that shows these images; see `fmapviz.features.top`.
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from fmapviz.core import files
from fmapviz.store.aggregates.base import UNREADABLE
from fmapviz.store.aggregates.ranker import Ranker
from fmapviz.store.aggregates.unit_ranking import TABLE_FILE, add_image, read_ranking
from fmapviz.store.unit import holds_images, read_unit
from fmapviz.store.unit_key import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from fmapviz.config import RunInfo
    from fmapviz.store.aggregates.ranking import By, Ranking


UNIT = "_top"  # and the kind that its record names
KIND = "top"
CSV_FILE = "top.csv"
COLUMNS = (
    *("layer", "channel", "rank", "image", "value", "y", "x", "left", "top", "right", "bottom"),
    *("file_left", "file_top", "file_right", "file_bottom", "copies", "note"),
)


def summarize(unit: Path) -> bytes | None:
    """Return the table of the unit that shows top images; None for all other units."""
    record = read_unit(unit) if unit.name.startswith(UNIT) else None
    if record is None or key_of(record).kind != KIND:
        return None
    return files.read(unit / CSV_FILE)


def merge(summaries: Iterable[bytes | None]) -> bytes | None:
    """Return the only table."""
    return next(filter(None, list(summaries)), None)


def publish(summary: bytes | None, _info: RunInfo) -> dict[str, bytes]:
    """Return the contents of `top.csv`."""
    return {} if summary is None else {CSV_FILE: summary}


def report(_run: Path) -> tuple[Mapping[str, Any], list[str]]:
    """Return nothing: notices are reported when the images are drawn."""
    return {}, []


def write_rows(rows: Iterable[Mapping[str, object]]) -> bytes:
    """Format the table, one row for each channel and rank."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8", "backslashreplace")


def rank_units(units: Iterable[Path], run: Path, *, by: By, k: int) -> tuple[Ranking, list[Path]]:
    """Rank the images of a run's units by the statistics that they keep.

    Args:
        units: The units' directories.
        run: The run directory.
        by: The value to rank by.
        k: Number of images per channel; for a run with shards at most `KEPT`.

    Returns:
        The ranking, and the units left out because their files are missing or damaged.
    """
    ranker = Ranker(by, k)
    left_out = []
    for unit in units:
        try:
            if files.exists(unit / TABLE_FILE):
                ranker.merge(read_ranking(unit, by, k))
            else:
                add_image(ranker, by, unit, unit.relative_to(run).as_posix())
        except UNREADABLE:
            if holds_images(read_unit(unit)):
                left_out.append(unit)
    return ranker.finish(), left_out
