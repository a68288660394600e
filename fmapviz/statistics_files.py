"""The files that tell what the channels of a run's images are like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fmapviz import statistics
from fmapviz.errors import printable
from fmapviz.records import FORMAT, seal
from fmapviz.report.page import pack, statistics_script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmapviz.statistics import LayerStatistics
    from fmapviz.values import RunInfo


def make(images: int, layers: Sequence[LayerStatistics], info: RunInfo) -> dict[str, bytes]:
    """Give the contents of the files that tell what the channels of a run's images are like, by name."""
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
    return made


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
