"""Principal components equal those of a full singular value decomposition, also if accumulated in pieces."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import thorough
from results import as_given, pixels_of

from fmapviz.config import Style
from fmapviz.draw.grid import Shared, measure
from fmapviz.features.tokens import pca
from fmapviz.features.tokens.components import Covariance, fit, paint
from fmapviz.features.tokens.shared import SharedVectors
from fmapviz.observe.reshape import NotAMapError

NAN, INF = torch.nan, torch.inf
SHAPES = [(1, 30), (2, 50), (3, 700), (64, 3136), (500, 200), (2048, 49), (5, 2), (7, 3)]


def random_numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def vectors_with(deviations, channels, count, *, seed=0):
    """Return `(C, n)` with these deviations along orthogonal directions, and a mean."""
    rank = min(channels, count - 1)
    directions = torch.linalg.qr(random_numbers(channels, rank, seed=seed)).Q
    numbers = random_numbers(count, rank, seed=seed + 1)
    along = torch.linalg.qr(numbers - numbers.mean(0)).Q * count**0.5
    vectors = directions * deviations(torch.arange(rank)) @ along.mT
    return (vectors + random_numbers(channels, 1, seed=seed + 2)).float()


def falling(number):
    return 5 * 0.7**number


def reference(vectors):
    """Return NumPy's full decomposition: mean, up to three components and deviations, projections of all vectors."""
    values = vectors.double().numpy()
    mean = values.mean(1, keepdims=True)
    vectors, singular, _ = np.linalg.svd(values - mean, full_matrices=False)
    components = vectors.T[:3]
    components *= np.sign(components[range(len(components)), np.abs(components).argmax(1)])[:, None]
    return mean[:, 0], components, singular[:3] / np.sqrt(values.shape[1]), components @ (values - mean)


def assert_basis_of(basis, vectors, *, tolerance=1e-3):
    """Compare the projections of all vectors, in deviations."""
    mean, components, deviations, projected = reference(vectors)
    count = min(len(components), vectors.shape[1] - 1)
    assert {basis.mean.dtype, basis.components.dtype, basis.deviations.dtype} == {torch.float32}
    assert (basis.mean.shape, basis.components.shape, basis.deviations.shape) == ((len(mean),), (3, len(mean)), (3,))
    assert np.allclose(basis.mean, mean, rtol=1e-6, atol=1e-6)
    assert np.allclose(basis.deviations[:count], deviations[:count], rtol=1e-4)
    own = basis.components.double().numpy() @ (vectors.double().numpy() - mean[:, None])
    away = (own[:count] - projected[:count]) / deviations[:count, None]
    assert np.sqrt((away**2).mean(1)).max() < tolerance
    assert np.allclose(np.linalg.norm(basis.components[:count], axis=1), 1, atol=1e-5)
    assert not basis.components[count:].any()
    assert not basis.deviations[count:].any()


@pytest.mark.parametrize("shape", [*SHAPES, *thorough(((200, 500),), ((512, 784),))], ids=str)
def test_a_basis_equals_a_full_decomposition(shape):
    vectors = vectors_with(falling, *shape)
    assert_basis_of(fit(vectors), vectors)


@pytest.mark.parametrize("shape", [(300, 200), *thorough(((512, 784),))], ids=str)
def test_eigenvalues_of_large_matrices_that_differ_by_a_tenth_are_separated(shape):
    vectors = vectors_with(lambda number: torch.where(number < 3, 1 - number / 10, 0.7 - number / 1000).sqrt(), *shape)
    assert_basis_of(fit(vectors), vectors)


def test_a_large_first_deviation_does_not_hide_the_others():
    vectors = vectors_with(lambda number: torch.where(number == 0, 1e4, 0.5**number), 256, 400)
    assert_basis_of(fit(vectors), vectors, tolerance=1e-2)


def test_deviations_are_right_where_directions_are_degenerate():
    vectors = vectors_with(lambda number: torch.where(number < 10, 2.0, 0.1), 300, 400)
    basis = fit(vectors)
    assert np.allclose(basis.deviations, 2, rtol=1e-3)
    assert np.allclose(basis.components @ basis.components.T, np.eye(3), atol=1e-4)


