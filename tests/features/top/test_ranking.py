"""The ranking of images by a channel's value equals a plain sort, for any division of the images."""

from __future__ import annotations

from functools import reduce
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fmapviz.images.find import in_natural_order
from fmapviz.store.aggregates.channels import FeatureMapInfo
from fmapviz.store.aggregates.ranker import Ranker, rank_block
from fmapviz.store.aggregates.ranking import BINS, BYS, bin_edges, count_values, merge, no_images
from fmapviz.store.aggregates.unit_ranking import read_ranking, write_rankings

NAN = np.nan
CHANNELS = 2
MAPS = (FeatureMapInfo("conv", "output", "", "Conv2d", CHANNELS, 0),)

# Images as (number in the name, digest); equal digests have equal values, as equal inputs have. Most values are equal.
VALUES = st.lists(st.sampled_from([0.0, -0.0, 1.0, NAN]), min_size=CHANNELS, max_size=CHANNELS)
IMAGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), min_size=1, max_size=12, unique_by=lambda each: each[0])
TABLE = st.lists(VALUES, min_size=13, max_size=13)


def rank(images, table, by="max", k=3, *, block=100):
    ranker = Ranker(by, k)
    for position, (number, digest) in enumerate(images):
        ranker.add(MAPS, f"x{number}.png", digest, np.array(table[digest], np.float32))
        if position % block == block - 1:
            ranker._rank()
    return ranker.finish()


def entries(ranking):
    pairs = [zip(row, values, strict=True) for row, values in zip(ranking.places, ranking.values, strict=True)]
    return [[(ranking.names[place], float(value)) for place, value in row if place >= 0] for row in pairs]


def expected(images, table, by, k):
    """Sort with NumPy, and keep each input once."""
    found = []
    for channel in range(CHANNELS):
        known = sorted(
            (each for each in images if not np.isnan(table[each[1]][channel])),
            key=lambda each: in_natural_order([f"x{each[0]}.png"]),
        )
        values = np.array([table[digest][channel] for _, digest in known], np.float32)
        order = np.lexsort((np.arange(len(known)), values if by == "min" else -values))
        unique = {known[place][1]: place for place in reversed(order.tolist())}
        first = [place for place in order.tolist() if unique[known[place][1]] == place][:k]
        found.append([(f"x{known[place][0]}.png", float(values[place])) for place in first])
    return found


@settings(deadline=None, max_examples=50)
@given(images=IMAGES, table=TABLE, by=st.sampled_from(BYS), k=st.integers(1, 5), block=st.integers(1, 5))
def test_a_ranking_is_that_of_a_sort(images, table, by, k, block):
    assert entries(rank(images, table, by, k, block=block)) == expected(images, table, by, k)


@pytest.mark.thorough
@settings(deadline=None, max_examples=25)
@given(images=IMAGES, table=TABLE, cuts=st.lists(st.integers(0, 2), min_size=12, max_size=12), k=st.integers(1, 4))
def test_merges_are_associative_commutative_and_idempotent(images, table, cuts, k):
    parts = [rank([each for each, cut in zip(images, cuts, strict=False) if cut == part], table, k=k) for part in range(3)]
    whole = entries(rank(images, table, k=k))
    for order in permutations(parts):
        assert entries(reduce(merge, order)) == whole
    first, second, third = parts
    assert entries(merge(first, merge(second, third))) == whole
    assert entries(merge(merge(first, first), merge(merge(second, third), first))) == whole


@pytest.mark.thorough
@settings(deadline=None)
@given(images=IMAGES, table=TABLE, cut=st.integers(0, 12))
def test_the_ranking_does_not_depend_on_the_division(images, table, cut):
    whole, merged = rank(images, table), merge(rank(images[:cut], table), rank(images[cut:], table))
    for name in ("worst", "images", "excluded", "counts", "inputs", "copies", "constant"):
        np.testing.assert_array_equal(getattr(merged, name), getattr(whole, name))
    assert (whole.images + whole.excluded == len(images)).all()
    assert (whole.counts.sum(1) == whole.images).all()
    digests = [digest for _, digest in images]
    assert whole.copies.tolist() == [digests.count(digest) for digest in whole.digests.tolist()]


