"""Turn drawings into pictures: render, frame, name and encode them.

Each class of content has one renderer, found in a table by its type. Facts describe a picture in words: they are its header
and the text of its PNG file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from fmapviz.core.drawings import Bars, Grid, HeatMap, Histogram, Rgb
from fmapviz.core.types import Picture
from fmapviz.core.version import __version__
from fmapviz.render.heatmap import colormap_of, describe_heat_map, draw_heat_map, value_range, why_empty
from fmapviz.render.histogram import draw_histogram
from fmapviz.render.labels import add_colorbar, add_header, number_rows, number_tiles
from fmapviz.render.png import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from fmapviz.core.config import RunInfo, Style
    from fmapviz.core.drawings import Content, Drawing, Tiles
    from fmapviz.core.types import ImageFile, ImageResult, LayerResult

    Cell = tuple[LayerResult, HeatMap]
    # Composes the maps of all layers into one picture, see `fmapviz.views.base.ImageView`.
    Compose = Callable[..., tuple[NDArray[np.uint8], dict[str, str]]]

MOST_NAMED = 4  # empty cells, and layers with values that are not finite
_NO_SHEETS: Mapping[str, Compose] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Rendered:
    """A picture before its frame: numbers, colour bar and header.

    Attributes:
        pixels: uint8 `(H, W)` or `(H, W, 3)`.
        facts: What it shows, in words.
        tiles: Position of its tiles, if it has any.
        rows: Position of rows of tiles that belong together, if it has any.
        channels: Numbers of the tiles, or of those rows; None: counted from 0.
        colormap: Of the colour bar; None for grey.
        marks: Labels of the colour bar, by their height from 0 to 1; none: no colour bar.
        complete: Whether it needs no frame.
    """

    pixels: NDArray[np.uint8]
    facts: Mapping[str, str]
    tiles: Tiles | None = None
    rows: Tiles | None = None
    channels: Sequence[int] | None = None
    colormap: str | None = None
    marks: Sequence[tuple[float, str]] = ()
    complete: bool = False


def make_pictures(
    result: ImageResult,
    seen: NDArray[np.uint8],
    file: ImageFile,
    info: RunInfo,
    *,
    sheets: Mapping[str, Compose] = _NO_SHEETS,
) -> Iterator[Picture]:
    """Encode one image's drawings, one at a time.

    Args:
        result: Everything found out about the image.
        seen: The input as the network saw it, uint8 `(H, W)` or `(H, W, 3)`.
        file: The image.
        info: The run's settings.
        sheets: The views that compose the maps of all layers into one picture.

    Yields:
        The input, then the other drawings in the order of execution, then heat maps, then sheets.
    """
    common = {**_provenance(info), "Image": file.unit}
    if result.predictions:
        common = {"Predicted": ", ".join(map(str, result.predictions)), **common}
    shape = f"{seen.shape[0]} x {seen.shape[1]} pixels"
    facts = {"Shows": "the input as the network saw it", "Shape": shape, **common}
    yield _encode("input", "input", seen, facts)
    indices = [layer.index for layer in result.layers if layer.drawings or layer.measures]
    digits = max(2, len(str(max(indices, default=0))))
    drawings = [(layer, drawing) for layer in result.layers for drawing in layer.drawings if drawing.content]
    for layer, drawing in drawings:
        if not isinstance(drawing.content, HeatMap):
            yield make_picture(layer, drawing, info, seen=seen, common=common, digits=digits)
    cells: dict[str, list[Cell]] = {view: [] for view in sheets}
    for layer, drawing in drawings:
        if isinstance(drawing.content, HeatMap):
            if drawing.view in cells:
                cells[drawing.view].append((layer, drawing.content))
            else:
                yield make_picture(layer, drawing, info, seen=seen, common=common, digits=digits)
    for view, compose in sheets.items():
        if cells[view]:
            title = f"{info.label}: {file.unit}"
            pixels, facts = compose(cells[view], seen, title=title, result=result, style=info.config.style)
            yield _encode(view, view, pixels, facts | common)


def make_picture(
    layer: LayerResult,
    drawing: Drawing,
    info: RunInfo,
    *,
    seen: NDArray[np.uint8] | None = None,
    common: Mapping[str, str] | None = None,
    digits: int,
) -> Picture:
    """Encode one drawing.

    Args:
        layer: The result it belongs to.
        drawing: With content.
        info: The run's settings.
        seen: The input as the network saw it; None for a drawing of the model itself.
        common: Facts about the image; None for the model's alone.
        digits: Digits of the index in the name.
    """
    content = drawing.content
    assert content is not None
    rendered = _RENDERERS[type(content)](layer, content, _NOTHING if seen is None else seen, info)
    pixels, tiles = frame(rendered, info.config.style, _header(layer, drawing, rendered.facts, info))
    name, title = f"{layer.index:0{digits}d} {layer.layer or 'input'}", ""
    if target := layer.target:
        name, title = f"{name}.{target.label}", f"{name}: {target.title}"
    facts = {**rendered.facts, **(_provenance(info) if common is None else common)}
    height, width = pixels.shape[:2]
    return Picture(drawing.view, name, encode(pixels, facts), width, height, facts, title, layer, drawing, tiles)


def is_numbered(style: Style) -> bool:
    """Return True if tiles show their numbers; without `labels`, only where these are not known beforehand."""
    return bool(style.labels or (style.labels is None and style.top))


def frame(rendered: Rendered, style: Style, lines: Sequence[str]) -> tuple[NDArray[np.uint8], Tiles | None]:
    """Add what `style.labels` and `style.colorbar` ask for; return the tiles' position in the framed picture too."""
    pixels, tiles = rendered.pixels, rendered.tiles
    if rendered.complete:
        return pixels, tiles
    numbered = tiles or rendered.rows
    if numbered and is_numbered(style):
        number = number_tiles if tiles else number_rows
        channels = range(numbered.count) if rendered.channels is None else rendered.channels
        pixels, numbered = number(pixels, numbered, channels)
        tiles = tiles and numbered
    if style.colorbar and rendered.marks:
        pixels = add_colorbar(pixels, colormap=rendered.colormap, marks=rendered.marks)
    if style.labels and lines:
        height = pixels.shape[0]
        pixels = add_header(pixels, lines)
        tiles = tiles and replace(tiles, top=tiles.top + pixels.shape[0] - height)
    return pixels, tiles


