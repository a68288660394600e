"""Trained networks that come with fmapviz: `shapesnet`, which classifies six shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from fmapviz.core.types import Model
from fmapviz.images.preprocess import standard
from fmapviz.models.initialization import build_uninitialized, build_with_seed, read_seed
from fmapviz.models.shapesnet.network import MEAN, STD, WEIGHTS, ShapesNet, load_network
from fmapviz.models.shapesnet.pictures import CLASSES, SIDE
from fmapviz.models.weights.file import sha256_of
from fmapviz.models.weights.fit import load_weights

if TYPE_CHECKING:
    from fmapviz.core.config import InputOptions

NAMES = "shapesnet"


def known_names() -> list[str]:
    """List `NAMES`."""
    return NAMES.split()


def load(name: str, *, weights: str, options: InputOptions) -> Model:
    """Build a network and fill it with weights; see `ModelSource`."""
    seed = read_seed(weights)
    if weights == "default":
        return replace(_model(name, load_network(), options, weights="trained"), sha256=sha256_of(WEIGHTS), classes=CLASSES)
    if seed is not None:
        return _model(name, build_with_seed(ShapesNet, seed), options, weights=f"random weights, seed {seed}")
    loaded = load_weights(weights, ShapesNet, known=("default", "random", "random:SEED"))
    model = _model(name, loaded.module, options, weights=loaded.name)
    return replace(model, sha256=loaded.sha256, classes=loaded.classes or CLASSES, notices=loaded.notices)


def outline(name: str, *, options: InputOptions) -> Model:
    """Build a network on the meta device; see `ModelSource`."""
    return _model(name, build_uninitialized(ShapesNet).to("meta"), options, weights="no weights")


def _model(name: str, module: nn.Module, options: InputOptions, *, weights: str) -> Model:
    return Model(
        name=name,
        module=module.eval(),
        weights=weights,
        sha256=None,
        preparation=standard(options, size=(SIDE, SIDE), mean=MEAN, std=STD),
        forward=nn.Module.__call__,
        straight=True,
    )
