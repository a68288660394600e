"""What can be drawn: one module per view.

What must be known before a view is imported is answered from the constants in its module.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fmapviz.config import Style, options_of
from fmapviz.core import registry
from fmapviz.core.registry import VIEWS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fmapviz.types import Of

# What a view of a layer may capture, see `fmapviz.views.base`.
CAPTURES: dict[str, Of] = {
    "outputs": "output", "inputs": "input", "gradients": "gradient", "input_gradients": "input gradient",
    "attention": "attention",
}  # fmt: skip


def is_heat_map(view: str) -> bool:
    """Return True if a view is a single class activation map."""
    needs = registry.constant(VIEWS, view, "NEEDS")
    return needs not in {"weights", *CAPTURES} and not registry.constant(VIEWS, view, "SHEET")


def effective_style(style: Style, views: Iterable[str]) -> tuple[Style, list[str]]:
    """Reset the options of a style that change no picture of any of these views.

    Returns:
        The style, and the names of the options that were reset from another value than their default.

    Example:
        >>> from fmapviz.config import Style
        >>> effective_style(Style(columns=3, alpha=0.7), ["maps", "contact"])
        (Style(columns=3, gray_input=None), ['alpha'])
    """
    views = list(views)
    used = {name for view in views for name in (registry.constant(VIEWS, view, "LOOKS") or "").split()}
    if style.scope == "run" and any(map(is_heat_map, views)):  # no other range changes them
        used.add("norm")
    plain = Style()
    idle = [name for name in options_of(Style) if name not in used]
    reset: dict[str, Any] = {name: getattr(plain, name) for name in idle}  # Any: of each option its own type
    given = [name for name in idle if getattr(style, name) not in (reset[name], None)]
    if "gray_input" in idle:
        reset["gray_input"] = None  # earlier versions did not record it
    return replace(style, **reset), given
