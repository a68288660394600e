"""Add channel numbers, a header and a colour bar to a grid."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import ceil, log2
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import as_strided
from PIL import Image, ImageDraw

from fmapviz.core.drawings import Tiles
from fmapviz.render.colormaps import table
from fmapviz.render.layout import BLACK, Box, column, draw, picture, row
from fmapviz.render.text import Typeface, set_lines, wrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_NUMBER = Typeface(10, 200)
_STRONG, _DIM = Typeface(15, 235, 0.25), Typeface(13, 165)
_MARK = Typeface(12, 200)
_LINE = 110  # grey level of the colour bar's ticks and outline
# Pixels, except _FEW.
_ABOVE, _BELOW, _BESIDE = 4, 2, 4  # around a number, so that it is nearest to its own tile
_FEW = 64  # up to this many tiles that touch each other are moved apart to make room for their numbers
_MARGIN = 4  # around a header, and at the right of a colour bar
_ENDS = _MARK.leading // 2  # above and below a colour bar, for the text beside its ends
_NARROWEST, _LOWEST = 320, 96  # the smallest header and colour bar
_BAR, _GAP, _TICK = 14, 12, 5  # the colour bar's width, the gap before it and the length of its ticks
_LONGEST = 160  # the widest text beside a colour bar


def number_tiles(pixels: NDArray[np.uint8], tiles: Tiles, numbers: Sequence[int]) -> tuple[NDArray[np.uint8], Tiles]:
    """Draw a number above each tile of a grid, and move the tiles apart for it.

    Tiles that touch each other and are narrower than their numbers, such as bars, stay together if they are numbered from
    0 or if there are more than 64. Then only one of every 2, 4, 8, ... in a row has its number.

    Args:
        pixels: uint8 `(H, W)` or `(H, W, 3)`.
        tiles: The layout of the grid.
        numbers: One per tile, not negative.

    Returns:
        The numbered grid, uint8 `(H', W')` or `(H', W', 3)` like `pixels`, and its layout.

    Example:
        >>> from fmapviz.core.drawings import Tiles
        >>> grid, tiles = number_tiles(np.zeros((11, 20), np.uint8), Tiles(2, 2, 7, 7, 9, 9, 2, 2), [0, 255])
        >>> grid.shape, tiles.corner(1)
        ((26, 46), (24, 17))
    """
    labels = _draw_numbers(numbers)
    count, high, wide = labels.shape
    room, more = wide + _BESIDE, _ABOVE + high + _BELOW
    across, step = _space(tiles.width, tiles.across, room, numbers, apart=3 if _is_counted(numbers) else 1)
    moved = replace(tiles, top=tiles.top + more, across=across, down=tiles.down + more)
    rows = ceil(count / tiles.columns)
    last = (tiles.columns - 1) // step * step * across
    width = max(pixels.shape[1] + tiles.columns * (across - tiles.across), tiles.left + last + room)
    numbered = np.zeros((len(pixels) + rows * more, width, *pixels.shape[2:]), np.uint8)
    _blocks(numbered, moved)[:] = _blocks(pixels, tiles)
    blank = np.zeros((rows * tiles.columns - count, high, wide), np.uint8)
    written = np.concatenate([labels, blank]).reshape(rows, tiles.columns, high, wide)[:, ::step]
    top, columns = moved.top - _BELOW - high, written.shape[1]
    places = Tiles(moved.left, top, wide, high, step * across, moved.down, columns, rows * columns)
    _blocks(numbered, places)[:] = written[..., None]
    return numbered, moved


def number_size(count: int) -> tuple[int, int]:
    """Return the width and height, gaps included, of the numbers below a count, pixels.

    Example:
        >>> number_size(1000)
        (22, 11)
    """
    _, high, wide = _digits().shape
    return wide * len(str(count - 1)) + _BESIDE, high + _BELOW


def number_rows(pixels: NDArray[np.uint8], rows: Tiles, numbers: Sequence[int]) -> tuple[NDArray[np.uint8], Tiles]:
    """Draw a number before each row of a grid, and move the rows apart for it.

    Rows that touch each other stay together under the same conditions as in `number_tiles`.

    Args:
        pixels: uint8 `(H, W)` or `(H, W, 3)`.
        rows: The layout of the rows, one tile each.
        numbers: One per row, not negative.

    Returns:
        The numbered grid, uint8 `(H', W')` or `(H', W', 3)` like `pixels`, and its layout.

    Example:
        >>> from fmapviz.core.drawings import Tiles
        >>> grid, rows = number_rows(np.zeros((24, 60), np.uint8), Tiles(2, 2, 56, 9, 58, 11, 1, 2), [0, 255])
        >>> grid.shape, rows.corner(1)
        ((24, 86), (28, 13))
    """
    labels = _draw_numbers(numbers, ">")
    _, high, wide = labels.shape
    room, more = high + _BELOW, _BESIDE + wide + _BESIDE
    down, step = _space(rows.height, rows.down, room, numbers)
    moved = replace(rows, left=rows.left + more, top=rows.top + (down - rows.down) // 2, down=down)
    labels = labels[::step]
    top = moved.top + (0 if step > 1 else (rows.height - high) // 2)
    places = Tiles(_BESIDE, top, wide, high, wide, step * down, 1, len(labels))
    height = max(len(pixels) + rows.count * (down - rows.down), places.corner(len(labels) - 1)[1] + high)
    numbered = np.zeros((height, pixels.shape[1] + more, *pixels.shape[2:]), np.uint8)
    _blocks(numbered, moved)[:] = _blocks(pixels, rows)
    _blocks(numbered, places)[:, 0] = labels[..., None]
    return numbered, moved


def add_colorbar(
    pixels: NDArray[np.uint8], *, colormap: str | None, marks: Sequence[tuple[float, str]], alpha: float = 1.0
) -> NDArray[np.uint8]:
    """Add a colour bar at the right of a picture.

    Args:
        pixels: uint8 `(H, W)` or `(H, W, 3)`.
        colormap: The colours from level 255 at the top to level 0; None: white to black.
        marks: Positions along the bar, 0 at the bottom and 1 at the top, and the texts beside them.
        alpha: Opacity of colours that are drawn over a grey picture: the bar shows each of them over black at its left edge
            to white at its right edge.

    Returns:
        uint8 `(H', W')` or, if the picture or the bar is in colour, `(H', W', 3)`, with the picture in the upper left
        corner. H' exceeds H only if the bar or its texts need more. Texts that would overlap are moved apart.

    Raises:
        RequestError: The colour map is unknown.

    Example:
        >>> add_colorbar(np.zeros((458, 458), np.uint8), colormap=None, marks=[(0, "-1"), (1, "1")]).shape
        (458, 514)
    """
    marks = sorted(marks, key=lambda mark: -mark[0])
    texts = [set_lines(wrap(text, _MARK, _LONGEST), ground=BLACK) for _, text in marks]
    height = max(len(pixels), _LOWEST, _MARK.leading * len(texts))
    length = height - 2 * _ENDS
    ticks = [_ENDS + round((1 - position) * (length - 1)) for position, _ in marks]
    colours = table(colormap or "gray")[np.linspace(255, 0, length).round().astype(np.uint8)]
    if alpha < 1:
        below = np.linspace(0, 255, _BAR)[None, :, None]
        bar = np.rint(alpha * colours[:, None].astype(np.float64) + (1 - alpha) * below).astype(np.uint8)
    elif colormap:
        bar = np.broadcast_to(colours[:, None], (length, _BAR, 3))
    else:
        bar = np.broadcast_to(colours[:, :1], (length, _BAR))
    scale = _lay_out_scale(bar, ticks, texts)
    return draw(row([picture(pixels), scale]), BLACK)


def add_legend(pixels: NDArray[np.uint8], colours: NDArray[np.uint8], texts: Sequence[str]) -> NDArray[np.uint8]:
    """Add a legend on the right of a picture: colours from top to bottom, each with its text.

    Args:
        pixels: uint8 `(H, W, 3)`.
        colours: uint8 `(K, 3)`.
        texts: One per colour.

    Returns:
        uint8 `(H', W', 3)`, with the picture at the top left. H' exceeds H only if H is too low for the texts.

    Example:
        >>> add_legend(np.zeros((224, 224, 3), np.uint8), np.zeros((2, 3), np.uint8), ["0", "1"]).shape[0]
        224
    """
    lines = [set_lines(wrap(text, _MARK, _LONGEST), ground=BLACK) for text in texts]
    height = max(len(pixels), _LOWEST, _MARK.leading * len(lines) + 2 * _ENDS)
    length = height - 2 * _ENDS
    edges = np.linspace(0, length, len(colours) + 1).round().astype(int)
    bar = np.repeat(colours, np.diff(edges), axis=0)[:, None].repeat(_BAR, 1)
    middles = ((edges[1:] + edges[:-1]) // 2 + _ENDS).tolist()
    return draw(row([picture(pixels), _lay_out_scale(bar, middles, lines)]), BLACK)


def add_header(pixels: NDArray[np.uint8], lines: Sequence[str]) -> NDArray[np.uint8]:
    """Add lines of text above a picture.

    Args:
        pixels: uint8 `(H, W)` or `(H, W, 3)`.
        lines: The first is strong, the others are dim. Each is wrapped into up to three, then elided in the middle.

    Returns:
        uint8 `(H', W')` or `(H', W', 3)` like `pixels`, with the picture in the lower left corner. W' exceeds W only if W
        is too narrow for text.

    Example:
        >>> add_header(np.zeros((458, 458), np.uint8), ["features.0", "64 x 55 x 55"]).shape
        (504, 458)
    """
    width = max(pixels.shape[1], _NARROWEST)
    faces = [_STRONG] + [_DIM] * len(lines)
    room = width - 2 * _MARGIN
    wrapped = [line for text, face in zip(lines, faces, strict=False) for line in wrap(text, face, room, lines=3)]
    if not wrapped:
        return pixels.copy()
    header = set_lines(wrapped, ground=BLACK).padded(_MARGIN)
    return draw(column([Box(_NARROWEST, 0), header, picture(pixels)]), BLACK)


def _space(size: int, distance: int, room: int, numbers: Sequence[int], *, apart: int = 1) -> tuple[int, int]:
    """Return the distance from one tile to the next, and of how many tiles one is numbered: 1, 2, 4, ...

    Args:
        size: Of a tile.
        distance: From one tile to the next, without numbers.
        room: For a number.
        numbers: One per tile.
        apart: Distance between numbers of tiles that stay together, as a multiple of `room`.
    """
    if distance == size < room and (len(numbers) > _FEW or _is_counted(numbers)):
        return distance, 1 << ceil(log2(apart * room / size))
    return max(distance, room), 1


def _is_counted(numbers: Sequence[int]) -> bool:
    """Return whether numbers count from 0, so that a reader can infer the ones that are left out."""
    return list(numbers) == list(range(len(numbers)))


def _draw_numbers(numbers: Sequence[int], alignment: str = "<") -> NDArray[np.uint8]:
    """Draw numbers, uint8 `(N, height, width)`, left or right aligned."""
    digits = max(len(str(number)) for number in numbers)
    text = "".join(f"{number:{alignment}{digits}}" for number in numbers).encode("ascii")
    drawn = _digits()[np.frombuffer(text, np.uint8).reshape(len(numbers), digits)]
    count, _, height, width = drawn.shape
    return drawn.swapaxes(1, 2).reshape(count, height, digits * width)


@cache
def _digits() -> NDArray[np.uint8]:
    """Draw the digits, all of one width, uint8 `(128, height, width)`, indexed by their ASCII codes."""
    drawn = np.stack([draw(set_lines([(digit, _NUMBER)], ground=BLACK), BLACK) for digit in "0123456789"])
    inked = np.flatnonzero(drawn.max((0, 2)))
    glyphs = np.zeros((128, int(np.ptp(inked)) + 1, drawn.shape[2]), np.uint8)
    glyphs[ord("0") : ord("9") + 1] = drawn[:, inked[0] : inked[-1] + 1]
    return glyphs


def _blocks(pixels: NDArray[np.uint8], tiles: Tiles) -> NDArray[np.uint8]:
    """Return a view of tiles, `(rows, columns, height, width, 1)` or `(rows, columns, height, width, 3)`."""
    pixels = pixels if pixels.ndim == 3 else pixels[..., None]
    down, across, _ = pixels.strides
    shape = (ceil(tiles.count / tiles.columns), tiles.columns, tiles.height, tiles.width, pixels.shape[2])
    return as_strided(pixels[tiles.top :, tiles.left :], shape, (tiles.down * down, tiles.across * across, *pixels.strides))


def _lay_out_scale(bar: NDArray[np.uint8], ticks: Sequence[int], texts: Sequence[Box]) -> Box:
    """Outline a colour bar, and place the texts beside it, each tied to its tick."""
    height, right = len(bar) + 2 * _ENDS, _GAP + _BAR
    start = right + 3 * _TICK
    lines = Image.new("L", (start, height))
    drawing = ImageDraw.Draw(lines)
    drawing.rectangle((_GAP - 1, _ENDS - 1, right, height - _ENDS), outline=_LINE)
    # Each text as near to its tick as the texts above and the room below allow.
    steps = _MARK.leading * np.arange(len(ticks))
    lowest = height - _MARK.leading + _ENDS - steps[::-1]
    spread = np.maximum.accumulate(np.maximum(np.array(ticks, int) - steps, _ENDS)) + steps
    levels = np.minimum(spread, lowest).tolist()
    for tick, level in zip(ticks, levels, strict=True):
        drawing.line([(right, tick), (right + _TICK, tick), (start - _TICK, level), (start - 3, level)], _LINE)
    beside = [(text, start, level - _ENDS) for text, level in zip(texts, levels, strict=True)]
    width = start + max((text.width for text in texts), default=0) + _MARGIN
    return Box(width, height, [(np.asarray(lines), 0, 0), (bar, _GAP, _ENDS), *beside])
