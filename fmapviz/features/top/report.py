"""The address of the top images, for the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fmapviz.features.top.aggregate import KIND
from fmapviz.formats.html.listing import href_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from fmapviz.store.aggregates.images import ListedUnit


def add_top(run: Path, units: Sequence[ListedUnit], _summaries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the address of the unit of top images; see `fmapviz.core.members.ReportPart`."""
    addresses = [href_of(unit.directory, run) for unit in units if unit.kind == KIND]
    return {"top": addresses[0] if addresses else None}
