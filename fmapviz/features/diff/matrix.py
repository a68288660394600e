"""Lay out a matrix of numbers from 0 to 1 as colours, with the names of its rows and columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fmapviz.draw.colormaps import colorize
from fmapviz.draw.labels import add_colorbar
from fmapviz.draw.layout import BLACK, Box, column, draw, picture, row
from fmapviz.draw.text import Typeface, set_lines, wrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_TITLE, _SIDE, _NOTE, _NAME = Typeface(15, 235, 0.25), Typeface(13, 200), Typeface(12, 165), Typeface(11, 200)
_MARGIN, _GAP = 12, 6  # pixels
_LARGEST, _SMALLEST = 40, 6  # sides of a cell
_WIDE = 900  # about the side of the whole matrix
_ROOM = 180  # the widest name
_COLORS = "viridis"
_UNKNOWN = 60  # grey level of a cell without a number


def draw_matrix(
    values: NDArray[np.float64],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    sides: tuple[str, str],
    title: str,
    note: str = "",
) -> NDArray[np.uint8]:
    """Draw a matrix.

    Args:
        values: `(R, C)`, 0 to 1; others are drawn as the nearest of these, NaN in grey.
        rows: R names, from top to bottom.
        columns: C names, from left to right.
        sides: What the rows are, and the columns.
        title: Text above.
        note: Small print below.

    Returns:
        uint8 `(H, W, 3)`.

    Example:
        >>> draw_matrix(np.eye(2), ["a", "b"], ["a", "b"], sides=("A", "B"), title="CKA").ndim
        3
    """
    cell = max(_SMALLEST, min(_LARGEST, _WIDE // max(1, *values.shape)))
    levels = (np.nan_to_num(values.clip(0, 1)) * 255 + 0.5).astype(np.uint8)
    colours = colorize(torch.from_numpy(levels), _COLORS).numpy().copy()
    colours[np.isnan(values)] = _UNKNOWN
    cells = colours.repeat(cell, 0).repeat(cell, 1)
    beside = _names(rows, cell)
    above = picture(np.ascontiguousarray(np.rot90(draw(_names(columns, cell, x=0), BLACK))))  # read from below
    body = row([beside, Box(_GAP, 0), picture(cells)])
    head = row([Box(beside.width + _GAP, above.height), above])
    across = set_lines(wrap(f"columns: {sides[1]}", _SIDE, max(320, body.width), lines=2))
    down = set_lines(wrap(f"rows: {sides[0]}", _SIDE, max(320, body.width), lines=2))
    heading = set_lines(wrap(title, _TITLE, max(320, body.width), lines=2))
    table = draw(column([head, Box(1, _GAP), body]), BLACK, colour=True)
    table = draw(add_colorbar(picture(table), colormap=_COLORS, marks=[(0.0, "0"), (0.5, "0.5"), (1.0, "1")]), BLACK)
    below = set_lines(wrap(note, _NOTE, max(320, table.shape[1]), lines=4))
    return draw(column([heading, down, across, picture(table), below], gap=_GAP).padded(_MARGIN), BLACK, colour=True)


def _names(names: Sequence[str], cell: int, *, x: int = 1) -> Box:
    """Return names below each other, at the left (0) or right (1), beside their cells; where these are low, not all."""
    every = -(-_NAME.leading // cell)
    texts = {at: set_lines(wrap(names[at], _NAME, _ROOM)) for at in range(0, len(names), every)}
    width = max((text.width for text in texts.values()), default=0)
    parts = [(text, x * (width - text.width), at * cell + max(0, (cell - text.height) // 2)) for at, text in texts.items()]
    return Box(width, max(len(names) * cell, *(top + text.height for text, _, top in parts), 1), parts)
