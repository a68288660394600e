"""Results of an image: built by hand, and flattened for comparison."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from fmapviz.core.drawings import Grid, HeatMap
from fmapviz.draw.grid import measure
from fmapviz.images.seen import Seen
from fmapviz.types import Drawing, ImageResult, LayerResult, Preparation, Statistics
from fmapviz.views.base import BatchContent, LayerMaps

NUMBERS = Statistics(minimum=0.0, maximum=1.0, mean=0.5, constant=(), nonfinite=0)


def random_maps(*shape, seed=0):
    """Return normally distributed values of mean 1 and deviation 3."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3 + 1


def drawings_of(result):
    """Return each drawing that is no heat map, with the fields of its layer and of its content."""
    return [
        _flat(layer, drawing)
        for layer in result.layers
        for drawing in layer.drawings
        if not isinstance(drawing.content, HeatMap)
    ]


def heats_of(result):
    """Return each heat map, with the fields of its layer."""
    return [
        _flat(layer, drawing)
        for layer in result.layers
        for drawing in layer.drawings
        if isinstance(drawing.content, HeatMap)
    ]


def drawn_layer(layer, content, *, view="maps", **fields):
    """Return the result of one layer, drawn by one view."""
    fields = {"type": "Conv2d", "call": 1, "index": 0, "shape": (1, 2, 2), "statistics": NUMBERS, **fields}
    return LayerResult(layer, drawings=(Drawing(view, content),), **fields)


def result_of(*layers, **fields):
    return ImageResult(layers, **{"not_executed": (), "undrawn": {}, **fields})


def as_given(maps, *, picture=None, ranges=None):
    """Return maps as a view receives them."""
    values = maps[:, :, None, None] if maps.ndim == 2 else maps
    return LayerMaps(values, ranges or measure(values), maps.ndim == 2, picture)


def pixels_of(content):
    """Return the pixels of a view's content, a tensor for the whole batch."""
    return content.tensors["pixels"]


def as_grids(pixels):
    """Return pixels `(N, H, W)` as a view's content."""
    return BatchContent(Grid, {"pixels": pixels})


def _flat(layer, drawing):
    fields = {name: getattr(layer, name) for name in layer.__slots__}
    content = drawing.content
    if content is not None:
        fields |= {name: getattr(content, name) for name in content.__slots__}
        fields["empty"] = getattr(content, "empty", None)
    return SimpleNamespace(**{"pixels": np.zeros((0, 0), np.uint8), **fields}, view=drawing.view, content=content)


def seen_of(pixels):
    """Return an input that is shown as the given picture, uint8 `(H, W)` or `(H, W, 3)`."""
    values = torch.from_numpy(np.atleast_3d(pixels)).movedim(2, 0) / 255
    return Seen(values, Preparation(torch.as_tensor, (0.0,), (1.0,), ""))
