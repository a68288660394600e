"""Lay captioned pictures out in rows and columns on one page, under a title and above a note.

Both kinds of sheet place their pictures and captions themselves; `_draw_page` puts them on the page.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from fmapviz.render.text import WHITE, Line, Typeface, draw_lines, wrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Part = tuple[Image.Image, int, int]  # a picture, and its left and top in the table

# Pixels throughout.
_MARGIN, _GAP, _BELOW = 28, 14, 4  # around the page, between cells, between a picture and the caption below it
_BORDER = (205, 205, 205)
_INK, _GREY = (20, 20, 20), (105, 105, 105)
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


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """A layer on a contact sheet.

    Attributes:
        picture: uint8 `(h, w)` or `(h, w, 3)`, at the layer's own resolution.
        title: The layer's name.
        subtitle: The layer's shape.
    """

    picture: NDArray[np.uint8]
    title: str
    subtitle: str


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
        >>> draw_sheet(cells, rows=[""], columns=["gradcam", "hirescam"], title="net", note="").shape
        (348, 518, 3)
    """
    pictures = [cell for row in cells for cell in row if not isinstance(cell, str)]
    size = _table_size(pictures[0] if pictures else corner)
    width, height = max(size[0], _NARROWEST_COLUMN), max(size[1], _LOWEST_ROW)
    names = [draw_lines(_label(text, _ROW_LABEL), alignment=1.0) for text in rows]
    headings = [draw_lines(_label(text, width), alignment=0.5) for text in columns]
    shown = Image.new("RGB", (0, 0))
    if corner is not None:
        shown = _fit(corner, (_ROW_LABEL, max(height // 2, _CORNER_HEIGHT)), smooth=True)
    aside, above = max(part.width for part in (shown, *names)), max(part.height for part in (shown, *headings))
    start = aside + _GAP if aside else 0
    lefts = [start + column * (width + _GAP) for column in range(len(headings))]
    parts = [(shown, aside - shown.width, above - shown.height)]
    for left, heading in zip(lefts, headings, strict=True):
        parts.append((heading, left + round((width - heading.width) / 2), above - heading.height))
    top = above + _GAP // 2 if above else 0
    for name, row in zip(names, cells, strict=True):
        tall = max(name.height, height)
        parts.append((name, aside - name.width, top + round((tall - name.height) / 2)))
        for left, cell in zip(lefts, row, strict=True):
            drawn = _text_cell(cell, (width, height)) if isinstance(cell, str) else _resize(cell, size)
            down = round((tall - height) / 2) + round((height - drawn.height) / 2)
            parts.append((drawn, left + round((width - drawn.width) / 2), top + down))
        top += tall + _GAP
    return _draw_page(parts, (lefts[-1] + width, top - _GAP), title=title, note=note)


def draw_contact(seen: NDArray[np.uint8], cells: Sequence[Cell], *, title: str, note: str) -> NDArray[np.uint8]:
    """Draw a contact sheet: the input and one picture per layer, each above its caption.

    Args:
        seen: The input, uint8 `(H, W)` or `(H, W, 3)`: the first picture.
        cells: The layers, in order.
        title: Text above the pictures.
        note: Small print below the pictures.

    Returns:
        uint8 `(H', W', 3)`, dark on white, landscape where possible. Every picture is scaled to about the same size in its
        own proportions, and enlarged without smoothing. The more pictures, the smaller they are. Names have up to three
        lines and are then elided in the middle.

    Example:
        >>> layers = [Cell(np.zeros((55, 55), np.uint8), "features.0", "64 x 55 x 55")] * 5
        >>> draw_contact(np.zeros((224, 224, 3), np.uint8), layers, title="alexnet", note="").shape
        (587, 898, 3)
    """
    everything = [Cell(seen, "input", f"{seen.shape[0]} x {seen.shape[1]} pixels"), *cells]
    width, height = _contact_size(seen, len(everything))
    captions = [
        draw_lines([*wrap(cell.title, _NAME, width, lines=3), *wrap(cell.subtitle, _SUBTITLE, width)], alignment=0.5)
        for cell in everything
    ]
    right, down = width + _GAP, height + _BELOW + max(caption.height for caption in captions) + _GAP
    columns = _count_columns(len(everything), right, down)
    parts: list[Part] = []
    borders = []
    for number, (cell, caption) in enumerate(zip(everything, captions, strict=True)):
        left, top = number % columns * right, number // columns * down
        shown = _fit(cell.picture, (width, height))
        x, y = left + (width - shown.width) // 2, top + (height - shown.height) // 2
        borders.append((x - 1, y - 1, x + shown.width + 1, y + shown.height + 1))
        parts.append((shown, x, y))
        parts.append((caption, left + (width - caption.width) // 2, top + height + _BELOW))
    size = max(columns * right - _GAP, _NARROWEST_PAGE), ceil(len(everything) / columns) * down - _GAP
    return _draw_page(parts, size, title=title, note=note, borders=borders)


def _draw_page(
    parts: Sequence[Part],
    size: tuple[int, int],
    *,
    title: str,
    note: str,
    borders: Sequence[tuple[int, int, int, int]] = (),
) -> NDArray[np.uint8]:
    """Draw a table of this width and height between a title and a note.

    Args:
        parts: Pictures and texts of the table.
        size: Width and height of the table.
        title: Text above.
        note: Small print below.
        borders: Left, top, right and bottom of rectangles filled behind the parts. A bordered copy of every picture would
            take a quarter more time.
    """
    width, height = size
    above = draw_lines(wrap(title, _TITLE, width, lines=3))
    below = draw_lines(wrap(note, _NOTE, width, lines=6))
    head = above.height + _GAP if above.height else 0
    foot = below.height + _GAP if below.height else 0
    page = Image.new("RGB", (width + 2 * _MARGIN, head + height + foot + 2 * _MARGIN), WHITE)
    for left, top, right, bottom in borders:
        page.paste(_BORDER, (_MARGIN + left, _MARGIN + head + top, _MARGIN + right, _MARGIN + head + bottom))
    for part, left, top in [(above, 0, -head), *parts, (below, 0, height + _GAP)]:
        page.paste(part, (_MARGIN + left, _MARGIN + head + top))
    return np.array(page)


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


def _label(text: str, width: int) -> list[Line]:
    """Set the first line strong and the next three dim, each wrapped into up to two lines."""
    first, *others = text.split("\n")[:4]
    dim = (line for other in others for line in wrap(other, _SUBHEADING, width, lines=2))
    return [*wrap(first, _HEADING, width, lines=2), *dim]


def _text_cell(text: str, size: tuple[int, int]) -> Image.Image:
    """Draw a text in the middle of a bordered cell."""
    width, height = size
    lines = wrap(text, _NOTE, width - 24, lines=(height - 16) // _NOTE.leading)
    drawn, cell = draw_lines(lines, alignment=0.5), Image.new("RGB", size, WHITE)
    cell.paste(drawn, (round((width - drawn.width) / 2), round((height - drawn.height) / 2)))
    ImageDraw.Draw(cell).rectangle((0, 0, width - 1, height - 1), outline=_BORDER)
    return cell


def _resize(picture: NDArray[np.uint8], size: tuple[int, int]) -> Image.Image:
    return Image.fromarray(picture).resize(size, Image.Resampling.BILINEAR)


def _fit(picture: NDArray[np.uint8], box: tuple[int, int], *, smooth: bool = False) -> Image.Image:
    """Scale a picture to the largest size within a box; without smoothing an enlarged pixel stays a sharp rectangle."""
    height, width = picture.shape[:2]
    factor = min(box[0] / width, box[1] / height)
    size = max(1, round(width * factor)), max(1, round(height * factor))
    if smooth:
        return _resize(picture, size)
    return Image.fromarray(picture).resize(size, Image.Resampling.NEAREST if factor >= 1 else Image.Resampling.BOX)
