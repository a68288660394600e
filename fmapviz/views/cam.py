"""Class activation map, exact, for a network that ends in average pooling and one linear layer (CAM).

`sum_k W_ck A_k`, A what enters the global average pooling, W_c the row of the following linear layer for class c, k the
channels. The mean of the map and the bias of the class are its logit.

Zhou et al., "Learning Deep Features for Discriminative Localization", 2016.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

NEEDS = "activations weights"
LOOKS = "scale colormap alpha gray_input labels background text_size with_input colorbar"


def attribute(activations: Tensor, weights: Tensor) -> Tensor:
    """Weigh channels as the classifier does.

    Args:
        activations: `(N, C, h, w)`, any floating type, any range.
        weights: `(N, C)`, the classifier's row for the class of each image.

    Returns:
        float32 `(N, h, w)`, signed.

    Example:
        >>> import torch
        >>> attribute(torch.ones(2, 8, 7, 7), torch.ones(2, 8)).shape
        torch.Size([2, 7, 7])
    """
    return (weights.float()[:, :, None, None] * activations.float()).sum(1)
