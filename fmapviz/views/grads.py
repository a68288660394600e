"""Gradient of a class's score with respect to each layer's output, as a grid."""

from fmapviz.views.maps import draw

NEEDS = "gradients"

__all__ = ["NEEDS", "draw"]
