"""The ranges of channels, and the choice of channels by them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fmapviz.core.config import Style
from fmapviz.render.channel_choice import choose_channels
from fmapviz.render.grid import Ranges, measure, take_channels, tile

NAN = torch.nan


def random_maps(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3 + 1


@settings(deadline=None, max_examples=60)
@given(
    arrays(
        np.float32,
        st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)),
        elements=st.floats(-10, 10, width=32) | st.sampled_from([np.nan, np.inf, -np.inf]),
    )
)
def test_ranges_cover_the_finite_values(maps):
    ranges = measure(torch.from_numpy(maps))
    for image, channel in np.ndindex(maps.shape[:2]):
        values = maps[image, channel]
        finite = values[np.isfinite(values)]
        low, high = (finite.min(), finite.max()) if finite.size else (np.nan, np.nan)
        np.testing.assert_array_equal(ranges.low[image, channel], low)
        np.testing.assert_array_equal(ranges.high[image, channel], high)
        assert (0 if ranges.bad is None else ranges.bad[image, channel].item()) == values.size - finite.size
    assert (ranges.bad is None) == bool(np.isfinite(maps).all())
    assert ranges.low.dtype == ranges.high.dtype == torch.float32


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
def test_listed_channels_keep_their_order_and_missing_ones_are_dropped(channels, expected):
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
    maps[0, 1] = NAN
    maps[0, 2] = -1e30
    chosen = choose_channels(measure(maps), Style(channels="top:4")).tolist()[0]
    assert chosen[2:] == [2, 1]


@pytest.mark.parametrize("poisoned", [False, True])
def test_taken_channels_are_drawn_like_a_layer_of_their_own(poisoned):
    maps = random_maps(2, 9, 6, 5)
    if poisoned:
        maps[1, 3, 0, 0] = NAN
    ranges = measure(maps)
    chosen = torch.tensor([[5, 3, 0], [3, 8, 8]])
    taken, of_taken = take_channels(maps, ranges, chosen)
    assert taken.shape == (2, 3, 6, 5)
    for image, row in enumerate(chosen.tolist()):
        expected = maps[image][row]
        assert torch.equal(taken[image].nan_to_num(), expected.nan_to_num())
        for style in (Style(), Style(norm="layer"), Style(norm="signed")):
            assert torch.equal(tile(taken, style, of_taken)[image], tile(expected, style))
