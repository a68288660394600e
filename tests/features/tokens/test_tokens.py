"""Cosines, clusters, foreground and matches, against torch, scikit-learn and NumPy."""

from __future__ import annotations

from itertools import pairwise

import extras
import numpy as np
import pytest
import torch
from cases import thorough

from fmapviz.core.centres import Centres
from fmapviz.features.tokens.clusters import UNKNOWN, cluster_colours, colour_labels, find_centres, find_labels
from fmapviz.features.tokens.components import border, fit, separate
from fmapviz.features.tokens.correspondence import draw_matches
from fmapviz.features.tokens.matches import MOST_PAIRS, Pair, averaged, choose_pairs, match
from fmapviz.features.tokens.sample import Sample
from fmapviz.features.tokens.vectors import cosines, direction_at, vectors_of

SCALES = (1.0, 1e-30, 1e30)


def maps_of(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


# --- cosines


@pytest.mark.parametrize("scale", SCALES)
def test_cosines_equal_torchs(scale):
    maps = maps_of(2, 24, 7, 9)
    expected = torch.nn.functional.cosine_similarity(maps, maps[:, :, 3:4, 5:6], dim=1)
    scaled = maps * scale
    found = cosines(scaled, direction_at(scaled, 3, 5))
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.allclose(found[:, 3, 5], torch.ones(2), atol=1e-6)
    assert (found <= 1).all()
    assert (found[:, 3, 5, None, None] >= found - 1e-6).all()


def test_zeros_and_values_that_are_not_finite_have_no_direction():
    maps = maps_of(1, 5, 3, 4)
    maps[0, :, 0, 1] = 0
    maps[0, 2, 1, 1] = float("nan")
    maps[0, 3, 2, 2] = float("inf")
    found = cosines(maps, direction_at(maps, 0, 0))[0]
    assert found[0, 1] == 0
    assert found.isnan().nonzero().tolist() == [[1, 1], [2, 2]]
    assert cosines(maps, direction_at(maps, 1, 1)).isnan().all()  # a seed without a direction
    assert not cosines(maps, direction_at(maps, 0, 1))[0][found.isfinite()].any()  # a seed of zeros


def test_a_channel_without_a_finite_value_is_ignored():
    maps = maps_of(1, 5, 3, 4)
    broken = torch.cat([maps, torch.full((1, 1, 3, 4), torch.nan)], 1)
    assert torch.allclose(cosines(broken, direction_at(broken, 1, 2)), cosines(maps, direction_at(maps, 1, 2)), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_half_precision_is_accepted(dtype):
    maps = maps_of(1, 8, 4, 4).to(dtype)
    expected = torch.nn.functional.cosine_similarity(maps.double(), maps[:, :, :1, :1].double(), dim=1)
    assert torch.allclose(cosines(maps, direction_at(maps, 0, 0)).double(), expected, atol=1e-6)


# --- clusters


def planted(clusters, count, channels=32, noise=0.15, seed=0):
    chance = np.random.default_rng(seed)
    directions = np.linalg.qr(chance.normal(size=(channels, channels)))[0][:clusters]
    labels = chance.integers(0, clusters, count)
    lengths = chance.uniform(0.1, 100, (count, 1))
    vectors = (directions[labels] + noise * chance.normal(size=(count, channels)) / channels**0.5) * lengths
    return torch.from_numpy(vectors.astype(np.float32)), labels


def labels_of(vectors, centres):
    return find_labels(vectors.mT[None, :, None, :], centres)[0, 0].numpy()


@pytest.mark.thorough
@pytest.mark.parametrize(("clusters", "count"), [(2, 50), (6, 900), *thorough((12, 3000), (20, 4096))])
def test_planted_clusters_are_found_for_vectors_of_any_length(clusters, count):
    vectors, labels = planted(clusters, count)
    centres = find_centres(vectors, clusters)
    found = labels_of(vectors, centres)
    assert extras.metrics.adjusted_rand_score(labels, found) == 1
    sizes = np.bincount(found, minlength=clusters)
    assert all(one >= other for one, other in pairwise(sizes))  # the largest first
    assert torch.equal(find_centres(vectors, clusters), centres)
    # Without the division by the length, the same algorithm does not find them: the lengths hide them.
    plain = extras.cluster.KMeans(clusters, n_init=3, random_state=0).fit(vectors.numpy()).labels_
    assert extras.metrics.adjusted_rand_score(labels, plain) < 0.9


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("channels", "clusters"), [(16, 6), (64, 3), (128, 12), (384, 6)])
def test_the_sum_of_squares_is_within_one_percent_of_scikit_learns_best_of_ten(channels, clusters):
    chance = np.random.default_rng(channels)
    vectors = np.maximum(chance.normal(size=(2000, channels)) @ chance.normal(size=(channels, channels)), 0)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    best = extras.cluster.KMeans(clusters, n_init=10, random_state=0).fit(units).inertia_
    centres = find_centres(torch.from_numpy(vectors.astype(np.float32)), clusters).double().numpy()
    found = ((units[:, None] - centres[None]) ** 2).sum(2).min(1).sum()
    assert found <= 1.01 * best


def test_fewer_directions_than_clusters_form_fewer_clusters():
    vectors = torch.tensor([[1.0, 0], [2, 0], [3, 0], [0, 5], [0, 0.1]])
    centres = find_centres(vectors, 6)
    assert labels_of(vectors, centres).tolist() == [0, 0, 0, 1, 1]
    assert len(find_centres(torch.zeros(4, 3), 6)) == 1


def test_the_number_of_threads_is_restored():
    before = torch.get_num_threads()
    find_centres(maps_of(30, 4), 3)
    assert torch.get_num_threads() == before


def test_positions_that_are_not_finite_are_a_checkerboard():
    maps = maps_of(1, 4, 6, 6)
    maps[0, 1, 2, 3] = float("nan")
    labels = find_labels(maps, find_centres(maps_of(50, 4, seed=1), 3))[0].numpy()
    assert (labels == UNKNOWN).nonzero() == (2, 3)
    pixels = colour_labels(labels, (12, 12))
    assert {tuple(each) for each in pixels[4:6, 6:8].reshape(-1, 3).tolist()} <= {(0, 0, 0), (255, 255, 255)}
    assert np.array_equal(pixels[0, 0], cluster_colours()[labels[0, 0]])


def test_the_colours_of_clusters_differ():
    colours = cluster_colours().astype(int)
    assert len(colours) == 20
    distance = np.abs(colours[:, None] - colours[None]).sum(2)
    assert distance[~np.eye(20, dtype=bool)].min() > 40


# --- a sample of vectors


def test_a_sample_is_the_same_in_any_order_and_grouping_and_bounded():
    images = {f"{number:064x}": maps_of(1, 3000, 14, 14, seed=number).numpy() for number in range(1, 13)}
    samples = []
    for names in (list(images), list(images)[::-1]):
        sample = Sample(3000)
        for name in names:
            sample.add(images[name], digest=name)
        samples.append(sample)
    one, other = samples
    assert one.vectors.shape == (1024, 3000)
    assert np.array_equal(one.vectors, other.vectors)
    assert np.array_equal(one.at_border, other.at_border)
    assert 0.2 < one.at_border.mean() < 0.33  # 52 of 196
    _, counts = np.unique(
        [next(name for name, maps in images.items() if (maps[0, 0] == each[0]).any()) for each in one.vectors],
        return_counts=True,
    )
    assert len(counts) == 12
    assert counts.min() > 50  # of 85 on average


def test_a_sample_holds_all_of_few_vectors():
    maps = maps_of(2, 5, 6, 7)
    maps[0, 2, 1, 1] = float("inf")
    sample = Sample(5)
    sample.add(maps.numpy(), digest="1f")
    expected = maps.movedim(1, 3).reshape(-1, 5)
    expected = expected[expected.isfinite().all(1)]
    assert len(sample.vectors) == 83
    assert np.array_equal(np.sort(sample.vectors, 0), np.sort(expected.numpy(), 0))
    assert sample.at_border.sum() == 2 * 22


# --- foreground


@pytest.mark.parametrize("sign", [1, -1])
def test_the_foreground_is_the_side_away_from_the_border(sign):
    maps = 0.05 * maps_of(16, 12, 14)
    maps[3, 4:9, 5:11] += 4 * sign
    mask = separate(maps.flatten(1), border(12, 14)).mask(maps[None])[0]
    expected = torch.zeros(12, 14, dtype=torch.bool)
    expected[4:9, 5:11] = True
    assert torch.equal(mask, expected)


@pytest.mark.thorough
def test_the_components_equal_scikit_learns_of_the_foreground():
    maps = maps_of(6, 15, 15) * torch.tensor([3.0, 2, 1, 0.5, 0.4, 0.3])[:, None, None]
    maps[0, 5:10, 5:10] += 60
    split = separate(maps.flatten(1), border(15, 15))
    inside = maps[:, 5:10, 5:10].flatten(1).mT.numpy()
    expected = extras.decomposition.PCA(3).fit(inside)
    cosine = np.abs((split.basis.components.numpy() * expected.components_).sum(1))
    assert cosine.min() > 1 - 1e-5
    everything = fit(maps.flatten(1))
    assert abs((everything.components[0].numpy() * expected.components_[0]).sum()) < 0.999  # not the same as without


def test_equal_positions_have_no_foreground():
    maps = torch.ones(4, 5, 5)
    assert not separate(maps.flatten(1), border(5, 5)).mask(maps[None]).any()


# --- matches


def test_matches_equal_those_of_numpy():
    own, reference = maps_of(1, 16, 9, 11), maps_of(16, 8, 5, seed=1)
    index, cosine, mutual = (each[0].numpy() for each in match(own, reference))
    one, other = (each.reshape(16, -1).T.numpy().astype(float) for each in (own[0], reference))
    one, other = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (one, other))
    products = one @ other.T
    assert np.array_equal(index.ravel(), products.argmax(1))
    assert np.allclose(cosine.ravel(), products.max(1), atol=1e-6)
    assert np.array_equal(mutual.ravel(), products.argmax(0)[products.argmax(1)] == np.arange(99))


