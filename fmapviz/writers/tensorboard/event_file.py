"""Write a TensorBoard event file."""

from __future__ import annotations

import struct
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

import google_crc32c
import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_BLOB_SEQUENCE, DATA_CLASS_TENSOR
from tensorboard.compat.proto.types_pb2 import DT_DOUBLE, DT_STRING
from tensorboard.plugins.histogram import metadata as histograms
from tensorboard.plugins.image import metadata as images

from fmapviz.core import files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

_BEFORE, _BEHIND = 12, 4  # bytes before and after the data of a record: its length and two checksums
_METADATA = images.create_summary_metadata("", "")  # made once, as TensorBoard makes it for each picture
_METADATA.data_class = DATA_CLASS_BLOB_SEQUENCE
_HISTOGRAM_METADATA = histograms.create_summary_metadata("", "")
_HISTOGRAM_METADATA.data_class = DATA_CLASS_TENSOR


@contextmanager
def create(path: Path) -> Iterator[Callable[[Event], int]]:
    """Write an event file, under a name that TensorBoard ignores until it is complete.

    Args:
        path: Its final name, with `tfevents` in it. If the block raises, no file of that name appears.

    Yields:
        A function that appends one event and returns the offset of its bytes.

    Raises:
        OSError: The disk is full, for example.
    """
    unfinished = path.with_name("events.partial")
    with files.create(unfinished) as file:
        end = 0

        def append(event: Event) -> int:
            nonlocal end
            data = event.SerializeToString()
            write_record(file, data)
            begin = end + _BEFORE
            end = begin + len(data) + _BEHIND
            return begin

        header = Event(wall_time=time.time(), file_version="brain.Event:2")
        header.source_metadata.writer = "fmapviz"
        append(header)
        yield append
    files.rename(unfinished, path)


def image(tag: str, png: bytes, *, width: int, height: int, display_name: str, description: str, step: int = 0) -> Event:
    """Return the event of one picture.

    It is the tensor-style summary of `tensorboard.plugins.image`: unlike `SummaryWriter.add_image` it has a name and a
    description.

    Args:
        png: The PNG file.
        width: Pixels.
        height: Pixels.
        display_name: Heading of the card; plain text.
        description: Text of the card's (i) button; Markdown.
        step: Step of the picture under its tag.

    Example:
        >>> event = image("maps/00 conv", b"...", width=8, height=4, display_name="00 conv", description="")
        >>> list(event.summary.value[0].tensor.string_val)
        [b'8', b'4', b'...']
    """
    event = Event(wall_time=time.time(), step=step)
    value = event.summary.value.add(tag=tag)  # filled in place: a message given to a constructor is copied, PNG and all
    value.metadata.CopyFrom(_METADATA)
    value.metadata.display_name = display_name
    value.metadata.summary_description = description
    value.tensor.dtype = DT_STRING
    value.tensor.tensor_shape.dim.add(size=3)
    value.tensor.string_val.extend([str(width).encode(), str(height).encode(), png])
    return event


def histogram(tag: str, edges: NDArray[np.float64], counts: NDArray[np.int64], *, display_name: str, step: int = 0) -> Event:
    """Return the event of a histogram.

    It is the tensor-style summary of `tensorboard.plugins.histogram`.

    Args:
        edges: Edges of the bins, ascending, float64 `(B + 1)`.
        counts: Number of values in each bin, `(B)`.
        display_name: Heading of the card; plain text.
        step: Step of the histogram under its tag.

    Example:
        >>> event = histogram("values/00 conv", np.array([0.0, 0.5, 1.0]), np.array([3, 1]), display_name="00 conv")
        >>> event.summary.value[0].tensor.double_val
        [0.0, 0.5, 3.0, 0.5, 1.0, 1.0]
    """
    event = Event(wall_time=time.time(), step=step)
    value = event.summary.value.add(tag=tag)
    value.metadata.CopyFrom(_HISTOGRAM_METADATA)
    value.metadata.display_name = display_name
    value.tensor.dtype = DT_DOUBLE
    value.tensor.tensor_shape.dim.add(size=len(counts))
    value.tensor.tensor_shape.dim.add(size=3)
    value.tensor.double_val.extend(np.stack([edges[:-1], edges[1:], counts], 1).flatten().tolist())
    return event


def write_record(file: BinaryIO, data: bytes) -> None:
    """Append one TFRecord: length and data, each followed by its checksum.

    Format: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
    """
    length = struct.pack("<Q", len(data))
    file.write(length + _checksum(length))
    file.write(data)
    file.write(_checksum(data))


def _checksum(data: bytes) -> bytes:
    """Return the masked CRC-32C of TFRecord, which suits data that contains checksums."""
    crc = google_crc32c.value(data)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return struct.pack("<I", masked)
