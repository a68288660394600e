"""The gradient of a class's score at the output of each layer, as a grid."""

from fmapviz.views.maps import draw

NEEDS = "gradients"

__all__ = ["NEEDS", "draw"]
