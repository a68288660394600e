"""The TensorBoard events of a picture."""

from __future__ import annotations

import re
import time
from functools import lru_cache
from math import isfinite
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

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fmapviz.types import ImageResult, Picture


def summaries(picture: Picture, facts: Mapping[str, str], *, step: int = 0) -> list[bytes]:
    """Return the event of a picture, and one of its values if it is a histogram.

    They are the tensor-style summaries of `tensorboard.plugins.image` and `tensorboard.plugins.histogram`: unlike those of
    `SummaryWriter.add_image` they have a name and a description. Each is a serialized `Event`.

    Args:
        picture: The picture.
        facts: Those of its facts that the card's (i) button shows.
        step: Step of the picture under its tag.

    Example:
        >>> from fmapviz.types import Picture
        >>> (record,) = summaries(Picture("maps", "00 conv", b"...", 8, 4, {}), {})
        >>> list(Event.FromString(record).summary.value[0].tensor.string_val)
        [b'8', b'4', b'...']
    """
    title = printable(picture.title or picture.name)
    texts = [str(picture.width).encode(), str(picture.height).encode(), picture.png]
    tensor = TensorProto(dtype=DT_STRING, tensor_shape={"dim": [{"size": 3}]}, string_val=texts)
    events = [
        _event(picture.tag, images.create_summary_metadata(title, _table(facts)), DATA_CLASS_BLOB_SEQUENCE, tensor, step)
    ]
    shown = picture.drawing and picture.drawing.content
    if isinstance(shown, Histogram):  # under another tag, which belongs to one of TensorBoard's plugins
        edges = bin_edges(shown)
        values = np.stack([edges[:-1], edges[1:], shown.counts], 1)
        shape = {"dim": [{"size": size} for size in values.shape]}
        tensor = TensorProto(dtype=DT_DOUBLE, tensor_shape=shape, double_val=values.flatten())
        metadata = histograms.create_summary_metadata(title, "")
        events.append(_event(f"values/{picture.name}", metadata, DATA_CLASS_TENSOR, tensor, step))
    return events


def scalars(result: ImageResult) -> Iterator[bytes]:
    """Yield events of how the layers of two networks differ, under the name of each number; an infinite one has none."""
    for layer in result.layers:
        numbers = layer.difference.numbers if layer.difference else {}
        for name, value in numbers.items():
            if isfinite(value):
                summary = Summary(
                    value=[Summary.Value(tag=event_tag(f"{name}/{layer.index:02d} {layer.layer}"), simple_value=value)]
                )
                yield Event(wall_time=time.time(), summary=summary).SerializeToString()


def _event(tag: str, metadata: SummaryMetadata, data_class: int, tensor: TensorProto, step: int) -> bytes:
    metadata.data_class = data_class
    value = Summary.Value(tag=event_tag(tag), metadata=metadata, tensor=tensor)
    serialized: bytes = Event(wall_time=time.time(), step=step, summary=Summary(value=[value])).SerializeToString()
    return serialized


def _table(facts: Mapping[str, str]) -> str:
    """Format facts as a Markdown table; the first one is the heading, which a table must have."""
    rows = [f"| {_literal(key)} | {_literal(value)} |" for key, value in facts.items()]
    rows.insert(1, "|---|---|")
    return "\n".join(rows) if facts else ""


@lru_cache(512)  # model, type and scaling are the same on every picture
def _literal(text: str) -> str:
    r"""Escape text for Markdown: characters with a meaning become character references.

    Example:
        >>> _literal("<b> | `c`\n")
        '&#60;b&#62; &#124; &#96;c&#96;&#92;n'
    """
    return re.sub(r"[]\\`*_[<>&|!#~]", lambda match: f"&#{ord(match[0])};", printable(text))
