"""Grad-CAM with weights that cover several objects of one class (Grad-CAM++).

A channel's weight is the sum of its positive gradients, each position weighted by its share in them:
`w_k = sum_hw(a_k relu(G_k))` with `a_k = G_k² / (2 G_k² + sum_hw(A_k) G_k³)`; the map is `sum_k w_k A_k`. A are a layer's
activations, G the gradient of the class's logit with respect to them, k the channels.

Chattopadhay et al., "Grad-CAM++: Improved Visual Explanations for Deep Convolutional Networks", 2018, equation 19, for a
score that is the exponential of the logit. Unlike other methods, it has another map for a multiple of the logit: a share
tends to 1/2 as gradients vanish, and to `1 / (sum_hw(A_k) G_k)` as they grow. pytorch-grad-cam adds 1e-6 to the denominator,
so that gradients below about 1e-3 count less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmapviz.views.base import divided, in_double

if TYPE_CHECKING:
    from torch import Tensor

NEEDS = "activations gradients"
LOOKS = "scale colormap alpha gray_input labels background text_size with_input colorbar"


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
    activations, gradients = in_double(activations), in_double(gradients)
    # A share times its gradient, both divided by the square of the gradient: no power of it vanishes or overflows.
    of_gradient, of_sum = 2 / gradients, activations.sum((2, 3), keepdim=True)
    shares = divided(1.0, of_gradient + of_sum, of_gradient.abs() + of_sum.abs()).where(gradients > 0, 0)
    return (shares.sum((2, 3), keepdim=True) * activations).sum(1).float()
