"""Lay captioned pictures out in rows and columns on one page, under a title and above a note."""

from __future__ import annotations

from math import ceil, log, sqrt
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from PIL.Image import Resampling

from fmapviz.draw.layout import WHITE, Box, column, draw, picture, row
from fmapviz.draw.text import Typeface, set_lines, wrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# Pixels throughout.
_MARGIN, _GAP, _BELOW = 28, 14, 4  # around the page, between cells, between a picture and the caption below it
_BORDER = 205
_MIDDLE = 0.499  # an odd pixel is at the right, or below
_INK, _GREY = 20, 105
_TITLE, _NOTE = Typeface(20, _INK, 0.25), Typeface(13, _GREY)

_SMALL, _USUAL, _LARGE = 160, 224, 320  # narrower pictures are enlarged to the usual width, longer ones reduced
_NARROWEST_COLUMN, _LOWEST_ROW = 120, 40  # room for text
_CORNER_HEIGHT = 80  # the smallest height of the corner picture
_ROW_LABEL = 240  # the widest row label
_HEADING, _SUBHEADING = Typeface(15, _INK, 0.25), Typeface(14, _GREY)

_LONGEST_SIDE, _SHORTEST_SIDE = 200, 96  # limits of the longer side of a contact sheet's pictures
_TOTAL_SIDE = 1350  # the longer side times the square root of the number of pictures
_ELONGATION = 2.0  # cells are never more elongated than this
_NARROWEST_PAGE = 400  # room for a title
_LANDSCAPE = 1.45  # aspect ratio of a contact sheet, between 4:3 and 16:10
_EMPTY_PENALTY = 0.5  # how much a full last row counts against the aspect ratio
_NAME, _SUBTITLE = Typeface(13, _INK, 0.25), Typeface(12, _GREY)


