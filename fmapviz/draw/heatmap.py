"""Turn a map at a layer's resolution into a heat map, and draw it over the input or alone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from fmapviz.core.centres import Centres
from fmapviz.draw.colormaps import checkerboard, table

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.config import Style
    from fmapviz.core.drawings import HeatMap, Size

_TINY = 1e-38  # smaller float32 values are subnormal


def heat_and_ends(
    raw: Tensor, size: Size, centres: Centres | None = None, *, limits: tuple[float, float] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Enlarge the positive part of each map and scale it to 0..1.

    The order matters: negative values become zero at the layer's resolution, as in the paper (Selvaraju et al., "Grad-CAM:
    Visual Explanations from Deep Networks via Gradient-based Localization", 2017), before values are interpolated between.
    It is scaled before and after that, as pytorch-grad-cam does, by `(x - min) / max(x - min)`. pytorch-grad-cam adds 1e-7
    to the divisor, so that its maps depend on the size of the gradients if that is about 1e-7 or less.

    Args:
        raw: `(N, h, w)`, any floating type, any range; NaN and infinite values count as 0.
        size: Height and width of the input, pixels.
        centres: Where the values lie in the input; None: they span it. Where no position sees it, the map is zero.
        limits: Values at 0 and 1; None: the smallest and largest one of each map, before and after it is enlarged.

    Returns:
        The maps, float32 `(N, H, W)`, 0..1, zero for a map without any positive value; and their values at 0 and at 1,
        float32 `(N,)` each. Without limits these are the extremes of the enlarged map, which is flatter than `raw`.

    Example:
        >>> heat, low, high = heat_and_ends(torch.tensor([[[-1.0, 3.0]]]), (1, 4))
        >>> heat, low, high
        (tensor([[[0.0000, 0.2500, 0.7500, 1.0000]]]), tensor([0.]), tensor([3.]))
    """
    positive = raw.float().nan_to_num(nan=0, posinf=0, neginf=0).relu()
    unseen = centres.unseen(size) if centres else None
    before, smallest, span = _scaled(positive)
    enlarged = _interpolate(positive if limits else before, size, centres)
    if unseen is not None:
        enlarged.masked_fill_(torch.from_numpy(unseen).to(enlarged.device), 0)
    if limits:
        low, high = map(partial(torch.full_like, smallest), limits)
        return ((enlarged - low) / max(limits[1] - limits[0], _TINY)).clamp(0, 1), low.flatten(), high.flatten()
    heat, least, rise = _scaled(enlarged)
    low = smallest + least * span
    return heat, low.flatten(), (low + rise * span).flatten()


def enlarge(raw: Tensor, size: Size, centres: Centres | None = None) -> Tensor:
    """Enlarge maps bilinearly, with their signs.

    Args:
        raw: `(N, h, w)`, any floating type, any range; NaN and infinite values count as 0.
        size: Height and width of the input, pixels.
        centres: Where the values lie in the input; None: they span it. Where no position sees it, the map is zero.

    Returns:
        float32 `(N, H, W)`, within the range of `raw`.

    Example:
        >>> enlarge(torch.tensor([[[-1.0, 3.0]]]), (1, 4))
        tensor([[[-1.,  0.,  2.,  3.]]])
    """
    enlarged, _ = _enlarge(raw.float().nan_to_num(nan=0, posinf=0, neginf=0), size, smooth=True, centres=centres)
    unseen = centres.unseen(size) if centres else None
    return enlarged if unseen is None else enlarged.masked_fill(torch.from_numpy(unseen).to(enlarged.device), 0)


