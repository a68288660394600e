"""The gradient of a class's score at the input of each layer, as a grid."""

from fmapviz.views.maps import draw

NEEDS = "input_gradients"

__all__ = ["NEEDS", "draw"]
