"""Output of each layer: one tile of a grid for each channel, one bar for each number of a vector."""

from __future__ import annotations

import warnings
from dataclasses import replace
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fmapviz.config import Style, check_type
from fmapviz.config.looks import effective_style
from fmapviz.core.drawings import Grid
from fmapviz.core.words import counted
from fmapviz.data import FeatureMap
from fmapviz.draw import bars, grid
from fmapviz.draw.channel_choice import choose_channels, describe_left_out
from fmapviz.draw.layout import Background
from fmapviz.draw.layout import draw as paint
from fmapviz.draw.picture import frame, is_numbered, lettering, render_grid
from fmapviz.errors import RequestError, first_few, quote
from fmapviz.observe.reshape import NotAMapError, own_frames
from fmapviz.views.base import BatchContent, LayerMaps, NoChannelsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    Maps = Tensor | NDArray[Any] | FeatureMap

_PLAIN = Style()
_DEPTH = 5  # frames from a warning to the caller of `FeatureMap.show`; `fmapviz.tile` has one more
_MAPS = "such as maps['layer1'].values of fmapviz.capture"


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
        tensors |= {"lows": limits[0], "highs": limits[1]}
        tensors["pixels"] = grid.draw_grids(shown, ranges, limits, tiles, style)
    if maps.vector or style.scope != "channel":  # else each channel has its own limits
        tensors |= {"low": limits[0][:, 0], "high": limits[1][:, 0]}

    def make(
        pixels: NDArray[np.uint8],
        channels: Iterable[int] | None = None,
        lows: NDArray[np.float32] | None = None,
        highs: NDArray[np.float32] | None = None,
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
            ends=None if lows is None or highs is None else grid.level_ends(lows, highs, style),
            palette=None if maps.vector else style.palette,
        )

    return BatchContent(make, tensors)


def tile(maps: Maps | Sequence[Maps], style: Style) -> Tensor:
    """Draw maps in the user's own loop; see `fmapviz.tile`.

    Raises:
        RequestError: The maps have a wrong type or none of the chosen channels, or the style requests the input.
    """
    check_type("style", style, Style, hint="such as Style(columns=8)")
    if isinstance(maps, FeatureMap):
        grids = _draw_grids([*own_frames(maps).values()], style, maps, depth=_DEPTH + 1)
        return grids[0] if len(grids) == 1 else grids
    values = _as_tensor(maps)
    _check_dense(values)
    grids = _draw_grids([values if values.ndim == 4 else values[None]], style, depth=_DEPTH + 1)
    return grids if values.ndim == 4 else grids[0]


def show(feature_map: FeatureMap, style: Style | None = None) -> Image.Image:
    """Draw one feature map as one picture; see `FeatureMap.show`.

    Raises:
        RequestError: It is neither a map nor a vector, or has none of the chosen channels.
    """
    check_type("style", style, Style | None, hint="such as Style(columns=8)")
    grids = _draw_grids([*own_frames(feature_map).values()], style or _PLAIN, feature_map)
    return Image.fromarray(grids.flatten(0, 1).cpu().numpy())


def _draw_grids(
    frames: Sequence[Tensor], style: Style, feature_map: FeatureMap | None = None, *, depth: int = _DEPTH
) -> Tensor:
    """Draw a grid for each image of each frame `(N, C, H, W)`, or bars for a vector `(N, K)`.

    Returns:
        uint8 `(G, H', W')`, `(G, H', W', 3)` or `(G, H', W', 4)`; smaller pictures are filled up with the background.
    """
    _check_style(style, depth=depth)
    shown = [grid.as_floats(each.detach()[:, :, None, None] if each.ndim == 2 else each.detach()) for each in frames]
    if any(map(grid.is_rounded, frames)):
        warnings.warn(f"{grid.ROUNDED} of {feature_map.name if feature_map else 'maps'}", stacklevel=depth - 1)
    measured = [grid.measure(each, moments=style.rank != "max") for each in shown]
    if style.scope == "run":
        measured = _share(measured)
    channels, is_vector = frames[0].shape[1], frames[0].ndim == 2
    try:
        contents = [draw(LayerMaps(*each, is_vector), style) for each in zip(shown, measured, strict=True)]
    except NotAMapError as error:
        name = feature_map.name if feature_map else "maps"
        raise RequestError(f"{name} {error}", hint=f"Style(channels='0-{channels - 1}')") from error
    if style.channels != "all" and (left_out := describe_left_out(style, {"the layer": channels})):
        warnings.warn(left_out, stacklevel=depth - 1)
    if not (is_numbered(style) or style.labels or style.colorbar or lettering(style).background != Background()):
        return torch.cat([each.tensors["pixels"] for each in contents])
    lines = _header(feature_map) if feature_map else []
    framed = [frame(render_grid(each, style), each, style, lines)[:2] for each in _to_host(contents)]
    width, height = max(box.width for box, _ in framed), max(box.height for box, _ in framed)
    pages = [paint(box.within(width, height, x=0, y=0), background) for box, background in framed]
    return torch.from_numpy(np.stack(pages)).to(frames[0].device)


