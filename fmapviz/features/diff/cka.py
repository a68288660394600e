"""Compare two layers by their outputs for the same images: linear centred kernel alignment.

Kornblith et al., "Similarity of Neural Network Representations Revisited", 2019, with the unbiased estimator of HSIC in
Song et al., "Feature Selection via Dependence Maximization", 2012, equation 5. The plain estimator approaches 1 where there
are more features than images, whatever these are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

LEAST = 4  # images: the estimator divides by N - 3
BATCH = 128  # images of one estimate; the mean of several is an estimate too, see Nguyen et al., 2021, section 3.2


def gram_of(features: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the inner products of images, without the diagonal and centred as the estimator requires.

    Args:
        features: Any range, `(N, C)` of N images, at least four. Columns with a value that is not finite take no part.

    Returns:
        float64 `(N, N)`, U-centred as in Székely and Rizzo, "Partial distance correlation", 2014: the sum of the products of
        two such matrices, over `N (N - 3)`, is the unbiased estimate of HSIC.
    """
    usable = features[:, np.isfinite(features).all(0)].astype(np.float64)
    centred = usable - usable.mean(0)  # changes nothing but the rounding
    gram: NDArray[np.float64] = centred @ centred.T
    np.fill_diagonal(gram, 0)
    count = len(gram)
    rows = gram.sum(1) / (count - 2)
    gram += gram.sum() / ((count - 1) * (count - 2)) - rows[:, None] - rows[None]
    np.fill_diagonal(gram, 0)
    return gram


class Alignment:
    """Accumulates the alignment of the layers of one network with those of another.

    Args:
        first: Number of layers of A.
        second: Number of layers of B.

    Example:
        >>> images = np.random.default_rng(0).normal(size=(8, 5))
        >>> alignment = Alignment(1, 1)
        >>> alignment.add([images], [images])
        >>> alignment.matrix.round(9).tolist()
        [[1.0]]
    """

    def __init__(self, first: int, second: int) -> None:
        self._shared = np.zeros((first, second))
        self._own = np.zeros(first), np.zeros(second)

    def add(self, first: Sequence[NDArray[np.floating]], second: Sequence[NDArray[np.floating]]) -> None:
        """Add a batch of images: the features of each layer, `(N, C)`, of both networks."""
        others = [gram_of(features) for features in second]
        for at, features in enumerate(first):
            gram = gram_of(features)
            weight = 1 / (len(gram) - 3)  # larger batches count more
            self._own[0][at] += weight * (gram * gram).sum()
            self._shared[at] += [weight * (gram * other).sum() for other in others]
        self._own[1][:] += [(gram * gram).sum() / (len(gram) - 3) for gram in others]

    @property
    def matrix(self) -> NDArray[np.float64]:
        """The alignments, float64 `(L_A, L_B)`: 1 is the same up to rotation and scale, 0 is unrelated, NaN is constant."""
        with np.errstate(invalid="ignore", divide="ignore"):
            matrix: NDArray[np.float64] = self._shared / np.sqrt(self._own[0][:, None] * self._own[1][None])
        return matrix
