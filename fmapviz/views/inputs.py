"""Input of each layer: one tile of a grid for each channel."""

from fmapviz.views.maps import draw

NEEDS = "inputs"
LOOKS = "norm columns padding channels scale colormap labels colorbar"

__all__ = ["LOOKS", "NEEDS", "draw"]