def layer_records(result: ImageResult) -> list[dict[str, Any]]:
    """Describe each drawn or measured feature map."""
    records: dict[object, dict[str, Any]] = {}
    for layer in result.layers:
        if not layer.described:
            continue
        statistics = layer.statistics
        assert statistics is not None
        contents = [drawing.content for drawing in layer.drawings]
        channels = next((each.channels for each in contents if isinstance(each, Grid | Bars)), None)
        nonfinite = next((each.nonfinite for each in contents if isinstance(each, Rgb)), 0)
        record = records.setdefault((layer.of, layer.layer, layer.target and layer.target.label), {})
        record |= {
            "index": layer.index,
            "name": layer.layer,
            "type": layer.type,
            "shape": list(layer.shape),
            "call": layer.call,
            "samples": layer.samples,
            "min": statistics.minimum,
            "max": statistics.maximum,
            "mean": statistics.mean,
            "dead_channels": list(statistics.constant),
            "nonfinite": statistics.nonfinite,
            **({"nonfinite_places": nonfinite} if nonfinite else {}),
            **({} if channels is None else {"channels": list(channels)}),
            **({} if layer.of == "output" else {"of": layer.of}),
            **(layer.target.record if layer.target else {}),
        }
    return list(records.values())


def heat_records(result: ImageResult) -> list[dict[str, Any]]:
    """Describe each heat map."""
    records = []
    for layer, view, heat in result.heat_maps:
        low, high = (value if isfinite(value) else None for value in heat.extremes)
        record = {
            "view": view,
            "layer": layer.layer or None,
            "type": layer.type or None,
            "shape": list(layer.shape),
            "automatic": layer.automatic,
            **(layer.target.record if layer.target else {}),
            "min": low,
            "max": high,
        }
        if heat.limits is not None:
            record |= {"nonfinite": heat.nonfinite, "nonfinite_places": heat.raw.size - int(heat.finite.sum())}
        records.append(record)
    return records


def empty_map_notices(result: ImageResult, *, sheets: Collection[str] = ()) -> list[str]:
    """Return notices about heat maps of a class that show nothing: a result that looks like a failure.

    Args:
        result: Everything found out about an image.
        sheets: The views whose maps are cells of one picture.
    """
    notices = []
    cells: dict[str, list[str]] = {view: [] for view in sheets}
    for layer, view, heat in result.heat_maps:
        if heat.limits is not None or not (reason := why_empty(heat)):
            continue
        if view in cells:
            if layer.target:
                cells[view].append(f"{layer.layer} for {layer.target.title}")
            continue
        of = f" of {layer.layer}" if layer.layer else ""
        name = f"{view}{of}" + (f" for {layer.target.title}" if layer.target else "")
        notices.append(f"{name} is {reason} (raw values {value_range(heat)})")
    for view, names in cells.items():
        if names:
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            notices.append(f"cells of the {view} with nothing to see: {', '.join(names[:MOST_NAMED])}{more}")
    if len(notices) > MOST_NAMED:
        notices[MOST_NAMED:] = [f"{len(notices) - MOST_NAMED} more such heat maps"]
    return notices


