"""Remove and reveal the cells of an image in an order, and read the probability of a class at each step.

Petsiuk et al., "RISE: Randomized Input Sampling for Explanation of Black-box Models", 2018, section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from fmapviz.features.trust.cells import STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.features.trust.cells import Cells

CHANCE = 10  # random orders


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The probability of a class while cells of an image are removed, or revealed, in one order.

    Attributes:
        shares: Of the image that is removed or revealed at each step, float64 `(S + 1,)`, from 0 to 1.
        deletion: The probability while cells of the image are replaced by the baseline, float64 `(S + 1,)`.
        insertion: The probability while cells of the baseline are replaced by the image.
    """

    shares: NDArray[np.float64]
    deletion: NDArray[np.float64]
    insertion: NDArray[np.float64]

    @property
    def deletion_area(self) -> float:
        """The area under `deletion`, by trapezoids; low if the cells that matter come first."""
        return float(np.trapezoid(self.deletion, self.shares))

    @property
    def insertion_area(self) -> float:
        """The area under `insertion`; high if the cells that matter come first."""
        return float(np.trapezoid(self.insertion, self.shares))


def trace(
    image: Tensor,
    weights: Callable[[Iterable[Tensor]], Iterator[float]],
    baseline: Tensor,
    *,
    cells: Cells,
    orders: Sequence[NDArray[np.int64]],
    steps: int = STEPS,
) -> list[Curve]:
    """Return the curves of some orders of cells.

    Args:
        image: `(1, C, H, W)`, or `(1, C, T, H, W)`, of which a cell covers all frames.
        weights: Yields the probability for each of some images, in order.
        baseline: Of the shape of the image; it replaces cells.
        cells: Of the image.
        orders: Each the numbers of all cells, the first to be removed first.
        steps: Number of steps, or as many as there are cells.

    Example:
        >>> from fmapviz.features.trust.cells import Cells
        >>> image, of_mean = torch.ones(1, 1, 1, 2), lambda images: (float(each.mean()) for each in images)
        >>> order = [np.array([1, 0])]
        >>> trace(image, of_mean, torch.zeros_like(image), cells=Cells.of((1, 2)), orders=order)[0].deletion.tolist()
        [1.0, 0.5, 0.0]
    """
    ends = cells.ends(steps)
    numbers = torch.from_numpy(cells.numbers).to(image.device)

    def copies() -> Iterator[Tensor]:
        yield image
        yield baseline
        for order in orders:
            places = np.empty(cells.count, np.int64)
            places[order] = np.arange(cells.count)
            place = torch.from_numpy(places).to(image.device)[numbers]
            for end in ends[1:-1].tolist():
                yield torch.where(place < end, baseline, image)
            for end in ends[1:-1].tolist():
                yield torch.where(place < end, image, baseline)

    found = weights(copies())
    whole, nothing = next(found), next(found)
    between = len(ends) - 2
    curves = []
    for order in orders:
        deletion, insertion = ([next(found) for _ in range(between)] for _ in range(2))
        curves.append(
            Curve(
                cells.removed(order, steps),
                np.array([whole, *deletion, nothing]),
                np.array([nothing, *insertion, whole]),
            )
        )
    return curves


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Return the mean of the curves of random orders, which a map without an order is expected to have.

    Args:
        curves: Of one image, at least one.

    Example:
        >>> low, high = (Curve(*np.array([[0.0, 1.0], [1.0, low], [low, 1.0]])) for low in (0.0, 0.5))
        >>> mean_curve([low, high]).deletion.tolist()
        [1.0, 0.25]
    """
    shares, deletion, insertion = (
        np.mean([getattr(each, name) for each in curves], 0) for name in ("shares", "deletion", "insertion")
    )
    return Curve(shares, deletion, insertion)


def passes(orders: int, cells: Cells, steps: int = STEPS) -> int:
    """Return the number of passes that `trace` needs.

    Example:
        >>> from fmapviz.features.trust.cells import Cells
        >>> passes(11, Cells.of((224, 224)))
        420
    """
    return 2 + 2 * orders * (len(cells.ends(steps)) - 2)
