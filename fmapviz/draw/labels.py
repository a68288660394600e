"""Add channel numbers, a header and a colour bar to a grid."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import ceil, log2
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import as_strided

from fmapviz.config.style import TEXT_SIZE
from fmapviz.core.drawings import Tiles
from fmapviz.draw.colormaps import table
from fmapviz.draw.layout import Background, Box, Lines, column, draw, row, with_channels
from fmapviz.draw.text import TextLine, Typeface, set_lines, wrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Placed = tuple[TextLine, int, int]  # a text with its left and top
_LINE = 110  # grey level of the colour bar's ticks and outline
# Pixels, except _FEW.
_ABOVE, _BELOW, _BESIDE = 4, 2, 4  # around a number, so that it is nearest to its own tile
_FEW = 64  # up to this many tiles that touch each other are moved apart to make room for their numbers
_MARGIN = 4  # around a header, and at the right of a colour bar
_NARROWEST, _LOWEST = 320, 96  # the smallest header and colour bar
_BAR, _GAP, _TICK = 14, 12, 5  # the colour bar's width, the gap before it and the length of its ticks
_LONGEST = 160  # the widest text beside a colour bar


_BLACK = Background()


@dataclass(frozen=True, slots=True)
class Lettering:
    """The look of numbers, headers and colour bars.

    Attributes:
        background: The background below them.
        size: Of the text of a header, pixels; the others are in proportion.
    """

    background: Background = _BLACK
    size: int = TEXT_SIZE

    @property
    def number(self) -> Typeface:
        """Of the numbers of tiles."""
        return self._face(10, 200)

    @property
    def strong(self) -> Typeface:
        """Of the first line of a header."""
        return self._face(15, 235, 0.25)

    @property
    def dim(self) -> Typeface:
        """Of the other lines of a header."""
        return self._face(13, 165)

    @property
    def mark(self) -> Typeface:
        """Of the texts beside a colour bar."""
        return self._face(12, 200)

    def scaled(self, pixels: int) -> int:
        """Return a measure in proportion to the text."""
        return round(pixels * self.size / TEXT_SIZE)

    def _face(self, size: int, level: int, weight: float = 0.0) -> Typeface:
        return Typeface(max(1, self.scaled(size)), level, round(4 * weight * self.size / TEXT_SIZE) / 4)


_PLAIN = Lettering()


def lay_tiles(pixels: NDArray[np.uint8], tiles: Tiles, look: Lettering) -> NDArray[np.uint8]:
    """Replace the pixels between tiles, and those of missing tiles, by the background.

    Example:
        >>> grid, tiles = np.zeros((4, 7), np.uint8), Tiles(1, 1, 2, 2, 3, 3, 2, 2)
        >>> lay_tiles(grid, tiles, Lettering(Background((255, 255, 255))))[1].tolist()
        [255, 0, 0, 255, 0, 0, 255]
    """
    if look.background == _BLACK:
        return pixels
    page = _blank(pixels.shape[0], pixels.shape[1], pixels, look)
    _blocks(page, tiles)[:] = _as_deep_as(page, _blocks(pixels, tiles))
    for at in range(tiles.count, -(-tiles.count // tiles.columns) * tiles.columns):
        left, top = tiles.corner(at)
        page[top : top + tiles.height, left : left + tiles.width] = look.background.pixel
    return page


def number_tiles(
    pixels: NDArray[np.uint8],
    tiles: Tiles,
    numbers: Sequence[int],
    look: Lettering = _PLAIN,
    *,
    texts: list[Placed] | None = None,
) -> tuple[NDArray[np.uint8], Tiles]:
    """Draw a number above each tile of a grid, and move the tiles apart for it.

    Tiles that touch each other and are narrower than their numbers, such as bars, stay together if they are numbered from
    0 or if there are more than 64. Then only one of every 2, 4, 8, ... in a row has its number.

    Args:
        pixels: uint8 `(H, W)` or `(H, W, 3)`.
        tiles: The layout of the grid.
        numbers: One per tile, not negative.
        look: Of the numbers, and the background between tiles.
        texts: Receives the numbers with their positions, instead of the picture.

    Returns:
        The numbered grid, uint8 `(H', W')` or `(H', W', 3)` like `pixels`, and its layout.

    Example:
        >>> from fmapviz.core.drawings import Tiles
        >>> grid, tiles = number_tiles(np.zeros((11, 20), np.uint8), Tiles(2, 2, 7, 7, 9, 9, 2, 2), [0, 255])
        >>> grid.shape, tiles.corner(1)
        ((26, 46), (24, 17))
    """
    labels = _draw_numbers(numbers, look)
    count, high, wide, _ = labels.shape
    room, more = wide + _BESIDE, _ABOVE + high + _BELOW
    across, step = _space(tiles.width, tiles.across, room, numbers, apart=3 if _is_counted(numbers) else 1)
    moved = replace(tiles, top=tiles.top + more, across=across, down=tiles.down + more)
    rows = ceil(count / tiles.columns)
    last = (tiles.columns - 1) // step * step * across
    width = max(pixels.shape[1] + tiles.columns * (across - tiles.across), tiles.left + last + room)
    numbered = _blank(len(pixels) + rows * more, width, pixels, look)
    _blocks(numbered, moved)[:] = _as_deep_as(numbered, _blocks(pixels, tiles))
    top = moved.top - _BELOW - high
    if texts is not None:
        for at in range(count):
            line, place = divmod(at, tiles.columns)
            if place % step == 0:
                texts.append(_number_at(numbers[at], look, wide, moved.left + place * across, top + line * moved.down))
        return numbered, moved
    blank = np.full((rows * tiles.columns - count, *labels.shape[1:]), look.background.pixel, np.uint8)
    written = np.concatenate([labels, blank]).reshape(rows, tiles.columns, high, wide, -1)[:, ::step]
    columns = written.shape[1]
    places = Tiles(moved.left, top, wide, high, step * across, moved.down, columns, rows * columns)
    _blocks(numbered, places)[:] = _as_deep_as(numbered, written)
    return numbered, moved


def number_size(count: int, look: Lettering = _PLAIN) -> tuple[int, int]:
    """Return the width and height, gaps included, of the numbers below a count, pixels.

    Example:
        >>> number_size(1000)
        (22, 11)
    """
    _, high, wide, _ = _digits(look).shape
    return wide * len(str(count - 1)) + _BESIDE, high + _BELOW


def number_rows(
    pixels: NDArray[np.uint8],
    rows: Tiles,
    numbers: Sequence[int],
    look: Lettering = _PLAIN,
    *,
    texts: list[Placed] | None = None,
) -> tuple[NDArray[np.uint8], Tiles]:
    """Draw a number before each row of a grid, and move the rows apart for it.

    Rows that touch each other stay together under the same conditions as in `number_tiles`.

    Args:
        pixels: uint8 `(H, W)` or `(H, W, 3)`.
        rows: The layout of the rows, one tile each.
        numbers: One per row, not negative.
        look: Of the numbers, and the background between tiles.
        texts: Receives the numbers with their positions, instead of the picture.

    Returns:
        The numbered grid, uint8 `(H', W')` or `(H', W', 3)` like `pixels`, and its layout.

    Example:
        >>> from fmapviz.core.drawings import Tiles
        >>> grid, rows = number_rows(np.zeros((24, 60), np.uint8), Tiles(2, 2, 56, 9, 58, 11, 1, 2), [0, 255])
        >>> grid.shape, rows.corner(1)
        ((24, 86), (28, 13))
    """
    labels = _draw_numbers(numbers, look, ">")
    _, high, wide, _ = labels.shape
    room, more = high + _BELOW, _BESIDE + wide + _BESIDE
    down, step = _space(rows.height, rows.down, room, numbers)
    moved = replace(rows, left=rows.left + more, top=rows.top + (down - rows.down) // 2, down=down)
    labels = labels[::step]
    top = moved.top + (0 if step > 1 else (rows.height - high) // 2)
    places = Tiles(_BESIDE, top, wide, high, wide, step * down, 1, len(labels))
    height = max(len(pixels) + rows.count * (down - rows.down), places.corner(len(labels) - 1)[1] + high)
    numbered = _blank(height, pixels.shape[1] + more, pixels, look)
    _blocks(numbered, moved)[:] = _as_deep_as(numbered, _blocks(pixels, rows))
    if texts is not None:
        for at, number in enumerate(numbers[::step]):
            texts.append(_number_at(number, look, wide, *places.corner(at), alignment=1.0))
        return numbered, moved
    _blocks(numbered, places)[:, 0] = _as_deep_as(numbered, labels)
    return numbered, moved


def add_colorbar(
    box: Box,
    *,
    colormap: str | None,
    marks: Sequence[tuple[float, str]],
    alpha: float = 1.0,
    look: Lettering = _PLAIN,
) -> Box:
    """Add a colour bar at the right of a picture.

    Args:
        box: The picture.
        colormap: The colours from level 255 at the top to level 0; None: white to black.
        marks: Positions along the bar, 0 at the bottom and 1 at the top, and the texts beside them.
        alpha: Opacity of colours that are drawn over a grey picture: the bar shows each of them over black at its left edge
            to white at its right edge.
        look: Of the texts.

    Returns:
        A box with the picture in its upper left corner. It is higher only if the bar or its texts need more. Texts
        that would overlap are moved apart.

    Raises:
        RequestError: The colour map is unknown.

    Example:
        >>> from fmapviz.draw.layout import picture
        >>> bar = add_colorbar(picture(np.zeros((458, 458), np.uint8)), colormap=None, marks=[(0, "-1"), (1, "1")])
        >>> bar.height, bar.width
        (458, 514)
    """
    marks = sorted(marks, key=lambda mark: -mark[0])
    texts = [set_lines(wrap(text, look.mark, look.scaled(_LONGEST))) for _, text in marks]
    length = _bar_length(box, len(texts), look)
    ticks = [_ends(look) + round((1 - position) * (length - 1)) for position, _ in marks]
    colours = table(colormap or "gray")[np.linspace(255, 0, length).round().astype(np.uint8)]
    if alpha < 1:
        below = np.linspace(0, 255, _BAR)[None, :, None]
        bar = np.rint(alpha * colours[:, None].astype(np.float64) + (1 - alpha) * below).astype(np.uint8)
    elif colormap:
        bar = np.broadcast_to(colours[:, None], (length, _BAR, 3))
    else:
        bar = np.broadcast_to(colours[:, :1], (length, _BAR))
    return row([box, _lay_out_scale(bar, ticks, texts, look)])


def add_legend(box: Box, colours: NDArray[np.uint8], texts: Sequence[str], look: Lettering = _PLAIN) -> Box:
    """Add a legend on the right of a picture: colours from top to bottom, each with its text.

    Args:
        box: The picture.
        colours: uint8 `(K, 3)`.
        texts: One per colour.
        look: Of the texts.

    Returns:
        A box with the picture at the top left, which is higher only if the picture is too low for the texts.

    Example:
        >>> from fmapviz.draw.layout import picture
        >>> add_legend(picture(np.zeros((224, 224, 3), np.uint8)), np.zeros((2, 3), np.uint8), ["0", "1"]).height
        224
    """
    lines = [set_lines(wrap(text, look.mark, look.scaled(_LONGEST))) for text in texts]
    length = _bar_length(box, len(lines), look)
    edges = np.linspace(0, length, len(colours) + 1).round().astype(int)
    bar = np.repeat(colours, np.diff(edges), axis=0)[:, None].repeat(_BAR, 1)
    middles = ((edges[1:] + edges[:-1]) // 2 + _ends(look)).tolist()
    return row([box, _lay_out_scale(bar, middles, lines, look)])


def add_header(box: Box, lines: Sequence[str], look: Lettering = _PLAIN) -> Box:
    """Add lines of text above a picture.

    Args:
        box: The picture.
        lines: The first is strong, the others are dim. Each is wrapped into up to three, then elided in the middle.
        look: Of the texts.

    Returns:
        A box with the picture in the lower left corner, which is wider only if the picture is too narrow for text.

    Example:
        >>> from fmapviz.draw.layout import picture
        >>> headed = add_header(picture(np.zeros((458, 458), np.uint8)), ["features.0", "64 x 55 x 55"])
        >>> headed.height, headed.width
        (504, 458)
    """
    narrowest = look.scaled(_NARROWEST)
    faces = [look.strong] + [look.dim] * len(lines)
    room = max(box.width, narrowest) - 2 * _MARGIN
    wrapped = [line for text, face in zip(lines, faces, strict=False) for line in wrap(text, face, room, lines=3)]
    if not wrapped:
        return box
    return column([Box(narrowest, 0), set_lines(wrapped).padded(_MARGIN), box])


def add_caption(box: Box, text: str, look: Lettering = _PLAIN) -> Box:
    """Add a text below a picture, which keeps its place.

    Args:
        box: The picture.
        text: Each line of it is wrapped into up to three, then elided in the middle.
        look: Of the text.

    Returns:
        A box with the picture in the upper left corner, which is wider only if the picture is too narrow for text.

    Example:
        >>> from fmapviz.draw.layout import picture
        >>> captioned = add_caption(picture(np.zeros((224, 224), np.uint8)), "star, top1: 98.7 %, logit 2.5")
        >>> captioned.height, captioned.width
        (250, 224)
    """
    room = max(box.width, look.scaled(_LOWEST)) - 2 * _MARGIN
    wrapped = [line for part in text.split("\n") for line in wrap(part, look.dim, room, lines=3)]
    return column([box, set_lines(wrapped).padded(_MARGIN)])


def _ends(look: Lettering) -> int:
    """Return the room above and below a colour bar, for the text beside its ends."""
    return look.mark.leading // 2


def _bar_length(box: Box, texts: int, look: Lettering) -> int:
    return max(box.height, _LOWEST, look.mark.leading * texts) - 2 * _ends(look)


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
    """Return True if numbers count from 0, so that a reader can infer missing ones."""
    return list(numbers) == list(range(len(numbers)))


def _draw_numbers(numbers: Sequence[int], look: Lettering, alignment: str = "<") -> NDArray[np.uint8]:
    """Draw numbers, uint8 `(N, height, width, channels)`, left or right aligned, with the channels of the background."""
    digits = max(len(str(number)) for number in numbers)
    text = "".join(f"{number:{alignment}{digits}}" for number in numbers).encode("ascii")
    drawn = _digits(look)[np.frombuffer(text, np.uint8).reshape(len(numbers), digits)]
    count, _, height, width, channels = drawn.shape
    return drawn.swapaxes(1, 2).reshape(count, height, digits * width, channels)


@cache
def _digits(look: Lettering) -> NDArray[np.uint8]:
    """Draw the digits, all of one width, uint8 `(128, height, width, channels)`, indexed by their ASCII codes."""
    drawn = [draw(set_lines([(digit, look.number)]), look.background) for digit in "0123456789"]
    planes = np.stack([with_channels(digit, look.background.channels) for digit in drawn])
    inked = np.flatnonzero((planes != look.background.pixel).any((0, 2, 3)))
    glyphs = np.full((128, int(np.ptp(inked)) + 1, *planes.shape[2:]), look.background.pixel, np.uint8)
    glyphs[ord("0") : ord("9") + 1] = planes[:, inked[0] : inked[-1] + 1]
    return glyphs


def _number_at(number: int, look: Lettering, width: int, left: int, top: int, *, alignment: float = 0.0) -> Placed:
    """Return the text of a number whose digits begin at a height."""
    digits, full = _digits(look).shape[1], look.number.size  # digits stand on the line, a font size below the text's top
    return TextLine(str(number), look.number, width, alignment), left, top - (full - digits)


def _blank(height: int, width: int, pixels: NDArray[np.uint8], look: Lettering) -> NDArray[np.uint8]:
    """Return a page of the background's colour, with as many channels as it and pixels on it need."""
    channels = max(look.background.channels, 1 if pixels.ndim == 2 else pixels.shape[2])
    page = np.full(
        (height, width, channels), with_channels(np.array([[look.background.pixel]], np.uint8), channels), np.uint8
    )
    return page if channels > 1 else page[..., 0]


