"""The ranking of methods, for the report."""

from __future__ import annotations

from itertools import groupby
from math import isnan
from typing import TYPE_CHECKING, Any

from fmapviz.errors import printable
from fmapviz.features.trust.ranking import LEAST, rank, samples_of, summary_of
from fmapviz.features.trust.trust_sheet import in_two_digits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from fmapviz.features.trust.ranking import RankedMethod
    from fmapviz.store.aggregates.images import ListedUnit


def add_trust(_run: Path, _units: Sequence[ListedUnit], summaries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ranking for the report; see `fmapviz.core.members.ReportPart`."""
    if "trust" not in summaries:
        return {}
    rows = rank(samples_of(summaries["trust"]))
    return {"trust": [_target(target, list(own)) for target, own in groupby(rows, key=lambda row: row.target)]}


def _target(target: str, rows: Sequence[RankedMethod]) -> dict[str, Any]:
    return {
        "target": printable(target),
        "summary": f"{summary_of(rows)}.",
        "few": rows[0].rank is None,
        "least": LEAST,
        "methods": [
            {
                "rank": "" if row.rank is None else str(row.rank),
                "method": row.method,
                "layer": printable(row.layer),
                "deletion": _with_error(row.deletion, row.deletion_error),
                "insertion": _with_error(row.insertion, row.insertion_error),
                "chanceDeletion": f"{row.chance_deletion_low:.3f} to {row.chance_deletion_high:.3f}",
                "chanceInsertion": f"{row.chance_insertion_low:.3f} to {row.chance_insertion_high:.3f}",
                "verdict": row.verdict,
                "last": in_two_digits(row.last_random),
                "all": in_two_digits(row.all_random),
                "note": row.note,
            }
            for row in rows
        ],
    }


def _with_error(mean: float, error: float) -> str:
    return f"{mean:.3f}" if isnan(error) else f"{mean:.3f} ± {error:.3f}"
