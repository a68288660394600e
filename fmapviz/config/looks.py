"""Find the options of a style that change the pictures of some views."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fmapviz.config.options import options_of
from fmapviz.config.style import Style
from fmapviz.core import registry

if TYPE_CHECKING:
    from collections.abc import Iterable


def effective_style(style: Style, views: Iterable[str]) -> tuple[Style, list[str]]:
    """Reset the options of a style that change no picture of any of these views.

    Returns:
        The style, and the names of the options that were reset from another value than their default.

    Example:
        >>> from fmapviz import Style
        >>> effective_style(Style(columns=3, alpha=0.7), ["maps", "contact"])
        (Style(columns=3), ['alpha'])
    """
    chosen = list(map(registry.view, views))
    used = {look for view in chosen for look in view.looks}
    if style.scope == "run" and any(view.ranged for view in chosen):
        used.add("norm")
    idle = [name for name in options_of(Style) if name not in used]
    reset: dict[str, Any] = {name: getattr(Style(), name) for name in idle}  # Any: of each option its own type
    given = [name for name in idle if getattr(style, name) not in (reset[name], None)]
    return replace(style, **reset), given
