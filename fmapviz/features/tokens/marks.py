"""Draw what belongs to positions: the colours of clusters, and lines between two pictures."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fmapviz.draw.colormaps import checkerboard, table
from fmapviz.draw.heatmap import nearest_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fmapviz.config import Style
    from fmapviz.core.centres import Centres
    from fmapviz.core.drawings import Size
    from fmapviz.features.tokens.matches import Pair

# Those of Okabe and Ito, "Color Universal Design", 2008, without black; then each the farthest from those before it, and
# from black and white, for normal, deuteranopic and protanopic vision: the smallest distance in CIELAB is 25.
_COLOURS = (
    "0072b2 e69f00 009e73 cc79a7 56b4e9 d55e00 f0e442 0000ff 00004b 692d0f "
    "3cff96 6969ff 000096 5a3c5a e10f4b a5d2b4 1e4bb4 f0965a 6996ff 4be1f0"
)
_LOWEST = 400  # pixels; lower pictures of matches are enlarged
_GAP = 12  # pixels between two pictures
_FINE = 2  # times as large are circles and lines drawn, then reduced
_CIRCLE, _TEXT = 9, 12  # radius and font size, pixels


@cache
def cluster_colours() -> NDArray[np.uint8]:
    """Return the colours of clusters, uint8 `(20, 3)`, read-only."""
    colours = np.array([[*bytes.fromhex(colour)] for colour in _COLOURS.split()], np.uint8)
    colours.flags.writeable = False
    return colours


def size_of(grid: Size, seen: NDArray[np.uint8], style: Style) -> Size:
    """Return height and width of a map that is enlarged to the input's size, times the scale."""
    rows, columns = (style.scale * max(sides) for sides in zip(grid, seen.shape[:2], strict=True))
    return rows, columns


def told_sample(part: tuple[int, int] | None) -> str:
    """Return in words how many positions of how many something was found of; nothing if of all."""
    return f", found of a random sample, {part[0]} of {part[1]} positions" if part else ""


def colour_labels(labels: NDArray[np.int16], size: Size, centres: Centres | None = None) -> NDArray[np.uint8]:
    """Draw clusters in their colours, each value as a rectangle, uint8 `(H, W, 3)`; a checkerboard where there is none.

    Args:
        labels: Number of the cluster of each position of a map, int16 `(h, w)`; negative where there is none.
        size: Height and width, pixels.
        centres: Where the positions lie in the input; None: they span it.
    """
    rows, columns = nearest_values((labels.shape[0], labels.shape[1]), size, centres)
    numbers = labels[rows[:, None], columns]
    pixels: NDArray[np.uint8] = cluster_colours()[numbers]
    if labels.min() < 0:
        pixels = np.where(numbers[..., None] < 0, checkerboard(*size).numpy()[..., None], pixels)
    return pixels


def draw_matches(
    pairs: Sequence[Pair], other: NDArray[np.uint8], seen: NDArray[np.uint8], *, scale: int
) -> NDArray[np.uint8]:
    """Draw the other picture and this one side by side, with lines between what matches.

    Args:
        pairs: What matches.
        other: The other picture, uint8 `(H, W)` or `(H, W, 3)`.
        seen: This picture, likewise.
        scale: Size of a pixel; a multiple of it for small pictures.

    Returns:
        uint8 `(H', W', 3)`.
    """
    factor = scale * max(1, round(_LOWEST / max(len(seen), len(other))))
    left, right = (_enlarged(pixels, factor) for pixels in (other, seen))
    height, across = max(len(left), len(right)), left.shape[1] + _GAP
    page = np.full((height, across + right.shape[1], 3), 255, np.uint8)
    page[: len(left), : left.shape[1]] = left
    page[: len(right), across:] = right
    large = Image.fromarray(page.repeat(_FINE, 0).repeat(_FINE, 1))
    drawing = ImageDraw.Draw(large)
    ends = [(_at(pair.theirs, factor), _at(pair.ours, factor, across)) for pair in pairs]
    colours = _rank_colours(len(ends))
    for colour, (first, second), pair in zip(colours, ends, pairs, strict=True):
        _draw_line(drawing, first, second, colour, pair)
    for number, (colour, points) in reversed([*enumerate(zip(colours, ends, strict=True), 1)]):
        for point in points:
            _draw_point(drawing, point, colour, str(number) if len(ends) > 1 else "")
    return np.asarray(large.reduce(_FINE))


def _enlarged(pixels: NDArray[np.uint8], factor: int) -> NDArray[np.uint8]:
    coloured = pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, 2)
    size = coloured.shape[1] * factor, coloured.shape[0] * factor
    return np.asarray(Image.fromarray(coloured).resize(size, Image.Resampling.BILINEAR))


def _at(point: tuple[float, float], factor: int, across: int = 0) -> tuple[float, float]:
    return (point[1] * factor + across) * _FINE, point[0] * factor * _FINE


def _rank_colours(count: int) -> list[tuple[int, int, int]]:
    """Return the colours of matches, from the best to the worst: red to blue, without the dark ends; yellow of one."""
    levels = np.linspace(225, 30, count).round().astype(np.uint8) if count > 1 else np.array([150], np.uint8)
    return [(int(red), int(green), int(blue)) for red, green, blue in table("turbo")[levels[:count]]]


def _draw_line(
    drawing: ImageDraw.ImageDraw,
    first: tuple[float, float],
    second: tuple[float, float],
    colour: tuple[int, int, int],
    pair: Pair,
) -> None:
    """Draw a line; a thin one if the match is not mutual."""
    drawing.line([first, second], (0, 0, 0), 4 * _FINE if pair.mutual else 3 * _FINE)
    drawing.line([first, second], colour, 2 * _FINE if pair.mutual else _FINE)


def _draw_point(drawing: ImageDraw.ImageDraw, point: tuple[float, float], colour: tuple[int, int, int], text: str) -> None:
    x, y = point
    radius = (_CIRCLE if text else _CIRCLE / 2) * _FINE
    drawing.ellipse((x - radius, y - radius, x + radius, y + radius), colour, (0, 0, 0), _FINE)
    red, green, blue = colour
    ink: Sequence[int] = (0, 0, 0) if 0.3 * red + 0.59 * green + 0.11 * blue > 110 else (255, 255, 255)
    drawing.text(point, text, tuple(ink), _font(), anchor="mm")


@cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(_TEXT * _FINE)
