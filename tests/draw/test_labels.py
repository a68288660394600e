"""Numbers, headers and colour bars are legible and leave every tile unchanged."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from allpairspy import AllPairs
from PIL import Image, ImageDraw, ImageFont

from fmapviz.config import Style
from fmapviz.core.drawings import Tiles
from fmapviz.draw import bars, labels
from fmapviz.draw.grid import lay_out, measure
from fmapviz.draw.labels import number_rows, number_tiles
from fmapviz.draw.layout import BLACK, Box, draw
from fmapviz.draw.layout import picture as box_of
from fmapviz.draw.text import TextLine
from fmapviz.errors import RequestError
from fmapviz.run.tile import tile


def add_colorbar(pixels, **options):
    return draw(labels.add_colorbar(box_of(pixels), **options), BLACK)


def add_header(pixels, lines):
    return draw(labels.add_header(box_of(pixels), lines), BLACK)


def random(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def grid_of(count, height, width, style):
    maps = torch.randn(count, height, width, generator=torch.Generator().manual_seed(0))
    return tile(maps, style).numpy(), lay_out(count, height, width, style)


def bars_of(count, style):
    values = torch.randn(1, count, generator=torch.Generator().manual_seed(0))
    return bars.draw_bars(values, style, measure(values[:, :, None, None]))[0].numpy(), bars.lay_out(count, style)


def cut(pixels, tiles, number):
    left, top = tiles.corner(number)
    return pixels[top : top + tiles.height, left : left + tiles.width]


@cache
def pillows_digits():
    """Pillow's digits, 10 pixels high: drawn four times as large and averaged."""
    digits = []
    for digit in "0123456789":
        large = Image.new("L", (24, 60))
        ImageDraw.Draw(large).text((0, 40), digit, 200, ImageFont.load_default(40), anchor="ls")
        digits.append(np.asarray(large, float).reshape(15, 4, 6, 4).mean((1, 3)))
    digits = np.stack(digits)
    return digits[:, digits.any((0, 2))]


def read(pixels, left, bottom, digits):
    """Read the number of up to `digits` digits above a position."""
    known, text = pillows_digits(), ""
    height = known.shape[1]
    for place in range(left, left + 6 * digits, 6):
        part = pixels[bottom - 2 - height : bottom - 2, place : place + 6].astype(float)
        if part.shape[1] == 6 and part.any():
            differences = abs(known - part).max((1, 2))
            text += str(differences.argmin()) if differences.min() <= 2 else "?"
    return text


# --- numbers

GRIDS = [
    (64, 55, 55, Style()),
    (7, 30, 41, Style(norm="signed")),
    (300, 7, 5, Style(colormap="viridis", columns=40)),
    (2048, 7, 7, Style()),
    (12, 4, 9, Style(scale=3, padding=5)),
    (9, 20, 40, Style(padding=0)),
    (1, 1, 1, Style()),
    (10, 1, 1, Style(columns=10, padding=1)),
]


