"""Describe a picture in words: its facts are its header and the text of its PNG file."""

from __future__ import annotations

from math import isfinite, isnan
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.core.drawings import Grid, HeatMap, Histogram
from fmapviz.core.words import are, counted
from fmapviz.draw.heatmap import colormap_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fmapviz.config import Style
    from fmapviz.data import Content, LayerResult

MOST_NAMED = 4  # empty cells, and layers with values that are not finite
_MOST_NUMBERS = 32
_NOTHING: Mapping[str, None] = MappingProxyType({})
_SHOWS = {
    "input": "what goes into the layer",
    "gradient": "the gradient of the class's score at the layer's output",
    "input gradient": "the gradient of the class's score that the layer passes back to its input",
    "attention": "the attention weights of each head, to each patch",
    "weights": "the layer's weights: filters, input channels, rows, columns",
}


def describe(layer: LayerResult, content: Content, style: Style) -> dict[str, str]:
    """Return the facts of a drawing."""
    chosen = " (chosen automatically)" if layer.automatic else ""
    named = layer.layer or not isinstance(content, HeatMap)  # else it is a heat map of the network's input
    facts = {
        "Layer": f"{layer.layer}{chosen}" if named else None,
        "Type": layer.type if named else None,
        "Shape": shape_of(layer),
        "Shows": _SHOWS.get(layer.of) or (content.shows or None if isinstance(content, HeatMap) else None),
        "Class": str(layer.target) if layer.target else None,
        "Attention of": layer.query or None,
        **_of_content(layer, content, style),
    }
    return {name: fact for name, fact in facts.items() if fact is not None}


def shape_of(layer: LayerResult) -> str:
    """Return the shape of a layer's output in words."""
    return " x ".join(map(str, layer.shape))


def number(value: float | None) -> str:
    """Return a number with four significant digits."""
    return "none" if value is None else f"{value:.4g}"


def first_of(words: Sequence[str], kind: str) -> list[str]:
    """Return the first of several words, and how many more of a kind there are."""
    more = len(words) - MOST_NAMED
    return [*words[:MOST_NAMED], *([f"{more} more {kind}"] if more > 0 else [])]


def why_empty(heat: HeatMap) -> str | None:
    """Return the reason why the map of a class shows nothing; None if it shows something."""
    if not heat.finite.all():
        return "not finite: NaN and infinite values are drawn as zero"
    if not heat.empty:
        return None
    if not heat.raw.any():
        return "zero everywhere: so is the gradient of the class score, or what the layer returned"
    if heat.common and heat.extremes[1] > heat.common[0]:
        return f"below half a level of the range of all images of the run, which ends at {number(heat.common[1])}"
    return "the same everywhere" if (heat.raw > 0).any() else "zero everywhere: nothing there speaks for the class"


def value_range(heat: HeatMap) -> str:
    """Return the smallest and largest raw value in words; of a reduction, of its finite values."""
    low, high = heat.extremes
    return "no finite value" if heat.limits and isnan(low) else f"{number(low)} to {number(high)}"


def channel_facts(
    layer: LayerResult,
    *,
    scaling: str,
    nonfinite: str,
    more: Mapping[str, str | None] = _NOTHING,
    channels: Sequence[int] | None = None,
) -> dict[str, str | None]:
    """Return the facts about a picture of all channels of a layer.

    Args:
        layer: The layer.
        scaling: The mapping of values to colours.
        nonfinite: How values that are NaN or infinite are drawn.
        more: Facts that only such a picture has.
        channels: Those that are shown; None for all.
    """
    statistics = layer.statistics
    assert statistics is not None
    bad = statistics.nonfinite
    return {
        "Scaling": scaling,
        **more,
        _tiles_of(layer).capitalize(): list_numbers(channels),
        "Dead channels": list_numbers(statistics.constant),
        "Not finite": f"{counted(bad, 'value')} {are(bad)} NaN or infinite, {nonfinite}" if bad else None,
        "Samples": f"the layer saw {layer.samples} samples for this image; the first is drawn"
        if layer.samples > 1
        else None,
    }


def list_numbers(numbers: Sequence[int] | None) -> str | None:
    """Return the first numbers as text, and how many there are if that is not all; None if there is none."""
    if not numbers:
        return None
    shown = ", ".join(map(str, numbers[:_MOST_NUMBERS]))
    return f"{shown}, ... ({len(numbers)} in all)" if len(numbers) > _MOST_NUMBERS else shown


