"""Grad-CAM with weights that cover several objects of one class (Grad-CAM++).

A channel's weight is the sum of its positive gradients, each position weighted by its share in them:
`w_k = sum_hw(a_k relu(G_k))` with `a_k = G_k² / (2 G_k² + sum_hw(A_k) G_k³ + 1e-6)`, 0 where G is 0; the map is
`sum_k w_k A_k`. A are a layer's activations, G the gradient of the class's logit with respect to them, k the channels.

Chattopadhay et al., "Grad-CAM++: Improved Visual Explanations for Deep Convolutional Networks", 2018, equation 19, for a
score that is the exponential of the logit; the 1e-6 is pytorch-grad-cam's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

NEEDS = "activations gradients"
LOOKS = "scale colormap alpha gray_input labels colorbar"


def attribute(activations: Tensor, gradients: Tensor) -> Tensor:
    """Weigh channels by their positive gradients, each position by its share in them.

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
    activations, gradients = activations.float(), gradients.float()
    squares = gradients.square()
    divisor = 2 * squares + activations.sum((2, 3), keepdim=True) * squares * gradients + 1e-6
    shares = (squares / divisor).where(gradients != 0, 0)
    weights = (gradients.relu() * shares).sum((2, 3), keepdim=True)
    return (weights * activations).sum(1)
