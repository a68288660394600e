"""Boxes of the detectors of torchvision, which select them themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from torch import nn
from torchvision.models.detection import FCOS, FasterRCNN
from torchvision.models.detection.ssd import SSD
from torchvision.models.detection.transform import resize_boxes
from torchvision.ops.boxes import clip_boxes_to_image

from fmapviz.observe.boxes import Boxes, boxes_in, logits_at, repeated, sources

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from fmapviz.observe.boxes import Decode
    from fmapviz.observe.forward_record import ForwardRecord


def read(record: ForwardRecord, least: float | None) -> list[Boxes]:
    """Return the boxes of each image; see `fmapviz.core.members.Detector`.

    The differentiated value of a box is the logit of its class: of Faster R-CNN and its kin that of its region, of FCOS that
    of its point, of the others that of its anchor. Saturated scores are equal at many of them, so corners are compared too.
    """
    network, output = record.network, cast("list[dict[str, Tensor]]", record.output)
    part: Any = network.roi_heads if isinstance(network, FasterRCNN) else network
    first = 1 if isinstance(network, FasterRCNN | SSD) else 0  # behind the background
    lowest = float(part.score_thresh) if least is None else least
    found = []
    height, width = record.pixels.shape[-2:]
    for image, (each, (logits, scores)) in enumerate(zip(output, _candidates(network, record.captured), strict=True)):
        boxes, known = boxes_in(each), scores[:, first:]
        rows = sources(boxes, scores, _decoder(network, record.captured, image, (height, width)))
        values = logits_at(logits, rows, boxes.labels)
        highest = nn.functional.pad(known.amax(0), (first, 0)) if known.numel() else None
        found.append(replace(boxes, values=values, logits=True, least=lowest, highest=highest))
    return found


def feeds(network: nn.Module) -> tuple[str, ...]:  # noqa: ARG001  all have it
    """Return the path of the module whose outputs the head reads, one for each scale."""
    return ("backbone",)


def _candidates(network: nn.Module, captured: Mapping[str, Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits and the scores of all candidates of each image for all classes, `(A, K)` each."""
    if isinstance(network, FasterRCNN):
        regions = captured["rpn"][0]
        for own, logits in zip(regions, captured["roi_heads.box_predictor"][0].split([*map(len, regions)]), strict=True):
            # Several scales may propose the same region, which then has the same logits: the first stands for all.
            yield logits, logits.detach().softmax(-1).where(~repeated(own)[:, None], 0)
        return
    head = captured["head"]
    for image, logits in enumerate(head["cls_logits"]):
        plain = logits.detach()
        if isinstance(network, SSD):
            yield logits, plain.softmax(-1)
        elif isinstance(network, FCOS):
            yield logits, (plain.sigmoid() * head["bbox_ctrness"][image].detach().sigmoid()).sqrt()
        else:
            yield logits, plain.sigmoid()


def _decoder(network: nn.Module, captured: Mapping[str, Any], image: int, size: tuple[int, int]) -> Decode | None:
    """Return a function that decodes candidates as the network's own post-processing does; None if it has other parts."""
    if not captured.keys() >= {"transform", "rpn" if isinstance(network, FasterRCNN) else "anchor_generator"}:
        return None
    decoded = _regions if isinstance(network, FasterRCNN) else _anchors
    seen = captured["transform"][0].image_sizes[image]

    def decode(rows: Tensor, label: int) -> Tensor:
        boxes = clip_boxes_to_image(decoded(network, captured, image, rows)[:, label], seen)
        return cast("Tensor", resize_boxes(boxes, seen, size))

    return decode


def _regions(network: Any, captured: Mapping[str, Any], image: int, rows: Tensor) -> Tensor:
    """Return the boxes of regions for all classes, `(R, K, 4)`."""
    regions, moves = captured["rpn"][0], captured["roi_heads.box_predictor"][1].detach()
    own = moves.split([len(each) for each in regions])[image][rows]
    return network.roi_heads.box_coder.decode(own, [regions[image].detach()[rows]])  # type: ignore[no-any-return]


def _anchors(network: Any, captured: Mapping[str, Any], image: int, rows: Tensor) -> Tensor:
    """Return the boxes of anchors, which are those of all classes, `(R, K, 4)`."""
    moves, anchors = captured["head"]["bbox_regression"][image].detach()[rows], captured["anchor_generator"][image][rows]
    decode = network.box_coder.decode if isinstance(network, FCOS) else network.box_coder.decode_single
    return decode(moves, anchors)[:, None].expand(-1, captured["head"]["cls_logits"].shape[-1], -1)  # type: ignore[no-any-return]
