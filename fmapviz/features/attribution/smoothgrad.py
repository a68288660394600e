"""SmoothGrad: the mean of saliency over noisy copies of the image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fmapviz.features.attribution.integrated_gradients import INDEPENDENT
from fmapviz.observe.image_seed import ImageSeed
from fmapviz.observe.located import AbsentError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from fmapviz.config.changes import Changes
    from fmapviz.data import Preparation
    from fmapviz.run.changed_passes import ImagePasses

SAMPLES = 32
NOISE = 0.1  # of the range of the input: the standard deviation


def describe(changes: Changes) -> str:
    """Describe the method."""
    return f"{changes.samples or SAMPLES} samples, with noise of a tenth of the input's range"


def passes(shape: Sequence[int], changes: Changes) -> int:  # noqa: ARG001  as of all methods
    """Return the number of passes for an image."""
    return changes.samples or SAMPLES


def attribute(image: ImagePasses, preparation: Preparation, changes: Changes) -> tuple[Tensor, str]:  # noqa: ARG001
    """Return the map of an image, see `smooth`.

    Raises:
        AbsentError: The score does not depend on the input.
    """
    pixels = image.image
    sigma = NOISE * float(pixels.amax() - pixels.amin())
    found = smooth(pixels, lambda copy: image.gradient(copy)[0], sigma=sigma, samples=changes.samples or SAMPLES)
    if found is None:
        raise AbsentError(INDEPENDENT)
    return found, ""


def smooth(image: Tensor, gradient: Callable[[Tensor], Tensor | None], *, sigma: float, samples: int) -> Tensor | None:
    """Average the absolute gradient, the largest of the channels, over noisy copies.

    `mean over k of max over c of |grad s(x + sigma * n_k)|`, n_k normal. Smilkov et al., "SmoothGrad: removing noise by
    adding noise", 2017.

    Args:
        image: `(1, C, H, W)`, or `(1, C, T, H, W)`.
        gradient: As of `integrate`.
        sigma: Standard deviation of the noise, in units of the image.
        samples: Number of copies; their noise depends on the pixels of the image and on their number.

    Returns:
        float32 `(H, W)`, from 0; with sigma 0 it is saliency, bit for bit. None if all gradients are zero.

    Example:
        >>> image = torch.zeros(1, 3, 1, 2)
        >>> smooth(image, lambda copy: copy - 2, sigma=0.0, samples=3)
        tensor([[2., 2.]])
    """
    of_image, (height, width) = ImageSeed(image), image.shape[-2:]
    # Sums of equal float32 values have no rounding error in float64.
    total, is_any = torch.zeros(height, width, dtype=torch.float64), False
    for sample in range(samples):
        noise = torch.from_numpy(of_image.numbers(sample).standard_normal(tuple(image.shape), dtype="float32"))
        found = gradient(image + sigma * noise.to(image))
        if found is not None and found.any():
            total += found.abs().flatten(1, -3).amax(1)[0].double().cpu()
            is_any = True
    return (total / samples).float() if is_any else None
