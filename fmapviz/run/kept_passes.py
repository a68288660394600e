"""Store the layer outputs of surveyed images, so that drawing them needs no second forward pass.

Six images with `norm="run"` take 0.9 s of CPU time with stored passes and 1.2 s without (resnet18), 4.0 and 5.3 s (vgg16),
3.1 and 5.2 s (vit_b_16).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from fmapviz.images.preprocess import digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from fmapviz.data import FeatureMap, Prediction

MOST_BYTES = 512 * 2**20  # 140 images of ViT-S with all its blocks


class Kept(Protocol):
    """Stored outputs that `fmapviz.run.session.PassDrawer.draw_kept` draws without a forward pass."""

    @property
    def nbytes(self) -> int:
        """The size of all values."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadImage:
    """The content of an `ImageFile` that is read elsewhere: in a finished run, or once for many passes.

    Attributes:
        read: Returns the input as the network gets it, float32 `(C, ...)`; facts of its picture, in place of those of a
            preprocessed input; and what the layers returned, if it goes through no network. It raises `InputError` if its
            values are damaged.
    """

    read: Callable[[], tuple[Tensor, Mapping[str, str], Kept | None]]


@dataclass(slots=True, eq=False)
class KeptPass:
    """The layer outputs of one forward pass.

    Attributes:
        feature_maps: Copies of all outputs of the layers, in their order, of an image or of a batch.
        ran: Names of the layers that ran.
        predictions: The predicted classes.
        whole: Whether every output could be copied.
    """

    feature_maps: list[FeatureMap] = field(default_factory=list)
    ran: frozenset[str] = frozenset()
    predictions: tuple[Prediction, ...] = ()
    whole: bool = True

    def add(self, feature_map: FeatureMap) -> None:
        """Copy an output: a later layer may overwrite it."""
        if self.whole:
            self.feature_maps.append(replace(feature_map, values=feature_map.values.clone()))

    def give_up(self) -> None:
        """Drop all copies, because an output cannot be copied."""
        self.whole = False
        self.feature_maps.clear()

    @property
    def nbytes(self) -> int:
        """The size of the copies."""
        return sum(each.values.nbytes for each in self.feature_maps)

    def of_image(self, position: int, images: int) -> KeptPass:
        """Return the part of one image in a batch."""
        if images == 1:
            return self
        own = [replace(each, values=each.values[position : position + 1]) for each in self.feature_maps]
        return KeptPass(own, self.ran, whole=self.whole and all(len(each.values) == images for each in self.feature_maps))


class KeptPasses:
    """The passes of a survey, as many as fit in memory; methods may be called by several threads at once.

    Args:
        most: Bytes of all copies.

    Attributes:
        has_room: Whether more passes can be stored.
    """

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.has_room = most > 0
        self._over = False
        self._left = most
        self._passes: dict[str, KeptPass] = {}
        self._lock = Lock()

    def keep(self, images: Tensor, made: KeptPass, predictions: Sequence[tuple[Prediction, ...]]) -> None:
        """Store the outputs of a forward pass; if there is no room, store neither these nor later ones.

        Args:
            images: Prepared images `(N, ...)`, on the CPU.
            made: The pass of these images.
            predictions: The predicted classes of each image.
        """
        parts = {}
        for position, image in enumerate(images):
            part = made.of_image(position, len(images))
            parts[digest_of(image)] = replace(part, predictions=predictions[position])
        with self._lock:
            if self._passes.keys() >= parts.keys() or not all(part.whole for part in parts.values()):
                return
            self._left -= made.nbytes
            self.has_room = self.has_room and self._left >= 0
            if self.has_room:
                self._passes |= parts

    def end(self) -> None:
        """End the survey; from then on `find` returns passes."""
        self.has_room, self._over = False, True

    def find(self, image: Tensor) -> KeptPass | None:
        """Return the stored pass of an image; None if there is none, or the survey has not ended."""
        return self._passes.get(digest_of(image)) if self._over and self._passes else None
