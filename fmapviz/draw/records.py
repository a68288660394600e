"""Describe the feature maps and heat maps of an image for `unit.json`, and make notices about them."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from fmapviz.core.drawings import Grid, HeatMap, Histogram
from fmapviz.core.words import are, counted
from fmapviz.data import EmptyMaps
from fmapviz.draw.channel_choice import describe_left_out
from fmapviz.draw.facts import first_of, value_range, why_empty
from fmapviz.draw.text import NUMBERED, has_glyphs
from fmapviz.errors import first_few

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from fmapviz.config import Style
    from fmapviz.data import ImageResult, LayerResult


def layer_records(result: ImageResult) -> list[dict[str, Any]]:
    """Describe each drawn or measured feature map."""
    records: dict[object, dict[str, Any]] = {}
    for layer in result.layers:
        statistics = layer.statistics
        if statistics is None:
            continue
        contents = [drawing.content for drawing in layer.drawings]
        channels = next((each.channels for each in contents if isinstance(each, Grid)), None)
        record = records.setdefault((layer.of, layer.layer, layer.target and layer.target.label), {})
        record |= {
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
            **{name: fact for each in layer.drawings if each.custom for name, fact in each.custom.record.items()},
            **({} if channels is None else {"channels": list(channels)}),
            **({} if layer.of == "output" else {"of": layer.of}),
            **(layer.target.record if layer.target else {}),
        }
    return list(records.values())


def heat_records(result: ImageResult) -> list[dict[str, Any]]:
    """Describe each heat map."""
    records = []
    for layer, view, heat in result.heat_maps:
        low, high = (value if isfinite(value) else None for value in heat.extremes)
        record = {
            "view": view,
            "layer": layer.layer or None,
            "type": layer.type or None,
            "shape": list(layer.shape),
            "automatic": layer.automatic,
            **(layer.target.record if layer.target else {}),
            "min": low,
            "max": high,
            **({"note": heat.note} if heat.note else {}),
        }
        if heat.limits is not None:
            record |= {"nonfinite": heat.nonfinite, "nonfinite_places": heat.raw.size - int(heat.finite.sum())}
        records.append(record)
    return records


def notices_of(result: ImageResult, empty_maps: Sequence[EmptyMaps]) -> list[str]:
    """Return notices about pictures that show nothing, and raw values that overflowed float16."""
    return [*summarize_empty(empty_maps), *_overflow_notices(result)]


def find_empty_maps(result: ImageResult, *, sheets: Collection[str] = ()) -> list[EmptyMaps]:
    """Return a notice about each picture that shows nothing, and one about all such cells of a sheet.

    Args:
        result: The results of an image.
        sheets: The views whose maps are cells of one picture.
    """
    notices = [
        EmptyMaps(drawing.view, layer, f"{drawing.view}{f' of {layer.layer} is' if layer.layer else ':'} {reason}")
        for layer in result.layers
        for drawing in layer.drawings
        if (reason := drawing.custom and drawing.custom.why_empty)
    ]
    cells: dict[str, list[str]] = {view: [] for view in sheets}
    for layer, view, heat in result.heat_maps:
        is_reduction = heat.limits is not None and not layer.target
        if is_reduction and not heat.nonfinite and not heat.finite.any():
            notices.append(EmptyMaps(view, layer, f"{view} of {layer.layer} has no finite value, and the layer has"))
        if is_reduction or not (reason := why_empty(heat)):
            continue
        of_class = f" for {layer.target.title}" if layer.target else ""
        if view in cells:
            cells[view].append(f"{layer.layer}{of_class}")
        else:
            of_layer = f" of {layer.layer}" if layer.layer else ""
            notices.append(
                EmptyMaps(view, layer, f"{view}{of_layer}{of_class} is {reason} (raw values {value_range(heat)})")
            )
    for view, names in cells.items():
        if names:
            notices.append(EmptyMaps(view, None, f"cells of the {view} with nothing to see: {first_few(names)}"))
    return notices


def summarize_empty(notices: Sequence[EmptyMaps]) -> list[str]:
    """Return the first notices about pictures that show nothing, and how many more there are."""
    return first_of([each.text for each in notices], "such pictures")


def remark_on_channels(layers: Iterable[LayerResult], style: Style) -> str:
    """Return in words which of the drawn layers lack chosen channels; empty if none does."""
    contents = [(layer.layer, drawing.content) for layer in layers for drawing in layer.drawings if drawing.content]
    totals = ((name, 0 if isinstance(each, Histogram | HeatMap) else each.total) for name, each in contents)
    counts = {name: total for name, total in totals if total}
    return describe_left_out(style, counts)


def remark_on_names(layers: Iterable[LayerResult]) -> str:
    """Return in words that pictures have the index of a class in place of its name; empty if they have its name."""
    return "" if all(layer.target is None or has_glyphs(layer.target.name) for layer in layers) else NUMBERED


def _overflow_notices(result: ImageResult) -> list[str]:
    layers = [(layer.layer, layer.values.overflows) for layer in result.layers if layer.values and layer.values.overflows]
    if not layers:
        return []
    named = f"{layers[0][0]}{' and others' if layers[1:] else ''}"
    overflows = sum(each for _, each in layers)
    return [f"{counted(overflows, 'value')} of {named} {are(overflows)} too large for float16, and infinite in what is kept"]
