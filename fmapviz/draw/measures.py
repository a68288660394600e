"""Copy the statistics of channels from the device, as `fmapviz.types.Measures`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fmapviz.types import Measures

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.draw.grid import Ranges


def measures_of(ranges: Ranges) -> list[Measures]:
    """Return the statistics of each channel, for each image."""
    moments = ranges.moments
    assert moments
    low, high, mean, std, zeros = map(_numbers, (ranges.low, ranges.high, moments.mean, moments.std, moments.zeros))
    bad = np.zeros_like(zeros) if ranges.bad is None else _numbers(ranges.bad)
    rest = [None] * len(low) if moments.rest is None else _numbers(moments.rest)
    return [Measures(moments.values, *own) for own in zip(low, high, mean, std, zeros, bad, rest, strict=True)]


def _numbers(values: Tensor) -> NDArray[Any]:
    return values.cpu().numpy()
