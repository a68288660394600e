"""Centred kernel alignment, against the definition of the estimator, written out."""

from itertools import permutations

import numpy as np
import pytest

from fmapviz.features.diff.cka import Alignment, gram_of


def aligned(x, y):
    alignment = Alignment(1, 1)
    alignment.add([x], [y])
    return float(alignment.matrix[0, 0])


def u_statistic(x, y):
    """Return HSIC as the mean of its kernel over all ordered choices of four images (Song et al., 2012, equation 6)."""
    k, l = x @ x.T, y @ y.T  # noqa: E741
    total, count = 0.0, 0
    for i, j, q, r in permutations(range(len(x)), 4):
        total += k[i, j] * l[i, j] + k[i, j] * l[q, r] - 2 * k[i, j] * l[i, q]
        count += 1
    return total / count


def features(images, channels, seed=0):
    return np.random.default_rng(seed).normal(size=(images, channels))


def test_cka_is_the_u_statistic():
    x, y = features(6, 3), features(6, 4, seed=1)
    hsic = (gram_of(x) * gram_of(y)).sum() / (6 * 3)
    assert hsic == pytest.approx(u_statistic(x, y), rel=1e-10)
    expected = u_statistic(x, y) / np.sqrt(u_statistic(x, x) * u_statistic(y, y))
    assert aligned(x, y) == pytest.approx(expected, rel=1e-10)


def test_layers_equal_up_to_rotation_scale_and_mean_are_aligned():
    x = features(30, 8)
    rotation, _ = np.linalg.qr(features(8, 8, seed=1))
    for other in (x, 3 * x @ rotation + 100, x[:, ::-1]):
        assert aligned(x, other) == pytest.approx(1, abs=1e-9)
    stretched = x * np.arange(1, 9) ** 2
    assert aligned(x, stretched) < 0.9  # no linear map at all


def test_more_channels_than_images_are_not_aligned():
    x, y = features(200, 2048), features(200, 2048, seed=1)
    centre = np.eye(200) - 1 / 200
    k, l = centre @ (x @ x.T) @ centre, centre @ (y @ y.T) @ centre  # noqa: E741
    biased = (k * l).sum() / np.sqrt((k * k).sum() * (l * l).sum())
    assert biased > 0.88
    assert abs(aligned(x, y)) < 0.05


def test_several_batches_have_the_estimate_of_one():
    x = features(512, 6)
    y = np.tanh(x @ features(6, 10, seed=1)) + features(512, 10, seed=2)
    batches = Alignment(1, 1)
    for part in (slice(0, 128), slice(128, 256), slice(256, 384), slice(384, 512)):
        batches.add([x[part]], [y[part]])
    assert batches.matrix[0, 0] == pytest.approx(aligned(x, y), abs=0.03)
    assert 0.1 < aligned(x, y) < 0.9


def test_columns_that_are_not_finite_are_ignored_and_a_constant_layer_has_no_cka():
    x = features(10, 4)
    holed = np.column_stack([x, np.full(10, np.nan)])
    assert aligned(holed, x) == pytest.approx(1, abs=1e-9)
    assert np.isnan(aligned(np.ones((10, 3)), x))


def test_each_pair_of_layers_has_its_own_cka():
    layers = [features(20, 5, seed=seed) for seed in range(3)]
    alignment = Alignment(3, 2)
    alignment.add(layers, layers[1:])
    assert alignment.matrix.shape == (3, 2)
    assert alignment.matrix[1, 0] == pytest.approx(1)
    assert alignment.matrix[2, 1] == pytest.approx(1)
    assert alignment.matrix[0, 1] == pytest.approx(aligned(layers[0], layers[2]))
