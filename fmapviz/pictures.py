"""Turn drawings into pictures: encode them, name them and say what they show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fmapviz import __version__
from fmapviz.heat_pictures import draw_heats, name_and_title, said_of
from fmapviz.png import encode
from fmapviz.values import Picture

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from fmapviz.options import Style
    from fmapviz.values import Drawing, Drawn, ImageFile, RunInfo


def make_pictures(drawn: Drawn, seen: NDArray[np.uint8], file: ImageFile, info: RunInfo) -> Iterator[Picture]:
    """Encode one image's drawings, one at a time.

    Args:
        drawn: What was drawn of it.
        seen: What the network was given, uint8 `(H, W)` or `(H, W, 3)`.
        file: Which image.
        info: The run's settings.

    Yields:
        The input as the network saw it, then one picture per drawing in the order of execution, then heat maps and sheets.
    """
    common = {"Model": info.label, "Weights": info.weights, "Image": file.unit, "Software": f"fmapviz {__version__}"}
    if drawn.predictions:
        common = {"Predicted": ", ".join(map(str, drawn.predictions)), **common}
    shape = f"{seen.shape[0]} x {seen.shape[1]} pixels"
    yield _picture("input", "input", seen, {"Shows": "the input as the network saw it", "Shape": shape, **common})
    indices = [drawing.index for drawing in drawn.drawings] + [heat.index for heat in drawn.heats]
    digits = max(2, len(str(max(indices, default=0))))
    for drawing in drawn.drawings:
        name, title = name_and_title(f"{drawing.index:0{digits}d} {drawing.layer}", drawing.target)
        yield _picture(drawing.view, name, drawing.pixels, {**_facts(drawing, info.style), **common}, title)
    for heat in draw_heats(drawn, seen, file, info, digits=digits):
        yield _picture(heat.view, heat.name, heat.pixels, {**heat.facts, **common}, heat.title)


def layer_records(drawn: Drawn) -> list[dict[str, Any]]:
    """Describe each drawn feature map for `unit.json`, in plain JSON values."""
    records = {}
    for drawing in drawn.drawings:
        statistics = drawing.statistics
        records[drawing.of, drawing.layer, drawing.target and drawing.target.label] = {
            "index": drawing.index,
            "name": drawing.layer,
            "type": drawing.type,
            "shape": list(drawing.shape),
            "call": drawing.call,
            "samples": drawing.samples,
            "min": statistics.minimum,
            "max": statistics.maximum,
            "mean": statistics.mean,
            "dead_channels": list(statistics.constant),
            "nonfinite": statistics.nonfinite,
            **({} if drawing.channels is None else {"channels": list(drawing.channels)}),
            **({} if drawing.of == "output" else {"of": drawing.of}),
            **(drawing.target.record if drawing.target else {}),
        }
    return list(records.values())


def _picture(group: str, name: str, pixels: NDArray[np.uint8], facts: dict[str, str], title: str = "") -> Picture:
    height, width = pixels.shape[:2]
    return Picture(group, name, encode(pixels, facts), width, height, facts, title)


def _facts(drawing: Drawing, style: Style) -> dict[str, str]:
    statistics = drawing.statistics
    facts = {
        "Layer": drawing.layer,
        "Type": drawing.type,
        "Shape": " x ".join(map(str, drawing.shape)),
        **({} if drawing.of == "output" else {"Shows": _SHOWS[drawing.of]}),
        **({"Class": said_of(drawing.target)} if drawing.target else {}),
        "Range": _range(statistics.minimum, statistics.maximum),
        "Mean": _number(statistics.mean),
        "Scaling": _axis(style) if len(drawing.shape) == 1 else _scaling(style),
    }
    if drawing.channels is not None:
        facts["Channels"] = _shorten([str(channel) for channel in drawing.channels])
    if statistics.constant:
        facts["Constant channels"] = _shorten([str(channel) for channel in statistics.constant])
    if statistics.nonfinite:
        facts["Not finite"] = f"{statistics.nonfinite} values are NaN or infinite, drawn as a checkerboard"
    if drawing.samples > 1:
        facts["Samples"] = f"the layer saw {drawing.samples} samples for this image; the first is drawn"
    return facts


_SHOWS = {
    "input": "what goes into the layer",
    "gradient": "the gradient of the class's score at the layer's output",
    "input gradient": "the gradient of the class's score at the layer's input",
}


def _scaling(style: Style) -> str:
    if style.limits:
        low, high = style.limits
        return f"{low:g} is black, {high:g} is white"
    if style.norm == "signed":
        return f"zero is in the middle, each channel's largest magnitude at an end, of {style.palette or 'grey'}"
    if style.norm == "layer":
        return "the layer's minimum is black, its maximum white"
    return "each channel's minimum is black, its maximum white"


def _axis(style: Style) -> str:
    if style.limits:
        low, high = style.limits
        return f"bars from zero, each row from {low:g} to {high:g}"
    return "bars from zero, each row from the smallest value, or zero, to the largest, or zero"


def _range(low: float | None, high: float | None) -> str:
    return "no finite value" if low is None else f"{_number(low)} to {_number(high)}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _shorten(words: list[str]) -> str:
    shown = ", ".join(words[:32])
    return f"{shown}, ... ({len(words)} in all)" if len(words) > 32 else shown
