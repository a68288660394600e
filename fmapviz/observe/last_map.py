"""Find the last map of the picture that a class score depends on."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING

from fmapviz.errors import quote
from fmapviz.observe.gradients import gradients_at
from fmapviz.observe.layouts.find import known_by_type
from fmapviz.observe.reshape import NotAMapError
from fmapviz.observe.target_scores import scores_at

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from torch import Tensor

    from fmapviz.observe.class_scores import ClassScores, Index
    from fmapviz.observe.forward_record import ForwardRecord, GraphPoint

_PARTS = (1, 8, 64, 512, 4096)
_BACKBONE = "backbone"  # torchvision's detectors use everything else to find boxes


class NoMapError(Exception):
    """No layer can be chosen; the message is the reason."""


@dataclass(frozen=True, slots=True, eq=False)
class Last:
    """The last map that a score depends on.

    Attributes:
        gradient: Of the score at its values.
        certain: False if all gradients were zero, so that another image may show more.
    """

    point: GraphPoint
    gradient: Tensor
    certain: bool


def find_last(record: ForwardRecord, scores: ClassScores, indices: Sequence[Index | None]) -> Last:
    """Find the last layer with a gradient other than zero; the last with any gradient, if all are zero.

    It is the last layer whose output is a map of more than one pixel and which the score depends on: the last convolution
    is one of many branches in GoogLeNet, and 32 of 1024 channels in DenseNet; in the last block of a vision transformer only
    the class token counts, not the patches.

    Args:
        record: A forward pass in which all layers were recorded.
        scores: Of the classes.
        indices: A class for each image.

    Raises:
        NoMapError: The score depends on no map, as far as there are gradients.
    """
    own = scores_at(scores, indices)
    if not own.requires_grad:
        raise _no_gradient(record.kept)
    maps, connected, alive = find_maps(record, scores), None, True
    for size in _PARTS:  # the first most often; the deeper, the longer a backward pass takes
        part = list(islice(maps, size)) if alive or connected is None or size <= _PARTS[1] else []
        alive = False
        gradients = gradients_at(own, [point.edge for point in part], more=True)
        for point, gradient in zip(part, gradients, strict=True):
            if gradient is not None:
                connected = connected or Last(point, gradient, certain=False)
                alive = alive or bool(gradient.any())
                if bool(record.maps(point, gradient).any()):
                    return Last(point, gradient, certain=True)
    if connected is None:
        raise NoMapError("no layer whose output is a map of the picture has a gradient of the class score")
    # With gradients that are all zero, the first layer of the last block of a vision transformer.
    for point in reversed(record.kept):
        if point.edge is not None and point.name.endswith((".ln_1", ".norm1")):
            return Last(point, point.feature_map.values.detach() * 0, certain=False)
    return connected


def find_scale(
    record: ForwardRecord, scores: ClassScores, indices: Sequence[Index | None], feeds: Collection[str]
) -> Last | None:
    """Find the first scale that the scores depend on, of those that the head of a detector reads; None if there is none.

    Of networks that compute a coarse scale from a fine one, such as YOLO, every box depends on the first.

    Args:
        record: A forward pass in which all layers were recorded.
        scores: Of the classes.
        indices: A class for each image.
        feeds: Paths of the modules whose outputs the head reads.
    """
    own, scales = scores_at(scores, indices), [each for each in find_maps(record, scores) if each.layer.name in feeds][::-1]
    if not scales or not own.requires_grad:
        return None
    gradients = gradients_at(own, [each.edge for each in scales], more=True)
    for point, gradient in zip(scales, gradients, strict=True):
        if gradient is not None and bool(gradient.any()):
            return Last(point, gradient, certain=True)
    return None


def find_maps(record: ForwardRecord, scores: ClassScores) -> Iterator[GraphPoint]:
    """Yield the points whose output certainly is a map of the picture, of more than one pixel, the last executed first.

    If a module and those around it return the same tensor, the outermost one is yielded.

    Args:
        record: A forward pass in which all layers were recorded.
        scores: Of the classes.
    """
    boxes = scores.open_ended and any(point.name.startswith(_BACKBONE) for point in record.kept)
    for _, same in groupby(reversed(record.kept), key=lambda point: point.identity):
        maps = (point for point in same if _is_map(point, record, scores, boxes=boxes))
        yield from islice(maps, 1)


def _is_map(point: GraphPoint, record: ForwardRecord, scores: ClassScores, *, boxes: bool) -> bool:
    """Return False for tensors that are no maps of the picture, or have ambiguous shapes."""
    values, parts = point.values, point.name.split(".")
    try:
        maps = record.maps(point, values)
    except NotAMapError:
        return False
    layout = point.feature_map.layout
    return not (
        maps.shape[-2:] == (1, 1)
        or ((scores.of_pixels or values.ndim == 3) and maps.shape[1] == scores.width)  # class scores themselves
        or (boxes and not point.name.startswith(_BACKBONE))
        or (any("att" in part for part in parts[:-1]) and not known_by_type(point.layer.module))  # a part of attention
        or bool(layout and layout.assumed)
        or (values.ndim == 5 and record.pixels.ndim < 5)  # no clip
    )


def _no_gradient(points: Sequence[GraphPoint]) -> NoMapError:
    """Return an error that names the layer, on the way from the input, at which the gradient ends."""
    flowing = [point for point in points if point.edge is not None]
    silent = points[points.index(flowing[-1]) + 1 :] if flowing else points
    where = f": it ends at {quote(silent[0].name)} ({silent[0].layer.type})" if silent else ""
    return NoMapError(
        f"no gradient flows through the network{where}; quantized and integer layers have none, nor does code under "
        "torch.no_grad(); eigencam of chosen layers needs none"
    )
