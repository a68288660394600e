"""Occlusion: how much the score falls when a patch of the image is replaced."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import torch

from fmapviz.errors import RequestError
from fmapviz.features.attribution.baseline import UNCHANGED, baseline_of
from fmapviz.features.attribution.extremes import Extremes
from fmapviz.observe.located import AbsentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor

    from fmapviz.config.changes import Changes
    from fmapviz.data import Preparation
    from fmapviz.run.changed_passes import ImagePasses


def describe(changes: Changes) -> str:
    """Describe the method."""
    return f"patches of {changes.patch} pixels, {changes.distance} apart, replaced by {changes.baseline}"


def passes(shape: Sequence[int], changes: Changes) -> int:
    """Return the number of passes for an image.

    Example:
        >>> from fmapviz.config.changes import Changes
        >>> passes((3, 224, 224), Changes(patch=16))
        730
    """
    rows, columns = (len(starts(side, changes.patch, changes.distance)) for side in shape[-2:])
    return 1 + rows * columns


def attribute(image: ImagePasses, preparation: Preparation, changes: Changes) -> tuple[Tensor, str]:
    """Return the map of an image, see `occlude`.

    Raises:
        AbsentError: No patch changes the score, or the image is the baseline.
        RequestError: A patch is larger than the image.
    """
    pixels = image.image
    side = min(pixels.shape[-2:])
    if changes.patch > side:
        height, width = pixels.shape[-2:]
        raise RequestError(
            f"patch {changes.patch} is larger than the input, {height} x {width} pixels",
            hint=f"patch={max(1, side // 4)} fits",
        )
    baseline = baseline_of(pixels, changes, preparation)
    if torch.equal(baseline, pixels):
        raise AbsentError(UNCHANGED)
    extremes = Extremes()

    def scores(copies: Iterable[Tensor]) -> Iterator[float]:
        return extremes.watch(image.scores(copies))

    found = occlude(pixels, scores, baseline, patch=changes.patch, stride=changes.distance)
    if extremes.only_rounding(pixels.dtype):
        raise AbsentError(f"no patch changes its score{extremes.in_words(pixels.dtype)}")
    return found, ""


def occlude(
    image: Tensor,
    scores: Callable[[Iterable[Tensor]], Iterator[float]],
    baseline: Tensor,
    *,
    patch: int,
    stride: int,
) -> Tensor:
    """Average the falls of the score over the patches that cover each pixel.

    `M(p) = mean over the patches q that cover p of (s(x) - s(x with q replaced))`. Zeiler and Fergus, "Visualizing and
    Understanding Convolutional Networks", 2014; with overlapping patches as `captum.attr.Occlusion`.

    Args:
        image: `(1, C, H, W)`, or `(1, C, T, H, W)`, of which patches cover all frames.
        scores: Yields the score of each of some images, in order.
        baseline: Of the shape of the image.
        patch: Side, pixels.
        stride: Distance of neighbours, pixels; the last ones end at the border.

    Returns:
        float32 `(H, W)`, signed, in units of the score.

    Example:
        >>> image = torch.ones(1, 1, 2, 2)
        >>> of_sum = lambda images: (float(each.sum()) for each in images)
        >>> occlude(image, of_sum, torch.zeros_like(image), patch=1, stride=1)
        tensor([[1., 1.],
                [1., 1.]])
    """
    height, width = image.shape[-2:]
    corners = [(top, left) for top in starts(height, patch, stride) for left in starts(width, patch, stride)]

    def copies() -> Iterator[Tensor]:
        for top, left in corners:
            copy, (rows, columns) = image.clone(), (slice(top, top + patch), slice(left, left + patch))
            copy[..., rows, columns] = baseline[..., rows, columns]
            yield copy

    found = scores(chain([image], copies()))
    unchanged = next(found)
    falls, counts = torch.zeros(2, height, width, dtype=torch.float64)
    for (top, left), score in zip(corners, found, strict=True):
        falls[top : top + patch, left : left + patch] += unchanged - score
        counts[top : top + patch, left : left + patch] += 1
    averages: Tensor = falls / counts
    return averages.float()


def starts(side: int, patch: int, stride: int) -> list[int]:
    """Return where patches begin along a side, the last one so that it ends at the border.

    Example:
        >>> starts(10, 4, 4)
        [0, 4, 6]
    """
    last = max(0, side - patch)
    regular = list(range(0, last + 1, stride))
    return regular if regular[-1] == last else [*regular, last]
