"""Statistics of every channel over the whole run, as a table and as JSON; no pictures."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from fmapviz import files, statistics
from fmapviz.errors import printable
from fmapviz.records import FORMAT, seal
from fmapviz.report.page import pack, statistics_script
from fmapviz.units import read_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from fmapviz.statistics import LayerStatistics
    from fmapviz.values import Picture, RunInfo, Unit

NEEDS = "measures"


@contextmanager
def open_writer(directory: Path, unit: Unit) -> Iterator[Callable[[Picture], None]]:
    """Write what is known of one image's channels: what the run's statistics are made of.

    Yields:
        A function that takes a picture and does nothing with it.

    Raises:
        OSError: The file could not be written, or is there already.
    """
    yield lambda _: None
    files.write(directory / statistics.FILE, statistics.encode(unit.drawn))


def publish(_run: Path, units: list[Path], info: RunInfo) -> tuple[dict[str, bytes], list[Path]]:
    """Make `stats.csv` and `stats.json` of all images of a run, but for those whose directories are damaged.

    For a report `stats.js` is made too, so that nothing is gathered twice.
    """
    images, layers, without = statistics.gather(units)
    left_out = [unit for unit in without if (read_unit(unit) or {}).get("kind") is None]  # what the model is like has none
    document: dict[str, Any] = {  # Any: JSON values of all kinds
        "fmapviz": FORMAT,
        "model": info.model,
        "weights": info.weights,
        "weights_sha256": info.sha256,  # the seal is called sha256
        "images": images,
        "layers": statistics.as_records(layers),
    }
    made = {
        statistics.CSV_FILE: statistics.as_rows(layers).encode("utf-8", "backslashreplace"),
        statistics.JSON_FILE: seal(document),
    }
    if "html" in info.formats:
        made["stats.js"] = statistics_script(_for_report(images, layers))
    return made, left_out


def _for_report(images: int, layers: Sequence[LayerStatistics]) -> dict[str, Any]:
    """Say what the report's page shows."""
    return {
        "images": images,
        "layers": [
            {
                "name": printable(each.place.layer),
                "of": f"{each.place.of} {each.place.target}".rstrip(),
                "type": printable(each.place.type),
                "channels": each.place.channels,
                "constant": each.constant,
                "data": pack(
                    np.stack([each.low, each.high, each.mean, each.deviation, each.zero_share, each.nonfinite / each.values])
                ),
            }
            for each in layers
        ],
    }
