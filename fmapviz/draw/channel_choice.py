"""Choose the channels to draw: `--channels 0,3,8-15` and `top:16`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fmapviz.errors import first_few

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fmapviz.config import Style
    from fmapviz.draw.grid import Ranges


def choose_channels(ranges: Ranges, style: Style) -> Tensor:
    """Resolve a `style.channels` other than `all` to channel numbers.

    Returns:
        int64 `(N, K)`, per image. Numbers beyond the last channel are dropped, so K may be 0. Ties go to the lower number,
        and a channel without a finite value comes last.
    """
    values = ranges.high
    if style.rank != "max":
        assert ranges.moments
        values = ranges.moments.mean if style.rank == "mean" else ranges.moments.std
    return choose(values, style)


def choose(values: Tensor, style: Style) -> Tensor:
    """Resolve a `style.channels` other than `all` by the values `(N, C)` that rank the channels; see `choose_channels`."""
    images, count = values.shape
    if style.listed is not None:
        existing = [number for number in style.listed if number < count]
        return torch.tensor(existing, dtype=torch.int64, device=values.device).expand(images, -1)
    assert style.strongest
    return _highest(values.nan_to_num(nan=-torch.inf), style.strongest)


def describe_left_out(style: Style, counts: Mapping[str, int]) -> str:
    """Return in words which layers lack chosen channels; empty if none does.

    Args:
        style: Chooses the channels.
        counts: Number of channels of each layer.

    Example:
        >>> from fmapviz.config import Style
        >>> describe_left_out(Style(channels="1-3,500"), {"conv1": 64, "fc": 1000})
        "channels='1-3,500' names channels that do not exist: conv1 has 64"
        >>> describe_left_out(Style(channels="top:100"), {"conv1": 64})
        "channels='top:100' asks for more channels than there are: conv1 has 64"
    """
    largest = max(style.listed or (), default=(style.strongest or 0) - 1)
    lacking = [f"{name} has {count}" for name, count in counts.items() if count <= largest]
    if not lacking:
        return ""
    what = "asks for more channels than there are" if style.strongest else "names channels that do not exist"
    return f"channels={style.channels!r} {what}: {first_few(lacking)}"


def _highest(values: Tensor, count: int) -> Tensor:
    """Return the positions of the highest values along the last axis, the highest first.

    Of equal values the one with the lower number comes first. The result is int64.

    Example:
        >>> _highest(torch.tensor([1.0, 3.0, 3.0]), 2).tolist()
        [1, 2]
    """
    return values.sort(dim=-1, descending=True, stable=True).indices[..., :count]
