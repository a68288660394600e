"""Mean of each layer's channels, as one map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def reduce(maps: Tensor) -> Tensor:
    """Average over the channels.

    Args:
        maps: `(N, C, h, w)`, any floating type, any range; NaN and infinite values are left out.

    Returns:
        float32 `(N, h, w)`, NaN where no channel has a finite value.

    Example:
        >>> reduce(torch.tensor([[[[1.0, 4.0]], [[3.0, float("inf")]]]]))
        tensor([[[2., 4.]]])
    """
    mean = maps.mean(1, dtype=torch.float32)
    # A finite mean shows that all values are finite. Asking a GPU would mean waiting for it.
    if maps.is_cpu and bool(mean.isfinite().all()):
        return mean
    values = maps.float()
    finite = values.isfinite()
    # Divided before they are added: a sum of finite values may overflow float32.
    share = values.where(finite, 0.0) / finite.sum(1, keepdim=True)
    return share.sum(1)