def test_images_of_a_batch_are_fitted_together():
    vectors = vectors_with(falling, 16, 3 * 5 * 4)
    maps = vectors.view(16, 3, 5, 4).movedim(1, 0)
    assert_basis_of(fit(maps), vectors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_any_floating_type_is_accepted(dtype):
    vectors = vectors_with(falling, 20, 300).to(dtype)
    assert_basis_of(fit(vectors), vectors)
    maps = vectors.view(1, 20, 15, 20)
    assert torch.equal(paint(maps, fit(maps)), paint(maps.float(), fit(vectors.float())))


def test_the_mean_may_be_far_larger_than_the_deviations():
    vectors = vectors_with(falling, 20, 300) + 10000
    assert_basis_of(fit(vectors), vectors)


def test_fit_is_deterministic_and_keeps_the_random_state():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    maps = random_numbers(1, 300, 16, 25).relu().float()
    first, second = fit(maps), fit(maps.clone())
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.components, second.components)
    assert torch.equal(first.deviations, second.deviations)


# --- piece by piece


@pytest.mark.parametrize("channels", [1, 2, 10, 160])
def test_a_basis_of_pieces_equals_that_of_the_whole(channels):
    vectors = vectors_with(falling, channels, 700)
    pieces = torch.split(vectors, [300, 1, 200, 199], 1)
    whole, turned = Covariance(), Covariance()
    for piece in pieces:
        whole.add(piece)
    for piece in reversed(pieces):
        turned.add(piece[None, :, :, None])
    for covariance in (whole, turned):
        assert_basis_of(covariance.basis(), vectors)
    pixels = [paint(vectors[None, :, :, None], covariance.basis()).int() for covariance in (whole, turned)]
    assert (pixels[0] - pixels[1]).abs().max() <= 1


def test_pieces_of_different_means_are_combined_exactly():
    vectors = torch.cat([vectors_with(falling, 8, 50) + 100, vectors_with(falling, 8, 150, seed=9) - 30], 1)
    covariance = Covariance()
    for piece in torch.split(vectors, 50, 1):
        covariance.add(piece)
    assert_basis_of(covariance.basis(), vectors)


def test_pieces_without_a_finite_value_take_no_part():
    covariance = Covariance()
    covariance.add(torch.full((4, 5), NAN))
    assert not covariance.basis().deviations.any()
    vectors = vectors_with(falling, 4, 50)
    covariance.add(vectors)
    covariance.add(torch.full((4, 5), INF))
    assert_basis_of(covariance.basis(), vectors)


# --- pictures


def painted(vectors):
    """Return the exact colours by NumPy and matplotlib's norm, 0..255."""
    from extras import colors

    _, _, deviations, projected = reference(vectors)
    return colors.Normalize(-2.5, 2.5, clip=True)(projected / deviations[:, None]) * 255


@pytest.mark.parametrize("channels", [3, 64, *thorough(300)])
def test_colours_measure_standard_deviations(channels):
    vectors = vectors_with(falling, channels, 400)
    pixels = paint(vectors.view(1, channels, 16, 25), fit(vectors))
    assert (pixels.dtype, pixels.shape) == (torch.uint8, (1, 16, 25, 3))
    away = np.abs(pixels.reshape(400, 3).T.numpy() - painted(vectors))
    assert away.max() < 0.5 + 255 / 5 * 1e-3
    assert {0, 255} <= set(pixels.flatten().tolist())


def test_a_basis_paints_each_image_of_a_batch():
    maps = vectors_with(falling, 12, 2 * 30).view(12, 2, 5, 6).movedim(1, 0)
    basis = fit(maps)
    assert torch.equal(paint(maps, basis), torch.cat([paint(image[None], basis) for image in maps]))


@pytest.mark.sampled
@pytest.mark.parametrize("value", [0.0, 0.1, -1234.567, 1e30])
@pytest.mark.parametrize("shape", [(1, 5, 4, 6), (1, 30, 3, 3), (2, 3, 1, 1), (1, 200, 13, 11)], ids=str)
def test_constant_maps_are_grey(value, shape):
    maps = torch.full(shape, value)
    covariance = Covariance()
    covariance.add(maps)
    covariance.add(maps)
    for basis in (fit(maps), covariance.basis()):
        assert not basis.deviations.any()
        assert not basis.components.any()
        assert (paint(maps, basis) == 128).all()


