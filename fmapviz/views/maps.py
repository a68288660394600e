"""Every channel of a layer's output as one tile of a grid, every number of a vector as a bar."""

from fmapviz.grids import draw_grids as draw

__all__ = ["draw"]
