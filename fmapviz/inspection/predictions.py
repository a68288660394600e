"""Predict classes by what a network returns: a classifier, a segmentation, or a detector."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fmapviz.core.types import Prediction
from fmapviz.inspection.targets import is_detection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TOP = 3  # predicted classes per image by default


def predict(output: object, classes: Sequence[str], *, top: int, images: int) -> list[tuple[Prediction, ...]]:
    """Return the classes with the highest scores for each image.

    Args:
        output: The network's output for a batch of N images: logits or probabilities `(N, K)` of a classifier;
            `(N, K, H, W)`, or a dict with such a tensor under `out`, of a segmentation; of a detector one dict per image
            with its `labels` and `scores`. A tuple's first element counts.
        classes: The K classes' names.
        top: Number of classes at most.
        images: N.

    Returns:
        One tuple per image, highest score first; empty if the output has another form, or is not finite.

    Example:
        >>> ((first, second),) = predict(torch.tensor([[0.0, 2.0, 1.0]]), ["cat", "dog", "cow"], top=2, images=1)
        >>> str(first), str(second)
        ('dog 66.5 %', 'cow 24.5 %')
    """
    nothing: list[tuple[Prediction, ...]] = [()] * images
    if isinstance(output, list) and len(output) == images and all(map(is_detection, output)):
        return [_detected(each, classes, top) for each in output]
    if isinstance(output, dict):
        output = output.get("out", output.get("logits"))
    elif isinstance(output, tuple) and output:
        output = output[0]
    if not isinstance(output, Tensor) or output.shape[:2] != (images, len(classes)) or output.is_complex():
        return nothing
    if output.ndim == 2:
        scores = output.float()
        sums = scores.sum(1)
        if not (bool((scores >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-3)):
            scores = scores.softmax(1)  # of logits; probabilities stay
        return [_ranked(row, classes, top) for row in scores]
    if output.ndim == 4:
        counts = (torch.bincount(winners.flatten(), minlength=len(classes)) for winners in output.argmax(1))
        return [_ranked(count / output[0, 0].numel(), classes, top, of="of the pixels") for count in counts]
    return nothing


def _ranked(scores: Tensor, classes: Sequence[str], top: int, *, of: str = "") -> tuple[Prediction, ...]:
    if not bool(scores.isfinite().all()):
        return ()
    values, indices = scores.topk(min(top, len(classes)))
    ranked = zip(indices.tolist(), values.tolist(), strict=True)
    return tuple(Prediction(index, classes[index], score, of) for index, score in ranked if score > 0 or not of)


def _detected(found: Mapping[str, Tensor], classes: Sequence[str], top: int) -> tuple[Prediction, ...]:
    """Return each class once, with the score of its best box and the number of boxes of at least one half."""
    best: dict[int, list[float]] = {}
    for label, score in zip(found["labels"].tolist(), found["scores"].tolist(), strict=True):
        best.setdefault(int(label), []).append(score)
    ranked = []
    for label in sorted(best, key=lambda label: -max(best[label]))[:top]:
        likely = sum(score >= 0.5 for score in best[label])
        name = classes[label] if 0 <= label < len(classes) else f"class {label}"
        ranked.append(Prediction(label, name, max(best[label]), f"in {likely} boxes" if likely > 1 else ""))
    return tuple(ranked)
