"""Kernels of each convolution, in colour where its input channels are red, green and blue."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, isqrt
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fmapviz.core.drawings import Grid
from fmapviz.core.words import counted
from fmapviz.draw import channel_choice
from fmapviz.draw.grid import as_floats, draw_grids, lay_out, measure, scale_limits
from fmapviz.draw.labels import number_size
from fmapviz.draw.picture import is_numbered, lettering
from fmapviz.observe.reshape import NotAMapError
from fmapviz.observe.used_weight import used_weight
from fmapviz.views.base import NoWeightsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmapviz.config import Style
    from fmapviz.core.drawings import Tiles
    from fmapviz.draw.grid import Ranges

_COLOURS = 3  # input channels drawn in true colours: no colour map fits three values per pixel
_SIDE = 512  # pixels that a small picture is magnified to, about
_LARGEST_SCALE = 64  # that a style can hold
_MOST = 16  # scale at most


def read(module: nn.Module, style: Style) -> Tensor:
    """Return the kernels of a convolution, see `weight_of`.

    Raises:
        NoWeightsError: The module has no kernels.
        NotAMapError: It has none of the chosen filters, or its kernels cannot be seen.
    """
    weight = weight_of(module)
    if weight is None:
        raise NoWeightsError("has no kernels")
    chosen = choose(weight, style)
    if chosen is not None and not len(chosen):
        raise NotAMapError(f"has {counted(len(weight), 'filter')}, none of those chosen")
    return weight


def draw(weight: Tensor, style: Style) -> Grid:
    """Draw the kernels of one convolution as a grid; see `tile_kernels`."""
    chosen = choose(weight, style)
    shown = weight if chosen is None else weight[chosen]
    whole = _measure(weight).of_layer
    limits, ends = style.limits, (float(whole[0]), float(whole[1]))
    if style.scope in {"layer", "run"}:
        largest = max(map(abs, ends))
        limits = None if ends[0] > ends[1] else (-largest, largest) if style.signed else ends
    return Grid(
        pixels=tile_kernels(shown, style, whole=whole).cpu().numpy(),
        tiles=positions_of(shown.shape, style),
        rows=not is_tile(weight.shape),
        channels=None if chosen is None else tuple(chosen.tolist()),
        limits=limits,
        total=len(weight),
        cells=_cells_of(shown.shape, style),
    )


def tile_kernels(weight: Tensor, style: Style, *, whole: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Tile the kernels of one convolution.

    Args:
        weight: float32 `(O, I, h, w)` or `(O, I, T, h, w)`, as `weight_of` returns it, any range.
        style: With `channel` and `signed` all kernels of a filter are scaled together; `run` means `layer`; `channels` is
            ignored.
        whole: Smallest and largest weight of the layer, `(1, 1)` each, if these are some of its filters.

    Returns:
        On the device of `weight`. For three input channels, one tile per filter in true colours, uint8 `(H, W, 3)`, ignoring
        the style's colour map; `signed` puts zero at middle grey. Of one input channel one tile per filter, else a row of
        tiles per filter, one for each input channel: uint8 `(H, W)`, or `(H, W, 3)` with a `style.palette`. The frames of a
        kernel `(T, h, w)` are tiles side by side. Kernels of a single value have no padding between them. With the
        scale 1, small pictures are magnified to about 512 pixels, numbered ones until a filter is as large as its number.

    Example:
        >>> from fmapviz.config import Style
        >>> tile_kernels(torch.randn(64, 3, 11, 11), Style()).shape  # 8 x 8 tiles, six times as large
        torch.Size([546, 546, 3])
    """
    kernels = weight if weight.ndim == 5 else weight[:, :, None]
    laid = _laid(kernels.shape, style)
    if kernels.shape[1] != _COLOURS:
        tiles = kernels.flatten(0, 2)
        return _tile(tiles, laid, _ranges(kernels, len(tiles), whole))
    # One colour of a pixel cannot be drawn without the others.
    kernels = kernels.where(kernels.isfinite().all(1, keepdim=True), torch.nan)
    planes = [plane.flatten(0, 1) for plane in kernels.unbind(1)]
    ranges = _ranges(kernels, len(planes[0]), whole)
    return torch.stack([_tile(plane, laid, ranges) for plane in planes], -1)


def _tile(tiles: Tensor, style: Style, ranges: Ranges) -> Tensor:
    """Draw tiles `(K, h, w)` as one grid."""
    maps = as_floats(tiles[None])
    layout = lay_out(maps.shape[1], maps.shape[2], maps.shape[3], style)
    return draw_grids(maps, ranges, scale_limits(ranges, style), layout, style)[0]


