"""The range of the scores of changed copies, which shows whether they differ by more than rounding."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Units in the last place. Passes of another number of copies round otherwise: the last pass of an image has fewer.
_ROUNDED = 8


@dataclass(slots=True)
class Extremes:
    """The smallest and the largest of the scores that have passed.

    Example:
        >>> extremes = Extremes()
        >>> [*extremes.watch([1.0, 1.0 + 1e-7])], extremes.only_rounding(torch.float32)
        ([1.0, 1.0000001], True)
    """

    low: float = inf
    high: float = -inf

    def watch(self, scores: Iterable[float]) -> Iterator[float]:
        """Yield the scores."""
        for score in scores:
            self.low, self.high = min(score, self.low), max(score, self.high)
            yield score

    def only_rounding(self, dtype: torch.dtype) -> bool:
        """Return True if the scores of a network that computes in a type differ by no more than rounding."""
        return self.high - self.low <= _ROUNDED * torch.finfo(dtype).eps * max(abs(self.low), abs(self.high))
