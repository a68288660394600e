"""Statistics of every channel over all images of a run: `stats.csv` and `stats.json`.

Each unit keeps the statistics of its own images, and the run's are merged from these in natural order of the units' names:
they are equal to the last digit however a run was divided, interrupted or resumed.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import reduce
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from fmapviz.core import checksummed_json, files
from fmapviz.core.channel_table import ChannelTable
from fmapviz.core.checksummed_json import FORMAT, Json
from fmapviz.core.words import are, counted, plural
from fmapviz.errors import first_few
from fmapviz.store.aggregates.channels import NO_IMAGES, ChannelStatistics, combine
from fmapviz.store.aggregates.csv_rows import csv_row
from fmapviz.store.aggregates.unit_statistics import TABLE_FILE, read_image, read_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from fmapviz.config import RunInfo


_CSV_FILE, _JSON_FILE = "stats.csv", "stats.json"
_HEADING = (
    *("layer_index", "layer", "of", "target", "type", "channel", "images", "values"),
    *("min", "max", "mean", "std", "zeros", "nonfinite", "dead"),
)
# How the line of a feature map begins in `stats.json`, and what separates its short part from the numbers of all channels.
_LINE, _NUMBERS = b'  {"layer": ', b', "min": ['
_SUFFIXES = {
    "output": "", "input": " (input)", "gradient": " (gradient) ", "input gradient": " (input gradient) ",
    "attention": " (attention)",
}  # fmt: skip
MOST_LINES = 20
# Types whose outputs are hardly ever constant: a channel dies in the activation that follows.
_BEFORE_ACTIVATIONS = re.compile(r"(Lazy)?(Conv|ConvTranspose)\dd|Linear|\w+Norm(\dd)?")


def summarize(unit: Path) -> ChannelStatistics:
    """Read the statistics of a unit's images; see `fmapviz.store.aggregates.base.Aggregate`."""
    return read_table(unit) if files.exists(unit / TABLE_FILE) else read_image(unit)


def merge(summaries: Iterable[ChannelStatistics]) -> ChannelStatistics:
    """Merge the statistics of disjoint sets of images.

    The mean of each image is rounded to float32; that of all may lie outside of their range by as much, and is clipped.
    Where the range is NaN, so is the mean.
    """
    merged = reduce(combine, summaries, NO_IMAGES)
    clipped = np.clip(merged["mean"], merged["min"], merged["max"])
    return replace(merged, columns={**merged.columns, "mean": clipped})


def tabulate(known: ChannelStatistics) -> ChannelTable:
    """Return the rows of `stats.csv`; of a channel without a finite value minimum, maximum, mean and deviation are NaN."""
    counts = {"images": known["images"], "values": known.values}
    numbers = {name: known[name].astype(np.float64) for name in ("min", "max", "mean")}
    shares = {"std": known.std, "zeros": known["zeros"] / known.values}
    columns = {**counts, **numbers, **shares, "nonfinite": known["nonfinite"], "dead": known.flat}
    table = ChannelTable()
    for info, own in known.slices():
        layer = (info.index, info.layer, info.of, info.target, info.type)
        rows = zip(*(column[own].tolist() for column in columns.values()), strict=True)
        table += [dict(zip(_HEADING, (*layer, channel, *row), strict=True)) for channel, row in enumerate(rows)]
    return table


def publish(summary: ChannelStatistics, info: RunInfo) -> dict[str, bytes]:
    """Return the contents of `stats.csv` and `stats.json`."""
    texts = _texts(summary)  # once for both: formatting the numbers takes longest
    document = {
        "fmapviz": FORMAT,
        "model": info.model,
        "weights": info.weights,
        "weights_sha256": info.sha256,  # `sha256` is the checksum of the file itself
        "images": summary.images,
        "layers": _as_json(summary, texts),
    }
    return {
        _CSV_FILE: _as_csv(summary, texts).encode("utf-8", "backslashreplace"),
        _JSON_FILE: checksummed_json.dumps(document),
    }


def report(run: Path) -> tuple[dict[str, Any], list[str]]:
    """Report from `stats.json` how many channels of each feature map have one value in all images, are dead, and exist."""
    try:
        lines = files.read(run / _JSON_FILE).splitlines()
    except FileNotFoundError:
        return {"dead": {}}, []
    # The numbers of all channels, which take longest to parse, stand at the end of each line.
    maps = [json.loads(line.partition(_NUMBERS)[0] + b"}") for line in lines if line.startswith(_LINE)]
    named = {f"{each['layer']}{_SUFFIXES[each['of']]}{each['target'] or ''}": each for each in maps}
    dead = {name: (len(each["constant"]), len(each["dead"]), each["channels"]) for name, each in named.items()}
    return {"dead": dead}, describe_dead(named)


