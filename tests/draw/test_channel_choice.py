"""The choice of channels: listed ones, and those with the largest values."""

from __future__ import annotations

import pytest
import torch
from results import random_maps

from fmapviz.config import Style
from fmapviz.draw.channel_choice import choose_channels
from fmapviz.draw.grid import Ranges, measure


def highs(*rows):
    values = torch.tensor(rows)
    return Ranges(values - 1, values, values.mean(1))


@pytest.mark.parametrize(
    ("channels", "expected"),
    [
        ("0", [0]),
        ("3,0", [3, 0]),
        ("1-3", [1, 2, 3]),
        ("2,1-3,2", [2, 1, 3]),
        ("3,99", [3]),
        ("2-1000", [2, 3]),
        ("4,5-9", []),
    ],
)
def test_listed_channels_keep_their_order_and_missing_channels_are_dropped(channels, expected):
    chosen = choose_channels(highs([0.0] * 4, [1.0] * 4, [2.0] * 4), Style(channels=channels))
    assert chosen.dtype == torch.int64
    assert chosen.tolist() == [expected] * 3


@pytest.mark.parametrize(
    ("channels", "expected"),
    [
        ("top:1", [[2], [0]]),
        ("top:3", [[2, 0, 4], [0, 1, 2]]),
        ("top:5", [[2, 0, 4, 3, 1], [0, 1, 2, 3, 4]]),
        ("top:99", [[2, 0, 4, 3, 1], [0, 1, 2, 3, 4]]),
    ],
)
def test_the_highest_channels_are_chosen_per_image(channels, expected):
    ranges = highs([3.0, -2.0, 5.0, 1.0, 3.0], [7.0, 7.0, 7.0, 7.0, 7.0])
    assert choose_channels(ranges, Style(channels=channels)).tolist() == expected


def test_ties_are_stable_among_many_channels():
    ranges = highs([float(number % 2) for number in range(2048)])
    assert choose_channels(ranges, Style(channels="top:1030")).tolist()[0] == [*range(1, 2048, 2), 0, 2, 4, 6, 8, 10]


def test_a_channel_without_a_finite_value_is_chosen_last():
    maps = random_maps(1, 4, 3, 3)
    maps[0, 1] = torch.nan
    maps[0, 2] = -1e30
    chosen = choose_channels(measure(maps), Style(channels="top:4")).tolist()[0]
    assert chosen[2:] == [2, 1]
