"""A heat map is what pytorch-grad-cam, OpenCV and torch make of the same signed map."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pytorch_grad_cam.utils.image import scale_cam_image

from fmapviz.heat import heat_of

NAN, INF = torch.nan, torch.inf


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


def reference(raw, size):
    """What pytorch-grad-cam draws of a signed map: OpenCV enlarges."""
    return torch.from_numpy(scale_cam_image(scale_cam_image(np.maximum(raw.numpy(), 0), size[::-1])))


@pytest.mark.parametrize("shape", [(2, 7, 7), (3, 5, 9), (1, 2, 1), (2, 24, 32)], ids=str)
@pytest.mark.parametrize("size", [(96, 128), (50, 31)], ids=str)
@pytest.mark.parametrize("factor", [1, 1e-4, 1e-8, 1e6])
def test_a_heat_map_is_pytorch_grad_cams(shape, size, factor):
    raw = random(*shape) * factor
    heat = heat_of(raw, size)
    assert heat.dtype == torch.float32
    assert shape == (1, 2, 1) or heat.max() > 0.95
    torch.testing.assert_close(heat, reference(raw, size), rtol=0, atol=1e-5)


def test_each_image_is_scaled_alone():
    raw = random(3, 7, 7) * torch.tensor([1, 100, 1e-3])[:, None, None]
    each = torch.cat([heat_of(one[None], (56, 56)) for one in raw])
    assert torch.equal(heat_of(raw, (56, 56)), each)
    assert each.amin((1, 2)).tolist() == [0, 0, 0]
    torch.testing.assert_close(each.amax((1, 2)), torch.ones(3), rtol=0, atol=1e-6)


@pytest.mark.parametrize("value", [0.0, -0.0, -3.0, -INF, NAN])
def test_a_map_without_a_positive_value_is_zero(value):
    raw = torch.full((2, 3, 4), value)
    raw[1, 0, 0] = 1
    heat = heat_of(raw, (30, 40))
    assert not heat[0].any()
    assert heat[1].max() > 0.99


def test_values_that_are_not_finite_count_as_zero():
    raw = random(1, 6, 6)
    raw[0, 1, 2], raw[0, 3, 3], raw[0, 5, 0] = NAN, INF, -INF
    without = raw.nan_to_num(nan=0, posinf=0, neginf=0)
    assert torch.equal(heat_of(raw, (48, 48)), heat_of(without, (48, 48)))


def test_half_precision_is_computed_in_full():
    raw = random(2, 7, 7).half()
    assert torch.equal(heat_of(raw, (56, 56)), heat_of(raw.float(), (56, 56)))


def test_the_signed_map_is_left_alone():
    raw = random(2, 7, 7)
    before = raw.clone()
    heat_of(raw, (7, 7)).fill_(9)
    assert torch.equal(raw, before)
