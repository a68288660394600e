"""Describe the results of an image: in words on pictures and in notices, in plain JSON values in `unit.json`."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

import numpy as np

from fmapviz.core.drawings import Bars, Grid, Histogram, Rgb

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from fmapviz.core.config import Style
    from fmapviz.core.drawings import HeatMap, Tiles
    from fmapviz.core.types import ImageResult, LayerResult, Target

    Shown = Grid | Bars | Histogram | Rgb

MOST_NAMED = 4  # empty cells, and layers with values that are not finite


@dataclass(frozen=True, slots=True, eq=False)
class Rendered:
    """A picture before its frame: numbers, colour bar and header.

    Attributes:
        pixels: uint8 `(H, W)` or `(H, W, 3)`.
        facts: What it shows, in words.
        tiles: Position of its tiles, if it has any.
        rows: Position of rows of tiles that belong together, if it has any.
        channels: Numbers of the tiles, or of those rows; None: counted from 0.
        colormap: Of the colour bar; None for grey.
        marks: Labels of the colour bar, by their height from 0 to 1; none: no colour bar.
        complete: Whether it needs no frame.
    """

    pixels: NDArray[np.uint8]
    facts: Mapping[str, str]
    tiles: Tiles | None = None
    rows: Tiles | None = None
    channels: Sequence[int] | None = None
    colormap: str | None = None
    marks: Sequence[tuple[float, str]] = ()
    complete: bool = False


def describe_layer(layer: LayerResult, content: Shown, style: Style) -> dict[str, str]:
    """Return the facts of a drawing of a layer's channels."""
    statistics = layer.statistics
    assert statistics is not None
    low = statistics.minimum
    facts = {
        "Layer": layer.layer,
        "Type": layer.type,
        "Shape": " x ".join(map(str, layer.shape)),
        **({} if layer.of == "output" else {"Shows": _SHOWS[layer.of]}),
        **({"Class": describe_target(layer.target)} if layer.target else {}),
        "Range": "no finite value" if low is None else f"{_number(low)} to {_number(statistics.maximum)}",
        "Mean": _number(statistics.mean),
        "Scaling": _describe_scaling(layer, content, style),
    }
    channels = content.channels if isinstance(content, Grid | Bars) else None
    if channels is not None:
        facts["Channels"] = _shorten([str(channel) for channel in channels])
    if statistics.constant:
        facts["Constant channels"] = _shorten([str(channel) for channel in statistics.constant])
    if statistics.nonfinite:
        facts["Not finite"] = f"{statistics.nonfinite} values are NaN or infinite, {_describe_nonfinite(content)}"
    if layer.samples > 1:
        facts["Samples"] = f"the layer saw {layer.samples} samples for this image; the first is drawn"
    return facts


def describe_target(target: Target) -> str:
    """Return the class and its score in one phrase."""
    number = f" (number {target.index})" if target.name else ""
    return f"{target.title}{number}, {target.label}, score {target.score:.4g}"


def describe_heat_map(layer: LayerResult, heat: HeatMap, style: Style) -> dict[str, str]:
    """Return the facts of a heat map."""
    chosen = " (chosen automatically)" if layer.automatic else ""
    named = {"Layer": f"{layer.layer}{chosen}", "Type": layer.type} if layer.layer else {}
    return {
        **named,
        "Shape": " x ".join(map(str, layer.shape)),
        **({"Class": describe_target(layer.target)} if layer.target else {}),
        "Range": value_range(heat),
        "Scaling": _scaling_of_heat_map(heat, style),
        **_nonfinite_in_heat_map(heat),
    }


def colormap_of(heat: HeatMap, style: Style) -> str:
    """Return the colour map that a heat map is drawn in."""
    if style.colormap:
        return style.colormap
    return "coolwarm" if heat.limits is not None and style.norm == "signed" else heat.colormap


def is_finite(heat: HeatMap) -> bool:
    """Return True if all raw values are finite."""
    return bool(np.isfinite(heat.raw).all())


def count_nonfinite(heat: HeatMap) -> int:
    """Count the positions without a finite value."""
    return heat.raw.size - int(np.isfinite(heat.raw).sum())


