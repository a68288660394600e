"""Measure the values of channels, scale them to 0..255 and tile them into one grid.

A grid is pixel for pixel as torchvision draws it. The reference is
`save_image(make_grid(maps[:, None], normalize=True, scale_each=True, nrow=int(sqrt(C)), padding=2))` in one grey channel,
for each image `(C, H, W)` of a batch. A colour map is applied to the same levels 0..255.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite, isqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fmapviz.config import Style
from fmapviz.core.drawings import Tiles
from fmapviz.draw.colormaps import checkerboard, colorize

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PLAIN = Style()
_SMALL = 1e-12  # standard deviations below this are computed in float64
_LEAST_SPAN = 1e-5  # that make_grid divides by
_NUMPY_DEVICE = "cpu"  # where NumPy reads tensors in place; tests change it to run a GPU's code without one


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """The finite extremes of every channel and the mean of every image.

    Attributes:
        low: Smallest finite value, float32 `(N, C)`; NaN for a channel without a finite value.
        high: Largest finite value, float32 `(N, C)`; NaN for a channel without a finite value.
        mean: Mean of each image's finite values, float32 `(N)`.
        bad: Number of NaN and infinite values, int64 `(N, C)`; None if all values are known to be finite.
        moments: Statistics of each channel, if requested.
        shared: The layer's range over all images of the run, if requested.
        whole: Smallest and largest finite value of all channels of each image, float32 `(N, 1)` each, if these are some of
            them; without a finite value the smallest is the larger one.
    """

    low: Tensor
    high: Tensor
    mean: Tensor
    bad: Tensor | None = None
    moments: Moments | None = None
    shared: Shared | None = None
    whole: tuple[Tensor, Tensor] | None = None

    @property
    def of_layer(self) -> tuple[Tensor, Tensor]:
        """The smallest and largest finite value of all channels of the layer, also of those that were not taken."""
        if self.whole:
            return self.whole
        # The NaN of a channel without a finite value does not count.
        low, high = self.low.nan_to_num(nan=torch.inf), self.high.nan_to_num(nan=-torch.inf)
        return low.amin(1, keepdim=True), high.amax(1, keepdim=True)

    def take(self, chosen: Tensor) -> Ranges:
        """Return the extremes of the chosen channels of each image, int64 `(N, K)`."""
        low, high = self.low.gather(1, chosen), self.high.gather(1, chosen)
        bad = None if self.bad is None else self.bad.gather(1, chosen)
        return Ranges(low, high, self.mean, bad, shared=self.shared, whole=self.of_layer)


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Statistics of the finite values of every channel.

    Attributes:
        mean: float32 `(N, C)`; NaN for a channel without a finite value.
        std: Population standard deviation, float32 `(N, C)`; NaN for a channel without a finite value.
        zeros: Number of values that are exactly zero, int64 `(N, C)`.
        values: Number of values per channel, NaN and infinite ones included.
        rest: Part of the mean that float32 lost, float32 `(N, C)`; None if it is negligible beside the deviation.
    """

    mean: Tensor
    std: Tensor
    zeros: Tensor
    values: int
    rest: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """Values of one layer that all images of a run share.

    Attributes:
        low: Smallest finite value of all channels; NaN if no value is finite.
        high: Largest finite value of all channels; NaN if no value is finite.
        more: Values of a feature for its own views.
    """

    low: float
    high: float
    more: object = None


def draw_grids(maps: Tensor, ranges: Ranges, limits: tuple[Tensor, Tensor], layout: Tiles, style: Style) -> Tensor:
    """Draw the channels of each image as one grid.

    Args:
        maps: `(N, C, H, W)` as returned by `as_floats`.
        ranges: The result of `measure(maps)`.
        limits: The result of `scale_limits`.
        layout: The result of `lay_out`.
        style: Of it only `norm` and the colour map count.

    Returns:
        uint8 `(N, H', W')`, or `(N, H', W', 3)` with a `style.palette`. The levels of NaN and infinite values are a
        checkerboard.
    """
    grids = arrange(scale(maps, ranges, limits, style), layout)
    return colour(grids, maps, layout, style.palette) if style.palette else grids


def lay_out(count: int, height: int, width: int, style: Style = _PLAIN) -> Tiles:
    """Return the layout of a grid of `count` channels.

    Example:
        >>> lay_out(64, 55, 55).corner(63)
        (401, 401)
    """
    columns = min(style.columns or isqrt(count), count)
    gap = style.padding if count > 1 else 0  # make_grid returns a single tile without padding
    width, height = width * style.scale, height * style.scale
    return Tiles(gap, gap, width, height, width + gap, height + gap, columns, count)


