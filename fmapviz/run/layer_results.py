"""Draw a feature map of a batch of images; results stay on the device until a GPU has finished."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from fmapviz.core.words import counted
from fmapviz.data import LayerResult, RawValues
from fmapviz.draw.grid import as_floats, is_rounded, measure
from fmapviz.observe.reshape import NotAMapError, frames_of, picture_size
from fmapviz.run.batch_results import LayerBatch, MixedBatchError
from fmapviz.views.base import BatchContent, LayerMaps, NoChannelsError
from fmapviz.views.own import OneImageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from fmapviz.config import Style
    from fmapviz.data import FeatureMap, Of, Target
    from fmapviz.draw.grid import Ranges
    from fmapviz.observe.forward_record import ForwardRecord
    from fmapviz.run.plan import Plan


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
        of: Kind of the layer's values.
        targets: Of gradients the class for each image.
        query: Of attention, whose values are maps `(N, heads, h, w)`, whose it is, in words.

    Returns:
        One value; of a clip one for each frame. What cannot be drawn is in `undrawn`, with the reason.

    Raises:
        MixedBatchError: The number of samples is not the number of images.
    """
    views, images, raw = plan.draws[of], record.pixels.shape[0], None
    own = feature_map
    is_alone = own.layout is not None and not own.layout.of_images
    shape = own.layout.of_one(values.shape, images=images) if own.layout and of != "attention" else tuple(values.shape[1:])
    template = LayerResult(own.name, own.layer.type, own.call, own.index, shape, of, query=query)
    values = values.detach() if values.requires_grad else values
    try:
        unreduced = [view for view in views if view not in plan.reductions]
        if plan.kept and unreduced:
            raw = keep_values(values, plan.kept, images=images, view="" if of == "output" else unreduced[0])
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
        named = replace(template, layer=name, frame=moment) if suffix or moment is not None else template
        upright = maps
        samples = maps.shape[0]
        parts = f"{samples} samples for {counted(images, 'image')}, not a map of the image" if samples > images else ""
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
    """Draw a view of a layer, or record the reason why it cannot be drawn."""
    try:
        if refused and draw:
            raise NotAMapError(refused)  # noqa: TRY301  as a view would
        batch.drawings[view] = _to_host(draw()) if draw else None
    except OneImageError as error:
        raise MixedBatchError from error
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
    images, samples = pixels.shape[0], maps.shape[0]
    if samples != images and images > 1:
        raise MixedBatchError
    vector, rounded = maps.ndim == 2, is_rounded(maps)
    everything = as_floats(maps[:, :, None, None] if vector else maps)
    maps = everything if samples == images else everything[:images]
    ranges = measure(maps, moments=plan.moments or style.rank != "max")
    label = next((target.label for target in targets or () if target), "")
    if shared := plan.shared.get((template.of, template.layer, label)):
        ranges = replace(ranges, shared=shared)
    batch = LayerBatch(
        images,
        replace(template, samples=samples) if samples > images else template,
        targets,
        ranges,
        single=maps.shape[-1] * maps.shape[-2] == 1,
        rounded=rounded,
        moments=_measure_samples(everything, ranges) if plan.moments else None,
        maps=everything.to(torch.float32, copy=True) if plan.whole and template.of == "output" and not vector else None,
    )
    return batch, LayerMaps(maps, ranges, vector, picture_size(pixels), centres=template.centres)


def _to_host(content: BatchContent) -> BatchContent:
    """Start an asynchronous copy from a GPU, which continues with the next layer."""
    if not any([values.is_cuda for values in content.tensors.values()]):  # noqa: C419  faster for so few
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
