"""Describe the settings of a run, for its report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fmapviz.errors import printable

if TYPE_CHECKING:
    from collections.abc import Mapping


def describe_settings(settings: Mapping[str, Any], versions: Mapping[str, Any]) -> list[list[str]]:
    """Return the facts of a run for its report, as pairs of name and text.

    Args:
        settings: Those of `run.json`; a record that was tampered with may hold any JSON values.
        versions: The recorded versions.

    Example:
        >>> describe_settings({"model": "alexnet", "weights": "random weights, seed 0", "layers": []}, {"torch": "2.9"})
        [['Model', 'alexnet'], ['Weights', 'random weights, seed 0'], ['Layers', 'all'], ['Versions', 'torch 2.9']]
    """
    style = settings.get("style")
    facts = {
        "Model": settings.get("model"),
        "Weights": settings.get("weights"),
        "SHA-256": settings.get("sha256"),
        "Input": settings.get("preparation"),
        "Views": settings.get("views"),
        "Layers": settings.get("layers") or "all",
        "Without": settings.get("exclude"),
        "Types": settings.get("types"),
        "Scaling": style.get("norm") if isinstance(style, dict) else None,
        "Versions": [f"{name} {version}" for name, version in versions.items()],
    }
    return [[key, printable(_as_text(value))] for key, value in facts.items() if value]


def _as_text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
