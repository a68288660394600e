"""Input of each layer: one tile of a grid for each channel."""

from fmapviz.views.maps import draw

NEEDS = "inputs"

__all__ = ["NEEDS", "draw"]
