"""Rank the classes that a network predicts for each image."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

import torch

from fmapviz.data import Prediction

if TYPE_CHECKING:
    from fmapviz.observe.boxes import Boxes
    from fmapviz.observe.class_scores import ClassScores

DEFAULT_COUNT = 3  # predicted classes per image by default


def predict(scores: ClassScores, *, most: int) -> list[tuple[Prediction, ...]]:
    """Return the classes with the highest scores for each image; of a detector boxes, of quantities the first outputs.

    Args:
        scores: Of N images.
        most: Number of classes at most.

    Returns:
        One tuple per image, highest score first; empty if its scores are not finite.

    Example:
        >>> import torch
        >>> from fmapviz.observe.class_scores import class_scores
        >>> from fmapviz.observe.score_kinds import Head
        >>> scores = class_scores(torch.tensor([[0.0, 2.0, 1.0]]), key=None, images=1, head=Head(("cat", "dog", "cow")))
        >>> ((first, second),) = predict(scores, most=2)
        >>> str(first), str(second)
        ('dog 66.5 %', 'cow 24.5 %')
    """
    if scores.boxes:
        return [_boxes(scores, each, most) for each in scores.boxes]
    most = min(most, scores.ranking.shape[1])
    finite = scores.ranking.isfinite().all(1).tolist()
    if scores.kind == "value":
        chosen = [list(range(most))] * len(finite)
    else:
        hidden = scores.ranking.where(scores.present, -float("inf"))
        chosen = hidden.argsort(dim=1, descending=True, stable=True)[:, :most].tolist()
    present = scores.present.tolist()
    return [
        tuple(_prediction(scores, image, index) for index in indices if present[image][index]) if finite[image] else ()
        for image, indices in enumerate(chosen)
    ]


def _prediction(scores: ClassScores, image: int, index: int) -> Prediction:
    found = scores.numbers(image, index)
    share, of = found.pop("share"), ""
    if share is not None:
        found["score"], of = share, "of the pixels"
    elif found["probability"] is not None:
        found["score"] = found["probability"]
    name = scores.name(index) or f"{'output' if scores.kind == 'value' else 'class'} {index}"
    return Prediction(index, name, of=of, **found)


def _boxes(scores: ClassScores, found: Boxes, most: int) -> tuple[Prediction, ...]:
    """Return the best boxes of an image; none if a score is not finite."""
    if not bool(found.scores.isfinite().all()):
        return ()
    first = found.take(torch.arange(min(most, len(found.scores)), device=found.scores.device))
    corners = [None] * len(first.scores) if first.corners is None else first.corners.tolist()
    logits = [None if not first.logits or isnan(value) else value for value in first.values.detach().tolist()]
    rows = zip(first.labels.tolist(), first.scores.tolist(), logits, corners, strict=True)
    return tuple(
        Prediction(label, scores.name(label) or f"class {label}", score, logit=logit, kind="boxes", box=box and tuple(box))
        for label, score, logit, box in rows
    )
