"""Input of each layer: one tile of a grid for each channel."""

from fmapviz.views.maps import draw

NEEDS = "inputs"
LOOKS = "norm columns padding channels scale colormap labels background text_size with_input colorbar"

__all__ = ["LOOKS", "NEEDS", "draw"]