@pytest.mark.parametrize(("count", "height", "width", "style"), GRIDS)
def test_tiles_are_unchanged_below_their_numbers(count, height, width, style):
    grid, tiles = grid_of(count, height, width, style)
    grid.flags.writeable = False
    numbers = np.random.default_rng(0).permutation(count).tolist()
    numbered, moved = number_tiles(grid, tiles, numbers)
    assert numbered.dtype == np.uint8
    assert numbered.shape[2:] == grid.shape[2:]  # grey stays grey
    assert (moved.columns, moved.count) == (tiles.columns, tiles.count)
    assert moved.across >= tiles.across
    levels = numbered if numbered.ndim == 2 else numbered[..., 0]
    rest = numbered.copy()
    for number in range(count):
        assert np.array_equal(cut(numbered, moved, number), cut(grid, tiles, number))
        cut(rest, moved, number)[:] = 0
    for number in range(0, count, max(1, count // 50)):
        left, top = moved.corner(number)
        assert read(levels, left, top, len(str(count - 1))) == str(numbers[number])
    for row in range(-(-count // tiles.columns)):  # only numbers are drawn outside the tiles
        top = moved.top + row * moved.down
        assert not rest[top - 2 : top + moved.height].any()
        assert rest[top - 20 if row else 0 : top - 2].any()


def test_wide_tiles_without_padding_still_touch():
    grid, tiles = grid_of(9, 20, 40, Style(padding=0))
    numbered, moved = number_tiles(grid, tiles, range(9))
    assert moved.across == moved.width == 40
    assert numbered.shape == (len(grid) + 3 * (moved.down - 20), 120)


@pytest.mark.parametrize(
    ("count", "style", "step"),
    [
        (1000, Style(), 32),
        (300, Style(padding=0), 32),
        (1000, Style(columns=100, scale=2), 8),
        (60, Style(), 4),
        (60, Style(scale=2), 1),
        (3, Style(padding=0), 1),
    ],
)
def test_narrow_bars_stay_adjacent_and_are_numbered_at_intervals(count, style, step):
    drawn, tiles = bars_of(count, style)
    drawn.flags.writeable = False
    numbered, moved = number_tiles(drawn, tiles, range(count))
    assert (moved.left, moved.across, moved.width, moved.columns) == (tiles.left, tiles.across, tiles.width, tiles.columns)
    assert numbered.shape[1] == drawn.shape[1]
    rest, found = numbered.copy(), []
    for number in range(count):
        left, now = moved.corner(number)
        assert left == tiles.corner(number)[0]
        assert np.array_equal(cut(numbered, moved, number), cut(drawn, tiles, number))
        cut(rest, moved, number)[:] = 0
        if read(numbered, left, now, len(str(count - 1))) == str(number):
            found.append(number)
            rest[now - 2 - pillows_digits().shape[1] : now - 2, left : left + 6 * len(str(number))] = 0
    assert found == [number for number in range(count) if number % tiles.columns % step == 0]
    assert not rest.any()


def test_a_row_of_numbered_bars_may_be_narrower_than_its_number():
    drawn, tiles = random(10, 70) // 2, Tiles(0, 0, 1, 10, 1, 10, 70, 70)
    numbered, moved = number_tiles(drawn, tiles, [12345678, *range(69)])
    assert numbered.shape == (10 + moved.top, 64 + 8 * 6 + 4)
    assert read(numbered, 0, moved.top, 8) == "12345678"
    assert np.array_equal(numbered[moved.top :, :70], drawn)


@pytest.mark.parametrize(
    ("count", "style", "largest"),
    [*AllPairs([[1, 2, 20, 40, 64], [{}, {"padding": 0, "scale": 2}, {"columns": 7}], [30, 999, 20000]])],
)
def test_up_to_64_chosen_bars_are_numbered(count, style, largest):
    """A reader cannot infer numbers that are left out unless they count from 0."""
    numbers = [largest, *np.random.default_rng(0).permutation(100 + count)[1:count].tolist()]
    drawn, tiles = bars_of(count, Style(channels=f"top:{count}", **style))
    numbered, moved = number_tiles(drawn, tiles, numbers)
    assert (moved.columns, moved.count) == (tiles.columns, tiles.count)
    assert moved.columns <= 32
    for position, number in enumerate(numbers):
        left, top = moved.corner(position)
        assert np.array_equal(cut(numbered, moved, position), cut(drawn, tiles, position))
        assert read(numbered, left, top, max(map(len, map(str, numbers)))) == str(number)


def test_many_chosen_bars_are_numbered_at_intervals():
    drawn, tiles = bars_of(100, Style(channels="top:100"))
    numbers = np.random.default_rng(0).permutation(1000)[:100].tolist()
    numbered, moved = number_tiles(drawn, tiles, numbers)
    assert numbered.shape[1] == drawn.shape[1]
    found = [number for number in range(100) if read(numbered, *moved.corner(number), 3) == str(numbers[number])]
    assert found == list(range(0, 100, 4))  # 7 pixels each, a number takes 22


# --- numbers of rows

ROWS = [
    (Tiles(2, 2, 100, 30, 102, 32, 1, 9), None),
    (Tiles(2, 2, 50, 8, 52, 9, 1, 12), None),
    (Tiles(2, 2, 50, 3, 52, 5, 1, 130), None),
    (Tiles(0, 0, 40, 13, 40, 13, 1, 20), None),
    (Tiles(0, 0, 40, 1, 40, 1, 1, 300), 16),
    (Tiles(0, 0, 40, 3, 40, 3, 1, 5), 4),
    (Tiles(0, 0, 7, 20, 7, 20, 1, 1), None),
]


@pytest.mark.parametrize("colour", [(), (3,)], ids=["grey", "colour"])
@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize(("rows", "step"), ROWS)
def test_each_row_begins_with_its_number(rows, step, chosen, colour):
    shape = (rows.top + rows.count * rows.down, 2 * rows.left + rows.width, *colour)
    grid = np.zeros(shape, np.uint8)
    for number in range(rows.count):
        cut(grid, rows, number)[:] = random(rows.height, rows.width, *colour, seed=number)
    grid.flags.writeable = False
    numbers = np.random.default_rng(1).permutation(1000)[: rows.count].tolist() if chosen else range(rows.count)
    step = 1 if chosen and rows.count <= 64 else step or 1
    numbered, moved = number_rows(grid, rows, numbers)
    assert numbered.shape[2:] == grid.shape[2:]
    levels = numbered if numbered.ndim == 2 else numbered[..., 0]
    digits = max(len(str(number)) for number in numbers)
    rest = numbered.copy()
    for number in range(rows.count):
        assert np.array_equal(cut(numbered, moved, number), cut(grid, rows, number))
        cut(rest, moved, number)[:] = 0
    high = pillows_digits().shape[1]
    for number in range(0, rows.count, step):
        top = moved.corner(number)[1] + ((rows.height - high) // 2 if step == 1 else 0)
        text = read(levels, 4 + 6 * (digits - len(str(numbers[number]))), top + high + 2, len(str(numbers[number])))
        assert text == str(numbers[number])
        rest[top : top + high, 4 : 4 + 6 * digits] = 0
    assert not rest.any()  # nothing else is drawn, and no number overlaps a row


# --- the colour bar


def bar_of(framed, width):
    """Return the colours of a bar from top to bottom."""
    column = framed[:, width + 12 + 7]
    inside = framed[:, width + 12 : width + 12 + 14]
    assert (inside == column[:, None]).all()
    outline = (column == 110) if column.ndim == 1 else (column == 110).all(-1)
    first, last = outline.nonzero()[0][[0, -1]]
    assert not column[:first].any()
    assert not column[last + 1 :].any()
    return column[first + 1 : last]


@pytest.mark.sampled
@pytest.mark.parametrize("shape", [(300, 200), (300, 200, 3), (30, 20), (1, 1, 3), (1500, 10)], ids=str)
@pytest.mark.parametrize("colormap", [None, "viridis", "coolwarm"])
def test_a_colour_bar_shows_matplotlibs_colours(shape, colormap):
    from extras import matplotlib as mpl

    picture = random(*shape)
    picture.flags.writeable = False
    framed = add_colorbar(picture, colormap=colormap, marks=[(0, "-1"), (0.5, "0"), (1, "1")])
    assert framed.shape[0] == max(shape[0], 96)
    assert framed.ndim == (2 if colormap is None and len(shape) == 2 else 3)
    own = framed[: shape[0], : shape[1]]
    assert np.array_equal(own, picture if picture.ndim == framed.ndim else np.stack([picture] * 3, -1))
    assert not framed[shape[0] :, : shape[1]].any()
    bar = bar_of(framed, shape[1])
    wanted = mpl.colormaps[colormap or "gray"](np.linspace(255, 0, len(bar)).round().astype(int))[:, :3] * 255
    assert abs(wanted - (bar if bar.ndim == 2 else bar[:, None])).max() <= 1.5
    assert framed.shape[0] - len(bar) <= 16


def text_rows(framed, width):
    """Return (begin, end) of each line of text beside the bar."""
    beside = framed[:, width + 12 + 14 + 16 :]
    rows = (beside if beside.ndim == 2 else beside.max(-1)).max(1) > 110
    edges = np.flatnonzero(np.diff(np.concatenate(([False], rows, [False])).astype(int)))
    return edges.reshape(-1, 2)


@pytest.mark.sampled
@pytest.mark.parametrize("height", [20, 96, 400])
@pytest.mark.parametrize(
    "at", [(0, 1), (0, 0.5, 1), (0.4, 0.41, 0.42), (0, 0, 0.01), (1, 0.99, 0.98, 0), (0.5,) * 9], ids=str
)
def test_overlapping_marks_are_moved_apart_in_order_and_not_cut(height, at):
    # H, HH, HHH, ...: how wide a line is says which it is.
    marks = [(position, "H" * (number + 1)) for number, position in enumerate(at)]
    framed = add_colorbar(random(height, 50), colormap=None, marks=marks)
    rows = text_rows(framed, 50)
    assert len(rows) == len(at)
    widths = [np.ptp((framed[begin:end, 50 + 42 :] > 110).any(0).nonzero()[0]) for begin, end in rows]
    wanted = sorted(range(len(at)), key=lambda number: -at[number])
    assert np.argsort(np.argsort(widths)).tolist() == wanted
    assert len({end - begin for begin, end in rows}) == 1  # all whole
    assert rows[0][0] > 0
    assert rows[-1][1] < len(framed)
    assert not framed[:, -1].any()


def test_a_mark_is_beside_its_level():
    framed = add_colorbar(random(400, 50), colormap=None, marks=[(position, "H") for position in (0, 0.3, 0.7, 1)])
    middles = text_rows(framed, 50).mean(1)
    bar = bar_of(framed, 50)
    top = (framed[:, 50 + 19] == 110).nonzero()[0][0] + 1
    assert abs(middles - [top + (1 - position) * (len(bar) - 1) for position in (1, 0.7, 0.3, 0)]).max() <= 1.5


def test_a_colour_bar_needs_a_valid_colormap_and_no_marks():
    assert (
        add_colorbar(random(100, 50), colormap=None, marks=[]).shape
        == add_colorbar(random(100, 50), colormap=None, marks=[(0.5, "")]).shape
    )
    with pytest.raises(RequestError, match="no such colormap: 'heat'"):
        add_colorbar(random(100, 50), colormap="heat", marks=[])


# --- the header


@pytest.mark.sampled
@pytest.mark.parametrize("shape", [(200, 500), (200, 500, 3), (5, 3), (1, 1, 3)], ids=str)
@pytest.mark.parametrize(
    "lines", [["one"], ["x" * 5000, "\u4f60" * 300, "three"], ["", "two"]], ids=["one", "long", "second"]
)
def test_a_header_is_above_the_picture(shape, lines):
    picture = random(*shape)
    picture.flags.writeable = False
    framed = add_header(picture, lines)
    above = framed.shape[0] - shape[0]
    assert framed.shape == (above + shape[0], max(shape[1], 320), *shape[2:])
    assert np.array_equal(framed[above:, : shape[1]], picture)
    assert not framed[above:, shape[1] :].any()
    header = framed[:above]
    assert header.any()
    for edge in (header[:3], header[-3:], header[:, :3], header[:, -3:]):
        assert not edge.any()
    if framed.ndim == 3:
        assert (header == header[..., :1]).all()


def test_the_first_line_is_the_strongest():
    framed = add_header(random(100, 400), ["HHHH", "HHHH", "HHHH"])
    rows = (framed[:-100] > 0).any(1)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], rows, [False])).astype(int))).reshape(-1, 2)
    brightness = [framed[begin:end].sum(dtype=int) for begin, end in edges]
    assert len(brightness) == 3
    assert brightness[1] == brightness[2]
    assert brightness[0] > 1.3 * brightness[1]


@pytest.mark.parametrize("lines", [[], ["", " "]], ids=str)
def test_an_empty_header_adds_nothing(lines):
    picture = random(10, 20)
    framed = add_header(picture, lines)
    assert framed is picture  # copied only if anything is added


def texts_in(box):
    for part, _, _ in box.parts:
        if isinstance(part, Box):
            yield from texts_in(part)
        elif isinstance(part, TextLine):
            yield part.text


def test_each_line_of_a_caption_has_lines_of_its_own_in_a_narrow_picture():
    target, note = "star, top1: 99.8 %, logit 4.826", "sum 4.937, rise 4.826, gap 0.11"
    captioned = labels.add_caption(box_of(np.zeros((96, 96), np.uint8)), f"{target}\n{note}")
    assert captioned.width == 96
    assert " ".join(texts_in(captioned)) == f"{target} {note}"
