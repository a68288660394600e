"""Draw what a network has learnt, whatever image it sees: once for a run, into a directory of its own."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np

from fmapviz.pictures import kernel_picture
from fmapviz.runs import writing_to
from fmapviz.sketches import measures_of
from fmapviz.staging import stage
from fmapviz.tiling import measure
from fmapviz.units import commit, find_done, read_unit
from fmapviz.values import Drawing, Drawn, ImageFile, Statistics, Unit
from fmapviz.verification import is_whole
from fmapviz.views.kernels import choose, rows_of, tiles_of, weight_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import torch
    from torch import nn

    from fmapviz.options import Style
    from fmapviz.outputs import Output
    from fmapviz.plan import DrawKernels
    from fmapviz.values import Layer, Picture, RunInfo

    OpenWriter = Callable[[Path, Unit], AbstractContextManager[Callable[[Picture], None]]]

UNIT = "_model"
KIND = "model"


def draw_model(
    layers: Sequence[Layer],
    views: Mapping[str, DrawKernels],
    writers: Mapping[str, OpenWriter],
    info: RunInfo,
    run: Path,
    *,
    output: Output,
    force: bool,
    repair: bool = False,
    sync: bool = False,
) -> tuple[int, dict[str, str]]:
    """Draw the weights of layers, unless that is done.

    Args:
        layers: Which ones, in the order of their definition.
        views: What to draw of them.
        writers: Where to.
        info: The run's settings.
        run: The run directory.
        output: Where it is.
        force: Draw them again even if they are there.
        repair: Do so if a file of them is missing or changed.
        sync: Wait until all of it would survive a power failure.

    Returns:
        How many pictures were written, and which layers have no kernels, with the reason.

    Raises:
        OutputError: The output could not be written.
    """
    weights = {layer.name: _read(layer.module) for layer in layers}
    known = {name: weight for name, weight in weights.items() if weight is not None}
    undrawn = {name: "has no kernels" for name, weight in weights.items() if weight is None}
    for name, weight in list(known.items()):
        chosen = choose(weight, info.style)
        if chosen is not None and not len(chosen):
            undrawn[name] = f"has {len(weight)} filters, none of those chosen"
            del known[name]
    file = _identify(known, info)
    force = force or (repair and not is_whole(run, file, info.fingerprint, is_sound=output.is_sound))
    if not known or (not force and find_done(run, file, info.fingerprint)):
        return 0, undrawn
    drawings = [
        _describe(layer, index, known[layer.name], view=view, draw=draw, style=info.style)
        for index, layer in enumerate(layers)
        if layer.name in known
        for view, draw in views.items()
    ]
    digits = max(2, len(str(len(layers) - 1)))
    with writing_to(run), stage(run) as staging:
        with ExitStack() as stack:
            unit = Unit(file, Drawn((), (), undrawn), (), info)
            writes = [stack.enter_context(open_writer(staging, unit)) for open_writer in writers.values()]
            for drawing in drawings:
                picture = kernel_picture(drawing, info, digits=digits, rows=rows_of(drawing.shape, info.style))
                for write in writes:
                    write(picture)
        record = {"kind": KIND, "run": info.fingerprint, "model": info.label, "weights": info.weights, "undrawn": undrawn}
        output.deliver(commit(staging, run, file, record, force=force, sync=sync))
    return len(drawings), undrawn


def has_model(run: Path) -> bool:
    """Tell whether a run holds pictures of its model."""
    return any((record := read_unit(place)) and record.get("kind") == KIND for place in run.glob(f"{UNIT}*"))


def _read(module: nn.Module) -> torch.Tensor | None:
    """Read a layer's kernels as it has them for good: in training mode, reading what is parametrized may change it."""
    training = {part: part.training for part in module.modules()}
    try:
        module.eval()
        return weight_of(module)
    finally:
        for part, mode in training.items():
            part.training = mode


def _identify(weights: Mapping[str, torch.Tensor], info: RunInfo) -> ImageFile:
    """Tell the weights from others, as size and time of modification tell an image from others."""
    size, checksum = 0, 0
    for weight in weights.values():
        data = np.ascontiguousarray(weight.cpu().numpy())
        size += data.nbytes
        checksum = google_crc32c.extend(checksum, data.tobytes())
    return ImageFile(f"model:{info.label}", UNIT, size, checksum)


def _describe(layer: Layer, index: int, weight: torch.Tensor, *, view: str, draw: DrawKernels, style: Style) -> Drawing:
    chosen = choose(weight, style)
    finite = weight[weight.isfinite()]
    low, high, mean = (float(value) for value in (finite.min(), finite.max(), finite.mean())) if len(finite) else [None] * 3
    limits = style.limits
    if style.norm in {"layer", "run"}:
        shown = weight if chosen is None else weight[chosen]
        known = shown[shown.isfinite()]
        limits = (float(known.min()), float(known.max())) if len(known) else None
    (measures,) = measures_of(measure(weight.reshape(1, len(weight), 1, -1), moments=True))
    return Drawing(
        view=view,
        layer=layer.name,
        type=layer.type,
        call=1,
        index=index,
        shape=tuple(weight.shape),
        pixels=draw(weight, style).cpu().numpy(),
        statistics=Statistics(low, high, mean, (), weight.numel() - len(finite)),
        of="weights",
        tiles=tiles_of(tuple(weight.shape), style),
        channels=None if chosen is None else tuple(chosen.tolist()),
        measures=measures,
        limits=limits,
    )
