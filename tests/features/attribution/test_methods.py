"""The formulas, against arithmetic on a linear network and captum's."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from cases import thorough
from torch import nn

from fmapviz.features.attribution.integrated_gradients import integrate
from fmapviz.features.attribution.occlusion import occlude, starts
from fmapviz.features.attribution.rise import make_mask, weigh
from fmapviz.features.attribution.smoothgrad import smooth
from fmapviz.observe.image_seed import ImageSeed


def image_of(*shape, seed=0):
    return torch.randn(1, *shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 8, 5, stride=2)
    return nn.Sequential(conv, nn.SiLU(), nn.Conv2d(8, 6, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()


def scores_of(network, target=2, together=3):
    """Run a few copies at once, as `ImagePasses.scores` does."""

    def scores(copies):
        copies = iter(copies)
        while chunk := list(itertools.islice(copies, together)):
            with torch.no_grad():
                yield from network(torch.cat(chunk))[:, target].tolist()

    return scores


def gradient_of(network, target=2):
    def gradient(copy):
        copy = copy.clone().requires_grad_()
        return torch.autograd.grad(network(copy)[:, target].sum(), copy)[0]

    return gradient


def linear(image, seed=3):
    weights = image_of(*image.shape[1:], seed=seed)
    return weights, lambda copies: (float((weights * copy).sum()) for copy in copies)


# --- integrated gradients


@pytest.mark.parametrize("steps", [1, *thorough(2, 32)])
def test_integrated_gradients_of_a_linear_network_are_its_weights_times_what_the_image_adds(steps):
    image, baseline = image_of(3, 6, 7), image_of(3, 6, 7, seed=1)
    weights, _ = linear(image)
    found = integrate(image, lambda _: weights, baseline, steps=steps)
    torch.testing.assert_close(found, (weights * (image - baseline)).double())


@pytest.mark.parametrize("steps", [5, *thorough(2, 32)])
def test_integrated_gradients_equal_captums(network, steps):
    from extras import captum

    image, baseline = image_of(3, 24, 20), image_of(3, 24, 20, seed=1)
    theirs = captum.IntegratedGradients(network).attribute(image, baseline, target=2, n_steps=steps, method="riemann_middle")
    found = integrate(image, gradient_of(network), baseline, steps=steps)
    torch.testing.assert_close(found.float(), theirs, rtol=1e-4, atol=1e-6)


def test_integrated_gradients_add_up_to_the_rise_of_the_score_as_steps_grow(network):
    image, baseline = 3 * image_of(3, 24, 20), torch.zeros(1, 3, 24, 20)
    with torch.no_grad():
        rise = float((network(image) - network(baseline))[0, 2])
    found = [integrate(image, gradient_of(network), baseline, steps=steps) for steps in (1, 4, 16, 64)]
    gaps = [abs(float(each.sum()) - rise) for each in found]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-3 * abs(rise)


def test_nothing_is_integrated_if_the_score_does_not_depend_on_the_image():
    assert integrate(image_of(3, 4, 4), lambda _: None, torch.zeros(1, 3, 4, 4), steps=3) is None


# --- occlusion


@pytest.mark.parametrize(("side", "patch", "stride"), [(10, 4, 3), (10, 4, 4), (7, 7, 2), (5, 1, 1), (9, 3, 2)])
def test_patches_cover_each_pixel_and_end_at_the_border(side, patch, stride):
    found = starts(side, patch, stride)
    assert found[0] == 0
    assert found[-1] == side - patch
    assert {pixel for start in found for pixel in range(start, start + patch)} == {*range(side)}
    assert all(0 < after - before <= stride for before, after in itertools.pairwise(found))


def test_occlusion_of_a_linear_network_is_in_closed_form():
    image, baseline = image_of(3, 7, 9), image_of(3, 7, 9, seed=1)
    weights, scores = linear(image)
    added = (weights * (image - baseline)).sum(1)[0].numpy()
    expected, counts = np.zeros((7, 9)), np.zeros((7, 9))
    for top, left in itertools.product((0, 2, 4), (0, 2, 4, 6)):
        expected[top : top + 3, left : left + 3] += added[top : top + 3, left : left + 3].sum()
        counts[top : top + 3, left : left + 3] += 1
    found = occlude(image, scores, baseline, patch=3, stride=2)
    np.testing.assert_allclose(found.numpy(), expected / counts, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("patch", "stride"), [(8, 4), *thorough((4, 4), (24, 8))])
def test_occlusion_equals_captums_where_patches_fit(network, patch, stride):
    from extras import captum

    image, baseline = image_of(3, 24, 32), image_of(3, 24, 32, seed=1)
    with torch.no_grad():
        theirs = captum.Occlusion(network).attribute(
            image, (3, patch, patch), strides=(3, stride, stride), baselines=baseline, target=2
        )
    found = occlude(image, scores_of(network), baseline, patch=patch, stride=stride)
    torch.testing.assert_close(found, theirs[0, 0], rtol=1e-4, atol=1e-6)


# --- smoothgrad


@pytest.mark.parametrize("samples", [3, *thorough(1, 32)])
def test_smoothgrad_without_noise_is_saliency_bit_for_bit(network, samples):
    image = image_of(3, 24, 20)
    found = smooth(image, gradient_of(network), sigma=0.0, samples=samples)
    assert torch.equal(found, gradient_of(network)(image).abs().amax(1)[0])


def test_smoothgrad_is_the_mean_of_captums_saliency_over_the_same_copies(network):
    from extras import captum

    image, copies = image_of(3, 24, 20), []

    def gradient(copy):
        copies.append(copy)
        return gradient_of(network)(copy)

    found = smooth(image, gradient, sigma=0.3, samples=4)
    theirs = captum.Saliency(network).attribute(torch.cat(copies).requires_grad_(), target=2).amax(1).mean(0)
    torch.testing.assert_close(found, theirs)
    noise = (torch.cat(copies) - image) / 0.3
    assert abs(float(noise.mean())) < 0.05
    assert float(noise.std()) == pytest.approx(1, abs=0.05)
    assert not torch.equal(noise[0], noise[1])


# --- rise


@pytest.mark.thorough
def test_the_expectation_of_rise_for_a_linear_network_is_in_closed_form():
    """A mask is a weighted mean of independent cells, so the mean product of two of its pixels is known."""
    size, cells, shown, samples = (6, 6), 3, 0.4, 6000
    image, baseline = image_of(2, *size), torch.zeros(1, 2, *size)
    weights, scores = linear(image)
    added = (weights * image).sum(1).flatten().double()
    side = -(-size[0] // cells)
    spread = torch.eye(cells * cells).view(-1, 1, cells, cells)  # what each cell contributes to each pixel
    spread = nn.functional.interpolate(spread, ((cells + 1) * side,) * 2, mode="bilinear")[:, 0].double()
    expected = torch.zeros(36, dtype=torch.float64)
    for top, left in itertools.product(range(side), repeat=2):
        own = spread[:, top : top + size[0], left : left + size[1]].flatten(1)
        products = shown * (1 - shown) * own.T @ own + shown**2  # the shares of a pixel sum to 1
        expected += products @ added / shown / side**2
    found = weigh(image, scores, baseline, samples=samples, cells=cells, shown=shown)
    assert (found.flatten() - expected).abs().max() < 5 * added.abs().sum() / samples**0.5
    assert np.corrcoef(found.flatten(), expected)[0, 1] > 0.98


def test_a_mask_is_enlarged_shifted_and_shown_by_half():
    masks = torch.stack([make_mask(np.random.default_rng(k), (20, 31), cells=7, shown=0.5) for k in range(300)])
    assert masks.shape == (300, 20, 31)
    assert float(masks.min()) == 0
    assert float(masks.max()) == 1
    assert (masks.mean(0) - 0.5).abs().max() < 0.13
    assert float((masks - masks.round()).abs().mean()) > 0.05  # bilinear, not in steps


# --- random numbers, memory


def test_samples_depend_on_the_pixels_and_their_number_only():
    image = image_of(3, 8, 8)
    drawn = {number: ImageSeed(image).numbers(number).random(4).tolist() for number in (3, 0, 1)}
    again = ImageSeed(image.clone().double())
    assert all(again.numbers(number).random(4).tolist() == drawn[number] for number in (0, 1, 3))
    assert len({*map(tuple, drawn.values())}) == 3
    image[0, 0, 0, 0] += 1
    assert ImageSeed(image).numbers(0).random(4).tolist() != drawn[0]


@pytest.mark.parametrize("together", [1, 8])
def test_only_as_many_copies_are_made_ahead_as_are_passed_together(together):
    image, ahead = image_of(1, 4, 4), {"made": 0, "most": 0, "read": 0}

    def scores(copies):
        def noted():
            for copy in copies:
                ahead["made"] += 1
                yield copy

        left = noted()
        while chunk := list(itertools.islice(left, together)):
            for copy in chunk:
                ahead["most"] = max(ahead["most"], ahead["made"] - ahead["read"])
                ahead["read"] += 1
                yield float(copy.sum())

    weigh(image, scores, torch.zeros_like(image), samples=200)
    occlude(image, scores, torch.zeros_like(image), patch=1, stride=1)
    assert ahead == {"made": 217, "most": together, "read": 217}
