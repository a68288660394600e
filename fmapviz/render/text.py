"""Set lines of text, with Pillow's own scalable font."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache, lru_cache
from math import ceil
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from collections.abc import Sequence

WHITE, BLACK = (255, 255, 255), (0, 0, 0)
_FINE = 4  # text is drawn so many times as large, then reduced: letters are set between pixels too
_NOWHERE = "\U0010ffff"  # no font has a glyph for it


@dataclass(frozen=True, slots=True)
class Typeface:
    """How a line of text looks.

    Attributes:
        size: Of the letters, pixels.
        colour: Red, green, blue.
        weight: The font has a single one: letters are drawn so many pixels thicker all around, in steps of a quarter.
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


Line = tuple[str, Typeface]


def legible(text: str) -> str:
    r"""Make one line of a text, of characters that the font has.

    It has little more than ASCII. Of the others some are replaced by what they are composed of, accents are left out, and
    what remains is escaped, as is whatever acts instead of being seen.

    Example:
        >>> print(legible("Zo\u00eb \n \u4f60\u597d \x1b[31m"))
        Zoe \u4f60\u597d \x1b[31m
    """
    text = unicodedata.normalize("NFC", " ".join(text.split()))
    return text if text.isascii() and text.isprintable() else "".join(map(_written, text))


@lru_cache(maxsize=1024)  # the same names stand on the pictures of every image
def set_lines(text: str, face: Typeface, width: int, *, most: int = 1) -> tuple[Line, ...]:
    """Break a text into lines.

    Args:
        text: Anything, see `legible`.
        face: How it looks.
        width: That lines have at most, pixels.
        most: So many lines at most; the last is shortened in the middle if there would be more.

    Returns:
        The lines; none for an empty text.

    Example:
        >>> [line for line, _ in set_lines("encoder.layers.encoder_layer_11.mlp", Typeface(14, BLACK), 150)]
        ['encode…r_layer_11.mlp']
    """
    rest = legible(text)
    lines: list[Line] = []
    while rest and len(lines) < most - 1 and face.width(rest) > width:
        end = _break(rest, _fitting(rest, face, width))
        lines.append((rest[:end].rstrip(), face))
        rest = rest[end:].lstrip()
    return (*lines, (_shorten(rest, face, width), face)) if rest else tuple(lines)


def draw_lines(lines: Sequence[Line], *, alignment: float = 0.0, ground: tuple[int, int, int] = WHITE) -> Image.Image:
    """Draw lines under each other.

    Args:
        lines: What `set_lines` gives.
        alignment: 0 is left, 0.5 centred, 1 right.
        ground: Red, green, blue.

    Returns:
        An RGB picture as wide as the widest line.

    Example:
        >>> draw_lines([("first", Typeface(15, BLACK)), ("second", Typeface(14, BLACK))]).size
        (47, 39)
    """
    width = max((face.width(text) for text, face in lines), default=0)
    drawn = Image.new("RGB", (width, sum(face.leading for _, face in lines)), ground)
    top = 0
    for text, face in lines:
        drawn.paste(_draw_line(text, face, width, alignment, ground), (0, top))
        top += face.leading
    return drawn


@lru_cache(maxsize=1024)
def _draw_line(text: str, face: Typeface, width: int, alignment: float, ground: tuple[int, int, int]) -> Image.Image:
    line = Image.new("RGB", (width * _FINE, face.leading * _FINE), ground)
    start = face.weight + alignment * (width - face.width(text))
    place, stroke = (start * _FINE, face.size * _FINE), round(face.weight * _FINE)
    ImageDraw.Draw(line).text(place, text, face.colour, face.font, anchor="ls", stroke_width=stroke)
    return line.reduce(_FINE)


@lru_cache(maxsize=4096)
def _written(ch: str) -> str:
    """Give what to write for a character."""
    plain = "".join(part for part in unicodedata.normalize("NFKD", ch) if not unicodedata.combining(part))
    return plain if all(map(_has_glyph, plain)) else ch.encode("unicode_escape").decode()


def _has_glyph(ch: str) -> bool:
    """Compare with the box that the font has for everything else."""
    return ch.isprintable() and _glyph(ch) != _glyph(_NOWHERE)


def _glyph(ch: str) -> tuple[tuple[int, int], bytes]:
    mask = _load_font(40).getmask(ch)
    return mask.size, bytes(mask)


def _fitting(text: str, face: Typeface, width: int) -> int:
    """Count the characters at the beginning of a text that fit, one at least."""
    counts = range(1, min(len(text), width) + 1)  # every character takes a pixel or more
    return max(1, bisect_right(counts, width, key=lambda count: face.width(text[:count])))


def _break(text: str, end: int) -> int:
    """Give where to break a text that fits up to a character: between words, else within a dotted name, else there."""
    space = text.rfind(" ", 0, end + 1)
    return space if space > 0 else 1 + max(text.rfind(mark, 0, end) for mark in "./_-") or end


def _shorten(text: str, face: Typeface, width: int) -> str:
    """Leave out what is too long in the middle: names of layers differ in their ends, so twice as much of those is kept."""
    if face.width(text) <= width:
        return text

    def shortened(kept: int) -> str:
        return f"{text[: kept // 3].rstrip()}…{text[len(text) - kept + kept // 3 :].lstrip()}"

    counts = range(1, min(len(text), width))
    return shortened(bisect_right(counts, width, key=lambda kept: face.width(shortened(kept))))


@cache
def _load_font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font