def as_floats(maps: Tensor) -> Tensor:
    """Convert other types than float32 and the half types to float32; values beyond its range become infinite."""
    return maps if maps.dtype in {torch.float32, torch.float16, torch.bfloat16} else maps.float()


def is_rounded(maps: Tensor) -> bool:
    """Return True if `as_floats` changes a picture: by half a level of a channel's range, or a finite value.

    Args:
        maps: `(N, C, ...)` or `(N, K)`, any type.

    Example:
        >>> few = torch.tensor([[[0.0, 1.0]]], dtype=torch.float64)
        >>> is_rounded(few), is_rounded(few + 1e9), is_rounded(few * 1e300)
        (False, True, True)
    """
    if maps.dtype.itemsize < 4 or maps.dtype == torch.float32 or maps.device.type == "mps" or not maps.numel():
        return False
    maps = maps.reshape(*maps.shape[:2], -1)
    exact, floats = maps.double(), maps.float().double()
    inside = exact.isfinite()
    lost = torch.where(inside, (exact - floats).abs(), 0).amax(-1)
    low, high = torch.where(inside, exact, torch.inf).amin(-1), torch.where(inside, exact, -torch.inf).amax(-1)
    return bool(((lost > (high - low) / 510) & ((high > low) | lost.isinf())).any())


ROUNDED = "float32, in which pictures and statistics are computed, rounds the values"  # of maps that `is_rounded`


def measure(maps: Tensor, *, moments: bool = False) -> Ranges:
    """Measure the extremes of each channel.

    Args:
        maps: `(N, C, H, W)` as returned by `as_floats`.
        moments: Whether to compute the statistics of each channel as well.

    Example:
        >>> ranges = measure(torch.tensor([[[[1.0, 4.0]], [[float("nan"), 2.0]]]]))
        >>> ranges.low.tolist(), ranges.high.tolist(), ranges.bad.tolist()
        ([[1.0, 2.0]], [[4.0, 2.0]], [[0, 1]])
    """
    means = maps.mean((-2, -1), dtype=torch.float32) if moments else None
    if means is None:
        mean = maps.mean((1, 2, 3), dtype=torch.float32)
    elif maps.device.type != _NUMPY_DEVICE:
        mean = means.mean(1)
    else:  # for so few numbers a call of torch takes ten times as long
        with np.errstate(invalid="ignore", over="ignore"):
            mean = torch.from_numpy(np.add.reduce(means.numpy(), 1) / np.float32(means.shape[1]))
    # A NaN or an infinity in the input makes the mean non-finite, so finite maps are read only once. Testing the mean
    # would make a GPU synchronize, and there the second pass costs next to nothing.
    if maps.device.type == _NUMPY_DEVICE and all(map(isfinite, mean.tolist())):
        low, high = maps.amin((-2, -1)).float(), maps.amax((-2, -1)).float()
        return Ranges(low, high, mean, moments=None if means is None else _finite_moments(maps, means, low, high))
    finite = maps.isfinite()
    some = finite.any(-1).any(-1)
    low = torch.where(finite, maps, torch.inf).amin((-2, -1)).float().where(some, torch.nan)
    high = torch.where(finite, maps, -torch.inf).amax((-2, -1)).float().where(some, torch.nan)
    known = _widen(maps).where(finite, torch.nan)
    ranges = Ranges(low, high, known.nanmean((1, 2, 3)).float(), (~finite).sum((-2, -1)))
    if not moments:
        return ranges
    means, rest, std = _measure_moments(known)
    # The rounded mean of a constant channel may differ from its value.
    means, rest, std = means.where(low != high, low), rest.where(low != high, 0.0), std.where(low != high, 0.0)
    zeros = (known == 0).sum((-2, -1))
    return replace(ranges, moments=Moments(means, std, zeros, maps.shape[-2] * maps.shape[-1], rest))