def overflow_notices(result: ImageResult) -> list[str]:
    """Return a notice about raw values that overflowed float16, if there are any."""
    layers = [(layer.layer, layer.values.overflows) for layer in result.layers if layer.values and layer.values.overflows]
    if not layers:
        return []
    named = f"{layers[0][0]}{' and others' if layers[1:] else ''}"
    count = sum(overflows for _, overflows in layers)
    return [f"{count} values of {named} are too large for float16, and infinite in what is kept"]


_NOTHING = np.zeros((0, 0), np.uint8)


def _encode(view: str, name: str, pixels: NDArray[np.uint8], facts: Mapping[str, str]) -> Picture:
    return Picture(view, name, encode(pixels, facts), pixels.shape[1], pixels.shape[0], facts)


def _provenance(info: RunInfo) -> dict[str, str]:
    return {"Model": info.label, "Weights": info.weights, "Software": f"fmapviz {__version__}"}


def _header(layer: LayerResult, drawing: Drawing, facts: Mapping[str, str], info: RunInfo) -> list[str]:
    """Return the lines above a picture: layer, type, shape; what is shown, its range and scaling; the model."""
    first = "  ".join(facts[key] for key in ("Layer", "Type", "Shape") if key in facts)
    plain = layer.of == "output" and isinstance(drawing.content, Grid | Bars)
    shown = [*([] if plain else [drawing.view]), *(facts[key] for key in ("Class", "Range") if key in facts)]
    return [first, ": ".join(shown), facts["Scaling"], facts.get("Not finite", ""), info.label]


def _render_grid(layer: LayerResult, grid: Grid, _seen: NDArray[np.uint8], info: RunInfo) -> Rendered:
    marks: tuple[tuple[float, str], ...] = ((0.0, "min"), (1.0, "max"))
    if layer.of == "weights" and layer.shape[1] == 3:
        marks = ()  # kernels in red, green and blue have no colour map
    elif grid.limits:
        marks = tuple((end, f"{limit:.4g}") for end, limit in zip((0.0, 1.0), grid.limits, strict=True))
    elif info.config.style.norm == "signed":
        marks = ((0.0, "-max"), (0.5, "0"), (1.0, "max"))
    return Rendered(
        grid.pixels,
        _describe_layer(layer, grid, info.config.style),
        tiles=grid.tiles,
        rows=grid.rows,
        channels=grid.channels,
        colormap=info.config.style.palette,
        marks=marks,
    )


def _render_bars(layer: LayerResult, bars: Bars, _seen: NDArray[np.uint8], info: RunInfo) -> Rendered:
    # No colour bar: the height of a bar shows its value.
    return Rendered(bars.pixels, _describe_layer(layer, bars, info.config.style), tiles=bars.tiles, channels=bars.channels)


