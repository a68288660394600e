"""Read from the header how many bits the samples of a picture have; nothing here needs NumPy."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from PIL import Image as PillowImage

_IN_PASSES = {f"{mode};16{order}" for mode in ("RGB", "RGBA", "RGBX") for order in "BLN"}


def is_deep(stream: BinaryIO, image: PillowImage.Image) -> bool:
    """Return True if a picture has samples of more than 8 bits, which Pillow may reduce to 8.

    Args:
        stream: The file; its position is changed.
        image: Opened by Pillow from the stream, and not loaded yet.
    """
    match image.format:
        case "PNG":
            return _read(stream, 24, 1) == b"\x10"
        case "PPM":
            return largest_sample(image) > 255 or image.mode == "F"
        case "JPEG2000":
            return bits_of_jpeg2000(stream) > 8
    return is_read_whole(image)


def is_read_whole(image: PillowImage.Image) -> bool:
    """Return True if Pillow returns all bits of samples of more than 8: one channel, or RGB or RGBA of 16 bits."""
    return image.mode.startswith(("I", "F")) or rawmode_of(image) in _IN_PASSES


def rawmode_of(image: PillowImage.Image) -> str:
    """Return the layout that Pillow unpacks, such as `RGB;16B`; empty if the picture is loaded."""
    tiles = getattr(image, "tile", None)
    arguments = tiles[0].args if tiles else ""
    return str(arguments[0] if isinstance(arguments, tuple) and arguments else arguments)


def largest_sample(image: PillowImage.Image) -> int:
    """Return the largest sample that the header of a portable pixmap declares; 255 for other formats."""
    tiles = getattr(image, "tile", None)
    if not tiles or tiles[0].codec_name == "raw":
        return 65535 if "16" in rawmode_of(image) else 255
    arguments = tiles[0].args
    return int(arguments[-1]) if isinstance(arguments, tuple) and isinstance(arguments[-1], int) else 255


def bits_of_jpeg2000(stream: BinaryIO) -> int:
    """Return the bits of the first channel by the marker SIZ of ISO/IEC 15444-1 A.5.1; 8 if it is not found."""
    head = _read(stream, 0, 1 << 16)
    found = head.find(b"\xff\x4f\xff\x51")
    return (head[found + 42] & 0x7F) + 1 if 0 <= found < len(head) - 42 else 8


def significant_bits(stream: BinaryIO) -> int:
    """Return the largest number in the chunk sBIT of a PNG file, of its colours; 16 without one.

    https://www.w3.org/TR/png-3/#11sBIT
    """
    stream.seek(8)
    while len(head := stream.read(8)) == 8:
        length, name = struct.unpack(">I4s", head)
        if name == b"sBIT":
            numbers = stream.read(min(length, 3))[: 1 if length < 3 else 3]
            return max(numbers, default=16) or 16
        if name == b"IDAT":
            return 16
        stream.seek(length + 4, 1)
    return 16


def _read(stream: BinaryIO, position: int, count: int) -> bytes:
    stream.seek(position)
    return stream.read(count)
