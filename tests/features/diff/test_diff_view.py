"""The panels of two networks: A and B by one scale, and B - A by its own, against PyTorch written out."""

import numpy as np
import pytest
import torch
from torchvision.utils import make_grid

from fmapviz.config import Style
from fmapviz.draw.grid import measure
from fmapviz.features.diff import view as diff
from fmapviz.features.diff.difference import compare
from fmapviz.features.diff.panels import SHADES
from fmapviz.features.diff.view import PairMaps
from fmapviz.run.plan import make_plan


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def draw(a, b, style=None):
    channels = compare(a, b).channels
    maps = PairMaps(a, b, vector=False, names=("a", "b"), change=channels[:, 1], largest=channels[:, 0],
                    ranges=(measure(a), measure(b)))  # fmt: skip
    return diff.draw(maps, style or Style())


def grey(values, low, high, columns):
    """Draw with torchvision: levels from 0 to 255 of each channel between its own ends."""
    scaled = torch.stack([(each - lo) / (hi - lo) for each, lo, hi in zip(values[0], low, high, strict=True)])
    return make_grid(scaled[:, None], nrow=columns)[0] * 255


@pytest.mark.parametrize("norm", ["channel", "layer"])
def test_both_networks_are_drawn_on_one_scale(norm):
    a, b = noise(1, 9, 7, 5), 3 * noise(1, 9, 7, 5, seed=1) + 1
    both = torch.cat([a, b])
    low, high = both.amin((0, 2, 3)), both.amax((0, 2, 3))
    if norm == "layer":
        low, high = low.min().expand(9), high.max().expand(9)
    panels = draw(a, b, Style(norm=norm))
    for pixels, values in zip(panels.pixels, (a, b), strict=False):
        expected = grey(values, low, high, 3).numpy() / 2
        assert pixels.shape == expected.shape
        assert np.abs(pixels.astype(float) - expected).max() <= 1
    assert panels.limits == (None if norm == "channel" else (pytest.approx(float(low[0])), pytest.approx(float(high[0]))))


def test_the_difference_has_zero_in_the_middle_and_its_largest_magnitude_at_the_ends():
    a, b = noise(1, 4, 6, 6), noise(1, 4, 6, 6, seed=1)
    b[0, 0] = a[0, 0]
    panels = draw(a, b)
    d = (b - a)[0].double()
    assert panels.largest == pytest.approx(float(d.abs().max()), rel=1e-7)
    expected = make_grid((d / d.abs().max())[:, None], nrow=2, pad_value=-3)[0].numpy()
    inside = expected > -2
    numbers = panels.pixels[2].astype(float)
    assert (numbers[~inside] == 0).all()  # black between the tiles
    assert np.abs(numbers[inside] - (1.5 * SHADES + (SHADES / 2) * expected[inside])).max() <= 1
    assert (panels.pixels[2][2:8, 2:8] == 1.5 * SHADES).all()
    largest = np.unravel_index(np.argmax(np.abs(expected) * inside), expected.shape)
    assert panels.pixels[2][largest] == (2 * SHADES - 1 if expected[largest] > 0 else SHADES)
    assert panels.pixels[2][inside].min() >= SHADES
    assert panels.captions[2] == f"B - A: {-panels.largest:.4g} to {panels.largest:.4g}"


def test_the_reversed_difference_has_mirrored_colours():
    a, b = noise(1, 4, 6, 6), noise(1, 4, 6, 6, seed=1)
    there, back = (draw(*maps).pixels[2].astype(int) for maps in ((a, b), (b, a)))
    inside = there > 0
    assert (np.abs((there + back)[inside] - 3 * SHADES) <= 1).all()


