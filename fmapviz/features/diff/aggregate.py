"""How two networks differ, over all images: `diff.csv`, `diff.json`, `layers.csv` and `cka.csv`."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from math import isfinite, isnan
from sys import float_info
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from fmapviz.core import checksummed_json, files
from fmapviz.core.checksummed_json import FORMAT
from fmapviz.core.words import counted
from fmapviz.data import DIFFERENCES
from fmapviz.errors import quote
from fmapviz.features.diff.cka import BATCH, LEAST, Alignment
from fmapviz.features.diff.layer_ranking import LayerChange, Powers, rank_layers, why_apart
from fmapviz.features.diff.tables import encode, write_csv
from fmapviz.features.diff.unit_differences import read_unit_differences
from fmapviz.store.aggregates.csv_rows import csv_row
from fmapviz.store.unit import read_unit
from fmapviz.store.unit_key import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from fmapviz.config import RunInfo
    from fmapviz.store.run_files import Content


_CSV_FILE, _JSON_FILE, _CKA_FILE, _LAYERS_FILE = "diff.csv", "diff.json", "cka.csv", "layers.csv"
ENOUGH = 20.0  # dB; below it, the difference is more than a tenth of the values


@dataclass(frozen=True, slots=True, eq=False)
class ComparedUnits:
    """The units of a comparison.

    Attributes:
        units: The directory, the image and the step of each.
        powers: By step and layer.
        apart: By step and layer, why it is not compared.
    """

    units: list[tuple[Path, str, int | None]] = field(default_factory=list)
    powers: dict[int | None, dict[str, Powers]] = field(default_factory=dict)
    apart: dict[int | None, dict[str, str]] = field(default_factory=dict)

    @property
    def changes(self) -> list[LayerChange]:
        """The layers of each step, those that change most first."""
        steps = sorted(self.powers.keys() | self.apart.keys(), key=lambda step: step or 0)
        return [each for step in steps for each in rank_layers(self.powers.get(step, {}), self.apart.get(step, {}), step)]


def powers_of(index: int, whole: NDArray[np.float64], powers: tuple[float, float], *, channels: int = 0) -> Powers:
    """Return the sums of one image; see `fmapviz.types.Difference` for `whole` and `powers`."""
    numbers = dict(zip(DIFFERENCES, whole.tolist(), strict=True))
    finite = not isnan(numbers["max_abs"])
    largest = min(numbers["max_abs"], float_info.max) if finite else 0.0
    return Powers(index, *powers, largest, bool(numbers["differing"]), int(numbers["nonfinite"]), channels, 1, finite)


def summarize(unit: Path) -> ComparedUnits:
    """Read the numbers of a unit's image; see `fmapviz.store.aggregates.base.Aggregate`."""
    record = read_unit(unit)
    if record is None:
        raise ValueError(unit)
    known, key = read_unit_differences(unit), key_of(record)
    step, image = key.step, key.name if key.step is None else key.series
    powers = {
        layer.name: powers_of(layer.first or 0, whole, (float(signal), float(noise)), channels=max(layer.means))
        for layer, whole, _, (signal, noise) in known.rows
    }
    apart = why_apart((layer.name, layer.second is None) for layer in known.layers if not layer.whole)
    return ComparedUnits([(unit, image, step)], {step: powers}, {step: apart})


def merge(summaries: Iterable[ComparedUnits]) -> ComparedUnits:
    """Join units, and add their sums."""
    merged = ComparedUnits()
    for each in summaries:
        merged.units.extend(each.units)
        for step, layers in each.powers.items():
            known = merged.powers.setdefault(step, {})
            for name, own in layers.items():
                total = known.setdefault(name, Powers(own.index))
                total.add(own)
        for step, apart in each.apart.items():
            merged.apart.setdefault(step, {}).update(apart)
    return merged


