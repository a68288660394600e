"""Principal components are those of a full singular value decomposition, piece by piece too."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fmapviz.options import Style
from fmapviz.principal import Covariance, fit, paint
from fmapviz.shapes import NotAMapError
from fmapviz.tiling import Shared, measure
from fmapviz.views import pca

NAN, INF = torch.nan, torch.inf
SHAPES = [(1, 30), (2, 50), (3, 700), (64, 3136), (200, 500), (500, 200), (512, 784), (2048, 49), (5, 2), (7, 3)]


def random_numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def places_with(deviations, channels, count, *, seed=0):
    """Make `(C, n)` with these deviations along orthogonal directions, and a mean."""
    rank = min(channels, count - 1)
    directions = torch.linalg.qr(random_numbers(channels, rank, seed=seed)).Q
    numbers = random_numbers(count, rank, seed=seed + 1)
    along = torch.linalg.qr(numbers - numbers.mean(0)).Q * count**0.5
    places = directions * deviations(torch.arange(rank)) @ along.mT
    return (places + random_numbers(channels, 1, seed=seed + 2)).float()


def falling(number):
    return 5 * 0.7**number


def reference(places):
    """The whole decomposition, by NumPy: mean, up to three components and deviations, projections of all places."""
    values = places.double().numpy()
    mean = values.mean(1, keepdims=True)
    vectors, singular, _ = np.linalg.svd(values - mean, full_matrices=False)
    components = vectors.T[:3]
    components *= np.sign(components[range(len(components)), np.abs(components).argmax(1)])[:, None]
    return mean[:, 0], components, singular[:3] / np.sqrt(values.shape[1]), components @ (values - mean)


def assert_basis_of(basis, places, *, tolerance=1e-3):
    """Compare what is seen of it: the projections of all places, in deviations."""
    mean, components, deviations, projected = reference(places)
    count = min(len(components), places.shape[1] - 1)
    assert {basis.mean.dtype, basis.components.dtype, basis.deviations.dtype} == {torch.float32}
    assert (basis.mean.shape, basis.components.shape, basis.deviations.shape) == ((len(mean),), (3, len(mean)), (3,))
    assert np.allclose(basis.mean, mean, rtol=1e-6, atol=1e-6)
    assert np.allclose(basis.deviations[:count], deviations[:count], rtol=1e-4)
    own = basis.components.double().numpy() @ (places.double().numpy() - mean[:, None])
    away = (own[:count] - projected[:count]) / deviations[:count, None]
    assert np.sqrt((away**2).mean(1)).max() < tolerance
    assert np.allclose(np.linalg.norm(basis.components[:count], axis=1), 1, atol=1e-5)
    assert not basis.components[count:].any()
    assert not basis.deviations[count:].any()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_basis_is_that_of_a_full_decomposition(shape):
    places = places_with(falling, *shape)
    assert_basis_of(fit(places), places)


@pytest.mark.parametrize("shape", [(512, 784), (300, 200)], ids=str)
def test_of_a_large_matrix_eigenvalues_that_differ_by_a_tenth_are_told_apart(shape):
    places = places_with(lambda number: torch.where(number < 3, 1 - number / 10, 0.7 - number / 1000).sqrt(), *shape)
    assert_basis_of(fit(places), places)


def test_a_large_first_deviation_does_not_hide_the_others():
    places = places_with(lambda number: torch.where(number == 0, 1e4, 0.5**number), 256, 400)
    assert_basis_of(fit(places), places, tolerance=1e-2)


def test_where_directions_are_open_the_deviations_are_not():
    places = places_with(lambda number: torch.where(number < 10, 2.0, 0.1), 300, 400)
    basis = fit(places)
    assert np.allclose(basis.deviations, 2, rtol=1e-3)
    assert np.allclose(basis.components @ basis.components.T, np.eye(3), atol=1e-4)


def test_images_of_a_batch_are_fitted_together():
    places = places_with(falling, 16, 3 * 5 * 4)
    maps = places.view(16, 3, 5, 4).movedim(1, 0)
    assert_basis_of(fit(maps), places)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_any_floating_type_will_do(dtype):
    places = places_with(falling, 20, 300).to(dtype)
    assert_basis_of(fit(places), places)
    maps = places.view(1, 20, 15, 20)
    assert torch.equal(paint(maps, fit(maps)), paint(maps.float(), fit(places.float())))


def test_the_mean_may_be_far_larger_than_the_deviations():
    places = places_with(falling, 20, 300) + 10000
    assert_basis_of(fit(places), places)


def test_nothing_is_left_to_chance():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    maps = random_numbers(1, 300, 16, 25).relu().float()
    first, second = fit(maps), fit(maps.clone())
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.components, second.components)
    assert torch.equal(first.deviations, second.deviations)


# --- piece by piece


@pytest.mark.parametrize("channels", [1, 2, 10, 160])
def test_a_basis_of_pieces_is_that_of_the_whole(channels):
    places = places_with(falling, channels, 700)
    pieces = torch.split(places, [300, 1, 200, 199], 1)
    whole, turned, merged = Covariance(), Covariance(), Covariance()
    for piece in pieces:
        whole.add(piece)
        each = Covariance()
        each.add(piece[None, :, :, None])
        merged.merge(each)
    for piece in reversed(pieces):
        turned.add(piece)
    for covariance in (whole, turned, merged):
        assert_basis_of(covariance.basis(), places)
    pixels = [paint(places[None, :, :, None], covariance.basis()).int() for covariance in (whole, turned, merged)]
    assert (pixels[0] - pixels[1]).abs().max() <= 1
    assert (pixels[0] - pixels[2]).abs().max() <= 1


def test_pieces_of_different_means_have_the_covariance_between_them():
    places = torch.cat([places_with(falling, 8, 50) + 100, places_with(falling, 8, 150, seed=9) - 30], 1)
    covariance = Covariance()
    for piece in torch.split(places, 50, 1):
        covariance.add(piece)
    assert_basis_of(covariance.basis(), places)


def test_of_nothing_there_is_no_basis():
    covariance = Covariance()
    assert covariance.basis() is None
    covariance.merge(Covariance())
    assert covariance.basis() is None
    covariance.add(torch.full((4, 5), NAN))
    assert not covariance.basis().deviations.any()
    places = places_with(falling, 4, 50)
    covariance.add(places)
    covariance.add(torch.full((4, 5), INF))
    assert_basis_of(covariance.basis(), places)


# --- pictures


def painted(places):
    """What NumPy and matplotlib's norm make of it, exactly, on a scale of 0 to 255."""
    from matplotlib.colors import Normalize

    _, _, deviations, projected = reference(places)
    return Normalize(-2.5, 2.5, clip=True)(projected / deviations[:, None]) * 255


