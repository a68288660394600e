"""Values of a layer are counted as `numpy.histogram` counts them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from results import random_maps

from fmapviz.views.histogram import BINS, count

NAN, INF = torch.nan, torch.inf


def reference(image):
    values = image.double().numpy().ravel()
    finite = values[np.isfinite(values)]
    return np.histogram(finite, bins=BINS, range=(finite.min(), finite.max()))[0], finite.min(), finite.max()


def assert_counted(maps, *, moved=0):
    """Check all of it; as many values may lie in the bin beside."""
    counts, low, high, nonfinite = count(maps)
    assert (counts.dtype, low.dtype, high.dtype, nonfinite.dtype) == (torch.int64, torch.float32, torch.float32, torch.int64)
    assert (counts.shape, low.shape, high.shape, nonfinite.shape) == ((len(maps), BINS), *[(len(maps),)] * 3)
    for number, image in enumerate(maps.float()):
        expected, lowest, highest = reference(image)
        assert (low[number].item(), high[number].item()) == (lowest, highest)
        assert nonfinite[number].item() == (~image.isfinite()).sum().item()
        assert counts[number].sum().item() == expected.sum()
        assert np.abs(np.cumsum(counts[number].numpy()) - np.cumsum(expected)).sum() <= moved


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(3, 8, 9, 10), (1, 2000), (2, 5, 1, 1), (1, 3, 2, 4, 5)], ids=str)
def test_counts_equal_those_of_numpy(dtype, shape):
    assert_counted(random_maps(*shape).to(dtype))


def test_few_of_a_million_values_are_in_a_neighbouring_bin():
    assert_counted(random_maps(1, 1_000_000), moved=3)


@pytest.mark.sampled
@pytest.mark.parametrize("whole", [2, 3, 63, 64, 96, 100, 128, 1000])
@pytest.mark.parametrize("unit", [1, 0.5, 0.125])
def test_values_where_two_bins_meet_are_in_the_upper_one(whole, unit):
    values = torch.arange(whole + 1) * unit
    for start in (0, -1, 37):
        assert_counted((values + start * unit)[None])


@pytest.mark.parametrize("factor", [1e-30, 1e-6, 1e6, 1e30])
def test_large_and_small_values_are_counted_alike(factor):
    assert_counted(random_maps(2, 500) * factor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_values_that_are_not_finite_are_counted_apart(dtype):
    maps = random_maps(4, 3, 5, 6).to(dtype)
    maps[0, 0, 0, 0] = NAN
    maps[1, 1, :2] = INF
    maps[2, 2, 1] = -INF
    assert_counted(maps)


def test_a_value_that_is_not_finite_does_not_change_the_counts():
    values = random_maps(1, 5000)
    alone, together = count(values), count(torch.cat([values, torch.tensor([[NAN]])], 1))
    assert all(torch.equal(one, other) for one, other in zip(alone[:3], together[:3], strict=True))
    assert (alone[3].item(), together[3].item()) == (0, 1)


@pytest.mark.parametrize("value", [0.0, -7.5, 1e-30, 3.0])
def test_equal_values_are_in_the_middle_bin(value):
    maps = torch.full((2, 3, 4, 4), value)
    assert_counted(maps)
    maps[1, 0, 0, 0] = INF
    assert_counted(maps)
    assert count(maps)[0][:, BINS // 2].tolist() == [48, 47]


def test_large_equal_values_are_in_the_middle_bin():
    assert count(torch.full((1, 9), 1e30))[0].nonzero().tolist() == [[0, BINS // 2]]


def test_a_map_without_a_finite_value_has_no_range():
    counts, low, high, nonfinite = count(torch.tensor([[NAN, INF, -INF], [1.0, 2.0, 2.0]]))
    assert counts.sum(1).tolist() == [0, 3]
    assert low.isnan().tolist() == high.isnan().tolist() == [True, False]
    assert nonfinite.tolist() == [3, 0]


def test_a_range_beyond_float32_is_counted():
    assert_counted(random_maps(1, 1001).clamp(-3.3, 3.3) * 1e38)
    assert_counted(torch.tensor([[-3e38, 0.0, 3e38, NAN]]))


def test_the_maps_are_not_changed():
    maps = random_maps(2, 3, 4, 5).requires_grad_()
    before = maps.detach().clone()
    assert not count(maps)[1].requires_grad
    assert torch.equal(maps, before)
