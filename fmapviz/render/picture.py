"""Turn drawings into pictures: render, frame, name and encode them.

Each class of content has one renderer, found in a table by its type.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from fmapviz.core.drawings import Bars, Grid, HeatMap, Histogram, Rgb
from fmapviz.core.types import Picture
from fmapviz.core.version import __version__
from fmapviz.render.captions import Rendered, describe_layer
from fmapviz.render.heatmap import render_heat_map
from fmapviz.render.histogram import draw_histogram
from fmapviz.render.labels import add_colorbar, add_header, number_rows, number_tiles
from fmapviz.render.png import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from fmapviz.core.config import RunInfo, Style
    from fmapviz.core.drawings import Content, Drawing, Tiles
    from fmapviz.core.types import ImageFile, ImageResult, LayerResult

    Cell = tuple[LayerResult, HeatMap]
    # Composes the maps of all layers into one picture, see `fmapviz.views.base.ImageView`.
    Compose = Callable[..., tuple[NDArray[np.uint8], dict[str, str]]]

_NO_SHEETS: Mapping[str, Compose] = MappingProxyType({})


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
    picture = _encode(drawing.view, name, pixels, facts)
    return replace(picture, title=title, layer=layer, drawing=drawing, tiles=tiles)


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
    # Kernels in red, green and blue have no colour map.
    marks = () if layer.of == "weights" and layer.shape[1] == 3 else _marks(grid, info.config.style)
    return Rendered(
        grid.pixels,
        describe_layer(layer, grid, info.config.style),
        tiles=grid.tiles,
        rows=grid.rows,
        channels=grid.channels,
        colormap=info.config.style.palette,
        marks=marks,
    )


def _render_bars(layer: LayerResult, bars: Bars, _seen: NDArray[np.uint8], info: RunInfo) -> Rendered:
    # No colour bar: the height of a bar shows its value.
    return Rendered(bars.pixels, describe_layer(layer, bars, info.config.style), tiles=bars.tiles, channels=bars.channels)


def _render_rgb(layer: LayerResult, rgb: Rgb, seen: NDArray[np.uint8], info: RunInfo) -> Rendered:
    """Enlarge a picture of a layer's resolution to the input's, times the scale, each pixel a rectangle."""
    scale = info.config.style.scale
    sides = [(have, scale * max(have, want)) for have, want in zip(rgb.pixels.shape[:2], seen.shape[:2], strict=True)]
    rows, columns = (np.arange(wanted) * have // wanted for have, wanted in sides)
    return Rendered(rgb.pixels[rows[:, None], columns], describe_layer(layer, rgb, info.config.style))


def _render_histogram(layer: LayerResult, histogram: Histogram, _seen: NDArray[np.uint8], info: RunInfo) -> Rendered:
    facts = describe_layer(layer, histogram, info.config.style)
    title = f"{layer.layer}  {layer.type}  {facts['Shape']}"
    return Rendered(draw_histogram(histogram, title=title, note=info.label), facts, complete=True)


def _marks(grid: Grid, style: Style) -> tuple[tuple[float, str], ...]:
    """Return the labels of the colour bar, by their height from 0 to 1."""
    if grid.limits:
        low, high = grid.limits
        return (0.0, f"{low:.4g}"), (1.0, f"{high:.4g}")
    if style.norm == "signed":
        return (0.0, "-max"), (0.5, "0"), (1.0, "max")
    return (0.0, "min"), (1.0, "max")


# Any: each renderer takes the class of content it stands under.
_RENDERERS: dict[type[Content], Callable[[LayerResult, Any, NDArray[np.uint8], RunInfo], Rendered]] = {
    Grid: _render_grid,
    Bars: _render_bars,
    Rgb: _render_rgb,
    Histogram: _render_histogram,
    HeatMap: render_heat_map,
}
