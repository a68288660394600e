"""Histogram of the values of each layer's output.

Bins of equal width from the smallest finite value to the largest, as `numpy.histogram` counts them.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import numpy as np
import torch

from fmapviz.core.drawings import Histogram
from fmapviz.views.base import BatchContent

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.config import Style
    from fmapviz.views.base import LayerMaps

    Counts = tuple[Tensor, Tensor, Tensor, Tensor]

BINS = 64


def draw(maps: LayerMaps, _style: Style) -> BatchContent:
    """Count the values of all channels of each image; the content is a `Histogram`."""
    return BatchContent(Histogram, dict(zip(("counts", "low", "high", "nonfinite"), count(maps.values), strict=True)))


def count(maps: Tensor) -> Counts:
    """Count the values of each image in each bin.

    Args:
        maps: `(N, ...)`, any floating type, any range.

    Returns:
        Counts, int64 `(N, BINS)`, of equal bins from the smallest finite value to the largest, which is in the last bin;
        if both are equal, all values are in bin `BINS // 2`. The smallest and the largest finite value, float32 `(N,)` each,
        NaN if there is none. The number of values that are NaN or infinite, int64 `(N,)`. All on the device of `maps`.

        A value within float32's rounding of a bin's edge may be counted in either bin.

    Example:
        >>> counts, low, high, nonfinite = count(torch.tensor([[0.0, 0.1, 64.0, float("nan")]]))
        >>> counts[0].nonzero().flatten().tolist(), low.item(), high.item(), nonfinite.item()
        ([0, 63], 0.0, 64.0, 1)
    """
    images = [_count_finite(image) or _count_any(image) for image in maps.detach().float().flatten(1)]
    counts, low, high, nonfinite = (torch.stack(parts) for parts in zip(*images, strict=True))
    return counts, low, high, nonfinite


def _count_finite(values: Tensor) -> Counts | None:
    """Count values `(n,)` on the CPU if all are finite, ten times as fast as `torch.histc`."""
    if not values.is_cpu:
        return None
    low, high = values.aminmax()
    span = high - low
    if not isfinite(span):
        return None
    # Divided, not multiplied by the inverse: integers at an edge then land in the right bin.
    positions = (values - low).div_(span).mul_(BINS) if span > 0 else torch.full_like(values, BINS // 2)
    bins = torch.from_numpy(positions.numpy().astype(np.uint8))  # twice as fast in NumPy as in torch
    return _closed(torch.bincount(bins, minlength=BINS + 1)), low, high, torch.zeros_like(low, dtype=torch.int64)


def _count_any(values: Tensor) -> Counts:
    """Count any values `(n,)` on any device, without waiting for a GPU."""
    finite = values.isfinite()
    low, high = values.where(finite, torch.inf).amin(), values.where(finite, -torch.inf).amax()
    # Halves, because the difference of two finite values may overflow float32.
    span = high / 2 - low / 2
    positions = ((values / 2 - low / 2) / span.where(span > 0, 1) * BINS).where(span > 0, BINS // 2)
    bins = positions.where(finite, 0).long()
    counts = torch.zeros(BINS + 1, dtype=torch.int64, device=values.device).scatter_add_(0, bins, finite.long())
    some = finite.any()
    return _closed(counts), low.where(some, torch.nan), high.where(some, torch.nan), (~finite).sum()


def _closed(counts: Tensor) -> Tensor:
    """Add the bin past the end, which holds the largest value, to the last one."""
    return torch.cat([counts[: BINS - 1], counts[BINS - 1 :].sum(0, keepdim=True)])
