"""Results of a batch of images, which are copied from the device once a GPU has finished."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import repeat
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from fmapviz.core.drawings import HeatMap
from fmapviz.data import Drawing, LayerResult, RawValues, Statistics
from fmapviz.draw.measures import measures_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from fmapviz.data import Content, Target
    from fmapviz.draw.grid import Ranges
    from fmapviz.views.base import BatchContent


NOTHING_FOR = "nothing is drawn for"  # a target, of which an image has none


class MixedBatchError(Exception):
    """A layer saw another number of samples than there are images, so the samples cannot be assigned in a batch."""


@dataclass(slots=True, eq=False)
class LayerBatch:
    """One feature map of N images, still on the model's device.

    Attributes:
        images: N.
        template: The fields that the results of all images share.
        targets: The class for each image, None for an image without it, which gets no result; None if no class is involved.
        ranges: Extremes of the channels.
        single: Whether the maps are of a single pixel.
        moments: Means, deviations and zeros of all samples, if requested.
        maps: All channels of all samples, if requested.
        values: The raw values of each image, if requested.
        drawings: By view; None if no requested format shows pictures.
        undrawn: The views that drew nothing, with the reason.
        rounded: Whether the maps' values are wider than those that are drawn.
    """

    images: int
    template: LayerResult
    targets: Sequence[Target | None] | None = None
    ranges: Ranges | None = None
    single: bool = False
    moments: Ranges | None = None
    maps: Tensor | None = None
    values: Sequence[RawValues] | None = None
    drawings: dict[str, BatchContent | None] = field(default_factory=dict)
    undrawn: dict[str, str] = field(default_factory=dict)
    rounded: bool = False

    @property
    def shows_first_sample(self) -> bool:
        """True if a picture is of the first of several samples of an image."""
        return self.template.samples > 1 and any(content is not None for content in self.drawings.values())

    def finish(self) -> list[LayerResult | None]:
        """Return the result of each image, after a GPU has copied everything; None without a result or without the class."""
        absent: list[Any] = [None] * self.images  # Any: of optional values
        if not (self.drawings or self.moments or self.values or self.maps is not None):
            return absent
        contents = dict(zip(self.drawings, map(_contents, self.drawings.values(), repeat(self.images)), strict=True))
        # A heat map has its own range.
        of_channels = self.moments or self.maps is not None
        of_channels = of_channels or any(not isinstance(each[0], HeatMap) for each in contents.values())
        statistics = statistics_of(self.ranges, single=self.single) if self.ranges and of_channels else absent
        measures = measures_of(self.moments) if self.moments else absent
        maps = None if self.maps is None else self.maps.cpu().numpy()
        results: list[LayerResult | None] = []
        for image, target in enumerate(self.targets or absent):
            result = replace(
                self.template,
                target=target,
                statistics=statistics[image],
                measures=measures[image],
                values=self.values[image] if self.values else None,
                maps=maps if maps is None or self.images == 1 else maps[image : image + 1],
                drawings=tuple(Drawing(view, each[image]) for view, each in contents.items()),
            )
            results.append(None if self.targets and target is None else result)
        return results


class BatchResults:
    """The results of a batch of N images.

    Attributes:
        layers: The feature maps, in the order of `ImageResult`.
        undrawn: Layers and views without a drawing, with the reason.
        notices: For each image.
        remarks: On the network.
        missing: The requested classes that each image does not have, with the reason.
    """

    def __init__(self, images: int) -> None:
        self.layers: list[LayerBatch] = []
        self.undrawn: dict[str, str] = {}
        self.notices: list[list[str]] = [[] for _ in range(images)]
        self.remarks: list[str] = []
        self.missing: list[dict[str, str]] = [{} for _ in range(images)]

    def add(self, drawn: Sequence[LayerBatch]) -> None:
        """Add the drawings of an output or input."""
        self.layers += drawn
        for batch in drawn:
            self.undrawn |= batch.undrawn

    def note(self, views: Iterable[str], layer: str, reason: str) -> None:
        """Record the reason why views of a layer drew nothing."""
        self.undrawn[f"{', '.join(views)} of {layer}"] = reason

    def miss(self, target: str, image: int, reason: str) -> None:
        """Record that an image does not have a class."""
        self.missing[image][target] = reason

    def notify_all(self, notice: str) -> None:
        """Add a notice to every image."""
        for own in self.notices:
            own.append(notice)

    def notify_once(self, image: int, reason: str) -> None:
        """Add a notice to an image, unless it is the reason of an earlier one."""
        if reason and not any(notice.endswith(reason) for notice in self.notices[image]):
            self.notices[image].append(reason)

    def notify_missing(self) -> None:
        """Add notices to each image about the classes that it does not have, in place of those that are the reason alone."""
        for own, missing in zip(self.notices, self.missing, strict=True):
            for reason in dict.fromkeys(missing.values()):
                alike = [target for target, why in missing.items() if why == reason]
                shown = ", ".join(alike) if len(alike) < 4 else f"{alike[0]}, {alike[1]}, ... {alike[-1]}"
                own[:] = [notice for notice in own if notice != reason]
                own.append(f"{NOTHING_FOR} {shown}: {reason}")


def _contents(batch: BatchContent | None, images: int) -> Sequence[Content | None]:
    """Return the content of each image; None if no pictures are requested."""
    if batch is None:
        return [None] * images
    arrays = {name: values.cpu().numpy() for name, values in batch.tensors.items()}
    parts = {name: array.tolist() if array.ndim == 1 else array for name, array in arrays.items()}
    return [batch.make(**{name: part[image] for name, part in parts.items()}) for image in range(images)]


def statistics_of(ranges: Ranges, *, single: bool) -> list[Statistics]:
    """Summarize each image's feature map; `single` if its maps are of a single pixel."""
    low, high, means = ranges.low.cpu().numpy(), ranges.high.cpu().numpy(), ranges.mean.cpu().numpy()
    constant = low == high
    nonfinite = [0] * len(low)
    if ranges.bad is not None:
        counts = ranges.bad.cpu().numpy()
        constant &= counts == 0
        nonfinite = counts.sum(1).tolist()
    if single or not constant.any():
        channels: list[tuple[int, ...]] = [()] * len(low)
    else:
        channels = [tuple(row.nonzero()[0].tolist()) for row in constant]
    # fmin and fmax skip NaN, of a channel without a finite value.
    ends = zip(np.fmin.reduce(low, 1).tolist(), np.fmax.reduce(high, 1).tolist(), means.tolist(), strict=True)
    results = []
    for row, dead, bad in zip(ends, channels, nonfinite, strict=True):
        lowest, highest, mean = [value if isfinite(value) else None for value in row]
        results.append(Statistics(lowest, highest, mean, dead, bad))
    return results
