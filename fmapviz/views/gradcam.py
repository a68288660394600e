"""Heat map over the input: the regions that raise a class's score (Grad-CAM).

Each channel is weighted by the mean gradient of the class's score: `sum_k mean_hw(G_k) A_k`. A are a layer's
activations, G the gradient of the class's logit with respect to them, k the channels.

Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization", 2017.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

NEEDS = "activations gradients"
LOOKS = "scale colormap alpha gray_input labels background text_size with_input colorbar"


def attribute(activations: Tensor, gradients: Tensor) -> Tensor:
    """Weigh channels by their mean gradient.

    Args:
        activations: `(N, C, h, w)`, any floating type, any range.
        gradients: Of the same shape.

    Returns:
        float32 `(N, h, w)`, signed: the paper's map before its ReLU.

    Example:
        >>> import torch
        >>> attribute(torch.ones(2, 8, 7, 7), torch.ones(2, 8, 7, 7)).shape
        torch.Size([2, 7, 7])
    """
    weights = gradients.float().mean((2, 3), keepdim=True)
    return (weights * activations.float()).sum(1)
