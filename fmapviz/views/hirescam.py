"""Grad-CAM without averaged gradients: only regions that the score depends on (HiResCAM).

Each position of each channel is weighted by its own gradient: `sum_k G_k A_k`. A are a layer's activations, G the gradient
of the class's logit with respect to them, k the channels. If a single linear layer follows, the map adds up to the logit
without its bias.

Draelos and Carin, "Use HiResCAM instead of Grad-CAM for faithful explanations of convolutional neural networks", 2020.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

NEEDS = "activations gradients"
LOOKS = "scale colormap alpha gray_input labels background text_size with_input colorbar"


def attribute(activations: Tensor, gradients: Tensor) -> Tensor:
    """Weigh each position of each channel by its gradient.

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
    return (gradients.float() * activations.float()).sum(1)