@pytest.mark.parametrize("channels", [3, 64, 300])
def test_colours_are_deviations(channels):
    places = places_with(falling, channels, 400)
    pixels = paint(places.view(1, channels, 16, 25), fit(places))
    assert (pixels.dtype, pixels.shape) == (torch.uint8, (1, 16, 25, 3))
    away = np.abs(pixels.reshape(400, 3).T.numpy() - painted(places))
    assert away.max() < 0.5 + 255 / 5 * 1e-3
    assert {0, 255} <= set(pixels.flatten().tolist())


def test_each_image_of_a_batch_is_painted_by_the_same_basis():
    maps = places_with(falling, 12, 2 * 30).view(12, 2, 5, 6).movedim(1, 0)
    basis = fit(maps)
    assert torch.equal(paint(maps, basis), torch.cat([paint(image[None], basis) for image in maps]))


@pytest.mark.parametrize("value", [0.0, 0.1, -1234.567, 1e30])
@pytest.mark.parametrize("shape", [(1, 5, 4, 6), (1, 30, 3, 3), (2, 3, 1, 1), (1, 200, 13, 11)], ids=str)
def test_maps_that_do_not_vary_are_grey(value, shape):
    maps = torch.full(shape, value)
    covariance = Covariance()
    covariance.add(maps)
    covariance.add(maps)
    for basis in (fit(maps), covariance.basis()):
        assert not basis.deviations.any()
        assert not basis.components.any()
        assert (paint(maps, basis) == 128).all()


