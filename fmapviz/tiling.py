"""Scale channels to 0..255 and arrange them in one grid, pixel for pixel as `torchvision.utils.make_grid` does.

The reference is `save_image(make_grid(maps[:, None], normalize=True, scale_each=True, nrow=int(sqrt(C)), padding=2))` in one
grey channel, for each image `(C, H, W)` of a batch. Colours come from the same levels 0..255.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, isqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fmapviz.colors import colorize
from fmapviz.errors import RequestError
from fmapviz.options import Style
from fmapviz.tiles import Tiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fmapviz.principal import Basis

_PLAIN = Style()
_SMALL = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """The finite extremes of every channel, and the mean of all of them.

    Attributes:
        low: Smallest finite value, float32 `(N, C)`; NaN where there is none.
        high: Largest finite value, float32 `(N, C)`; NaN where there is none.
        mean: Of the finite values of each image, float32 `(N)`.
        bad: How many values are NaN or infinite, int64 `(N, C)`; None if it is known that all are finite.
        moments: More about each channel, if that was asked for.
        shared: What all images of the run have in common, if that was asked for.
    """

    low: Tensor
    high: Tensor
    mean: Tensor
    bad: Tensor | None = None
    moments: Moments | None = None
    shared: Shared | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """What the finite values of every channel are like besides their extremes.

    Attributes:
        mean: float32 `(N, C)`; NaN where there is no finite value.
        std: Their standard deviation, divided by their number, float32 `(N, C)`; NaN where there is no finite value.
        zeros: How many values are exactly zero, int64 `(N, C)`.
        values: How many there are in each channel, those that are not finite included.
    """

    mean: Tensor
    std: Tensor
    zeros: Tensor
    values: int


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """What the images of a run have in common of one layer.

    Attributes:
        low: Smallest value of all channels, NaN if there is none.
        high: Largest value of all channels, NaN if there is none.
        basis: Their principal components, if those were asked for.
    """

    low: float
    high: float
    basis: Basis | None = None


def as_floats(maps: Tensor) -> Tensor:
    """Convert to float32 what is neither that nor a half: what float32 cannot hold is infinite from here on."""
    return maps if maps.dtype in {torch.float32, torch.float16, torch.bfloat16} else maps.float()


def _on_cpu(values: Tensor) -> bool:
    return values.is_cpu


def _as_float32(values: Tensor) -> Tensor:
    return values if values.dtype is torch.float32 else values.float()  # `float` would be a call into torch in any case


def measure(maps: Tensor, *, moments: bool = False) -> Ranges:
    """Find each channel's extremes.

    Args:
        maps: `(N, C, H, W)`, see `as_floats`.
        moments: Whether to find means, scatter and zeros too.

    Example:
        >>> ranges = measure(torch.tensor([[[[1.0, 4.0]], [[float("nan"), 2.0]]]]))
        >>> ranges.low.tolist(), ranges.high.tolist(), ranges.bad.tolist()
        ([[1.0, 2.0]], [[4.0, 2.0]], [[0, 1]])
    """
    each = maps.mean((-2, -1), dtype=torch.float32) if moments else None
    mean = maps.mean((1, 2, 3), dtype=torch.float32) if each is None else _mean_of_rows(each)
    # A NaN or an infinity anywhere shows in the mean, so finite maps need no second look. To ask a GPU would mean to wait
    # for it, and looking costs it next to nothing.
    if _on_cpu(maps) and all(map(isfinite, mean.tolist())):
        low, high = _as_float32(maps.amin((-2, -1))), _as_float32(maps.amax((-2, -1)))
        return Ranges(low, high, mean, moments=None if each is None else _moments_fast(maps, each, low, high))
    finite = maps.isfinite()
    some = finite.any(-1).any(-1)
    low = torch.where(finite, maps, torch.inf).amin((-2, -1)).float().where(some, torch.nan)
    high = torch.where(finite, maps, -torch.inf).amax((-2, -1)).float().where(some, torch.nan)
    known = _widen(maps).where(finite, torch.nan)
    return Ranges(
        low=low,
        high=high,
        mean=known.nanmean((1, 2, 3)).float(),
        bad=(~finite).sum((-2, -1)),
        moments=_moments(known, known.nanmean((-2, -1)), low, high) if moments else None,
    )


def _mean_of_rows(means: Tensor) -> Tensor:
    """Do so by NumPy where it can: for so few numbers torch takes ten times as long to begin."""
    if not _on_cpu(means):
        return means.mean(1)
    with np.errstate(invalid="ignore", over="ignore"):  # infinite values are what is looked for
        return torch.from_numpy(np.add.reduce(means.numpy(), 1) / np.float32(means.shape[1]))


def _moments(maps: Tensor, mean: Tensor, low: Tensor, high: Tensor) -> Moments:
    """Find what `measure` was asked for in addition; NaN stands for what is not finite."""
    # Where all values are the same their mean may still be rounded otherwise.
    std = _deviation(maps, mean).where(low != high, 0.0)
    return Moments(mean.float(), std, (maps == 0).sum((-2, -1)), maps.shape[-2] * maps.shape[-1])


def _deviation(maps: Tensor, mean: Tensor) -> Tensor:
    """Compute standard deviations; `torch.var_mean` takes thirteen times as long on the CPU."""
    away = _widen(maps) - _widen(mean)[..., None, None]
    counts = (~away.isnan()).sum((-2, -1))
    norm: Tensor = torch.linalg.vector_norm(away.nan_to_num(nan=0.0), dim=(-2, -1))
    return (norm / counts.sqrt()).float()


def _widen(maps: Tensor) -> Tensor:
    """Convert to float64, where float32 may be unable to hold a sum; not on a GPU, which is slow at it, or has none."""
    return maps.double() if _on_cpu(maps) else maps.float()


def _moments_fast(maps: Tensor, mean: Tensor, low: Tensor, high: Tensor) -> Moments:
    """Do so on the CPU for finite values: without a copy of them, and in NumPy, which begins each step ten times as fast."""
    values = maps.shape[-2] * maps.shape[-1]
    if values == 1:
        return Moments(low, torch.zeros_like(low), (low == 0).long(), values)
    norms = torch.linalg.vector_norm(maps, dim=(-2, -1), dtype=torch.float32).numpy()
    size, middle = norms * np.float32(values**-0.5), np.abs(mean.numpy())
    above = size - middle
    # Of the mean square less the square of the mean, which is a product of a difference and a sum.
    std = np.sqrt(np.maximum(above, 0)) * np.sqrt(size + middle)
    # Otherwise what is subtracted is nearly as large, or squares are too large or too small for float32.
    sure = above > np.maximum(size / 128, _SMALL)
    if not sure.all():
        varied = (low != high).numpy()
        doubtful = varied & ~sure
        std[~varied] = 0
        if doubtful.any():
            chosen = torch.from_numpy(doubtful)
            std[doubtful] = _deviation(maps[chosen][None], mean[chosen][None])[0].numpy()
    return Moments(mean, torch.from_numpy(std), torch.from_numpy(_count_zeros(maps)), values)


def _count_zeros(maps: Tensor) -> NDArray[np.int64]:
    zero = _as_float32(maps).numpy() == 0
    if not zero.any():  # what a convolution returns is hardly ever exactly zero
        return np.zeros(maps.shape[:2], np.int64)
    zeros: NDArray[np.int64] = np.count_nonzero(zero.reshape(*maps.shape[:2], -1), axis=2)
    return zeros


def choose_channels(ranges: Ranges, style: Style) -> Tensor | None:
    """Turn the `channels` of a style into channel numbers.

    Returns:
        int64 `(N, K)`, per image; None for all. Numbers that a layer does not have are left out, so K may be 0.
    """
    images, count = ranges.high.shape
    if style.listed is not None:
        existing = [number for number in style.listed if number < count]
        return torch.tensor(existing, dtype=torch.int64, device=ranges.high.device).expand(images, -1)
    if style.top is not None:
        # Stable: of two equal channels the one with the lower number comes first. A channel without a finite value is last.
        ranked = _rank(ranges, style.rank).nan_to_num(nan=-torch.inf)
        return ranked.sort(dim=1, descending=True, stable=True).indices[:, : style.top]
    return None


def _rank(ranges: Ranges, rank: str) -> Tensor:
    if rank == "max":
        return ranges.high
    assert ranges.moments
    if rank == "mean":
        return ranges.moments.mean
    return ranges.moments.std


def take_channels(maps: Tensor, ranges: Ranges, chosen: Tensor) -> tuple[Tensor, Ranges]:
    """Keep some channels of each image.

    Args:
        maps: `(N, C, H, W)`.
        ranges: Of the maps.
        chosen: int64 `(N, K)`, see `choose_channels`.

    Returns:
        `(N, K, H, W)` and the ranges of these.
    """
    image = torch.arange(len(maps), device=maps.device)[:, None]
    bad = None if ranges.bad is None else ranges.bad[image, chosen]
    taken = Ranges(ranges.low[image, chosen], ranges.high[image, chosen], ranges.mean, bad, shared=ranges.shared)
    return maps[image, chosen], taken


def tile(maps: Tensor, style: Style = _PLAIN, ranges: Ranges | None = None) -> Tensor:
    """Draw the channels of one or several images as grids.

    Args:
        maps: Any floating or integer type, `(C, H, W)` or `(N, C, H, W)`, any range; not changed.
        style: How; `style.channels` is not looked at (see `choose_channels`).
        ranges: What `measure` says of the maps, where it is known already.

    Returns:
        uint8 `(H', W')` or `(N, H', W')` on the device of `maps`; with a `style.palette` `(H', W', 3)` or `(N, H', W', 3)`.
        A NaN or infinite value is drawn as a checkerboard of black and white and takes no part in the scaling of its
        neighbours.

    Raises:
        RequestError: Another number of dimensions, nothing in it, or complex numbers.

    Example:
        >>> tile(torch.randn(64, 55, 55)).shape  # 8 x 8 tiles, 2 pixels between them and around
        torch.Size([458, 458])
        >>> tile(torch.randn(64, 55, 55), Style(norm="signed")).shape  # blue below zero, red above
        torch.Size([458, 458, 3])
    """
    if maps.ndim not in {3, 4} or maps.numel() == 0 or maps.is_complex():
        kind = "complex " if maps.is_complex() else ""
        raise RequestError(f"no maps (C, H, W) or (N, C, H, W) of real numbers: '{kind}{tuple(maps.shape)}'")
    if maps.ndim == 3:
        return tile(maps[None], style, ranges)[0]
    maps = as_floats(maps.detach())
    ranges = ranges or measure(maps)
    scaled = _scale(maps, ranges, style)
    if ranges.bad is not None:
        scaled = torch.where(maps.isfinite(), scaled, _checkerboard(scaled))
    grids = _arrange(scaled, style)
    if style.palette is None:
        return grids
    coloured = _arrange(maps.isfinite(), style).bool()  # neither the padding nor a checkerboard
    return torch.where(coloured[..., None], colorize(grids, style.palette), grids[..., None])


def lay_out(count: int, height: int, width: int, style: Style = _PLAIN) -> Tiles:
    """Say where `tile` lays so many channels of one size.

    Example:
        >>> lay_out(64, 55, 55).corner(63)
        (401, 401)
    """
    columns = min(style.columns or isqrt(count), count)
    gap = style.padding if count > 1 else 0  # make_grid returns a single tile bare
    width, height = width * style.scale, height * style.scale
    return Tiles(gap, gap, width, height, width + gap, height + gap, columns, count)


def limits(ranges: Ranges, style: Style) -> tuple[Tensor, Tensor]:
    """Give what becomes black and what becomes white of each channel, float32 `(N, C)` each."""
    low, high = ranges.low, ranges.high
    if style.limits:
        return torch.full_like(low, style.limits[0]), torch.full_like(high, style.limits[1])
    if style.norm == "run" and ranges.shared:
        return torch.full_like(low, ranges.shared.low), torch.full_like(high, ranges.shared.high)
    if style.norm in {"layer", "run"}:
        # A channel without one finite value has no say.
        lowest = low.nan_to_num(nan=torch.inf).amin(1, keepdim=True)
        highest = high.nan_to_num(nan=-torch.inf).amax(1, keepdim=True)
        return lowest.expand_as(low).contiguous(), highest.expand_as(high).contiguous()
    return low, high


def _scale(maps: Tensor, ranges: Ranges, style: Style) -> Tensor:
    """Compute as `make_grid` and `save_image` do, step by step, so that every rounding is theirs: float32, 0.5 to 255.5.

    Of their steps only those are left out that change nothing: values are not clamped to their own extremes.
    """
    if style.norm == "signed":
        return _scale_signed(maps, ranges)
    low, high = limits(ranges, style)
    beyond = True  # values may lie beyond the limits
    if style.limits:
        # make_grid subtracts the two limits as Python floats. Of two float32 that is what float32 gives, but not of others.
        span = torch.full_like(low, style.limits[1] - style.limits[0])
        maps = _as_float32(maps).clamp(*style.limits)
    else:
        span = high - low
        beyond = style.norm == "run"
    each = (*low.shape, 1, 1)
    scaled = _as_float32(maps) - low.view(each)
    scaled.div_(span.clamp_min_(1e-5).view(each)).mul_(255).add_(0.5)
    return scaled.clamp_(0, 255) if beyond else scaled


def _scale_signed(maps: Tensor, ranges: Ranges) -> Tensor:
    """Put zero at 128, the middle, and each channel's largest magnitude at 0.5 or 255.5, whichever its sign says.

    However small that is: gradients are often below the 1e-5 that `make_grid` takes for the smallest range.
    """
    largest = torch.maximum(ranges.low.abs(), ranges.high.abs())
    divisor = largest.where(largest > 0, 1)[..., None, None]  # where there are only zeros they stay zeros
    return (_as_float32(maps) / divisor).mul_(127.5).add_(128)


def _checkerboard(pixels: Tensor) -> Tensor:
    rows, columns = (torch.arange(size, device=pixels.device) for size in pixels.shape[-2:])
    return ((rows[:, None] + columns) % 2 * 255).to(pixels.dtype)


def _arrange(tiles: Tensor, style: Style) -> Tensor:
    """Lay tiles `(N, C, h, w)` out in rows, without a loop over them, and cut off what is behind the point.

    On the CPU by NumPy, which converts to bytes seven times as fast as torch.
    """
    images, count, height, width = tiles.shape
    zoom = style.scale
    laid = lay_out(count, height, width, style)
    columns, gap, down, across = laid.columns, laid.left, laid.down, laid.across
    full, rest = divmod(count, columns)
    rows, line = full + bool(rest), columns * across + gap
    size = (images, rows * down + gap, line)
    # The grid without its gaps; each pixel of a tile fills a square of it.
    shape = (images, rows, columns, height, zoom, width, zoom)
    strides = (size[1] * line, down * line, across, zoom * line, line, zoom, 1)
    cells: Any  # NumPy's or torch's, both can be indexed and assigned to
    source: Any
    if _on_cpu(tiles):
        pixels = np.zeros(size, np.uint8)
        cells, source = np.ndarray(shape, np.uint8, pixels, gap * line + gap, strides), tiles.numpy()
        grid = torch.from_numpy(pixels)
    else:
        grid = torch.zeros(size, dtype=torch.uint8, device=tiles.device)
        cells, source = grid.as_strided(shape, strides, gap * line + gap), tiles
    with np.errstate(invalid="ignore"):  # NaN, of a range that float32 cannot hold
        cells[:, :full] = source[:, : count - rest].reshape(images, full, columns, height, 1, width, 1)
        if rest:
            cells[:, full, :rest] = source[:, count - rest :].reshape(images, rest, height, 1, width, 1)
    return grid
