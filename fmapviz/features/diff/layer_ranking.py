"""Rank the layers of a comparison by how much they change, at each step, and list them for the report."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, isnan, log10, nan, sqrt
from typing import TYPE_CHECKING, Any

from fmapviz.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from fmapviz.store.aggregates.images import ListedUnit


LARGEST = 1e300  # sums beyond it are not compared


@dataclass(slots=True)
class Powers:
    """Sums over images of one layer at one step.

    Attributes:
        index: Its position in the order of execution of A.
        signal: Sum of the squares of A.
        noise: Sum of the squares of B - A.
        largest: Largest magnitude of B - A.
        differs: Whether any position does.
        nonfinite: Number of positions at which A or B is NaN or infinite; the sums are without them.
        channels: Number of channels of A, or of B if they are more.
        images: Number of images.
        finite: Whether both have a finite value at any position.
    """

    index: int
    signal: float = 0.0
    noise: float = 0.0
    largest: float = 0.0
    differs: bool = False
    nonfinite: int = 0
    channels: int = 0
    images: int = 0
    finite: bool = False

    def add(self, other: Powers) -> None:
        """Add the sums of other images."""
        self.signal += other.signal
        self.noise += other.noise
        self.largest = max(self.largest, other.largest)
        self.differs |= other.differs
        self.nonfinite += other.nonfinite
        self.channels = max(self.channels, other.channels)
        self.images += other.images
        self.finite |= other.finite

    @property
    def sqnr(self) -> float:
        """Ratio of both in dB; infinite where nothing differs, NaN where only values differ that are not finite."""
        if not self.noise:
            return nan if self.differs else inf
        return 10 * (log10(self.signal) - log10(self.noise)) if self.signal else -inf


@dataclass(frozen=True, slots=True)
class LayerChange:
    """How much a layer changes over all images.

    Attributes:
        layer: Its name.
        index: Its position in the order of execution; None if one network lacks it.
        step: Of a series.
        rank: From 1, the largest change first; None where it has no finite relative change, or does not change at all.
        relative_l2: Norm of B - A relative to that of A; infinite where A is zero everywhere and B is not; NaN if unknown.
        sqnr: The same in dB: `-20 log10(relative_l2)`.
        max_abs: Largest magnitude of B - A.
        nonfinite: Number of positions at which A or B is NaN or infinite; they take no other part.
        images: Number of images.
        note: Why it has no rank, or what to know of it; empty if there is nothing to say.
    """

    layer: str
    index: int | None
    step: int | None
    rank: int | None
    relative_l2: float
    sqnr: float
    max_abs: float
    nonfinite: int
    images: int
    note: str


def rank_layers(powers: Mapping[str, Powers], apart: Mapping[str, str], step: int | None) -> list[LayerChange]:
    """Return the layers of one step: those that are ranked, then the others in the order of execution.

    Args:
        powers: The layers that both networks have.
        apart: The others, and why they are not compared.
        step: The step; None without a series.
    """
    known = [(name, each, *_relative(each)) for name, each in sorted(powers.items(), key=lambda item: item[1].index)]
    order = sorted((each for each in known if 0 < each[2] < inf), key=lambda each: -each[2])
    ranks = {name: rank for rank, (name, *_) in enumerate(order, 1)}
    changes = [
        LayerChange(
            name, each.index, step, ranks.get(name), relative, each.sqnr, each.largest if each.finite else nan,
            each.nonfinite, each.images, note,
        )
        for name, each, relative, note in (*order, *(each for each in known if each[0] not in ranks))
    ]  # fmt: skip
    alone = [
        LayerChange(name, None, step, None, nan, nan, nan, 0, 0, why) for name, why in apart.items() if name not in powers
    ]
    return [*changes, *alone]


def why_apart(alone: Iterable[tuple[str, bool]]) -> dict[str, str]:
    """Return why layers are not compared.

    Args:
        alone: Their names, and whether it is A that has the layer; those of other shapes are named twice.
    """
    networks: dict[str, set[str]] = {}
    for name, first in alone:
        networks.setdefault(name, set()).add("A" if first else "B")
    return {name: f"only in {min(found)}" if len(found) == 1 else "of other shapes" for name, found in networks.items()}


def largest_changes(changes: Iterable[LayerChange]) -> list[LayerChange]:
    """Return each layer once, at the step of its largest change; the largest first, then those without a rank."""
    found: dict[str, LayerChange] = {}
    for each in changes:
        known = found.setdefault(each.layer, each)
        if each.rank is not None and (known.rank is None or each.relative_l2 > known.relative_l2):
            found[each.layer] = each
    return sorted(found.values(), key=lambda each: -each.relative_l2 if each.rank is not None else inf)


def _relative(powers: Powers) -> tuple[float, str]:
    """Return the relative change of a layer, and a note."""
    bad = f"{powers.nonfinite} NaN or infinite values are left out" if powers.nonfinite else ""
    if not powers.finite:
        return nan, "no finite value in both networks"
    if not powers.noise:
        return (nan, f"only values differ that are not finite; {bad}") if powers.differs else (0.0, "no difference")
    if not isfinite(powers.noise + powers.signal) or max(powers.noise, powers.signal) > LARGEST:
        return nan, "values are too large to compare"
    if not powers.signal:
        return inf, "A is zero everywhere, B is not"
    return sqrt(powers.noise / powers.signal), bad


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
