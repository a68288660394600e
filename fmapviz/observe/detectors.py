"""Recognise detectors, by their classes and by what they return."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from fmapviz.config import check_type, split
from fmapviz.core import registry
from fmapviz.core.members import load

if TYPE_CHECKING:
    from torch import nn

    from fmapviz.core.members import Detector

HEAD = "head"  # in place of the names of the layers that feed it
_HEADS = (  # of torchvision's detectors
    ("roi_heads.box_predictor.cls_score", "out_features"),
    ("head.classification_head", "num_classes"),
    ("head.classification_head", "num_columns"),
)


def find_detector(network: nn.Module) -> Detector | None:
    """Return the family of detectors that a network's class, or a base class of it, is of; None if it is of none."""
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(network).__mro__]
    return next(
        (each for each in registry.detectors() if _is_any(each.classes, names) and not _is_any(each.others, names)), None
    )


def _is_any(pattern: str, names: Iterable[str]) -> bool:
    return any(re.fullmatch(pattern, name) for name in names)


def feeds_of(network: nn.Module) -> tuple[str, ...]:
    """Return the paths of the modules whose outputs a detector's head reads; empty if they are unknown."""
    family = find_detector(network)
    return tuple(load(family.feeds)(network)) if family and family.feeds else ()


def with_feeds(layers: str | Iterable[str], network: nn.Module) -> tuple[str, ...]:
    """Return patterns of layers with `head` replaced by the layers that feed the head of a detector."""
    layers = split(check_type("layers", layers, Sequence[str], hint="names or globs, such as 'layer4.*'"))
    feeds = feeds_of(network) if HEAD in layers else ()
    return tuple(each for layer in layers for each in (feeds if feeds and layer == HEAD else (layer,)))


def detected_classes(network: nn.Module) -> int | None:
    """Return the number of classes of a detector, with the background if it has one; None if it is unknown."""
    for path, attribute in _HEADS:
        part: object = network
        for step in path.split("."):
            part = getattr(part, step, None)
        count = getattr(part, attribute, None)
        if isinstance(count, int):
            return count
    return None


def is_detection(each: object) -> bool:
    """Return True for the output of a detector for one image: a dict of `labels` `(B,)` and `scores` `(B,)`."""
    labels, scores = (each.get(name) if isinstance(each, dict) else None for name in ("labels", "scores"))
    if not isinstance(labels, Tensor) or not isinstance(scores, Tensor):
        return False
    return labels.ndim == 1 and labels.shape == scores.shape and scores.is_floating_point()
