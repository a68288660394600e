"""Draw a tensor of feature maps for all images of a batch, and leave the rest for when a GPU has finished."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fmapviz import bars, tiling
from fmapviz.grids import draw_grids
from fmapviz.heat import Stretched, stretch
from fmapviz.histograms import Histogram
from fmapviz.shapes import NotAMapError
from fmapviz.tiling import Ranges, as_floats, choose_channels, measure, take_channels
from fmapviz.values import Drawing, HeatMap, Measures, Statistics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.options import Style
    from fmapviz.plan import Draw, Plan
    from fmapviz.tiles import Tiles
    from fmapviz.values import FeatureMap, Of, Target


class MixedBatchError(Exception):
    """A layer saw another number of samples than there are images, so they cannot be told apart in a batch."""


@dataclass(slots=True, eq=False)
class Sketch:
    """What is known of one feature map of a batch, still on the model's device, except the pixels."""

    layer: str
    type: str
    call: int
    index: int
    shape: tuple[int, ...]
    vector: bool
    ranges: Ranges
    single: bool
    chosen: Tensor | None
    samples: int
    of: Of
    targets: Sequence[Target | None] | None
    moments: Ranges | None
    everything: Tensor | None
    limits: tuple[Tensor, Tensor] | None = None
    tiles: dict[str, Tiles] = field(default_factory=dict)
    pixels: dict[str, Tensor] = field(default_factory=dict)
    counted: dict[str, Sequence[Tensor]] = field(default_factory=dict)
    reduced: dict[str, tuple[Tensor, Stretched]] = field(default_factory=dict)
    left_out: Tensor | None = None
    broken: dict[str, Tensor | None] = field(default_factory=dict)
    undrawn: dict[str, str] = field(default_factory=dict)

    def finish(self) -> Iterator[list[Drawing]]:
        """Give each image's drawings; one without pixels where only what the layer is like is wanted."""
        statistics = _statistics(self.ranges, single=self.single)
        measures = measures_of(self.moments) if self.moments else None
        chosen = None if self.chosen is None else self.chosen.tolist()
        pixels = {view: values.numpy() for view, values in self.pixels.items()}
        limits = None if self.limits is None else [_numbers(limit).tolist() for limit in self.limits]
        everything = None if self.everything is None else _numbers(self.everything)
        counted = {view: [_numbers(each) for each in counts] for view, counts in self.counted.items()}
        broken = {view: self._totals(counts) for view, counts in self.broken.items()}
        for image, own in enumerate(statistics):
            target = self.targets[image] if self.targets else None
            common: dict[str, Any] = {  # Any: arguments of all types
                "layer": self.layer,
                "type": self.type,
                "call": self.call,
                "index": self.index,
                "shape": self.shape,
                "statistics": own,
                "measures": measures[image] if measures else None,
                "samples": self.samples,
                "of": self.of,
                "vector": self.vector,
                "target": target,
                "limits": _finite_pair(limits[0][image], limits[1][image]) if limits else None,
                "everything": everything if everything is None or len(statistics) == 1 else everything[image : image + 1],
            }
            if self.targets and not target:
                yield []
                continue
            shown = None if chosen is None else tuple(chosen[image])
            drawn = [
                Drawing(view=view, pixels=values[image], broken=broken[view][image], **common)
                if view in broken
                else Drawing(view=view, pixels=values[image], tiles=self.tiles.get(view), channels=shown, **common)
                for view, values in pixels.items()
            ]
            drawn += [
                Drawing(view=view, pixels=_NO_PIXELS, histogram=_histogram(*(part[image] for part in counts)), **common)
                for view, counts in counted.items()
            ]
            if not drawn and (measures or everything is not None):
                drawn = [Drawing(view="", pixels=_NO_PIXELS, **common)]
            yield drawn

    def finish_heats(self) -> Iterator[list[HeatMap]]:
        """Give each image's maps of all channels together."""
        arrays = {
            view: (_numbers(raw), *map(_numbers, (drawn.pixels, drawn.low, drawn.high)))
            for view, (raw, drawn) in self.reduced.items()
        }
        left_out = self._totals(self.left_out)
        for image in range(len(self.ranges.mean)):
            yield [
                HeatMap(
                    view=view,
                    layer=self.layer,
                    type=self.type,
                    index=self.index,
                    shape=self.shape,
                    target=None,
                    raw=raw[image],
                    pixels=pixels[image],
                    reduced=True,
                    limits=(float(low[image]), float(high[image])),
                    nonfinite=left_out[image],
                )
                for view, (raw, pixels, low, high) in arrays.items()
            ]

    def _totals(self, counts: Tensor | None) -> list[int]:
        """Give a number for each image; nothing counted is zero."""
        return [0] * len(self.ranges.mean) if counts is None else counts.tolist()


