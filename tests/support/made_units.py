"""A unit image built by hand: the input of writers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from run_infos import run_info

from fmapviz.core.drawings import Grid, Tiles
from fmapviz.draw.layout import WHITE
from fmapviz.draw.layout import picture as box_of
from fmapviz.draw.svg import to_svg
from fmapviz.types import Drawing, ImageResult, LayerResult, Measures, RawValues, Statistics, UnitImage


def as_grid(picture, pixels):
    """Return a picture that is a grid of one tile, and has its texts as text."""
    height, width = pixels.shape
    tiles = Tiles(0, 0, width, height, width, height, columns=1, count=1)
    svg = to_svg(box_of(pixels), WHITE, title=picture.name, facts=picture.facts)
    return replace(picture, tiles=tiles, drawing=Drawing(picture.group, Grid(pixels, tiles=tiles)), svg=svg)


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
    return UnitImage("b.png", "/a/b.png", ImageResult((layer,), (), {}), (), info)
