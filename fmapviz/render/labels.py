"""Put channel numbers, a header and a colour bar around a grid."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import as_strided
from PIL import Image, ImageDraw

from fmapviz.colors import table
from fmapviz.lettering import BLACK, Typeface, draw_lines, set_lines
from fmapviz.tiles import Tiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_NUMBER = Typeface(10, (200, 200, 200))
_STRONG, _DIM = Typeface(15, (235, 235, 235), 0.25), Typeface(13, (165, 165, 165))
_MARK = Typeface(12, (200, 200, 200))
_LINE = (110, 110, 110)  # ticks and the colour bar's outline
_ABOVE, _BELOW, _BESIDE = 4, 2, 4  # around a number, so that it is nearest to its own tile; these are all pixels
_FEW = 64  # tiles that are moved apart for their numbers though they touched each other
_MARGIN = 4  # around a header, and at the right of a colour bar
_ENDS = _MARK.leading // 2  # above and below a colour bar, so that text fits beside its ends
_NARROWEST, _LOWEST = 320, 96  # what a header and a colour bar take at least
_BAR, _GAP, _TICK = 14, 12, 5  # the colour bar's width, and what is before and after it
_LONGEST = 160  # what is written beside a colour bar


def number_tiles(pixels: NDArray[np.uint8], tiles: Tiles, numbers: Sequence[int]) -> tuple[NDArray[np.uint8], Tiles]:
    """Lay the tiles of a grid out anew, each under its number.

    Args:
        pixels: uint8 `(H, W)` or `(H, W, 3)`.
        tiles: Where they lie in it.
        numbers: One per tile, from 0.

    Returns:
        uint8 `(H', W')` or `(H', W', 3)` as `pixels`, and where the tiles lie now: in the same rows, far enough from each
        other for the widest number. Tiles that touch each other and are narrower than that, such as bars, keep doing so if
        they are counted from 0, or more than 64, and one of every so many in a row is numbered: others can be told from it.

    Example:
        >>> from fmapviz.tiles import Tiles
        >>> grid, tiles = number_tiles(np.zeros((11, 20), np.uint8), Tiles(2, 2, 7, 7, 9, 9, 2, 2), [0, 255])
        >>> grid.shape, tiles.corner(1)
        ((26, 46), (24, 17))
    """
    labels = _set_numbers(numbers)
    _, high, wide = labels.shape
    room, more = wide + _BESIDE, _ABOVE + high + _BELOW
    bars = tiles.across == tiles.width < room and _too_many(numbers)
    step = _power_of_two((3 if _is_counted(numbers) else 1) * room / tiles.width) if bars else 1
    across = tiles.across if bars else max(tiles.across, room)
    moved = replace(tiles, top=tiles.top + more, across=across, down=tiles.down + more)
    rows = -(-tiles.count // tiles.columns)
    last = (tiles.columns - 1) // step * step * across
    width = max(pixels.shape[1] + tiles.columns * (across - tiles.across), tiles.left + last + room)
    numbered = _ground(len(pixels) + rows * more, width, pixels)
    _blocks(numbered, moved)[:] = _blocks(pixels, tiles)
    _write(numbered, moved, labels, step=step)
    return numbered, moved


def room_of(count: int) -> tuple[int, int]:
    """Say how much a number below a count takes beside its tile or row, and what is around it: width and height, pixels.

    Example:
        >>> room_of(1000)
        (22, 11)
    """
    _, high, wide = _digits().shape
    return wide * len(str(count - 1)) + _BESIDE, high + _BELOW


def number_rows(pixels: NDArray[np.uint8], rows: Tiles, numbers: Sequence[int]) -> tuple[NDArray[np.uint8], Tiles]:
    """Write a number before each row of a grid.

    Args:
        pixels: uint8 `(H, W)` or `(H, W, 3)`.
        rows: Where they lie in it, one below the other.
        numbers: One per row, from 0.

    Returns:
        uint8 `(H', W')` or `(H', W', 3)` as `pixels`, and where the rows lie now: as far from each other as numbers need.
        Rows that touch each other are treated as `number_tiles` treats such tiles.

    Example:
        >>> from fmapviz.tiles import Tiles
        >>> grid, rows = number_rows(np.zeros((24, 60), np.uint8), Tiles(2, 2, 56, 9, 58, 11, 1, 2), [0, 255])
        >>> grid.shape, rows.corner(1)
        ((24, 86), (28, 13))
    """
    labels = _set_numbers(numbers, ">")
    _, high, wide = labels.shape
    room, more = high + _BELOW, _BESIDE + wide + _BESIDE
    matrix = rows.down == rows.height < room and _too_many(numbers)
    step = _power_of_two(room / rows.height) if matrix else 1
    down = rows.down if matrix else max(rows.down, room)
    moved = replace(rows, left=rows.left + more, top=rows.top + (down - rows.down) // 2, down=down)
    middle = 0 if matrix else (rows.height - high) // 2
    labels = labels[::step]
    places = Tiles(_BESIDE, moved.top + middle, wide, high, wide, step * down, 1, len(labels))
    height = max(len(pixels) + rows.count * (down - rows.down), places.corner(len(labels) - 1)[1] + high)
    numbered = _ground(height, pixels.shape[1] + more, pixels)
    _blocks(numbered, moved)[:] = _blocks(pixels, rows)
    _blocks(numbered, places)[:, 0] = labels if pixels.ndim == 2 else labels[..., None]
    return numbered, moved


def add_colorbar(
    pixels: NDArray[np.uint8], *, colormap: str | None, marks: Sequence[tuple[float, str]]
) -> NDArray[np.uint8]:
    """Put a colour bar at the right of a picture.

    Args:
        pixels: uint8 `(H, W)` or `(H, W, 3)`.
        colormap: What level 255, at the top, to level 0 look like; None is white to black.
        marks: What is written beside the bar, and where: 0 is its bottom, 1 its top.

    Returns:
        uint8 `(H', W')` or, if the picture or the bar is in colour, `(H', W', 3)`, the picture itself in the upper left
        corner. H' exceeds H only if that is too low for the bar or the marks. Marks that are too near to each other are
        moved apart.

    Raises:
        RequestError: There is no colour map of that name.

    Example:
        >>> add_colorbar(np.zeros((458, 458), np.uint8), colormap=None, marks=[(0, "-1"), (1, "1")]).shape
        (458, 514)
    """
    levels_at = sorted(marks, key=lambda mark: -mark[0])
    texts = [draw_lines(set_lines(text, _MARK, _LONGEST), ground=BLACK) for _, text in levels_at]
    height = max(len(pixels), _LOWEST, _MARK.leading * len(texts))
    length = height - 2 * _ENDS
    ticks = [_ENDS + round((1 - position) * (length - 1)) for position, _ in levels_at]
    aside = _legend(height, ticks, texts)
    levels = np.linspace(255, 0, length).round().astype(np.uint8)
    colours = table(colormap or "gray")[levels]
    aside[_ENDS:-_ENDS, _GAP : _GAP + _BAR] = colours[:, None]
    kind = pixels if colormap is None else aside
    framed = _ground(height, pixels.shape[1] + aside.shape[1], kind)
    _paste(framed, pixels, 0, 0)
    _paste(framed, aside, pixels.shape[1], 0)
    return framed


def add_header(pixels: NDArray[np.uint8], lines: Sequence[str]) -> NDArray[np.uint8]:
    """Write above a picture.

    Args:
        pixels: uint8 `(H, W)` or `(H, W, 3)`.
        lines: The first is strong, the others are dim; each is broken into three at most, then shortened in the middle.

    Returns:
        uint8 `(H', W')` or `(H', W', 3)` as `pixels`, the picture itself in the lower left corner. W' exceeds W only if that
        is too narrow for text.

    Example:
        >>> add_header(np.zeros((458, 458), np.uint8), ["features.0", "64 x 55 x 55"]).shape
        (504, 458)
    """
    width = max(pixels.shape[1], _NARROWEST)
    faces = [_STRONG] + [_DIM] * len(lines)
    room = width - 2 * _MARGIN
    written = [line for text, face in zip(lines, faces, strict=False) for line in set_lines(text, face, room, most=3)]
    if not written:
        return pixels.copy()
    header = np.asarray(draw_lines(written, ground=BLACK))
    above = len(header) + 2 * _MARGIN
    framed = _ground(above + len(pixels), width, pixels)
    _paste(framed, header, _MARGIN, _MARGIN)
    _paste(framed, pixels, 0, above)
    return framed


def _is_counted(numbers: Sequence[int]) -> bool:
    """Tell whether numbers count from 0, so that those between two can be told from them."""
    return list(numbers) == list(range(len(numbers)))


def _too_many(numbers: Sequence[int]) -> bool:
    """Tell whether tiles that touch each other had better stay so than be moved apart for their numbers."""
    return len(numbers) > _FEW or _is_counted(numbers)


def _set_numbers(numbers: Sequence[int], alignment: str = "<") -> NDArray[np.uint8]:
    """Draw numbers, uint8 `(N, height, width)`, at the left or the right of equal places."""
    digits = max(len(str(number)) for number in numbers)
    text = "".join(f"{number:{alignment}{digits}}" for number in numbers).encode("ascii")
    drawn = _digits()[np.frombuffer(text, np.uint8).reshape(len(numbers), digits)]
    count, _, height, width = drawn.shape
    return drawn.swapaxes(1, 2).reshape(count, height, digits * width)


@cache
def _digits() -> NDArray[np.uint8]:
    """Draw the digits, uint8 `(128, height, width)`, each at its place in ASCII: in this font they are of one width."""
    drawn = np.stack([np.asarray(draw_lines([(digit, _NUMBER)], ground=BLACK))[..., 0] for digit in "0123456789"])
    inked = np.flatnonzero(drawn.max((0, 2)))
    glyphs = np.zeros((128, int(np.ptp(inked)) + 1, drawn.shape[2]), np.uint8)
    glyphs[ord("0") : ord("9") + 1] = drawn[:, inked[0] : inked[-1] + 1]
    return glyphs


def _power_of_two(least: float) -> int:
    return 1 << max(0, int(np.ceil(np.log2(least))))


def _write(pixels: NDArray[np.uint8], tiles: Tiles, labels: NDArray[np.uint8], *, step: int) -> None:
    """Write a label above each tile of every so many in a row."""
    count, height, width = labels.shape
    rows = -(-count // tiles.columns)
    blank = np.zeros((rows * tiles.columns - count, height, width), np.uint8)
    in_rows = np.concatenate([labels, blank]).reshape(rows, tiles.columns, height, width)[:, ::step]
    top = tiles.top - _BELOW - height
    columns = in_rows.shape[1]
    places = replace(
        tiles, top=top, width=width, height=height, across=step * tiles.across, columns=columns, count=rows * columns
    )
    _blocks(pixels, places)[:] = in_rows if pixels.ndim == 2 else in_rows[..., None]


def _blocks(pixels: NDArray[np.uint8], tiles: Tiles) -> NDArray[np.uint8]:
    """View tiles as `(rows, columns, height, width)` or `(rows, columns, height, width, 3)`."""
    down, across, *_ = pixels.strides
    shape = (-(-tiles.count // tiles.columns), tiles.columns, tiles.height, tiles.width, *pixels.shape[2:])
    strides = (tiles.down * down, tiles.across * across, *pixels.strides)
    return as_strided(pixels[tiles.top :, tiles.left :], shape, strides)


def _legend(height: int, ticks: Sequence[int], texts: Sequence[Image.Image]) -> NDArray[np.uint8]:
    """Draw what is around a colour bar: its outline, and texts each tied to its tick; uint8 `(height, W, 3)`."""
    right = _GAP + _BAR
    start = right + 3 * _TICK
    legend = Image.new("RGB", (start + max((text.width for text in texts), default=0) + _MARGIN, height))
    draw = ImageDraw.Draw(legend)
    draw.rectangle((_GAP - 1, _ENDS - 1, right, height - _ENDS), outline=_LINE)
    levels = _move_apart(ticks, step=_MARK.leading, ends=(_ENDS, height - _MARK.leading + _ENDS))
    for tick, level, text in zip(ticks, levels, texts, strict=True):
        draw.line([(right, tick), (right + _TICK, tick), (start - _TICK, level), (start - 3, level)], _LINE)
        legend.paste(text, (start, level - _ENDS))
    return np.array(legend)


def _move_apart(wanted: Sequence[int], *, step: int, ends: tuple[int, int]) -> list[int]:
    """Give places in ascending order between two ends, so far apart at least, near those that were wanted."""
    places: list[int] = []
    for place in wanted:
        places.append(max(place, places[-1] + step if places else ends[0]))
    for number, place in enumerate(reversed(places), start=1):
        places[-number] = min(place, ends[1] - (number - 1) * step)
    return places


def _ground(height: int, width: int, like: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.zeros((height, width, *like.shape[2:]), np.uint8)


def _paste(pixels: NDArray[np.uint8], part: NDArray[np.uint8], left: int, top: int) -> None:
    """Put a part into a picture; where only one of them is in colour the part is grey all the same."""
    if part.ndim > pixels.ndim:
        part = part[..., 0]
    pixels[top : top + part.shape[0], left : left + part.shape[1]] = part if part.ndim == pixels.ndim else part[..., None]
