"""First principal component of a layer's channels, independent of the class (Eigen-CAM).

The activation vectors at the positions of a layer, less their mean, are projected on the direction in which they differ
most, their first right singular vector. No class and no gradient is involved.

Muhammad and Yeasin, "Eigen-CAM: Class Activation Map using Principal Components", 2020. The paper does not fix the sign of
the singular vector, so a map and its negative are equally valid, and one of them marks the background. Here the map does not
correlate negatively with the layer's mean activation, the mean of its channels at each position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

NEEDS = "activations"
LOOKS = "scale colormap alpha gray_input labels background text_size with_input colorbar"
_TIED = 1e-5  # times the largest possible sum of a direction: what rounding may leave of a zero


def attribute(activations: Tensor) -> Tensor:
    """Project the activations of each image on their first principal direction.

    Args:
        activations: `(N, C, h, w)`, any floating type, any range; NaN and infinite values count as 0.

    Returns:
        float32 `(N, h, w)`, signed; its inner product with the mean activation is not negative. If it is zero, the value
        of largest magnitude is positive. Zero if all positions are equal.

    Example:
        >>> attribute(torch.tensor([[[[0.0, 0.0, 3.0]], [[0.0, 0.0, -4.0]]]])).round(decimals=3)
        tensor([[[ 1.6670,  1.6670, -3.3330]]])
    """
    vectors = _finite(activations.float()).flatten(2).mT
    centred = _finite(vectors - vectors.mean(1, keepdim=True))
    directions: Tensor = torch.linalg.svd(centred, full_matrices=False).Vh
    projected = (centred @ directions[:, 0, :, None]).squeeze(2)
    return (projected * _signs(directions[:, 0], projected)).view(-1, *activations.shape[2:])


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
