"""Cluster the directions of channel vectors by k-means, and find the cluster of each position of a map.

Vectors are divided by their lengths first, as Amir et al. do, "Deep ViT Features as Dense Visual Descriptors", 2021: the few
tokens of great length that vision transformers have would be clusters of their own. scikit-learn's KMeans finds the same
clusters; its import alone takes 0.7 s, and it would be the only use of a dependency of 30 MB.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

import torch

from fmapviz.features.tokens.vectors import vectors_of

if TYPE_CHECKING:
    from torch import Tensor

_STARTS, _MOST_STEPS = 8, 100
_FIRST, _FIRST_STEPS = 1024, 5  # vectors and steps of each start; then only the best one goes on, with all vectors
_TOLERANCE = 1e-4  # of the variance, as in scikit-learn: a smaller move of all centres ends the search
_NOISE = 1e-6  # a squared distance that may be a rounding error
UNKNOWN = -1  # the cluster of a position with a value that is NaN or infinite


def find_centres(vectors: Tensor, clusters: int) -> Tensor:
    """Return the centres of clusters of directions, the largest cluster first.

    Lloyd's algorithm, begun with k-means++ (Arthur and Vassilvitskii, "k-means++: The Advantages of Careful Seeding", 2007)
    from several starts with fixed random numbers. One core does it: several would mostly wait for each other.

    Args:
        vectors: float32 `(n, C)`, finite, in random order.
        clusters: Their number; there are fewer if the vectors have fewer directions.

    Returns:
        Means of vectors of length one, float32 `(K, C)`.

    Example:
        >>> find_centres(torch.tensor([[2.0, 0.0], [5.0, 0.0], [0.0, 3.0]]), 2)
        tensor([[1., 0.],
                [0., 1.]])
    """
    cores = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        points = vectors_of(vectors.mT[None, :, :, None]).units[0].mT.contiguous()
        tolerance = _TOLERANCE * float(points.var(0, correction=0).mean())
        chance = torch.Generator().manual_seed(0)
        some = points[:_FIRST]
        starts = [_refine(some, _choose(some, clusters, chance), _FIRST_STEPS, tolerance) for _ in range(_STARTS)]
        centres, _ = _refine(points, min(starts, key=lambda each: each[1])[0], _MOST_STEPS, tolerance)
        labels = _nearness(points, centres).argmax(1)
        counts = torch.bincount(labels, minlength=len(centres))
        kept = sorted(range(len(centres)), key=lambda each: (-int(counts[each]), centres[each].tolist()))
        return centres[[each for each in kept if counts[each]]]
    finally:
        torch.set_num_threads(cores)


def find_labels(maps: Tensor, centres: Tensor) -> Tensor:
    """Return the number of the nearest centre for each position, int16 `(N, h, w)`, or `UNKNOWN`.

    Args:
        maps: `(N, C, h, w)`, any floating type, any range.
        centres: `(K, C)`, as `find_centres` returns them.
    """
    centres = centres.to(maps.device)
    vectors = vectors_of(maps)
    nearness = vectors.products(centres) - centres.square().sum(1)[:, None] / 2
    labels = nearness.nan_to_num(nan=0).argmax(1).where(vectors.lengths.isfinite(), UNKNOWN)
    return labels.to(torch.int16).view(-1, *maps.shape[2:])


def _choose(points: Tensor, clusters: int, chance: torch.Generator) -> Tensor:
    """Choose points far from each other, each the best of several candidates."""
    trials = 2 + int(log(clusters))
    chosen = [int(torch.randint(len(points), (1,), generator=chance))]
    nearest = _distances(points, points[chosen])[:, 0]
    while len(chosen) < clusters and float(nearest.max()) > _NOISE:
        limits = nearest.double().cumsum(0)
        drawn = torch.rand(trials, generator=chance, dtype=torch.float64) * limits[-1]
        candidates = torch.searchsorted(limits, drawn).clamp_(max=len(points) - 1)
        closer = torch.minimum(nearest[:, None], _distances(points, points[candidates]))
        best = int(closer.sum(0).argmin())
        chosen.append(int(candidates[best]))
        nearest = closer[:, best]
    return points[chosen]


def _refine(points: Tensor, centres: Tensor, steps: int, tolerance: float) -> tuple[Tensor, float]:
    """Move centres to the means of their points; return them, and the sum of squared distances, less a constant."""
    for _ in range(steps):
        labels = _nearness(points, centres).argmax(1)
        members = torch.zeros(len(centres), len(points))
        members[labels, torch.arange(len(points))] = 1
        counts = members.sum(1, keepdim=True)
        moved = (members @ points / counts.clamp(min=1)).where(counts > 0, centres)
        shift = float((moved - centres).square().sum())
        centres = moved
        if shift <= tolerance:
            break
    return centres, -2 * float(_nearness(points, centres).amax(1).sum(dtype=torch.float64))


def _nearness(points: Tensor, centres: Tensor) -> Tensor:
    """Return how near points are to centres: half of the negative squared distance, but for a constant of each point."""
    return points @ centres.mT - centres.square().sum(1) / 2


def _distances(points: Tensor, others: Tensor) -> Tensor:
    """Return the squared distances of vectors of length one, or zero, `(n, m)`."""
    squares = points.square().sum(1)[:, None], others.square().sum(1)
    return (squares[0] - 2 * points @ others.mT + squares[1]).clamp_(min=0)
