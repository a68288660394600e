"""Draw a feature map of a batch of images; copying from the device is left for when a GPU has finished."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fmapviz.core.drawings import Drawing, HeatMap
from fmapviz.core.words import counted
from fmapviz.draw.grid import as_floats, is_rounded, measure
from fmapviz.draw.measures import measures_of
from fmapviz.observe.reshape import NotAMapError, frames_of, picture_size
from fmapviz.types import LayerResult, RawValues, Statistics
from fmapviz.views.base import BatchContent, LayerMaps, NoChannelsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.config import Style
    from fmapviz.core.drawings import Content
    from fmapviz.draw.grid import Ranges
    from fmapviz.observe.forward_record import ForwardRecord
    from fmapviz.run.plan import Plan
    from fmapviz.types import FeatureMap, Of, Target


class MixedBatchError(Exception):
    """A layer saw another number of samples than there are images, so the samples cannot be assigned in a batch."""


@dataclass(slots=True, eq=False)
class LayerBatch:
    """One feature map of N images, still on the model's device.

    Attributes:
        images: N.
        template: What the results of all images have in common.
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
        """Whether a picture is of the first of several samples of an image."""
        return self.template.samples > 1 and any(content is not None for content in self.drawings.values())

    def finish(self) -> list[LayerResult | None]:
        """Return each image's result, once a GPU has copied all; None if nothing was found, or the class is not there."""
        absent: list[Any] = [None] * self.images  # Any: of optional values
        if not (self.drawings or self.moments or self.values or self.maps is not None):
            return absent
        contents = dict(zip(self.drawings, map(_contents, self.drawings.values(), repeat(self.images)), strict=True))
        # A heat map has a range of its own.
        of_channels = self.moments or self.maps is not None
        of_channels = of_channels or any(not isinstance(each[0], HeatMap) for each in contents.values())
        statistics = statistics_of(self.ranges, single=self.single) if self.ranges and of_channels else absent
        measures = measures_of(self.moments) if self.moments else absent
        maps = None if self.maps is None else _numbers(self.maps)
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
    """What was found out about a batch of N images.

    Attributes:
        layers: The feature maps, in the order of `ImageResult`.
        undrawn: What was not drawn, with the reason.
        notices: For each image.
        remarks: On the network.
        missing: The requested classes that each image does not have.
        why_missing: Why each image does not have them.
    """

    def __init__(self, images: int) -> None:
        self.layers: list[LayerBatch] = []
        self.undrawn: dict[str, str] = {}
        self.notices: list[list[str]] = [[] for _ in range(images)]
        self.remarks: list[str] = []
        self.missing: list[list[str]] = [[] for _ in range(images)]
        self.why_missing = [""] * images

    def add(self, drawn: Sequence[LayerBatch]) -> None:
        """Add what was drawn of an output or input."""
        self.layers += drawn
        for batch in drawn:
            self.undrawn |= batch.undrawn

    def note(self, views: Iterable[str], layer: str, reason: str) -> None:
        """Record why some views of a layer drew nothing."""
        self.undrawn[f"{', '.join(views)} of {layer}"] = reason

    def miss(self, target: str, images: Iterable[bool]) -> None:
        """Record which images do not have a class."""
        for own, is_missing in zip(self.missing, images, strict=True):
            if is_missing:
                own.append(target)

    def notify_all(self, notice: str) -> None:
        """Add a notice to every image."""
        for own in self.notices:
            own.append(notice)

    def notify_missing(self, reasons: Sequence[str]) -> None:
        """Add a notice to each image about the classes that it does not have, with its reason."""
        self.why_missing = [*reasons]
        for own, missing, reason in zip(self.notices, self.missing, reasons, strict=True):
            if missing:
                shown = ", ".join(missing) if len(missing) < 4 else f"{missing[0]}, {missing[1]}, ... {missing[-1]}"
                own.append(f"nothing is drawn for {shown}: {reason}")


