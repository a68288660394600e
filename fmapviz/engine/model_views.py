"""Draw what a network has learnt, independent of any image: once for a run, into a directory of its own."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np

from fmapviz.core.drawings import Drawing
from fmapviz.core.files import stage, writing_to
from fmapviz.core.types import ImageFile, ImageResult, LayerResult, Statistics, UnitImage
from fmapviz.engine.layer_results import measures_of
from fmapviz.inspection.reshape import NotAMapError
from fmapviz.render.grid import measure
from fmapviz.render.picture import make_picture
from fmapviz.runs.unit import commit, find_done, read_unit
from fmapviz.runs.verify import is_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import torch
    from torch import nn

    from fmapviz.core.config import RunInfo, Style
    from fmapviz.core.types import Layer
    from fmapviz.runs.storage.destination import Destination
    from fmapviz.views.base import ModelView
    from fmapviz.writers.base import OpenWriter


UNIT = "_model"
KIND = "model"


def draw_model(
    layers: Sequence[Layer],
    views: Mapping[str, ModelView],
    writers: Mapping[str, OpenWriter],
    info: RunInfo,
    run: Path,
    *,
    output: Destination,
    force: bool,
    repair: bool = False,
    sync: bool = False,
) -> tuple[int, dict[str, str]]:
    """Draw the weights of layers, unless that is done.

    Args:
        layers: In the order of their definition.
        views: What to draw of them.
        writers: Where to.
        info: The run's settings.
        run: The run directory.
        output: Where it is.
        force: Redraw them even if they are there.
        repair: Redraw them if a file of them is missing or changed.
        sync: Wait until all of it would survive a power failure.

    Returns:
        The number of pictures written, and the layers without any, with the reason.

    Raises:
        OutputError: The output could not be written.
    """
    known: dict[tuple[int, str], torch.Tensor] = {}
    undrawn: dict[str, str] = {}
    for index, layer in enumerate(layers):
        for view, module in views.items():
            try:
                known[index, view] = _read(module, layer.module, info.config.style)
            except NotAMapError as reason:
                undrawn[layer.name] = str(reason)
    file = _identify(known.values(), info)
    force = force or (repair and not is_whole(run, file, info.fingerprint, is_sound=output.is_intact))
    if not known or (not force and find_done(run, file, info.fingerprint)):
        return 0, undrawn
    digits = max(2, len(str(len(layers) - 1)))
    with writing_to(run), stage(run) as staging:
        with ExitStack() as stack:
            image = UnitImage(file, ImageResult((), (), undrawn), (), info)
            pictures = []
            for (index, view), values in known.items():
                drawing = Drawing(view, views[view].draw(values, info.config.style))
                result = _describe(layers[index], index, values, drawing)
                pictures.append(make_picture(result, drawing, info, digits=digits))
            for open_writer in writers.values():
                stack.enter_context(open_writer(staging)).add(image, pictures)
        record = {"kind": KIND, "run": info.fingerprint, "model": info.label, "weights": info.weights, "undrawn": undrawn}
        output.upload(commit(staging, run, file, record, force=force, sync=sync))
    return len(known), undrawn


def has_model(run: Path) -> bool:
    """Return True if a run holds pictures of its model."""
    return any((record := read_unit(place)) and record.get("kind") == KIND for place in run.glob(f"{UNIT}*"))


def _read(view: ModelView, module: nn.Module, style: Style) -> torch.Tensor:
    """Read a layer's weights in evaluation mode: in training mode, reading what is parametrized may change it."""
    training = {part: part.training for part in module.modules()}
    try:
        module.eval()
        return view.read(module, style)
    finally:
        for part, mode in training.items():
            part.training = mode


def _identify(weights: Iterable[torch.Tensor], info: RunInfo) -> ImageFile:
    """Identify weights by size and checksum, as size and time of modification identify an image."""
    size, checksum = 0, 0
    for weight in weights:
        data = np.ascontiguousarray(weight.cpu().numpy())
        size += data.nbytes
        checksum = google_crc32c.extend(checksum, data.tobytes())
    return ImageFile(f"model:{info.label}", UNIT, size, checksum)


def _describe(layer: Layer, index: int, weight: torch.Tensor, drawing: Drawing) -> LayerResult:
    finite = weight[weight.isfinite()]
    low, high, mean = (float(value) for value in (finite.min(), finite.max(), finite.mean())) if len(finite) else [None] * 3
    (measures,) = measures_of(measure(weight.reshape(1, len(weight), 1, -1), moments=True))
    return LayerResult(
        layer.name,
        layer.type,
        call=1,
        index=index,
        shape=tuple(weight.shape),
        of="weights",
        statistics=Statistics(low, high, mean, (), weight.numel() - len(finite)),
        measures=measures,
        drawings=(drawing,),
    )
