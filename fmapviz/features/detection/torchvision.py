"""Boxes of the detectors of torchvision, which select them themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from torch import nn
from torchvision.models.detection import FCOS, FasterRCNN
from torchvision.models.detection.ssd import SSD

from fmapviz.observe.boxes import Boxes, boxes_in, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from fmapviz.observe.forward_record import ForwardRecord


def read(record: ForwardRecord, least: float | None) -> list[Boxes]:
    """Return the boxes of each image; see `fmapviz.core.members.Detector`.

    The differentiated value of a box is the logit of its class: of Faster R-CNN and its kin that of its region, of FCOS that
    of its point, of the others that of its anchor.
    """
    network, output = record.network, cast("list[dict[str, Tensor]]", record.output)
    part: Any = network.roi_heads if isinstance(network, FasterRCNN) else network
    first = 1 if isinstance(network, FasterRCNN | SSD) else 0  # behind the background
    found = []
    for each, (logits, scores) in zip(output, _candidates(network, record.captured), strict=True):
        boxes, known = boxes_in(each), scores[:, first:]
        values = logits[nearest(boxes.scores, boxes.labels, scores), boxes.labels]
        highest = nn.functional.pad(known.amax(0), (first, 0)) if known.numel() else None
        found.append(
            replace(boxes, values=values, logits=True, least=float(part.score_thresh), highest=highest).above(least)
        )
    return found


def feeds(network: nn.Module) -> tuple[str, ...]:  # noqa: ARG001  all have it
    """Return the path of the module whose outputs the head reads, one for each scale."""
    return ("backbone",)


def _candidates(network: nn.Module, captured: Mapping[str, Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits and the scores of all candidates of each image for all classes, `(A, K)` each."""
    if isinstance(network, FasterRCNN):
        counts = [len(regions) for regions in captured["rpn"][0]]
        for logits in captured["roi_heads.box_predictor"][0].split(counts):
            yield logits, logits.detach().softmax(-1)
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
