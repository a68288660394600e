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
from fmapviz.engine.session import needs_of
from fmapviz.inspection.hooks import evaluating
from fmapviz.inspection.reshape import NotAMapError
from fmapviz.render.grid import measure
from fmapviz.render.picture import make_picture
from fmapviz.runs.unit import commit, find_done, read_unit

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import torch

    from fmapviz.core.config import RunInfo
    from fmapviz.core.types import Layer
    from fmapviz.engine.session import Session


UNIT = "_model"
KIND = "model"


def draw_model(session: Session) -> tuple[int, dict[str, str]]:
    """Draw the weights of a session's layers, unless that is done.

    Returns:
        The number of pictures written, and the layers without any, with the reason.

    Raises:
        OutputError: The output could not be written.
    """
    info, config, run, views = session.info, session.config, session.directory, session.plan.of_model
    known: dict[tuple[int, str], torch.Tensor] = {}
    undrawn: dict[str, str] = {}
    chosen = session.request.types or session.request.layers
    for index, layer in enumerate(session.layers):
        for view, module in views.items():
            try:
                with evaluating(layer.module):  # in training mode, reading what is parametrized may change it
                    known[index, view] = module.read(layer.module, config.style)
            except NotAMapError as reason:
                if chosen or not any(layer.module.children()):  # blocks of a transformer are there for other views
                    undrawn[layer.name] = str(reason)
    file = _identify(known.values(), info)
    is_intact = session.output.is_intact if config.repair else None
    if not known or (not config.force and find_done(run, file, info.fingerprint, is_intact=is_intact)):
        return 0, undrawn
    digits = max(2, len(str(len(session.layers) - 1)))
    with writing_to(run), stage(run) as staging:
        with ExitStack() as stack:
            image = UnitImage(file, ImageResult((), (), undrawn), (), info)
            pictures = []
            for (index, view), values in known.items():
                drawing = Drawing(view, views[view].draw(values, config.style))
                result = _describe(session.layers[index], index, values, drawing)
                pictures.append(make_picture(result, drawing, info, digits=digits))
            for form, open_writer in session.writers.items():
                if "pictures" in needs_of(form):
                    stack.enter_context(open_writer(staging)).add(image, pictures)
        record = {"kind": KIND, "run": info.fingerprint, "model": info.label, "weights": info.weights, "undrawn": undrawn}
        force = config.force or config.repair
        session.output.upload(commit(staging, run, file, record, force=force, sync=config.fsync))
    return len(known), undrawn


def has_model(run: Path) -> bool:
    """Return True if a run holds pictures of its model."""
    return any((record := read_unit(place)) and record.get("kind") == KIND for place in run.glob(f"{UNIT}*"))


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
