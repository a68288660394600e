"""What each convolution looks for: its kernels, in colour where they see red, green and blue."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, isqrt
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fmapviz.frames import room_of
from fmapviz.framing import is_numbered
from fmapviz.shapes import NotAMapError
from fmapviz.tiles import Tiles
from fmapviz.tiling import Ranges, lay_out, measure, tile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmapviz.options import Style

NEEDS = "kernels"
_SIDE = 512  # pixels that a small picture is magnified to, about
_LARGEST_SCALE = 64  # that a style can hold
_MOST = 16  # times that it is magnified


def draw(weight: Tensor, style: Style) -> Tensor:
    """Draw the kernels of one convolution.

    Args:
        weight: float32 `(O, I, h, w)` or `(O, I, T, h, w)`, as `weight_of` gives it, any range.
        style: How; under `channel` and `signed` all kernels of a filter are scaled together, and `run` means `layer`.
            `channels` chooses filters; `top:K` those with the largest L2 norm.

    Returns:
        On the device of `weight`. Of three input channels one tile per filter in true colours, uint8 `(H, W, 3)`, whatever
        the style's colour map; `signed` puts zero at middle grey. Of one input channel one tile per filter, else a row of
        tiles per filter, one for each input channel: uint8 `(H, W)`, or `(H, W, 3)` with a `style.palette`. The frames of a
        kernel `(T, h, w)` are tiles side by side. Kernels of a single value have no padding between them. Small pictures are
        magnified to about 512 pixels, those with numbers until a filter is as large as its number, and by `style.scale`
        besides.

    Raises:
        NotAMapError: None of the chosen filters is there.

    Example:
        >>> from fmapviz.options import Style
        >>> draw(torch.randn(64, 3, 11, 11), Style()).shape  # 8 x 8 tiles, six times as large
        torch.Size([546, 546, 3])
    """
    chosen = choose(weight, style)
    if chosen is not None:
        if not len(chosen):
            raise NotAMapError(f"has {len(weight)} filters, none of those chosen")
        weight = weight[chosen]
    kernels = weight if weight.ndim == 5 else weight[:, :, None]
    laid = _laid(kernels.shape, style)
    if not _in_colour(kernels.shape):
        tiles = kernels.flatten(0, 2)
        return tile(tiles, laid, _ranges(kernels, len(tiles)))
    # One colour of a point cannot be drawn without the others.
    kernels = kernels.where(kernels.isfinite().all(1, keepdim=True), torch.nan)
    planes = [plane.flatten(0, 1) for plane in kernels.unbind(1)]
    ranges = _ranges(kernels, len(planes[0]))
    return torch.stack([tile(plane, laid, ranges) for plane in planes], -1)


def choose(weight: Tensor, style: Style) -> Tensor | None:
    """Turn the `channels` of a style into numbers of filters.

    Returns:
        int64 `(K)` on the device of `weight`, None for all. Numbers that there are not are left out, so K may be 0.

    Example:
        >>> from fmapviz.options import Style
        >>> choose(torch.tensor([1.0, -3.0, 2.0]).view(3, 1, 1, 1), Style(channels="top:2"))
        tensor([1, 2])
    """
    if style.listed is not None:
        return torch.tensor([number for number in style.listed if number < len(weight)], device=weight.device).long()
    if style.top is not None:
        norms = weight.flatten(1).nan_to_num(nan=0, posinf=0, neginf=0).norm(dim=1)
        ranked: Tensor = norms.sort(descending=True, stable=True).indices  # of two equal ones the lower number comes first
        return ranked[: style.top]
    return None


def tiles_of(shape: Sequence[int], style: Style) -> Tiles | None:
    """Say where `draw` lays the chosen filters.

    Args:
        shape: Of the weight, `(O, I, h, w)` or `(O, I, T, h, w)`.

    Returns:
        One tile per filter, its frames and what is between them included; None if a filter is a row of tiles, or none is
        there.

    Example:
        >>> from fmapviz.options import Style
        >>> tiles_of((64, 3, 11, 11), Style()).corner(63)
        (478, 478)
    """
    return _places(shape, style) if _is_tile(shape) else None


def rows_of(shape: Sequence[int], style: Style) -> Tiles | None:
    """Say where `draw` lays the chosen filters, if each is a row of tiles.

    Args:
        shape: Of the weight, `(O, I, h, w)` or `(O, I, T, h, w)`.

    Returns:
        The whole row of each filter; None if a filter is a single tile, or none is there.

    Example:
        >>> from fmapviz.options import Style
        >>> rows_of((64, 16, 3, 3), Style()).corner(63)
        (2, 506)
    """
    return None if _is_tile(shape) else _places(shape, style)


def weight_of(module: nn.Module) -> Tensor | None:
    """Give the kernels of a convolution, those of a transposed one by its outputs too.

    Returns:
        float32 `(O, I, h, w)` or `(O, I, T, h, w)`, I the input channels of a group, on the weight's device; of a
        one-dimensional convolution `(O, I, 1, w)`. None if the module is no convolution, its weight is complex, or nobody
        knows its shape yet.

    Example:
        >>> weight_of(nn.ConvTranspose2d(6, 10, 3, groups=2)).shape
        torch.Size([10, 3, 3, 3])
    """
    sides = getattr(module, "kernel_size", None)
    weight = getattr(module, "weight", None)
    if callable(weight) and hasattr(module, "zero_point"):  # a quantized module unpacks it
        weight = weight()
    if not isinstance(sides, tuple) or not isinstance(weight, Tensor) or weight.is_complex():
        return None
    if weight.ndim != 2 + len(sides):  # not yet known, among other reasons
        return None
    weight = (weight.dequantize() if weight.is_quantized else weight).detach().float()
    if getattr(module, "transposed", False):
        groups = module.groups if isinstance(module.groups, int) else 1
        weight = weight.reshape(groups, -1, *weight.shape[1:]).transpose(1, 2).flatten(0, 1)
    return weight[:, :, None] if weight.ndim == 3 else weight


def _in_colour(shape: Sequence[int]) -> bool:
    # A colour map is for what has one value at each point: these have three.
    return shape[1] == 3


def _is_tile(shape: Sequence[int]) -> bool:
    return shape[1] == 1 or _in_colour(shape)


def _places(shape: Sequence[int], style: Style) -> Tiles | None:
    """Say where the chosen filters of a weight lie, each with everything that belongs to it; None if there is none."""
    filters, channels, *frames, height, width = shape
    if style.listed is not None:
        filters = sum(number < filters for number in style.listed)
    filters = min(filters, style.top or filters)
    if not filters:
        return None
    whole = (filters, channels, *(frames or [1]), height, width)
    cells = whole[2] * (1 if _is_tile(whole) else channels)
    each = lay_out(filters * cells, height, width, _laid(whole, style))
    across = each.across * cells
    return Tiles(each.left, each.top, across - each.left, each.height, across, each.down, each.columns // cells, filters)


def _ranges(kernels: Tensor, tiles: int) -> Ranges:
    """Give each of so many tiles the extremes of the whole filter that it belongs to."""
    each = measure(kernels.reshape(1, len(kernels), 1, -1))
    filters = torch.arange(len(kernels), device=kernels.device).repeat_interleave(tiles // len(kernels))
    bad = None if each.bad is None else each.bad[:, filters]
    return Ranges(each.low[:, filters], each.high[:, filters], each.mean, bad)


def _legible(shape: Sequence[int], style: Style) -> int:
    """Say how often a filter has to be magnified to fill the room that its number takes."""
    filters, _, frames, height, width = shape
    if not is_numbered(style) or height == width == 1:
        return 1
    across, down = room_of(filters)
    room, side = (across / frames, width) if _is_tile(shape) else (down, height)
    return ceil((room - style.padding) / side)


def _laid(shape: Sequence[int], style: Style) -> Style:
    """Say how `tile` has to lay out kernels `(O, I, T, h, w)`."""
    filters, channels, frames, height, width = shape
    in_row = min(style.columns or isqrt(filters), filters) if _is_tile(shape) else 1
    columns = in_row * frames * (1 if _is_tile(shape) else channels)
    rows = -(-filters // in_row)
    padding = 0 if height == width == 1 else style.padding
    fitting = min((_SIDE - (count + 1) * padding) / (count * side) for count, side in ((columns, width), (rows, height)))
    scale = style.scale * max(1, min(_MOST, round(fitting)), _legible(shape, style))
    return replace(
        style,
        columns=columns,
        padding=padding,
        scale=min(_LARGEST_SCALE, scale),
        colormap="gray" if _in_colour(shape) else style.colormap,
    )
