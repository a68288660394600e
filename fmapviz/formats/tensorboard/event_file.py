"""Write a TensorBoard event file."""

from __future__ import annotations

import hashlib
import struct
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import google_crc32c
from tensorboard.compat.proto.event_pb2 import Event

from fmapviz.core import files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_BEFORE, _AFTER = 12, 4  # bytes around the data of a record: its length and two checksums
_LARGEST = 2**31  # bytes of an event, as protobuf allows
_TIME, _TIME_BYTES = b"\x09", 9  # the beginning of an event, and the size of its first field: the time


class Record(NamedTuple):
    """The data of a record, in parts so that a picture is not copied.

    Attributes:
        head: The bytes before the picture, or all without one.
        picture: The encoded picture.
        tail: The bytes after it.
    """

    head: bytes
    picture: bytes = b""
    tail: bytes = b""


@contextmanager
def create(path: Path) -> Iterator[Callable[[Record], int]]:
    """Write an event file, under a name that TensorBoard ignores until it is complete.

    Args:
        path: Its final name, with `tfevents` in it. If the block raises, no file of that name appears.

    Yields:
        A function that appends one event, and returns the offset of its picture in the file.

    Raises:
        OSError: The disk is full, for example.
    """
    unfinished = path.with_name("events.partial")
    with files.create(unfinished) as file:
        end = 0  # the file's `tell` releases the interpreter lock: 1 ms for an image of 60 layers

        def append(record: Record) -> int:
            nonlocal end
            begin = end + _BEFORE
            end = begin + write_record(file, record) + _AFTER
            return begin + len(record.head)

        header = Event(wall_time=time.time(), file_version="brain.Event:2")
        header.source_metadata.writer = "fmapviz"
        append(Record(header.SerializeToString()))
        yield append
    files.rename(unfinished, path)


def read_events(path: Path) -> Iterator[Event]:
    """Yield the events of a file, without comparing checksums.

    Raises:
        OSError: The file cannot be read.
        google.protobuf.message.DecodeError: It is damaged.
    """
    with path.open("rb") as file:
        while len(before := file.read(_BEFORE)) == _BEFORE:
            (size,) = struct.unpack_from("<Q", before)
            yield Event.FromString(file.read(size))
            file.read(_AFTER)


def write_record(file: BinaryIO, record: Record) -> int:
    """Append one TFRecord: length and data, each followed by its checksum; return the length.

    Format: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
    """
    size = sum(map(len, record))
    length = struct.pack("<Q", size)
    file.write(length + _checksum(length) + record.head)
    file.write(record.picture)
    file.write(record.tail + _checksum(*record))
    return size


def lasting_digest(file: BinaryIO) -> str:
    """Return the SHA-256, hexadecimal, of all events of a file without their times.

    It is that of the serialized events, one after the other, whose `wall_time` is cleared.
    """
    digest = hashlib.sha256()
    while len(head := file.read(_BEFORE)) == _BEFORE:
        size, _ = struct.unpack("<QI", head)
        data = file.read(min(size, _LARGEST))
        digest.update(memoryview(data)[_TIME_BYTES if data.startswith(_TIME) else 0 :])
        file.read(_AFTER)
    return digest.hexdigest()


def _checksum(*parts: bytes) -> bytes:
    """Return the masked CRC-32C of TFRecord, which suits data that contains checksums."""
    crc = 0
    for part in parts:
        crc = google_crc32c.extend(crc, part)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return struct.pack("<I", masked)
