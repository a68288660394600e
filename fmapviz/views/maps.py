"""Output of each layer: one tile of a grid for each channel, one bar for each number of a vector."""

from __future__ import annotations

from math import isfinite, nan
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from fmapviz.core.config import Style, check_type
from fmapviz.core.drawings import Grid
from fmapviz.core.errors import RequestError
from fmapviz.core.words import counted
from fmapviz.inspection.reshape import NotAMapError, frames_of
from fmapviz.render import bars, grid
from fmapviz.render.channel_choice import choose_channels
from fmapviz.render.layout import draw as paint
from fmapviz.render.picture import frame, render_grid
from fmapviz.views.base import BatchContent, LayerMaps, NoChannelsError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.core.drawings import Content
    from fmapviz.core.types import FeatureMap

NEEDS = "outputs"
LOOKS = "norm columns padding channels scale colormap labels background text_size with_input colorbar"


def draw(maps: LayerMaps, style: Style) -> BatchContent:
    """Draw one grid per image, or bars of a vector.

    Returns:
        Of `Grid`: uint8 `(N, H', W')`, or `(N, H', W', 3)` in colour, on the device of the maps.

    Raises:
        NoChannelsError: None of the chosen channels exists.
    """
    shown, ranges = maps.values, maps.ranges
    tensors: dict[str, Tensor] = {}
    if style.channels != "all":
        chosen = tensors["channels"] = choose_channels(ranges, style)
        if not chosen.shape[1]:
            raise NoChannelsError(f"has {counted(shown.shape[1], 'channel')}, none of those chosen")
        shown, ranges = grid.take_channels(shown, ranges, chosen)
    count, height, width = shown.shape[1:]
    if maps.vector:
        tiles, limits = bars.lay_out(count, style), bars.axis_limits(ranges, style)
        tensors["pixels"] = bars.draw_bars(shown.flatten(1), style, ranges)
    else:
        tiles, limits = grid.lay_out(count, height, width, style), grid.scale_limits(ranges, style)
        pixels = grid.arrange(grid.scale(shown, ranges, limits, style), tiles)
        tensors["ends"] = grid.level_ends(limits, style)
        tensors["pixels"] = grid.colour(pixels, shown, tiles, style.palette) if style.palette else pixels
    if maps.vector or style.scope != "channel":  # else each channel has limits of its own
        tensors |= {"low": limits[0][:, 0], "high": limits[1][:, 0]}

    def make(
        pixels: NDArray[np.uint8],
        channels: Iterable[int] | None = None,
        ends: NDArray[np.float32] | None = None,
        *,
        low: float = nan,
        high: float = nan,
    ) -> Grid:
        return Grid(
            pixels,
            tiles,
            channels=None if channels is None else tuple(map(int, channels)),
            limits=(low, high) if isfinite(low) and isfinite(high) else None,
            bars=maps.vector,
            total=maps.values.shape[1],
            ends=ends,
            palette=None if maps.vector else style.palette,
        )

    return BatchContent(make, tensors)


def show(feature_map: FeatureMap, style: Style | None = None) -> Image.Image:
    """Draw one feature map outside of a run; see `FeatureMap.show`.

    Raises:
        RequestError: It is neither a map nor a vector, or has none of the chosen channels.
    """
    check_type("style", style, Style | None, hint="such as Style(columns=8)")
    style, values = style or Style(), feature_map.values.detach()
    try:
        frames = frames_of(feature_map, values).values()
    except NotAMapError as error:
        raise RequestError(
            f"{feature_map.name} is no map and no vector: {error}", hint="its attribute values has them"
        ) from error
    drawn = []
    for part in map(grid.as_floats, frames):
        is_vector = part.ndim == 2
        shown = part[:, :, None, None] if is_vector else part
        try:
            content = draw(LayerMaps(shown, grid.measure(shown, moments=style.rank != "max"), is_vector), style)
        except NotAMapError as error:
            raise RequestError(f"{feature_map.name} {error}", hint=f"Style(channels='0-{shown.shape[1] - 1}')") from error
        images = zip(*(tensor.cpu().numpy() for tensor in content.tensors.values()), strict=True)
        made = (content.make(**dict(zip(content.tensors, parts, strict=True))) for parts in images)
        drawn += [_framed(each, style, feature_map) for each in made]
    return Image.fromarray(np.concatenate(drawn))


def _framed(content: Content, style: Style, feature_map: FeatureMap) -> NDArray[np.uint8]:
    """Add what a style asks for to a grid: numbers, a colour bar, a header."""
    assert isinstance(content, Grid)
    shape = " x ".join(map(str, feature_map.values.shape[1:]))
    lines = [f"{feature_map.name}  {feature_map.layer.type}  {shape}"]
    box, ground, *_ = frame(render_grid(content, style), content, style, lines)
    return paint(box, ground)