def publish(summary: ComparedUnits, info: RunInfo) -> dict[str, Content]:
    """Return the contents of the tables."""
    changes = summary.changes
    document = {
        "fmapviz": FORMAT,
        "model": info.model,
        "weights": info.weights,
        "against": dict(info.against),
        "images": len({image for _, image, _ in summary.units}),
        "channels": max((each.channels for layers in summary.powers.values() for each in layers.values()), default=0),
        "steps": [
            {
                "step": step,
                "layers": [
                    {
                        "layer": name,
                        "sqnr": _finite(each.sqnr),
                        "max_abs": _finite(each.largest),
                        "same": not each.differs,
                        "nonfinite": each.nonfinite,
                    }
                    for name, each in sorted(layers.items(), key=lambda item: item[1].index)
                ],
            }
            for step, layers in sorted(summary.powers.items(), key=lambda item: item[0] or 0)
        ],
        "layers": [
            {name: _finite(value) if isinstance(value, float) else value for name, value in asdict(each).items()}
            for each in changes
        ],
    }
    return {
        _CSV_FILE: lambda file: write_csv(summary.units, file),
        _JSON_FILE: checksummed_json.dumps(document),
        _LAYERS_FILE: _layers_table(changes),
        _CKA_FILE: lambda file: _write_cka(summary, file),
    }


def report(run: Path) -> tuple[dict[str, Any], list[str]]:
    """Report from `diff.json` the first step and layer that differ much, and those with values that are not finite."""
    try:
        document = json.loads(files.read(run / _JSON_FILE))
        steps = document["steps"]
    except (FileNotFoundError, ValueError, KeyError):
        return {"differences": [], "layers": []}, []
    found = [(step["step"], layer) for step in steps for layer in step["layers"]]
    results = {"differences": steps, "layers": document.get("layers", [])}
    if not found:
        return results, ["no layer is in both networks"]
    lines = []
    if bad := [each for each in found if each[1].get("nonfinite")]:
        of = f"at {_steps(bad, found)}" if _has_steps(found) else f"in {len(bad)} of {counted(len(found), 'layer')}"
        lines.append(f"NaN or infinite values {of}, first in {_place(bad[0])}")
    usable = [each for each in found if not each[1]["same"] and each[1]["sqnr"] is not None]
    below = [each for each in found if _is_below(each[1])]
    if all(layer["same"] for _, layer in found):
        lines.append(f"no difference in {len({layer['layer'] for _, layer in found})} layers")
    elif document.get("against", {}).get("related", True):
        if below:
            of = f"some layer is below it at {_steps(below, found)}"
            of = of if _has_steps(found) else f"{len(below)} of {counted(len(found), 'layer')} are below it"
            first = f"{_place(below[0])} is the first layer below {ENOUGH:g} dB: {_decibels(below[0][1])}"
            lines.append(f"{first}; {of}" if len(found) > 1 else first)
        elif usable:
            lowest = min(usable, key=lambda each: float(each[1]["sqnr"]))
            lines.append(f"no layer is below {ENOUGH:g} dB; the lowest is {_place(lowest)}, {_decibels(lowest[1])}")
    else:
        lines.append(
            "the ranking of layers is of channels that have nothing in common: a relative L2 of about 1 says no more"
        )
    images, channels = document.get("images", 0), document.get("channels", 0)
    if LEAST <= images < channels:
        of = f"{counted(images, 'image')} and layers of up to {counted(channels, 'channel')}"
        lines.append(f"CKA is of {of}: other images give other values")
    return results, lines


def _is_below(layer: Mapping[str, Any]) -> bool:
    """Return True if a layer differs much; where A is zero and B is not, its ratio is -infinite, so null."""
    if layer["same"]:
        return False
    return bool(layer["max_abs"]) if layer["sqnr"] is None else layer["sqnr"] < ENOUGH


def _place(each: tuple[int | None, Mapping[str, Any]]) -> str:
    step, layer = each
    return quote(layer["layer"]) + ("" if step is None else f" at step {step}")


def _has_steps(found: list[tuple[int | None, Any]]) -> bool:
    return len({step for step, _ in found}) > 1


