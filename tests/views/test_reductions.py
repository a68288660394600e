"""All channels of a layer as one map: mean and maximum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from results import random_maps

from fmapviz.views import max as max_view
from fmapviz.views import mean as mean_view

NAN, INF = torch.nan, torch.inf
REDUCTIONS = [(mean_view.reduce, np.mean), (max_view.reduce, np.max)]


def reference(maps, combine):
    """What NumPy makes of the finite values at each place, one place after the other, in float64."""
    images, _, height, width = maps.shape
    reduced = np.full((images, height, width), np.nan)
    with np.errstate(over="ignore"):
        values = maps.double().numpy().astype(np.float32).astype(np.float64)
    for image, row, column in np.ndindex(reduced.shape):
        place = values[image, :, row, column]
        if np.isfinite(place).any():
            reduced[image, row, column] = combine(place[np.isfinite(place)])
    return torch.from_numpy(reduced)


def assert_same(reduced, expected, rtol=1e-6):
    assert reduced.dtype == torch.float32
    assert reduced.shape == expected.shape
    largest = expected[expected.isfinite()].abs().max().item()
    torch.testing.assert_close(reduced.double(), expected, rtol=rtol, atol=rtol * largest, equal_nan=True)


@pytest.mark.parametrize(("reduce", "combine"), REDUCTIONS)
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 4, 5), (1, 257, 7, 3), (3, 64, 1, 6)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_a_reduction_equals_that_of_numpy(reduce, combine, shape, dtype):
    maps = random_maps(*shape).to(dtype)
    before = maps.clone()
    assert_same(reduce(maps), reference(maps, combine))
    assert_same(reduce(maps.to(memory_format=torch.channels_last)), reference(maps, combine))
    assert torch.equal(maps, before)


@pytest.mark.parametrize(("reduce", "combine"), REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_values_that_are_not_finite_take_no_part(reduce, combine, dtype):
    maps = random_maps(2, 5, 6, 7).to(dtype)
    maps[0, 1, 2, 3] = NAN
    maps[0, 2, 2, 3] = INF
    maps[1, 0, 0, 0] = -INF
    maps[1, :, 5, 6] = -INF
    maps[1, :, 4, 6] = torch.tensor([INF, -INF, NAN, INF, NAN])
    reduced = reduce(maps)
    assert reduced.isnan().nonzero().tolist() == [[1, 4, 6], [1, 5, 6]]
    assert_same(reduced, reference(maps, combine))


@pytest.mark.parametrize(("reduce", "combine"), REDUCTIONS)
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_value_that_is_not_finite_is_ignored_at_each_position(reduce, combine, bad):
    maps = random_maps(1, 8, 3, 3) - 20  # a maximum that a zero in the place of the bad value would exceed
    maps[0, 3, 1, 1] = bad
    assert_same(reduce(maps), reference(maps, combine))


@pytest.mark.parametrize(("reduce", "combine"), REDUCTIONS)
@pytest.mark.parametrize("factor", [1e38, 1e-38, -1e38])
def test_a_mean_whose_sum_overflows_float32_is_right(reduce, combine, factor):
    maps = (random_maps(1, 30, 3, 3).abs() + 0.5).clamp(max=3) * factor
    assert maps.isfinite().all()
    assert_same(reduce(maps), reference(maps, combine), rtol=1e-5)


def test_halves_are_added_up_in_float32():
    maps = torch.full((1, 4096, 2, 2), 1000.0, dtype=torch.float16)  # 4096000 in all, which float16 cannot hold
    maps[:, 0] = 1004
    assert torch.equal(mean_view.reduce(maps), torch.full((1, 2, 2), 1000 + 4 / 4096))


@pytest.mark.parametrize(("reduce", "combine"), REDUCTIONS)
def test_a_mean_beyond_float32_is_infinite(reduce, combine):
    maps = random_maps(1, 4, 3, 3).double()
    maps[0, 0, 0, 0] = 1e300
    assert_same(reduce(maps), reference(maps, combine))
