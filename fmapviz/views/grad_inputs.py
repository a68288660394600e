"""The gradient of a class's score at the input of each layer, as a grid."""

from fmapviz.grids import draw_grids as draw

NEEDS = "input_gradients"

__all__ = ["NEEDS", "draw"]
