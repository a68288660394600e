"""Blur an image, which removes what is in it and no part of its colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchvision.transforms.functional import gaussian_blur

if TYPE_CHECKING:
    from torch import Tensor

_SIGMA = 0.05  # of the shorter side: the standard deviation


def blurred(image: Tensor, sigma: float = _SIGMA) -> Tensor:
    """Blur an image by a Gaussian.

    Args:
        image: `(N, C, H, W)`, or `(N, C, T, H, W)` of a clip, each frame by itself.
        sigma: Its standard deviation; a share of the shorter side.

    Returns:
        Of the shape of the image.

    Example:
        >>> import torch
        >>> blurred(torch.ones(1, 3, 8, 9)).allclose(torch.ones(1, 3, 8, 9))
        True
    """
    height, width = image.shape[-2:]
    pixels = sigma * min(height, width)
    # Not wider than what reflection at the borders allows.
    sides = [2 * min(int(3 * pixels) + 1, side - 1) + 1 for side in (width, height)]
    frames = image.reshape(-1, 1, height, width)
    found: Tensor = gaussian_blur(frames.float(), sides, [pixels, pixels])
    return found.to(image).view(image.shape)
