"""Turn a signed map at a layer's resolution into a heat map over the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import interpolate

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.options import Style

_EPSILON = 1e-7  # pytorch-grad-cam's
_TINY = 1e-38  # smaller ones are no normal float32


def heat_of(raw: Tensor, size: tuple[int, int]) -> Tensor:
    """Keep what speaks for a class, enlarge it and scale each image's map to 0..1.

    The order matters: negative values become zero at the layer's resolution, as in the paper (Selvaraju et al., "Grad-CAM:
    Visual Explanations from Deep Networks via Gradient-based Localization", 2017), before values are interpolated between.
    The scaling, `(x - min) / (max(x - min) + 1e-7)`, is that of pytorch-grad-cam, which also does it twice: a map of values
    as small as the 1e-7 is not dark for that. Of yet smaller maps the maximum itself takes its place.

    Args:
        raw: `(N, h, w)`, any floating type, any range; NaN and infinite values count as 0.
        size: Height and width of the input, pixels.

    Returns:
        float32 `(N, H, W)`, 0..1; zero for a map without any positive value.

    Example:
        >>> import torch
        >>> heat_of(torch.tensor([[[-1.0, 3.0]]]), (1, 4))
        tensor([[[0.0000, 0.2500, 0.7500, 1.0000]]])
    """
    positive = raw.float().nan_to_num(nan=0, posinf=0, neginf=0).relu()
    return _scaled(_interpolate(_scaled(positive), size))


@dataclass(frozen=True, slots=True, eq=False)
class Stretched:
    """Maps brought to 0..255.

    Attributes:
        pixels: uint8 `(N, H, W)`.
        low: What is 0, float32 `(N)`; NaN for a map without any finite value.
        high: What is 255, likewise.
    """

    pixels: Tensor
    low: Tensor
    high: Tensor


def stretch(raw: Tensor, size: tuple[int, int], style: Style, limits: tuple[float, float] | None = None) -> Stretched:
    """Enlarge maps of any range bilinearly, and bring them to 0..255.

    Args:
        raw: `(N, h, w)`, any range. Pixels that are `nearest` to a value that is not finite are 0, the others as if there
            were none.
        size: Height and width that are wanted, pixels; those of `raw` leave it as it is.
        style: With its `norm` `signed` zero is in the middle.
        limits: What becomes 0 and 255; None: each enlarged map's smallest and largest value.

    Example:
        >>> from fmapviz.options import Style
        >>> maps = torch.tensor([[[-1.0, 2.0]]])
        >>> stretch(maps, (1, 2), Style()).pixels.tolist(), stretch(maps, (1, 2), Style("signed")).pixels.tolist()
        ([[[0, 255]]], [[[64, 255]]])
    """
    raw, finite = _enlarge(raw.float(), size)
    low, high = _extremes(raw, finite)
    if style.norm == "signed":
        high = torch.maximum(low.abs(), high.abs())
        low = -high
    if limits:
        low, high = (torch.full_like(low, limit) for limit in limits)
    each = (-1, 1, 1)
    span = (high - low).clamp(min=_TINY)
    levels = (raw - low.view(each)) / span.view(each)
    if finite is None:
        return Stretched(_bytes(levels), low, high)
    some = finite.flatten(1).any(1)
    return Stretched(_bytes(levels.where(finite, 0)), low.where(some, torch.nan), high.where(some, torch.nan))


def nearest(have: int, wanted: int, device: torch.device | None = None) -> Tensor:
    """Say which of so many values in a row each of so many pixels is nearest to, int64 `(wanted)`.

    Example:
        >>> nearest(2, 5).tolist()
        [0, 0, 1, 1, 1]
    """
    return (2 * torch.arange(wanted, device=device) + 1) * have // (2 * wanted)


def _enlarge(raw: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor | None]:
    """Interpolate between finite values alone.

    Returns:
        float32 `(N, H, W)`, and which of its pixels are nearest to a finite value, boolean; None if all surely are.
    """
    finite = _unless_all(raw.isfinite())
    if tuple(raw.shape[1:]) == size:
        return raw, finite
    low, high = (ends.view(-1, 1, 1) for ends in _extremes(raw, finite))
    if finite is None:
        enlarged = _interpolate(raw, size)
    else:
        missing = _interpolate((~finite).float(), size)  # which share of the weights
        enlarged = _interpolate(raw.where(finite, 0), size).div_(1 - missing)
        rows, columns = (nearest(*sides, raw.device) for sides in zip(raw.shape[1:], size, strict=True))
        finite = finite[:, rows[:, None], columns]
    # Of equal values rounding makes different ones, which would be stretched to black and white.
    return enlarged.clamp_(low, high), finite


def _unless_all(finite: Tensor) -> Tensor | None:
    return None if finite.is_cpu and bool(finite.all()) else finite  # a GPU would have to be waited for


def _interpolate(maps: Tensor, size: tuple[int, int]) -> Tensor:
    return interpolate(maps[:, None], size, mode="bilinear", align_corners=False)[:, 0]


def _extremes(maps: Tensor, finite: Tensor | None) -> tuple[Tensor, Tensor]:
    """Give the smallest and the largest finite value of each map; where there is none, infinities."""
    below, above = (maps, maps) if finite is None else (maps.where(finite, torch.inf), maps.where(finite, -torch.inf))
    return below.amin((1, 2)), above.amax((1, 2))


def _bytes(levels: Tensor) -> Tensor:
    return levels.clamp_(0, 1).mul_(255).add_(0.5).byte()


def _scaled(maps: Tensor) -> Tensor:
    shifted = maps - maps.amin((1, 2), keepdim=True)
    largest = shifted.amax((1, 2), keepdim=True)
    return shifted / (largest + largest.clamp(_TINY, _EPSILON))