def draw_feature_map(
    feature_map: FeatureMap,
    values: Tensor,
    plan: Plan,
    style: Style,
    *,
    record: ForwardRecord,
    of: Of = "output",
    targets: Sequence[Target | None] | None = None,
    query: str = "",
) -> list[LayerBatch]:
    """Draw a layer's output, input, gradient or attention with the views of a plan.

    Args:
        feature_map: The layer it belongs to.
        values: Its own values, or others of the same shape, such as their gradient.
        plan: The views, and what else is requested.
        style: How the pictures look.
        record: The forward pass.
        of: What the values are of the layer.
        targets: Of gradients the class for each image.
        query: Of attention, whose values are maps `(N, heads, h, w)`, whose it is, in words.

    Returns:
        One value; of a clip one for each frame. What cannot be drawn is in `undrawn`, with the reason.

    Raises:
        MixedBatchError: The number of samples is not the number of images.
    """
    views, images, raw = plan.draws[of], len(record.pixels), None
    own = feature_map
    is_alone = own.layout is not None and not own.layout.of_images
    shape = own.layout.of_one(values.shape, images=images) if own.layout and of != "attention" else tuple(values.shape[1:])
    template = LayerResult(own.name, own.layer.type, own.call, own.index, shape, of, query=query)
    values = values.detach() if values.requires_grad else values
    try:
        if plan.kept and (of != "output" or views.keys() - plan.reductions):
            raw = keep_values(values, plan.kept, images=images, view="" if of == "output" else next(iter(views)))
        frames = {"": values} if of == "attention" else frames_of(own, values)
    except NotAMapError as reason:
        if raw and images > 1 and is_alone:  # the first axis is as long as that of the images would be
            raise MixedBatchError from reason
        undrawn = {template.layer: str(reason)} if raw is None or plan.drawn else {}
        return [LayerBatch(images, template, targets, values=raw, undrawn=undrawn)]
    batches = [] if raw is None or len(frames) == 1 else [LayerBatch(images, template, targets, values=raw)]
    is_placed = record.places is not None and of == "output" and not plan.placed.isdisjoint(views)
    for time, (suffix, maps) in enumerate(frames.items()):
        name = f"{template.layer}{suffix}"
        moment = own.layout.frame(time, count=len(frames)) if own.layout and of != "attention" else None
        named = replace(template, layer=name, frame=moment)
        upright = maps
        parts = f"{len(maps)} samples for {counted(images, 'image')}, not a map of the image" if len(maps) > images else ""
        if record.places and is_placed and maps.ndim == 4 and not parts:
            upright = record.places.upright(own, maps)
            named = replace(named, centres=record.places.of(own, (upright.shape[2], upright.shape[3]), suffix))
            if record.pixels.ndim == 5 and moment is None:
                record.places.unframed[name] = None
        batch, given = _measure(named, maps, plan, style, pixels=record.pixels, targets=targets)
        if upright is not maps:
            batch.maps = None if batch.maps is None else batch.maps.transpose(2, 3)
        batch.values = raw if len(frames) == 1 else None
        batches.append(batch)
        over = replace(given, values=given.values.transpose(2, 3)) if upright is not maps else given
        for view, draw in views.items():
            is_over = view in plan.placed
            common = plan.shared.get((view, named.layer, ""))
            shown = over if is_over else given
            shown = replace(shown, limits=(common.low, common.high)) if common else shown
            _draw(
                batch,
                view,
                partial(draw, shown, style) if draw else None,
                refused=parts if is_over or view in plan.sheets else "",
            )
    return batches


def _draw(batch: LayerBatch, view: str, draw: Callable[[], BatchContent] | None, *, refused: str) -> None:
    """Draw a view of a layer, or note why it is not drawn."""
    try:
        if refused and draw:
            raise NotAMapError(refused)  # noqa: TRY301  as a view would
        batch.drawings[view] = _to_host(draw()) if draw else None
    except NotAMapError as reason:
        layer = batch.template.layer
        batch.undrawn[layer if isinstance(reason, NoChannelsError) else f"{view} of {layer}"] = str(reason)


