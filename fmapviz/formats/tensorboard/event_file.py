"""Write a TensorBoard event file."""

from __future__ import annotations

import struct
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

import google_crc32c
from tensorboard.compat.proto.event_pb2 import Event

from fmapviz.core import files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_BEFORE, _AFTER = 12, 4  # bytes around the data of a record: its length and two checksums


@contextmanager
def create(path: Path) -> Iterator[Callable[[bytes], int]]:
    """Write an event file, under a name that TensorBoard ignores until it is complete.

    Args:
        path: Its final name, with `tfevents` in it. If the block raises, no file of that name appears.

    Yields:
        A function that appends one event, and returns the offset of its data in the file.

    Raises:
        OSError: The disk is full, for example.
    """
    unfinished = path.with_name("events.partial")
    with files.create(unfinished) as file:
        end = 0  # the file's `tell` releases the interpreter lock: 1 ms for an image of 60 layers

        def append(event: bytes) -> int:
            nonlocal end
            begin = end + _BEFORE
            write_record(file, event)
            end = begin + len(event) + _AFTER
            return begin

        header = Event(wall_time=time.time(), file_version="brain.Event:2")
        header.source_metadata.writer = "fmapviz"
        append(header.SerializeToString())
        yield append
    files.rename(unfinished, path)


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
