"""Gradient of a class's score with respect to each layer's input, as a grid."""

from fmapviz.views.maps import draw

NEEDS = "input_gradients"
LOOKS = "norm columns padding channels scale colormap labels background text_size with_input colorbar"

__all__ = ["LOOKS", "NEEDS", "draw"]
