"""Measure, wrap and draw text in Pillow's built-in scalable font."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from html import escape
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fmapviz.draw.layout import Box, column, element

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fmapviz.data import Target

_OVERSAMPLING = 4  # text is drawn this many times as large, then reduced, for positions between pixels
_MARGIN = 16  # oversampled pixels: strokes reach beyond a glyph's width
NUMBERED = "pictures have the indices of classes whose names are not of Latin letters; predictions have the names"
_MISSING = "\U0010ffff"  # a code point for which no font has a glyph


@dataclass(frozen=True, slots=True)
class Typeface:
    """The look of a line of text.

    Attributes:
        size: Font size, pixels.
        level: Its grey, 0 to 255.
        weight: Pixels by which the strokes of the font's single weight are thickened on every side, in steps of a quarter.
    """

    size: int
    level: int
    weight: float = 0.0

    @property
    def leading(self) -> int:
        """Distance from one line to the next, pixels."""
        return round(self.size * 1.35)

    def width(self, text: str) -> int:
        """Return the width of a line, whole pixels."""
        return _width(text, self)


Line = tuple[str, Typeface]


def legible(text: str) -> str:
    r"""Return a text as one line of characters that the font contains.

    The font contains little more than ASCII. Other characters are decomposed, accents are dropped, and characters that
    are still missing or not printable are escaped.

    Example:
        >>> print(legible("Zo\u00eb \n \u4f60\u597d \x1b[31m"))
        Zoe \u4f60\u597d \x1b[31m
    """
    text = unicodedata.normalize("NFC", " ".join(text.split()))
    return text if text.isascii() and text.isprintable() else "".join(map(_transliterate, text))


def has_glyphs(text: str) -> bool:
    r"""Return True if the font has all characters of a text, or these without accents: `legible` escapes none.

    Example:
        >>> has_glyphs("Zo\u00eb"), has_glyphs("\u4f60\u597d")
        (True, False)
    """
    return "\\" not in legible(text.replace("\\", ""))


def with_glyphs(target: Target) -> Target:
    r"""Return a target as pictures name it: a class whose name the font lacks has its index.

    Example:
        >>> from fmapviz.data import Target
        >>> with_glyphs(Target("top1", 3, "\u4f60\u597d", 2.5)).title, with_glyphs(Target("top1", 3, "star", 2.5)).title
        ('class 3', 'star')
    """
    if has_glyphs(target.name):
        return target
    return replace(target, name="", label=target.label if has_glyphs(target.label) else f"class{target.index}")


@lru_cache(maxsize=1024)  # the pictures of all images have the same labels
def wrap(text: str, face: Typeface, width: int, *, lines: int = 1) -> tuple[Line, ...]:
    """Break a text into lines.

    Args:
        text: Any text; see `legible`.
        face: The look of the lines.
        width: Maximum width of a line, pixels.
        lines: Maximum number of lines. The middle of the last one is elided if the rest does not fit.

    Returns:
        The lines; none for an empty text.

    Example:
        >>> [line for line, _ in wrap("encoder.layers.encoder_layer_11.mlp", Typeface(14, 0), 150)]
        ['encode…r_layer_11.mlp']
    """
    rest = legible(text)
    wrapped: list[Line] = []
    while rest and len(wrapped) < lines - 1 and face.width(rest) > width:
        end = _find_break(rest, face, width)
        wrapped.append((rest[:end].rstrip(), face))
        rest = rest[end:].lstrip()
    return (*wrapped, (_elide(rest, face, width), face)) if rest else tuple(wrapped)


def set_lines(lines: Sequence[Line], *, alignment: float = 0.0, background: int | None = None) -> Box:
    """Set lines of text below each other.

    Args:
        lines: Lines as returned by `wrap`.
        alignment: 0 is left, 0.5 centred, 1 right.
        background: Grey level behind them, if that is not the page's.

    Returns:
        A box as wide as the widest line.

    Example:
        >>> box = set_lines([("first", Typeface(15, 0)), ("second", Typeface(14, 0))])
        >>> box.width, box.height
        (47, 39)
    """
    width = max((face.width(text) for text, face in lines), default=0)
    return column(
        Box(width, face.leading, [(TextLine(text, face, width, alignment, background), 0, 0)]) for text, face in lines
    )


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of text; a mark of a page.

    Attributes:
        text: Characters that the font contains, see `legible`.
        face: Its look.
        width: Of the area in which it is aligned, pixels.
        alignment: 0 is left, 0.5 centred, 1 right.
        background: Grey level behind it; None for the page's.
    """

    text: str
    face: Typeface
    width: int
    alignment: float = 0.0
    background: int | None = None

    @property
    def level(self) -> int:
        """See `fmapviz.draw.layout.Mark`."""
        return self.face.level

    def draw(self, level: int, background: int, /) -> NDArray[np.uint8]:
        """See `fmapviz.draw.layout.Mark`."""
        behind = background if self.background is None else self.background
        return _draw_line(self.text, replace(self.face, level=level), self.width, self.alignment, behind)

    def to_svg(self, left: int, top: int, colour: str, /) -> str:
        """See `fmapviz.draw.layout.Mark`."""
        return element(
            "text",
            escape(self.text, quote=False),
            x=f"{left + self.alignment * self.width:g}",
            y=top + self.face.size,
            font_size=self.face.size,
            font_weight=600 if self.face.weight else 400,
            # Another font is wider or narrower: without its length, a line would reach beyond the page.
            textLength=self.face.width(self.text),
            lengthAdjust="spacingAndGlyphs",
            text_anchor="start" if self.alignment < 0.25 else "middle" if self.alignment < 0.75 else "end",
            fill=colour,
        )


@lru_cache(maxsize=1024)
def _draw_line(text: str, face: Typeface, width: int, alignment: float, background: int) -> NDArray[np.uint8]:
    """Draw a line of cached glyphs: drawing each caption from outlines would take long.

    The font has no kerning, so that a glyph begins where the one before it ends.
    """
    line = Image.new("L", (width * _OVERSAMPLING, face.leading * _OVERSAMPLING), background)
    left = round((face.weight + alignment * (width - face.width(text))) * _OVERSAMPLING)
    stroke = round(face.weight * _OVERSAMPLING)
    for ch in text:
        line.paste(face.level, (left - _MARGIN, 0), _draw_glyph(ch, face.size, stroke))
        left += _advance(ch, face.size)
    return np.asarray(line.reduce(_OVERSAMPLING))


@lru_cache(maxsize=4096)
def _draw_glyph(ch: str, size: int, stroke: int) -> Image.Image:
    """Return the coverage of an oversampled glyph, as high as a line, with a margin at its sides."""
    width, height = _advance(ch, size) + 2 * _MARGIN, Typeface(size, 0).leading * _OVERSAMPLING
    shown = Image.new("L", (width, height))
    draw = ImageDraw.Draw(shown)
    draw.text((_MARGIN, size * _OVERSAMPLING), ch, 255, _load_font(size * _OVERSAMPLING), anchor="ls", stroke_width=stroke)
    return shown


@lru_cache(maxsize=4096)
def _advance(ch: str, size: int) -> int:
    """Return the distance from a glyph to the next one, oversampled pixels."""
    return round(_load_font(size * _OVERSAMPLING).getlength(ch))


@lru_cache(maxsize=4096)
def _transliterate(ch: str) -> str:
    plain = "".join(part for part in unicodedata.normalize("NFKD", ch) if not unicodedata.combining(part))
    # The font draws the same box for every character that it lacks.
    drawable = all(part.isprintable() and _glyph(part) != _glyph(_MISSING) for part in plain)
    return plain if drawable else ch.encode("unicode_escape").decode()


@lru_cache(maxsize=4096)  # the same texts are measured to wrap, to align and to draw them
def _width(text: str, face: Typeface) -> int:
    return ceil(sum(_advance(ch, face.size) for ch in text) / _OVERSAMPLING + 2 * face.weight)


def _glyph(ch: str) -> tuple[tuple[int, int], bytes]:
    mask = _load_font(40).getmask(ch)
    return mask.size, bytes(mask)


def _find_break(text: str, face: Typeface, width: int) -> int:
    """Return the position at which a wide text is broken: between words, else within a dotted name, else anywhere."""
    counts = range(1, min(len(text), width) + 1)  # every character is at least a pixel wide
    end = max(1, bisect_right(counts, width, key=lambda count: face.width(text[:count])))
    space = text.rfind(" ", 0, end + 1)
    if text[space : space + 2] == " %":  # which stays with its number
        space = max(text.rfind(" ", 0, space), 0) or space
    return space if space > 0 else 1 + max(text.rfind(mark, 0, end) for mark in "./_-") or end


def _elide(text: str, face: Typeface, width: int) -> str:
    """Replace the middle of a text that is too wide. Names of layers differ at the end, so two thirds are kept there."""
    if face.width(text) <= width:
        return text

    def elided(kept: int) -> str:
        return f"{text[: kept // 3].rstrip()}…{text[len(text) - kept + kept // 3 :].lstrip()}"

    counts = range(1, min(len(text), width))
    return elided(bisect_right(counts, width, key=lambda kept: face.width(elided(kept))))


@cache
def _load_font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font
