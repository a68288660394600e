"""What is to be written of an image, made by hand."""

from __future__ import annotations

import numpy as np

from fmapviz.options import Style
from fmapviz.values import Drawing, Drawn, ImageFile, Kept, Measures, RunInfo, Statistics, Unit


def make_unit():
    numbers = np.linspace(0, 1, 4, dtype=np.float32)
    measures = Measures(9, numbers, numbers, numbers, numbers, np.arange(4), np.arange(4))
    drawing = Drawing(
        view="maps",
        layer="features.0",
        type="Conv2d",
        call=1,
        index=0,
        shape=(4, 3, 3),
        pixels=np.zeros((8, 8), np.uint8),
        statistics=Statistics(0, 1, 0, (), 0),
        measures=measures,
    )
    kept = Kept("features.0", "Conv2d", 1, 0, "output", np.arange(36, dtype=np.float32).reshape(4, 3, 3), "float32")
    info = RunInfo("net", "random", None, "", (), (), (), ("maps",), (), Style())
    return Unit(ImageFile("/a/b.png", "b.png", 1, 2), Drawn((drawing,), (), {}, kept=(kept,)), (), info)
