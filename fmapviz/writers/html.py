"""A report to open in a browser, index.html, with PNG files beside it."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from fmapviz import files
from fmapviz.errors import printable
from fmapviz.report.links import link
from fmapviz.report.page import pack, render_page, unit_script
from fmapviz.runs import read_failures
from fmapviz.units import UNIT_FILE, read_unit
from fmapviz.values import Drawing, HeatMap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from fmapviz.values import Measures, Picture, RunInfo, Unit

NEEDS = "pictures measures"
WITH = "png"  # the page shows these files

_SCRIPT = "report.js"


@contextmanager
def open_writer(directory: Path, unit: Unit) -> Iterator[Callable[[Picture], None]]:
    """Write what the report's page has to know of one image, as a script that it loads.

    Yields:
        A function that takes note of one picture.

    Raises:
        OSError: The file could not be written, or is there already.
    """
    pictures: list[dict[str, Any]] = []
    yield lambda picture: pictures.append(_describe(picture))
    document = {
        "unit": printable(unit.file.unit),
        "source": printable(unit.file.path),
        "predictions": [printable(str(each)) for each in unit.drawn.predictions],
        "notices": [printable(notice) for notice in unit.notices],
        "pictures": pictures,
    }
    files.write(directory / _SCRIPT, unit_script(document))


def publish(run: Path, units: list[Path], info: RunInfo) -> tuple[dict[str, bytes], list[Path]]:
    """Make the report's page, for all images of a run, and what it tells of all of them together."""
    records = [(unit, record) for unit in units if (record := read_unit(unit))]
    images = [(unit, record) for unit, record in records if record.get("kind") != "model"]
    of_model = next((unit for unit, record in records if record.get("kind") == "model"), None)
    names = _names([(unit.relative_to(run), PurePath(record["source"]["path"])) for unit, record in images])
    finished = {record["source"]["path"]: _finished(unit) for unit, record in images}
    alone = (
        [{"unit": "the model", "href": _address(of_model, run), "predictions": [], "thumbnail": False}] if of_model else []
    )
    page = {
        "title": info.label,
        "views": list(info.views),
        "facts": _facts(info),
        "units": [
            {
                "unit": name,
                "href": _address(unit, run),
                "predictions": _predicted(record.get("predictions")),
            }
            for name, (unit, record) in zip(names, images, strict=True)
        ]
        or alone,
        "model": _address(of_model, run) if of_model and images else None,
        "statistics": "stats.js" if "stats" in info.formats else None,  # which that format writes
        "failures": [
            {key: printable(str(failure.get(key))) for key in ("path", "message", "code")}
            for failure in read_failures(run)
            if finished.get(str(failure.get("path")), 0.0) < _number(failure.get("time"))
        ],
    }
    return {"index.html": render_page(page)}, []


def _names(images: Sequence[tuple[PurePath, PurePath]]) -> list[str]:
    """Name images as their files are called, with as many folders as tell them apart, not as their directories are.

    Args:
        images: Of each its directory in the run, and its file.
    """
    lengths = [len(unit.parts) for unit, _ in images]
    while True:
        names = ["/".join(source.parts[-length:]) for (_, source), length in zip(images, lengths, strict=True)]
        counts = Counter(names)
        longer = [
            index
            for index, (name, (_, source)) in enumerate(zip(names, images, strict=True))
            if counts[name] > 1 and lengths[index] < len(source.parts)
        ]
        if not longer:
            return list(map(printable, names))
        for index in longer:
            lengths[index] += 1


def _finished(unit: Path) -> float:
    """Say when an image was finished: now, if another process is just replacing its directory."""
    try:
        return (unit / UNIT_FILE).stat().st_mtime
    except FileNotFoundError:
        return time.time()


def _address(unit: Path, run: Path) -> str:
    return link(unit.relative_to(run)) + "/"


def _describe(picture: Picture) -> dict[str, Any]:
    source = picture.source
    channels = source.channels if isinstance(source, Drawing) else None
    measures = source.measures if isinstance(source, Drawing) and picture.tiles else None
    return {
        "href": link(PurePath(picture.file_name)),
        "view": picture.group,
        "name": printable(picture.name),
        "title": printable(picture.title),
        "width": picture.width,
        "height": picture.height,
        "layer": None if source is None else _layer(source),
        "facts": [[key, printable(value)] for key, value in picture.facts.items()],
        "tiles": None if picture.tiles is None else asdict(picture.tiles),
        "channels": None if channels is None else list(channels),
        "statistics": None if measures is None else _numbers(measures, channels),
    }


def _layer(source: Drawing | HeatMap) -> dict[str, Any]:
    return {
        "index": source.index,
        "name": printable(source.layer),
        "type": printable(source.type),
        "shape": list(source.shape),
    }


def _numbers(measures: Measures, channels: Sequence[int] | None) -> dict[str, Any]:
    """Pack what is known of the channels shown: min, max, mean, deviation, shares of zeros and of non-finite values."""
    rows = np.stack(
        [
            measures.low,
            measures.high,
            measures.mean,
            np.nan_to_num(measures.std),
            measures.zeros / measures.values,
            measures.nonfinite / measures.values,
        ]
    )
    rows = rows if channels is None else rows[:, list(channels)]
    return {"values": measures.values, "data": pack(rows)}


def _facts(info: RunInfo) -> list[list[str]]:
    facts = {
        "Model": info.model,
        "Weights": info.weights,
        "SHA-256": info.sha256 or "",
        "Input": info.preparation,
        "Views": ", ".join(info.views),
        "Layers": ", ".join(info.layers) or "all",
        "Without": ", ".join(info.exclude),
        "Types": ", ".join(info.types),
        "Scaling": info.style.norm,
        "Versions": ", ".join(f"{name} {version}" for name, version in info.versions.items()),
    }
    return [[key, printable(value)] for key, value in facts.items() if value]


# Any: what a record holds may be anybody's.
def _predicted(records: Any) -> list[str]:
    told = [each for each in records if isinstance(each, dict)] if isinstance(records, list) else []
    return [printable(f"{each.get('class')} {_number(each.get('score')):.1%}".replace("%", " %")) for each in told]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, float) or (isinstance(value, int) and abs(value) < 1e300) else 0.0