def keep_values(values: Tensor, dtype: str, *, images: int, view: str = "") -> list[RawValues]:
    """Copy values, before a later layer changes them in place.

    Args:
        values: Any shape `(N, ...)`, any type; of a single image N may be any number of samples.
        dtype: The type of the copy, `float32` or `float16`.
        images: In the batch.
        view: See `RawValues`.

    Raises:
        MixedBatchError: N is not the number of images.
    """
    if images > 1 and (values.ndim == 0 or len(values) != images):
        raise MixedBatchError
    plain = values.dequantize() if values.is_quantized else values
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    copied = plain.detach().to("cpu", getattr(torch, dtype), copy=True)
    copied = copied if copied.ndim else copied[None]
    overflows = [0] * images if dtype == "float32" else _count_overflows(plain, copied, images)
    whole = copied.numpy()
    arrays = whole if len(whole) == images else [whole]  # all samples of a single image
    name = str(values.dtype).removeprefix("torch.")
    return [RawValues(array, name, view, lost) for array, lost in zip(arrays, overflows, strict=True)]


def _measure(
    template: LayerResult,
    maps: Tensor,
    plan: Plan,
    style: Style,
    *,
    pixels: Tensor,
    targets: Sequence[Target | None] | None,
) -> tuple[LayerBatch, LayerMaps]:
    """Measure maps `(N, C, H, W)`, or a vector `(N, K)`; of a single image N may be any number of samples."""
    images, samples = len(pixels), len(maps)
    if samples != images and images > 1:
        raise MixedBatchError
    vector, rounded = maps.ndim == 2, is_rounded(maps)
    everything = as_floats(maps[:, :, None, None] if vector else maps)
    maps = everything[:images]
    ranges = measure(maps, moments=plan.moments or style.rank != "max")
    label = next((target.label for target in targets or () if target), "")
    if shared := plan.shared.get((template.of, template.layer, label)):
        ranges = replace(ranges, shared=shared)
    batch = LayerBatch(
        images,
        replace(template, samples=samples if images == 1 else 1),
        targets,
        ranges,
        single=maps.shape[-1] * maps.shape[-2] == 1,
        rounded=rounded,
        moments=_measure_samples(everything, ranges) if plan.moments else None,
        maps=everything.to(torch.float32, copy=True) if plan.whole and template.of == "output" and not vector else None,
    )
    return batch, LayerMaps(maps, ranges, vector, picture_size(pixels), centres=template.centres)


def _contents(batch: BatchContent | None, images: int) -> Sequence[Content | None]:
    """Return the content of each image; None if no pictures are requested."""
    if batch is None:
        return [None] * images
    arrays = map(_numbers, batch.tensors.values())
    parts = [array.tolist() if array.ndim == 1 else array for array in arrays]
    return [batch.make(**dict(zip(batch.tensors, own, strict=True))) for own in zip(*parts, strict=True)]


def _to_host(content: BatchContent) -> BatchContent:
    """Start copying from a GPU, which may still be computing, and goes on with the next layer."""
    if not any(values.is_cuda for values in content.tensors.values()):
        return content
    copies = {}
    for name, values in content.tensors.items():
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        copies[name] = host.copy_(values, non_blocking=True)
    return BatchContent(content.make, copies)


def _measure_samples(everything: Tensor, first: Ranges) -> Ranges:
    """Measure all samples of an image as one, if it has several."""
    if len(everything) == len(first.mean):
        return first
    samples, channels, height, width = everything.shape
    return measure(everything.transpose(0, 1).reshape(1, channels, samples * height, width), moments=True)


def _count_overflows(values: Tensor, halves: Tensor, images: int) -> list[int]:
    """Count the values of each image that overflow a half."""
    if not bool(halves.isinf().any()):
        return [0] * images
    lost = halves.isinf() & values.isfinite().cpu().view(halves.shape)
    counts = lost.flatten(1).sum(1) if lost.ndim > 1 else lost.long()
    return counts.tolist() if len(counts) == images else [int(counts.sum())]


def statistics_of(ranges: Ranges, *, single: bool) -> list[Statistics]:
    """Summarize each image's feature map; `single` if its maps are of a single pixel."""
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
    lowest = np.fmin.reduce(low, 1).tolist()  # skips NaN, of a channel without a finite value
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
