"""Text is transliterated to the font and wrapped to a width."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from fmapviz.draw.layout import BLACK, WHITE, draw
from fmapviz.draw.text import Typeface, legible, set_lines, wrap

FACE = Typeface(14, BLACK)
FONT = ImageFont.load_default(48)
HOSTILE = [
    "x" * 5000,
    "a few words " * 400,
    "\x1b[31mred\x00",
    "\u202eabc\u200b",
    "\U0001f469" * 60,
    "z" + "\u0301" * 1000,
    "a\ud800b",
]


def draw_lines(lines, *, background=WHITE, **alignment):
    return draw(set_lines(lines, background=background, **alignment), background)


def glyph(ch):
    mask = FONT.getmask(ch)
    return mask.size, bytes(mask)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("layer4.1.conv2", "layer4.1.conv2"),
        ("  two \t\n words ", "two words"),
        ("M\u00fcller Caf\u00e9", "Muller Cafe"),
        ("Mu\u0308ller", "Muller"),
        ("\ufb01\u00a0\uff21\u00b2", "fi A2"),
        ("\u4f60\u597d", r"\u4f60\u597d"),
        ("\ud55c", r"\ud55c"),
        ("1 \u00b5m \u2192 \U0001f600", r"1 \xb5m \u2192 \U0001f600"),
        ("\x1b[31m\u202e\ud800", r"\x1b[31m\u202e\ud800"),
        ("\u2018a\u2019", "\u2018a\u2019"),
        ("", ""),
    ],
)
def test_unsupported_characters_are_transliterated_or_escaped(text, written):
    assert legible(text) == written


def test_every_written_character_has_a_glyph():
    box = glyph("\U0010fffe")
    assert glyph("\u4f60") == box  # the font draws a box for every character that it lacks
    some = "".join(map(chr, [*range(0x20, 0x250), *range(0x2010, 0x2060), *range(0xFB00, 0xFB10), 0x1F600, 0xD800]))
    written = legible(some)
    assert {ch for ch in written if glyph(ch) == box} == set()
    assert set(map(chr, range(0x21, 0x7F))) <= set(written)


@pytest.mark.sampled
@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("width", [30, 200])
def test_lines_fit_the_width(text, most, width):
    lines = wrap(text, FACE, width, lines=most)
    assert 1 <= len(lines) <= most
    assert all(ImageFont.load_default(14 * 4).getlength(line) <= 4 * width for line, _ in lines)
    drawn = draw_lines(lines)
    assert drawn.shape[1] <= width
    assert (drawn != 255).any()


def test_wrapping_loses_no_character():
    assert wrap("features.0", FACE, 100) == (("features.0", FACE),)
    name = "encoder.layers.encoder_layer_11.self_attention.out_proj"
    lines = [line for line, _ in wrap(name, FACE, 230, lines=3)]
    assert len(lines) == 2
    assert "".join(lines) == name
    assert wrap("", FACE, 100) == wrap(" \n ", FACE, 100) == ()


def test_a_long_text_is_elided_in_the_middle():
    ((line, _),) = wrap("first" + "." * 300 + "second", FACE, 150)
    assert line.startswith("first")
    assert line.endswith("second")
    assert line.count("…") == 1


@pytest.mark.sampled
@pytest.mark.parametrize("text", ["gradcam", "layer4.1.conv2", "W j g", "B - A: -1.5e-05 to 0.2467", "f\\ff"])
@pytest.mark.parametrize("size", [10, 14, 20])
def test_a_line_equals_pillows_text_drawn_four_times_as_large_and_reduced(text, size):
    drawn = draw_lines([(text, Typeface(size, WHITE))], background=BLACK)
    large = Image.new("L", (drawn.shape[1] * 4, drawn.shape[0] * 4))
    ImageDraw.Draw(large).text((0, size * 4), text, 255, ImageFont.load_default(size * 4), anchor="ls")
    averaged = np.asarray(large, np.float64).reshape(drawn.shape[0], 4, drawn.shape[1], 4).mean((1, 3))
    assert abs(drawn - averaged).max() <= 1


def test_a_text_is_as_wide_as_its_characters():
    """The font has no kerning: a line is put together from its characters."""
    characters = [*map(chr, range(0x20, 0x7F)), "…", "\u2018", "\u2019"]
    font = ImageFont.load_default(48)
    alone = {ch: font.getlength(ch) for ch in characters}
    assert all(font.getlength(a + b) == alone[a] + alone[b] for a in characters for b in characters)


def test_text_on_black_is_text_on_white_inverted():
    text = "encoder_layer_11 (0.5)"
    dark, light = draw_lines([(text, FACE)]), draw_lines([(text, Typeface(14, WHITE))], background=BLACK)
    assert abs(dark.astype(int) + light - 255).max() <= 1


def test_lines_are_stacked_and_aligned():
    lines = [("HHHHHHHH", FACE), ("H", Typeface(20, BLACK, 0.25))]
    places = []
    for alignment in (0.0, 0.5, 1.0):
        drawn = draw_lines(lines, alignment=alignment) < 128
        assert drawn.shape == (19 + 27, FACE.width("HHHHHHHH"))
        assert drawn[:19].any()
        inked = drawn[19:].any(0).nonzero()[0]
        places.append((inked[0], drawn.shape[1] - 1 - inked[-1]))
    (left, _), (before, after), (_, right) = places
    assert left <= 3
    assert right <= 3
    assert abs(before - after) <= 2


@pytest.mark.parametrize("width", range(50, 300, 7))
def test_a_percent_sign_stays_with_its_number(width):
    for text in ("star: probability 99.8 %, logit 8.1", "a 5 % b", "0 % of 12 channels, 100 % of values"):
        lines = [line for line, _ in wrap(text, Typeface(13, 0), width, lines=9)]
        assert " ".join(lines).replace(" ", "") == text.replace(" ", "")
        assert not any(line.startswith("%") for line in lines)
