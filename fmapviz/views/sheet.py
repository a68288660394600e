"""Grad-CAM of several layers, the rows, for several classes, the columns, on one labelled sheet."""

from fmapviz.views.gradcam import attribute

NEEDS = "activations gradients"
TARGETS = "top3"  # unless the user names others
SHEET = True

__all__ = ["NEEDS", "SHEET", "TARGETS", "attribute"]
