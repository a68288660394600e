"""Trained networks that come with fmapviz: `shapesnet`, which classifies six shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fmapviz.images.preprocess import standard
from fmapviz.models.shapesnet.network import CLASSES, MEAN, SIDE, STD, WEIGHTS, ShapesNet
from fmapviz.models.weights.fit import load_weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fmapviz.config import InputOptions
    from fmapviz.data import Model


def load(name: str, *, weights: str | Mapping[str, Any] | None, preprocessing: InputOptions) -> Model:
    """Build a network and fill it with weights; see `ModelSource`."""
    loaded = load_weights(str(WEIGHTS) if weights == "default" else weights, ShapesNet)
    return replace(
        loaded.as_model(name, standard(preprocessing, size=(SIDE, SIDE), mean=MEAN, std=STD)),
        weights="trained" if weights == "default" else loaded.name,
        straight=True,
        classes=loaded.classes or (CLASSES if loaded.sha256 is not None else ()),
        scores="softmax",
    )
