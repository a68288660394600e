"""Lay out pictures and texts in rows and columns, and draw them on one page.

Boxes hold positions only; pictures are copied once, when the whole page is drawn. Texts and lines are marks, which are drawn
then, or become elements of SVG.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from PIL import Image, ImageDraw

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

WHITE, BLACK = 255, 0  # grey levels
_DARK = 128  # a background below this luma has light ink


@dataclass(frozen=True, slots=True)
class Background:
    """The colour of a page around its pictures, with ink that can be read on it.

    Attributes:
        colour: Red, green and blue, 0..255.
        opaque: Whether the page has that colour; otherwise it is transparent, and the colour decides only on the ink.

    Example:
        >>> Background((255, 255, 255)).ink(235), Background().ink(235)
        (20, 235)
    """

    colour: tuple[int, int, int] = (BLACK, BLACK, BLACK)
    opaque: bool = True

    @property
    def channels(self) -> int:
        """Values per pixel: 1 of a grey background, 3 of a coloured one, 4 of a transparent one."""
        return 4 if not self.opaque else 1 if len({*self.colour}) == 1 else 3

    @property
    def pixel(self) -> tuple[int, ...]:
        """The values of a pixel of the background."""
        return (*self.colour, 0) if not self.opaque else self.colour[: self.channels]

    @property
    def is_dark(self) -> bool:
        """True if ink on it is light."""
        red, green, blue = self.colour
        return 299 * red + 587 * green + 114 * blue < 1000 * _DARK  # ITU-R BT.601

    def ink(self, level: int) -> int:
        """Return the grey level of ink that has the given level on black."""
        return level if self.is_dark else WHITE - level

    def apply(self, mark: Mark) -> NDArray[np.uint8]:
        """Draw a mark on the background: uint8 `(h, w)`, `(h, w, 3)` or `(h, w, 4)`."""
        ink = self.ink(mark.level)
        if self.opaque:
            planes = [mark.draw(ink, level) for level in self.pixel]
            return planes[0] if len(planes) == 1 else np.stack(planes, -1)
        coverage = mark.draw(WHITE, BLACK)
        return np.stack([*[np.full_like(coverage, ink)] * 3, coverage], -1)


class Mark(Protocol):
    """Text or lines, drawn on the background of the page."""

    @property
    def level(self) -> int:
        """Grey level on black, or on the background that it was made for."""

    def draw(self, level: int, background: int, /) -> NDArray[np.uint8]:
        """Draw it in one grey level on another, uint8 `(h, w)`."""

    def to_svg(self, left: int, top: int, colour: str, /) -> str:
        """Return elements of SVG."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Straight lines one pixel wide; a mark.

    Attributes:
        width: Of the area that they lie in, pixels.
        height: Likewise.
        level: Grey level on black.
        paths: Each a list of points, x and y.
    """

    width: int
    height: int
    level: int
    paths: tuple[tuple[tuple[int, int], ...], ...]

    def draw(self, level: int, background: int, /) -> NDArray[np.uint8]:
        """See `Mark`."""
        area = Image.new("L", (self.width, self.height), background)
        drawing = ImageDraw.Draw(area)
        for points in self.paths:
            drawing.line(points, level)
        return np.asarray(area)

    def to_svg(self, left: int, top: int, colour: str, /) -> str:
        """See `Mark`."""
        paths = (" ".join(f"{left + x + 0.5},{top + y + 0.5}" for x, y in points) for points in self.paths)
        return "".join(element("polyline", points=points, fill="none", stroke=colour) for points in paths)


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """A rectangle with pictures and other boxes in it; all measures in pixels.

    Attributes:
        width: The width that a row or column reserves; parts may extend beyond it.
        height: Likewise.
        parts: Boxes, pictures, uint8 `(h, w)` or `(h, w, 3)`, or marks, each with its left and top; later ones cover earlier
            ones.
    """

    width: int
    height: int
    parts: Sequence[tuple[Box | NDArray[np.uint8] | Mark, int, int]] = ()

    def within(self, width: int, height: int, *, x: float = 0.5, y: float = 0.5) -> Box:
        """Place the box in a larger one: 0 is at the left or top, 0.5 in the middle, 1 at the right or bottom."""
        return Box(width, height, [(self, round(x * (width - self.width)), round(y * (height - self.height)))])

    def padded(self, margin: int) -> Box:
        """Return the box with a margin on every side."""
        return self.within(self.width + 2 * margin, self.height + 2 * margin)


def element(name: str, content: str = "", **attributes: object) -> str:
    """Return an element of SVG; underscores in names of attributes are dashes. Its content must be escaped.

    Example:
        >>> element("rect", width=3, font_size=4)
        '<rect width="3" font-size="4"/>'
    """
    start = "".join((name, *(f' {key.replace("_", "-")}="{value}"' for key, value in attributes.items())))
    return f"<{start}>{content}</{name}>" if content else f"<{start}/>"


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


def draw(box: Box, background: int | Background, *, colour: bool = False) -> NDArray[np.uint8]:
    """Draw a box.

    Args:
        box: The box; its own parts must not reach beyond it.
        background: Grey level of a page whose marks were made for it, or a `Background`, to which the ink of marks adapts.
        colour: Whether the page is in colour even if no picture is.

    Returns:
        uint8 `(height, width)`; `(height, width, 3)` if a picture or the background is in colour; `(height, width, 4)` if
        the background is transparent. A picture alone is returned itself, not a copy.

    Example:
        >>> draw(picture(np.zeros((2, 3), np.uint8)).padded(1), WHITE)[0].tolist()
        [255, 255, 255, 255, 255]
    """
    on = background if isinstance(background, Background) else Background((background, background, background))
    pictures = [
        (part if isinstance(part, np.ndarray) else _drawn(part, background), left, top) for part, left, top in flatten(box)
    ]
    deepest = max((pixels.shape[2] for pixels, _, _ in pictures if pixels.ndim == 3), default=1)
    channels = max(on.channels, deepest, 3 * colour)
    if len(pictures) == 1 and pictures[0][0].shape in {(box.height, box.width), (box.height, box.width, channels)}:
        return pictures[0][0] if channels == 1 or pictures[0][0].ndim == 3 else with_channels(pictures[0][0], channels)
    pixel = on.pixel if on.channels == channels else (*on.colour, WHITE)[:channels]
    page = np.full((box.height, box.width, channels), pixel, np.uint8)
    for pixels, left, top in pictures:
        page[top : top + pixels.shape[0], left : left + pixels.shape[1]] = with_channels(pixels, channels)
    return page[..., 0] if channels == 1 else page


def with_channels(pixels: NDArray[np.uint8], channels: int) -> NDArray[np.uint8]:
    """Return pixels with 1, 3 or 4 values each, `(h, w, channels)`, opaque; colours are not made grey."""
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.shape[2] < min(channels, 3):
        pixels = pixels.repeat(min(channels, 3), 2)
    if pixels.shape[2] == 3 and channels == 4:
        return np.concatenate([pixels, np.full_like(pixels[..., :1], WHITE)], 2)
    return pixels


def flatten(box: Box, left: int = 0, top: int = 0) -> Iterator[tuple[NDArray[np.uint8] | Mark, int, int]]:
    """Yield the pictures and marks in a box, in the order in which they are drawn, each with its left and top."""
    for part, x, y in box.parts:
        if isinstance(part, Box):
            yield from flatten(part, left + x, top + y)
        else:
            yield part, left + x, top + y


def _drawn(mark: Mark, background: int | Background) -> NDArray[np.uint8]:
    return background.apply(mark) if isinstance(background, Background) else mark.draw(mark.level, background)
