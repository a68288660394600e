"""Encode a picture."""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from isal import isal_zlib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

SMALL_BYTES = 2048

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_NO_TEXT: Mapping[str, str] = MappingProxyType({})


def encode(pixels: NDArray[np.uint8], text: Mapping[str, str] = _NO_TEXT) -> bytes:
    r"""Make a PNG file of pixels.

    Fast rather than small: ISA-L's compressor over "sub"-filtered rows is twenty times faster than Pillow's default, for
    files about 6 % larger. Grey stays grey. The compressor runs without the interpreter lock.

    Args:
        pixels: uint8, `(H, W)` for grey or `(H, W, 3)` for RGB; left as it is.
        text: What the file says about itself. A keyword is 1 to 79 printable Latin-1 characters.

    Raises:
        ValueError: The pixels have another shape or type, or there are none; a keyword that PNG cannot hold.

    Example:
        >>> encode(np.zeros((2, 3), np.uint8), {"layer": "features.0"})[:8]
        b'\x89PNG\r\n\x1a\n'
    """
    if pixels.dtype != np.uint8 or not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)):
        raise ValueError(f"pixels must be uint8 (H, W) or (H, W, 3): {pixels.dtype} {pixels.shape}")
    if not pixels.size:
        raise ValueError(f"a picture without pixels: {pixels.shape}")
    height, width = pixels.shape[:2]
    color_type = 0 if pixels.ndim == 2 else 2
    return b"".join(
        (
            _SIGNATURE,
            *_frame(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, color_type, 0, 0, 0)),
            *(_text_chunk(key, value) for key, value in text.items()),
            *_frame(b"IDAT", _compress(_filter_rows(pixels))),
            *_frame(b"IEND", b""),
        )
    )


def _compress(rows: NDArray[np.uint8]) -> bytes:
    """Compress so that the same rows always give the same bytes.

    ISA-L does not, of a few hundred bytes: once in some thousand runs it finds another match, of the same content, depending
    on what was in its memory before. zlib takes some microseconds more for these.
    """
    if rows.nbytes <= SMALL_BYTES:
        return zlib.compress(rows.data, level=1)
    return isal_zlib.compress(rows, level=1)  # levels 2 and 3: slower, and no smaller


def _filter_rows(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Replace every byte by its difference from the pixel to the left, modulo 256, behind one filter byte per row."""
    step = pixels[0, 0].size
    source = pixels.reshape(len(pixels), -1)
    rows = np.empty((source.shape[0], source.shape[1] + 1), np.uint8)
    rows[:, 0] = 1  # "sub", https://www.w3.org/TR/png-3/#9Filter-type-1-Sub
    rows[:, 1 : 1 + step] = source[:, :step]
    np.subtract(source[:, step:], source[:, :-step], out=rows[:, 1 + step :])
    return rows


@lru_cache(512)  # model, type and scaling are the same on every picture
def _text_chunk(key: str, value: str) -> bytes:
    r"""Say something in a `tEXt` chunk, or in an `iTXt` chunk if it is not Latin-1.

    What neither may hold, NUL and lone surrogates, is written as an escape such as `\x00`.
    """
    if not (key.isprintable() and 1 <= len(key) <= 79 and max(key) <= "\xff"):
        raise ValueError(f"a PNG keyword must be 1 to 79 printable Latin-1 characters: {key!r}")
    keyword = key.encode("latin-1") + b"\0"
    value = value.replace("\0", r"\x00")
    try:
        chunk = _frame(b"tEXt", keyword + value.encode("latin-1"))
    except UnicodeEncodeError:  # uncompressed, no language, no translated keyword
        chunk = _frame(b"iTXt", keyword + b"\0\0\0\0" + value.encode("utf-8", "backslashreplace"))
    return b"".join(chunk)


def _frame(name: bytes, data: bytes) -> tuple[bytes, ...]:
    checksum = isal_zlib.crc32(data, isal_zlib.crc32(name))
    return struct.pack(">I", len(data)), name, data, struct.pack(">I", checksum)
