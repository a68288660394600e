"""Absolute gradient of a class's score with respect to each pixel of the input.

The absolute gradient of the class's logit with respect to each pixel, the largest of its channels.

Simonyan et al., "Deep Inside Convolutional Networks: Visualising Image Classification Models and Saliency Maps", 2014.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

NEEDS = "pixel_gradients"
LOOKS = "scale colormap labels background text_size with_input colorbar"
OVER = False  # as fine as the picture, which would hide it
COLORMAP = "gray"


def attribute(pixel_gradients: Tensor) -> Tensor:
    """Take the largest absolute gradient at each pixel.

    Args:
        pixel_gradients: `(N, C, H, W)`, or `(N, C, T, H, W)` of clips, any floating type.

    Returns:
        float32 `(N, H, W)`, at least 0; of a clip the largest of all its frames.

    Example:
        >>> import torch
        >>> attribute(torch.tensor([[[[1.0, -2.0]], [[-3.0, 0.0]]]]))
        tensor([[[3., 2.]]])
    """
    return pixel_gradients.float().abs().flatten(1, -3).amax(1)
