"""The pictures of a series of networks, in one event file: each step of an image is a step of its tags."""

from __future__ import annotations

import io
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from PIL import Image
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

from fmapviz.core import files, registry
from fmapviz.core.file_names import EVENTS, event_tag
from fmapviz.core.members import load
from fmapviz.formats.tensorboard import event_file
from fmapviz.formats.tensorboard.event_file import Record
from fmapviz.store.aggregates import base
from fmapviz.store.unit import read_unit
from fmapviz.store.unit_key import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

FILE = f"{EVENTS}fmapviz"
_GRAY, _RGB = 1, 3  # colour spaces of a summary


def write_series(run: Path, units: Sequence[Path]) -> None:
    """Rewrite the event file of a run: tags are `VIEW/NN LAYER/IMAGE`, and those of numbers `sqnr/NN LAYER`.

    Args:
        run: The run directory.
        units: Those of all steps; pictures are written one after the other, so memory does not grow with their number.

    Raises:
        OSError: It could not be written.
    """
    with files.staging_folder(run) as staging:
        with event_file.create(staging / FILE) as append:
            for unit in units:
                for step, value in _pictures(unit):
                    _append(append, step, value)
            for step, tag, number in _scalars(units):
                _append(append, step, Summary.Value(tag=event_tag(tag), simple_value=number))
        files.replace(staging / FILE, run / FILE)


def _scalars(units: Sequence[Path]) -> Iterator[tuple[int, str, float]]:
    """Yield the step, the tag and the value of each number of the aggregates."""
    for aggregate in registry.aggregates().values():
        if aggregate.scalars:
            summary, _ = base.gather(cast("base.Aggregate[Any]", import_module(aggregate.module)), units)
            yield from load(aggregate.scalars)(summary)


def _pictures(unit: Path) -> Iterator[tuple[int, Summary.Value]]:
    """Yield the step and the value of each picture of a unit; an input only of the first step that has it."""
    record: dict[str, Any] | None = read_unit(unit)
    if record is None or (step := key_of(record).step) is None:
        return
    for entry in record["files"]:
        name = str(entry["name"])
        if not name.endswith(".png"):
            continue
        png = files.read(unit / name)
        with Image.open(io.BytesIO(png)) as image:
            facts, size, mode = dict(getattr(image, "text", {})), image.size, image.mode
        view = name.removesuffix(".png").rpartition(".")[2]
        layer = f"{name.partition('_')[0]} {facts['Layer']}" if "Layer" in facts else ""
        tag = event_tag("/".join(filter(None, (view, layer, key_of(record).series))))
        shown = Summary.Image(
            width=size[0], height=size[1], colorspace=_GRAY if mode == "L" else _RGB, encoded_image_string=png
        )
        yield step, Summary.Value(tag=tag, image=shown)


def _append(append: Callable[[Record], int], step: int, value: Summary.Value) -> None:
    event = Event(wall_time=time.time(), step=step, summary=Summary(value=[value]))
    append(Record(event.SerializeToString()))
