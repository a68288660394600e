"""Draw a vector as bars in rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fmapviz.config import Style
from fmapviz.core.drawings import Tiles
from fmapviz.draw.colormaps import checkerboard
from fmapviz.draw.grid import arrange, scale_limits

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.draw.grid import Ranges


HEIGHT = 64  # pixels of a row of bars
LENGTH = 256  # bars in a row
_NUMBERED, _APART = 64, 32  # up to 64 chosen bars are laid in rows of up to 32, with room for a number at each
_WIDTH = 768  # pixels that a row fills, unless its bars would exceed _THICKEST
_THICKEST = 12
_LINE, _BELOW, _ABOVE = 64, 160, 255  # grey levels: the line at zero, bars below and above it
_LAYER = Style(norm="layer")


def draw_bars(values: Tensor, style: Style, ranges: Ranges) -> Tensor:
    """Draw each number of a vector as a bar that begins at zero.

    Args:
        values: float `(N, K)`.
        style: `columns` bars per row, `padding` between rows, `scale`; of `norm` only `fixed:LO,HI`, `run` and `signed-run`
            count. Up to 64 chosen `channels` are laid in rows of up to 32.
        ranges: The numbers themselves, `(N, K)`, as returned by `measure`.

    Returns:
        uint8 `(N, H', W')` on the device of `values`: bars above zero white, those below zero grey, the line at zero dark
        grey. A row spans the layer's smallest to its largest number, zero included, or LO to HI. NaN and infinite values are
        drawn as a checkerboard.

    Example:
        >>> from fmapviz.draw.grid import measure
        >>> logits = torch.randn(1, 1000)
        >>> draw_bars(logits, Style(), measure(logits[:, :, None, None])).shape  # 4 rows of 256 bars, 3 pixels each
        torch.Size([1, 266, 772])
    """
    count = values.shape[1]
    layout = lay_out(count, style)
    low, high = axis_limits(ranges, style)
    finite = values.isfinite()
    levels = _levels(values.float().where(finite, 0.0), low, high)[:, None]
    zero = _levels(torch.zeros_like(low), low, high)[:, :, None]
    height = torch.arange(HEIGHT, device=values.device)[:, None]  # from the top
    filled = (height >= torch.minimum(levels, zero)) & (height < torch.maximum(levels, zero))
    bars = torch.where(levels < zero, _ABOVE, _BELOW) * filled
    bars = torch.where((bars == 0) & (height == zero.clamp(max=HEIGHT - 1)), _LINE, bars)
    bars = torch.where(finite[:, None], bars, checkerboard(HEIGHT, count, values.device, square=1))
    thickness = layout.width // style.scale
    tiles = bars.mT[..., None].repeat(1, 1, 1, thickness)
    if thickness > 3:  # a dark line between bars
        tiles[..., -1] = 0
    return arrange(tiles, layout)


def lay_out(count: int, style: Style) -> Tiles:
    """Return the layout of `draw_bars`: a tile is as wide as a bar and as high as a row.

    Example:
        >>> lay_out(1000, Style()).corner(256)  # the first of the second row
        (2, 68)
    """
    columns = min(style.columns or LENGTH, count)
    if style.columns is None and style.channels != "all" and count <= _NUMBERED:
        columns = -(-count // -(-count // _APART))  # rows of about the same length
    thickness = max(1, min(_THICKEST, _WIDTH // columns))
    width, height, gap = thickness * style.scale, HEIGHT * style.scale, style.padding
    return Tiles(gap, gap, width, height, width, height + gap, columns, count)


def axis_limits(ranges: Ranges, style: Style) -> tuple[Tensor, Tensor]:
    """Return the values at the bottom and the top of a row, float32 `(N, 1)` each."""
    low, high = scale_limits(ranges, style if style.scope in {"fixed", "run"} else _LAYER)
    if style.limits:
        return low[:, :1], high[:, :1]
    return low[:, :1].clamp(max=0), high[:, :1].clamp(min=0)


def _levels(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return heights in whole pixels from the top."""
    span = (high - low).clamp(min=1e-30)
    return ((high - values) / span * HEIGHT).clamp(0, HEIGHT).round().long()
