"""Cosine similarity of each position of a layer to one position, over the input.

The position is the one at a pixel of the input: of each image, `--anchor Y,X`, or of one for all, `--anchor IMAGE:Y,X`.
The scale is -1 to 1 for all layers and images, unless `--norm` is `layer`, `signed` or `fixed:LO,HI`: in deep layers all
cosines may be alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmapviz.core.drawings import HeatMap
from fmapviz.draw.colormaps import HEAT_COLORMAP
from fmapviz.draw.heatmap import stretch
from fmapviz.features.tokens.shared import vectors_in
from fmapviz.features.tokens.vectors import cosines, direction_at
from fmapviz.observe.reshape import NotAMapError
from fmapviz.views.base import BatchContent

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fmapviz.config import Style
    from fmapviz.views.base import LayerMaps

_LIMITS = -1.0, 1.0


def draw(maps: LayerMaps, style: Style) -> BatchContent:
    """Draw one heat map per image, from -1 to 1 or in a range of its own.

    Raises:
        NotAMapError: A vector, or a layer that the image of the anchor does not have.
        RequestError: The anchor is outside the picture.
    """
    anchor, direction = style.start, vectors_in(maps.ranges.shared).anchor
    assert anchor
    assert anchor.at
    if maps.vector or maps.picture is None:
        raise NotAMapError("a vector, without rows and columns to lay over the image")
    if anchor.image:
        if direction is None or direction.shape[1] != maps.values.shape[1]:
            raise NotAMapError(f"{anchor.image} has no such map")
    else:
        direction = direction_at(maps.values, *maps.placed.cell(anchor.at))
    raw = cosines(maps.values, direction)
    own = style.norm in {"layer", "signed", "signed-layer"}  # the whole scale compares all images, as `run` does
    limits = style.limits or (None if own else _LIMITS)
    pixels, low, high = stretch(raw, maps.picture, style, limits, smooth=style.smooth, centres=maps.centres)
    tensors = {"raw": raw, "pixels": pixels, "low": low, "high": high}
    if maps.ranges.bad is not None:
        tensors["nonfinite"] = maps.ranges.bad.sum(1)

    def make(raw: NDArray[np.float32], pixels: NDArray[np.uint8], *, low: float, high: float, nonfinite: int = 0) -> HeatMap:
        shows = f"the cosine of each position to the one at {anchor}"
        colormap = "coolwarm" if own and style.signed else HEAT_COLORMAP
        return HeatMap(raw, pixels, True, colormap, (low, high), nonfinite, shows, anchor.at)

    return BatchContent(make, tensors)
