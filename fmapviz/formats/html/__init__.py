"""A report, index.html, to open in a browser, with PNG files beside it."""

from __future__ import annotations

from base64 import b64encode
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from itertools import chain
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from fmapviz.core import files, registry
from fmapviz.core.drawings import Grid, Histogram
from fmapviz.core.file_names import ALIGNMENT, FILMSTRIP
from fmapviz.core.members import load
from fmapviz.draw.colormaps import table
from fmapviz.draw.records import summarize_empty
from fmapviz.errors import printable
from fmapviz.formats.html.facts import describe_settings
from fmapviz.formats.html.listing import href_of, list_curves, list_images, list_steps, number, repeated_inputs
from fmapviz.formats.html.page import link, pack, pixel_script, read_script, render_page, script, to_json
from fmapviz.formats.html.single_file import LARGEST, embed, too_large
from fmapviz.store.failures import read_failures
from fmapviz.store.unit_key import IMAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from fmapviz.config import RunInfo
    from fmapviz.core.drawings import Tiles
    from fmapviz.data import EmptyMaps, Picture, UnitImage
    from fmapviz.store.aggregates.channels import ChannelStatistics
    from fmapviz.store.aggregates.images import ListedUnit

PAGE = "index.html"


UNIT_SCRIPT, _PIXELS_SCRIPT = "report.js", "pixels.js"
_STATISTICS_SCRIPT = "stats.js"
_CURVES_SCRIPT = "steps.js"


class UnitReport:
    """Collects the data of a unit."""

    members: Mapping[str, int] = MappingProxyType({})

    def __init__(self, directory: Path) -> None:
        self.document: dict[str, Any] = {"pictures": []}
        self._directory = directory

    def add(self, image: UnitImage, pictures: Iterable[Picture]) -> tuple[()]:
        """See `fmapviz.formats.base.Writer`."""
        of_pictures = summarize_empty(image.empty_maps)
        described: list[dict[str, Any]] = []
        readable = _add_to(described, pictures, image.empty_maps)
        if first := next(readable, None):
            files.write_pieces(self._directory / _PIXELS_SCRIPT, pixel_script(chain([first], readable)))
        self.document = {
            "unit": printable(image.name),
            "source": printable(image.path),
            "predictions": [printable(str(each)) for each in image.result.predictions],
            "notices": [printable(notice) for notice in image.notices if notice not in of_pictures],
            "pictures": [*self.document["pictures"], *described],
        }
        return ()


def _add_to(
    described: list[dict[str, Any]], pictures: Iterable[Picture], empty_maps: Sequence[EmptyMaps]
) -> Iterator[tuple[str, bytes]]:
    """Describe pictures, and yield the address and the file of each one whose values the page shows."""
    for picture in pictures:
        described.append(_describe(picture, empty_maps))
        if "levels" in described[-1]:
            yield described[-1]["href"], picture.png


@contextmanager
def open_writer(directory: Path, *, many: bool = False) -> Iterator[UnitReport]:  # noqa: ARG001
    """Write the data of a unit as scripts, which the report's page loads: `report.js`, and `pixels.js` with its grids."""
    report = UnitReport(directory)
    yield report
    files.write(directory / UNIT_SCRIPT, script("unit", report.document))


