"""One labelled sheet with the input and a map of each layer, the mean of its channels."""

from fmapviz.views.mean import reduce

NEEDS = "outputs"
OVER = False  # each map keeps its own resolution
SHEET = True

__all__ = ["NEEDS", "OVER", "SHEET", "reduce"]
