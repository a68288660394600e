"""Lay labelled pictures out in rows and columns, with Pillow's own scalable font."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from fmapviz.lettering import WHITE, Line, Typeface, draw_lines, set_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_MARGIN, _GAP = 28, 14  # around the sheet, between its cells; these are all pixels
_SMALL, _USUAL, _LARGE = 160, 224, 320  # what is narrower is magnified to the usual width, what is longer reduced
_NARROWEST, _LOWEST = 120, 40  # a column and a row: text needs some room
_SEEN = 80  # the least height of the picture in the corner
_LABEL = 240  # the longest line that names a row
_FRAME = (205, 205, 205)
_NOTHING = Image.new("RGB", (0, 0))

_TITLE = Typeface(20, (20, 20, 20), 0.25)
_STRONG = Typeface(15, (20, 20, 20), 0.25)
_DIM = Typeface(14, (105, 105, 105))
_SMALL_PRINT = Typeface(13, (105, 105, 105))


def draw_sheet(
    cells: Sequence[Sequence[NDArray[np.uint8] | str]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    note: str,
    corner: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    r"""Draw a table of pictures as one would paste it into a paper.

    Args:
        cells: Rows of pictures, uint8 `(H, W, 3)` of one size. A text instead of a picture says why there is none.
        rows: Each row's label; the lines after the first `\n` are dimmer.
        columns: Each column's label, likewise.
        title: Stands above.
        note: Stands below, small.
        corner: Shown in the top left corner, uint8 `(H, W)` or `(H, W, 3)`.

    Returns:
        uint8 `(H', W', 3)`, dark on white. Small pictures are magnified, large ones reduced; text that is too long for its
        place is broken into lines, then shortened in the middle; what the font does not have is escaped.

    Example:
        >>> cells = [[np.zeros((224, 224, 3), np.uint8), "no gradient"]]
        >>> draw_sheet(cells, rows=[""], columns=["gradcam", "hirescam"], title="net", note="").shape
        (348, 518, 3)
    """
    pictures = [cell for line in cells for cell in line if not isinstance(cell, str)]
    size = _shown_size(pictures[0] if pictures else corner)
    width, height = max(size[0], _NARROWEST), max(size[1], _LOWEST)
    seen = _NOTHING if corner is None else _fit(Image.fromarray(corner), (_LABEL, max(height // 2, _SEEN)))
    labels = [draw_lines(_label(text, _LABEL), alignment=1.0) for text in rows]
    aside = max(part.width for part in (seen, *labels))
    header = _header(seen, [draw_lines(_label(text, width), alignment=0.5) for text in columns], aside, width)
    lines = [
        _row(label, [_cell(cell, size, (width, height)) for cell in line], aside)
        for label, line in zip(labels, cells, strict=True)
    ]
    table = _stack([header, _stack(lines, _GAP)], _GAP // 2)
    above = draw_lines(set_lines(title, _TITLE, table.width, most=3))
    below = draw_lines(set_lines(note, _SMALL_PRINT, table.width, most=6))
    page = _stack([above, table, below], _GAP)
    return np.array(_place(page, (page.width + 2 * _MARGIN, page.height + 2 * _MARGIN), (0.5, 0.5)))


def _shown_size(picture: NDArray[np.uint8] | None) -> tuple[int, int]:
    """Give the width and height that a picture has on the sheet."""
    height, width = (_USUAL, _USUAL) if picture is None else picture.shape[:2]
    factor = _USUAL / width if width < _SMALL else 1.0
    factor = min(factor, _LARGE / max(width, height))
    return max(1, round(width * factor)), max(1, round(height * factor))


def _fit(picture: Image.Image, box: tuple[int, int]) -> Image.Image:
    """Make a picture as large as it can be within a box."""
    factor = min(box[0] / picture.width, box[1] / picture.height)
    size = max(1, round(picture.width * factor)), max(1, round(picture.height * factor))
    return picture.resize(size, Image.Resampling.BILINEAR)


def _header(seen: Image.Image, labels: list[Image.Image], aside: int, width: int) -> Image.Image:
    height = max(part.height for part in (seen, *labels))
    above_names = _place(seen, (aside, height), (1.0, 1.0))
    return _beside([above_names, *(_place(label, (width, height), (0.5, 1.0)) for label in labels)], _GAP)


def _row(label: Image.Image, cells: list[Image.Image], aside: int) -> Image.Image:
    height = max(part.height for part in (label, *cells))
    named = _place(label, (aside, height), (1.0, 0.5))
    return _beside([named, *(_place(cell, (cell.width, height), (0.5, 0.5)) for cell in cells)], _GAP)


def _cell(cell: NDArray[np.uint8] | str, size: tuple[int, int], box: tuple[int, int]) -> Image.Image:
    """Draw a picture in its size or, in a frame, why there is none; either in the middle of a box."""
    if not isinstance(cell, str):
        return _place(Image.fromarray(cell).resize(size, Image.Resampling.BILINEAR), box, (0.5, 0.5))
    most = (box[1] - 16) // _SMALL_PRINT.leading
    drawn = _place(draw_lines(set_lines(cell, _SMALL_PRINT, box[0] - 24, most=most), alignment=0.5), box, (0.5, 0.5))
    ImageDraw.Draw(drawn).rectangle((0, 0, box[0] - 1, box[1] - 1), outline=_FRAME)
    return drawn


def _label(text: str, width: int) -> list[Line]:
    """Set the first line strong and the next three dim, each in two lines at most."""
    first, *others = text.split("\n")[:4]
    dim = (line for other in others for line in set_lines(other, _DIM, width, most=2))
    return [*set_lines(first, _STRONG, width, most=2), *dim]


def _place(part: Image.Image, box: tuple[int, int], anchor: tuple[float, float]) -> Image.Image:
    """Put a picture into a white box; anchor (0, 0) is the box's top left corner, (1, 1) its bottom right one."""
    placed = Image.new("RGB", box, WHITE)
    placed.paste(part, (round(anchor[0] * (box[0] - part.width)), round(anchor[1] * (box[1] - part.height))))
    return placed


def _stack(parts: list[Image.Image], gap: int) -> Image.Image:
    """Put pictures under each other; empty ones take no place."""
    parts = [part for part in parts if part.height]
    if not parts:
        return _NOTHING
    stacked = Image.new("RGB", (max(part.width for part in parts), sum(part.height + gap for part in parts) - gap), WHITE)
    top = 0
    for part in parts:
        stacked.paste(part, (0, top))
        top += part.height + gap
    return stacked


def _beside(parts: list[Image.Image], gap: int) -> Image.Image:
    """Put pictures of one height beside each other; empty ones take no place."""
    parts = [part for part in parts if part.width]
    joined = Image.new("RGB", (sum(part.width + gap for part in parts) - gap, parts[0].height), WHITE)
    left = 0
    for part in parts:
        joined.paste(part, (left, 0))
        left += part.width + gap
    return joined
