"""Copy the statistics of channels from the device, as `fmapviz.types.Measures`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fmapviz.data import Measures

if TYPE_CHECKING:
    from fmapviz.draw.grid import Ranges


def measures_of(ranges: Ranges) -> list[Measures]:
    """Return the statistics of each channel, for each image."""
    moments = ranges.moments
    assert moments
    measured = ranges.low, ranges.high, moments.mean, moments.std, moments.zeros
    low, high, mean, std, zeros = [values.cpu().numpy() for values in measured]
    bad = np.zeros_like(zeros) if ranges.bad is None else ranges.bad.cpu().numpy()
    rest = [None] * len(low) if moments.rest is None else moments.rest.cpu().numpy()
    return [Measures(moments.values, *own) for own in zip(low, high, mean, std, zeros, bad, rest, strict=True)]