@pytest.mark.thorough
@settings(deadline=None, max_examples=10)
@given(images=IMAGES, table=TABLE, k=st.integers(1, 16))
@example(images=[(1, 1)], table=[[NAN, NAN]] * 13, k=1)
def test_a_ranking_is_read_as_it_was_written_for_a_shard(tmp_path_factory, images, table, k):
    directory = tmp_path_factory.mktemp("shard")
    write_rankings(directory, [rank(images, table, by, 16) for by in BYS])
    for by in BYS:
        read, whole = read_ranking(directory, by, k), rank(images, table, by, k)
        assert entries(read) == entries(whole)
        assert read.maps == whole.maps
        assert [each.index for each in read.maps] == [0]
        for name in ("worst", "images", "excluded", "counts", "inputs", "digests"):
            np.testing.assert_array_equal(getattr(read, name), getattr(whole, name))


def test_topk_of_torch_orders_ties_otherwise():
    """It is documented to leave the order of equal values open, so that it may differ between devices and versions."""
    images = [(number, number) for number in range(13)]
    table = [[float(number % 2), 0.0] for number in range(13)]
    ours = [name for name, _ in entries(rank(images, table))[0]]
    assert ours == ["x1.png", "x3.png", "x5.png"]
    assert torch.topk(torch.zeros(100), 3).indices.tolist() != [0, 1, 2]
    stable = torch.sort(torch.tensor([value for value, _ in table]), descending=True, stable=True).indices[:3].tolist()
    assert [f"x{number}.png" for number in stable] == ours


def test_numbers_in_names_are_sorted_as_numbers():
    images = [(10, 1), (9, 2), (2, 3)]
    assert [name for name, _ in entries(rank(images, [[1.0, 1.0]] * 13))[0]] == ["x2.png", "x9.png", "x10.png"]


def test_a_layer_that_some_images_do_not_run_is_ranked_among_the_others():
    one, other = FeatureMapInfo("a", "output", "", "Conv2d", 1, 0), FeatureMapInfo("b", "output", "", "Conv2d", 1, 1)
    first = rank_block(np.array([[1.0, 2.0]], np.float32), "max", 2, (one, other), (["x"], [1]))
    second = rank_block(np.array([[5.0]], np.float32), "max", 2, (one,), (["y"], [2]))
    for merged in (merge(first, second), merge(second, first)):
        assert merged.maps == (one, other)
        assert entries(merged) == [[("y", 5.0), ("x", 1.0)], [("x", 2.0)]]
        assert merged.images.tolist() == [2, 1]
        assert merged.excluded.tolist() == [0, 0]


def test_only_several_images_make_a_channel_constant():
    assert not rank([(1, 1)], [[1.0, 1.0]] * 13).constant.any()
    assert rank([(1, 1), (2, 2)], [[1.0, 1.0]] * 13).constant.all()
    assert rank([(1, 1), (2, 2)], [[1.0, float(number)] for number in range(13)]).constant.tolist() == [True, False]


def test_negative_zero_is_zero():
    ranking = rank([(1, 1), (2, 2)], [[-0.0, -0.0], [0.0, -0.0], [-0.0, 0.0], *[[0.0, 0.0]] * 10])
    assert not np.signbit(ranking.values[:, :2]).any()
    assert ranking.constant.all()


def test_rankings_by_other_values_cannot_be_merged():
    with pytest.raises(ValueError, match="max"):
        merge(no_images("max", 3), no_images("min", 3))
    with pytest.raises(ValueError, match="4"):
        merge(no_images("max", 3), no_images("max", 4))


def test_values_are_counted_between_the_edges():
    values = np.concatenate([np.random.default_rng(0).normal(0, 10, 500), [0.0, 1e9, -1e9, 1e-30, 4096.0, -1.0]])
    (counts,) = counted = np.zeros((1, BINS), np.int32)
    count_values(values.astype(np.float32)[:, None], counted)
    edges = bin_edges()
    assert counts.sum() == len(values)
    inner = values[(abs(values) < 4096) & (abs(values) >= 2**-24)].astype(np.float32)
    magnitudes = np.histogram(abs(inner), edges[BINS // 2 + 1 :])[0]
    assert (counts[BINS // 2 + 1 :] + counts[BINS // 2 - 1 :: -1])[1:-1].tolist() == magnitudes[1:-1].tolist()
    assert counts[BINS // 2] == 2  # zero, and what is as good as zero
