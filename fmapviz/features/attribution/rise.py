"""RISE: the mean of random masks, weighted by the probability of the class behind each."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import interpolate

from fmapviz.core.words import counted
from fmapviz.features.attribution.baseline import UNCHANGED, baseline_of
from fmapviz.features.attribution.extremes import Extremes
from fmapviz.observe.image_seed import ImageSeed
from fmapviz.observe.located import AbsentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np
    from torch import Tensor

    from fmapviz.config.changes import Changes
    from fmapviz.data import Preparation
    from fmapviz.run.changed_passes import ImagePasses

SAMPLES, CELLS, SHOWN = 1000, 7, 0.5


def describe(changes: Changes) -> str:
    """Describe the method."""
    return f"{changes.samples or SAMPLES} masks of {CELLS} x {CELLS} cells over {changes.baseline}"


def passes(shape: Sequence[int], changes: Changes) -> int:  # noqa: ARG001  as of all methods
    """Return the number of passes for an image."""
    return changes.samples or SAMPLES


def attribute(image: ImagePasses, preparation: Preparation, changes: Changes) -> tuple[Tensor, str]:
    """Return the map of an image, see `weigh`.

    Raises:
        AbsentError: The probability is zero, or the same, behind all masks, or the image is the baseline.
    """
    baseline = baseline_of(image.image, changes, preparation)
    if torch.equal(baseline, image.image):
        raise AbsentError(UNCHANGED)
    extremes = Extremes()

    def weights(copies: Iterable[Tensor]) -> Iterator[float]:
        return extremes.watch(image.weights(copies))

    samples = changes.samples or SAMPLES
    found = weigh(image.image, weights, baseline, samples=samples)
    masks = counted(samples, "mask")
    if extremes.low == extremes.high == 0:
        raise AbsentError(f"its probability is zero behind all {masks}" if samples > 1 else "its probability is zero")
    dtype = image.image.dtype
    if extremes.only_rounding(dtype) and samples > 1:
        if round(extremes.high, 6) == 1:  # the score may still depend on the input
            raise AbsentError(f"its probability is one behind all {masks}")
        raise AbsentError(f"its probability is the same behind all {masks}{extremes.in_words(dtype)}")
    return found, ""


def weigh(
    image: Tensor,
    weights: Callable[[Iterable[Tensor]], Iterator[float]],
    baseline: Tensor,
    *,
    samples: int,
    cells: int = CELLS,
    shown: float = SHOWN,
) -> Tensor:
    """Average random masks, weighted by the probability of the class behind each.

    `sum over k of p(x * m_k + x0 * (1 - m_k)) * m_k / sum over k of m_k`. Petsiuk et al., "RISE: Randomized Input Sampling
    for Explanation of Black-box Models", 2018. They divide by `samples * shown`, the expectation of that sum, so that
    pixels that more masks show by chance get larger values; both tend to the same map.

    Args:
        image: `(1, C, H, W)`, or `(1, C, T, H, W)`, of which a mask covers all frames.
        weights: Yields the probability for each of some images, in order.
        baseline: Of the shape of the image; shown where a mask is 0.
        samples: Number of masks; they depend on the pixels of the image and on their number.
        cells: In each row and column of a mask.
        shown: Probability of a cell to be shown.

    Returns:
        float32 `(H, W)`; the mean weight where no mask shows anything.

    Example:
        >>> image = torch.ones(1, 3, 8, 8)
        >>> of_mean = lambda images: (float(each.mean()) for each in images)
        >>> weigh(image, of_mean, torch.zeros_like(image), samples=4).shape
        torch.Size([8, 8])
    """
    of_image, size = ImageSeed(image), (image.shape[-2], image.shape[-1])
    waiting = deque[torch.Tensor]()  # as many as there are copies in one pass

    def copies() -> Iterator[Tensor]:
        for sample in range(samples):
            mask = make_mask(of_image.numbers(sample), size, cells=cells, shown=shown)
            waiting.append(mask)
            yield torch.lerp(baseline, image, mask.to(image))

    total, sums, all_weights = torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64), 0.0
    for weight in weights(copies()):
        mask = waiting.popleft().double()
        total += weight * mask
        sums += mask
        all_weights += weight
    return (total / sums).where(sums > 0, all_weights / samples).float()


def make_mask(numbers: np.random.Generator, size: tuple[int, int], *, cells: int, shown: float) -> Tensor:
    """Return a random mask: cells of 0 and 1, enlarged bilinearly, and shifted by less than a cell.

    Args:
        numbers: Random numbers.
        size: Height and width, pixels.
        cells: In each row and column.
        shown: Probability of 1.

    Returns:
        float32 `(H, W)`, 0..1.
    """
    drawn = torch.from_numpy((numbers.random((cells, cells)) < shown).astype("float32"))
    height, width = (-(-side // cells) for side in size)
    top, left = int(numbers.integers(height)), int(numbers.integers(width))
    large = ((cells + 1) * height, (cells + 1) * width)
    enlarged = interpolate(drawn[None, None], large, mode="bilinear", align_corners=False)[0, 0]
    return enlarged[top : top + size[0], left : left + size[1]]
