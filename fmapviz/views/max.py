"""Maximum of each layer's channels, as one map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def reduce(maps: Tensor) -> Tensor:
    """Take the largest value over the channels.

    Args:
        maps: `(N, C, h, w)`, any floating type, any range; NaN and infinite values are left out.

    Returns:
        float32 `(N, h, w)`, NaN where no channel has a finite value.

    Example:
        >>> reduce(torch.tensor([[[[1.0, 4.0]], [[3.0, float("inf")]]]]))
        tensor([[[3., 4.]]])
    """
    largest = maps.amax(1).float()
    # A finite maximum shows that no value is NaN or infinity. Asking a GPU would mean waiting for it.
    if maps.is_cpu and bool(largest.isfinite().all()):
        return largest
    values = maps.float()
    largest = values.where(values.isfinite(), -torch.inf).amax(1)
    return largest.where(largest.isfinite(), torch.nan)
