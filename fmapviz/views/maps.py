"""Output of each layer: one tile of a grid for each channel, one bar for each number of a vector."""

from __future__ import annotations

from functools import partial
from math import isfinite
from typing import TYPE_CHECKING

from fmapviz.core.drawings import Bars, Grid
from fmapviz.render import bars, grid
from fmapviz.render.channel_choice import choose_channels
from fmapviz.render.grid import scale_limits, take_channels
from fmapviz.views.base import BatchContent, NoChannelsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.core.config import Style
    from fmapviz.core.drawings import Tiles
    from fmapviz.views.base import LayerMaps

NEEDS = "outputs"


def draw(maps: LayerMaps, style: Style) -> BatchContent:
    """Draw one grid per image, or bars of a vector.

    Returns:
        Of `Grid` or `Bars`: uint8 `(N, H', W')`, or `(N, H', W', 3)` in colour, on the device of the maps.

    Raises:
        NoChannelsError: None of the chosen channels exists.
    """
    shown, ranges = maps.values, maps.ranges
    chosen = choose_channels(ranges, style)
    if chosen is not None:
        if not chosen.shape[1]:
            raise NoChannelsError(f"has {shown.shape[1]} channels, none of those chosen")
        shown, ranges = take_channels(shown, ranges, chosen)
    count, height, width = shown.shape[1:]
    if maps.vector:
        pixels = bars.draw_bars(shown.flatten(1), style, ranges)
        limits: tuple[Tensor, Tensor] | None = bars.axis_limits(ranges, style)
        make = partial(_make, Bars, bars.lay_out(count, style))
    else:
        pixels = grid.tile(shown, style, ranges)
        # Under these two norms each channel has limits of its own.
        limits = None if style.norm in {"channel", "signed"} else scale_limits(ranges, style)
        make = partial(_make, Grid, grid.lay_out(count, height, width, style))
    tensors = {"pixels": pixels}
    if chosen is not None:
        tensors["channels"] = chosen
    if limits is not None:
        tensors |= {"low": limits[0][:, 0], "high": limits[1][:, 0]}
    return BatchContent(make, tensors)


def _make(
    kind: type[Grid | Bars],
    tiles: Tiles,
    *,
    pixels: NDArray[np.uint8],
    channels: NDArray[np.int64] | Sequence[int] | None = None,
    low: float = float("nan"),
    high: float = float("nan"),
) -> Grid | Bars:
    return kind(
        pixels=pixels,
        tiles=tiles,
        channels=None if channels is None else tuple(map(int, channels)),
        limits=(low, high) if isfinite(low) and isfinite(high) else None,
    )