def _as_deep_as(page: NDArray[np.uint8], pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return pixels with the channels of a page, opaque where they have no alpha; `pixels` has a last axis of channels."""
    channels = 1 if page.ndim == 2 else page.shape[2]
    if pixels.shape[-1] == channels:
        return pixels
    return with_channels(pixels.reshape(-1, 1, pixels.shape[-1]), channels).reshape(*pixels.shape[:-1], channels)


def _blocks(pixels: NDArray[np.uint8], tiles: Tiles) -> NDArray[np.uint8]:
    """Return a view of tiles, `(rows, columns, height, width, 1)` or `(rows, columns, height, width, 3)`."""
    pixels = pixels if pixels.ndim == 3 else pixels[..., None]
    down, across, _ = pixels.strides
    shape = (ceil(tiles.count / tiles.columns), tiles.columns, tiles.height, tiles.width, pixels.shape[2])
    return as_strided(pixels[tiles.top :, tiles.left :], shape, (tiles.down * down, tiles.across * across, *pixels.strides))


def _lay_out_scale(bar: NDArray[np.uint8], ticks: Sequence[int], texts: Sequence[Box], look: Lettering) -> Box:
    """Outline a colour bar, and place the texts beside it, each tied to its tick."""
    ends, leading = _ends(look), look.mark.leading
    height, right = len(bar) + 2 * ends, _GAP + _BAR
    start = right + 3 * _TICK
    # Each text as near to its tick as the texts above and the room below allow.
    steps = leading * np.arange(len(ticks))
    lowest = height - leading + ends - steps[::-1]
    spread = np.maximum.accumulate(np.maximum(np.array(ticks, int) - steps, ends)) + steps
    levels = np.minimum(spread, lowest).tolist()
    top, bottom = ends - 1, height - ends
    outline = ((_GAP - 1, top), (right, top), (right, bottom), (_GAP - 1, bottom), (_GAP - 1, top))
    tied = (
        ((right, tick), (right + _TICK, tick), (start - _TICK, level), (start - 3, level))
        for tick, level in zip(ticks, levels, strict=True)
    )
    lines = Lines(start, height, _LINE, (outline, *tied))
    beside = [(text, start, level - ends) for text, level in zip(texts, levels, strict=True)]
    width = start + max((text.width for text in texts), default=0) + _MARGIN
    return Box(width, height, [(lines, 0, 0), (bar, _GAP, ends), *beside])