def _finite_moments(maps: Tensor, mean: Tensor, low: Tensor, high: Tensor) -> Moments:
    """Compute the statistics of finite maps on the CPU without copying them.

    NumPy takes a tenth of torch's time to start an operation on so few numbers.
    """
    values = maps.shape[-2] * maps.shape[-1]
    if values == 1:
        return Moments(low, torch.zeros_like(low), (low == 0).long(), values)
    norms = torch.linalg.vector_norm(maps, dim=(-2, -1), dtype=torch.float32).numpy()
    size, middle = norms * np.float32(values**-0.5), np.abs(mean.numpy())
    above = size - middle
    # The variance, the mean square minus the square of the mean, is a difference times a sum.
    std = np.sqrt(np.maximum(above, 0)) * np.sqrt(size + middle)
    # float32 cannot hold the variance of values far from zero, or of very small and very large ones.
    sure = above > np.maximum(size / 128, _SMALL)
    rest = None
    if not sure.all():
        varied = (low != high).numpy()
        doubtful = varied & ~sure
        std[~varied] = 0
        mean = mean.where(low != high, low)
        if doubtful.any():
            chosen, rest = torch.from_numpy(doubtful), torch.zeros_like(mean)
            mean[chosen], rest[chosen], exact = (each[0] for each in _measure_moments(_widen(maps[chosen][None])))
            std[doubtful] = exact.numpy()
    zero = maps.float().numpy() == 0
    # The output of a convolution hardly ever contains a zero.
    zeros = np.count_nonzero(zero.reshape(*mean.shape, -1), axis=2) if zero.any() else np.zeros(mean.shape, np.int64)
    return Moments(mean, torch.from_numpy(std), torch.from_numpy(zeros), values, rest)