def _render_rgb(layer: LayerResult, rgb: Rgb, seen: NDArray[np.uint8], info: RunInfo) -> Rendered:
    """Enlarge a picture of a layer's resolution to the input's, times the scale, each pixel a rectangle."""
    scale = info.config.style.scale
    sides = [(have, scale * max(have, want)) for have, want in zip(rgb.pixels.shape[:2], seen.shape[:2], strict=True)]
    rows, columns = (np.arange(wanted) * have // wanted for have, wanted in sides)
    return Rendered(rgb.pixels[rows[:, None], columns], _describe_layer(layer, rgb, info.config.style))


def _render_histogram(layer: LayerResult, histogram: Histogram, _seen: NDArray[np.uint8], info: RunInfo) -> Rendered:
    facts = _describe_layer(layer, histogram, info.config.style)
    title = f"{layer.layer}  {layer.type}  {facts['Shape']}"
    return Rendered(draw_histogram(histogram, title=title, note=info.label), facts, complete=True)


def _render_heat_map(layer: LayerResult, heat: HeatMap, seen: NDArray[np.uint8], info: RunInfo) -> Rendered:
    style = info.config.style
    low, high = heat.limits or (max(float(heat.raw.min()), 0.0), max(float(heat.raw.max()), 0.0))
    colormap = colormap_of(heat, style)
    return Rendered(
        draw_heat_map(heat, seen, style),
        describe_heat_map(layer, heat, style),
        colormap=None if colormap == "gray" else colormap,
        marks=((0.0, f"{low:.4g}"), (1.0, f"{high:.4g}")) if isfinite(low + high) else (),
    )


# Any: each renderer takes the class of content it stands under.
_RENDERERS: dict[type[Content], Callable[[LayerResult, Any, NDArray[np.uint8], RunInfo], Rendered]] = {
    Grid: _render_grid,
    Bars: _render_bars,
    Rgb: _render_rgb,
    Histogram: _render_histogram,
    HeatMap: _render_heat_map,
}

_SHOWS = {
    "input": "what goes into the layer",
    "gradient": "the gradient of the class's score at the layer's output",
    "input gradient": "the gradient of the class's score at the layer's input",
    "weights": "the layer's weights: filters, input channels, rows, columns",
}
_COMPONENTS_OF = {"image": "this image", "shared": "all images of the run"}


def _describe_layer(layer: LayerResult, content: Grid | Bars | Histogram | Rgb, style: Style) -> dict[str, str]:
    """Return the facts of a drawing of a layer's channels."""
    statistics = layer.statistics
    assert statistics is not None
    low = statistics.minimum
    facts = {
        "Layer": layer.layer,
        "Type": layer.type,
        "Shape": " x ".join(map(str, layer.shape)),
        **({} if layer.of == "output" else {"Shows": _SHOWS[layer.of]}),
        **({"Class": str(layer.target)} if layer.target else {}),
        "Range": "no finite value" if low is None else f"{_number(low)} to {_number(statistics.maximum)}",
        "Mean": _number(statistics.mean),
        "Scaling": _describe_scaling(layer, content, style),
    }
    channels = content.channels if isinstance(content, Grid | Bars) else None
    if channels is not None:
        facts["Channels"] = _shorten([str(channel) for channel in channels])
    if statistics.constant:
        facts["Constant channels"] = _shorten([str(channel) for channel in statistics.constant])
    if statistics.nonfinite:
        if isinstance(content, Histogram):
            shown = "not counted"
        elif isinstance(content, Rgb):
            shown = f"at {content.nonfinite} of {content.pixels[..., 0].size} places, drawn as a checkerboard"
        else:
            shown = "drawn as a checkerboard"
        facts["Not finite"] = f"{statistics.nonfinite} values are NaN or infinite, {shown}"
    if layer.samples > 1:
        facts["Samples"] = f"the layer saw {layer.samples} samples for this image; the first is drawn"
    return facts


def _describe_scaling(layer: LayerResult, content: Grid | Bars | Histogram | Rgb, style: Style) -> str:
    if isinstance(content, Histogram):
        return "the share of values in each of equal parts of the range"
    if isinstance(content, Rgb):
        return f"the first three principal components, of {_COMPONENTS_OF[style.pca]}, are red, green and blue"
    if layer.of == "weights":
        return _scaling_of_weights(content, style, in_colour=layer.shape[1] == 3)
    if style.norm == "run" and content.limits:
        colours = f", in {style.palette}" if style.palette else ""
        return f"{_number(content.limits[0])} to {_number(content.limits[1])}, the range of all images of the run{colours}"
    if not isinstance(content, Bars):
        return _scaling_of_tiles(style)
    ends = "the smallest value, or zero, to the largest, or zero"
    return f"bars from zero, each row from {'{:g} to {:g}'.format(*style.limits) if style.limits else ends}"


def _scaling_of_weights(content: Grid | Bars, style: Style, *, in_colour: bool) -> str:
    if style.norm == "signed":
        colours = "grey" if in_colour else style.palette or "grey"
        return f"zero is in the middle, each filter's largest magnitude at an end, of {colours}"
    colours = "" if in_colour or not style.palette else f", in {style.palette}"
    if content.limits:
        return f"{_number(content.limits[0])} to {_number(content.limits[1])}, all filters alike{colours}"
    return f"each filter from its smallest weight to its largest{colours}"


def _scaling_of_tiles(style: Style) -> str:
    if style.norm == "signed":
        return f"zero is in the middle, each channel's largest magnitude at an end, of {style.palette or 'grey'}"
    whose = "the layer's" if style.norm == "layer" else "each channel's"
    low, high = (f"{limit:g}" for limit in style.limits) if style.limits else (f"{whose} minimum", "its maximum")
    if style.palette:
        return f"from {low} to {high}, in {style.palette}"
    return f"{low} is black, {high} {'is ' if style.limits else ''}white"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _shorten(words: list[str]) -> str:
    shown = ", ".join(words[:32])
    return f"{shown}, ... ({len(words)} in all)" if len(words) > 32 else shown
