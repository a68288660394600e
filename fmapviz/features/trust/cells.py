"""Divide an image into cells, and order them by a map."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fmapviz.core.drawings import Size

SIDE = 20  # cells in each row and column
STEPS = 20  # of a curve


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Rectangles of almost equal area that cover an image.

    Attributes:
        numbers: The cell of each pixel, int64 `(H, W)`.
        areas: Share of the image of each cell, float64 `(K,)`.

    Example:
        >>> Cells.of((1, 4), side=2).numbers
        array([[0, 0, 1, 1]])
    """

    numbers: NDArray[np.int64]
    areas: NDArray[np.float64]

    @classmethod
    def of(cls, size: Size, side: int = SIDE) -> Cells:
        """Return the cells of an image.

        Args:
            size: Its height and width, pixels.
            side: Cells in each row and column, or as many as there are pixels.
        """
        rows, columns = (np.arange(length) * min(length, side) // length for length in size)
        numbers = rows[:, None] * min(size[1], side) + columns
        return cls(numbers, np.bincount(numbers.ravel()) / numbers.size)

    @property
    def count(self) -> int:
        """K."""
        return len(self.areas)

    def means(self, values: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the mean of a map, `(H, W)`, in each cell, float64 `(K,)`."""
        sums = np.bincount(self.numbers.ravel(), values.astype(np.float64).ravel())
        return sums / (self.areas * self.numbers.size)

    def ends(self, steps: int = STEPS) -> NDArray[np.int64]:
        """Return the number of cells that are removed at each step, from 0 to K, int64 `(S + 1,)`; no step is empty."""
        steps = min(steps, self.count)
        return (np.arange(steps + 1) * self.count + steps // 2) // steps

    def removed(self, order: NDArray[np.int64], steps: int = STEPS) -> NDArray[np.float64]:
        """Return the share of the image that is removed at each step, float64 `(S + 1,)`.

        Example:
            >>> Cells.of((1, 4), side=2).removed(np.array([1, 0])).tolist()
            [0.0, 0.5, 1.0]
        """
        shares: NDArray[np.float64] = np.concatenate([[0.0], np.cumsum(self.areas[order])])[self.ends(steps)]
        return shares


def order_of(means: NDArray[np.float64], ties: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of cells, the highest first.

    Args:
        means: Of a map, `(K,)`.
        ties: An order of all cells, in which equal ones come.

    Example:
        >>> order_of(np.array([1.0, 3.0, 1.0]), np.array([2, 0, 1]))
        array([1, 2, 0])
    """
    return ties[np.argsort(-means[ties], kind="stable")]


def rank_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return Spearman's rank correlation; equal values share the mean of their ranks.

    Returns:
        From -1 to 1; NaN if all values of one of them are equal.

    Example:
        >>> rank_correlation(np.array([1.0, 2.0, 8.0]), np.array([3.0, 5.0, 6.0]))
        1.0
    """
    first, second = (_ranks(each) - (len(each) - 1) / 2 for each in (one, other))
    size = float(np.sqrt((first @ first) * (second @ second)))
    return min(1.0, max(-1.0, float(first @ second) / size)) if size else nan


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    means = np.cumsum(counts) - (counts + 1) / 2
    ranks: NDArray[np.float64] = means[group.ravel()]
    return ranks
