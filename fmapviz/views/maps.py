"""Output of each layer: one tile of a grid for each channel, one bar for each number of a vector."""

from __future__ import annotations

from math import isfinite, nan
from typing import TYPE_CHECKING

from fmapviz.core.drawings import Grid
from fmapviz.render import bars, grid
from fmapviz.render.channel_choice import choose_channels
from fmapviz.render.grid import scale_limits, take_channels
from fmapviz.views.base import BatchContent, NoChannelsError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.core.config import Style
    from fmapviz.views.base import LayerMaps

NEEDS = "outputs"


def draw(maps: LayerMaps, style: Style) -> BatchContent:
    """Draw one grid per image, or bars of a vector.

    Returns:
        Of `Grid`: uint8 `(N, H', W')`, or `(N, H', W', 3)` in colour, on the device of the maps.

    Raises:
        NoChannelsError: None of the chosen channels exists.
    """
    shown, ranges = maps.values, maps.ranges
    chosen = choose_channels(ranges, style)
    if chosen is not None:
        if not chosen.shape[1]:
            raise NoChannelsError(f"has {shown.shape[1]} channels, none of those chosen")
        shown, ranges = take_channels(shown, ranges, chosen)
    if maps.vector:
        tiles = bars.lay_out(shown.shape[1], style)
        pixels = bars.draw_bars(shown.flatten(1), style, ranges)
        limits: tuple[Tensor, Tensor] | None = bars.axis_limits(ranges, style)
    else:
        count, height, width = shown.shape[1:]
        tiles = grid.lay_out(count, height, width, style)
        pixels = grid.tile(shown, style, ranges)
        # Under these two norms each channel has limits of its own.
        limits = None if style.norm in {"channel", "signed"} else scale_limits(ranges, style)
    tensors = {"pixels": pixels}
    if chosen is not None:
        tensors["channels"] = chosen
    if limits is not None:
        tensors |= {"low": limits[0][:, 0], "high": limits[1][:, 0]}

    def make(
        pixels: NDArray[np.uint8], channels: Iterable[int] | None = None, *, low: float = nan, high: float = nan
    ) -> Grid:
        return Grid(
            pixels,
            tiles,
            channels=None if channels is None else tuple(map(int, channels)),
            limits=(low, high) if isfinite(low) and isfinite(high) else None,
            bars=maps.vector,
        )

    return BatchContent(make, tensors)
