"""Trained networks that come with fmapviz: `shapesnet`, which classifies six shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from fmapviz.core.types import Model
from fmapviz.images.preprocess import standard
from fmapviz.models.initialization import build_uninitialized
from fmapviz.models.shapesnet.network import CLASSES, MEAN, SIDE, STD, WEIGHTS, ShapesNet, load_network
from fmapviz.models.weights.file import sha256_of
from fmapviz.models.weights.fit import LoadedWeights, load_weights

if TYPE_CHECKING:
    from fmapviz.core.config import InputOptions

NAMES = "shapesnet"


def known_names() -> list[str]:
    """List `NAMES`."""
    return NAMES.split()


def load(name: str, *, weights: str, options: InputOptions) -> Model:
    """Build a network and fill it with weights; see `ModelSource`."""
    if weights == "default":
        return _model(name, LoadedWeights(load_network(), "trained", sha256_of(WEIGHTS)), options)
    return _model(name, load_weights(weights, ShapesNet), options)


def outline(name: str, *, options: InputOptions) -> Model:
    """Build a network on the meta device; see `ModelSource`."""
    return _model(name, LoadedWeights(build_uninitialized(ShapesNet).to("meta"), "no weights"), options)


def _model(name: str, loaded: LoadedWeights, options: InputOptions) -> Model:
    return Model(
        name=name,
        module=loaded.module.eval(),
        weights=loaded.name,
        sha256=loaded.sha256,
        preparation=standard(options, size=(SIDE, SIDE), mean=MEAN, std=STD),
        forward=nn.Module.__call__,
        straight=True,
        classes=loaded.classes or (CLASSES if loaded.sha256 is not None else ()),
        notices=loaded.notices,
    )
