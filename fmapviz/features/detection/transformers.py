"""Boxes of the detectors of Hugging Face, selected as the image processor of their type does."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torchvision.ops import box_convert
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

from fmapviz.errors import RequestError, quote
from fmapviz.observe.boxes import Boxes, boxes_in, highest_among, logits_at, repeated, sources

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.observe.forward_record import ForwardRecord

_LEAST = 0.5  # of `post_process_object_detection` of transformers
_LIKE = {"d_fine": "rt_detr", "rt_detr_v2": "rt_detr", "dab-detr": "conditional_detr"}  # types without a processor of theirs


def read(record: ForwardRecord, least: float | None) -> list[Boxes]:
    """Return the boxes of each image; see `fmapviz.core.members.Detector`.

    The differentiated value of a box is the logit of its class for its query.

    Raises:
        RequestError: The network has other outputs, or transformers does not define how its boxes are selected.
    """
    network, output, pixels = cast(Any, record.network), cast(Any, record.output), record.pixels  # classes of transformers
    if not {"logits", "pred_boxes"} <= set(output):
        raise RequestError(
            f"no boxes of {type(network).__name__} are read: it has no scores of queries",
            hint="views such as maps need none",
        )
    processor = _processor(network.config)
    with torch.no_grad():
        selected = processor.post_process_object_detection(
            output, threshold=-1.0, target_sizes=[tuple(pixels.shape[-2:])] * len(pixels)
        )
    height, width = pixels.shape[-2:]
    found = []
    for each, logits, places in zip(selected, output.logits, output.pred_boxes.detach(), strict=True):
        boxes = boxes_in(each)
        scores, corners = _scores(boxes, logits.detach()), _corners(places, height, width)
        # Queries may be equal before training; the first then stands for all.
        distinct = scores.where(~repeated(torch.cat([logits.detach(), places], 1))[:, None], 0)
        rows = sources(boxes, distinct, partial(_decoded, corners))
        highest = highest_among(boxes.labels, boxes.scores, scores.shape[1])
        boxes = replace(boxes, values=logits_at(logits, rows, boxes.labels), logits=True, highest=highest)
        found.append(boxes.above(_LEAST if least is None else least))
    return found


def _processor(config: Any) -> Any:  # Any: classes of transformers
    """Return an image processor of a network's type, or of the type whose processor the published models of it name.

    Raises:
        RequestError: There is none.
    """
    like = _LIKE.get(config.model_type)
    kind = type(config) if like is None else CONFIG_MAPPING[like]
    known: Any = IMAGE_PROCESSOR_MAPPING.get(kind, ())  # a class, several, or a dict of them
    found = next((each for each in (known.values() if isinstance(known, dict) else known) if each is not None), None)
    if found is None or not hasattr(found, "post_process_object_detection"):
        raise RequestError(
            f"transformers does not define how boxes of {quote(config.model_type)} are selected",
            hint="views such as maps need none",
        )
    return found()


def _corners(places: Tensor, height: int, width: int) -> Tensor:
    """Return the corners of all queries in pixels, from centres and sides as parts of the input, `(Q, 4)` each."""
    corners: Tensor = box_convert(places, "cxcywh", "xyxy")  # torchvision has no types
    return corners * places.new_tensor([width, height, width, height])


def _decoded(corners: Tensor, rows: Tensor, _label: int) -> Tensor:
    return corners[rows]


def _scores(boxes: Boxes, logits: Tensor) -> Tensor:
    """Return the scores of all queries for all classes, `(Q, K)`.

    Some types have a softmax over the classes and none of them, others a sigmoid: the one that gives the boxes' scores.
    """
    for scores in (logits.sigmoid(), logits.softmax(-1)[:, :-1]):
        if bool((boxes.labels < scores.shape[1]).all()):
            distances = (scores[:, boxes.labels] - boxes.scores).abs().amin(0)
            if bool((distances <= 1e-6).all()):
                return scores
    raise AssertionError("scores that are neither of a softmax nor of a sigmoid")