def publish(run: Path, info: RunInfo, summaries: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the report's page, and the data of its panels.

    Args:
        run: The run directory.
        info: The run's settings.
        summaries: The summaries of the run's aggregates, by their names. The page has a panel for `statistics`.
    """
    units: list[ListedUnit] = summaries["images"]
    images = [unit for unit in units if unit.kind == IMAGE]
    finished = {unit.path: unit.finished for unit in images}
    models = [unit for unit in units if unit.kind == "model"]
    model = next((href_of(unit.directory, run) for unit in models), None)
    strips = [unit.directory for unit in units if unit.kind == FILMSTRIP]
    films = {strip.parent.relative_to(run).as_posix(): href_of(strip, run) for strip in strips}
    listed = list_images(images, run, films)
    curves = list_curves(images, listed)
    if model and not listed:  # a run without images shows the model in their place
        model, listed = None, [{"unit": "the model", "href": model, "predictions": [], "thumbnail": False}]
    page: dict[str, Any] = {
        "title": info.label,
        "views": [*info.config.views, *([ALIGNMENT] if info.against else []), *([FILMSTRIP] if films else [])],
        "facts": describe_settings(info.settings, info.versions),
        "units": listed,
        "model": model,
        "statistics": _STATISTICS_SCRIPT if "statistics" in summaries else None,
        "failures": [
            {key: printable(str(failure.get(key))) for key in ("path", "message", "code")}
            for failure in read_failures(run)
            if finished.get(str(failure.get("path")), 0.0) < number(failure.get("time"))
        ],
    }
    for part in registry.report_parts():
        page |= load(part.data)(run, units, summaries)
    if steps := list_steps(models, run):
        page["models"] = steps
    if objects := _objects(units, run):
        page["objects"] = objects
    contents = {}
    if "statistics" in summaries:
        contents[_STATISTICS_SCRIPT] = script("statistics", _statistics(summaries["statistics"]))
    if curves:
        page["curves"] = _CURVES_SCRIPT
        contents[_CURVES_SCRIPT] = script("curves", curves)
    if info.config.single_file:
        directories = {href_of(unit.directory, run): unit.directory for unit in units}
        embedded = embed(directories, script=UNIT_SCRIPT, without=repeated_inputs(listed))
        embedded |= {name: to_json(read_script(content)) for name, content in contents.items()}
        contents[PAGE] = render_page(page, embedded)
        if len(contents[PAGE]) > LARGEST:
            raise too_large(len(units))
    else:
        contents[PAGE] = render_page(page)
    return contents


def _objects(units: Sequence[ListedUnit], run: Path) -> dict[str, str]:
    """Return the addresses of files of the page that an object store has under other names."""
    return {
        href_of(unit.directory, run) + link(PurePath(name)): href_of(unit.directory, run) + link(PurePath(other))
        for unit in units
        for name, other in unit.objects.items()
        if name.endswith((".png", ".js"))
    }


def _describe(picture: Picture, empty_maps: Sequence[EmptyMaps]) -> dict[str, Any]:
    layer = picture.layer and {
        "index": picture.layer.index,
        "name": printable(picture.layer.layer),
        "type": printable(picture.layer.type),
        "shape": list(picture.layer.shape),
        **({"sees": [_axis(ends.tobytes()) for ends in picture.layer.sees]} if picture.layer.sees else {}),
    }
    content = picture.drawing.content if picture.drawing else None
    notices = [printable(each.text) for each in empty_maps if (each.view, each.layer) == (picture.group, picture.layer)]
    channels = content.channels if isinstance(content, Grid) else None
    width, height = picture.area or (picture.width, picture.height)  # the page has the caption as text
    statistics = None
    if picture.layer and picture.tiles and (measures := picture.layer.measures):
        # The script reads them in this order.
        shares = measures.zeros / measures.values, measures.nonfinite / measures.values
        rows = np.stack([measures.low, measures.high, measures.mean, np.nan_to_num(measures.std), *shares])
        shown = rows if channels is None else rows[:, list(channels)]
        statistics = {"values": measures.values, "data": pack(shown)}
    return {
        "href": _link(picture.file_name),
        "view": picture.group,
        "name": printable(picture.name),
        "title": printable(picture.title),
        "width": width,
        "height": height,
        "layer": layer,
        "facts": [[key, printable(value)] for key, value in picture.facts.items()],
        "tiles": picture.tiles and _fields(picture.tiles),
        "channels": None if channels is None else list(channels),
        "statistics": statistics,
        **({"levels": _levels(content)} if picture.tiles and isinstance(content, Grid) and content.ends is not None else {}),
        **({"notices": notices} if notices else {}),
        **picture.report,
        **({"histogram": _histogram(content)} if isinstance(content, Histogram) else {}),
    }


def _levels(grid: Grid) -> dict[str, Any]:
    """Return the data that convert the pixels of a grid's tiles to values."""
    assert grid.ends is not None
    palette = b64encode(table(grid.palette).tobytes()).decode() if grid.palette else None
    return {"data": pack(grid.ends), **({"palette": palette} if palette else {})}


# The same for all images.
_link = lru_cache(4096)(lambda file_name: link(PurePath(file_name)))
_fields: Callable[[Tiles], dict[str, int]] = lru_cache(4096)(asdict)


@lru_cache(4096)  # likewise
def _axis(ends: bytes) -> list[Any]:
    """Return the first and the last pixel that each position along an axis depends on.

    Args:
        ends: The first pixels, then the last ones, int64.

    Returns:
        Three numbers if the intervals are regular: the first pixel of the first one, the distance between two and their
        length. Else a list of first pixels and one of last pixels; with one entry each, they are the same for all positions.
    """
    first, last = np.frombuffer(ends, np.int64).reshape(2, -1)
    steps, lengths = np.unique(np.diff(first)), np.unique(last - first)
    if len(steps) == len(lengths) == 1:
        return [int(first[0]), int(steps[0]), int(lengths[0]) + 1]
    return [first.tolist(), last.tolist()]


def _histogram(histogram: Histogram) -> dict[str, Any]:
    has_values = histogram.counts.any()
    return {
        "counts": histogram.counts.tolist(),
        "low": float(histogram.low) if has_values else None,
        "high": float(histogram.high) if has_values else None,
        "nonfinite": histogram.nonfinite,
    }


def _statistics(channels: ChannelStatistics) -> dict[str, Any]:
    """Pack minimum, maximum, mean, deviation, and shares of zeros and of non-finite values, over all images."""
    shares = [channels[name] / channels.values for name in ("zeros", "nonfinite")]
    rows = np.stack([*(channels[name] for name in ("min", "max", "mean")), channels.std, *shares])
    dead = channels.flat
    layers = [
        {
            "name": printable(info.layer),
            "of": f"{info.of} {info.target}".rstrip(),
            "type": printable(info.type),
            "channels": info.channels,
            "dead": dead[own].nonzero()[0].tolist(),
            "data": pack(rows[:, own]),
        }
        for info, own in channels.slices()
    ]
    return {"images": channels.images, "layers": layers}