def draw_sheet(
    cells: Sequence[Sequence[NDArray[np.uint8] | str]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    note: str,
    corner: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    r"""Draw a table of pictures with a label for each row and column.

    Args:
        cells: Rows of pictures, uint8 `(H, W, 3)` of one size. A text replaces a missing picture.
        rows: The label of each row; lines after the first `\n` are dimmer.
        columns: The label of each column, in the same form.
        title: Text above the table.
        note: Small print below the table.
        corner: Picture in the top left corner, uint8 `(H, W)` or `(H, W, 3)`.

    Returns:
        uint8 `(H', W', 3)`, dark on white. Small pictures are enlarged and large ones reduced; labels are wrapped, then
        elided in the middle.

    Example:
        >>> cells = [[np.zeros((224, 224, 3), np.uint8), "no gradient"]]
        >>> draw_sheet(cells, rows=[""], columns=["mean", "max"], title="net", note="").shape
        (348, 518, 3)
    """
    pictures = [cell for line in cells for cell in line if not isinstance(cell, str)]
    size = _table_size(pictures[0] if pictures else corner)
    width, height = max(size[0], _NARROWEST_COLUMN), max(size[1], _LOWEST_ROW)
    names = [_label(text, _ROW_LABEL, alignment=1.0) for text in rows]
    headings = [_label(text, width, alignment=0.5) for text in columns]
    shown = Box(0, 0)
    if corner is not None:
        shown = _fit(corner, (_ROW_LABEL, max(height // 2, _CORNER_HEIGHT)), smooth=True)
    aside, above = max(box.width for box in (shown, *names)), max(box.height for box in (shown, *headings))
    head = [shown.within(aside, above, x=1, y=1), *(heading.within(width, above, y=1) for heading in headings)]
    lines = []
    for name, line in zip(names, cells, strict=True):
        tall = max(name.height, height)
        drawn = [_text_cell(cell, width, height) if isinstance(cell, str) else _resize(cell, size) for cell in line]
        boxes = [cell.within(width, height).within(width, tall) for cell in drawn]
        lines.append(row([name.within(aside, tall, x=1), *boxes], gap=_GAP))
    return _draw_page(column([row(head, gap=_GAP), column(lines, gap=_GAP)], gap=_GAP // 2), title=title, note=note)


def draw_contact(
    seen: NDArray[np.uint8], cells: Sequence[tuple[NDArray[np.uint8], str, str]], *, title: str, note: str
) -> NDArray[np.uint8]:
    """Draw a contact sheet: the input and one picture per layer, each above its caption.

    Args:
        seen: The input, uint8 `(H, W)` or `(H, W, 3)`: the first picture.
        cells: For each layer, in order, a picture, uint8 `(h, w)` or `(h, w, 3)` at the layer's own resolution, the layer's
            name and its shape.
        title: Text above the pictures.
        note: Small print below the pictures.

    Returns:
        uint8 `(H', W', 3)`, dark on white, landscape where possible. Every picture is scaled to about the same size in its
        own proportions, and enlarged without smoothing. The more pictures, the smaller they are. Names have up to three
        lines and are then elided in the middle.

    Example:
        >>> layers = [(np.zeros((55, 55), np.uint8), "features.0", "64 x 55 x 55")] * 5
        >>> draw_contact(np.zeros((224, 224, 3), np.uint8), layers, title="alexnet", note="").shape
        (587, 898, 3)
    """
    everything = [(seen, "input", f"{seen.shape[0]} x {seen.shape[1]} pixels"), *cells]
    width, height = _contact_size(seen, len(everything))
    captions = [
        set_lines([*wrap(name, _NAME, width, lines=3), *wrap(shape, _SUBTITLE, width)], alignment=0.5)
        for _, name, shape in everything
    ]
    tallest = max(caption.height for caption in captions)
    boxes = []
    for (pixels, _, _), caption in zip(everything, captions, strict=True):
        shown = _fit(pixels, (width, height))
        border = _rectangle(_BORDER, shown.width + 2, shown.height + 2)
        framed = Box(shown.width, shown.height, [(border, -1, -1), (shown, 0, 0)])
        above, below = framed.within(width, height, x=_MIDDLE, y=_MIDDLE), caption.within(width, tallest, x=_MIDDLE, y=0)
        boxes.append(column([above, below], gap=_BELOW))
    columns = _count_columns(len(boxes), width + _GAP, boxes[0].height + _GAP)
    lines = [row(boxes[start : start + columns], gap=_GAP) for start in range(0, len(boxes), columns)]
    return _draw_page(column([Box(_NARROWEST_PAGE, 0), *lines], gap=_GAP), title=title, note=note)


def _draw_page(table: Box, *, title: str, note: str) -> NDArray[np.uint8]:
    """Draw a table between a title and a note."""
    above, below = (
        set_lines(wrap(text, face, table.width, lines=lines)) for text, face, lines in ((title, _TITLE, 3), (note, _NOTE, 6))
    )
    return draw(column([above, table, below], gap=_GAP).padded(_MARGIN), WHITE, colour=True)


def _table_size(picture: NDArray[np.uint8] | None) -> tuple[int, int]:
    """Return the width and height of a table's pictures."""
    height, width = (_USUAL, _USUAL) if picture is None else picture.shape[:2]
    factor = _USUAL / width if width < _SMALL else 1.0
    factor = min(factor, _LARGE / max(width, height))
    return max(1, round(width * factor)), max(1, round(height * factor))


def _contact_size(seen: NDArray[np.uint8], count: int) -> tuple[int, int]:
    """Return the width and height of a contact sheet's pictures, in about the proportions of the input."""
    longer = min(_LONGEST_SIDE, max(_SHORTEST_SIDE, round(_TOTAL_SIDE / sqrt(count))))
    proportions = min(_ELONGATION, max(1 / _ELONGATION, seen.shape[1] / seen.shape[0]))
    # Rounded up, so that the longer side limits the size of a picture of these proportions.
    if proportions >= 1:
        return longer, ceil(longer / proportions)
    return max(_SHORTEST_SIDE, ceil(longer * proportions)), longer


def _count_columns(count: int, right: int, down: int) -> int:
    """Return the number of columns for the best landscape page with few empty cells in its last row.

    Args:
        count: Number of cells.
        right: Distance from one column to the next.
        down: Distance from one row to the next.
    """

    def cost(columns: int) -> float:
        rows = ceil(count / columns)
        width = columns * right + 2 * _MARGIN
        height = rows * down + _TITLE.leading + _NOTE.leading + _GAP + 2 * _MARGIN
        return abs(log(width / height / _LANDSCAPE)) + _EMPTY_PENALTY * (1 - count / (rows * columns))

    return min(range(1, count + 1), key=cost)


def _label(text: str, width: int, *, alignment: float) -> Box:
    """Set the first line strong and the next three dim, each wrapped into up to two lines."""
    faces = (_HEADING, _SUBHEADING, _SUBHEADING, _SUBHEADING)
    lines = [wrap(part, face, width, lines=2) for part, face in zip(text.split("\n"), faces, strict=False)]
    return set_lines([line for wrapped in lines for line in wrapped], alignment=alignment)


def _text_cell(text: str, width: int, height: int) -> Box:
    """Set a text in the middle of a bordered cell."""
    lines = wrap(text, _NOTE, width - 24, lines=(height - 16) // _NOTE.leading)
    border, inside = _rectangle(_BORDER, width, height), _rectangle(WHITE, width - 2, height - 2)
    return Box(
        width, height, [(border, 0, 0), (inside, 1, 1), (set_lines(lines, alignment=0.5).within(width, height), 0, 0)]
    )


def _rectangle(level: int, width: int, height: int) -> NDArray[np.uint8]:
    return np.broadcast_to(np.uint8(level), (height, width))


def _resize(pixels: NDArray[np.uint8], size: tuple[int, int], method: Resampling = Resampling.BILINEAR) -> Box:
    return picture(np.asarray(Image.fromarray(pixels).resize(size, method)))


def _fit(pixels: NDArray[np.uint8], box: tuple[int, int], *, smooth: bool = False) -> Box:
    """Scale a picture to the largest size within a box; without smoothing an enlarged pixel stays a sharp rectangle."""
    height, width = pixels.shape[:2]
    factor = min(box[0] / width, box[1] / height)
    sharp = Resampling.NEAREST if factor >= 1 else Resampling.BOX
    size = max(1, round(width * factor)), max(1, round(height * factor))
    return _resize(pixels, size, Resampling.BILINEAR if smooth else sharp)
