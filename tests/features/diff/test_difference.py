"""The numbers of two networks' values, against NumPy in float64, written out."""

import numpy as np
import pytest
import torch

from fmapviz.features.diff.difference import compare, means_of
from fmapviz.types import DIFFERENCES


def literal(a, b):
    """Return the numbers of two rows of finite values, one by one as their definitions read."""
    a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    d = b - a
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "max_abs": np.abs(d).max(),
            "rms": np.sqrt((d**2).mean()),
            "relative_l2": np.linalg.norm(d) / np.linalg.norm(a),
            "cosine": a @ b / np.linalg.norm(a) / np.linalg.norm(b),
            "pearson": np.corrcoef(a, b)[0, 1],
            "sqnr": 10 * np.log10((a**2).sum() / (d**2).sum()),
            "differing": (a != b).mean(),
            "nonfinite": 0,
        }


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(1, 5, 9, 7), (3, 4, 6, 6), (1, 300, 21, 20), (1, 2, 300, 300), (1, 12), (2, 3, 4, 5, 6)])
def test_differences_follow_their_definitions(shape):
    a, b = noise(*shape), noise(*shape, seed=1)
    b[..., :1] = a[..., :1]  # some positions do not differ
    found = compare(a, b)
    expected = literal(a.numpy(), b.numpy())
    assert found.numbers == pytest.approx(expected, rel=1e-10)
    assert found.channels.shape == (shape[1], len(DIFFERENCES))
    if a[:, 0].numel() > 1:
        for channel in (0, shape[1] - 1):
            own = literal(a[:, channel].numpy(), b[:, channel].numpy())
            assert dict(zip(DIFFERENCES, found.channels[channel], strict=True)) == pytest.approx(own, rel=1e-10)
    for mean, values in zip(found.means, (a, b), strict=True):
        assert mean == pytest.approx(values.double().transpose(0, 1).flatten(1).mean(1).numpy(), rel=1e-12, abs=1e-15)
        assert means_of(values) == pytest.approx(mean, rel=1e-6, abs=1e-7)


def test_equal_values_have_no_difference():
    a = noise(1, 4, 8, 8)
    numbers = compare(a, a.clone()).numbers
    assert numbers == {
        "max_abs": 0, "rms": 0, "relative_l2": 0, "cosine": 1, "pearson": 1, "sqnr": np.inf, "differing": 0, "nonfinite": 0,
    }  # fmt: skip


def test_one_percent_is_40_decibels():
    a = noise(1, 4, 8, 8)
    assert compare(a, 1.01 * a).numbers["sqnr"] == pytest.approx(40, abs=1e-4)
    assert compare(a.double(), 1.01 * a.double()).numbers["sqnr"] == pytest.approx(40, abs=1e-12)


def test_an_offset_of_a_channel_is_the_difference_of_that_channel_only():
    a = noise(1, 6, 9, 9)
    b = a.clone()
    b[:, 2] += 0.25
    channels = compare(a, b).channels
    assert channels[2, :2] == pytest.approx([0.25, 0.25], rel=1e-6)
    others = np.delete(channels, 2, 0)
    assert (others[:, :3] == 0).all()
    assert (others[:, 5] == np.inf).all()


def test_the_correlation_is_accurate_for_large_means():
    a, b = noise(1, 2, 30, 30).double() + 1e6, noise(1, 2, 30, 30, seed=1).double() + 1e6
    found = compare(a, b)
    assert found.numbers["pearson"] == pytest.approx(np.corrcoef(a.numpy().ravel(), b.numpy().ravel())[0, 1], rel=1e-8)
    own = np.corrcoef(a[0, 1].numpy().ravel(), b[0, 1].numpy().ravel())[0, 1]
    assert found.channels[1, DIFFERENCES.index("pearson")] == pytest.approx(own, rel=1e-8)


def test_values_that_are_not_finite_are_counted_and_otherwise_ignored():
    a, b = noise(1, 3, 8, 8), noise(1, 3, 8, 8, seed=1)
    a[0, 0, 0, 0], b[0, 0, 0, 1], a[0, 2, 5, 5], b[0, 2, 5, 5] = np.nan, np.inf, np.nan, np.nan
    usable = (a.isfinite() & b.isfinite()).numpy()
    found = compare(a, b)
    expected = literal(a.numpy()[usable], b.numpy()[usable])
    assert found.numbers == pytest.approx({**expected, "nonfinite": 3, "differing": 1}, rel=1e-10)
    assert found.channels[:, -1].tolist() == [2, 0, 1]
    nothing = compare(torch.full((1, 1, 2, 2), torch.nan), torch.ones(1, 1, 2, 2))
    assert np.isnan(list(nothing.numbers.values())[:6]).all()
    assert np.isnan(means_of(torch.full((1, 1, 2, 2), torch.inf))).all()


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("width", [3, 300], ids=["small", "of several parts"])
def test_nan_differs_from_everything_as_in_numpy(dtype, share, width):
    random = np.random.default_rng(0)
    both = [torch.from_numpy(random.integers(0, 3, (1, 4, width, width)).astype(float)) for _ in range(2)]
    for values in both:
        for odd in (np.nan, np.inf, -np.inf):
            values[torch.from_numpy(random.random(values.shape) < share / 3)] = odd
    hidden = torch.from_numpy(random.random(both[0].shape) < share / 2)
    for values in both:
        values[hidden] = np.nan  # in both
        values[:, 3] = np.nan if share else 1
    a, b = (values.to(dtype) for values in both)
    found = compare(a, b)
    differ = a.double().numpy() != b.double().numpy()
    assert found.numbers["differing"] == pytest.approx(differ.mean(), rel=1e-12)
    assert found.channels[:, DIFFERENCES.index("differing")] == pytest.approx(differ.mean((0, 2, 3)), rel=1e-12)
    assert found.channels[3, DIFFERENCES.index("differing")] == (1 if share else 0)
    nonfinite = ~(np.isfinite(a.double().numpy()) & np.isfinite(b.double().numpy()))
    assert found.channels[:, -1].tolist() == nonfinite.sum((0, 2, 3)).tolist()


def test_zeros_have_the_limits_of_the_numbers():
    zero, one = torch.zeros(1, 1, 4, 4), torch.ones(1, 1, 4, 4)
    from_nothing = compare(zero, one).numbers
    assert (from_nothing["sqnr"], from_nothing["relative_l2"]) == (-np.inf, np.inf)
    assert np.isnan(from_nothing["cosine"])
    assert np.isnan(from_nothing["pearson"])
    assert compare(zero, zero).numbers["sqnr"] == np.inf


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8])
def test_other_types_are_compared_by_value(dtype):
    a = (10 * noise(1, 3, 8, 8)).clamp(0, 100)
    b = a.to(dtype)
    assert compare(a, b).numbers == pytest.approx(literal(a.numpy(), b.double().numpy()), rel=1e-10)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_values_are_dequantized_for_comparison():
    a = noise(1, 3, 8, 8)
    b = torch.quantize_per_tensor(a, 0.1, 0, torch.qint8)
    numbers = compare(a, b).numbers
    assert numbers == pytest.approx(literal(a.numpy(), b.dequantize().numpy()), rel=1e-10)
    assert numbers["max_abs"] <= 0.05 + 1e-6
