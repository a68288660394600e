"""Turn drawings into pictures: encode them, name them and say what they show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fmapviz import __version__
from fmapviz.framing import frame
from fmapviz.heat_pictures import draw_heats, header, name_and_title, said_of
from fmapviz.histograms import draw_histogram
from fmapviz.png import encode
from fmapviz.values import Picture

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from fmapviz.framing import Marks
    from fmapviz.options import Style
    from fmapviz.tiles import Tiles
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
    common = {**_provenance(info), "Image": file.unit}
    if drawn.predictions:
        common = {"Predicted": ", ".join(map(str, drawn.predictions)), **common}
    shape = f"{seen.shape[0]} x {seen.shape[1]} pixels"
    facts = {"Shows": "the input as the network saw it", "Shape": shape, **common}
    yield Picture("input", "input", encode(seen, facts), seen.shape[1], seen.shape[0], facts)
    indices = [drawing.index for drawing in drawn.drawings] + [heat.index for heat in drawn.heats]
    digits = max(2, len(str(max(indices, default=0))))
    for drawing in drawn.drawings:
        if drawing.histogram is None and not drawing.pixels.size:
            continue
        yield _picture_of(drawing, seen.shape, info, common, digits=digits)
    for heat in draw_heats(drawn, seen, file, info, digits=digits):
        height, width = heat.pixels.shape[:2]
        facts = {**heat.facts, **common}
        png = encode(heat.pixels, facts)
        yield Picture(heat.view, heat.name, png, width, height, facts, heat.title, heat.source)


def kernel_picture(drawing: Drawing, info: RunInfo, *, digits: int, rows: Tiles | None = None) -> Picture:
    """Encode a drawing of a layer's weights; of filters that are rows of tiles it has to be told where they lie."""
    return _picture_of(drawing, (0, 0), info, _provenance(info), digits=digits, rows=rows)


def layer_records(drawn: Drawn) -> list[dict[str, Any]]:
    """Describe each drawn feature map for `unit.json`, in plain JSON values."""
    records: dict[object, dict[str, Any]] = {}
    for drawing in drawn.drawings:
        statistics = drawing.statistics
        records.setdefault((drawing.of, drawing.layer, drawing.target and drawing.target.label), {}).update(
            {
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
                **({"nonfinite_places": drawing.broken} if drawing.broken else {}),
                **({} if drawing.channels is None else {"channels": list(drawing.channels)}),
                **({} if drawing.of == "output" else {"of": drawing.of}),
                **(drawing.target.record if drawing.target else {}),
            }
        )
    return list(records.values())


def _provenance(info: RunInfo) -> dict[str, str]:
    return {"Model": info.label, "Weights": info.weights, "Software": f"fmapviz {__version__}"}


def _picture_of(
    drawing: Drawing,
    seen: tuple[int, ...],
    info: RunInfo,
    common: Mapping[str, str],
    *,
    digits: int,
    rows: Tiles | None = None,
) -> Picture:
    name, title = name_and_title(f"{drawing.index:0{digits}d} {drawing.layer}", drawing.target)
    facts = _facts(drawing, info.style)
    pixels, tiles = _draw(drawing, seen, info, facts, rows=rows)
    height, width = pixels.shape[:2]
    facts |= common
    return Picture(drawing.view, name, encode(pixels, facts), width, height, facts, title, drawing, tiles)


def _draw(
    drawing: Drawing, seen: tuple[int, ...], info: RunInfo, facts: Mapping[str, str], *, rows: Tiles | None
) -> tuple[NDArray[np.uint8], Tiles | None]:
    """Give the pixels of a picture, framed, and where its tiles lie."""
    if drawing.histogram:
        title = f"{drawing.layer}  {drawing.type}  {facts['Shape']}"
        return draw_histogram(drawing.histogram, title=title, note=info.label), None
    if drawing.broken is not None:
        pixels = _enlarge(drawing.pixels, seen, info.style.scale)
        return frame(pixels, info.style, lines=header(facts, drawing.view, info))
    return frame(
        drawing.pixels,
        info.style,
        lines=header(facts, drawing.view, info),
        colormap=info.style.palette,
        marks=_marks(drawing, info.style),
        tiles=drawing.tiles,
        rows=rows,
        numbers=drawing.channels,
    )


