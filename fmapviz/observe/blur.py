"""Blur an image, which removes what is in it and no part of its colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchvision.transforms.functional import gaussian_blur

if TYPE_CHECKING:
    from torch import Tensor

_SIGMA = 0.05  # of the shorter side: the standard deviation
_ROUNDED = 1e-5  # of the largest value; weights of a Gaussian add up to 1 but for rounding


def blurred(image: Tensor, sigma: float = _SIGMA) -> Tensor:
    """Blur an image by a Gaussian.

    Args:
        image: `(N, C, H, W)`, or `(N, C, T, H, W)` of a clip, each frame by itself.
        sigma: Its standard deviation; a share of the shorter side.

    Returns:
        Of the shape of the image; equal to it, bit for bit, where it has one colour.

    Example:
        >>> import torch
        >>> blurred(torch.ones(1, 3, 8, 9)).allclose(torch.ones(1, 3, 8, 9))
        True
    """
    height, width = image.shape[-2:]
    pixels = sigma * min(height, width)
    # Not wider than what reflection at the borders allows.
    sides = [2 * min(int(3 * pixels) + 1, side - 1) + 1 for side in (width, height)]
    found: Tensor = gaussian_blur(image.reshape(-1, 1, height, width).float(), sides, [pixels, pixels])
    return without_rounding(found.to(image).view(image.shape), image)


def without_rounding(found: Tensor, image: Tensor) -> Tensor:
    """Return values, and in place of those that differ from an image by rounding only, the image.

    A map of the difference of an image of one colour and its own mean would be one of rounding.

    Args:
        found: Of the shape of the image.
        image: Any shape.

    Example:
        >>> import torch
        >>> image = torch.tensor([1.0, 2.0])
        >>> without_rounding(image + torch.tensor([1e-6, 1.0]), image)
        tensor([1., 3.])
    """
    return found.where((found - image).abs() > _ROUNDED * image.abs().amax(), image)
