"""Decide whether images may share a forward pass: only if no image changes the results of another."""

from __future__ import annotations

from contextlib import suppress
from itertools import zip_longest
from math import inf, prod
from typing import TYPE_CHECKING

import numpy as np
import torch

from fmapviz.core.drawings import HeatMap
from fmapviz.observe.early_stop import state_of
from fmapviz.observe.gradients import is_out_of_memory
from fmapviz.run.forward_pass import ForwardError
from fmapviz.run.layer_results import MixedBatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor, nn

    from fmapviz.types import ImageResult

IMAGES = 4  # with two MobileNet takes 0.85 of the time, with four 0.73 to 0.83
PICTURE_BYTES = 160 * 2**10  # where pictures are larger on average, the values take the time, not the layers
DRAWN_BYTES = 10 * 2**20
_MIX = 10  # how much larger than what differs by itself


class Sharing:
    """Number of images that share a forward pass on the CPU: one, until more are proven to make no difference.

    In a network of many small layers, such as MobileNet, four images in one pass take up to a quarter less time than one by
    one; in ResNet-50 they take no less, in VGG more. But a convolution may use another algorithm for a batch than for one
    image, and round differently, as in GoogLeNet, SqueezeNet, DenseNet and RegNet. The algorithm depends on the shapes, not
    on the values. A network may also mix the images of a batch, by their mean, for example. So after the first image, noise
    of its shape is drawn alone, and as the first and the last of a batch with other noise between, and all results are
    compared. A network that changes when it runs, such as one that counts, is not tried.

    Methods may be called from several threads at once.

    Args:
        network: Before its first forward pass.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._before = _state(network)
        self._samples: list[Tensor] = []
        self._noted = False
        self._shape: torch.Size | None = None

    def begin(self) -> None:
        """Record the network's state before a forward pass: each run attaches other hooks."""
        self._before = self._before if self._noted else _state(self._network)

    @property
    def images(self) -> int:
        """Number of images that may share a forward pass, as far as is known."""
        return IMAGES if self._shape else 1

    def note(self, image: Tensor, drawn: ImageResult) -> None:
        """Record the first image; if the network's layers are small enough, a proof will be tried.

        Args:
            image: As the network received it, without the batch axis.
            drawn: Its results.
        """
        if self._noted:
            return
        self._noted = True
        # Nothing may be drawn of layers of which only numbers are wanted.
        sizes = [
            max(getattr(getattr(drawing.content, "pixels", None), "nbytes", 0), prod(layer.shape))
            for layer in drawn.layers
            for drawing in layer.drawings
            if not isinstance(drawing.content, HeatMap)
        ]
        if sum(sizes) <= min(DRAWN_BYTES, PICTURE_BYTES * len(sizes)) and _state(self._network) == self._before:
            self._samples.append(image)

    def try_out(self, draw: Callable[[Sequence[Tensor]], list[ImageResult]]) -> int | None:
        """Try the proof, in the first thread that asks.

        Args:
            draw: Draws several images in one forward pass.

        Returns:
            Number of images that may share one from now on; None if this call has not decided it.
        """
        sample = None
        with suppress(IndexError):  # several threads may ask at once
            sample = self._samples.pop()
        if sample is None or not _is_proven(sample, draw):
            return None
        self._shape = sample.shape
        return IMAGES

    def allows(self, images: Sequence[Tensor]) -> bool:
        """Return True if these images, all of one shape, may share a forward pass."""
        return len(images) == 1 or (len(images) == IMAGES and images[0].shape == self._shape)


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


def _state(network: nn.Module) -> object:
    """Return the state that a network may change by being run."""
    return state_of(network), [values._version for values in network.buffers()]


def _is_proven(image: Tensor, draw: Callable[[Sequence[Tensor]], list[ImageResult]]) -> bool:
    # A black image might give zeros only, which are never rounded.
    noise = torch.randn(IMAGES - 1, *image.shape, generator=torch.Generator().manual_seed(0)).to(image)
    ranged = [values * factor for factor, values in enumerate(noise, start=1)]  # ranges differ from the first
    try:
        (alone,) = draw(ranged[:1])
        first, *_, last = draw([*ranged, ranged[0]])
    except (ForwardError, MixedBatchError):
        return False
    except Exception as error:
        if is_out_of_memory(error):
            return False
        raise
    return _is_same(first, alone) and _is_same(last, alone)


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
