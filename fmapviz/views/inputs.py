"""What goes into each layer, every channel as one tile of a grid."""

from fmapviz.views.maps import draw

NEEDS = "inputs"

__all__ = ["NEEDS", "draw"]