@pytest.mark.parametrize("channels", [3, 10, 150])
def test_a_direction_that_is_not_there_is_grey(channels):
    one = torch.linspace(-1, 1, 400)
    places = torch.linspace(0.1, 1, channels)[:, None] * one + 0.3
    pixels = paint(places.view(1, channels, 20, 20), fit(places))
    assert (pixels[..., 1:] == 128).all()
    assert pixels[..., 0].unique().numel() > 100


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("constant", [False, True])
def test_a_place_that_is_not_finite_is_a_checkerboards_and_has_no_say(bad, constant):
    places = torch.full((9, 60), 2.5) if constant else places_with(falling, 9, 60)
    broken = places.clone()
    broken[3, 7] = broken[8, 50] = bad  # of ten in a row: row 0, column 7, and row 5, column 0
    broken[0, 8] = bad
    good = [number for number in range(60) if number not in {7, 8, 50}]
    basis, expected = fit(broken), fit(places[:, good])
    assert torch.equal(basis.components, expected.components)
    pixels = paint(broken.view(1, 9, 6, 10), basis).reshape(60, 3)
    assert pixels[[7, 8, 50]].tolist() == [[255] * 3, [0] * 3, [255] * 3]
    assert torch.equal(pixels[good], paint(places[:, good].view(1, 9, 3, 19), expected).reshape(57, 3))


@pytest.mark.parametrize(("size", "square"), [((3, 5), 1), ((56, 63), 1), ((64, 64), 2), ((10, 320), 10)])
def test_without_a_finite_place_all_is_a_checkerboard_that_can_be_seen(size, square):
    maps = torch.full((2, 4, *size), NAN)
    rows, columns = np.indices(size) // square
    expected = torch.from_numpy((rows + columns) % 2 * 255)[None, :, :, None].expand(2, *size, 3)
    assert torch.equal(paint(maps, fit(maps)).long(), expected)


@pytest.mark.parametrize("exponent", [-100, -20, 20, 100])
def test_large_and_small_values_look_alike(exponent):
    maps = places_with(falling, 24, 12 * 11).view(1, 24, 12, 11)
    away = paint(maps * 2.0**exponent, fit(maps * 2.0**exponent)).int() - paint(maps, fit(maps)).int()
    assert away.abs().max() <= 1


# --- the view


def test_each_image_is_fitted_alone():
    maps = places_with(falling, 10, 2 * 63).view(10, 2, 7, 9).movedim(1, 0)
    pixels = pca.draw(maps, measure(maps), Style())
    assert torch.equal(pixels, torch.cat([paint(image[None], fit(image[None])) for image in maps]))
    assert not torch.equal(pixels, paint(maps, fit(maps)))


def test_a_shared_basis_is_the_same_for_all():
    maps = places_with(falling, 10, 2 * 63).view(10, 2, 7, 9).movedim(1, 0)
    ranges = measure(maps)
    for shared in (Shared(0.0, 1.0, fit(maps)), Shared(0.0, 1.0)):
        with_shared = type(ranges)(ranges.low, ranges.high, ranges.mean, shared=shared)
        alone = shared.basis is None
        expected = pca.draw(maps, ranges, Style()) if alone else paint(maps, shared.basis)
        assert torch.equal(pca.draw(maps, with_shared, Style()), expected)


def test_a_vector_has_no_picture():
    vector = torch.randn(2, 10)
    with pytest.raises(NotAMapError, match=r"^is a vector, not a map$"):
        pca.draw(vector, measure(vector[:, :, None, None]), Style())


def test_a_channel_without_finite_values_takes_no_part():
    maps = torch.randn(1, 6, 9, 11, generator=torch.Generator().manual_seed(3))
    maps[0, 1, 2:4, 5] = torch.inf
    spoilt = maps.clone()
    spoilt[0, 4] = torch.nan
    rest = [0, 1, 2, 3, 5]
    basis = fit(spoilt)
    assert torch.allclose(basis.deviations, fit(maps[:, rest]).deviations, rtol=1e-5)
    assert basis.components[:, 4].tolist() == [0, 0, 0]
    assert torch.equal(paint(spoilt, basis), paint(maps[:, rest], fit(maps[:, rest])))
