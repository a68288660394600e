"""Find out whether images may share a forward pass: only if each comes out of it as it comes out alone, bit for bit."""

from __future__ import annotations

from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch

from fmapviz.drawing import ForwardError
from fmapviz.foresight import state_of
from fmapviz.memory import is_out_of_memory
from fmapviz.sketches import MixedBatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor, nn

    from fmapviz.values import Drawn

IMAGES = 4  # with two MobileNet takes 0.85 of the time, with four 0.73 to 0.83
PICTURE_BYTES = 160 * 2**10  # where pictures are larger on average, the values take the time, not the layers
DRAWN_BYTES = 10 * 2**20


class Sharing:
    """How many images share a forward pass on the CPU: one, until it is proven that more leave no trace.

    Of a network of many small layers, such as MobileNet, four images in one pass take up to a quarter less time than one
    after the other; of ResNet-50 they take no less, of VGG more. But a convolution of a batch may be computed in another way
    than that of one image, and round otherwise: in GoogLeNet, SqueezeNet, DenseNet and RegNet it does. Which way is taken
    depends on the shapes, not on the values. And a network may mix the images of a batch, by its mean, say. So after the
    first image noise of its shape is drawn, alone and as the first and the last of a batch with other noise between, and
    everything is compared. A network that changes by being run, such as one that counts, is left in peace.

    Its methods may be called in several threads at once.

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
        """Take note of what the network is like before a forward pass: hooks are others each time it is given work."""
        self._before = self._before if self._noted else _state(self._network)

    @property
    def images(self) -> int:
        """How many may share a forward pass, as far as is known."""
        return IMAGES if self._shape else 1

    def note(self, image: Tensor, drawn: Drawn) -> None:
        """Take note of the first image; if the network's layers are small enough, there is a proof to try.

        Args:
            image: As the network was given it, without the batch.
            drawn: What was drawn of it alone.
        """
        if self._noted:
            return
        self._noted = True
        # Nothing may be drawn of layers of which only numbers are wanted.
        size = sum(max(drawing.pixels.nbytes, prod(drawing.shape)) for drawing in drawn.drawings)
        if size <= min(DRAWN_BYTES, PICTURE_BYTES * len(drawn.drawings)) and _state(self._network) == self._before:
            self._samples.append(image)

    def try_out(self, draw: Callable[[Sequence[Tensor]], list[Drawn]]) -> int | None:
        """Try the proof, in the first thread that asks.

        Args:
            draw: Draws several images in one forward pass.

        Returns:
            How many images may share one from now on; None if that was not found out just now.
        """
        sample = None
        with suppress(IndexError):  # several threads may ask at once
            sample = self._samples.pop()
        if sample is None or not _is_proven(sample, draw):
            return None
        self._shape = sample.shape
        return IMAGES

    def allows(self, images: Sequence[Tensor]) -> bool:
        """Tell whether these images, all of one shape, may share a forward pass."""
        return len(images) == 1 or (len(images) == IMAGES and images[0].shape == self._shape)


def _state(network: nn.Module) -> object:
    """Give what a network may change by being run."""
    return state_of(network), [values._version for values in network.buffers()]


def _is_proven(image: Tensor, draw: Callable[[Sequence[Tensor]], list[Drawn]]) -> bool:
    # Of an image that is all black nothing but zeros might come, rounded alike in every way.
    noise = torch.randn(IMAGES - 1, *image.shape, generator=torch.Generator().manual_seed(0)).to(image)
    ranged = [values * factor for factor, values in enumerate(noise, start=1)]  # others than the first's are among them
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


def _is_same(one: Drawn, other: Drawn) -> bool:
    if (one.not_executed, one.undrawn, one.predictions) != (other.not_executed, other.undrawn, other.predictions):
        return False
    mine, theirs = (list(_contents(drawn)) for drawn in (one, other))
    return len(mine) == len(theirs) and all(map(_is_equal, mine, theirs))


def _contents(drawn: Drawn) -> Iterator[object]:
    """Give everything that must be the same, one after the other."""
    for drawing in drawn.drawings:
        yield drawing.layer, drawing.view, drawing.shape, drawing.statistics, drawing.channels, drawing.samples
        yield drawing.pixels
        for part in (drawing.measures, drawing.histogram):
            yield from (getattr(part, name) for name in part.__slots__) if part is not None else ()
    for heat in drawn.heats:
        yield heat.layer, heat.view, heat.shape
        yield from (heat.raw, heat.pixels)
    for kept in drawn.kept:
        yield kept.layer, kept.of
        yield kept.values


def _is_equal(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and one.tobytes() == other.tobytes()
    return one == other