def choose(weight: Tensor, style: Style) -> Tensor | None:
    """Turn the `channels` of a style into filter numbers; `top:K` are those with the largest L2 norm.

    Returns:
        int64 `(K,)` on the device of `weight`, None for all. Numbers of filters that do not exist are left out, so K may be
        0.

    Example:
        >>> from fmapviz.config import Style
        >>> choose(torch.tensor([1.0, -3.0, 2.0]).view(3, 1, 1, 1), Style(channels="top:2"))
        tensor([1, 2])
    """
    if style.channels == "all":
        return None
    norms = weight.flatten(1).nan_to_num(nan=0, posinf=0, neginf=0).norm(dim=1)
    return channel_choice.choose(norms[None], style)[0]


def positions_of(shape: Sequence[int], style: Style) -> Tiles:
    """Return the position of the filters in `tile_kernels`, each with all its tiles and the padding between them.

    Args:
        shape: Of the weight, `(O, I, h, w)` or `(O, I, T, h, w)`.
        style: See `tile_kernels`.

    Returns:
        One tile per filter, or its whole row of tiles, see `is_tile`.

    Example:
        >>> from fmapviz.config import Style
        >>> positions_of((64, 3, 11, 11), Style()).corner(63)
        (478, 478)
        >>> positions_of((64, 16, 3, 3), Style()).corner(63)  # rows
        (2, 506)
    """
    each, filters = _cells_of(shape, style), shape[0]
    cells = each.count // filters
    across = each.across * cells
    return replace(each, width=across - each.left, across=across, columns=each.columns // cells, count=filters)


def _cells_of(shape: Sequence[int], style: Style) -> Tiles:
    """Return the position of the single tiles of `tile_kernels`: a filter has one for each input channel and frame."""
    filters, channels, frames, height, width = whole = (*shape[:2], *(shape[2:-2] or (1,)), *shape[-2:])
    cells = frames * (1 if is_tile(whole) else channels)
    return lay_out(filters * cells, height, width, _laid(whole, style))


def weight_of(module: nn.Module) -> Tensor | None:
    """Return the kernels of a convolution; those of a transposed one are ordered by its outputs too.

    Returns:
        float32 `(O, I, h, w)` or `(O, I, T, h, w)`, I the input channels of a group, on the weight's device; of a
        one-dimensional convolution `(O, I, 1, w)`. None if the module is no convolution, its weight is complex, or its shape
        is not known yet.

    Raises:
        NotAMapError: The kernels are not the same in every call; see `used_weight`.

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
    if weight.ndim != 2 + len(sides):  # a lazy module, among others
        return None
    weight = used_weight(module, weight)
    weight = (weight.dequantize() if weight.is_quantized else weight).detach().float()
    if getattr(module, "transposed", False):
        groups = module.groups if isinstance(module.groups, int) else 1
        weight = weight.reshape(groups, -1, *weight.shape[1:]).transpose(1, 2).flatten(0, 1)
    return weight[:, :, None] if weight.ndim == 3 else weight


def is_tile(shape: Sequence[int]) -> bool:
    """Return True if each filter is a single tile: in true colours, or of one input channel."""
    return shape[1] in {1, _COLOURS}


def _ranges(kernels: Tensor, tiles: int, whole: tuple[Tensor, Tensor] | None) -> Ranges:
    """Return the extremes of the whole filter for each of its tiles."""
    filters = torch.arange(len(kernels), device=kernels.device).repeat_interleave(tiles // len(kernels))
    return replace(_measure(kernels), whole=whole).take(filters[None])


def _measure(weight: Tensor) -> Ranges:
    """Return the extremes of each filter."""
    return measure(weight.reshape(1, len(weight), 1, -1))


def _legible(shape: Sequence[int], style: Style) -> int:
    """Return the scale at which a filter is as large as its number."""
    filters, _, frames, height, width = shape
    if not is_numbered(style) or height == width == 1:
        return 1
    across, down = number_size(filters, lettering(style))
    room, side = (across / frames, width) if is_tile(shape) else (down, height)
    return ceil((room - style.padding) / side)


def _laid(shape: Sequence[int], style: Style) -> Style:
    """Return the style with which `tile` lays out kernels `(O, I, T, h, w)`."""
    filters, channels, frames, height, width = shape
    in_row = min(style.columns or isqrt(filters), filters) if is_tile(shape) else 1
    columns = in_row * frames * (1 if is_tile(shape) else channels)
    rows = -(-filters // in_row)
    padding = 0 if height == width == 1 else style.padding
    fitting = min((_SIDE - (count + 1) * padding) / (count * side) for count, side in ((columns, width), (rows, height)))
    scale = style.scale if style.scale > 1 else max(1, min(_MOST, round(fitting)), _legible(shape, style))
    return replace(
        style,
        columns=columns,
        padding=padding,
        scale=min(_LARGEST_SCALE, scale),
        colormap="gray" if channels == _COLOURS else style.colormap,
    )
