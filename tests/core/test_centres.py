"""Where the positions of a map lie in the input: pixels of an enlarged map, cells at a pixel, means of positions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import adaptive_avg_pool1d, interpolate

from fmapviz.config import Style
from fmapviz.config.positions import cell_of
from fmapviz.core.centres import Centres
from fmapviz.draw.heatmap import heat_and_ends, interpolate_colours, nearest, nearest_values, stretch
from fmapviz.errors import PositionError

SIZES = st.tuples(st.integers(1, 40), st.integers(1, 40))


def regular(start, stride, count):
    return start + stride * np.arange(count, dtype=np.float64)


@settings(deadline=None, max_examples=40)
@given(grid=SIZES, size=SIZES)
def test_a_map_that_spans_the_input_is_enlarged_as_torch_does(grid, size):
    maps = torch.randn(1, *grid, generator=torch.Generator().manual_seed(0))
    centres = Centres.spread(grid, size)
    theirs = interpolate(maps[None], size, mode="bilinear", align_corners=False)[0]
    ours = stretch(maps, size, Style(), (-4, 4), centres=centres)[0]
    usual = stretch(maps, size, Style(), (-4, 4))[0]
    assert (ours.int() - usual.int()).abs().max() <= 1
    positive = maps.relu()
    enlarged = interpolate(positive[None], size, mode="bilinear", align_corners=False)[0]
    if (
        enlarged.max() - enlarged.min() > 1e-5
    ):  # or rounding is stretched to 0..1, as of one row that is enlarged to one column
        torch.testing.assert_close(
            heat_and_ends(positive, size, centres)[0], heat_and_ends(positive, size)[0], rtol=0, atol=1e-5
        )
    assert theirs.shape == (1, *size)
    for own, plain in zip(centres.nearest(size), (nearest(*sides) for sides in zip(grid, size, strict=True)), strict=True):
        assert np.array_equal(own, plain.numpy())


@settings(deadline=None)
@given(grid=SIZES, picture=SIZES, share=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)))
def test_the_cell_at_a_pixel_is_the_one_that_the_pixel_shows(grid, picture, share):
    at = int(share[0] * picture[0]), int(share[1] * picture[1])
    centres = Centres.spread(grid, picture)
    rows, columns = nearest_values(grid, picture)
    assert centres.cell(at) == cell_of(at, picture=picture, grid=grid) == (rows[at[0]], columns[at[1]])


def test_values_are_at_their_centres_and_repeated_beyond_the_outermost():
    raw = torch.tensor([[[1.0, 3.0, 5.0]]])
    centres = Centres(regular(4.5, 1, 1), regular(13.5, 4, 3), (9, 40))
    pixels = stretch(raw, (9, 40), Style(), (0, 255), centres=centres)[0][0]
    assert pixels.unique(dim=0).shape == (1, 40)
    expected = np.interp(np.arange(40) + 0.5, centres.columns, raw[0, 0])
    assert abs(pixels[0].numpy() - expected).max() <= 0.5
    assert pixels[0, [0, 13, 17, 21, 39]].tolist() == [1, 1, 3, 5, 5]
    sharp = stretch(raw, (9, 40), Style(), (0, 255), centres=centres, smooth=False)[0][0, 0]
    assert sharp.tolist() == [1] * 15 + [3] * 4 + [5] * 21


def test_a_map_of_a_mirrored_input_is_mirrored_back():
    raw = torch.tensor([[[1.0, 2.0, 9.0]]])
    mirrored = Centres(regular(0.5, 1, 1), regular(5, -2, 3), (1, 6))
    straight = Centres(regular(0.5, 1, 1), regular(1, 2, 3), (1, 6))
    one, other = (
        stretch(raw, (1, 6), Style(), centres=mirrored)[0],
        stretch(raw.flip(-1), (1, 6), Style(), centres=straight)[0],
    )
    assert torch.equal(one, other)
    assert mirrored.cell((0, 0)) == (0, 2)


def test_as_many_positions_as_pixels_may_have_other_centres():
    raw = torch.zeros(1, 5, 5)
    raw[0, 2, 2] = 1
    shifted = Centres(regular(-0.5, 1, 5), regular(2.5, 1, 5), (5, 5))
    pixels = stretch(raw, (5, 5), Style(), centres=shifted)[0][0]
    assert pixels.argmax() == 1 * 5 + 4


def test_values_that_are_not_finite_are_ignored_at_each_position():
    raw = torch.tensor([[[1.0, torch.nan, 5.0]]])
    centres = Centres(regular(0.5, 1, 1), regular(3.5, 4, 3), (1, 12))
    pixels, low, high = stretch(raw, (1, 12), Style(), (0, 255), centres=centres)
    assert pixels[0, 0].tolist() == [1, 1, 1, 1, 1, 0, 0, 0, 0, 5, 5, 5]
    assert (low.item(), high.item()) == (0, 255)


def test_colours_are_interpolated_as_values_are():
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)
    centres = Centres(regular(3, 2.5, 4), regular(-1, 4, 5), (16, 20))
    drawn = interpolate_colours(pixels, (16, 20), centres)
    for colour in range(3):
        raw = torch.from_numpy(pixels[..., colour]).float()[None]
        assert np.array_equal(drawn[..., colour], stretch(raw, (16, 20), Style(), (0, 255), centres=centres)[0][0])


@given(count=st.integers(1, 90), fewer=st.integers(1, 90))
def test_averaged_positions_equal_those_of_adaptive_pooling(count, fewer):
    fewer = min(count, fewer)
    centres = Centres(regular(3, 2.5, count), regular(0.5, 1, count), (100, 100)).averaged((fewer, fewer))
    theirs = adaptive_avg_pool1d(torch.from_numpy(regular(3, 2.5, count))[None], fewer)[0]
    np.testing.assert_allclose(centres.rows, theirs, rtol=1e-9)


@pytest.mark.parametrize("at", [(8, 0), (0, 9)])
def test_a_pixel_outside_the_picture_has_no_cell(at):
    with pytest.raises(PositionError, match="outside the picture"):
        Centres.spread((2, 3), (8, 9)).cell(at)


def test_a_map_that_spans_the_input_is_recognised():
    assert Centres.spread((7, 9), (224, 100)).is_spread
    assert Centres(regular(0.5, 32, 7), regular(16, 32, 7), (224, 224)).is_spread  # each in its own equal part
    assert Centres(regular(0.5, 32, 8), regular(0.5, 32, 1), (250, 32)).is_spread


@pytest.mark.parametrize(
    "rows",
    [
        regular(-0.5, 32, 7),  # in the part before
        regular(32.5, 32, 7),  # in the part behind
        regular(16, 32, 6),  # not one for each step: without padding
        regular(208, -32, 7),  # mirrored
        regular(1.5, 31, 7),
        np.array([0.5, 32.5, 64.5, 96.5, 128.5, 160.5, 191.5]),  # out of its part
    ],
)
def test_a_map_at_other_positions_does_not_span_the_input(rows):
    assert not Centres(rows, regular(16, 32, 7), (224, 224)).is_spread
