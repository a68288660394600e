"""The heights of bars are the values of a vector."""

from __future__ import annotations

import pytest
import torch

from fmapviz.config import Style
from fmapviz.draw.bars import HEIGHT, LENGTH, draw_bars, lay_out
from fmapviz.draw.grid import measure

BARE = Style(padding=0)
ABOVE, BELOW, LINE = 255, 160, 64


def draw(numbers, style=BARE):
    values = torch.tensor([numbers], dtype=torch.float32)
    return draw_bars(values, style, measure(values[:, :, None, None]))[0]


def column(pixels, number, of):
    """Return the middle column of pixels of one bar."""
    thick = pixels.shape[1] // of
    return pixels[:, number * thick + thick // 2].tolist()


def test_bars_reach_from_zero_to_their_values():
    pixels = draw([3.0, -1.0, 1.5, 0.0])
    assert pixels.shape == (HEIGHT, 4 * 12)
    zero = HEIGHT * 3 // 4
    assert column(pixels, 0, 4) == [ABOVE] * zero + [LINE] + [0] * 15
    assert column(pixels, 1, 4) == [0] * zero + [BELOW] * 16
    assert column(pixels, 2, 4) == [0] * 24 + [ABOVE] * 24 + [LINE] + [0] * 15
    assert column(pixels, 3, 4) == [0] * zero + [LINE] + [0] * 15


def test_the_axis_includes_zero():
    assert column(draw([10.0, 9.0, 5.0]), 2, 3) == [0] * 32 + [ABOVE] * 31 + [ABOVE]
    assert column(draw([-4.0, -1.0]), 1, 2) == [BELOW] * 16 + [0] * 48


def test_a_fixed_axis_clamps_values():
    pixels = draw([5.0, 0.5, -7.0], Style(padding=0, norm="fixed:-1,1"))
    assert column(pixels, 0, 3)[:32] == [ABOVE] * 32
    assert column(pixels, 1, 3)[:32] == [0] * 16 + [ABOVE] * 16
    assert column(pixels, 2, 3)[32:] == [BELOW] * 32


def test_rows_of_bars_follow_columns_padding_and_scale():
    numbers = [float(number % 7) for number in range(2 * LENGTH + 3)]
    pixels = draw(numbers)
    assert pixels.shape == (3 * HEIGHT, 3 * LENGTH)
    assert not pixels[2 * HEIGHT :, 9:].any()
    one_row = draw(numbers, Style(columns=len(numbers), padding=0))
    assert one_row.shape == (HEIGHT, len(numbers))
    again = torch.cat([one_row[:, :LENGTH], one_row[:, LENGTH : 2 * LENGTH]])
    assert torch.equal(pixels[: 2 * HEIGHT, ::3], again)
    spaced = draw(numbers, Style(padding=5, scale=2))
    assert spaced.shape == (3 * (2 * HEIGHT + 5) + 5, 6 * LENGTH + 10)
    assert torch.equal(spaced[5 : 5 + 2 * HEIGHT : 2, 5:-5:2], pixels[:HEIGHT])
    assert not spaced[:5].any()
    assert not spaced[:, :5].any()


@pytest.mark.parametrize(
    ("count", "style", "columns"),
    [
        (10, {"channels": "top:10"}, 10),
        (32, {"channels": "top:32"}, 32),
        (33, {"channels": "top:99"}, 17),
        (64, {"channels": "0-99"}, 32),
        (65, {"channels": "top:65"}, 65),
        (40, {"channels": "top:40", "columns": 40}, 40),
        (40, {}, 40),
    ],
)
def test_up_to_64_chosen_bars_are_in_short_rows(count, style, columns):
    """Each bar is where the layout puts it and as high as its value; nothing else is drawn."""
    style = Style(padding=3, **style)
    numbers = [1 + number / count for number in range(count)]
    pixels, tiles = draw(numbers, style), lay_out(count, style)
    assert (tiles.columns, tiles.count) == (columns, count)
    rest = pixels.clone()
    for position, number in enumerate(numbers):
        left, top = tiles.corner(position)
        bar = pixels[top : top + tiles.height, left + tiles.width // 2]
        assert abs(int((bar == ABOVE).sum()) - number / max(numbers) * HEIGHT) <= 1
        rest[top : top + tiles.height, left : left + tiles.width] = 0
    assert not rest.any()


@pytest.mark.parametrize(
    "numbers", [[0.0], [0.0, 0.0], [float("nan")], [1e-38, 3e38], [float("inf"), -float("inf"), 1.0]], ids=str
)
def test_zero_tiny_huge_and_nonfinite_values_are_drawn(numbers):
    pixels = draw(numbers)
    assert pixels.dtype == torch.uint8
    assert len(set(pixels.flatten().tolist())) >= 2


def test_nonfinite_values_are_checkerboards_and_do_not_affect_others():
    alone, beside = draw([2.0, 1.0]), draw([2.0, float("nan"), 1.0])
    assert column(beside, 0, 3) == column(alone, 0, 2)
    assert column(beside, 2, 3) == column(alone, 1, 2)
    assert sorted(set(column(beside, 1, 3))) == [0, 255]


def test_a_batch_is_drawn_like_its_images():
    values = torch.randn(3, 300) * torch.tensor([[1.0], [100.0], [0.01]])
    together = draw_bars(values, Style(), measure(values[:, :, None, None]))
    for image, pixels in zip(values, together, strict=True):
        assert torch.equal(pixels, draw(image.tolist(), Style()))
