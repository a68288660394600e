"""Describe in words what a picture shows: its facts are its header and the text of its PNG file."""

from __future__ import annotations

from math import isfinite, isnan
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.core.drawings import Grid, HeatMap, Histogram, Labels, Matches, Panels, Rgb
from fmapviz.core.words import are, counted
from fmapviz.draw.heatmap import colormap_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmapviz.config import Style
    from fmapviz.core.drawings import Content
    from fmapviz.types import LayerResult

MOST_NAMED = 4  # empty cells, and layers with values that are not finite
_MOST_NUMBERS = 32
_SHOWS = {
    "input": "what goes into the layer",
    "gradient": "the gradient of the class's score at the layer's output",
    "input gradient": "the gradient of the class's score that the layer passes back to its input",
    "attention": "the attention weights of each head, to each patch",
    "weights": "the layer's weights: filters, input channels, rows, columns",
}
_SIDE = "the side of the first component with fewer places at the border; the others are black"
_COMPONENTS_OF = {"image": "this image", "shared": "all images of the run"}


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
    """Return why the map of a class shows nothing; None if it shows something."""
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


def _of_content(layer: LayerResult, content: Content, style: Style) -> dict[str, str | None]:
    if isinstance(content, HeatMap):
        return _of_heat_map(content, style)
    return _of_panels(layer, content) if isinstance(content, Panels) else _of_channels(layer, content, style)


def _of_panels(layer: LayerResult, panels: Panels) -> dict[str, str | None]:
    """Return the facts about a layer in two networks."""
    numbers = layer.difference.numbers if layer.difference else {}
    said = {name: number(value) for name, value in numbers.items()}
    scaling = "each map from its minimum to its maximum"
    if isfinite(panels.largest):
        scaling = "A and B alike, each channel from its minimum to its maximum"
        if panels.limits:
            scaling = f"A and B alike, {number(panels.limits[0])} to {number(panels.limits[1])}"
        ends = f"from blue to red, {number(-panels.largest)} to {number(panels.largest)}, zero in the middle"
        scaling += f"; B - A {ends if panels.largest else 'is 0 everywhere'}"
    bad = numbers.get("nonfinite")
    return {
        **{caption[0]: caption[3:] for caption in panels.captions if caption[1:3] == ": "},
        "Difference": f"largest {said['max_abs']}, RMS {said['rms']}" if numbers else None,
        "SQNR": f"{said['sqnr']} dB" if numbers else None,
        "Cosine": said.get("cosine"),
        "Scaling": scaling,
        "Channels": _list_numbers(panels.channels),
        "Not finite": f"{bad:.0f} positions take no part, and are drawn as a checkerboard" if bad else None,
    }


def _of_channels(
    layer: LayerResult, content: Grid | Histogram | Rgb | Labels | Matches, style: Style
) -> dict[str, str | None]:
    """Return the facts about all channels of a layer."""
    statistics = layer.statistics
    assert statistics is not None
    known, bad = statistics.minimum is not None, statistics.nonfinite
    more: dict[str, str | None] = {}
    if isinstance(content, Histogram):
        scaling, shown = "the share of values in each of equal parts of the range", "not counted"
    elif isinstance(content, Rgb):
        places = content.pixels[..., 0].size
        of_what = "" if content.foreground is None else " of the foreground"
        scaling = f"the first three principal components{of_what}, of {_COMPONENTS_OF[style.pca]}, are red, green and blue"
        scaling += f", each from 2.5 deviations below its mean to 2.5 above{_sampled(content.sampled)}"
        shown = f"at {content.nonfinite} of {places} places, drawn as a checkerboard"
        more["Foreground"] = None if content.foreground is None else f"{content.foreground} of {places} places: {_SIDE}"
    elif isinstance(content, Labels):
        scaling, shown = _scaling_of_labels(content), "and their places drawn as a checkerboard"
        more["Clusters"] = _shares(content)
    elif isinstance(content, Matches):
        scaling, shown = _scaling_of_matches(content, style), "and their places match nothing"
        more["Matches"] = "; ".join(f"{number}: {pair.cosine:.3f}" for number, pair in enumerate(content.pairs, 1)) or "none"
    else:
        scaling, shown = _scaling_of_grid(layer, content, style), "drawn as a checkerboard"
    shown_channels = content.channels if isinstance(content, Grid) else None
    samples = f"the layer saw {counted(layer.samples, 'sample')} for this image; the first is drawn"
    low, high = number(statistics.minimum), number(statistics.maximum)
    tiles = "heads" if layer.of == "attention" else "channels"
    whose = f", of all {tiles}" if shown_channels else ""
    of_values = {"Range": f"{low} to {high}{whose}" if known else "no finite value", "Mean": number(statistics.mean)}
    return {
        # Clusters, components and matches have directions of vectors, not values.
        **(of_values if isinstance(content, Grid | Histogram) else {}),
        "Scaling": scaling,
        **more,
        tiles.capitalize(): _list_numbers(shown_channels),
        "Dead channels": _list_numbers(statistics.constant),
        "Not finite": f"{counted(bad, 'value')} {are(bad)} NaN or infinite, {shown}" if bad else None,
        "Samples": samples if layer.samples > 1 else None,
    }


def _scaling_of_labels(labels: Labels) -> str:
    of_what = "clusters of all images of the run: k-means of vectors of length one"
    return f"each colour is one of {labels.count} {of_what}{_sampled(labels.sampled)}"


def _sampled(part: tuple[int, int] | None) -> str:
    return f", found of a random sample, {part[0]} of {part[1]} positions" if part else ""


def _shares(labels: Labels) -> str:
    """Return which part of the image each cluster is."""
    counts = np.bincount(labels.numbers[labels.numbers >= 0], minlength=labels.count)
    return ", ".join(
        f"{number}: {count / labels.numbers.size:.1%}".replace("%", " %") for number, count in enumerate(counts)
    )


def _scaling_of_matches(matches: Matches, style: Style) -> str:
    """Return what the lines of a picture of matches mean."""
    start = style.start
    if start and start.at:
        mutual = "the best match of each other" if matches.pairs and matches.pairs[0].mutual else "not the other way round"
        return f"the best match, by cosine, of {start}, {mutual}"
    count = np.count_nonzero(matches.mutual)
    return f"the best {len(matches.pairs)} of {count} mutual nearest neighbours, by cosine, with {matches.image} on the left"


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
    return {"Range": value_range(heat), "Scaling": scaling, "Not finite": bad if heat.nonfinite else None}


def _list_numbers(numbers: Sequence[int] | None) -> str | None:
    if not numbers:
        return None
    shown = ", ".join(map(str, numbers[:_MOST_NUMBERS]))
    return f"{shown}, ... ({len(numbers)} in all)" if len(numbers) > _MOST_NUMBERS else shown