def _is_in_colour(drawing: Drawing) -> bool:
    """Tell kernels that are drawn in red, green and blue."""
    return drawing.of == "weights" and drawing.shape[1] == 3


def _enlarge(pixels: NDArray[np.uint8], size: tuple[int, ...], scale: int) -> NDArray[np.uint8]:
    """Magnify what has a layer's resolution to the input's, and by a scale besides, each pixel a rectangle."""
    sides = [(have, scale * max(have, want)) for have, want in zip(pixels.shape[:2], size[:2], strict=True)]
    rows, columns = (np.arange(wanted) * have // wanted for have, wanted in sides)
    enlarged: NDArray[np.uint8] = pixels[rows[:, None], columns]
    return enlarged


def _marks(drawing: Drawing, style: Style) -> Marks:
    """Say what the ends of the scale, and its middle, stand for."""
    if drawing.vector or _is_in_colour(drawing):
        return ()  # the height of a bar tells, not its colour
    if drawing.limits:
        low, high = drawing.limits
        return (0.0, f"{low:.4g}"), (1.0, f"{high:.4g}")
    if style.norm == "signed":
        return (0.0, "-max"), (0.5, "0"), (1.0, "max")
    return (0.0, "min"), (1.0, "max")


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
        "Scaling": _scaled(drawing, style),
    }
    if drawing.channels is not None:
        facts["Channels"] = _shorten([str(channel) for channel in drawing.channels])
    if statistics.constant:
        facts["Constant channels"] = _shorten([str(channel) for channel in statistics.constant])
    if statistics.nonfinite:
        facts["Not finite"] = f"{statistics.nonfinite} values are NaN or infinite, {_whereabouts(drawing)}"
    if drawing.samples > 1:
        facts["Samples"] = f"the layer saw {drawing.samples} samples for this image; the first is drawn"
    return facts


def _whereabouts(drawing: Drawing) -> str:
    """Say what became of values that are not finite."""
    if drawing.histogram:
        return "not counted"
    if drawing.broken is not None:
        places = drawing.pixels.shape[0] * drawing.pixels.shape[1]
        return f"at {drawing.broken} of {places} places, drawn as a checkerboard"
    return "drawn as a checkerboard"


_SHOWS = {
    "input": "what goes into the layer",
    "gradient": "the gradient of the class's score at the layer's output",
    "input gradient": "the gradient of the class's score at the layer's input",
    "weights": "the layer's weights: filters, input channels, rows, columns",
}


def _scaled(drawing: Drawing, style: Style) -> str:
    if drawing.of == "weights":
        return _scaling_of_weights(drawing, style)
    if drawing.histogram:
        return "the share of values in each of equal parts of the range"
    if drawing.broken is not None:
        return f"the first three principal components, of {_WHOSE[style.pca]}, are red, green and blue"
    if style.norm == "run" and drawing.limits:
        colours = f", in {style.palette}" if style.palette else ""
        return f"{_number(drawing.limits[0])} to {_number(drawing.limits[1])}, the range of all images of the run{colours}"
    return _axis(style) if drawing.vector else _scaling(style)


def _scaling_of_weights(drawing: Drawing, style: Style) -> str:
    if style.norm == "signed":
        colours = "grey" if _is_in_colour(drawing) else style.palette or "grey"
        return f"zero is in the middle, each filter's largest magnitude at an end, of {colours}"
    colours = "" if _is_in_colour(drawing) or not style.palette else f", in {style.palette}"
    if drawing.limits:
        return f"{_number(drawing.limits[0])} to {_number(drawing.limits[1])}, all filters alike{colours}"
    return f"each filter from its smallest weight to its largest{colours}"


_WHOSE = {"image": "this image", "shared": "all images of the run"}


def _scaling(style: Style) -> str:
    if style.norm == "signed":
        return f"zero is in the middle, each channel's largest magnitude at an end, of {style.palette or 'grey'}"
    whose = "the layer's" if style.norm == "layer" else "each channel's"
    low, high = (f"{limit:g}" for limit in style.limits) if style.limits else (f"{whose} minimum", "its maximum")
    if style.palette:
        return f"from {low} to {high}, in {style.palette}"
    return f"{low} is black, {high} {'is ' if style.limits else ''}white"


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
