"""The values that pass from one stage of a run to the next: from the reader to the batch runner to the unit writer."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fmapviz.core.events import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

    from fmapviz.core.drawings import Drawing
    from fmapviz.core.types import Failure, ImageResult, LayerResult, Picture, UnitImage
    from fmapviz.runs.unit import Group, Member

_NO_PIXELS = np.zeros((0, 0), np.uint8)


@dataclass(slots=True)
class Progress:
    """What a run has counted and found out so far.

    Attributes:
        found: Inputs listed.
        layers: Feature maps drawn of the last image.
        accepted: Whether something was drawn of some image, so that the request as such is valid.
        unclear: Whether the user was told that the model's output holds no class scores.
        reported: Notices about the network that were reported.
        not_executed: Selected layers that did not run.
        undrawn: Layers that ran but were not drawn, with the reason.
    """

    found: int = 0
    layers: int = 0
    accepted: bool = False
    unclear: bool = False
    reported: set[str] = field(default_factory=lambda: {""})
    not_executed: set[str] = field(default_factory=set)
    undrawn: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Preprocessed:
    """An image as the network gets it.

    Attributes:
        member: The image and its unit.
        notices: Remarks on its decoding, for the user.
        values: float32 `(C, H, W)`, on the CPU.
    """

    member: Member
    notices: tuple[str, ...]
    values: Tensor

    @property
    def bytes(self) -> int:
        """Memory."""
        return self.values.nbytes

    @property
    def shape(self) -> torch.Size:
        """Only images of one shape share a batch."""
        return self.values.shape


@dataclass(frozen=True, slots=True, eq=False)
class Processed:
    """An image and its results, before its pictures are encoded.

    Attributes:
        image: The image.
        drawn: The results.
        begun: Time at which its batch was begun, see `time.monotonic`.
    """

    image: Preprocessed
    drawn: ImageResult
    begun: float

    @property
    def bytes(self) -> int:
        """Memory."""
        return self.drawn.bytes


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """An image that could not be read or drawn."""

    member: Member
    failure: Failure
    bytes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """A group of images without further members."""

    group: Group
    bytes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """An image with its encoded pictures, ready to be written.

    Attributes:
        image: The image and its results, without pixels.
        pictures: Its pictures.
        record: What `unit.json` records of an image that has a unit of its own.
        begun: Time at which its batch was begun, see `time.monotonic`.
        seconds: Duration from then until it was encoded.
    """

    image: UnitImage
    pictures: tuple[Picture, ...]
    record: dict[str, Any]
    begun: float
    seconds: float

    @property
    def bytes(self) -> int:
        """Size of the encoded pictures."""
        return sum(len(picture.png) for picture in self.pictures)

    def outcome(self, path: str, *, size: int) -> Outcome:
        """Return the event that the image is finished, without its unit.

        Args:
            path: The image.
            size: Bytes written of it.
        """
        return Outcome(
            path,
            "done",
            notices=self.image.notices,
            pictures=len(self.pictures),
            seconds=self.seconds,
            predictions=self.image.result.predictions,
            bytes=size,
        )


def encoded(image: UnitImage, pictures: Sequence[Picture], record: dict[str, Any], *, begun: float) -> Encoded:
    """Return an image without the pixels that its pictures were made of: it may have to wait for its turn."""
    layers: dict[int, LayerResult] = {}
    drawings: dict[int, Drawing] = {}
    for layer in image.result.layers:
        drawings |= {id(drawing): _without_pixels(drawing) for drawing in layer.drawings}
        slim = tuple(drawings[id(drawing)] for drawing in layer.drawings)
        layers[id(layer)] = replace(layer, maps=None, drawings=slim)
    kept = tuple(
        replace(each, layer=layers.get(id(each.layer)), drawing=drawings.get(id(each.drawing))) for each in pictures
    )
    result = replace(image.result, layers=tuple(layers.values()))
    return Encoded(replace(image, result=result), kept, record, begun, time.monotonic() - begun)


def _without_pixels(drawing: Drawing) -> Drawing:
    content = drawing.content
    if content is None or "pixels" not in content.__slots__:
        return drawing
    # Any: of the classes of content that have pixels.
    slim: Any = content
    return replace(drawing, content=replace(slim, pixels=_NO_PIXELS))


Result = Processed | Failed | Ended
