"""Cosine similarity of each position of a layer to one position, over the input.

The position is the one at a pixel of the input, `--seed Y,X`, of each image, or of one image for all, `--seed IMAGE:Y,X`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmapviz.core.drawings import HeatMap
from fmapviz.inspection.reshape import NotAMapError
from fmapviz.render.colormaps import HEAT_COLORMAP
from fmapviz.render.heatmap import stretch
from fmapviz.render.tokens.vectors import cosines, direction_at
from fmapviz.views.base import BatchContent

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fmapviz.core.config import Style
    from fmapviz.views.base import LayerMaps

NEEDS = "outputs"
LOOKS = "scale colormap alpha gray_input labels colorbar smooth seed"
SEED = "position"
VALUES = True
SCALED = False
_LIMITS = -1.0, 1.0


def draw(maps: LayerMaps, style: Style) -> BatchContent:
    """Draw one heat map per image, from -1 to 1.

    Raises:
        NotAMapError: A vector, or a layer that the image of the seed does not have.
        RequestError: The seed is outside the picture.
    """
    seed, shared = style.start, maps.ranges.shared
    assert seed
    assert seed.at
    if maps.vector or maps.picture is None:
        raise NotAMapError("a vector, without rows and columns to lay over the image")
    if seed.image:
        if shared is None or shared.seed is None or shared.seed.shape[1] != maps.values.shape[1]:
            raise NotAMapError(f"{seed.image} has no such map")
        direction = shared.seed
    else:
        direction = direction_at(maps.values, *maps.placed.cell(seed.at))
    raw = cosines(maps.values, direction)
    pixels, _, _ = stretch(raw, maps.picture, style, _LIMITS, smooth=style.smooth, centres=maps.centres)
    tensors = {"raw": raw, "pixels": pixels}
    if maps.ranges.bad is not None:
        tensors["nonfinite"] = maps.ranges.bad.sum(1)

    def make(raw: NDArray[np.float32], pixels: NDArray[np.uint8], *, nonfinite: int = 0) -> HeatMap:
        shows = f"the cosine of each position to the one at {seed}"
        return HeatMap(raw, pixels, True, HEAT_COLORMAP, _LIMITS, nonfinite, shows, seed.at)

    return BatchContent(make, tensors)
