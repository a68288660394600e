"""A unit image built by hand: the input of writers."""

from __future__ import annotations

import numpy as np
from run_infos import run_info

from fmapviz.core.drawings import Drawing, Grid
from fmapviz.core.types import ImageFile, ImageResult, LayerResult, Measures, RawValues, Statistics, UnitImage


def make_unit():
    numbers = np.linspace(0, 1, 4, dtype=np.float32)
    measures = Measures(9, numbers, numbers, numbers, numbers, np.arange(4), np.arange(4))
    layer = LayerResult(
        "features.0",
        type="Conv2d",
        call=1,
        index=0,
        shape=(4, 3, 3),
        statistics=Statistics(0, 1, 0, (), 0),
        measures=measures,
        values=RawValues(np.arange(36, dtype=np.float32).reshape(4, 3, 3), "float32"),
        drawings=(Drawing("maps", Grid(np.zeros((8, 8), np.uint8))),),
    )
    info = run_info(weights="random")
    return UnitImage(ImageFile("/a/b.png", "b.png", 1, 2), ImageResult((layer,), (), {}), (), info)
