"""What goes into each layer, every channel as one tile of a grid."""

from fmapviz.grids import draw_grids as draw

NEEDS = "inputs"

__all__ = ["NEEDS", "draw"]
