"""The image that changed copies are changed towards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fmapviz.config.changes import GivenBaseline
from fmapviz.errors import RequestError
from fmapviz.observe.blur import blurred, without_rounding

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.config.changes import Changes
    from fmapviz.data import Preparation

UNCHANGED = "the image is its own baseline, so that nothing can be replaced: choose another one"


def baseline_of(image: Tensor, changes: Changes, preparation: Preparation) -> Tensor:
    """Return the baseline of an image.

    Args:
        image: Prepared, `(1, C, H, W)`, or `(1, C, T, H, W)` of a clip.
        changes: Its `baseline` is `mean`, the colour that the preprocessing subtracts, or the mean of each channel over the
            image where it subtracts none; `blur`, the image with a Gaussian of a twentieth of its shorter side; or `black`.
        preparation: How it was prepared.

    Returns:
        Of the shape of the image; equal to it, bit for bit, where the two differ by rounding.

    Raises:
        RequestError: What black has become is unknown; given values have another shape.
    """
    if isinstance(changes, GivenBaseline):
        return without_rounding(_given(changes.values, image), image)
    if changes.baseline == "blur":
        return blurred(image)
    return without_rounding(_colour(image, preparation, is_black=changes.baseline == "black"), image)


def _colour(image: Tensor, preparation: Preparation, *, is_black: bool) -> Tensor:
    levels = _levels(image, preparation)
    if is_black:
        if levels is None:
            message = "baseline black is unknown: how the input was normalised is not known"
            raise RequestError(message, hint="baseline='mean' or baseline='blur'")
        mean, std = levels
        return (-mean / std).expand_as(image)
    if levels is not None and bool(levels[0].any()):
        return torch.zeros_like(image)
    axis = 2 if preparation.time_first and image.ndim == 5 else 1
    return image.mean([each for each in range(1, image.ndim) if each != axis], keepdim=True).expand_as(image)


def _given(values: Tensor, image: Tensor) -> Tensor:
    """Return given values in the shape of an image: one value, or all axes, each whole or of length 1."""
    one = tuple(image.shape[1:])
    own = values.shape[1:] if values.ndim == image.ndim and len(values) == 1 else values.shape
    if values.numel() != 1 and (len(own) != len(one) or any(a not in {1, b} for a, b in zip(own, one, strict=True))):
        message = f"the baseline has the shape {tuple(values.shape)}, and the image {one}"
        colour = f", or ({one[0]}, 1, 1) for a colour" if len(one) == 3 else ""
        raise RequestError(message, hint=f"values of this shape, prepared as the image{colour}")
    return values.detach().to(image).expand_as(image)


def _levels(image: Tensor, preparation: Preparation) -> tuple[Tensor, Tensor] | None:
    """Return what is subtracted from the channels and what they are divided by; None if that is unknown."""
    axis = 2 if preparation.time_first and image.ndim == 5 else 1
    count = image.shape[axis]
    if {len(preparation.mean), len(preparation.std)} - {1, count}:
        return None
    shape = [count if each == axis else 1 for each in range(image.ndim)]
    mean, std = (
        torch.tensor(each if len(each) == count else each * count).to(image).view(shape)
        for each in (preparation.mean, preparation.std)
    )
    return mean, std
