"""The gradient of a class's score at the output of each layer, as a grid."""

from fmapviz.grids import draw_grids as draw

NEEDS = "gradients"

__all__ = ["NEEDS", "draw"]