def why_empty(heat: HeatMap) -> str | None:
    """Return why the map of a class shows nothing; None if it shows something."""
    if not is_finite(heat):
        return "not finite: NaN and infinite values are drawn as zero"
    if not heat.empty:
        return None
    if not heat.raw.any():
        return "zero everywhere: so is the gradient of the class score, or what the layer returned"
    return "the same everywhere" if (heat.raw > 0).any() else "zero everywhere: nothing there speaks for the class"


def value_range(heat: HeatMap) -> str:
    """Return the smallest and largest raw value in words; of a reduction, of its finite values."""
    values = heat.raw if heat.limits is None else heat.raw[np.isfinite(heat.raw)]
    return f"{values.min():.4g} to {values.max():.4g}" if values.size else "no finite value"


def layer_records(result: ImageResult) -> list[dict[str, Any]]:
    """Describe each drawn or measured feature map."""
    records: dict[object, dict[str, Any]] = {}
    for layer in result.layers:
        if layer.described:
            key = (layer.of, layer.layer, layer.target and layer.target.label)
            records.setdefault(key, {}).update(_layer_record(layer))
    return list(records.values())


def heat_records(result: ImageResult) -> list[dict[str, Any]]:
    """Describe each heat map."""
    return [
        {
            "view": view,
            "layer": layer.layer or None,
            "type": layer.type or None,
            "shape": list(layer.shape),
            "automatic": layer.automatic,
            **(layer.target.record if layer.target else {}),
            **_range_record(heat),
        }
        for layer, view, heat in result.heat_maps
    ]


def empty_map_notices(result: ImageResult, *, sheets: Collection[str] = ()) -> list[str]:
    """Return notices about heat maps of a class that show nothing: a result that looks like a failure.

    Args:
        result: Everything found out about an image.
        sheets: The views whose maps are cells of one picture.
    """
    notices = []
    cells: dict[str, list[str]] = {view: [] for view in sheets}
    for layer, view, heat in result.heat_maps:
        if heat.limits is not None or not (reason := why_empty(heat)):
            continue
        if view in cells:
            if layer.target:
                cells[view].append(f"{layer.layer} for {layer.target.title}")
            continue
        of = f" of {layer.layer}" if layer.layer else ""
        name = f"{view}{of}" + (f" for {layer.target.title}" if layer.target else "")
        notices.append(f"{name} is {reason} (raw values {value_range(heat)})")
    for view, names in cells.items():
        if names:
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            notices.append(f"cells of the {view} with nothing to see: {', '.join(names[:MOST_NAMED])}{more}")
    if len(notices) > MOST_NAMED:
        notices[MOST_NAMED:] = [f"{len(notices) - MOST_NAMED} more such heat maps"]
    return notices


def overflow_notices(result: ImageResult) -> list[str]:
    """Return a notice about raw values that overflowed float16, if there are any."""
    layers = [(layer.layer, layer.values.overflows) for layer in result.layers if layer.values and layer.values.overflows]
    if not layers:
        return []
    named = f"{layers[0][0]}{' and others' if layers[1:] else ''}"
    count = sum(overflows for _, overflows in layers)
    return [f"{count} values of {named} are too large for float16, and infinite in what is kept"]


_SHOWS = {
    "input": "what goes into the layer",
    "gradient": "the gradient of the class's score at the layer's output",
    "input gradient": "the gradient of the class's score at the layer's input",
    "weights": "the layer's weights: filters, input channels, rows, columns",
}
_COMPONENTS_OF = {"image": "this image", "shared": "all images of the run"}


def _describe_nonfinite(content: Shown) -> str:
    if isinstance(content, Histogram):
        return "not counted"
    if isinstance(content, Rgb):
        positions = content.pixels.shape[0] * content.pixels.shape[1]
        return f"at {content.nonfinite} of {positions} places, drawn as a checkerboard"
    return "drawn as a checkerboard"


