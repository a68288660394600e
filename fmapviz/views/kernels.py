"""What each convolution looks for: its kernels, in colour where they see red, green and blue."""

from __future__ import annotations

from dataclasses import replace
from math import isqrt
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

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
        On the device of `weight`. Of three input channels one tile per filter in true colours, uint8 `(H, W, 3)`, unless the
        style names another colour map than grey; `signed` puts zero at middle grey. Of one input channel one tile per
        filter, else a row of tiles per filter, one for each input channel: uint8 `(H, W)`, or `(H, W, 3)` with a
        `style.palette`. The frames of a kernel `(T, h, w)` are tiles side by side. Kernels of a single value have no padding
        between them. Small pictures are magnified to about 512 pixels, and by `style.scale` besides.

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
    if not _in_colour(kernels.shape, style):
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
    filters, channels, *frames, height, width = shape
    if style.listed is not None:
        filters = sum(number < filters for number in style.listed)
    filters = min(filters, style.top or filters)
    whole = (filters, channels, *(frames or [1]), height, width)
    if not (filters and _is_tile(whole, style)):
        return None
    laid, cells = _laid(whole, style), whole[2]
    each = lay_out(filters * cells, height, width, laid)
    across = each.across * cells
    return Tiles(each.left, each.top, across - each.left, each.height, across, each.down, each.columns // cells, filters)


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


def _in_colour(shape: Sequence[int], style: Style) -> bool:
    # `signed` has blue and red of its own, which the colours of kernels are preferred to.
    return shape[1] == 3 and style.colormap in {None, "gray"}


def _is_tile(shape: Sequence[int], style: Style) -> bool:
    return shape[1] == 1 or _in_colour(shape, style)


def _ranges(kernels: Tensor, tiles: int) -> Ranges:
    """Give each of so many tiles the extremes of the whole filter that it belongs to."""
    each = measure(kernels.reshape(1, len(kernels), 1, -1))
    filters = torch.arange(len(kernels), device=kernels.device).repeat_interleave(tiles // len(kernels))
    bad = None if each.bad is None else each.bad[:, filters]
    return Ranges(each.low[:, filters], each.high[:, filters], each.mean, bad)


def _laid(shape: Sequence[int], style: Style) -> Style:
    """Say how `tile` has to lay out kernels `(O, I, T, h, w)`."""
    filters, channels, frames, height, width = shape
    in_row = min(style.columns or isqrt(filters), filters) if _is_tile(shape, style) else 1
    columns = in_row * frames * (1 if _is_tile(shape, style) else channels)
    rows = -(-filters // in_row)
    padding = 0 if height == width == 1 else style.padding
    fitting = min((_SIDE - (count + 1) * padding) / (count * side) for count, side in ((columns, width), (rows, height)))
    scale = style.scale * max(1, min(_MOST, round(fitting)))
    return replace(
        style,
        columns=columns,
        padding=padding,
        scale=min(_LARGEST_SCALE, scale),
        colormap="gray" if _in_colour(shape, style) else style.colormap,
    )
