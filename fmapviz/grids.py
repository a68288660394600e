"""Draw whatever belongs to a layer and has its shape: a grid of tiles, or bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmapviz.bars import draw_bars
from fmapviz.tiling import Ranges, tile

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.options import Style


def draw_grids(maps: Tensor, ranges: Ranges, style: Style) -> Tensor:
    """Draw one grid per image.

    Args:
        maps: `(N, C, H, W)`, or `(N, K)` of a vector; any range.
        ranges: The extremes of the channels, as `tiling.measure` finds them.
        style: How the grid looks.

    Returns:
        uint8 `(N, H', W')`, or `(N, H', W', 3)` in colour, on the device of `maps`.
    """
    return draw_bars(maps, style, ranges) if maps.ndim == 2 else tile(maps, style, ranges)