def test_more_positions_than_a_block_are_matched():
    own = maps_of(1, 8, 40, 40)
    index, _, mutual = match(own, own[0])
    assert torch.equal(index[0].flatten(), torch.arange(1600))
    assert mutual.all()


def test_positions_that_are_not_finite_match_nothing():
    own, reference = maps_of(1, 4, 3, 3), maps_of(4, 3, 3, seed=1)
    own[0, 0, 1, 1] = float("nan")
    reference[2, 0, 2] = float("inf")
    index, cosine, mutual = (each[0] for each in match(own, reference))
    assert (index[1, 1], mutual[1, 1]) == (-1, False)
    assert cosine[1, 1].isnan()
    assert not (index == 2).any()


def test_large_maps_are_averaged():
    maps = maps_of(1, 3, 128, 96)
    assert torch.allclose(averaged(maps), torch.nn.functional.avg_pool2d(maps, 2), atol=1e-6)
    assert averaged(maps_of(1, 3, 500, 90)).shape == (1, 3, 125, 22)
    assert torch.equal(averaged(maps_of(1, 3, 64, 64)), maps_of(1, 3, 64, 64))


def spread(side):
    return Centres.spread((30, 30), (side, side))


def test_pairs_are_spread_and_sorted_by_similarity():
    own = maps_of(1, 32, 30, 30)
    index, cosine, mutual = (each[0].numpy() for each in match(own, own[0] + 0.3 * maps_of(32, 30, 30, seed=3)))
    pairs = choose_pairs(index.astype(np.int32), cosine, mutual, theirs=spread(300), ours=spread(240))
    assert len(pairs) == MOST_PAIRS
    assert all(one.cosine >= other.cosine for one, other in pairwise(pairs))
    assert pairs[0].cosine == cosine[mutual].max()
    for number, one in enumerate(pairs):
        for other in pairs[:number]:
            assert np.hypot(one.ours[0] - other.ours[0], one.ours[1] - other.ours[1]) >= 240 / MOST_PAIRS**0.5 / 3
            assert np.hypot(one.theirs[0] - other.theirs[0], one.theirs[1] - other.theirs[1]) >= 300 / MOST_PAIRS**0.5 / 3


