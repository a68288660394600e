"""Lay one picture per layer out beside the input on a single sheet, as papers show it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from fmapviz.lettering import WHITE, Typeface, draw_lines, set_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_MARGIN, _GAP, _BELOW = 28, 14, 4  # around the sheet, between its cells, above a label; these are all pixels
_LARGEST, _SMALLEST = 200, 96  # the longer side of a picture
_ALL = 1350  # that times the square root of the number of pictures
_WIDEST = 2.0  # the proportions of the input up to which all pictures have them
_NARROWEST = 400  # a title takes that
_LANDSCAPE = 1.45  # width to height, between 4:3 and 16:10
_EMPTY = 0.5  # how much a sheet's proportions may suffer for a last row that is full
_EDGE = (205, 205, 205)
_TITLE = Typeface(20, (20, 20, 20), 0.25)
_NAME, _DIM = Typeface(13, (20, 20, 20), 0.25), Typeface(12, (105, 105, 105))
_SMALL_PRINT = Typeface(13, (105, 105, 105))


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """One layer on a contact sheet.

    Attributes:
        picture: uint8 `(h, w)` or `(h, w, 3)`, at the layer's own resolution.
        title: The layer's name.
        subtitle: Its shape.
    """

    picture: NDArray[np.uint8]
    title: str
    subtitle: str


def draw_contact(seen: NDArray[np.uint8], cells: Sequence[Cell], *, title: str, note: str) -> NDArray[np.uint8]:
    """Draw the input and one picture per layer as one would paste them into a paper.

    Args:
        seen: The input, uint8 `(H, W)` or `(H, W, 3)`: the first picture.
        cells: The others, in their order.
        title: Stands above.
        note: Stands below, small.

    Returns:
        uint8 `(H', W', 3)`, dark on white, in landscape where possible. Every picture is enlarged or reduced to about the
        same size in its own proportions, what is enlarged without smoothing. The more there are the smaller they are. Names
        have three lines at most and are then shortened in the middle.

    Example:
        >>> layers = [Cell(np.zeros((55, 55), np.uint8), "features.0", "64 x 55 x 55")] * 5
        >>> draw_contact(np.zeros((224, 224, 3), np.uint8), layers, title="alexnet", note="").shape
        (587, 898, 3)
    """
    first = Cell(seen, "input", f"{seen.shape[0]} x {seen.shape[1]} pixels")
    everything = [first, *cells]
    width, height = _common_size(seen, len(everything))
    labels = [_label(cell, width) for cell in everything]
    right, down = width + _GAP, height + _BELOW + max(label.height for label in labels) + _GAP
    columns = _count_columns(len(everything), right, down)
    inner = max(columns * right - _GAP, _NARROWEST)
    above = draw_lines(set_lines(title, _TITLE, inner, most=3))
    below = draw_lines(set_lines(note, _SMALL_PRINT, inner, most=6))
    top = _MARGIN + above.height + _GAP * bool(above.height)
    end = top + ceil(len(everything) / columns) * down - _GAP
    page = Image.new("RGB", (inner + 2 * _MARGIN, end + (_GAP + below.height) * bool(below.height) + _MARGIN), WHITE)
    page.paste(above, (_MARGIN, _MARGIN))
    page.paste(below, (_MARGIN, end + _GAP))
    for number, (cell, label) in enumerate(zip(everything, labels, strict=True)):
        row, column = divmod(number, columns)
        place = _MARGIN + column * right, top + row * down
        _place(page, cell.picture, (width, height), place)
        page.paste(label, (place[0] + (width - label.width) // 2, place[1] + height + _BELOW))
    return np.array(page)


def _common_size(seen: NDArray[np.uint8], count: int) -> tuple[int, int]:
    """Give the width and height that pictures have, in about the proportions of the input."""
    longer = min(_LARGEST, max(_SMALLEST, round(_ALL / sqrt(count))))
    proportions = min(_WIDEST, max(1 / _WIDEST, seen.shape[1] / seen.shape[0]))
    # Rounded up, so that the longer side decides how large a picture of these proportions becomes.
    if proportions >= 1:
        return longer, ceil(longer / proportions)
    return max(_SMALLEST, ceil(longer * proportions)), longer


def _label(cell: Cell, width: int) -> Image.Image:
    return draw_lines([*set_lines(cell.title, _NAME, width, most=3), *set_lines(cell.subtitle, _DIM, width)], alignment=0.5)


def _count_columns(count: int, right: int, down: int) -> int:
    """Choose the number of columns that gives a sheet in landscape, with few empty places in its last row.

    Args:
        count: Of the cells.
        right: From one to the next, pixels.
        down: From one row to the next.
    """

    def awkwardness(columns: int) -> float:
        rows = ceil(count / columns)
        width = columns * right + 2 * _MARGIN
        height = rows * down + _TITLE.leading + _SMALL_PRINT.leading + _GAP + 2 * _MARGIN
        return abs(log(width / height / _LANDSCAPE)) + _EMPTY * (1 - count / (rows * columns))

    return min(range(1, count + 1), key=awkwardness)


def _place(page: Image.Image, picture: NDArray[np.uint8], box: tuple[int, int], corner: tuple[int, int]) -> None:
    """Put a picture into the middle of a box, within a thin line."""
    fitted = _fit(Image.fromarray(picture), box)
    left, top = corner[0] + (box[0] - fitted.width) // 2, corner[1] + (box[1] - fitted.height) // 2
    page.paste(_EDGE, (left - 1, top - 1, left + fitted.width + 1, top + fitted.height + 1))
    page.paste(fitted, (left, top))


def _fit(picture: Image.Image, box: tuple[int, int]) -> Image.Image:
    """Make a picture as large as it can be within a box; a pixel that is enlarged stays a sharp rectangle."""
    factor = min(box[0] / picture.width, box[1] / picture.height)
    size = max(1, round(picture.width * factor)), max(1, round(picture.height * factor))
    return picture.resize(size, Image.Resampling.NEAREST if factor >= 1 else Image.Resampling.BOX)
