"""Which positions of its input each position of an operator's output takes, along one dimension.

Every function returns int64 `(n, k)`: k inputs, which need not differ, for each of n outputs. Indices outside of the input
are padding, and `HOLE` is no input.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.observe.operators.call import HOLE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fmapviz.observe.operators.call import Indices

_CLOSE = 1e-6  # a weight of interpolation below this is a rounding error


def windows(outputs: int, kernel: int, *, stride: int, padding: int, dilation: int = 1) -> Indices:
    """Return the indices of a convolution or pooling.

    Example:
        >>> windows(2, 3, stride=2, padding=1).tolist()
        [[-1, 0, 1], [1, 2, 3]]
    """
    return np.arange(outputs)[:, None] * stride - padding + np.arange(kernel) * dilation


def inverse_windows(outputs: int, kernel: int, *, stride: int, padding: int, dilation: int) -> Indices:
    """Return the indices of a transposed convolution.

    Example:
        >>> inverse_windows(3, 2, stride=2, padding=0, dilation=1).max(axis=1).tolist()
        [0, 0, 1]
    """
    scattered = np.arange(outputs)[:, None] + padding - np.arange(kernel) * dilation
    return np.where(scattered % stride == 0, scattered // stride, HOLE)


def bins(inputs: int, outputs: int) -> Indices:
    """Return the indices of adaptive pooling.

    Example:
        >>> bins(5, 2).tolist()
        [[0, 1, 2], [2, 3, 4]]
    """
    position = np.arange(outputs)
    start, stop = position * inputs // outputs, -((position + 1) * inputs // -outputs)
    longest = int((stop - start).max(initial=1))
    index: Indices = np.minimum(start[:, None] + np.arange(longest), stop[:, None] - 1)
    return index


def nearest(inputs: int, outputs: int, *, scale: float | None, middle: bool) -> Indices:
    """Return the indices of interpolation by the nearest neighbour, in single precision as in PyTorch.

    Args:
        scale: Outputs for each input, if it was given instead of their number.
        middle: Whether positions are the middles of pixels (`nearest-exact`), or their upper left corners.
    """
    if inputs == outputs and not middle:  # PyTorch copies for any scale
        return stretch(outputs)
    ratio = np.float32(1 / scale if scale else inputs / outputs)
    position = np.arange(outputs, dtype=np.float32) + np.float32(0.5 if middle else 0)
    index: Indices = np.floor(position * ratio).astype(np.int64).clip(0, inputs - 1)
    return index[:, None]


def linear(inputs: int, outputs: int, *, scale: float | None, align_corners: bool) -> Indices:
    """Return the indices of bilinear interpolation, one where the second has no weight.

    Example:
        >>> linear(2, 4, scale=None, align_corners=False).tolist()
        [[0, 0], [0, 1], [0, 1], [1, 1]]
    """
    if inputs == outputs:  # PyTorch copies for any scale
        return stretch(outputs)
    position = sources(inputs, outputs, scale=scale, align_corners=align_corners).clip(0, inputs - 1)
    return np.stack([np.floor(position + _CLOSE), np.ceil(position - _CLOSE)], axis=1).astype(np.int64)


def cubic(inputs: int, outputs: int, *, scale: float | None, align_corners: bool) -> Indices:
    """Return the indices of bicubic interpolation, one where the others have no weight."""
    position = sources(inputs, outputs, scale=scale, align_corners=align_corners)
    first = np.floor(position + _CLOSE).astype(np.int64)[:, None]
    between = (np.abs(position - np.round(position)) > _CLOSE)[:, None]
    index: Indices = (first + np.where(between, np.arange(-1, 3), 0)).clip(0, inputs - 1)
    return index


def antialiased(inputs: int, outputs: int, *, scale: float | None, align_corners: bool, radius: int) -> Indices:
    """Return the indices of interpolation with `antialias=True`, `HOLE` where an input has no weight.

    To fewer positions the filter is widened by the ratio of the lengths, so that each input has a weight in some output.

    Args:
        radius: Of the filter, in inputs: 1 bilinear, 2 bicubic, 3 Lanczos. All are 1 at 0, and 0 at the other whole numbers.

    Example:
        >>> antialiased(4, 2, scale=None, align_corners=False, radius=1).clip(-1).tolist()
        [[-1, -1, 0, 1, 2, -1], [-1, 1, 2, 3, -1, -1]]
    """
    if inputs == outputs:  # PyTorch copies for any scale
        return stretch(outputs)
    width = max(_ratio(inputs, outputs, scale=scale, align_corners=align_corners), 1)
    middle = centers(inputs, outputs, scale=scale, align_corners=align_corners)[:, None]
    reach = math.ceil(radius * width)
    index = np.floor(middle).astype(np.int64) + np.arange(-reach, reach + 2)
    distance = np.abs(index - middle) / width
    zero = (distance > 0.5) & (np.abs(distance - distance.round()) < _CLOSE)
    return np.where((distance < radius) & ~zero, within(index, inputs), HOLE)


def means(index: Indices) -> NDArray[np.float64]:
    """Return the mean of the positions that each output takes; NaN of none.

    Example:
        >>> means(windows(2, 3, stride=2, padding=1)).tolist()
        [0.0, 2.0]
    """
    known = index != HOLE
    counts = known.sum(1)
    return np.where(counts > 0, np.where(known, index, 0).sum(1) / np.maximum(counts, 1), np.nan)


def middles(inputs: int, outputs: int) -> NDArray[np.float64]:
    """Return the middle of the bins of adaptive pooling.

    Example:
        >>> middles(5, 2).tolist()
        [1.0, 3.0]
    """
    position = np.arange(outputs)
    return (position * inputs // outputs - ((position + 1) * inputs // -outputs) - 1) / 2


def sources(inputs: int, outputs: int, *, scale: float | None, align_corners: bool) -> NDArray[np.float64]:
    """Return the position in the input of each output of an interpolation."""
    if align_corners:
        return np.arange(outputs, dtype=np.float64) * _ratio(inputs, outputs, scale=scale, align_corners=True)
    return centers(inputs, outputs, scale=scale, align_corners=False)


def centers(inputs: int, outputs: int, *, scale: float | None, align_corners: bool) -> NDArray[np.float64]:
    """Return these positions for `antialias=True`: with aligned corners PyTorch changes the ratio alone."""
    return (np.arange(outputs, dtype=np.float64) + 0.5) * _ratio(
        inputs, outputs, scale=scale, align_corners=align_corners
    ) - 0.5


def _ratio(inputs: int, outputs: int, *, scale: float | None, align_corners: bool) -> float:
    """Return the distance of two outputs of an interpolation, in inputs."""
    if align_corners:
        return (inputs - 1) / (outputs - 1) if outputs > 1 else 0.0
    return 1 / scale if scale else inputs / outputs


def reflected(inputs: int, before: int, after: int) -> Indices:
    """Return the indices of padding by reflection.

    Example:
        >>> reflected(3, 2, 1).ravel().tolist()
        [2, 1, 0, 1, 2, 1]
    """
    mirrored = np.abs(np.arange(-before, inputs + after))
    index: Indices = inputs - 1 - np.abs(inputs - 1 - mirrored)
    return index[:, None]


def replicated(inputs: int, before: int, after: int) -> Indices:
    """Return the indices of padding with the border.

    Example:
        >>> replicated(3, 2, 1).ravel().tolist()
        [0, 0, 0, 1, 2, 2]
    """
    return np.arange(-before, inputs + after).clip(0, inputs - 1)[:, None]


def stretch(outputs: int, *, start: int = 0, step: int = 1) -> Indices:
    """Return the indices of a slice, or of padding with a constant if some are outside.

    Example:
        >>> stretch(3, start=4, step=2).ravel().tolist()
        [4, 6, 8]
    """
    return (start + np.arange(outputs) * step)[:, None]


def within(index: Indices, inputs: int) -> Indices:
    """Replace indices outside of the input: the output has nothing there, and no padding either."""
    return np.where((index >= 0) & (index < inputs), index, HOLE)
