"""The table of the layers of a comparison, those that change most first, with a curve for each over a series."""

from __future__ import annotations

from math import inf, isfinite, isnan
from typing import TYPE_CHECKING, Any

from fmapviz.errors import printable
from fmapviz.features.diff.layer_ranking import largest_changes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from fmapviz.features.diff.layer_ranking import LayerChange
    from fmapviz.store.aggregates.images import ListedUnit

WIDTH, HEIGHT = 120, 20  # of a curve


def add_changes(_run: Path, _units: Sequence[ListedUnit], summaries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table for the report of a comparison; see `fmapviz.core.members.ReportPart`."""
    return {"changes": list_changes(summaries["differences"].changes)} if "differences" in summaries else {}


def list_changes(changes: Sequence[LayerChange]) -> list[dict[str, Any]]:
    """Return the rows of the table: texts, and `curve`, the path of an SVG; empty without a series.

    Args:
        changes: Those of all steps.
    """
    largest = max((each.relative_l2 for each in changes if each.rank), default=0.0)
    steps = sorted({each.step for each in changes if each.step is not None})
    values = {(each.layer, each.step): each.relative_l2 for each in changes}
    return [
        {
            "layer": printable(each.layer),
            "rank": rank if each.rank else "",
            "relative": _text(each.relative_l2),
            "sqnr": "" if isnan(each.sqnr) else f"{each.sqnr:.1f} dB" if isfinite(each.sqnr) else _text(each.sqnr),
            "largest": _text(each.max_abs),
            "step": "" if each.step is None else str(each.step),
            "note": each.note,
            "curve": _curve([values.get((each.layer, step), inf) for step in steps], steps, largest),
        }
        for rank, each in enumerate(largest_changes(changes), 1)
    ]


def _text(value: float) -> str:
    return "" if isnan(value) else f"{value:.3g}"


def _curve(values: Sequence[float], steps: Sequence[int], largest: float) -> str:
    """Return a path of the relative change over the steps, from zero to the largest of all layers; unknown ones are gaps."""
    if len(steps) < 2 or not largest:
        return ""
    parts, is_drawn = [], False
    for step, value in zip(steps, values, strict=True):
        if isfinite(value):
            x, y = (step - steps[0]) / (steps[-1] - steps[0]) * WIDTH, HEIGHT - 1 - value / largest * (HEIGHT - 2)
            parts.append(f"{'L' if is_drawn else 'M'}{x:.1f} {y:.1f}{'' if is_drawn else 'h0'}")
        is_drawn = isfinite(value)
    return "".join(parts)