def sketch(
    feature_map: FeatureMap,
    maps: Tensor,
    plan: Plan,
    style: Style,
    *,
    images: int,
    picture: tuple[int, int] | None = None,
    suffix: str = "",
    of: Of = "output",
    targets: Sequence[Target | None] | None = None,
) -> Sketch:
    """Draw maps with the views of a plan.

    Args:
        feature_map: Where they come from.
        maps: `(N, C, H, W)`, or a vector `(N, K)`; of a single image N may be any number of samples.
        plan: The views, and what else is to be found out.
        style: How the pictures look.
        images: In the batch.
        picture: Height and width of the input, if it is a picture.
        suffix: Ends the layer's name, for a frame of a clip.
        of: What the maps are of the layer.
        targets: Of gradients the class for each image; an image without one is not drawn.

    Raises:
        MixedBatchError: N is not the number of images.
    """
    samples = len(maps)
    if samples != images and images > 1:
        raise MixedBatchError
    vector = maps.ndim == 2
    everything = as_floats(maps[:, :, None, None] if vector else maps)
    maps = everything[:images]
    layer = f"{feature_map.name}{suffix}"
    ranges = measure(maps, moments=plan.moments or style.rank != "max")
    if shared := plan.shared.get((of, layer, _label(targets))):
        ranges = replace(ranges, shared=shared)
    sketched = Sketch(
        layer=layer,
        type=feature_map.layer.type,
        call=feature_map.call,
        index=feature_map.index,
        shape=feature_map.shape[1:],
        vector=vector,
        ranges=ranges,
        single=maps.shape[-1] * maps.shape[-2] == 1,
        chosen=choose_channels(ranges, style),
        samples=samples if images == 1 else 1,
        of=of,
        targets=targets,
        moments=_measured(everything, ranges) if plan.moments else None,
        everything=everything.clone() if plan.principal and of == "output" and not vector else None,
    )
    if sketched.chosen is not None and not sketched.chosen.shape[1]:
        sketched.undrawn[layer] = f"has {maps.shape[1]} channels, none of those chosen"
    else:
        _draw(sketched, maps, plan.draws(of), style)
    if of == "output" and (plan.reduces or plan.counts):
        _reduce(sketched, maps, plan, style, picture)
    return sketched


def on_the_way(pixels: Tensor) -> Tensor:
    """Have pixels in the computer's memory; a GPU may still be writing them, and goes on with the next layer."""
    if not pixels.is_cuda:
        return pixels if pixels.is_cpu else pixels.cpu()
    host = torch.empty(pixels.shape, dtype=pixels.dtype, pin_memory=True)
    return host.copy_(pixels, non_blocking=True)


def _label(targets: Sequence[Target | None] | None) -> str:
    """Give what the class was asked for as, the same for all images."""
    return next((target.label for target in targets or () if target), "")


