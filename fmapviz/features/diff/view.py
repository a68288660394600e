"""Two networks: A, B and B - A beside each other; `fmapviz diff` draws it.

A and B have one range, B - A has its own, with zero in the middle. Where the weights have nothing in common, so that
channels of one number are different features, the mean of all channels of A and of B takes their place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite, nan
from typing import TYPE_CHECKING

import numpy as np
import torch

from fmapviz.config import Style
from fmapviz.core.words import counted
from fmapviz.draw import bars, grid
from fmapviz.draw.channel_choice import choose
from fmapviz.draw.colormaps import checkerboard
from fmapviz.draw.grid import Ranges
from fmapviz.features.diff.panels import SHADES, Panels, panel_palette
from fmapviz.observe.reshape import NotAMapError
from fmapviz.views import mean
from fmapviz.views.base import NoChannelsError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.core.drawings import Tiles


_SMALLEST, _LARGEST = 1e-36, float(np.finfo(np.float32).max)
_LEAST_SPAN = np.float32(1e-5)  # as `make_grid` has it
_FAR = 1e4  # times the span; float32 has seven digits
_BLOCK = 65536  # values


@dataclass(frozen=True, slots=True, eq=False)
class PairMaps:
    """One feature map of one image in two networks, A and B, as a view of two networks receives it.

    Attributes:
        first: Of A, `(1, C, H, W)`, float32 or a half type, any range; `(1, C, 1, 1)` for a vector.
        second: Of B, likewise.
        vector: Whether it has no rows and columns.
        names: Labels of A and B.
        change: Root mean square of B - A of each channel, `(C)`.
        largest: Largest magnitude of it, likewise; NaN without a finite value.
        ranges: Extremes of the channels of A and of B.
        related: Whether channels of one number are the same feature: the weights of A and B have something in common.
    """

    first: Tensor
    second: Tensor
    vector: bool
    names: tuple[str, str]
    change: NDArray[np.float64]
    largest: NDArray[np.float64]
    ranges: tuple[Ranges, Ranges]
    related: bool = True


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
            raise NoChannelsError(f"has {counted(first.shape[1], 'channel')}, none of those chosen")
        channels = tuple(chosen[0].tolist())
        first, second = first[:, chosen[0]], second[:, chosen[0]]
        ranges = [each.take(chosen) for each in ranges]
        largest = largest[chosen[0].cpu().numpy()]
    end = float(np.nan_to_num(largest).max())
    count, height, width = first.shape[1:]
    tiles = bars.lay_out(count, style) if maps.vector else grid.lay_out(count, height, width, style)
    shared = _joined(ranges)
    limits = bars.axis_limits(shared, style) if maps.vector else grid.scale_limits(shared, style)
    if maps.vector:
        shown = _draw_bars(first, second, shared, style)
    elif _is_plain(ranges, limits, end, style):
        shown = _draw_plain(first, second, limits, end, tiles)
    else:
        shown = _draw_grids((first, second), ranges, end, tiles, style)
    change = f"{-end:.4g} to {end:.4g}" if end else "no finite difference" if np.isnan(largest).all() else "0 everywhere"
    has_one_range = maps.vector or style.scope != "channel"
    low, high = (float(each[0, 0]) for each in limits)
    return Panels(
        shown,
        (f"A: {maps.names[0]}", f"B: {maps.names[1]}", f"B - A: {change}"),
        tiles,
        channels=channels,
        limits=(low, high) if has_one_range and isfinite(low) and isfinite(high) else None,
        largest=end,
        bars=maps.vector,
        total=maps.first.shape[1],
    )


def _draw_bars(first: Tensor, second: Tensor, shared: Ranges, style: Style) -> tuple[NDArray[np.uint8], ...]:
    difference = second.float() - first.float()
    shown = [bars.draw_bars(each.flatten(1), style, shared) // 2 for each in (first, second)]
    shown.append(bars.draw_bars(difference.flatten(1), replace(style, norm="channel"), grid.measure(difference)) // 2)
    return _in_one_mode(shown)


def _draw_grids(
    values: tuple[Tensor, Tensor], ranges: list[Ranges], end: float, tiles: Tiles, style: Style
) -> tuple[NDArray[np.uint8], ...]:
    """Draw three grids of any values in any style."""
    shared = _joined(ranges)
    limits = grid.scale_limits(shared, style)
    shown = []
    for own, known in zip(values, ranges, strict=True):
        levels = grid.scale(own, replace(shared, bad=known.bad), limits, style)
        pixels = grid.arrange(levels if style.palette else levels.mul_(0.5), tiles)
        shown.append(grid.colour(pixels, own, tiles, style.palette) if style.palette else pixels)
    finite = all(each.bad is None for each in ranges) and end <= _LARGEST
    shown.append(grid.arrange(_signed_levels(*values, end, finite=finite), tiles))
    return _in_one_mode(shown)


def _is_plain(ranges: list[Ranges], limits: tuple[Tensor, Tensor], end: float, style: Style) -> bool:
    """Return True if all values are finite, and no range is narrow and far from zero."""
    low, high = limits
    if any(each.bad is not None for each in ranges) or style.palette or style.signed:
        return False
    if low.device.type != "cpu" or style.limits or not (end == 0 or _SMALLEST <= end <= _LARGEST):
        return False
    lowest, highest = low.numpy(), high.numpy()
    with np.errstate(over="ignore"):
        span = np.maximum(highest - lowest, _LEAST_SPAN)
    is_near = np.maximum(abs(lowest), abs(highest)) / _FAR < span
    return bool((is_near & np.isfinite(span)).all())


def _draw_plain(
    first: Tensor, second: Tensor, limits: tuple[Tensor, Tensor], end: float, tiles: Tiles
) -> tuple[NDArray[np.uint8], ...]:
    """Draw three grids of plain values, see `_is_plain`: as `_draw_grids` up to the last digit of the levels.

    A few rows of tiles at a time, which a core's cache holds: that takes half of the time.
    """
    a, b = (each.float().numpy() for each in (first, second))
    count, height, width = a.shape[1:]
    low, high = (each.numpy()[..., None, None] for each in limits)
    slope = np.float32(SHADES - 0.5) / np.maximum(high - low, _LEAST_SPAN)
    start = np.float32(0.25) - low * slope
    signed_slope, signed_start = np.float32((SHADES / 2 - 0.25) / (end or 1.0)), np.float32(1.5 * SHADES)
    pages = [grid.blank(1, height, width, tiles) for _ in range(3)]
    rows = max(1, _BLOCK // (tiles.columns * height * width))
    size = min(count, rows * tiles.columns)
    memory = np.empty((1, size, height, width), np.float32)
    for row, at in enumerate(range(0, count, size)):
        part = slice(at, at + size)
        levels = memory[:, : min(size, count - at)]
        for values, (_, cells) in zip((a, b), pages, strict=False):
            np.multiply(values[:, part], slope[:, part], out=levels)
            np.add(levels, start[:, part], out=levels)
            grid.fill(cells, levels, row=row * rows)
        np.subtract(b[:, part], a[:, part], out=levels)
        np.multiply(levels, signed_slope, out=levels)
        np.add(levels, signed_start, out=levels)
        grid.fill(pages[2][1], levels, row=row * rows)
    return tuple(pixels[0] for pixels, _ in pages)


def _signed_levels(first: Tensor, second: Tensor, end: float, *, finite: bool) -> Tensor:
    """Return numbers of colours, from blue for -end to red for end; values that are not finite are a checkerboard."""
    levels = second.float() - first.float()
    good = None if finite else levels.isfinite()
    levels.div_(end or 1.0).mul_(SHADES / 2 - 0.25).add_(1.5 * SHADES)
    if good is None:
        return levels
    squares = checkerboard(levels.shape[2], levels.shape[3], levels.device, square=1)
    return torch.where(good, levels, squares * ((SHADES - 1) / 255))


def _ranked(maps: PairMaps, ranges: list[Ranges], style: Style) -> Tensor:
    """Return the values that rank the channels, `(1, C)`: the larger one of both networks."""
    if style.rank == "change":
        return torch.from_numpy(maps.change)[None]
    if style.rank == "max":
        values = [each.high for each in ranges]
    else:
        values = [getattr(each.moments, style.rank) for each in ranges]
    return torch.fmax(*values)


def _joined(ranges: list[Ranges]) -> Ranges:
    """Return the extremes of both networks; NaN in one of them is ignored."""
    first, second = ranges
    low, high = torch.fmin(first.low, second.low), torch.fmax(first.high, second.high)
    if not (first.whole and second.whole):
        return Ranges(low, high, first.mean)
    lows, highs = zip(first.whole, second.whole, strict=True)
    return Ranges(low, high, first.mean, whole=(torch.fmin(*lows), torch.fmax(*highs)))


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
