"""Networks that come with fmapviz, trained: `shapesnet`, which tells shapes apart."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from fmapviz.checkpoints import load_weights
from fmapviz.digests import digest_of
from fmapviz.initialization import NoInitialization, read_seed
from fmapviz.preparation import standard
from fmapviz.shapesnet.network import MEAN, STD, WEIGHTS, ShapesNet, load_network
from fmapviz.shapesnet.pictures import CLASSES, SIDE
from fmapviz.values import Model

if TYPE_CHECKING:
    from fmapviz.options import InputOptions


def load(name: str, *, weights: str, options: InputOptions) -> Model:
    """Build a network and fill in its weights.

    Args:
        name: `shapesnet`.
        weights: `default`, those that come with it; `random`, `random:SEED`, or a file or URL.
        options: What the user wants otherwise in the preparation of pictures.

    Raises:
        WeightsError: The weights cannot be had, read or fitted in.
    """
    seed = read_seed(weights)
    if weights == "default":
        return replace(_model(name, load_network(), options, weights="trained"), sha256=digest_of(WEIGHTS), classes=CLASSES)
    if seed is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _model(name, ShapesNet(), options, weights=f"random weights, seed {seed}")
    with NoInitialization():
        module = ShapesNet()
    loaded = load_weights(module, weights, known=("default", "random", "random:SEED"))
    model = _model(name, module, options, weights=loaded.name)
    return replace(model, sha256=loaded.sha256, classes=loaded.classes or CLASSES, notices=loaded.notices)


def outline(name: str, *, options: InputOptions) -> Model:
    """Build a network on the meta device: its modules and shapes without one number."""
    with NoInitialization():
        module = ShapesNet().to("meta")
    return _model(name, module, options, weights="no weights")


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
