"""Cluster the directions of channel vectors by k-means, and find the cluster of each position of a map.

Vectors are divided by their lengths first, as Amir et al. do, "Deep ViT Features as Dense Visual Descriptors", 2021: the few
tokens of great length that vision transformers have would be clusters of their own. scikit-learn's KMeans finds the same
clusters; its import alone takes 0.7 s, and it would be the only use of a dependency of 30 MB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fmapviz.render.tokens.vectors import vectors_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    Array = NDArray[np.float64]

_STARTS, _MOST_STEPS = 8, 100
_FIRST_STEPS = 5  # of each start; then only the best one goes on
_TOLERANCE = 1e-4  # of the variance, as in scikit-learn: a smaller move of all centres ends the search
UNKNOWN = -1  # the cluster of a position with a value that is NaN or infinite


def find_centres(vectors: NDArray[np.float32], clusters: int) -> NDArray[np.float32]:
    """Return the centres of clusters of directions, the largest cluster first.

    Lloyd's algorithm, begun with k-means++ (Arthur and Vassilvitskii, "k-means++: The Advantages of Careful Seeding", 2007)
    from several starts with fixed random numbers.

    Args:
        vectors: `(n, C)`, finite.
        clusters: Their number; there are fewer if the vectors have fewer directions.

    Returns:
        Means of vectors of length one, float32 `(K, C)`.

    Example:
        >>> find_centres(np.float32([[2, 0], [5, 0], [0, 3]]), 2)
        array([[1., 0.],
               [0., 1.]], dtype=float32)
    """
    peaks = np.abs(vectors).max(1, keepdims=True).astype(np.float64)
    scaled = vectors / np.where(peaks > 0, peaks, 1)
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    points: Array = scaled / np.where(lengths > 0, lengths, 1)
    squares = (points**2).sum(1)
    tolerance = _TOLERANCE * points.var(0).mean()
    chance = np.random.default_rng(0)
    starts = [_refine(points, squares, _choose(points, clusters, chance), _FIRST_STEPS, tolerance) for _ in range(_STARTS)]
    best = min(starts, key=lambda each: each[1])[0]
    centres, _, labels = _refine(points, squares, best, _MOST_STEPS, tolerance)
    counts = np.bincount(labels, minlength=len(centres))
    order = np.lexsort((*centres.T[::-1], -counts))
    return centres[order][counts[order] > 0].astype(np.float32)


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


def _choose(points: Array, clusters: int, chance: np.random.Generator) -> Array:
    """Choose points far from each other, each the best of several candidates."""
    trials = 2 + int(np.log(clusters))
    chosen = [int(chance.integers(len(points)))]
    nearest = _distances(points, points[chosen])[:, 0]
    while len(chosen) < clusters and nearest.sum() > 1e-12 * len(points):
        limits = np.cumsum(nearest)
        candidates = np.searchsorted(limits, chance.random(trials) * limits[-1]).clip(max=len(points) - 1)
        closer = np.minimum(nearest[:, None], _distances(points, points[candidates]))
        best = int(closer.sum(0).argmin())
        chosen.append(int(candidates[best]))
        nearest = closer[:, best]
    return points[chosen]


def _refine(
    points: Array, squares: Array, centres: Array, steps: int, tolerance: float
) -> tuple[Array, float, NDArray[np.intp]]:
    """Move centres to the means of their points; return them, the sum of squared distances, and the labels."""
    for _ in range(steps):
        nearness = points @ centres.T - (centres**2).sum(1) / 2
        labels = nearness.argmax(1)
        members = np.zeros((len(centres), len(points)))
        members[labels, np.arange(len(points))] = 1
        counts = members.sum(1, keepdims=True)
        moved = np.where(counts > 0, members @ points / np.maximum(counts, 1), centres)
        shift = float(((moved - centres) ** 2).sum())
        centres = moved
        if shift <= tolerance:
            break
    nearness = points @ centres.T - (centres**2).sum(1) / 2
    labels = nearness.argmax(1)
    return centres, float((squares - 2 * nearness[np.arange(len(points)), labels]).sum()), labels


def _distances(points: Array, others: Array) -> Array:
    """Return squared distances of vectors of length one, or zero, `(n, m)`."""
    found: Array = (points**2).sum(1)[:, None] - 2 * points @ others.T + (others**2).sum(1)
    return found.clip(min=0)