def test_networks_that_do_not_differ_have_no_colour():
    a = noise(1, 4, 6, 6)
    panels = draw(a, a.clone())
    assert set(np.unique(panels.pixels[2])) == {0, 1.5 * SHADES}
    assert np.array_equal(panels.pixels[0], panels.pixels[1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_differences_that_are_not_finite_are_a_checkerboard(bad):
    a, b = noise(1, 1, 6, 6), noise(1, 1, 6, 6, seed=1)
    b[0, 0, :3] = bad
    panels = draw(a, b)
    assert set(np.unique(panels.pixels[2][:3])) == {0, SHADES - 1}
    assert panels.pixels[2][3:].min() >= SHADES
    assert set(np.unique(panels.pixels[1][:3])) == {0, SHADES - 1}
    assert panels.largest == pytest.approx(float((b - a)[0, 0, 3:].abs().max()), rel=1e-7)


def test_the_caption_reports_that_no_value_is_finite():
    a = noise(1, 2, 6, 6)
    assert draw(a, torch.full_like(a, torch.nan)).captions[2] == "B - A: no finite difference"
    assert draw(a, a.clone()).captions[2] == "B - A: 0 everywhere"


def test_a_difference_that_float32_does_not_hold_is_a_checkerboard():
    a, b = torch.full((1, 1, 2, 2), -3e38), torch.full((1, 1, 2, 2), 3e38)
    assert set(np.unique(draw(a, b).pixels[2])) == {0, SHADES - 1}


def test_chosen_channels_have_their_own_range():
    a = noise(1, 6, 5, 5)
    b = a + torch.tensor([0.0, 5, 1, 0, 2, 0])[None, :, None, None]
    panels = draw(a, b, Style(channels="2,4"))
    assert panels.channels == (2, 4)
    assert panels.largest == pytest.approx(2, rel=1e-6)
    assert draw(a, b, Style(channels="top:2:change")).channels == (1, 4)


@pytest.mark.parametrize("shift", [0, 1e3, 1e6, -1e6])
def test_a_range_far_from_zero_is_drawn(shift):
    a, b = noise(1, 4, 6, 6) + shift, noise(1, 4, 6, 6, seed=1) + shift
    low, high = torch.cat([a, b]).amin((0, 2, 3)), torch.cat([a, b]).amax((0, 2, 3))
    for pixels, values in zip(draw(a, b).pixels, (a, b), strict=False):
        assert np.abs(pixels.astype(float) - grey(values, low, high, 2).numpy() / 2).max() <= 1
        assert pixels.max() < SHADES


@pytest.mark.parametrize("scale", [1, 2])
@pytest.mark.parametrize("type_", [torch.float32, torch.bfloat16])
def test_many_channels_are_drawn_like_few(scale, type_):
    """More than are drawn at a time, with an incomplete last row."""
    a, b = noise(1, 70, 40, 40).to(type_), (2 * noise(1, 70, 40, 40, seed=1)).to(type_)
    panels = draw(a, b, Style(scale=scale))
    a, b = (each.float().repeat_interleave(scale, 2).repeat_interleave(scale, 3) for each in (a, b))
    both = torch.cat([a, b])
    low, high = both.amin((0, 2, 3)), both.amax((0, 2, 3))
    for pixels, values in zip(panels.pixels, (a, b), strict=False):
        assert np.abs(pixels.astype(float) - grey(values, low, high, 8).numpy() / 2).max() <= 1
    change = (b - a) / (b - a).abs().max()
    expected = make_grid(change[0][:, None], nrow=8, pad_value=-3)[0].numpy()
    last = expected.shape[0] - 2 - 40 * scale
    expected[last:, 2 + 6 * (40 * scale + 2) :] = -3  # where torchvision leaves tiles out, it fills with its own zeros
    numbers = np.where(expected > -2, 1.5 * SHADES + (SHADES / 2 - 0.25) * expected, 0)
    assert np.abs(panels.pixels[2].astype(float) - numbers).max() <= 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("largest", [3e34, 1e38, 3e38])
def test_a_wide_range_is_drawn_without_an_overflow(largest):
    a = torch.linspace(-1, 1, 16).view(1, 1, 4, 4) * largest
    panels = draw(a, 0.75 * a)
    assert panels.largest == pytest.approx(0.25 * largest, rel=1e-6)
    assert (panels.pixels[2][0, 0], panels.pixels[2][-1, -1]) == (2 * SHADES - 1, SHADES)
    if largest < 3e38:  # twice that is in the range of float32
        assert (panels.pixels[0][0, 0], panels.pixels[0][-1, -1]) == (0, SHADES - 1)


def test_the_plan_is_of_two_networks():
    plan = make_plan(["diff"], targets=(), classes=(), output=None, automatic=True)
    assert (plan.networks, plan.draws["output"]) == (2, {"diff": diff.draw})
