"""What can be drawn: one module per view.

What must be known before a view is imported is answered from the constants in its module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmapviz.core import registry
from fmapviz.core.registry import VIEWS

if TYPE_CHECKING:
    from fmapviz.core.types import Of

# What a view of a layer may capture, see `fmapviz.views.base`.
CAPTURES: dict[str, Of] = {
    "outputs": "output", "inputs": "input", "gradients": "gradient", "input_gradients": "input gradient"
}  # fmt: skip


def is_heat_map(view: str) -> bool:
    """Return True if a view is a single class activation map."""
    needs = registry.constant(VIEWS, view, "NEEDS")
    return needs not in {"weights", *CAPTURES} and not registry.constant(VIEWS, view, "SHEET")