@pytest.mark.parametrize("channels", [3, 10, 150])
def test_components_beyond_the_rank_are_grey(channels):
    one = torch.linspace(-1, 1, 400)
    vectors = torch.linspace(0.1, 1, channels)[:, None] * one + 0.3
    pixels = paint(vectors.view(1, channels, 20, 20), fit(vectors))
    assert (pixels[..., 1:] == 128).all()
    assert pixels[..., 0].unique().numel() > 100


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("constant", [False, True])
def test_nonfinite_positions_are_checkerboards_and_are_ignored(bad, constant):
    vectors = torch.full((9, 60), 2.5) if constant else vectors_with(falling, 9, 60)
    broken = vectors.clone()
    broken[3, 7] = broken[8, 50] = bad  # of ten in a row: row 0, column 7, and row 5, column 0
    broken[0, 8] = bad
    good = [number for number in range(60) if number not in {7, 8, 50}]
    basis, expected = fit(broken), fit(vectors[:, good])
    assert torch.equal(basis.components, expected.components)
    pixels = paint(broken.view(1, 9, 6, 10), basis).reshape(60, 3)
    assert pixels[[7, 8, 50]].tolist() == [[255] * 3, [0] * 3, [255] * 3]
    assert torch.equal(pixels[good], paint(vectors[:, good].view(1, 9, 3, 19), expected).reshape(57, 3))


@pytest.mark.parametrize(("size", "square"), [((3, 5), 1), ((56, 63), 1), ((64, 64), 2), ((10, 320), 10)])
def test_maps_without_a_finite_value_are_a_visible_checkerboard(size, square):
    maps = torch.full((2, 4, *size), NAN)
    rows, columns = np.indices(size) // square
    expected = torch.from_numpy((rows + columns) % 2 * 255)[None, :, :, None].expand(2, *size, 3)
    assert torch.equal(paint(maps, fit(maps)).long(), expected)


@pytest.mark.parametrize("exponent", [-100, -20, 20, 100])
def test_large_and_small_values_have_equal_colours(exponent):
    maps = vectors_with(falling, 24, 12 * 11).view(1, 24, 12, 11)
    away = paint(maps * 2.0**exponent, fit(maps * 2.0**exponent)).int() - paint(maps, fit(maps)).int()
    assert away.abs().max() <= 1


# --- the view


def test_each_image_has_its_own_basis():
    maps = vectors_with(falling, 10, 2 * 63).view(10, 2, 7, 9).movedim(1, 0)
    pixels = pixels_of(pca.draw(as_given(maps), Style()))
    assert torch.equal(pixels, torch.cat([paint(image[None], fit(image[None])) for image in maps]))
    assert not torch.equal(pixels, paint(maps, fit(maps)))


def test_a_shared_basis_serves_all_images():
    maps = vectors_with(falling, 10, 2 * 63).view(10, 2, 7, 9).movedim(1, 0)
    ranges = measure(maps)
    for basis in (fit(maps), None):
        shared = Shared(0.0, 1.0, SharedVectors(basis) if basis else None)
        with_shared = type(ranges)(ranges.low, ranges.high, ranges.mean, shared=shared)
        expected = paint(maps, basis) if basis else pixels_of(pca.draw(as_given(maps), Style()))
        assert torch.equal(pixels_of(pca.draw(as_given(maps, ranges=with_shared), Style())), expected)


def test_vectors_are_refused():
    vector = torch.randn(2, 10)
    with pytest.raises(NotAMapError, match=r"^is a vector, not a map$"):
        pca.draw(as_given(vector), Style())


def test_channels_without_finite_values_are_ignored():
    maps = torch.randn(1, 6, 9, 11, generator=torch.Generator().manual_seed(3))
    maps[0, 1, 2:4, 5] = torch.inf
    spoilt = maps.clone()
    spoilt[0, 4] = torch.nan
    rest = [0, 1, 2, 3, 5]
    basis = fit(spoilt)
    assert torch.allclose(basis.deviations, fit(maps[:, rest]).deviations, rtol=1e-5)
    assert basis.components[:, 4].tolist() == [0, 0, 0]
    assert torch.equal(paint(spoilt, basis), paint(maps[:, rest], fit(maps[:, rest])))
