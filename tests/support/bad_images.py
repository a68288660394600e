"""Build image files that are damaged, hostile or unusual; none is in the repository."""

from __future__ import annotations

import io
import struct
import zlib
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def make_zoo(directory: Path) -> dict[str, str]:
    """Write every bad file; return the error code of each by file name."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, (_, content) in ZOO.items():
        (directory / name).write_bytes(content())
    return {name: code for name, (code, _) in ZOO.items()}


def make_good(path: Path, *, seed: int = 0) -> np.ndarray:
    """Save an ordinary image in a lossless format; return its pixels."""
    pixels = picture(seed)
    Image.fromarray(pixels).save(path)
    return pixels


def picture(seed: int = 0) -> np.ndarray:
    """Return 48 rows of 64 RGB pixels, no two regions equal: a ramp in each direction under noise."""
    rows, columns = np.mgrid[0:48, 0:64]
    ramps = np.stack([columns * 3, rows * 4, rows + columns], axis=-1)
    return (ramps + np.random.default_rng(seed).integers(0, 50, ramps.shape)).astype(np.uint8)


def encoded(pixels: np.ndarray | Image.Image, form: str, **options: object) -> bytes:
    """Encode pixels with Pillow."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def flipped(content: bytes, position: int) -> bytes:
    """Flip one bit of one byte."""
    return content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :]


def chunk(name: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG file, with length and checksum."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(*chunks: bytes, width: int = 1, height: int = 1, depth: int = 8, color: int = 0) -> bytes:
    """Return a PNG file with these chunks between header and end."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + chunk(b"IEND", b"")


@cache
def pixel_bomb(side: int = 30_000) -> bytes:
    """Return a black square of 1 bit per pixel: 30000 x 30000 are 110 kB as a file, 2.7 GB as RGB."""
    row, compressor = bytes(1 + (side + 7) // 8), zlib.compressobj(9)
    packed = b"".join(compressor.compress(row) for _ in range(side)) + compressor.flush()
    return png(chunk(b"IDAT", packed), width=side, height=side, depth=1)


@cache
def text_bomb(megabytes: int = 100) -> bytes:
    """Return one pixel and a comment of 100 MB, small while compressed."""
    compressor = zlib.compressobj(9)
    packed = b"".join(compressor.compress(bytes(1 << 20)) for _ in range(megabytes)) + compressor.flush()
    return png(chunk(b"zTXt", b"Comment\0\0" + packed), chunk(b"IDAT", zlib.compress(b"\0\0")))


def many_texts() -> bytes:
    """Return one pixel and 70 comments of ordinary size."""
    packed = zlib.compress(b" " * 1_000_000)
    texts = b"".join(chunk(b"zTXt", b"Comment %d\0\0" % number + packed) for number in range(70))
    return png(texts, chunk(b"IDAT", zlib.compress(b"\0\0")))


def broken_exif(form: str = "JPEG") -> bytes:
    """Return a complete image whose EXIF table ends after its number of entries."""
    return encoded(picture(), form, exif=b"Exif\0\0II*\0\x08\0\0\0\x09\0")


def oriented(upright: np.ndarray, orientation: int, form: str, **options: object) -> bytes:
    """Return an image as a rotated camera stores it: a reader must rotate it back.

    EXIF 2.32, 4.6.4 A: the sides of the image where the first stored row and column belong.
    """
    stored = {
        1: upright,  # top, left
        2: upright[:, ::-1],  # top, right
        3: upright[::-1, ::-1],  # bottom, right
        4: upright[::-1],  # bottom, left
        5: upright.swapaxes(0, 1),  # left, top
        6: upright[:, ::-1].swapaxes(0, 1),  # right, top
        7: upright[::-1, ::-1].swapaxes(0, 1),  # right, bottom
        8: upright[::-1].swapaxes(0, 1),  # left, bottom
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(np.ascontiguousarray(stored), form, exif=exif.tobytes(), **options)


def animation(form: str, *, frames: int = 2) -> bytes:
    """Return an animation whose first frame is `picture(0)`."""
    first, *others = (Image.fromarray(picture(seed)) for seed in range(frames))
    options = {"lossless": True} if form == "WEBP" else {}
    return encoded(first, form, save_all=True, append_images=others, **options)


def _half_jpeg() -> bytes:
    content = encoded(picture(), "JPEG", quality=90)
    return content[: len(content) // 2]


def _flipped_png(part: bytes, offset: int) -> bytes:
    content = encoded(picture(), "PNG")
    return flipped(content, content.index(part) + offset)


ZOO: dict[str, tuple[str, Callable[[], bytes]]] = {
    "empty.png": ("E_EMPTY", lambda: b""),
    "text.jpg": ("E_FORMAT", lambda: b"This is not a picture.\n" * 20),
    "noise.png": ("E_FORMAT", lambda: np.random.default_rng(0).bytes(5000)),
    "zeros.tga": ("E_FORMAT", lambda: bytes(5000)),
    "document.png": ("E_FORMAT", lambda: encoded(picture(), "PDF")),
    "postscript.png": ("E_FORMAT", lambda: encoded(picture(), "EPS")),
    "drawing.png": ("E_FORMAT", lambda: b'<svg xmlns="http://www.w3.org/2000/svg"><rect width="9" height="9"/></svg>'),
    "page.png": ("E_FORMAT", lambda: b"<!DOCTYPE html><title>404 Not Found</title>"),
    "icon.png": ("E_FORMAT", lambda: encoded(picture(), "ICO")),
    "half.jpg": ("E_DECODE", _half_jpeg),
    "half.png": ("E_DECODE", lambda: encoded(picture(), "PNG")[:4000]),
    "half.gif": ("E_DECODE", lambda: encoded(picture(), "GIF")[:2000]),
    "half.webp": ("E_DECODE", lambda: encoded(picture(), "WEBP")[:500]),
    "half.avif": ("E_DECODE", lambda: encoded(picture(), "AVIF")[:100]),
    "half.tif": ("E_DECODE", lambda: encoded(picture(), "TIFF", compression="tiff_lzw")[:5000]),
    "flipped header.png": ("E_DECODE", lambda: _flipped_png(b"IHDR", 6)),
    "flipped pixel.png": ("E_DECODE", lambda: _flipped_png(b"IDAT", 1000)),
    "flipped checksum.png": ("E_DECODE", lambda: _flipped_png(b"IEND", -5)),
    "pixels.png": ("E_TOO_LARGE", pixel_bomb),
    "text.png": ("E_TOO_LARGE", text_bomb),
    "texts.png": ("E_TOO_LARGE", many_texts),
}
