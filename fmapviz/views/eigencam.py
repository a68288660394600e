"""First principal component of a layer's channels, independent of the class (Eigen-CAM).

The activation vectors at the positions of a layer, less their mean, are projected on the direction in which they differ
most, their first right singular vector. No class and no gradient is involved.

Muhammad and Yeasin, "Eigen-CAM: Class Activation Map using Principal Components", 2020. The sign of a singular vector is
open; here the value of largest magnitude is positive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

NEEDS = "activations"


def attribute(activations: Tensor) -> Tensor:
    """Project the activations of each image on their first principal direction.

    Args:
        activations: `(N, C, h, w)`, any floating type, any range; NaN and infinite values count as 0.

    Returns:
        float32 `(N, h, w)`, signed, the value of largest magnitude positive; zero if all positions are equal.

    Example:
        >>> attribute(torch.tensor([[[[0.0, 0.0, -3.0]], [[0.0, 0.0, 4.0]]]])).round(decimals=3)
        tensor([[[-1.6670, -1.6670,  3.3330]]])
    """
    vectors = _finite(activations.float()).flatten(2).mT
    centred = _finite(vectors - vectors.mean(1, keepdim=True))
    directions: Tensor = torch.linalg.svd(centred, full_matrices=False).Vh
    projected = (centred @ directions[:, 0, :, None]).squeeze(2)
    strongest = projected.gather(1, projected.abs().argmax(1, keepdim=True))
    return (projected * strongest.sign()).view(-1, *activations.shape[2:])


def _finite(values: Tensor) -> Tensor:
    return values.nan_to_num(nan=0, posinf=0, neginf=0)