def _describe_scaling(layer: LayerResult, content: Shown, style: Style) -> str:
    if isinstance(content, Histogram):
        return "the share of values in each of equal parts of the range"
    if isinstance(content, Rgb):
        return f"the first three principal components, of {_COMPONENTS_OF[style.pca]}, are red, green and blue"
    if layer.of == "weights":
        return _scaling_of_weights(content, style, in_colour=layer.shape[1] == 3)
    if style.norm == "run" and content.limits:
        colours = f", in {style.palette}" if style.palette else ""
        return f"{_number(content.limits[0])} to {_number(content.limits[1])}, the range of all images of the run{colours}"
    if not isinstance(content, Bars):
        return _scaling_of_tiles(style)
    ends = "the smallest value, or zero, to the largest, or zero"
    return f"bars from zero, each row from {'{:g} to {:g}'.format(*style.limits) if style.limits else ends}"


def _scaling_of_weights(content: Grid | Bars, style: Style, *, in_colour: bool) -> str:
    if style.norm == "signed":
        colours = "grey" if in_colour else style.palette or "grey"
        return f"zero is in the middle, each filter's largest magnitude at an end, of {colours}"
    colours = "" if in_colour or not style.palette else f", in {style.palette}"
    if content.limits:
        return f"{_number(content.limits[0])} to {_number(content.limits[1])}, all filters alike{colours}"
    return f"each filter from its smallest weight to its largest{colours}"


def _scaling_of_tiles(style: Style) -> str:
    if style.norm == "signed":
        return f"zero is in the middle, each channel's largest magnitude at an end, of {style.palette or 'grey'}"
    whose = "the layer's" if style.norm == "layer" else "each channel's"
    low, high = (f"{limit:g}" for limit in style.limits) if style.limits else (f"{whose} minimum", "its maximum")
    if style.palette:
        return f"from {low} to {high}, in {style.palette}"
    return f"{low} is black, {high} {'is ' if style.limits else ''}white"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _shorten(words: list[str]) -> str:
    shown = ", ".join(words[:32])
    return f"{shown}, ... ({len(words)} in all)" if len(words) > 32 else shown


def _scaling_of_heat_map(heat: HeatMap, style: Style) -> str:
    colormap = colormap_of(heat, style).replace("gray", "grey")
    shown = f"{colormap}, {style.alpha:g} over the input" if heat.over else colormap
    if heat.limits is None:
        return why_empty(heat) or f"negative values are zero, then from the smallest to the largest: {shown}"
    low, high = heat.limits
    whose = ", the range of all images of the run" if style.norm == "run" else ""
    return f"{low:.4g} to {high:.4g}{whose}: {shown}" if isfinite(low + high) else f"no finite value: {shown}"


def _nonfinite_in_heat_map(heat: HeatMap) -> dict[str, str]:
    if not heat.nonfinite:
        return {}
    text = f"{heat.nonfinite} values are NaN or infinite and take no part"
    if positions := count_nonfinite(heat):
        text += f"; {positions} of {heat.raw.size} places, where there is no other, are drawn as a checkerboard"
    return {"Not finite": text}


def _layer_record(layer: LayerResult) -> dict[str, Any]:
    statistics = layer.statistics
    assert statistics is not None
    contents = [drawing.content for drawing in layer.drawings]
    channels = [content.channels for content in contents if isinstance(content, Grid | Bars)]
    nonfinite = [content.nonfinite for content in contents if isinstance(content, Rgb)]
    return {
        "index": layer.index,
        "name": layer.layer,
        "type": layer.type,
        "shape": list(layer.shape),
        "call": layer.call,
        "samples": layer.samples,
        "min": statistics.minimum,
        "max": statistics.maximum,
        "mean": statistics.mean,
        "dead_channels": list(statistics.constant),
        "nonfinite": statistics.nonfinite,
        **({"nonfinite_places": nonfinite[0]} if any(nonfinite) else {}),
        **({"channels": list(channels[0])} if channels and channels[0] is not None else {}),
        **({} if layer.of == "output" else {"of": layer.of}),
        **(layer.target.record if layer.target else {}),
    }


def _range_record(heat: HeatMap) -> dict[str, Any]:
    values = heat.raw if heat.limits is None else heat.raw[np.isfinite(heat.raw)]
    low, high = (float(values.min()), float(values.max())) if values.size else (nan, nan)
    ends = {"min": low if isfinite(low) else None, "max": high if isfinite(high) else None}
    if heat.limits is None:
        return ends
    return {**ends, "nonfinite": heat.nonfinite, "nonfinite_places": count_nonfinite(heat)}
