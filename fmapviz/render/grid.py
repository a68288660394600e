"""Tile channels into one grid, pixel for pixel as `torchvision.utils.make_grid` does.

The reference is `save_image(make_grid(maps[:, None], normalize=True, scale_each=True, nrow=int(sqrt(C)), padding=2))` in one
grey channel, for each image `(C, H, W)` of a batch. A colour map is applied to the same levels 0..255.
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fmapviz.core.config import Style
from fmapviz.core.drawings import Tiles
from fmapviz.core.errors import RequestError
from fmapviz.render.colormaps import checkerboard, colorize
from fmapviz.render.ranges import Ranges, as_floats, measure, on_cpu, scale, scale_limits

if TYPE_CHECKING:
    from torch import Tensor

_PLAIN = Style()


def tile(maps: Tensor, style: Style = _PLAIN, ranges: Ranges | None = None) -> Tensor:
    """Draw the channels of one or several images as grids.

    Args:
        maps: Any floating or integer type, `(C, H, W)` or `(N, C, H, W)`, any range; not changed.
        style: How the grid looks; `style.channels` is ignored.
        ranges: The result of `measure(maps)`, if already known.

    Returns:
        uint8 `(H', W')` or `(N, H', W')` on the device of `maps`; with a `style.palette` `(H', W', 3)` or `(N, H', W', 3)`.
        NaN and infinite values are drawn as a checkerboard of black and white and do not affect the scaling.

    Raises:
        RequestError: The maps have another number of dimensions, no element, or complex values.

    Example:
        >>> tile(torch.randn(64, 55, 55)).shape  # 8 x 8 tiles, 2 pixels between them and around
        torch.Size([458, 458])
        >>> tile(torch.randn(64, 55, 55), Style(norm="signed")).shape  # blue below zero, red above
        torch.Size([458, 458, 3])
    """
    if maps.ndim not in {3, 4} or maps.numel() == 0 or maps.is_complex():
        kind = "complex " if maps.is_complex() else ""
        raise RequestError(f"maps must be real, (C, H, W) or (N, C, H, W), and not empty: '{kind}{tuple(maps.shape)}'")
    if maps.ndim == 3:
        return tile(maps[None], style, ranges)[0]
    maps = as_floats(maps.detach())
    ranges = ranges or measure(maps)
    levels = scale(maps, scale_limits(ranges, style), style)
    if ranges.bad is not None:
        board = checkerboard(maps.shape[2], maps.shape[3], maps.device, square=1)
        levels = torch.where(maps.isfinite(), levels, board)
    grids = _arrange(levels, style)
    if style.palette is None:
        return grids
    coloured = _arrange(maps.isfinite(), style).bool()  # neither the padding nor a checkerboard
    return torch.where(coloured[..., None], colorize(grids, style.palette), grids[..., None])


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


def _arrange(tiles: Tensor, style: Style) -> Tensor:
    """Arrange tiles `(N, C, h, w)` in rows, truncated to uint8, by one strided assignment.

    On the CPU NumPy assigns, which converts to bytes seven times as fast as torch.
    """
    images, count, height, width = tiles.shape
    zoom = style.scale
    layout = lay_out(count, height, width, style)
    columns, gap, down, across = layout.columns, layout.left, layout.down, layout.across
    full, rest = divmod(count, columns)
    rows, line = full + bool(rest), columns * across + gap
    size = (images, rows * down + gap, line)
    # The grid without its gaps; each value fills a square of `zoom` pixels.
    shape = (images, rows, columns, height, zoom, width, zoom)
    strides = (size[1] * line, down * line, across, zoom * line, line, zoom, 1)
    cells: Any  # NumPy's or torch's: both support indexing and assignment
    source: Any
    if on_cpu(tiles):
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
