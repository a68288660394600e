"""Grad-CAM with each channel's gradients weighted by its activations (XGrad-CAM).

A channel's weight is the mean of its gradients, weighted by its activations: `w_k = sum_hw(G_k A_k) / sum_hw(A_k)`; the map
is `sum_k w_k A_k`. A are a layer's activations, G the gradient of the class's logit with respect to them, k the channels. A
channel whose sum is zero, but for float32's rounding, has the weight 0.

Fu et al., "Axiom-based Grad-CAM: Towards Accurate Visualization and Explanation of CNNs", 2020. pytorch-grad-cam adds 1e-7
to the denominator, which changes the weights of channels whose sums are small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmapviz.views.base import divided, in_double

if TYPE_CHECKING:
    from torch import Tensor

NEEDS = "activations gradients"
LOOKS = "scale colormap alpha gray_input labels background text_size with_input colorbar"


def attribute(activations: Tensor, gradients: Tensor) -> Tensor:
    """Weigh channels by their gradients where they are active.

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
    sums, sizes = (each.sum((2, 3), keepdim=True) for each in (activations, activations.abs()))
    weights = divided((gradients * activations).sum((2, 3), keepdim=True), sums, sizes)
    return (weights * activations).sum(1).float()
