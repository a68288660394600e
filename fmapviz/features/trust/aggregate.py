"""Methods of heat maps over all images of a run: `trust.csv`."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict, fields
from itertools import chain, groupby
from math import isnan
from typing import TYPE_CHECKING, Any, get_type_hints

from fmapviz.core import files
from fmapviz.features.trust.ranking import RankedMethod, named, rank, samples_of, summary_of
from fmapviz.features.trust.unit_judgements import read_judgements
from fmapviz.store.aggregates.csv_rows import csv_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from fmapviz.config import RunInfo

CSV_FILE = "trust.csv"
_COLUMNS = tuple(each.name for each in fields(RankedMethod))


def summarize(unit: Path) -> list[dict[str, Any]]:
    """Read the numbers of a unit's images, without the curves; see `fmapviz.store.aggregates.base.Aggregate`."""
    images = read_judgements(unit)
    for image in images:
        for target in image["targets"]:
            for method in target["methods"]:
                for name in ("shares", "deletion_curve", "insertion_curve"):
                    method.pop(name, None)
    return images


def merge(summaries: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Join images."""
    return list(chain.from_iterable(summaries))


def publish(summary: list[dict[str, Any]], _info: RunInfo) -> dict[str, bytes]:
    """Return the contents of `trust.csv`: a row for each method of each target, the best first."""
    rows = [[_cell(value) for value in asdict(row).values()] for row in rank(samples_of(summary))]
    return {CSV_FILE: "".join(csv_row(row) + "\n" for row in (list(_COLUMNS), *rows)).encode("utf-8", "backslashreplace")}


def report(run: Path) -> tuple[Mapping[str, Any], list[str]]:
    """Report from `trust.csv` the ranking of each target."""
    try:
        text = files.read(run / CSV_FILE).decode()
    except FileNotFoundError:
        return {"trust": []}, []
    rows = [_parsed(row) for row in csv.DictReader(io.StringIO(text))]
    lines = []
    for target, group in groupby(rows, key=lambda row: row.target):
        own = list(group)
        lines.append(f"trust of {target}: {summary_of(own)}")
        if idle := _idle(own):
            lines.append(f"no better than chance for {target}: {', '.join(idle)}")
    records = [{name: _json(value) for name, value in asdict(row).items()} for row in rows]
    return {"trust": records}, lines


def _idle(rows: Sequence[RankedMethod]) -> list[str]:
    """Return the methods that are no better than chance, with the layer where another one of the method is better."""
    idle = [row for row in rows if row.verdict.startswith(("no better", "worse"))]
    better = {row.method for row in rows if row not in idle}
    return list(dict.fromkeys(named(row) if row.method in better else row.method for row in idle))


def _parsed(row: Mapping[str, str]) -> RankedMethod:
    kinds = get_type_hints(RankedMethod)
    values: dict[str, Any] = {}  # of each column its own type
    for name, text in row.items():
        if kinds[name] is str:
            values[name] = text
        elif kinds[name] is float:
            values[name] = float(text or "nan")
        else:
            values[name] = int(text) if text else None
    return RankedMethod(**values)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if isnan(value) else f"{value:.7g}"
    return "" if value is None else str(value)


def _json(value: object) -> object:
    return None if isinstance(value, float) and isnan(value) else value
