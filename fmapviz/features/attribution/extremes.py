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
_ROUNDED_HALF = 2  # of 16 bits: 8 units of bfloat16 are 6 % of a score


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
        found = torch.finfo(dtype)
        units = _ROUNDED if found.bits > 16 else _ROUNDED_HALF
        return self.high - self.low <= units * found.eps * max(abs(self.low), abs(self.high))

    def in_words(self, dtype: torch.dtype) -> str:
        """Return what follows from `only_rounding`, the end of a sentence; of 16 bits, a score may change by less.

        Example:
            >>> Extremes(1.0, 1.0).in_words(torch.bfloat16), Extremes(1.0, 1.01).in_words(torch.bfloat16)
            (': it does not depend on the input', ', but for rounding in bfloat16')
        """
        if self.low == self.high or torch.finfo(dtype).bits > 16:
            return ": it does not depend on the input"
        return f", but for rounding in {str(dtype).removeprefix('torch.')}"
