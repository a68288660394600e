"""Draw a vector as bars, as many to a row as can be told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fmapviz.tiles import Tiles

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.options import Style
    from fmapviz.tiling import Ranges


HEIGHT = 64  # pixels of a row of bars
LENGTH = 256  # bars in a row
_NUMBERED, _APART = 64, 32  # so many chosen bars may each have its number, so many in a row
_WIDTH = 768  # pixels that a row fills, if its bars need not become thicker than _THICKEST for that
_THICKEST = 12
_LINE, _BELOW, _ABOVE = 64, 160, 255  # grey levels: where zero is, bars below and above it


def draw_bars(values: Tensor, style: Style, ranges: Ranges) -> Tensor:
    """Draw each number of a vector as a bar that begins at zero.

    Args:
        values: float `(N, K)`.
        style: `columns` bars to a row, `padding` between rows, `scale`; of `norm` only `fixed:LO,HI` and `run` count. Where
            `channels` are chosen, up to 64 bars are laid in rows of 32 at most, which leaves room for a number at each.
        ranges: The numbers themselves, `(N, K)`, as `tiling.measure` gives them.

    Returns:
        uint8 `(N, H', W')` on the device of `values`: bars above zero white, those below zero grey, the line at zero dark
        grey. A row reaches from the smallest of all numbers to the largest, zero included, or from LO to HI. NaN and
        infinite values are drawn as a checkerboard.

    Example:
        >>> from fmapviz.options import Style
        >>> from fmapviz.tiling import measure
        >>> logits = torch.randn(1, 1000)
        >>> draw_bars(logits, Style(), measure(logits[:, :, None, None])).shape  # 4 rows of 256 bars, 3 pixels each
        torch.Size([1, 266, 772])
    """
    images, count = values.shape
    columns = _columns(count, style)
    rows = -(-count // columns)
    low, high = axis_of(ranges, style)
    finite = values.isfinite()
    levels = _levels(values.float().where(finite, 0.0), low, high)
    zero = _levels(torch.zeros_like(low), low, high)[:, :, None]
    height = torch.arange(HEIGHT, device=values.device)[:, None]  # from the top
    top, bottom = torch.minimum(levels[:, None], zero), torch.maximum(levels[:, None], zero)
    bars = torch.where(levels[:, None] < zero, _ABOVE, _BELOW) * ((height >= top) & (height < bottom))
    bars = torch.where((bars == 0) & (height == zero.clamp(max=HEIGHT - 1)), _LINE, bars)
    board = (height + torch.arange(count, device=values.device)) % 2 * 255
    bars = torch.where(finite[:, None], bars, board)
    rest = bars.new_zeros(images, HEIGHT, rows * columns - count)
    laid = torch.cat([bars, rest], 2).view(images, HEIGHT, rows, columns).transpose(1, 2)
    return _space(_thicken(laid, columns), style)


def lay_out(count: int, style: Style) -> Tiles:
    """Say where `draw_bars` draws so many numbers: each one's tile is as wide as its bar and as high as the row.

    Example:
        >>> from fmapviz.options import Style
        >>> lay_out(1000, Style()).corner(256)  # the first of the second row
        (2, 68)
    """
    columns = _columns(count, style)
    width, height, gap = _thickness(columns) * style.scale, HEIGHT * style.scale, style.padding
    return Tiles(gap, gap, width, height, width, height + gap, columns, count)


def axis_of(ranges: Ranges, style: Style) -> tuple[Tensor, Tensor]:
    """Give what the bottom and the top of a row stand for, float32 `(N, 1)` each."""
    if style.limits:
        low, high = (torch.full_like(ranges.low[:, :1], limit) for limit in style.limits)
        return low, high
    if style.norm == "run" and ranges.shared:
        low, high = (torch.full_like(ranges.low[:, :1], limit) for limit in (ranges.shared.low, ranges.shared.high))
        return low.clamp(max=0), high.clamp(min=0)
    low = ranges.low.nan_to_num(nan=0.0).amin(1, keepdim=True).clamp(max=0)
    return low, ranges.high.nan_to_num(nan=0.0).amax(1, keepdim=True).clamp(min=0)


def _columns(count: int, style: Style) -> int:
    """Say how many bars are in a row; where there are several rows of a few bars, they are about as long."""
    if style.columns is None and style.channels != "all" and count <= _NUMBERED:
        return -(-count // -(-count // _APART))
    return min(style.columns or LENGTH, count)


def _levels(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Give each number's height in whole pixels from the top."""
    span = (high - low).clamp(min=1e-30)
    return ((high - values) / span * HEIGHT).clamp(0, HEIGHT).round().long()


def _thicken(rows: Tensor, columns: int) -> Tensor:
    """Widen bars, with a dark line between those that are wide enough."""
    thick = _thickness(columns)
    widened = rows.repeat_interleave(thick, -1)
    if thick > 3:
        widened[..., thick - 1 :: thick] = 0
    return widened


def _thickness(columns: int) -> int:
    return max(1, min(_THICKEST, _WIDTH // columns))


def _space(rows: Tensor, style: Style) -> Tensor:
    """Put rows `(N, rows, height, width)` under each other with gaps around, and magnify."""
    images, count, height, width = rows.shape
    gap = style.padding
    rows = rows.to(torch.uint8).repeat_interleave(style.scale, 2).repeat_interleave(style.scale, 3)
    spaced = rows.new_zeros(images, count, height * style.scale + gap, width * style.scale + 2 * gap)
    spaced[:, :, gap:, gap : gap + width * style.scale] = rows
    return torch.cat([spaced.flatten(1, 2), spaced.new_zeros(images, gap, spaced.shape[-1])], 1)