def _check_style(style: Style, *, depth: int) -> None:
    """Refuse options that need a run, and warn of options without effect.

    Raises:
        RequestError: The style requests the input, or channels ranked by change.
    """
    if style.with_input:
        raise RequestError(
            "with_input=True needs an input: here are feature maps alone", hint="fmapviz.visualize draws both"
        )
    if style.rank == "change":
        raise RequestError("channels are ranked by change where two networks are compared", hint="channels='top:16:max'")
    _, idle = effective_style(style, ["maps"]) if style != _PLAIN else (style, [])
    if idle:
        warnings.warn(f"no effect on grids of feature maps: {', '.join(idle)}", stacklevel=depth)


def _share(measured: Sequence[grid.Ranges]) -> list[grid.Ranges]:
    """Return the ranges of all maps with the ends of all together."""
    ends = [each.of_layer for each in measured]
    low, high = min(float(low.min()) for low, _ in ends), max(float(high.max()) for _, high in ends)
    shared = grid.Shared(low, high) if low <= high else grid.Shared(nan, nan)
    return [replace(each, shared=shared) for each in measured]


def _to_host(contents: Sequence[BatchContent]) -> Iterator[Grid]:
    """Yield the grid of each image."""
    for content in contents:
        arrays = [tensor.cpu().numpy() for tensor in content.tensors.values()]
        for parts in zip(*arrays, strict=True):
            drawn = content.make(**dict(zip(content.tensors, parts, strict=True)))
            assert isinstance(drawn, Grid)
            yield drawn


def _header(feature_map: FeatureMap) -> list[str]:
    shape = " x ".join(map(str, feature_map.values.shape[1:]))
    return [f"{feature_map.name}  {feature_map.layer.type}  {shape}"]


def _as_tensor(maps: object) -> Tensor:
    """Return maps of any type that `tile` takes as one tensor.

    Raises:
        RequestError: They are of another type, or a list of different shapes.
    """
    if isinstance(maps, Tensor):
        return maps
    if isinstance(maps, FeatureMap):
        values = torch.cat([*own_frames(maps).values()])
        _check_dense(values)
        return values
    if isinstance(maps, np.ndarray):
        try:
            return torch.from_numpy(np.array(maps, maps.dtype.newbyteorder("=")))  # a copy: it may be read-only or mirrored
        except TypeError as error:
            raise RequestError(f"maps must be an array of numbers, not of {quote(maps.dtype)}", hint=_MAPS) from error
    if isinstance(maps, list | tuple) and maps:
        parts = [_as_tensor(each) for each in maps]
        try:
            return torch.cat(parts) if parts[0].ndim == 4 else torch.stack(parts)
        except RuntimeError as error:
            shapes = first_few([str(tuple(part.shape)) for part in parts], separator="; ")
            raise RequestError(f"maps of different shapes or devices: {quote(shapes)}", hint="draw each alone") from error
    is_picture = isinstance(maps, Image.Image)
    hint = "fmapviz.visualize and fmapviz.cam take pictures; tile draws feature maps" if is_picture else _MAPS
    raise RequestError(f"maps must be a tensor, not {quote(type(maps).__name__)}", hint=hint)


def _check_dense(maps: Tensor) -> None:
    """Raise RequestError unless maps are dense, real, and of one or several images."""
    if maps.layout != torch.strided or maps.is_quantized or maps.is_nested:
        kind = str(maps.dtype if maps.is_quantized else "nested" if maps.is_nested else maps.layout)
        raise RequestError(f"maps must be a dense tensor of numbers: {quote(kind)}", hint="maps.to_dense(), or dequantize()")
    if maps.ndim not in {3, 4} or maps.numel() == 0 or maps.is_complex():
        kind = "complex " if maps.is_complex() else ""
        raise RequestError(
            f"maps must be real, (C, H, W) or (N, C, H, W), and not empty: '{kind}{tuple(maps.shape)}'", hint=_MAPS
        )
