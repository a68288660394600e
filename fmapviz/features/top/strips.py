"""Lay out the top images of each channel: a row per channel, with a small histogram of the values of all images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.core.drawings import Tiles
from fmapviz.draw.layout import WHITE, Box, column, draw, picture
from fmapviz.draw.text import Typeface, set_lines, wrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# Pixels.
_MARGIN, _GAP, _BELOW = 20, 6, 2
_LABEL = 84  # width of a channel's label
_BARS, _HEIGHT = 24, 48  # of a histogram
_BAR = 4  # width of a bar
_FEW = 100  # values; above, single ones are not visible
_ABOVE, _REST, _AXIS, _BORDER, _EMPTY = 40, 170, 120, 205, 244  # grey levels
_TITLE, _NOTE = Typeface(18, 20, 0.25), Typeface(12, 105)
_NAME, _CAPTION = Typeface(13, 20, 0.25), Typeface(11, 90)


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """The values of a channel in all images.

    Attributes:
        counts: Number of images by value, `(B,)`.
        edges: Edges of the bins, `(B + 1,)`; the outermost bins may hold values beyond them.
        low: Smallest value.
        high: Largest value.
        last: Value of the last image that is shown; bars on its side of the axis are dark.
        descending: Whether the largest values are shown, not the smallest.
    """

    counts: NDArray[np.int32]
    edges: NDArray[np.float64]
    low: float
    high: float
    last: float
    descending: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class ChannelStrip:
    """The row of a channel.

    Attributes:
        label: Its name.
        remark: Below the name.
        cells: For each image the tile, uint8 `(side, side, 3)`, or a text in its place, and two lines below it.
        values: Values of all images; None: no histogram.
    """

    label: str
    remark: str
    cells: Sequence[tuple[NDArray[np.uint8] | str, str, str]]
    values: Values | None = None


def draw_strips(
    strips: Sequence[ChannelStrip], *, columns: int, side: int, title: str, note: str
) -> tuple[NDArray[np.uint8], Tiles]:
    """Draw one row per channel.

    Args:
        strips: The rows, from top to bottom.
        columns: Number of tiles in each; where a row has fewer, cells stay empty.
        side: Width and height of a tile, pixels.
        title: Text above the rows.
        note: Small print below the title.

    Returns:
        uint8 `(H, W, 3)`, and the position of the tiles in it.

    Example:
        >>> strip = ChannelStrip("channel 0", "", [(np.zeros((96, 96, 3), np.uint8), "0.5", "a.png")])
        >>> pixels, tiles = draw_strips([strip], columns=2, side=96, title="conv1", note="")
        >>> pixels[tiles.top + 5, tiles.left + 5].tolist(), tiles.columns, tiles.count
        ([0, 0, 0], 2, 2)
    """
    across, down = side + _GAP, side + _BELOW + 2 * _CAPTION.leading + _GAP
    first = _LABEL + _GAP + _BARS * _BAR + 2 * _GAP
    width = first + columns * across
    above = set_lines([*wrap(title, _TITLE, width, lines=2), *wrap(note, _NOTE, width, lines=4)])
    above = above.within(width, above.height + 2 * _GAP, x=0, y=0)
    ranks = [(_text(str(rank + 1), side), first + rank * across, 0) for rank in range(columns)]
    head = Box(width, _CAPTION.leading + _BELOW, ranks)
    rows = [_lay_out(strip, columns, side, first, Box(width, down)) for strip in strips]
    page = draw(column([above, head, *rows]).padded(_MARGIN), WHITE, colour=True)
    top = _MARGIN + above.height + head.height
    return page, Tiles(_MARGIN + first, top, side, side, across, down, columns, columns * len(strips))


def _lay_out(strip: ChannelStrip, columns: int, side: int, first: int, size: Box) -> Box:
    label = set_lines([*wrap(strip.label, _NAME, _LABEL, lines=2), *wrap(strip.remark, _CAPTION, _LABEL, lines=5)])
    parts = [(label, 0, 0)]
    if strip.values:
        parts.append((_draw_values(strip.values), _LABEL + _GAP, 0))
    for number in range(columns):
        left = first + number * (side + _GAP)
        tile, *captions = strip.cells[number] if number < len(strip.cells) else ("", "", "")
        shown = _text_tile(tile, side) if isinstance(tile, str) else picture(tile)
        lines = [(_text(text, side), left, side + _BELOW + line * _CAPTION.leading) for line, text in enumerate(captions)]
        parts += [(shown, left, 0), *lines]
    return Box(size.width, size.height, parts)


def _draw_values(values: Values) -> Box:
    """Draw a histogram above its smallest and largest value."""
    width = _BARS * _BAR
    shares, edges = _spread(values)
    levels = np.full((_HEIGHT + 1, width), WHITE, np.uint8)
    levels[-1] = _AXIS
    for number, share in enumerate(shares):
        height = int(np.ceil(share * _HEIGHT))
        is_shown = edges[number + 1] > values.last if values.descending else edges[number] < values.last
        levels[_HEIGHT - height : _HEIGHT, number * _BAR : (number + 1) * _BAR - 1] = _ABOVE if is_shown else _REST
    low, high = _text(f"{values.low:.3g}", width), set_lines(wrap(f"{values.high:.3g}", _CAPTION, width))
    below = Box(width, _CAPTION.leading, [(low, 0, 0), (high, width - high.width, 0)])
    return column([picture(levels), below], gap=_BELOW)


def _spread(values: Values) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the heights of the bars, 0..1, and their edges: each bin is divided evenly among the bars that it overlaps."""
    edges = np.clip(values.edges, values.low, values.high)
    bars = np.linspace(values.low, values.high, _BARS + 1)
    known = np.flatnonzero(values.counts)
    few = values.counts.sum() <= _FEW
    heights = np.zeros(_BARS)
    for number in known:
        low, high = edges[number], edges[number + 1]
        if few:  # a bar for each value, as nearly as it is known
            low = high = (low + high) / 2
        if high > low:
            overlaps = np.clip(np.minimum(bars[1:], high) - np.maximum(bars[:-1], low), 0, None) / (high - low)
        else:
            overlaps = np.arange(_BARS) == min(_BARS - 1, max(0, np.searchsorted(bars, low, "right") - 1))
        heights += values.counts[number] * overlaps
    return heights / max(heights.max(), 1e-30), bars


def _text_tile(text: str, side: int) -> Box:
    """Set a text in the middle of a bordered tile; without a text it is blank."""
    border, inside = (
        np.broadcast_to(np.uint8(level), (size, size)) for level, size in ((_BORDER, side), (_EMPTY, side - 2))
    )
    lines = set_lines(wrap(text, _CAPTION, side - 12, lines=5), alignment=0.5, background=_EMPTY)
    return Box(side, side, [(border, 0, 0), (inside, 1, 1), (lines.within(side, side), 0, 0)])


def _text(text: str, width: int) -> Box:
    return set_lines(wrap(text, _CAPTION, width))
