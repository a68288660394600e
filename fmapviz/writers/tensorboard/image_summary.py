"""The TensorBoard events of a picture."""

from __future__ import annotations

import re
import time
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_BLOB_SEQUENCE, DATA_CLASS_TENSOR
from tensorboard.compat.proto.types_pb2 import DT_DOUBLE, DT_STRING
from tensorboard.plugins.histogram import metadata as histograms
from tensorboard.plugins.image import metadata as images

from fmapviz.core.drawings import Histogram
from fmapviz.core.errors import printable
from fmapviz.render.histogram import bin_edges

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata

    from fmapviz.core.types import Picture


# Made once, as TensorBoard makes it for each picture.
_METADATA = images.create_summary_metadata("", "")
_METADATA.data_class = DATA_CLASS_BLOB_SEQUENCE
_HISTOGRAM_METADATA = histograms.create_summary_metadata("", "")
_HISTOGRAM_METADATA.data_class = DATA_CLASS_TENSOR


def summaries(picture: Picture, facts: Mapping[str, str], *, step: int = 0) -> list[Event]:
    """Return the event of a picture, and one of its values if it is a histogram.

    They are the tensor-style summaries of `tensorboard.plugins.image` and `tensorboard.plugins.histogram`: unlike those of
    `SummaryWriter.add_image` they have a name and a description.

    Args:
        picture: The picture.
        facts: Those of its facts that the card's (i) button shows.
        step: Step of the picture under its tag.

    Example:
        >>> from fmapviz.core.types import Picture
        >>> (event,) = summaries(Picture("maps", "00 conv", b"...", 8, 4, {}), {})
        >>> list(event.summary.value[0].tensor.string_val)
        [b'8', b'4', b'...']
    """
    title = printable(picture.title or picture.name)
    event, value = _summary(picture.tag, _METADATA, title, step)
    value.metadata.summary_description = _table(facts)
    value.tensor.dtype = DT_STRING
    value.tensor.tensor_shape.dim.add(size=3)
    value.tensor.string_val.extend([str(picture.width).encode(), str(picture.height).encode(), picture.png])
    shown = picture.drawing and picture.drawing.content
    if not isinstance(shown, Histogram):
        return [event]
    # A tag belongs to one of TensorBoard's plugins.
    of_values, value = _summary(f"values/{picture.name}", _HISTOGRAM_METADATA, title, step)
    edges = bin_edges(shown)
    value.tensor.dtype = DT_DOUBLE
    value.tensor.tensor_shape.dim.add(size=len(shown.counts))
    value.tensor.tensor_shape.dim.add(size=3)
    value.tensor.double_val.extend(np.stack([edges[:-1], edges[1:], shown.counts], 1).flatten().tolist())
    return [event, of_values]


def _summary(tag: str, metadata: SummaryMetadata, title: str, step: int) -> tuple[Event, Summary.Value]:
    """Return an event and its value, to be filled in place: a message given to a constructor is copied, PNG and all."""
    event = Event(wall_time=time.time(), step=step)
    value = event.summary.value.add(tag=_tag(tag))
    value.metadata.CopyFrom(metadata)
    value.metadata.display_name = title
    return event, value


def _tag(text: str) -> str:
    """Return a tag whose picture TensorBoard's fast loader can find.

    It cannot if the tag holds a character that JSON escapes: a quotation mark, a backslash, a control character
    (`WireBlobKey` borrows its strings, https://github.com/tensorflow/tensorboard/pull/4545).

    Example:
        >>> _tag('maps/00 a"b')
        'maps/00 a%22b'
    """
    if text.isprintable() and not set(text) & {'"', "\\"}:
        return text
    return "".join(ch if ch.isprintable() and ch not in '"\\' else quote(ch, errors="surrogatepass") for ch in text)


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