def describe_dead(maps: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Describe the feature maps that have dead channels, a line for each, or which types have none.

    A last line says so if no output of an activation is among them.

    Args:
        maps: The lines of `stats.json` by the name of the feature map.

    Example:
        >>> described = {"layer": "0.relu", "of": "output", "type": "ReLU", "channels": 256, "dead": [3, 17]}
        >>> describe_dead({"0.relu": described})
        ['0.relu: 2 of 256 channels are dead: 3, 17']
    """
    if not maps:
        return []
    lines = [
        f"{'' if any(map(str.isalpha, each['layer'])) else 'layer '}{name}: "
        f"{len(dead)} of {counted(each['channels'], 'channel')} {are(len(dead))} dead: {first_few([*map(str, dead)])}"
        for name, each in maps.items()
        if (dead := each["dead"])
    ]
    types = sorted({each["type"] for each in maps.values()})
    of_outputs = [each["type"] for each in maps.values() if each["of"] == "output"]
    hidden = len(lines) - MOST_LINES
    if hidden > 0:
        lines[MOST_LINES:] = [f"... and {hidden} more such {plural(hidden, 'line')}: see {_CSV_FILE}"]
    if not lines:
        noun = "layer" if len(of_outputs) == len(maps) else "feature map"  # of which a layer may have several
        lines = [f"no dead channels in {counted(len(maps), noun)} of {plural(len(types), 'type')} {first_few(types)}"]
    if of_outputs and all(map(_BEFORE_ACTIVATIONS.fullmatch, of_outputs)):
        lines.append("channels die behind activations, which were not examined: types='ReLU' examines ReLU layers")
    return lines


def _as_csv(known: ChannelStatistics, texts: Mapping[str, Sequence[str]]) -> str:
    """Format a table; rows of 47,000 channels take 0.2 s this way, and 0.5 s by `csv.writer`."""
    lines = [csv_row(_HEADING)]
    dead, nonfinite = known.flat.astype(np.int64).tolist(), known["nonfinite"].tolist()
    all_values = known.values
    for info, own in known.slices():
        layer = csv_row((str(info.index), info.layer, info.of, info.target, info.type))
        counts = f"{known['images'][own.start]},{all_values[own.start]}"
        columns = (*(each[own] for each in texts.values()), nonfinite[own], dead[own])
        lines += [
            f"{layer},{channel},{counts},{low},{high},{mean},{std},{zeros},{bad},{flat}"
            for channel, (low, high, mean, std, zeros, bad, flat) in enumerate(zip(*columns, strict=True))
        ]
    return "\n".join(lines) + "\n"


def _as_json(known: ChannelStatistics, texts: Mapping[str, Sequence[str]]) -> Json:
    """Format a JSON list with a line per feature map."""
    lines = []
    flat, constant, all_values = known.flat, known.constant, known.values
    for info, own in known.slices():
        fields = {
            "layer": info.layer,
            "layer_index": info.index,
            "of": info.of,
            "target": info.target or None,
            "type": info.type,
            "channels": info.channels,
            "images": int(known["images"][own.start]),
            "values": int(all_values[own.start]),
            "dead": flat[own].nonzero()[0].tolist(),
            "constant": constant[own].nonzero()[0].tolist(),
            "nonfinite": known["nonfinite"][own].tolist(),
        }
        numbers = "".join(f', "{name}": [{", ".join(text or "null" for text in all_[own])}]' for name, all_ in texts.items())
        lines.append(f"{json.dumps(fields).removesuffix('}')}{numbers}}}")
    return Json("[\n  " + ",\n  ".join(lines) + "]" if lines else "[]")


def _texts(known: ChannelStatistics) -> dict[str, list[str]]:
    """Format the numbers of all channels with as many digits as float32 has; empty where a number is not finite."""
    numbers = {**{name: known[name] for name in ("min", "max", "mean")}, "std": known.std}
    numbers["zeros"] = known["zeros"] / known.values
    return {
        name: ["0"] * len(values)  # the zeros of hardly any convolution are exact
        if not values.any()
        else [f"{value:.9g}" if isfinite(value) else "" for value in values.tolist()]
        for name, values in numbers.items()
    }
