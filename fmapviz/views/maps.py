"""Every channel of a layer's output as one tile of a grid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmapviz.tiling import Ranges, tile

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.options import Style


def draw(maps: Tensor, ranges: Ranges, style: Style) -> Tensor:
    """Draw one grid per image.

    Args:
        maps: `(N, C, H, W)`, any range.
        ranges: The extremes of the channels, as `tiling.measure` finds them.
        style: How the grid looks.

    Returns:
        uint8 `(N, H', W')`, on the device of `maps`.
    """
    return tile(maps, style, ranges)