def _draw(sketched: Sketch, maps: Tensor, draws: Mapping[str, Draw], style: Style) -> None:
    """Draw grids of the chosen channels, and whatever is no grid of all of them."""
    shown, ranges = maps, sketched.ranges
    if sketched.chosen is not None:
        shown, ranges = take_channels(maps, ranges, sketched.chosen)
    count, height, width = shown.shape[1:]
    vector = sketched.vector
    sketched.limits = _limits(ranges, style, vector=vector)
    laid = bars.lay_out(count, style) if vector else tiling.lay_out(count, height, width, style)
    for view, draw in draws.items():
        is_grid = draw is draw_grids
        given = (shown, ranges) if is_grid else (maps, sketched.ranges)
        try:
            pixels = draw(given[0].flatten(1) if vector else given[0], given[1], style)
        except NotAMapError as reason:
            sketched.undrawn[f"{view} of {sketched.layer}"] = str(reason)
            continue
        sketched.pixels[view] = on_the_way(pixels)
        if is_grid:
            sketched.tiles[view] = laid
        elif pixels.ndim == 4:
            sketched.broken[view] = None if ranges.bad is None else _broken_places(maps)


def _broken_places(maps: Tensor) -> Tensor:
    """Count the places with a value that is not finite, but for channels that have no other."""
    bad = ~maps.isfinite()
    silent = bad.flatten(2).all(2)
    silent &= ~silent.all(1, keepdim=True)
    counts: Tensor = (bad & ~silent[..., None, None]).any(1).sum((1, 2))
    return counts


def _limits(ranges: Ranges, style: Style, *, vector: bool) -> tuple[Tensor, Tensor] | None:
    """Say what the ends of the scale stand for, where that is the same for all channels."""
    if vector:
        low, high = bars.axis_of(ranges, style)
    elif style.norm in {"channel", "signed"}:
        return None
    else:
        low, high = tiling.limits(ranges, style)
    return low[:, 0], high[:, 0]


def _reduce(sketched: Sketch, maps: Tensor, plan: Plan, style: Style, picture: tuple[int, int] | None) -> None:
    """Put all channels together, also where only some are shown."""
    bad = sketched.ranges.bad
    sketched.left_out = None if bad is None else bad.sum(1)
    for view, count in plan.counts.items():
        sketched.counted[view] = count(maps)
    for view, reduction in plan.reduces.items():
        if sketched.vector:
            sketched.undrawn[f"{view} of {sketched.layer}"] = "a vector, no rows and columns to lay over the picture"
            continue
        raw = reduction.reduce(maps)
        size = picture if reduction.over and picture else (raw.shape[1], raw.shape[2])
        shared = plan.shared.get((view, sketched.layer, ""))
        limits = style.limits or ((shared.low, shared.high) if shared and style.norm == "run" else None)
        drawn = stretch(raw, size, style, limits)
        sketched.reduced[view] = on_the_way(raw), replace(drawn, pixels=on_the_way(drawn.pixels))


def _measured(everything: Tensor, first: Ranges) -> Ranges:
    """Measure all samples of an image as one, if it has several."""
    if len(everything) == len(first.mean):
        return first
    samples, channels, height, width = everything.shape
    return measure(everything.transpose(0, 1).reshape(1, channels, samples * height, width), moments=True)


_NO_PIXELS = np.zeros((0, 0), np.uint8)


def _histogram(counts: NDArray[np.int64], low: NDArray[Any], high: NDArray[Any], bad: NDArray[Any]) -> Histogram:
    return Histogram(counts, float(low), float(high), int(bad))


def measures_of(ranges: Ranges) -> list[Measures]:
    """Give what is known of each channel, for each image."""
    moments = ranges.moments
    assert moments
    low, high, mean, std, zeros = map(_numbers, (ranges.low, ranges.high, moments.mean, moments.std, moments.zeros))
    bad = np.zeros_like(zeros) if ranges.bad is None else _numbers(ranges.bad)
    return [Measures(moments.values, *own) for own in zip(low, high, mean, std, zeros, bad, strict=True)]


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


def _finite_pair(low: float, high: float) -> tuple[float, float] | None:
    return (low, high) if isfinite(low) and isfinite(high) else None


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
