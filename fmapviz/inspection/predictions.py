"""Say which classes a network sees in each image of a batch, from what it returned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fmapviz.values import Prediction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TOP = 3  # classes named per image where nobody says how many


def predict(output: object, classes: Sequence[str], *, top: int, images: int) -> list[tuple[Prediction, ...]]:
    """Name the likeliest classes for each image.

    Args:
        output: What a network returned for a batch of N images: logits or probabilities `(N, K)` of a classifier;
            `(N, K, H, W)`, or a dict with such a tensor under `out`, of a segmentation; of a detector one dict per image
            with its `labels` and `scores`. A tuple's first element counts.
        classes: The K classes' names.
        top: How many at most.
        images: N.

    Returns:
        One tuple per image, the likeliest class first; empty where the output has another form, or is not finite.

    Example:
        >>> ((first, second),) = predict(torch.tensor([[0.0, 2.0, 1.0]]), ["cat", "dog", "cow"], top=2, images=1)
        >>> str(first), str(second)
        ('dog 66.5 %', 'cow 24.5 %')
    """
    nothing: list[tuple[Prediction, ...]] = [()] * images
    if isinstance(output, list) and len(output) == images and all(map(_is_detection, output)):
        return [_detected(each, classes, top) for each in output]
    if isinstance(output, dict):
        output = output.get("out", output.get("logits"))
    elif isinstance(output, tuple) and output:
        output = output[0]
    if not isinstance(output, Tensor) or output.shape[:2] != (images, len(classes)) or output.is_complex():
        return nothing
    if output.ndim == 2:
        return [_ranked(row, classes, top) for row in _probabilities(output.float())]
    if output.ndim == 4:
        return [_ranked(_shares(winners, len(classes)), classes, top, of="of the pixels") for winners in output.argmax(1)]
    return nothing


def _probabilities(output: Tensor) -> Tensor:
    """Take the softmax of logits; probabilities stay as they are."""
    sums = output.sum(1)
    if bool((output >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-3):
        return output
    return output.softmax(1)


def _shares(winners: Tensor, classes: int) -> Tensor:
    return torch.bincount(winners.flatten(), minlength=classes) / winners.numel()


def _ranked(scores: Tensor, classes: Sequence[str], top: int, *, of: str = "") -> tuple[Prediction, ...]:
    if not bool(scores.isfinite().all()):
        return ()
    values, indices = scores.topk(min(top, len(classes)))
    ranked = zip(indices.tolist(), values.tolist(), strict=True)
    return tuple(_prediction(index, classes, score, of) for index, score in ranked if score > 0 or not of)


def _detected(found: Mapping[str, Tensor], classes: Sequence[str], top: int) -> tuple[Prediction, ...]:
    """Give each class once, with the score of its best box and the number of those of at least one half."""
    best: dict[int, list[float]] = {}
    for label, score in zip(found["labels"].tolist(), found["scores"].tolist(), strict=True):
        best.setdefault(int(label), []).append(score)
    ranked = sorted(best, key=lambda label: -max(best[label]))[:top]
    return tuple(_prediction(label, classes, max(best[label]), _boxes(best[label])) for label in ranked)


def _boxes(scores: Sequence[float]) -> str:
    likely = sum(score >= 0.5 for score in scores)
    return f"in {likely} boxes" if likely > 1 else ""


def _prediction(index: int, classes: Sequence[str], score: float, of: str) -> Prediction:
    name = classes[index] if 0 <= index < len(classes) else f"class {index}"
    return Prediction(index, name, score, of)


def _is_detection(each: Any) -> bool:
    # Any: whatever a model returns.
    return isinstance(each, dict) and all(isinstance(each.get(key), Tensor) for key in ("labels", "scores"))
