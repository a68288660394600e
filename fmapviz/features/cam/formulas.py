"""Formulas of class activation maps, each with its paper.

A are a layer's activations, G the gradient of the class's logit with respect to them, k the channels. Each returns a signed
map, the paper's before its ReLU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fmapviz.views.base import divided, in_double

if TYPE_CHECKING:
    from torch import Tensor

_TIED = 1e-5  # times the largest possible sum of a direction: what rounding may leave of a zero


def gradcam(activations: Tensor, gradients: Tensor) -> Tensor:
    """Weigh channels by their mean gradient.

    Each channel is weighted by the mean gradient of the class's score: `sum_k mean_hw(G_k) A_k`.

    Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization", 2017.

    Args:
        activations: `(N, C, h, w)`, any floating type, any range.
        gradients: Of the same shape.

    Returns:
        float32 `(N, h, w)`, signed: the paper's map before its ReLU.

    Example:
        >>> gradcam(torch.ones(2, 8, 7, 7), torch.ones(2, 8, 7, 7)).shape
        torch.Size([2, 7, 7])
    """
    weights = gradients.float().mean((2, 3), keepdim=True)
    return (weights * activations.float()).sum(1)


def gradcam_pp(activations: Tensor, gradients: Tensor) -> Tensor:
    """Weigh channels by their positive gradients, each position by its share in them.

    A channel's weight is the sum of its positive gradients, each position weighted by its share in them: `w_k =
    sum_hw(a_k relu(G_k))` with `a_k = G_k² / (2 G_k² + sum_hw(A_k) G_k³)`; the map is `sum_k w_k A_k`.

    Chattopadhay et al., "Grad-CAM++: Improved Visual Explanations for Deep Convolutional Networks", 2018, equation 19,
    for a score that is the exponential of the logit. Unlike other methods, it has another map for a multiple of the
    logit: a share tends to 1/2 as gradients vanish, and to `1 / (sum_hw(A_k) G_k)` as they grow. pytorch-grad-cam adds
    1e-6 to the denominator, so that gradients below about 1e-3 count less.

    Args:
        activations: `(N, C, h, w)`, any floating type, any range.
        gradients: Of the same shape.

    Returns:
        float32 `(N, h, w)`, signed: the paper's map before its ReLU.

    Example:
        >>> gradcam_pp(torch.ones(2, 8, 7, 7), torch.ones(2, 8, 7, 7)).shape
        torch.Size([2, 7, 7])
    """
    activations, gradients = in_double(activations), in_double(gradients)
    # A share times its gradient, both divided by the square of the gradient: no power of it vanishes or overflows.
    of_gradient, of_sum = 2 / gradients, activations.sum((2, 3), keepdim=True)
    shares = divided(1.0, of_gradient + of_sum, of_gradient.abs() + of_sum.abs()).where(gradients > 0, 0)
    return (shares.sum((2, 3), keepdim=True) * activations).sum(1).float()


def xgradcam(activations: Tensor, gradients: Tensor) -> Tensor:
    """Weigh channels by their gradients where they are active.

    A channel's weight is the mean of its gradients, weighted by its activations: `w_k = sum_hw(G_k A_k) / sum_hw(A_k)`;
    the map is `sum_k w_k A_k`. A channel whose sum is zero, but for float32's rounding, has the weight 0.

    Fu et al., "Axiom-based Grad-CAM: Towards Accurate Visualization and Explanation of CNNs", 2020. pytorch-grad-cam
    adds 1e-7 to the denominator, which changes the weights of channels whose sums are small.

    Args:
        activations: `(N, C, h, w)`, any floating type, any range.
        gradients: Of the same shape.

    Returns:
        float32 `(N, h, w)`, signed: the paper's map before its ReLU.

    Example:
        >>> xgradcam(torch.ones(2, 8, 7, 7), torch.ones(2, 8, 7, 7)).shape
        torch.Size([2, 7, 7])
    """
    activations, gradients = in_double(activations), in_double(gradients)
    sums, sizes = (each.sum((2, 3), keepdim=True) for each in (activations, activations.abs()))
    weights = divided((gradients * activations).sum((2, 3), keepdim=True), sums, sizes)
    return (weights * activations).sum(1).float()


def hirescam(activations: Tensor, gradients: Tensor) -> Tensor:
    """Weigh each position of each channel by its gradient.

    Each position of each channel is weighted by its own gradient: `sum_k G_k A_k`. If a single linear layer follows, the
    map adds up to the logit without its bias.

    Draelos and Carin, "Use HiResCAM instead of Grad-CAM for faithful explanations of convolutional neural networks",
    2020.

    Args:
        activations: `(N, C, h, w)`, any floating type, any range.
        gradients: Of the same shape.

    Returns:
        float32 `(N, h, w)`, signed: the paper's map before its ReLU.

    Example:
        >>> hirescam(torch.ones(2, 8, 7, 7), torch.ones(2, 8, 7, 7)).shape
        torch.Size([2, 7, 7])
    """
    return (gradients.float() * activations.float()).sum(1)


def layercam(activations: Tensor, gradients: Tensor) -> Tensor:
    """Weigh each position of each channel by its positive gradient.

    Each position of each channel is weighted by its own gradient where that is positive: `sum_k relu(G_k) A_k`.

    Jiang et al., "LayerCAM: Exploring Hierarchical Class Activation Maps for Localization", 2021.

    Args:
        activations: `(N, C, h, w)`, any floating type, any range.
        gradients: Of the same shape.

    Returns:
        float32 `(N, h, w)`, signed: the paper's map before its ReLU.

    Example:
        >>> layercam(torch.ones(2, 8, 7, 7), torch.ones(2, 8, 7, 7)).shape
        torch.Size([2, 7, 7])
    """
    return (gradients.float().relu() * activations.float()).sum(1)


def eigencam(activations: Tensor) -> Tensor:
    """Project the activations of each image on their first principal direction.

    The activation vectors at the positions of a layer, less their mean, are projected on the direction in which they
    differ most, their first right singular vector. No class and no gradient is involved.

    Muhammad and Yeasin, "Eigen-CAM: Class Activation Map using Principal Components", 2020. The paper does not fix the
    sign of the singular vector, so a map and its negative are equally valid, and one of them marks the background. Here
    the map does not correlate negatively with the layer's mean activation, the mean of its channels at each position.

    Args:
        activations: `(N, C, h, w)`, any floating type, any range; NaN and infinite values count as 0.

    Returns:
        float32 `(N, h, w)`, signed; its inner product with the mean activation is not negative. If it is zero, the value
        of largest magnitude is positive. Zero if all positions are equal.

    Example:
        >>> eigencam(torch.tensor([[[[0.0, 0.0, 3.0]], [[0.0, 0.0, -4.0]]]])).round(decimals=3)
        tensor([[[ 1.6670,  1.6670, -3.3330]]])
    """
    vectors = _finite(activations.float()).flatten(2).mT
    centred = _finite(vectors - vectors.mean(1, keepdim=True))
    directions: Tensor = torch.linalg.svd(centred, full_matrices=False).Vh
    projected = (centred @ directions[:, 0, :, None]).squeeze(2)
    return (projected * _signs(directions[:, 0], projected)).view(-1, *activations.shape[2:])


def cam(activations: Tensor, weights: Tensor) -> Tensor:
    """Weigh channels as the classifier does.

    `sum_k W_ck A_k`, A what enters the global average pooling, W_c the row of the following linear layer for class c, k
    the channels. The mean of the map and the bias of the class are its logit.

    Zhou et al., "Learning Deep Features for Discriminative Localization", 2016.

    Args:
        activations: `(N, C, h, w)`, any floating type, any range.
        weights: `(N, C)`, the classifier's row for the class of each image.

    Returns:
        float32 `(N, h, w)`, signed.

    Example:
        >>> cam(torch.ones(2, 8, 7, 7), torch.ones(2, 8)).shape
        torch.Size([2, 7, 7])
    """
    return (weights.float()[:, :, None, None] * activations.float()).sum(1)


def saliency(pixel_gradients: Tensor) -> Tensor:
    """Take the largest absolute gradient at each pixel.

    The absolute gradient of the class's logit with respect to each pixel, the largest of its channels.

    Simonyan et al., "Deep Inside Convolutional Networks: Visualising Image Classification Models and Saliency Maps",
    2014.

    Args:
        pixel_gradients: `(N, C, H, W)`, or `(N, C, T, H, W)` of clips, any floating type.

    Returns:
        float32 `(N, H, W)`, at least 0; of a clip the largest of all its frames.

    Example:
        >>> saliency(torch.tensor([[[[1.0, -2.0]], [[-3.0, 0.0]]]]))
        tensor([[[3., 2.]]])
    """
    return pixel_gradients.float().abs().flatten(1, -3).amax(1)


def _signs(direction: Tensor, projected: Tensor) -> Tensor:
    """Return the sign for each image, `(N, 1)`.

    With X the centred vectors, v the direction and s its singular value, the inner product of the map Xv and the mean
    activation, the mean of the columns of X, is s² sum(v) / C: it has the sign of sum(v).
    """
    sums = direction.sum(1, keepdim=True)
    tied = sums.abs() <= _TIED * direction.shape[1] ** 0.5
    strongest = projected.gather(1, projected.abs().argmax(1, keepdim=True))
    return strongest.where(tied, sums).sign()


def _finite(values: Tensor) -> Tensor:
    return values.nan_to_num(nan=0, posinf=0, neginf=0)
