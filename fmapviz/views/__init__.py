"""What can be drawn: one module per view.

What must be known before a view is imported is answered from the constants in its module.
"""

from __future__ import annotations

from fmapviz.core import registry
from fmapviz.core.registry import VIEWS

# What a view of a layer may capture, see `fmapviz.views.base`.
CAPTURES = ("outputs", "inputs", "gradients", "input_gradients")


def is_heat_map(view: str) -> bool:
    """Return True if a view is a single class activation map."""
    needs = registry.constant(VIEWS, view, "NEEDS")
    return needs not in {"weights", *CAPTURES} and not registry.constant(VIEWS, view, "SHEET")
