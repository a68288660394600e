"""Separate foreground from background by the first principal component, and find the components of the foreground.

Oquab et al., "DINOv2: Learning Robust Visual Features without Supervision", 2023, threshold the first component and compute
the components of what is left. The paper fixes neither the threshold nor the sign. Here the threshold is Otsu's ("A
Threshold Selection Method from Gray-Level Histograms", 1979), and the foreground is the side of it that has fewer positions
at the border of the maps: a subject is rather in the middle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fmapviz.features.tokens.pca import Basis, fit

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Foreground:
    """What separates foreground from background.

    Attributes:
        first: Components of all positions; the first one separates.
        threshold: Of the first component.
        above: Whether the foreground is above the threshold.
        basis: Components of the foreground.
        positions: How many positions of how many it was found of; None: of all.
    """

    first: Basis
    threshold: float
    above: bool
    basis: Basis
    positions: tuple[int, int] | None = None

    def mask(self, maps: Tensor) -> Tensor:
        """Return where the foreground is, boolean `(N, h, w)`, of maps `(N, C, h, w)`."""
        scores = scores_of(maps.detach().float().flatten(2), self.first)
        inside = scores > self.threshold if self.above else scores <= self.threshold
        return inside.view(-1, *maps.shape[2:])


def separate(vectors: Tensor, at_border: Tensor, first: Basis | None = None) -> Foreground:
    """Find the foreground of vectors.

    Args:
        vectors: `(C, n)`, any floating type. Vectors with a value that is NaN or infinite do not count.
        at_border: Which of them are at the border of their map, boolean `(n)`.
        first: The components of these vectors, or of more; None: computed.

    Example:
        >>> maps = torch.zeros(2, 4, 4)
        >>> maps[0, 1:3, 1:3] = 1
        >>> separate(maps.flatten(1), border(4, 4)).mask(maps[None]).sum()
        tensor(4)
    """
    vectors = vectors.detach().float()
    first = first or fit(vectors)
    scores = scores_of(vectors[None], first)[0].double()
    known = scores.isfinite()
    threshold = _otsu(scores[known])
    above = known & (scores > threshold)
    below = known & ~above
    ranks = [(int((side & at_border.to(side.device)).sum()), int(side.sum())) for side in (above, below)]
    is_above = ranks[0] <= ranks[1]
    return Foreground(first, threshold, is_above, fit(vectors[:, above if is_above else below]))


def border(height: int, width: int, device: torch.device | None = None) -> Tensor:
    """Return which positions of a map are at its border, boolean `(height * width)`."""
    inside = torch.zeros(height, width, dtype=torch.bool, device=device)
    inside[1:-1, 1:-1] = True
    return ~inside.flatten()


def scores_of(values: Tensor, basis: Basis) -> Tensor:
    """Return the first component of vectors `(N, C, n)`, float32 `(N, n)`; not finite where a value is not.

    Channels without any finite value count as the mean, unless there is no other.
    """
    mean, direction = basis.mean.to(values.device), basis.components[0].to(values.device)
    silent = ~values.isfinite().any(2, keepdim=True)
    silent &= ~silent.all(1, keepdim=True)
    return direction @ torch.where(silent, 0, values - mean[:, None])


def _otsu(scores: Tensor) -> float:
    """Return the threshold with the largest variance between the scores above and below it, float64 `(n)`."""
    ordered = scores.sort().values
    count = len(ordered)
    if count < 2 or ordered[0] == ordered[-1]:
        return float(ordered[0]) if count else 0.0
    left = torch.arange(1, count, device=ordered.device, dtype=torch.float64)
    sums = ordered.cumsum(0)[:-1]
    means = sums / left - (ordered.sum() - sums) / (count - left)
    between = left * (count - left) * means**2
    at = int(between.where(ordered[1:] > ordered[:-1], -1).argmax())
    return float((ordered[at] + ordered[at + 1]) / 2)
