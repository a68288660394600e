"""Two networks: A, B and B - A beside each other; `fmapviz diff` draws it.

A and B have one range, B - A has its own, with zero in the middle. Where the weights have nothing in common, so that
channels of one number are different features, the mean of all channels of A and of B takes their place.
"""

from __future__ import annotations

from dataclasses import replace
from math import isfinite, nan
from typing import TYPE_CHECKING

import numpy as np
import torch

from fmapviz.core.config import Style
from fmapviz.core.drawings import SHADES, Panels
from fmapviz.inspection.reshape import NotAMapError
from fmapviz.render import bars, grid
from fmapviz.render.channel_choice import choose
from fmapviz.render.colormaps import checkerboard
from fmapviz.render.grid import Ranges
from fmapviz.render.panels import panel_palette
from fmapviz.views import mean
from fmapviz.views.base import NoChannelsError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.views.base import PairMaps

NEEDS = "outputs"
PAIR = True
LOOKS = "norm columns padding channels scale colormap labels"
AGGREGATES = "differences"
WITH = "numbers"

_LARGEST = float(np.finfo(np.float32).max)
_FAR = 1e4  # times the span; float32 has seven digits


def draw(maps: PairMaps, style: Style) -> Panels:
    """Draw three grids, or two maps.

    Raises:
        NoChannelsError: None of the chosen channels exists.
        NotAMapError: A vector of networks that have nothing in common.
    """
    if not maps.related:
        return _draw_means(maps)
    first, second = grid.as_floats(maps.first), grid.as_floats(maps.second)
    ranges = [*maps.ranges]
    largest, channels = maps.largest, None
    if style.channels != "all":
        chosen = choose(_ranked(maps, ranges, style), style)
        if not chosen.shape[1]:
            raise NoChannelsError(f"has {first.shape[1]} channels, none of those chosen")
        channels = tuple(chosen[0].tolist())
        first, second = first[:, chosen[0]], second[:, chosen[0]]
        ranges = [each.take(chosen) for each in ranges]
        largest = largest[chosen[0].cpu().numpy()]
    end = float(np.nan_to_num(largest).max())
    count, height, width = first.shape[1:]
    tiles = bars.lay_out(count, style) if maps.vector else grid.lay_out(count, height, width, style)
    shared = _joined(ranges)
    shown: list[Tensor] = []
    if maps.vector:
        limits = bars.axis_limits(shared, style)
        difference = second.float() - first.float()
        shown = [bars.draw_bars(each.flatten(1), style, shared) // 2 for each in (first, second)]
        shown.append(bars.draw_bars(difference.flatten(1), replace(style, norm="channel"), grid.measure(difference)) // 2)
    else:
        limits = grid.scale_limits(shared, style)
        for values, bad in ((first, maps.ranges[0].bad), (second, maps.ranges[1].bad)):
            own = replace(shared, bad=bad)
            if style.palette:
                pixels = grid.arrange(grid.scale(values, own, limits, style), tiles)
                shown.append(grid.colour(pixels, values, tiles, style.palette))
            else:
                shown.append(grid.arrange(_greys(values, own, limits, style), tiles))
        finite = all(each.bad is None for each in maps.ranges) and end <= _LARGEST
        shown.append(grid.arrange(_signed_levels(first, second, end, finite=finite), tiles))
    change = f"{-end:.4g} to {end:.4g}" if end else "no finite difference" if np.isnan(largest).all() else "0 everywhere"
    has_one_range = maps.vector or style.norm not in {"channel", "signed"}
    low, high = (float(each[0, 0]) for each in limits)
    return Panels(
        _in_one_mode(shown),
        (f"A: {maps.names[0]}", f"B: {maps.names[1]}", f"B - A: {change}"),
        tiles,
        channels=channels,
        limits=(low, high) if has_one_range and isfinite(low) and isfinite(high) else None,
        largest=end,
        bars=maps.vector,
    )


def _greys(values: Tensor, ranges: Ranges, limits: tuple[Tensor, Tensor], style: Style) -> Tensor:
    """Return numbers of greys: half of what `grid.scale` returns.

    Between finite ends of its own, that is one multiplication and addition; it would be rounded visibly where the ends are
    close to each other and far from zero.
    """
    low, high = limits
    span = high - low
    if (
        ranges.bad is None
        and style.norm in {"channel", "layer"}
        and (torch.maximum(low.abs(), high.abs()) < _FAR * span).all()
    ):
        slope = (SHADES - 0.5) / span.clamp(min=1e-5)
        each = (*low.shape, 1, 1)
        return torch.addcmul((0.25 - low * slope).view(each), values.float(), slope.view(each))
    return grid.scale(values, ranges, limits, style).mul_(0.5)


def _signed_levels(first: Tensor, second: Tensor, end: float, *, finite: bool) -> Tensor:
    """Return numbers of colours, blue for -end to red for end; of what is not finite, a checkerboard of black and white."""
    levels = second.float() - first.float()
    good = None if finite else levels.isfinite()
    levels.div_(end or 1.0).mul_(SHADES / 2 - 0.25).add_(1.5 * SHADES)
    if good is None:
        return levels
    squares = checkerboard(levels.shape[2], levels.shape[3], levels.device, square=1)
    return torch.where(good, levels, squares * ((SHADES - 1) / 255))


def _ranked(maps: PairMaps, ranges: list[Ranges], style: Style) -> Tensor:
    """Return what ranks the channels, `(1, C)`: of both networks the larger value."""
    if style.rank == "change":
        return torch.from_numpy(maps.change)[None]
    if style.rank == "max":
        values = [each.high for each in ranges]
    else:
        values = [getattr(each.moments, style.rank) for each in ranges]
    return torch.fmax(*values)


def _joined(ranges: list[Ranges]) -> Ranges:
    """Return the extremes of both networks; a channel that is finite in one of them has that one's."""
    first, second = ranges
    return Ranges(torch.fmin(first.low, second.low), torch.fmax(first.high, second.high), first.mean)


def _draw_means(maps: PairMaps) -> Panels:
    if maps.vector:
        raise NotAMapError("a vector, whose elements mean nothing to each other in networks that have nothing in common")
    shown, captions = [], []
    for letter, name, values in zip("AB", maps.names, (maps.first, maps.second), strict=True):
        means = mean.reduce(grid.as_floats(values))[:, None]
        ranges = grid.measure(means)
        levels = grid.scale(means, ranges, grid.scale_limits(ranges, Style()), Style())
        shown.append(levels.mul_(0.5).to(torch.uint8)[:, 0])
        captions.append(f"{letter}: {name}, mean of all channels")
    return Panels(_in_one_mode(shown), tuple(captions), largest=nan)


def _in_one_mode(grids: list[Tensor]) -> tuple[NDArray[np.uint8], ...]:
    """Return grids `(1, H, W)`, or in colour `(1, H, W, 3)`, as arrays; all in colour if one of them is."""
    arrays = [each[0].cpu().numpy() for each in grids]
    if any(each.ndim == 3 for each in arrays):
        arrays = [each if each.ndim == 3 else panel_palette()[each] for each in arrays]
    return tuple(arrays)