def test_equal_matches_are_spread_over_the_picture():
    index, alike = np.arange(900, dtype=np.int32).reshape(30, 30), np.ones((30, 30), np.float32)
    pairs = choose_pairs(index, alike, alike > 0, theirs=spread(300), ours=spread(300))
    quarters = {(pair.ours[0] > 150, pair.ours[1] > 150) for pair in pairs}
    assert len(quarters) == 4
    assert all(pair.ours == pair.theirs for pair in pairs)


# --- pictures


def test_matches_are_drawn_at_their_positions():
    picture = np.full((100, 80), 200, np.uint8)
    pair = Pair((50.0, 40.0), (25.0, 20.0), 0.9, mutual=True)
    page = draw_matches((pair,), picture, picture, scale=1).astype(int)
    assert page.shape == (400, 2 * 320 + 12, 3)
    coloured = np.abs(page - page[..., :1]).sum(2) > 60
    for row, column in ((200, 160), (100, 332 + 80)):
        assert coloured[row, column]
    assert not coloured[:90].any()
    assert not coloured[300:].any()


def test_vectors_keep_their_direction():
    maps = maps_of(1, 6, 2, 3)
    units = vectors_of(maps).units
    assert torch.allclose(units.norm(dim=1), torch.ones(1, 6), atol=1e-6)
    assert torch.allclose(units * maps.flatten(2).norm(dim=1, keepdim=True), maps.flatten(2), atol=1e-5)
