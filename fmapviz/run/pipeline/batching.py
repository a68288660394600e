"""Find out whether the results of an image depend on the other images of its batch."""

from __future__ import annotations

from itertools import zip_longest
from math import inf
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from fmapviz.data import ImageResult

_MIX = 10  # how much larger than what differs by itself


def is_mixed(images: Tensor, first: ImageResult, draw: Callable[[Tensor], list[ImageResult]]) -> bool:
    """Return True if the results of the first image of a batch depend on the others.

    It is drawn once more beside noise. Batches of one shape are computed by the same algorithms and round alike, so the
    results are equal bit for bit; only gradients on a GPU may differ from one time to the next, by far less than by a mix.

    Args:
        images: A batch `(N, ...)` that was drawn.
        first: The results of its first image.
        draw: Draws a batch in one forward pass.
    """
    noise = torch.randn(images[1:].shape, generator=torch.Generator().manual_seed(0)).to(images)
    beside = draw(torch.cat([images[:1], noise * 4 * images.abs().amax().clamp(min=1)]))[0]  # of a larger range than all
    if _is_same(first, beside):
        return False
    again = draw(images)[0]
    return _is_same(first, again) or _distance(first, beside) > _MIX * _distance(first, again)


def _is_same(one: ImageResult, other: ImageResult) -> bool:
    if (one.not_executed, one.undrawn, one.predictions) != (other.not_executed, other.undrawn, other.predictions):
        return False
    mine, theirs = (list(_contents(drawn)) for drawn in (one, other))
    return len(mine) == len(theirs) and all(map(_is_equal, mine, theirs))


def _contents(drawn: ImageResult) -> Iterator[object]:
    """Yield everything that must be equal."""
    for layer in drawn.layers:
        yield layer.layer, layer.of, layer.shape, layer.statistics, layer.samples
        for part in (layer.measures, layer.values, *(drawing.content for drawing in layer.drawings)):
            yield from (getattr(part, name) for name in part.__slots__) if part is not None else ()
        yield from (drawing.view for drawing in layer.drawings)


def _is_equal(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    return type(one) is type(other) and one == other  # an array compared with None, where it is missing, is no truth value


def _distance(one: ImageResult, other: ImageResult) -> float:
    """Return the largest difference of numbers, relative to the largest in its array; infinity if shapes differ."""
    pairs = zip_longest(_contents(one), _contents(other))
    arrays = [(mine, theirs) for mine, theirs in pairs if isinstance(mine, np.ndarray) and mine.size]
    if any(not isinstance(theirs, np.ndarray) or mine.shape != theirs.shape for mine, theirs in arrays):
        return inf
    floats = (np.nan_to_num([mine, theirs]).astype(np.float64) for mine, theirs in arrays)
    return max((float(np.abs(mine - theirs).max() / (np.abs(mine).max() or 1)) for mine, theirs in floats), default=0.0)
