"""Draw a tensor of feature maps for all images of a batch, and leave the rest for when a GPU has finished."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fmapviz.shapes import NotAMapError
from fmapviz.tiling import Ranges, as_floats, choose_channels, measure, take_channels
from fmapviz.values import Drawing, Statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.options import Style
    from fmapviz.values import FeatureMap, Of, Target

    Draw = Callable[[Tensor, Ranges, Style], Tensor]


class MixedBatchError(Exception):
    """A layer saw another number of samples than there are images, so they cannot be told apart in a batch."""


@dataclass(frozen=True, slots=True, eq=False)
class Sketch:
    """What is known of one feature map of a batch, still on the model's device, except the pixels."""

    layer: str
    type: str
    call: int
    index: int
    shape: tuple[int, ...]
    pixels: dict[str, Tensor]
    ranges: Ranges
    single: bool
    chosen: Tensor | None
    samples: int
    of: Of
    targets: Sequence[Target | None] | None

    def finish(self) -> Iterator[list[Drawing]]:
        """Give each image's drawings."""
        statistics = _statistics(self.ranges, single=self.single)
        chosen = None if self.chosen is None else self.chosen.tolist()
        pixels = {view: values.numpy() for view, values in self.pixels.items()}
        for image, own in enumerate(statistics):
            target = self.targets[image] if self.targets else None
            yield [
                Drawing(
                    view=view,
                    layer=self.layer,
                    type=self.type,
                    call=self.call,
                    index=self.index,
                    shape=self.shape,
                    pixels=values[image],
                    statistics=own,
                    channels=None if chosen is None else tuple(chosen[image]),
                    samples=self.samples,
                    of=self.of,
                    target=target,
                )
                for view, values in pixels.items()
                if target or not self.targets
            ]


def sketch(
    feature_map: FeatureMap,
    maps: Tensor,
    views: Mapping[str, Draw],
    style: Style,
    *,
    images: int,
    suffix: str = "",
    of: Of = "output",
    targets: Sequence[Target | None] | None = None,
) -> Sketch:
    """Draw maps with some views.

    Args:
        feature_map: Where they come from.
        maps: `(N, C, H, W)`, or a vector `(N, K)`; of a single image N may be any number of samples.
        views: From a view's name to its `draw` function.
        style: How the pictures look.
        images: In the batch.
        suffix: Ends the layer's name, for a frame of a clip.
        of: What the maps are of the layer.
        targets: Of gradients the class for each image; an image without one is not drawn.

    Raises:
        MixedBatchError: N is not the number of images.
        NotAMapError: None of the chosen channels is there.
    """
    samples = len(maps)
    if samples != images:
        if images > 1:
            raise MixedBatchError
        maps = maps[:1]
    vector = maps.ndim == 2
    maps = as_floats(maps[:, :, None, None] if vector else maps)
    ranges = whole = measure(maps)
    chosen = choose_channels(ranges, style)
    if chosen is not None:
        if chosen.shape[1] == 0:
            raise NotAMapError(f"has {maps.shape[1]} channels, none of those chosen")
        maps, ranges = take_channels(maps, ranges, chosen)
    shown = maps.flatten(1) if vector else maps
    return Sketch(
        layer=f"{feature_map.name}{suffix}",
        type=feature_map.layer.type,
        call=feature_map.call,
        index=feature_map.index,
        shape=(whole.low.shape[1],) if vector else feature_map.shape[1:],
        pixels={view: on_the_way(draw(shown, ranges, style)) for view, draw in views.items()},
        ranges=whole,
        single=maps.shape[-1] * maps.shape[-2] == 1,
        chosen=chosen,
        samples=samples if images == 1 else 1,
        of=of,
        targets=targets,
    )


def on_the_way(pixels: Tensor) -> Tensor:
    """Have pixels in the computer's memory; a GPU may still be writing them, and goes on with the next layer."""
    if not pixels.is_cuda:
        return pixels if pixels.is_cpu else pixels.cpu()
    host = torch.empty(pixels.shape, dtype=pixels.dtype, pin_memory=True)
    return host.copy_(pixels, non_blocking=True)


def _statistics(ranges: Ranges, *, single: bool) -> list[Statistics]:
    """Sum up each image's feature map."""
    low, high, means = (_numbers(values) for values in (ranges.low, ranges.high, ranges.mean))
    constant = low == high
    nonfinite = [0] * len(low)
    if ranges.bad is not None:
        bad = _numbers(ranges.bad)
        constant &= bad == 0
        nonfinite = bad.sum(1).tolist()
    if single or not constant.any():
        channels: list[tuple[int, ...]] = [()] * len(low)
    else:
        channels = [tuple(row.nonzero()[0].tolist()) for row in constant]
    lowest = np.fmin.reduce(low, 1).tolist()  # NaN, of a channel without a finite value, has no say
    highest = np.fmax.reduce(high, 1).tolist()
    return [
        Statistics(_finite(lowest), _finite(highest), _finite(mean), channels, nonfinite)
        for lowest, highest, mean, channels, nonfinite in zip(
            lowest, highest, means.tolist(), channels, nonfinite, strict=True
        )
    ]


def _numbers(values: Tensor) -> NDArray[Any]:
    return (values if values.is_cpu else values.cpu()).numpy()


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