def stretch(
    raw: Tensor,
    size: Size,
    style: Style,
    limits: tuple[float, float] | None = None,
    *,
    smooth: bool = True,
    centres: Centres | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Enlarge maps of any range, and scale them to 0..255.

    Args:
        raw: `(N, h, w)`, any range. Pixels `nearest` to a value that is not finite are 0; such values do not affect other
            pixels.
        size: Requested height and width, pixels; with those of `raw` nothing is enlarged.
        style: With a signed `norm` zero is in the middle.
        limits: Values at 0 and 255; None: each enlarged map's smallest and largest value.
        smooth: Whether to interpolate bilinearly; otherwise each pixel has the nearest value.
        centres: Where the values lie in the input, over which they are drawn; None: they span it.

    Returns:
        The levels, uint8 `(N, H, W)`, and the values at 0 and at 255, float32 `(N,)` each; NaN for a map without any finite
        value.

    Example:
        >>> from fmapviz.config import Style
        >>> maps = torch.tensor([[[-1.0, 2.0]]])
        >>> stretch(maps, (1, 2), Style())[0].tolist(), stretch(maps, (1, 2), Style("signed"))[0].tolist()
        ([[[0, 255]]], [[[64, 255]]])
    """
    raw, finite = _enlarge(raw.float(), size, smooth=smooth, centres=centres)
    low, high = _extremes(raw, finite)
    if limits:
        low, high = (torch.full_like(low, limit) for limit in limits)
    if style.signed:
        high = torch.maximum(low.abs(), high.abs())
        low = -high
    each = (-1, 1, 1)
    span = (high - low).clamp(min=_TINY)
    levels = (raw - low.view(each)) / span.view(each)
    if finite is None:
        return _bytes(levels), low, high
    some = finite.flatten(1).any(1)
    return _bytes(levels.where(finite, 0)), low.where(some, torch.nan), high.where(some, torch.nan)


def nearest(have: int, wanted: int, device: torch.device | None = None) -> Tensor:
    """Return the index of the nearest of `have` values in a row for each of `wanted` pixels, int64 `(wanted,)`.

    Example:
        >>> nearest(2, 5).tolist()
        [0, 0, 1, 1, 1]
    """
    return (2 * torch.arange(wanted, device=device) + 1) * have // (2 * wanted)


def nearest_values(grid: Size, size: Size, centres: Centres | None = None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the row and column of a map whose centre is nearest to each pixel of the enlarged map.

    Args:
        grid: Rows and columns of the map.
        size: Height and width of the enlarged one, pixels.
        centres: Positions of its values in the input; None: they span it.
    """
    if centres is not None:
        return centres.nearest(size)
    rows, columns = (nearest(*sides).numpy() for sides in zip(grid, size, strict=True))
    return rows, columns


def interpolate_colours(pixels: NDArray[np.uint8], size: Size, centres: Centres | None = None) -> NDArray[np.uint8]:
    """Enlarge a map in colour, uint8 `(h, w, 3)`, bilinearly to uint8 `(H, W, 3)`; see `nearest_values`."""
    enlarged = _interpolate(torch.from_numpy(pixels).permute(2, 0, 1).float(), size, centres)
    return enlarged.add(0.5).clamp(0, 255).byte().permute(1, 2, 0).contiguous().numpy()


def draw_heat_map(heat: HeatMap, seen: NDArray[np.uint8], style: Style, centres: Centres | None = None) -> NDArray[np.uint8]:
    """Draw a heat map over the input, or alone in its colour map; `centres` are its positions in the input.

    There is no colour where no position of the map sees the input.
    """
    colormap = colormap_of(heat, style)
    if heat.over:
        below = gray_of(seen) if style.gray_input else seen
        blended = mark_nonfinite(overlay(below, heat.pixels, colormap=colormap, alpha=style.alpha), heat, centres)
        unseen = centres.unseen((blended.shape[0], blended.shape[1])) if centres else None
        if unseen is None:
            return blended
        return np.where(unseen[..., None], below if below.ndim == 3 else below[..., None], blended)
    return mark_nonfinite(heat.pixels if colormap == "gray" else table(colormap)[heat.pixels], heat)


def gray_of(seen: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the luma of a picture, uint8 `(H, W)`, by ITU-R BT.601 as Pillow computes it.

    Example:
        >>> gray_of(np.array([[[255, 0, 0], [0, 255, 0]]], np.uint8)).tolist()
        [[76, 150]]
    """
    return np.asarray(Image.fromarray(seen).convert("L"))


def overlay(seen: NDArray[np.uint8], heat: NDArray[np.uint8], *, colormap: str, alpha: float) -> NDArray[np.uint8]:
    """Blend a coloured heat map over a picture.

    Args:
        seen: The picture, uint8 `(H, W)` or `(H, W, 3)`.
        heat: The levels of the heat map, uint8 `(H, W)`.
        colormap: One of `COLORMAPS`, or `grey`.
        alpha: Opacity of the heat map, 0..1.

    Returns:
        uint8 `(H, W, 3)`: (1 - alpha) * picture + alpha * colour, rounded to the nearest.

    Raises:
        RequestError: The colour map is unknown.

    Example:
        >>> picture, heat = np.full((2, 2), 100, np.uint8), np.full((2, 2), 255, np.uint8)
        >>> overlay(picture, heat, colormap="jet", alpha=0.5)[0, 0].tolist()  # jet ends in dark red, 128, 0, 0
        [114, 50, 50]
    """
    blended = (table(colormap) * np.float32(alpha)).take(heat, 0)
    below = seen if seen.ndim == 3 else seen[:, :, None]
    blended += below * np.float32(1 - alpha)
    rounded: NDArray[np.uint8] = np.rint(blended).astype(np.uint8)
    return rounded


def mark_nonfinite(pixels: NDArray[np.uint8], heat: HeatMap, centres: Centres | None = None) -> NDArray[np.uint8]:
    """Draw a checkerboard where the nearest value of a reduction is not finite."""
    if heat.limits is None or heat.finite.all():
        return pixels
    rows, columns = nearest_values((heat.raw.shape[0], heat.raw.shape[1]), (pixels.shape[0], pixels.shape[1]), centres)
    finite = heat.finite[rows[:, None], columns]
    board = checkerboard(*finite.shape).numpy()
    if pixels.ndim == 3:
        return np.where(finite[..., None], pixels, board[..., None])
    return np.where(finite, pixels, board)


def mark_position(pixels: NDArray[np.uint8], row: float, column: float) -> NDArray[np.uint8]:
    """Draw a white ring with black edges around a point of a picture.

    Args:
        pixels: uint8 `(H, W, 3)`, not changed.
        row: Of the point, pixels from the upper edge.
        column: From the left edge.
    """
    radius = max(3.5, min(pixels.shape[:2]) / 45)
    rows, columns = (np.arange(side) + 0.5 - at for side, at in zip(pixels.shape[:2], (row, column), strict=True))
    distance = np.abs(np.hypot(rows[:, None], columns) - radius)
    width = max(1.0, radius / 4)
    marked = pixels.astype(np.float32)
    for level, reach in ((0, 2 * width), (255, width)):
        share = np.clip(reach + 0.5 - distance, 0, 1)[..., None].astype(np.float32)
        marked += share * (level - marked)
    return np.rint(marked).astype(np.uint8)


def colormap_of(heat: HeatMap, style: Style) -> str:
    """Return the colour map that a heat map is drawn in."""
    if style.colormap:
        return style.colormap
    scaled = heat.limits is not None and not heat.shows
    return "coolwarm" if scaled and style.signed else heat.colormap


def _enlarge(raw: Tensor, size: tuple[int, int], *, smooth: bool, centres: Centres | None) -> tuple[Tensor, Tensor | None]:
    """Repeat values, or interpolate between those that are finite.

    Returns:
        float32 `(N, H, W)`, and which of its pixels are nearest to a finite value, boolean; None if all surely are.
    """
    all_known = raw.isfinite()
    finite = None if all_known.is_cpu and bool(all_known.all()) else all_known  # asking a GPU would mean waiting for it
    if tuple(raw.shape[1:]) == size and centres is None:
        return raw, finite
    low, high = (ends.view(-1, 1, 1) for ends in _extremes(raw, finite))
    known = None if finite is None else _repeat(finite, size, centres)
    if not smooth:
        return _repeat(raw, size, centres), known
    if finite is None:
        enlarged = _interpolate(raw, size, centres)
    else:
        missing = _interpolate((~finite).float(), size, centres)  # share of the weights
        enlarged = _interpolate(raw.where(finite, 0), size, centres).div_(1 - missing)
    # Rounding makes equal values differ, and these would be stretched to black and white.
    return enlarged.clamp_(low, high), known


def _repeat(maps: Tensor, size: tuple[int, int], centres: Centres | None) -> Tensor:
    """Return the nearest value for each pixel."""
    grid = maps.shape[1], maps.shape[2]
    rows, columns = (torch.from_numpy(index).to(maps.device) for index in nearest_values(grid, size, centres))
    return maps[:, rows[:, None], columns]


def _interpolate(maps: Tensor, size: tuple[int, int], centres: Centres | None) -> Tensor:
    """Interpolate bilinearly between values at the centres of their positions, and repeat the outermost beyond them.

    Where there are two positions or more for each pixel, such as of a detector that enlarges small pictures, neighbours are
    averaged first: otherwise some lie between those that are interpolated, and are lost.
    """
    rows, columns = (have // max(have // wanted, 1) for have, wanted in zip(maps.shape[1:], size, strict=True))
    grid = rows, columns
    if grid != (maps.shape[1], maps.shape[2]):
        centres = (centres or Centres.spread((maps.shape[1], maps.shape[2]), size)).averaged(grid)
        maps = adaptive_avg_pool2d(maps, grid)
    if centres is None:
        return interpolate(maps[:, None], size, mode="bilinear", align_corners=False)[:, 0]
    for axis, between in enumerate(centres.between(size), 1):
        before, after = (
            maps.index_select(axis, torch.from_numpy(index).to(maps.device)) for index in (between.before, between.after)
        )
        share = torch.from_numpy(between.share).to(maps)
        maps = before.lerp(after, share[:, None] if axis == 1 else share)
    return maps


def _extremes(maps: Tensor, finite: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest finite value of each map; infinities if there is none."""
    below, above = (maps, maps) if finite is None else (maps.where(finite, torch.inf), maps.where(finite, -torch.inf))
    return below.amin((1, 2)), above.amax((1, 2))


def _bytes(levels: Tensor) -> Tensor:
    return levels.clamp_(0, 1).mul_(255).add_(0.5).byte()


def _scaled(maps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return maps scaled to 0..1, their smallest values, and by how much the largest are above them, `(N, 1, 1)`."""
    smallest = maps.amin((1, 2), keepdim=True)
    shifted = maps - smallest
    largest = shifted.amax((1, 2), keepdim=True)
    return shifted.div_(largest.where(largest > 0, 1)), smallest, largest
