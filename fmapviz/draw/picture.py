"""Turn drawings into pictures: render, frame, name and encode them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import isfinite, nan
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.core.drawings import Grid, HeatMap, Histogram, Rendered
from fmapviz.core.version import __version__
from fmapviz.data import Picture
from fmapviz.draw.facts import describe, number, shape_of
from fmapviz.draw.heatmap import colormap_of, draw_heat_map, mark_position
from fmapviz.draw.histogram import lay_out_histogram
from fmapviz.draw.labels import (
    Lettering,
    Placed,
    add_caption,
    add_colorbar,
    add_header,
    add_legend,
    lay_tiles,
    number_rows,
    number_tiles,
)
from fmapviz.draw.layout import WHITE, Background, Box, draw, row
from fmapviz.draw.layout import picture as box_of
from fmapviz.draw.png import encode
from fmapviz.draw.svg import to_svg
from fmapviz.draw.text import with_glyphs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from fmapviz.config import RunInfo, Style
    from fmapviz.core.drawings import Tiles
    from fmapviz.data import Content, CustomContent, Drawing, ImageResult, LayerResult
    from fmapviz.images.seen import Seen

    Cell = tuple[LayerResult, HeatMap]
    Composed = tuple[NDArray[np.uint8], dict[str, str]]
    Marks = Sequence[tuple[float, str]]
    Framed = tuple[Box, Background | int, Tiles | None, tuple[int, int]]


SVG = "svg"  # the format whose pictures have their texts as text
_NOTHING = np.zeros((0, 0), np.uint8)
_INPUT_GAP = 4  # pixels between the input and the grid


@dataclass(frozen=True, slots=True, eq=False)
class Sheet:
    """The maps of all layers of an image, to be composed into one picture; see `fmapviz.views.base`.

    Attributes:
        cells: In the order of execution.
        seen: The input as the network saw it.
        title: Model and image.
        result: The results of the image.
        style: How pictures look.
    """

    cells: Sequence[Cell]
    seen: Seen
    title: str
    result: ImageResult
    style: Style


def make_pictures(
    result: ImageResult,
    seen: Seen,
    name: str,
    info: RunInfo,
    *,
    sheets: Mapping[str, Callable[[Sheet], Composed]] = MappingProxyType({}),
    marked: bool = True,
) -> Iterator[Picture]:
    """Encode one image's drawings, one at a time.

    Args:
        result: The results of the image.
        seen: The input as the network saw it.
        name: Name of the image in the run.
        info: The run's settings.
        sheets: The views that compose the maps of all layers into one picture.
        marked: Whether the anchor, if there is one, is in this image.

    Yields:
        The input, then the other drawings in the order of execution, then heat maps, then sheets.
    """
    common = {**_provenance(info), "Image": name}
    if result.predictions:
        common = {"Predicted": ", ".join(map(str, result.predictions)), **common}
    yield _encode("input", "input", seen.picture, {**seen.facts, **common})
    indices = [layer.index for layer in result.layers if layer.drawings or layer.measures]
    digits = max(2, len(str(max(indices, default=0))))
    drawings = [(layer, drawing) for layer in result.layers for drawing in layer.drawings if drawing.content]
    cells: dict[str, list[Cell]] = {view: [] for view in sheets}
    for layer, drawing in sorted(drawings, key=lambda each: isinstance(each[1].content, HeatMap)):
        if isinstance(drawing.content, HeatMap) and drawing.view in cells:
            cells[drawing.view].append((layer, drawing.content))
        else:
            yield make_picture(layer, drawing, info, seen=seen, common=common, digits=digits, marked=marked)
    for view, compose in sheets.items():
        if cells[view]:
            pixels, facts = compose(Sheet(cells[view], seen, f"{info.label}: {name}", result, info.config.style))
            yield _encode(view, view, pixels, facts | common)


def make_picture(
    layer: LayerResult,
    drawing: Drawing,
    info: RunInfo,
    *,
    seen: Seen | None = None,
    common: Mapping[str, str] | None = None,
    digits: int,
    marked: bool = True,
) -> Picture:
    """Encode one drawing.

    Args:
        layer: The result it belongs to.
        drawing: With content.
        info: The run's settings.
        seen: The input as the network saw it; None for a drawing of the model itself.
        common: Facts about the image; None for the model's alone.
        digits: Digits of the index in the name.
        marked: Whether the anchor, if there is one, is in this image.
    """
    content = drawing.content
    assert content is not None
    if isinstance(content, HeatMap) and not marked:
        content = replace(content, mark=None)
    facts = describe(layer, content, info.config.style)
    picture = seen.at(layer.frame) if seen else _NOTHING
    if seen and (moment := seen.describe(layer.frame)):
        is_over = isinstance(content, HeatMap) and content.over
        facts |= {"Frame": moment} if layer.frame is not None else {"Frame": f"laid over {moment}"} if is_over else {}
    style, palette = info.config.style, None
    if isinstance(content, Histogram):
        framed = as_text = _page_of(layer, content, info)
    else:
        named = replace(layer, target=with_glyphs(layer.target)) if layer.target else layer
        rendered = _render(named, content, picture, style)
        caption = ""
        if named.target and isinstance(content, HeatMap):
            caption = "\n".join(filter(None, (" ".join(named.target.caption.split()), content.note)))
        written = facts | {"Class": str(named.target)} if named.target else facts
        lines = header_of(named, drawing, written, info) if style.labels else []
        framing = partial(frame, rendered, content, style, lines, picture, caption=caption)
        framed, palette = framing(), rendered.palette
        as_text = framing(as_text=True) if SVG in info.config.to else framed
    page, background, tiles, area = framed
    pixels = draw(page, background)
    name, title = f"{layer.index:0{digits}d} {layer.layer or 'input'}", ""
    if target := layer.target:
        name, title = f"{name}.{target.label}", f"{name}: {target.title}"
    facts |= _provenance(info) if common is None else common
    height, width = pixels.shape[:2]
    png = encode(pixels, facts, palette=palette)
    svg = to_svg(*as_text[:2], title=title or name, facts=facts) if SVG in info.config.to else ""
    return Picture(drawing.view, name, png, width, height, facts, title, layer, drawing, tiles, area=area, svg=svg)


def is_numbered(style: Style) -> bool:
    """Return True if tiles show their numbers; unless `labels` is set, only strongest channels have them."""
    return bool(style.labels or (style.labels is None and style.strongest))


def lettering(style: Style) -> Lettering:
    """Return the look of numbers, headers and colour bars."""
    background = (
        Background((WHITE, WHITE, WHITE), opaque=False)
        if style.background_colour is None
        else Background(style.background_colour)
    )
    return Lettering(background, style.text_size)


def frame(
    rendered: Rendered,
    content: Content,
    style: Style,
    lines: Sequence[str],
    seen: NDArray[np.uint8] = _NOTHING,
    *,
    caption: str = "",
    as_text: bool = False,
) -> Framed:
    """Add what a style asks for: the background, numbers, the input, a colour bar, a header or a caption.

    Args:
        rendered: The picture.
        content: Its content.
        style: The style.
        lines: Of the header.
        seen: The input as the network saw it; nothing for a drawing of the model itself.
        caption: Below the picture, unless the style has labels, or explicitly none.
        as_text: Whether the numbers of tiles stay text.

    Returns:
        The page, its background, the position of the tiles in it, and its width and height without the caption.
    """
    look = lettering(style) if rendered.palette is None else Lettering()
    pixels, tiles, texts = rendered.pixels, None, list[Placed]()
    if isinstance(content, Grid) and content.tiles:
        tiles = content.tiles
        if content.bars and not look.background.is_dark:
            pixels = WHITE - pixels
        pixels = lay_tiles(pixels, content.cells or tiles, look)
        if is_numbered(style):
            add_numbers = number_rows if content.rows else number_tiles
            numbers = content.channels or range(tiles.count)
            pixels, tiles = add_numbers(pixels, tiles, numbers, look, texts=texts if as_text else None)
    box = Box(pixels.shape[1], pixels.shape[0], [(pixels, 0, 0), *texts])
    if style.with_input and seen.size and not rendered.has_input:
        box = row([box_of(seen.repeat(style.scale, 0).repeat(style.scale, 1)), box], gap=_INPUT_GAP)
        tiles = tiles and replace(tiles, left=tiles.left + box.width - pixels.shape[1])
    if style.colorbar and rendered.marks:
        box = add_colorbar(box, colormap=rendered.colormap, marks=rendered.marks, alpha=rendered.alpha, look=look)
    if style.colorbar and rendered.legend:
        box = add_legend(box, np.stack([*rendered.legend.values()]), [*rendered.legend], look)
    captioned = add_caption(box, caption, look) if style.labels is None and caption else None
    if style.labels and lines:
        below = box.height
        box = add_header(box, lines, look)
        tiles = tiles and replace(tiles, top=tiles.top + box.height - below)
    tiles = None if isinstance(content, Grid) and content.rows else tiles
    return captioned or box, look.background, tiles, (box.width, box.height)


def _encode(view: str, name: str, pixels: NDArray[np.uint8], facts: Mapping[str, str]) -> Picture:
    return Picture(view, name, encode(pixels, facts), pixels.shape[1], pixels.shape[0], facts)


def _provenance(info: RunInfo) -> dict[str, str]:
    return {"Model": info.label, "Weights": info.weights, "Software": f"fmapviz {__version__}"}


def header_of(layer: LayerResult, drawing: Drawing, facts: Mapping[str, str], info: RunInfo) -> list[str]:
    """Return the lines above a picture: layer, type, shape; what is shown, its range and scaling; the model."""
    if isinstance(drawing.content, Histogram):  # its picture has these lines in it
        return []
    view = [] if layer.of == "output" and isinstance(drawing.content, Grid) else [drawing.view]
    named = [facts[key] for key in ("Layer", "Type", "Shape", "Frame") if key in facts]
    shown = [facts[key] for key in ("Class", "Attention of", "Range") if key in facts]
    if "Layer" in facts:
        shown = [*view, *shown]
    else:  # of the image itself
        named = [*view, *named]
    return ["  ".join(named), ": ".join(shown), facts["Scaling"], facts.get("Not finite", ""), info.label]


def _page_of(layer: LayerResult, histogram: Histogram, info: RunInfo) -> Framed:
    """Lay out a histogram, a page with texts of its own, on white."""
    page = lay_out_histogram(histogram, title=f"{layer.layer}  {layer.type}  {shape_of(layer)}", note=info.label)
    return page, WHITE, None, (page.width, page.height)


def _render(layer: LayerResult, content: Grid | HeatMap | CustomContent, seen: NDArray[np.uint8], style: Style) -> Rendered:
    if isinstance(content, Grid):
        return render_grid(content, style, has_colours=layer.of == "weights" and layer.shape[1] == 3)
    if isinstance(content, HeatMap):
        return _render_heat_map(layer, content, seen, style)
    return content.render(layer, seen, style)


def render_grid(grid: Grid, style: Style, *, has_colours: bool = False) -> Rendered:
    """Return a grid with the marks of its colour bar; `has_colours` if its pixels are red, green and blue values."""
    marks: Marks = ((0.0, "min"), (1.0, "max"))
    if grid.bars or has_colours:
        marks = ()  # the height of a bar shows its value; kernels in red, green and blue have no colour map
    elif grid.limits:
        marks = _mark_ends(*grid.limits)
    elif style.signed:
        marks = ((0.0, "-max"), (0.5, "0"), (1.0, "max"))
    return Rendered(grid.pixels, style.palette, marks)


def _render_heat_map(layer: LayerResult, heat: HeatMap, seen: NDArray[np.uint8], style: Style) -> Rendered:
    low, high = heat.limits or heat.ends or (nan, nan)
    colormap = colormap_of(heat, style)
    marks = _mark_ends(low, high) if isfinite(low + high) else ()
    pixels = draw_heat_map(heat, seen, style, layer.centres)
    if style.scale > 1:
        pixels = pixels.repeat(style.scale, 0).repeat(style.scale, 1)
    if heat.mark:
        row, column = ((at + 0.5) * style.scale for at in heat.mark)
        pixels = mark_position(pixels, row, column)
    alpha = style.alpha if heat.over and style.gray_input else 1.0
    return Rendered(pixels, None if colormap == "gray" else colormap, marks, alpha)


def _mark_ends(low: float, high: float) -> Marks:
    middle = ((0.5, "0"),) if low == -high and high else ()
    return (0.0, number(low)), *middle, (1.0, number(high))
