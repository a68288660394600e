"""Lay out pictures and texts in rows and columns, and draw them on one page.

Boxes hold positions only; pictures are copied once, when the whole page is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

WHITE, BLACK = 255, 0  # grey levels


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """A rectangle with pictures and other boxes in it; all measures in pixels.

    Attributes:
        width: What a row or column reserves; parts may reach beyond it.
        height: Likewise.
        parts: Boxes, or pictures, uint8 `(h, w)` or `(h, w, 3)`, each with its left and top; later ones cover earlier ones.
    """

    width: int
    height: int
    parts: Sequence[tuple[Box | NDArray[np.uint8], int, int]] = ()

    def within(self, width: int, height: int, *, x: float = 0.5, y: float = 0.5) -> Box:
        """Place the box in a larger one: 0 is at the left or top, 0.5 in the middle, 1 at the right or bottom."""
        return Box(width, height, [(self, round(x * (width - self.width)), round(y * (height - self.height)))])

    def padded(self, margin: int) -> Box:
        """Return the box with a margin on every side."""
        return self.within(self.width + 2 * margin, self.height + 2 * margin)


def picture(pixels: NDArray[np.uint8]) -> Box:
    """Return the box of a picture, uint8 `(h, w)` or `(h, w, 3)`."""
    return Box(pixels.shape[1], pixels.shape[0], [(pixels, 0, 0)])


def row(boxes: Iterable[Box], *, gap: int = 0) -> Box:
    """Place boxes side by side, with a gap between those that have a width.

    Example:
        >>> row([Box(30, 10), Box(0, 50), Box(20, 10)], gap=5).width
        55
    """
    parts, width = [], 0
    for box in boxes:
        width += gap if box.width and width else 0
        parts.append((box, width, 0))
        width += box.width
    return Box(width, max((box.height for box, _, _ in parts), default=0), parts)


def column(boxes: Iterable[Box], *, gap: int = 0) -> Box:
    """Place boxes below each other, with a gap between those that have a height."""
    parts, height = [], 0
    for box in boxes:
        height += gap if box.height and height else 0
        parts.append((box, 0, height))
        height += box.height
    return Box(max((box.width for box, _, _ in parts), default=0), height, parts)


def draw(box: Box, ground: int, *, colour: bool = False) -> NDArray[np.uint8]:
    """Draw a box.

    Args:
        box: The box; its own parts must not reach beyond it.
        ground: Grey level.
        colour: Whether the page is in colour even if no picture is.

    Returns:
        uint8 `(height, width)`, or `(height, width, 3)` if a picture is in colour.

    Example:
        >>> draw(picture(np.zeros((2, 3), np.uint8)).padded(1), WHITE)[0].tolist()
        [255, 255, 255, 255, 255]
    """
    pictures = list(_flatten(box, 0, 0))
    colour = colour or any(pixels.ndim == 3 for pixels, _, _ in pictures)
    page = np.full((box.height, box.width, *[3] * colour), ground, np.uint8)
    for pixels, left, top in pictures:
        place = page[top : top + pixels.shape[0], left : left + pixels.shape[1]]
        place[:] = pixels if pixels.ndim == page.ndim else pixels[..., None]
    return page


def _flatten(box: Box, left: int, top: int) -> Iterator[tuple[NDArray[np.uint8], int, int]]:
    for part, x, y in box.parts:
        if isinstance(part, Box):
            yield from _flatten(part, left + x, top + y)
        else:
            yield part, left + x, top + y