def _of_content(layer: LayerResult, content: Content, style: Style) -> Mapping[str, str | None]:
    if isinstance(content, HeatMap):
        return _of_heat_map(content, style)
    if not isinstance(content, Grid | Histogram):
        return content.describe(layer, style)
    range_ = _range_of(layer, whole=not (isinstance(content, Grid) and content.channels))
    if isinstance(content, Histogram):
        scaling = "the share of values in each of equal parts of the range"
        return range_ | channel_facts(layer, scaling=scaling, nonfinite="not counted")
    scaling = _scaling_of_grid(layer, content, style)
    return range_ | channel_facts(layer, scaling=scaling, nonfinite="drawn as a checkerboard", channels=content.channels)


def _range_of(layer: LayerResult, *, whole: bool) -> dict[str, str | None]:
    """Return the range and the mean of a layer; `whole` if all its channels are shown."""
    statistics = layer.statistics
    assert statistics is not None
    of_all = "" if whole else f", of all {_tiles_of(layer)}"
    ends = f"{number(statistics.minimum)} to {number(statistics.maximum)}{of_all}"
    return {"Range": "no finite value" if statistics.minimum is None else ends, "Mean": number(statistics.mean)}


def _tiles_of(layer: LayerResult) -> str:
    return "heads" if layer.of == "attention" else "channels"


def _scaling_of_grid(layer: LayerResult, grid: Grid, style: Style) -> str:
    of_weights = layer.of == "weights"
    palette = None if of_weights and layer.shape[1] == 3 else style.palette
    colours = f", in {palette}" if palette else ""
    each = {"weights": "filter", "attention": "head"}.get(layer.of, "channel")
    if style.signed and not grid.bars and not grid.limits:
        return f"zero is in the middle, each {each}'s largest magnitude at an end, of {palette or 'grey'}"
    if grid.limits and (of_weights or style.scope == "run" or (style.signed and not grid.bars)):
        whose = "all images of the run" if style.scope == "run" and not of_weights else "the layer"
        whose = f"the largest magnitude of {whose}, zero in the middle" if style.signed else f"the range of {whose}"
        return f"{number(grid.limits[0])} to {number(grid.limits[1])}, {whose}{colours}"
    if of_weights:
        return f"each filter from its smallest weight to its largest{colours}"
    fixed = list(map("{:g}".format, style.limits or ()))
    if grid.bars:
        low, high = fixed or ("the layer's smallest value, or zero,", "its largest, or zero")
        return f"bars from zero, each row from {low} to {high}"
    whose = "the layer's" if style.scope == "layer" else f"each {each}'s"
    low, high = fixed or (f"{whose} minimum", "its maximum")
    return f"from {low} to {high}{colours}" if palette else f"{low} is black, {high} {'is ' if fixed else ''}white"


def _of_heat_map(heat: HeatMap, style: Style) -> dict[str, str | None]:
    """Return the facts about a heat map."""
    colours = colormap_of(heat, style).replace("gray", "grey")
    if heat.over:
        colours = f"{colours}, {style.alpha:g} over the {'grey ' if style.gray_input else ''}input"
        if style.colorbar and style.alpha < 1:
            colours += f"; the bar is {'over black to white' if style.gray_input else 'without the input'}"
    enlarged = ", enlarged" if heat.pixels.shape != heat.raw.shape else ""
    if heat.limits is None:
        low, high = map(number, heat.ends or heat.extremes)
        ends = f"{low} to {high}{', the range of all images of the run' if heat.common else enlarged}"
        cut = "negative values are zero, then " if heat.extremes[0] < 0 else ""
        scaling = why_empty(heat) or f"{cut}{ends}: {colours}"
    elif isfinite(sum(heat.limits)):
        whose = "" if style.limits or heat.shows else enlarged
        if style.scope == "run" and not heat.shows:
            whose = ", the range of all images of the run"
        if heat.shows and style.norm in {"layer", "signed", "signed-layer"}:
            whose = ", the range of this picture alone"
        scaling = f"{number(heat.limits[0])} to {number(heat.limits[1])}{whose}: {colours}"
    else:
        scaling = f"no finite value: {colours}"
    some, takes = counted(heat.nonfinite, "value"), "takes" if heat.nonfinite == 1 else "take"
    bad = f"{some} {are(heat.nonfinite)} NaN or infinite and {takes} no part"
    if not heat.finite.all():
        places = f"{np.count_nonzero(~heat.finite)} of {heat.raw.size} places"
        bad += f"; {places}, where there is no other, are drawn as a checkerboard"
    method = "; ".join(filter(None, (heat.method, heat.note)))
    bad_fact = bad if heat.nonfinite else None
    return {"Method": method or None, "Range": value_range(heat), "Scaling": scaling, "Not finite": bad_fact}