def _steps(chosen: list[tuple[int | None, Any]], found: list[tuple[int | None, Any]]) -> str:
    """Return the number of steps of chosen layers in words."""
    steps, every = ({step for step, _ in each} for each in (chosen, found))
    return f"{len(steps)} of {len(every)} steps"


def _decibels(layer: Mapping[str, Any]) -> str:
    return "of zeros in A only" if layer["sqnr"] is None else f"{layer['sqnr']:.1f} dB"


def scalars(summary: ComparedUnits) -> Iterator[tuple[int, str, float]]:
    """Yield how much each layer changes at each step: the step, a tag such as `sqnr/NN LAYER`, and the value."""
    for each in summary.changes:
        for name in ("sqnr", "relative_l2"):
            if each.index is not None and isfinite(value := getattr(each, name)):
                yield each.step or 0, f"{name}/{each.index:02d} {each.layer}", value


def align(summary: ComparedUnits, step: int | None) -> tuple[list[str], list[str], NDArray[np.float64]] | None:
    """Return the layers of A and of B, and how they are aligned at a step; None for fewer than four images.

    Samples are images, in the order of their names, and features the means of channels. Only layers that all images have
    count.
    """
    units = sorted((image, unit) for unit, image, own in summary.units if own == step)
    if len(units) < LEAST:
        return None
    names: list[list[str]] | None = None
    alignment: Alignment | None = None
    size = len(units) // max(1, len(units) // BATCH)  # no batch is smaller than that
    for start in range(0, len(units) - len(units) % size, size):
        end = len(units) if len(units) - start < 2 * size else start + size
        stacked = _stack([unit for _, unit in units[start:end]])
        if names is None or alignment is None:
            names = [list(own) for own in stacked]
            alignment = Alignment(len(names[0]), len(names[1]))
        features = [
            [own.get(name, np.zeros((end - start, 1))) for name in wanted]
            for own, wanted in zip(stacked, names, strict=True)
        ]
        alignment.add(features[0], features[1])
        if end == len(units):
            break
    return (names[0], names[1], alignment.matrix) if names and alignment else None


def _stack(units: list[Path]) -> list[dict[str, NDArray[np.float64]]]:
    """Return the features of each layer that all images of a batch have, `(N, C)`, for A and for B."""
    known: list[dict[str, list[NDArray[np.float64]]]] = [defaultdict(list), defaultdict(list)]
    for unit in units:
        differences = read_unit_differences(unit)
        for network, own in enumerate(known):
            for name, means in differences.features(network):
                own[name].append(means)
    return [
        {name: np.stack(rows) for name, rows in own.items() if len(rows) == len(units) and len({*map(len, rows)}) == 1}
        for own in known
    ]


def steps_of(summary: ComparedUnits) -> list[int | None]:
    """Return the steps of a series, ascending; `[None]` without a series."""
    return sorted({step for _, _, step in summary.units}, key=lambda step: step or 0)


def _layers_table(changes: Iterable[LayerChange]) -> bytes:
    """Return `layers.csv`: a row for each layer of each step, the largest change first."""
    columns = ("step", "rank", "layer", "relative_l2", "sqnr", "max_abs", "nonfinite", "images", "note")
    rows = [columns, *(tuple(_cell(getattr(each, name)) for name in columns) for each in changes)]
    return b"".join(encode(csv_row(list(row))) + b"\n" for row in rows)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if isnan(value) else f"{value:.7g}"
    return "" if value is None else str(value)


def _write_cka(summary: ComparedUnits, file: BinaryIO) -> None:
    """Write a row for each pair of layers."""
    file.write(b"step,first,second,cka\n")
    for step in steps_of(summary):
        for row in _cka_rows(summary, step):
            file.write(encode(row) + b"\n")


def _cka_rows(summary: ComparedUnits, step: int | None) -> Iterator[str]:
    known = align(summary, step)
    if known is None:
        return
    for name, row in zip(known[0], known[2], strict=True):
        for other, value in zip(known[1], row.tolist(), strict=True):
            shown = f"{value:.6f}" if isfinite(value) else ""
            yield f"{'' if step is None else step},{csv_row([name, other])},{shown}"


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
