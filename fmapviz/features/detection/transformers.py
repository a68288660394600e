"""Boxes of the detectors of Hugging Face, selected as the image processor of their type does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

from fmapviz.observe.boxes import Boxes, boxes_in, highest_of, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.observe.forward_record import ForwardRecord

_LEAST = 0.5  # of `post_process_object_detection` of transformers


def read(record: ForwardRecord, least: float | None) -> list[Boxes]:
    """Return the boxes of each image; see `fmapviz.core.members.Detector`.

    The differentiated value of a box is the logit of its class for its query.
    """
    network, output, pixels = cast(Any, record.network), cast(Any, record.output), record.pixels  # classes of transformers
    known: Any = IMAGE_PROCESSOR_MAPPING[type(network.config)]
    kinds = known.values() if isinstance(known, dict) else known
    processor = next(kind for kind in kinds if kind is not None)()
    with torch.no_grad():
        selected = processor.post_process_object_detection(
            output, threshold=-1.0, target_sizes=[tuple(pixels.shape[-2:])] * len(pixels)
        )
    found = []
    for each, logits in zip(selected, output.logits, strict=True):
        boxes = boxes_in(each)
        scores, rows = _candidates(boxes, logits.detach())
        boxes = Boxes(
            boxes.labels,
            boxes.scores,
            logits[rows, boxes.labels],
            boxes.corners,
            logits=True,
            least=_LEAST,
            highest=highest_of(scores),
        )
        found.append(boxes.above(_LEAST if least is None else least))
    return found


def _candidates(boxes: Boxes, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scores of all queries for all classes, `(Q, K)`, and the query of each box.

    Some types have a softmax over the classes and none of them, others a sigmoid: the one that gives the boxes' scores.
    """
    for scores in (logits.sigmoid(), logits.softmax(-1)[:, :-1]):
        if bool((boxes.labels < scores.shape[1]).all()):
            rows = nearest(boxes.scores, boxes.labels, scores)
            if torch.allclose(scores[rows, boxes.labels], boxes.scores, atol=1e-6):
                return scores, rows
    raise AssertionError("scores that are neither of a softmax nor of a sigmoid")
