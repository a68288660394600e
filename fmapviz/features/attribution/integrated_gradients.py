"""Integrated gradients: the gradient from a baseline to the image, times what the image adds to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fmapviz.features.attribution.baseline import UNCHANGED, baseline_of
from fmapviz.observe.located import AbsentError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from fmapviz.config.changes import Changes
    from fmapviz.data import Preparation
    from fmapviz.run.changed_passes import ImagePasses

INDEPENDENT = "the class score does not depend on the input, or not differentiably: its gradient is zero"


def describe(changes: Changes) -> str:
    """Describe the method."""
    return f"{changes.steps} steps from the baseline, {changes.baseline}"


def passes(shape: Sequence[int], changes: Changes) -> int:  # noqa: ARG001  as of all methods
    """Return the number of passes for an image."""
    return changes.steps + 2


def attribute(image: ImagePasses, preparation: Preparation, changes: Changes) -> tuple[Tensor, str]:
    """Return the map of an image, see `integrate`, summed over channels, and how far its sum is from the score's rise.

    Raises:
        AbsentError: The score does not depend on the input, or the image is the baseline.
    """
    baseline = baseline_of(image.image, changes, preparation)
    if torch.equal(baseline, image.image):
        raise AbsentError(UNCHANGED)
    whole = integrate(image.image, lambda copy: image.gradient(copy)[0], baseline, steps=changes.steps)
    if whole is None:
        raise AbsentError(INDEPENDENT)
    found = whole.flatten(1, -3).sum(1)[0]
    (score, _), (before, there) = image.score(image.image), image.score(baseline)
    if not there:
        return found.float(), "the baseline has no such box"
    total, rise = float(found.sum()), score - before
    return found.float(), f"sum {total:.4g}, rise {rise:.4g}, gap {total - rise:.2g}"


def integrate(image: Tensor, gradient: Callable[[Tensor], Tensor | None], baseline: Tensor, *, steps: int) -> Tensor | None:
    """Multiply what the image adds to a baseline by the mean gradient on the straight line between them.

    `(x - x0) * mean over k of grad s(x0 + (k + 1/2) / steps * (x - x0))`, the midpoint rule. It adds up to `s(x) - s(x0)` as
    the steps grow. Sundararajan et al., "Axiomatic Attribution for Deep Networks", 2017.

    Args:
        image: `(1, C, H, W)`, or `(1, C, T, H, W)`.
        gradient: Returns the gradient of the score at an image; None if it does not depend on it.
        baseline: Of the shape of the image.
        steps: Number of gradients.

    Returns:
        float64, of the shape of the image, signed, in units of the score; None if all gradients are zero.

    Example:
        >>> image = torch.full((1, 1, 1, 2), 3.0)
        >>> integrate(image, lambda copy: 2 * copy, torch.zeros_like(image), steps=4)
        tensor([[[[9., 9.]]]], dtype=torch.float64)
    """
    total, is_any = torch.zeros(image.shape, dtype=torch.float64), False
    for step in range(steps):
        found = gradient(torch.lerp(baseline, image, (step + 0.5) / steps))
        if found is not None and found.any():
            total += found.double().cpu()
            is_any = True
    return (image - baseline).double().cpu() * total / steps if is_any else None
