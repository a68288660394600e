"""The bars of a histogram are NumPy's counts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from cases import each_once

from fmapviz.core.drawings import Histogram
from fmapviz.draw.histogram import bin_edges, lay_out_histogram
from fmapviz.draw.layout import WHITE, draw

BAR, LEFT, WIDTH, HEIGHT = 70, 68, 448, 160
RNG = np.random.default_rng(0)
NORMAL = RNG.normal(size=20000)
VALUES = {
    "normal": NORMAL * 1.3 + 0.4,
    "negative": -abs(NORMAL) - 3,
    "uniform": RNG.random(5000),
    "tiny": NORMAL * 1e-30,
    "huge": NORMAL * 1e30,
    "whole range of float32": np.array([-3.4e38, 0, 3.4e38]),
    "neighbours": 16777216 + np.arange(3.0),
    "next to one": 1 + np.arange(20) * 1.2e-7,
    "subnormal": np.arange(5) * 1.4e-45,
    "few": np.array([0.0, 0.1, 0.3]),
}


def histogram_of(values, bins=64, *, nonfinite=0):
    low, high = float(values.min()), float(values.max())
    return Histogram(np.histogram(values, bins, (low, high))[0], low, high, nonfinite)


def heights(pixels, bins=64):
    """Return the height of each bar, pixels."""
    (axis,) = np.flatnonzero((pixels[:, LEFT : LEFT + WIDTH] == 120).all(1))
    is_bar = pixels[axis - HEIGHT : axis, LEFT : LEFT + WIDTH] == BAR
    edges = [number * WIDTH // bins for number in range(bins + 1)]
    return np.array([is_bar[:, left:right].sum(0).max() for left, right in pairwise(edges)])


def plot(histogram, title="", note=""):
    return draw(lay_out_histogram(histogram, title=title, note=note), WHITE)


@pytest.mark.parametrize(("name", "bins"), [*((name, 64) for name in VALUES), *(("normal", bins) for bins in (10, 1, 100))])
def test_bar_heights_equal_the_counts_of_numpy(name, bins):
    histogram = histogram_of(VALUES[name], bins)
    pixels = plot(histogram)
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 2
    wanted = np.ceil(histogram.counts * HEIGHT / histogram.counts.max())
    assert np.array_equal(heights(pixels, bins), wanted)


def test_a_rare_value_is_visible():
    counts = np.full(64, 10**9)
    counts[40] = 1
    assert heights(plot(Histogram(counts, 0.0, 1.0, 0)))[40] == 1


@pytest.mark.parametrize("share", [0.2, 0.5, 0.95])
def test_an_outlying_bar_is_cut_and_labelled(share):
    counts = np.arange(64)
    counts[0] = share / (1 - share) * counts.sum()
    histogram = Histogram(counts, 0.0, 1.0, 0)
    pixels = plot(histogram)
    found = heights(pixels)
    top = np.ceil(63 * 1.25)
    assert np.array_equal(found[1:], np.ceil(counts[1:] * HEIGHT / top))
    assert HEIGHT - 8 <= found[0] < HEIGHT  # all but the gap that says so
    half = np.where(np.arange(64) == 0, 63 * 4, counts)  # four times the next: not cut
    uncut = plot(Histogram(half, 0.0, 1.0, 0))
    assert heights(uncut)[0] == HEIGHT
    assert len(pixels) > len(uncut)


@pytest.mark.parametrize("place", [0, 17, 63])
def test_values_in_one_bin_make_one_full_bar(place):
    counts = np.zeros(64, np.int64)
    counts[place] = 9
    found = heights(plot(Histogram(counts, -1.0, 1.0, 0)))
    assert found[place] == HEIGHT
    assert found.sum() == HEIGHT


@pytest.mark.parametrize("value", [0.0, 5.0, -3.25, 1e-30, 3e38, -1e30])
def test_a_constant_is_one_bar_in_the_middle(value):
    counts = np.zeros(64, np.int64)
    counts[32] = 100
    histogram = Histogram(counts, value, value, 0)
    found = heights(plot(histogram))
    assert found[32] == HEIGHT
    assert found.sum() == HEIGHT
    edges = bin_edges(histogram)
    assert (np.diff(edges) > 0).all()
    assert np.histogram([value], edges)[0].tolist() == [0] * 32 + [1] + [0] * 31


@pytest.mark.parametrize("bins", [1, 10, 64])
@pytest.mark.parametrize(("low", "high"), [(-1, 2), (0, 1e-30), (-3e38, 3e38), (5, 5), (0, 0), (-2.5, -2.5)])
def test_bin_edges_equal_numpys(low, high, bins):
    edges = bin_edges(Histogram(np.zeros(bins, np.int64), float(low), float(high), 0))
    assert edges.dtype == np.float64
    assert np.allclose(edges, np.histogram_bin_edges([], bins, (float(low), float(high))), rtol=1e-15, atol=0)


def test_a_histogram_without_finite_values_is_labelled():
    nothing = Histogram(np.zeros(64, np.int64), np.nan, np.nan, 7)
    pixels = plot(nothing)
    assert not heights(pixels).any()
    assert (pixels[60:120, 200:400] < 150).any()
    assert (pixels != 255).any()


def test_nonfinite_values_are_counted_in_the_note():
    histogram, some, more = (histogram_of(NORMAL, nonfinite=count) for count in (0, 1, 2))
    plain, one, two = plot(histogram), plot(some), plot(more)
    assert len(plain) < len(one) == len(two)
    assert np.array_equal(plain[:-10], one[: len(plain) - 10])
    assert not np.array_equal(one, two)


@pytest.mark.parametrize(("low", "high"), [(-1, 3), (-30, 1), (-1e-30, 1e-30), (-2e20, 7e20)])
def test_a_vertical_line_marks_zero(low, high):
    counts = np.zeros(64, np.int64)
    counts[[0, 63]] = 1
    pixels = plot(Histogram(counts, float(low), float(high), 0))
    line = 160
    columns = np.flatnonzero((pixels == line).sum(0) > HEIGHT * 0.9)
    assert len(columns) == 1
    assert abs(columns[0] - LEFT - (0 - low) / (high - low) * (WIDTH - 1)) <= 0.5
    without = plot(Histogram(counts, float(low - low), float(high - low), 0))
    assert not ((without == line).sum(0) > HEIGHT * 0.5).any()


def assert_uncut(pixels):
    for edge in (pixels[:4], pixels[-4:], pixels[:, :2], pixels[:, -1:]):
        assert (edge == 255).all()


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_tick_labels_of_values_stay_on_the_page(values):
    assert_uncut(plot(histogram_of(values), title="conv1", note="a note"))


@pytest.mark.parametrize(("most", "rare"), each_once([10**power for power in range(13)], [1, 3, 5]))
def test_tick_labels_of_shares_stay_on_the_page(most, rare):
    counts = np.zeros(64, np.int64)
    counts[[0, 7]] = most, rare
    assert_uncut(plot(Histogram(counts, 0.0, 1.0, 0)))


@pytest.mark.parametrize("text", ["x" * 5000, "\u4f60" * 500, "\x1b[31m\u202e\ud800", "a b " * 900, "\n\n"], ids=len)
def test_hostile_text_stays_within_its_area(text):
    histogram = histogram_of(NORMAL)
    pixels = plot(histogram, title=text, note=text)
    wanted = np.ceil(histogram.counts * HEIGHT / histogram.counts.max())
    assert np.array_equal(heights(pixels), wanted)
    assert pixels.shape[1] == LEFT + WIDTH + 16
    assert pixels.shape[0] < 350
    assert (pixels[:, -8:] == 255).all()


def test_histograms_are_deterministic_and_show_title_and_note():
    histogram = histogram_of(NORMAL)
    assert np.array_equal(plot(histogram, "a", "b"), plot(histogram, "a", "b"))
    assert not np.array_equal(plot(histogram, "a", "b"), plot(histogram, "c", "b"))
    assert not np.array_equal(plot(histogram, "a", "b"), plot(histogram, "a", "c"))
