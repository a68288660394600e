"""Draw the weights of a network once for a run, into a unit of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c
import numpy as np

from fmapviz.data import Drawing, LayerResult, Statistics
from fmapviz.draw.channel_choice import describe_left_out
from fmapviz.draw.grid import measure
from fmapviz.draw.measures import measures_of
from fmapviz.draw.picture import make_picture
from fmapviz.events import Notice
from fmapviz.observe.hooks import evaluating
from fmapviz.observe.reshape import NotAMapError
from fmapviz.run.units import write_unit
from fmapviz.store.unit import find_done, read_unit
from fmapviz.store.unit_key import UnitKey, key_of
from fmapviz.views.base import NoWeightsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    import torch

    from fmapviz.config import RunInfo
    from fmapviz.data import Layer, Picture
    from fmapviz.events import Event
    from fmapviz.run.session import Session


UNIT = "_model"
KIND = "model"


def draw_model(session: Session, on_event: Callable[[Event], object] = bool) -> tuple[int, dict[str, str]]:
    """Draw the weights of a session's layers, unless that is done.

    Args:
        session: Its layers and views.
        on_event: Called with a `Notice` about chosen channels that do not exist.

    Returns:
        The number of pictures written, and the layers without any, with the reason.

    Raises:
        OutputError: The output could not be written.
    """
    info, config, run = session.info, session.config, session.directory
    known, undrawn = _read_weights(session)
    key = _make_key(known.values(), info)
    is_intact = session.output.is_intact if config.repair else None
    if not known or (not config.force and find_done(run, key, info.fingerprint, is_intact=is_intact)):
        return 0, undrawn
    if left_out := describe_left_out(
        config.style, {session.layers[index].name: len(weight) for (index, _), weight in known.items()}
    ):
        on_event(Notice(left_out))
    more = {"undrawn": undrawn}
    write_unit(session, key, _draw(known, session, info), more=more, force=config.force or config.repair)
    return len(known), undrawn


def draw_weights(session: Session, info: RunInfo) -> tuple[list[Picture], dict[str, str]]:
    """Draw the weights of a session's layers as they are now.

    Args:
        session: Its layers and views.
        info: The identity for the facts of pictures.

    Returns:
        The pictures, and the layers without any, with the reason.
    """
    known, undrawn = _read_weights(session)
    return _draw(known, session, info), undrawn


def _read_weights(session: Session) -> tuple[dict[tuple[int, str], torch.Tensor], dict[str, str]]:
    """Return the weights by the layer's index and the view, and the layers without any, with the reason."""
    known: dict[tuple[int, str], torch.Tensor] = {}
    undrawn: dict[str, str] = {}
    chosen = session.request.types or session.request.layers
    for index, layer in enumerate(session.layers):
        for view, module in session.plan.of_model.items():
            try:
                with evaluating(layer.module):  # in training mode, reading a parametrized weight may change it
                    known[index, view] = module.read(layer.module, session.config.style)
            except NotAMapError as reason:
                # Blocks of a transformer are there for other views.
                if chosen or not isinstance(reason, NoWeightsError) or not any(layer.module.children()):
                    undrawn[layer.name] = str(reason)
    return known, undrawn


def _draw(known: Mapping[tuple[int, str], torch.Tensor], session: Session, info: RunInfo) -> list[Picture]:
    digits = max(2, len(str(len(session.layers) - 1)))
    pictures = []
    for (index, view), values in known.items():
        drawing = Drawing(view, session.plan.of_model[view].draw(values, session.config.style))
        result = _describe(session.layers[index], index, values, drawing)
        pictures.append(make_picture(result, drawing, info, digits=digits))
    return pictures


def has_model(run: Path) -> bool:
    """Return True if a run holds pictures of its model."""
    return any((record := read_unit(unit)) and key_of(record).kind == KIND for unit in run.glob(f"{UNIT}*"))


def _make_key(weights: Iterable[torch.Tensor], info: RunInfo) -> UnitKey:
    size, checksum = 0, 0
    for weight in weights:
        data = np.ascontiguousarray(weight.cpu().numpy())
        size += data.nbytes
        checksum = google_crc32c.extend(checksum, data.tobytes())
    return UnitKey(KIND, f"model:{info.label}", UNIT, {"size": size, "crc32c": checksum})


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
