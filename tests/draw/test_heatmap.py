"""Heat maps equal those of pytorch-grad-cam, OpenCV and torch for the same signed map."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from allpairspy import AllPairs
from PIL import Image
from torch.nn.functional import interpolate

from fmapviz.config import Style
from fmapviz.core.centres import Centres
from fmapviz.draw.heatmap import heat_and_ends, mark_position, nearest, stretch

NAN, INF = torch.nan, torch.inf


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


def reference(raw, size):
    """What pytorch-grad-cam draws of a signed map: OpenCV enlarges."""
    from extras import grad_cam_image  # takes a second and a half

    return torch.from_numpy(
        grad_cam_image.scale_cam_image(grad_cam_image.scale_cam_image(np.maximum(raw.numpy(), 0), size[::-1]))
    )


@pytest.mark.parametrize(
    ("shape", "factor", "size"),
    [*AllPairs([[(2, 7, 7), (3, 5, 9), (1, 2, 1), (2, 24, 32)], [1, 1e-4, 1e-8, 1e6], [(96, 128), (50, 31)]])],
)
@pytest.mark.thorough
def test_a_heat_map_equals_that_of_pytorch_grad_cam(shape, factor, size):
    raw = random(*shape) * factor
    heat = heat_and_ends(raw, size)[0]
    assert heat.dtype == torch.float32
    assert shape == (1, 2, 1) or heat.max() > 0.95
    torch.testing.assert_close(heat, reference(raw, size), rtol=0, atol=1e-5)


def test_each_image_is_scaled_alone():
    raw = random(3, 7, 7) * torch.tensor([1, 100, 1e-3])[:, None, None]
    each = torch.cat([heat_and_ends(one[None], (56, 56))[0] for one in raw])
    assert torch.equal(heat_and_ends(raw, (56, 56))[0], each)
    assert each.amin((1, 2)).tolist() == [0, 0, 0]
    torch.testing.assert_close(each.amax((1, 2)), torch.ones(3), rtol=0, atol=1e-6)


@pytest.mark.parametrize("value", [0.0, -0.0, -3.0, -INF, NAN])
def test_a_map_without_a_positive_value_is_zero(value):
    raw = torch.full((2, 3, 4), value)
    raw[1, 0, 0] = 1
    heat = heat_and_ends(raw, (30, 40))[0]
    assert not heat[0].any()
    assert heat[1].max() > 0.99


def test_values_that_are_not_finite_count_as_zero():
    raw = random(1, 6, 6)
    raw[0, 1, 2], raw[0, 3, 3], raw[0, 5, 0] = NAN, INF, -INF
    without = raw.nan_to_num(nan=0, posinf=0, neginf=0)
    assert torch.equal(heat_and_ends(raw, (48, 48))[0], heat_and_ends(without, (48, 48))[0])


# --- any range


def enlarged(raw, size):
    return interpolate(raw[:, None], size, mode="bilinear", align_corners=False)[:, 0]


def levels_of(large):
    low, high = large.min(), large.max()
    return ((large - low) / (high - low) * 255 + 0.5).byte()


def assert_alike(pixels, expected):
    assert (pixels.int() - expected.int()).abs().max() <= 1  # a rounding apart


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize(("size", "columns"), [((35, 36), 24), ((5, 9), 6), ((64, 9), 6)], ids=str)
def test_a_map_ends_at_values_that_are_not_finite(bad, size, columns):
    raw = random(2, 5, 9)
    raw[:, :, 6:] = bad
    drawn, low, high = stretch(raw, size, Style())
    alone = enlarged(raw[:, :, :6], (size[0], columns))
    for image, pixels in zip(alone, drawn, strict=True):
        assert_alike(pixels[:, :columns], levels_of(image))
        assert not pixels[:, columns:].any()
    torch.testing.assert_close(low, alone.amin((1, 2)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(high, alone.amax((1, 2)), rtol=1e-5, atol=1e-5)


def test_finite_neighbours_share_the_weight_of_a_value_that_is_not_finite():
    raw = random(1, 6, 7)
    raw[0, 2, 3] = raw[0, 4, 4] = raw[0, 0, 6] = NAN
    known = np.isfinite(raw[0].numpy())
    rows, columns = (
        np.maximum(0, 1 - abs(((np.arange(10 * side) + 0.5) / 10 - 0.5).clip(0, side - 1)[:, None] - np.arange(side)))
        for side in (6, 7)
    )  # the share of each value
    weight = rows @ known @ columns.T
    large = rows @ np.where(known, raw[0], 0) @ columns.T / np.where(weight > 0, weight, 1)
    hole = ~known.repeat(10, 0).repeat(10, 1)
    low, high = large[~hole].min(), large[~hole].max()
    pixels = stretch(raw, (60, 70), Style())[0][0].numpy()
    expected = ((large - low) / (high - low) * 255).clip(0, 255)
    assert abs(pixels - expected)[~hole].max() <= 0.51
    assert not pixels[hole].any()


def test_finite_maps_do_not_depend_on_other_maps_of_the_batch():
    raw = random(3, 7, 7)
    alone = [stretch(image[None], (50, 60), Style()) for image in raw]
    raw[1, 3] = NAN
    together = stretch(raw, (50, 60), Style())
    for image in (0, 2):
        assert all(torch.equal(each[image], own[0]) for each, own in zip(together, alone[image], strict=True))


@pytest.mark.parametrize("value", [0.1, -1234.567, 1e30, 3e38])
@pytest.mark.parametrize("holes", [False, True])
def test_equal_values_stay_equal(value, holes):
    raw = torch.full((1, 5, 6), value)
    if holes:
        raw[0, 1, 2] = raw[0, 3, 3] = NAN
    pixels, low, high = stretch(raw, (53, 47), Style())
    assert not pixels.any()
    assert low == high == raw[0, 0, 0]


def test_a_map_without_a_finite_value_has_no_scale():
    maps = torch.stack([torch.full((3, 4), NAN), torch.arange(12.0).view(3, 4)])
    pixels, low, high = stretch(maps, (30, 40), Style("signed"))
    assert not pixels[0].any()
    assert low.isnan().tolist() == high.isnan().tolist() == [True, False]


@pytest.mark.parametrize(("have", "wanted"), [(1, 5), (7, 224), (9, 20), (20, 9), (13, 13)])
def test_nearest_resizing_equals_that_of_pillow(have, wanted):
    from PIL import Image

    row = Image.fromarray(np.arange(have, dtype=np.uint8)[None])
    assert nearest(have, wanted).tolist() == np.asarray(row.resize((wanted, 1), Image.Resampling.NEAREST))[0].tolist()


def test_half_precision_is_computed_in_float32():
    raw = random(2, 7, 7).half()
    assert torch.equal(heat_and_ends(raw, (56, 56))[0], heat_and_ends(raw.float(), (56, 56))[0])


def test_a_signed_map_is_not_changed():
    raw = random(2, 7, 7)
    before = raw.clone()
    heat_and_ends(raw, (7, 7))[0].fill_(9)
    assert torch.equal(raw, before)


@pytest.mark.parametrize("limits", [None, (0.5, 2.0)])
@pytest.mark.parametrize("size", [(7, 9), (14, 27), (15, 20), (56, 36)])
def test_the_ends_of_a_heat_map_are_values_of_the_drawn_map(size, limits):
    raw = torch.randn(5, 7, 9, generator=torch.Generator().manual_seed(0)) + torch.arange(5)[:, None, None]
    heat, low, high = heat_and_ends(raw, size, limits=limits)
    enlarged = interpolate(raw.relu()[:, None], size, mode="bilinear", align_corners=False)[:, 0]
    expected = enlarged if limits is None else enlarged.clamp(*limits)
    drawn = heat * (high - low)[:, None, None] + low[:, None, None]
    torch.testing.assert_close(drawn, expected, rtol=0, atol=2e-6)
    if limits is None:
        torch.testing.assert_close(high, enlarged.amax((1, 2)))


def test_both_ends_of_a_constant_map_are_its_value():
    assert [ends.tolist() for ends in heat_and_ends(torch.full((1, 2, 2), 3.0), (4, 4))[1:]] == [[3.0], [3.0]]


def test_a_mark_is_white_on_black_around_its_point_and_nowhere_else():
    grey = np.full((96, 96, 3), 128, np.uint8)
    marked = mark_position(grey, 40.5, 20.5)
    changed = (marked != grey).any(2)
    rows, columns = changed.nonzero()
    assert (rows.mean(), columns.mean()) == (40, 20)
    assert {0, 255} <= set(marked[changed].ravel().tolist())
    assert not changed[40, 20]
    assert (grey == 128).all()


@pytest.mark.parametrize("centres", [None, Centres.spread((64, 48), (16, 12))])
def test_a_map_with_more_positions_than_pixels_loses_none(centres):
    """As the first layer of a detector that enlarges a picture of 16 pixels: a box speaks at few positions."""
    raw = torch.zeros(64, 48)
    raw[32, 20] = 3.0  # between those that are nearest to the centres of pixels
    expected = np.asarray(Image.fromarray(raw.numpy()).resize((12, 16), Image.Resampling.BOX))
    heat, _, high = heat_and_ends(raw[None], (16, 12), centres)
    np.testing.assert_allclose(heat[0], expected / expected.max(), atol=1e-6)
    assert high.item() == pytest.approx(expected.max())
    levels, _, _ = stretch(raw[None], (16, 12), Style(), centres=centres)
    assert levels[0].argmax() == expected.argmax()