def _measure_moments(maps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the mean, the part of it that float32 loses, and the standard deviation, of values that are not NaN.

    The sums are of distances from a first mean: float32 may not hold the mean of values far from zero as precisely as they
    differ. On the CPU `torch.var_mean` takes thirteen times as long.

    Args:
        maps: `(N, C, H, W)` as returned by `_widen`.

    Returns:
        float32 `(N, C)` each.
    """
    first = maps.nanmean((-2, -1))
    away = maps - first[..., None, None]
    shift = away.nanmean((-2, -1))
    counts = (~away.isnan()).sum((-2, -1))
    norm = torch.linalg.vector_norm((away - shift[..., None, None]).nan_to_num(nan=0.0), dim=(-2, -1))
    mean = (first + shift).float()
    return mean, ((first - mean) + shift).float(), (norm / counts.sqrt()).float()


def _widen(maps: Tensor) -> Tensor:
    # float32 may not hold a sum. GPUs are slow at float64, or lack it.
    return maps.double() if maps.device.type == _NUMPY_DEVICE else maps.float()


def take_channels(maps: Tensor, ranges: Ranges, chosen: Tensor) -> tuple[Tensor, Ranges]:
    """Select channels of each image.

    Args:
        maps: `(N, C, H, W)`.
        ranges: The ranges of the maps.
        chosen: int64 `(N, K)` as returned by `channel_choice.choose_channels`.

    Returns:
        The maps `(N, K, H, W)` and their ranges.
    """
    return maps[torch.arange(len(maps), device=maps.device)[:, None], chosen], ranges.take(chosen)


def scale_limits(ranges: Ranges, style: Style) -> tuple[Tensor, Tensor]:
    """Return the values of each channel that become black and white, float32 `(N, C)` each.

    They depend on the channels that are drawn only if each has a range of its own.
    """
    low, high = ranges.low, ranges.high
    if style.limits:
        return torch.full_like(low, style.limits[0]), torch.full_like(high, style.limits[1])
    if style.scope == "run" and ranges.shared:
        low, high = torch.full_like(low, ranges.shared.low), torch.full_like(high, ranges.shared.high)
    elif style.scope != "channel":
        low, high = (ends.expand_as(low).contiguous() for ends in ranges.of_layer)
    if not style.signed:
        return low, high
    largest = torch.maximum(low.abs(), high.abs())
    return -largest, largest


def scale(maps: Tensor, ranges: Ranges, limits: tuple[Tensor, Tensor], style: Style) -> Tensor:
    """Scale maps to levels as `make_grid` and `save_image` do, with the same roundings in the same order.

    Clamping is skipped where it cannot change a value: to a channel's or a layer's own extremes. A signed norm puts zero at
    128 and the largest magnitude at 0.5 or 255.5, however small it is: gradients are often smaller than the 1e-5 that
    `make_grid` takes as the smallest range.

    Args:
        maps: `(N, C, H, W)` as returned by `as_floats`.
        ranges: The result of `measure(maps)`.
        limits: The result of `scale_limits`.
        style: Of it only `norm` counts.

    Returns:
        float32 `(N, C, H, W)`, a new tensor, in 0..256, to be truncated to whole levels. The levels of NaN and infinite
        values are a checkerboard.
    """
    values, (low, high) = maps.float(), limits
    if style.signed:
        divisor = high.where(high > 0, 1)[..., None, None]  # a channel of zeros stays zero
        levels = (values / divisor).mul_(127.5).add_(128)
        if style.scope == "run":
            levels.clamp_(0.5, 255.5)
    else:
        span = high - low
        if style.limits:
            # make_grid subtracts the limits as Python floats, which float32 rounds to another span.
            span = torch.full_like(low, style.limits[1] - style.limits[0])
            values = values.clamp(*style.limits)
        each = (*low.shape, 1, 1)
        levels = values - low.view(each)
        levels.div_(span.clamp_min_(_LEAST_SPAN).view(each)).mul_(255).add_(0.5)
        if style.limits or style.scope == "run":
            levels.clamp_(0, 255)
    if ranges.bad is None:
        return levels
    return torch.where(maps.isfinite(), levels, checkerboard(maps.shape[2], maps.shape[3], maps.device, square=1))


def level_ends(low: NDArray[np.float32], high: NDArray[np.float32], style: Style) -> NDArray[np.float32]:
    """Return the values that `scale` maps to levels 0 and 255, float32 `(2, C)`; levels between are linear.

    A level L stands for the values within half a step, `(high - low) / 510`, around `low + L / 255 * (high - low)`.

    Args:
        low: Of one image, float32 `(C,)`, as `scale_limits` returns it.
        high: Likewise.
        style: Of it only `norm` counts.

    Example:
        >>> level_ends(np.float32([2]), np.float32([2]), Style()).tolist()
        [[2.0], [2.0000100135803223]]
    """
    ends = np.empty((2, len(low)), np.float32)  # to stack two takes three times as long
    if style.signed:
        np.maximum(abs(low), abs(high), out=ends[1])
        np.negative(ends[1], out=ends[0])
    else:
        ends[0] = low
        np.maximum(high, low + np.float32(_LEAST_SPAN), out=ends[1])
    return ends


def colour(grids: Tensor, maps: Tensor, layout: Tiles, palette: str) -> Tensor:
    """Apply a colour map to the finite values of `arrange`d maps, neither to the padding nor to a checkerboard."""
    coloured = arrange(maps.isfinite(), layout).bool()
    return torch.where(coloured[..., None], colorize(grids, palette), grids[..., None])


def arrange(tiles: Tensor, layout: Tiles) -> Tensor:
    """Arrange tiles `(N, C, h, w)` in rows, truncated to uint8 and magnified to the layout's size.

    It is one strided assignment. On the CPU NumPy assigns, which converts to bytes seven times as fast as torch.
    """
    images, _, height, width = tiles.shape
    if tiles.device.type == _NUMPY_DEVICE:
        pixels, cells = blank(images, height, width, layout)
        fill(cells, tiles.numpy())
        return torch.from_numpy(pixels)
    size, shape, strides, begin = _geometry(images, height, width, layout)
    grid = torch.zeros(size, dtype=torch.uint8, device=tiles.device)
    fill(grid.as_strided(shape, strides, begin), tiles)
    return grid


def blank(images: int, height: int, width: int, layout: Tiles) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return black grids, uint8 `(N, H, W)`, and the places of their tiles of `height` times `width` values, for `fill`."""
    size, shape, strides, begin = _geometry(images, height, width, layout)
    pixels = np.zeros(size, np.uint8)
    return pixels, np.ndarray(shape, np.uint8, pixels, begin, strides)


def fill(cells: Any, tiles: Any, *, row: int = 0) -> None:  # Any: NumPy's or torch's, both support indexing and assignment
    """Fill places of grids with tiles `(N, C, h, w)`, truncated to uint8, from a row on."""
    images, count, height, width = tiles.shape
    columns = cells.shape[2]
    full, rest = divmod(count, columns)
    with np.errstate(invalid="ignore"):  # NaN, of a range that float32 cannot hold
        cells[:, row : row + full] = tiles[:, : count - rest].reshape(images, full, columns, height, 1, width, 1)
        if rest:
            cells[:, row + full, :rest] = tiles[:, count - rest :].reshape(images, rest, height, 1, width, 1)


def _geometry(
    images: int, height: int, width: int, layout: Tiles
) -> tuple[tuple[int, int, int], tuple[int, ...], tuple[int, ...], int]:
    """Return the size of grids, and the shape, the strides and the beginning of a view of their tiles.

    The shape is `(N, rows, columns, h, high, w, wide)`: each value fills a rectangle of `high` times `wide` pixels.
    """
    columns, down, across = layout.columns, layout.down, layout.across
    high, wide = layout.height // height, layout.width // width
    rows = -(-layout.count // columns)
    line = 2 * layout.left + columns * across - (across - layout.width)
    size = (images, 2 * layout.top + rows * down - (down - layout.height), line)
    shape = (images, rows, columns, height, high, width, wide)
    strides = (size[1] * line, down * line, across, high * line, line, wide, 1)
    return size, shape, strides, layout.top * line + layout.left
