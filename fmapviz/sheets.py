"""Lay labelled pictures out in rows and columns, with Pillow's own scalable font."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fmapviz.errors import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_MARGIN, _GAP = 28, 14  # around the sheet, between its cells; these are all pixels
_SMALL, _USUAL, _LARGE = 160, 224, 320  # what is narrower is magnified to the usual width, what is longer reduced
_NARROWEST, _LOWEST = 120, 40  # a column and a row: text needs some room
_SEEN = 80  # the least height of the picture in the corner
_LABEL = 240  # the longest line that names a row
_FINE = 4  # text is drawn so many times as large, then reduced: letters are set between pixels too
_PAPER, _FRAME = (255, 255, 255), (205, 205, 205)
_NOTHING = Image.new("RGB", (0, 0))


@dataclass(frozen=True, slots=True)
class _Type:
    """How a line of text looks.

    Attributes:
        size: Of the letters, pixels.
        colour: Red, green, blue.
        weight: The font has a single one: letters are drawn so many pixels thicker all around, in steps of `1 / _FINE`.
    """

    size: int
    colour: tuple[int, int, int]
    weight: float = 0.0

    @property
    def leading(self) -> int:
        """From one line to the next, pixels."""
        return round(self.size * 1.35)

    @property
    def font(self) -> ImageFont.FreeTypeFont:
        """The font, `_FINE` times as large."""
        return _load_font(self.size * _FINE)

    def width(self, text: str) -> int:
        """Measure a line, whole pixels."""
        return ceil(self.font.getlength(text) / _FINE + 2 * self.weight)


_Lines = list[tuple[str, _Type]]

_TITLE = _Type(20, (20, 20, 20), 0.25)
_STRONG = _Type(15, (20, 20, 20), 0.25)
_DIM = _Type(14, (105, 105, 105))
_SMALL_PRINT = _Type(13, (105, 105, 105))


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
        place is broken into lines, then shortened in the middle. The font has little more than ASCII: accents are left out,
        and what else it does not have is a box.

    Example:
        >>> cells = [[np.zeros((224, 224, 3), np.uint8), "no gradient"]]
        >>> draw_sheet(cells, rows=[""], columns=["gradcam", "hirescam"], title="net", note="").shape
        (348, 518, 3)
    """
    pictures = [cell for line in cells for cell in line if not isinstance(cell, str)]
    size = _shown_size(pictures[0] if pictures else corner)
    width, height = max(size[0], _NARROWEST), max(size[1], _LOWEST)
    seen = _NOTHING if corner is None else _fit(Image.fromarray(corner), (_LABEL, max(height // 2, _SEEN)))
    labels = [_text(_label(text, _LABEL), 1.0) for text in rows]
    aside = max(part.width for part in (seen, *labels))
    header = _header(seen, [_text(_label(text, width), 0.5) for text in columns], aside, width)
    lines = [
        _row(label, [_cell(cell, size, (width, height)) for cell in line], aside)
        for label, line in zip(labels, cells, strict=True)
    ]
    table = _stack([header, _stack(lines, _GAP)], _GAP // 2)
    above = _text(_paragraph(title, _TITLE, table.width, 3), 0.0)
    below = _text(_paragraph(note, _SMALL_PRINT, table.width, 6), 0.0)
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
    drawn = _place(_text(_paragraph(cell, _SMALL_PRINT, box[0] - 24, most), 0.5), box, (0.5, 0.5))
    ImageDraw.Draw(drawn).rectangle((0, 0, box[0] - 1, box[1] - 1), outline=_FRAME)
    return drawn


def _label(text: str, width: int) -> _Lines:
    """Set the first line strong and the next three dim, each in two lines at most."""
    first, *others = text.split("\n")[:4]
    return _paragraph(first, _STRONG, width, 2) + [line for other in others for line in _paragraph(other, _DIM, width, 2)]


def _paragraph(text: str, kind: _Type, width: int, most: int) -> _Lines:
    """Break a text into so many lines at most; the last is shortened if there would be more."""
    rest = _legible(text)
    lines: _Lines = []
    while rest and len(lines) < most - 1 and kind.width(rest) > width:
        end = _break(rest, _fitting(rest, kind, width))
        lines.append((rest[:end].rstrip(), kind))
        rest = rest[end:].lstrip()
    return [*lines, (_shorten(rest, kind, width), kind)] if rest else lines


def _legible(text: str) -> str:
    """Make one line of a text, with nothing in it that acts, without the accents, which the font does not have."""
    plain = (ch for ch in unicodedata.normalize("NFKD", " ".join(text.split())) if not unicodedata.combining(ch))
    return printable("".join(plain))


def _fitting(text: str, kind: _Type, width: int) -> int:
    """Count the characters at the beginning of a text that fit, one at least."""
    counts = range(1, min(len(text), width) + 1)  # every character takes a pixel or more
    return max(1, bisect_right(counts, width, key=lambda count: kind.width(text[:count])))


def _break(text: str, end: int) -> int:
    """Give where to break a text that fits up to a character: between words, else within a dotted name, else there."""
    space = text.rfind(" ", 0, end + 1)
    return space if space > 0 else 1 + max(text.rfind(mark, 0, end) for mark in "./_-") or end


def _shorten(text: str, kind: _Type, width: int) -> str:
    """Leave out what is too long in the middle: names of layers differ in their ends, so twice as much of those is kept."""
    if kind.width(text) <= width:
        return text

    def shortened(kept: int) -> str:
        return f"{text[: kept // 3].rstrip()}…{text[len(text) - kept + kept // 3 :].lstrip()}"

    counts = range(1, min(len(text), width))
    return shortened(bisect_right(counts, width, key=lambda kept: kind.width(shortened(kept))))


def _text(lines: _Lines, alignment: float) -> Image.Image:
    """Draw lines under each other; alignment 0 is left, 0.5 centred, 1 right."""
    width = max((kind.width(text) for text, kind in lines), default=0)
    drawn = []
    for text, kind in lines:
        line = Image.new("RGB", (width * _FINE, kind.leading * _FINE), _PAPER)
        start = kind.weight + alignment * (width - kind.width(text))
        place, stroke = (start * _FINE, kind.size * _FINE), round(kind.weight * _FINE)
        ImageDraw.Draw(line).text(place, text, kind.colour, kind.font, anchor="ls", stroke_width=stroke)
        drawn.append(line.reduce(_FINE))
    return _stack(drawn, 0)


def _place(part: Image.Image, box: tuple[int, int], anchor: tuple[float, float]) -> Image.Image:
    """Put a picture into a white box; anchor (0, 0) is the box's top left corner, (1, 1) its bottom right one."""
    placed = Image.new("RGB", box, _PAPER)
    placed.paste(part, (round(anchor[0] * (box[0] - part.width)), round(anchor[1] * (box[1] - part.height))))
    return placed


def _stack(parts: list[Image.Image], gap: int) -> Image.Image:
    """Put pictures under each other; empty ones take no place."""
    parts = [part for part in parts if part.height]
    if not parts:
        return _NOTHING
    stacked = Image.new("RGB", (max(part.width for part in parts), sum(part.height + gap for part in parts) - gap), _PAPER)
    top = 0
    for part in parts:
        stacked.paste(part, (0, top))
        top += part.height + gap
    return stacked


def _beside(parts: list[Image.Image], gap: int) -> Image.Image:
    """Put pictures of one height beside each other; empty ones take no place."""
    parts = [part for part in parts if part.width]
    joined = Image.new("RGB", (sum(part.width + gap for part in parts) - gap, parts[0].height), _PAPER)
    left = 0
    for part in parts:
        joined.paste(part, (left, 0))
        left += part.width + gap
    return joined


@cache
def _load_font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font
