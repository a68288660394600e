"""The TensorBoard events of a picture."""

from __future__ import annotations

import re
import struct
import time
from functools import lru_cache
from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_BLOB_SEQUENCE, DATA_CLASS_TENSOR, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_DOUBLE, DT_STRING
from tensorboard.plugins.histogram import metadata as histograms
from tensorboard.plugins.image import metadata as images

from fmapviz.core.drawings import Histogram
from fmapviz.core.file_names import event_tag
from fmapviz.draw.histogram import bin_edges
from fmapviz.errors import printable
from fmapviz.formats.tensorboard import wire
from fmapviz.formats.tensorboard.event_file import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fmapviz.data import ImageResult, Picture


# Keys of fields, and the constant part of each event.
_WALL_TIME = wire.key(Event, "wall_time", wire_type=wire.DOUBLE)
_STEP = wire.key(Event, "step", wire_type=wire.NUMBER)
_SUMMARY, _VALUE = wire.key(Event, "summary"), wire.key(Summary, "value")
_TAG, _TENSOR, _METADATA = (wire.key(Summary.Value, name) for name in ("tag", "tensor", "metadata"))
_STRING = wire.key(TensorProto, "string_val")
_TITLE, _DESCRIPTION = wire.key(SummaryMetadata, "display_name"), wire.key(SummaryMetadata, "summary_description")
_THREE_STRINGS = TensorProto(dtype=DT_STRING, tensor_shape={"dim": [{"size": 3}]}).SerializeToString()
_IMAGES = (
    images.create_summary_metadata("", "").SerializeToString(),
    SummaryMetadata(data_class=DATA_CLASS_BLOB_SEQUENCE).SerializeToString(),
)
_HISTOGRAMS = (
    histograms.create_summary_metadata("", "").SerializeToString(),
    SummaryMetadata(data_class=DATA_CLASS_TENSOR).SerializeToString(),
)


def summaries(picture: Picture, facts: Mapping[str, str], *, step: int = 0) -> list[Record]:
    """Return the event of a picture, and one of its values if it is a histogram.

    They are the tensor-style summaries of `tensorboard.plugins.image` and `tensorboard.plugins.histogram`: unlike those of
    `SummaryWriter.add_image` they have a name and a description. Each is a serialized `Event`.

    Args:
        picture: The picture.
        facts: Those of its facts that the card's (i) button shows.
        step: Step of the picture under its tag.

    Example:
        >>> from fmapviz.data import Picture
        >>> (record,) = summaries(Picture("maps", "00 conv", b"...", 8, 4, {}), {})
        >>> list(Event.FromString(b"".join(record)).summary.value[0].tensor.string_val)
        [b'8', b'4', b'...']
    """
    title = printable(picture.title or picture.name)
    sides = b"".join(wire.delimited(_STRING, b"%d" % side) for side in (picture.width, picture.height))
    tensor = _THREE_STRINGS + sides + _STRING + wire.varint(len(picture.png))
    record = _summary(picture.tag, _IMAGES, title, tensor, picture.png, facts=facts, step=step)
    shown = picture.drawing and picture.drawing.content
    if not isinstance(shown, Histogram):
        return [record]
    # A tag belongs to one of TensorBoard's plugins.
    edges = bin_edges(shown)
    values = np.stack([edges[:-1], edges[1:], shown.counts], 1)
    shape = {"dim": [{"size": size} for size in values.shape]}
    tensor = TensorProto(dtype=DT_DOUBLE, tensor_shape=shape, double_val=values.flatten()).SerializeToString()
    return [record, _summary(f"values/{picture.name}", _HISTOGRAMS, title, tensor, step=step)]


def scalars(result: ImageResult) -> Iterator[Record]:
    """Yield events of how the layers of two networks differ, under the name of each number; an infinite one has none."""
    for layer in result.layers:
        numbers = layer.difference.numbers if layer.difference else {}
        for name, value in numbers.items():
            if isfinite(value):
                summary = Summary(
                    value=[Summary.Value(tag=event_tag(f"{name}/{layer.index:02d} {layer.layer}"), simple_value=value)]
                )
                yield Record(Event(wall_time=time.time(), summary=summary).SerializeToString())


def _summary(
    tag: str,
    plugin: tuple[bytes, bytes],
    title: str,
    tensor: bytes,
    png: bytes = b"",
    *,
    facts: Mapping[str, str] = MappingProxyType({}),
    step: int,
) -> Record:
    """Return an event whose tensor ends with a picture, all fields in the order of their numbers."""
    first, last = plugin
    metadata = b"".join(
        (
            first,
            wire.delimited(_TITLE, title.encode()),
            wire.delimited(_DESCRIPTION, _table(facts).encode()),
            last,
        )
    )
    tail = wire.delimited(_METADATA, metadata)
    value = wire.delimited(_TAG, event_tag(tag).encode()) + _TENSOR + wire.varint(len(tensor) + len(png)) + tensor
    size = len(value) + len(png) + len(tail)
    summary = _VALUE + wire.varint(size)
    event = _WALL_TIME + struct.pack("<d", time.time()) + (_STEP + wire.varint(step) if step else b"")
    event += _SUMMARY + wire.varint(len(summary) + size)
    return Record(event + summary + value, png, tail)


def _table(facts: Mapping[str, str]) -> str:
    """Format facts as a Markdown table; the first one is the heading, which a table must have."""
    rows = [f"| {literal(key)} | {literal(value)} |" for key, value in facts.items()]
    rows.insert(1, "|---|---|")
    return "\n".join(rows) if facts else ""


@lru_cache(512)  # model, type and scaling are the same on every picture
def literal(text: str) -> str:
    r"""Escape text for Markdown: characters with a meaning become character references.

    Example:
        >>> literal("<b> | `c`\n")
        '&#60;b&#62; &#124; &#96;c&#96;&#92;n'
    """
    return re.sub(r"[]\\`*_[<>&|!#~]", lambda match: f"&#{ord(match[0])};", printable(text))
