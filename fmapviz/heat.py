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
    enlarged = interpolate(_scaled(positive)[:, None], size, mode="bilinear", align_corners=False)
    return _scaled(enlarged[:, 0])


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
        raw: `(N, h, w)`, any range; what is not finite counts as the smallest value.
        size: Height and width that are wanted, pixels; those of `raw` leave it as it is.
        style: With its `norm` `signed` zero is in the middle.
        limits: What becomes 0 and 255; None: each enlarged map's smallest and largest value.

    Example:
        >>> from fmapviz.options import Style
        >>> maps = torch.tensor([[[-1.0, 2.0]]])
        >>> stretch(maps, (1, 2), Style()).pixels.tolist(), stretch(maps, (1, 2), Style("signed")).pixels.tolist()
        ([[[0, 255]]], [[[64, 255]]])
    """
    raw = raw.float()
    finite = raw.isfinite()
    known = finite.flatten(1).any(1)
    lowest = raw.where(finite, torch.inf).amin((1, 2), keepdim=True).nan_to_num(posinf=0.0)
    raw = raw.where(finite, lowest)
    if tuple(raw.shape[1:]) != size:
        raw = interpolate(raw[:, None], size, mode="bilinear", align_corners=False)[:, 0]
    low, high = raw.amin((1, 2)), raw.amax((1, 2))
    if style.norm == "signed":
        high = torch.maximum(low.abs(), high.abs())
        low = -high
    if limits:
        low, high = (torch.full_like(low, limit) for limit in limits)
    each = (-1, 1, 1)
    span = (high - low).clamp(min=_TINY)
    levels = ((raw - low.view(each)) / span.view(each)).clamp_(0, 1).mul_(255).add_(0.5).byte()
    return Stretched(levels, low.where(known, torch.nan), high.where(known, torch.nan))


def _scaled(maps: Tensor) -> Tensor:
    shifted = maps - maps.amin((1, 2), keepdim=True)
    largest = shifted.amax((1, 2), keepdim=True)
    return shifted / (largest + largest.clamp(_TINY, _EPSILON))
