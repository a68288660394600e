"""Read an array that NumPy saved, without trusting the file."""

from __future__ import annotations

import os
from io import BytesIO
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.lib import format as npy_format

from fmapviz.errors import InputError, quote
from fmapviz.pixels import wrong_channels
from fmapviz.samples import compose, is_usable, require_bearable, require_numbers, words

if TYPE_CHECKING:
    from PIL import Image as PillowImage

    from fmapviz.pixels import Bands

_LONGEST_HEADER = 10_000  # bytes: NumPy's own limit, which it looks at only when it has read them


def read_npy(stream: BinaryIO, path: str, *, channels: int) -> tuple[PillowImage.Image | Bands, tuple[str, ...]]:
    """Read a picture from a .npy file: `(H, W)`, `(H, W, C)` or `(C, H, W)`, or one of these behind an axis of length 1.

    Of three axes the last holds the channels if it has the length that the network takes, as is NumPy's habit; else the
    first if that has it. Only then an axis of length 1 is grey for a network of RGB, and one of length 3 is RGB for a
    network of grey, again the last before the first.

    Args:
        stream: At its beginning.
        path: For what is said of it.
        channels: C, what the network takes.

    Raises:
        InputError: `E_DECODE` (damaged, cut off or without a pixel), `E_FORMAT` (no real numbers; Python objects are not
            loaded), `E_TOO_LARGE` or `E_CHANNELS`.
    """
    shape, order, dtype = _read_header(stream, path)
    require_numbers(dtype, path)
    layout = _find_layout(shape, channels)
    stored, axis = layout or (shape, None)
    require_bearable(shape, path, channels=3 if axis is None else stored[axis])
    if axis is None:
        raise wrong_channels(words(shape), path, channels=channels)
    count = prod(shape)
    if os.fstat(stream.fileno()).st_size - stream.tell() < count * dtype.itemsize:
        raise InputError("E_DECODE", f"array is cut off: {quote(path)}")
    values = np.fromfile(stream, dtype, count).reshape(stored, order=order)
    return compose(np.moveaxis(values, axis, 0), channels)


# Any: of whatever type the file says.
def _read_header(stream: BinaryIO, path: str) -> tuple[tuple[int, ...], Any, np.dtype[Any]]:
    """Give the shape, the order `C` or `F` and the type; nothing is allocated for what they claim."""
    version, size_bytes = stream.read(npy_format.MAGIC_LEN)[-2:], 2
    read = npy_format.read_array_header_1_0
    if version != b"\1\0":
        read, size_bytes = npy_format.read_array_header_2_0, 4
    if version not in {b"\1\0", b"\2\0"}:  # 3.0 is for the names in records
        raise InputError("E_FORMAT", f"array of a version that holds no picture: {quote(path)}")
    length = stream.read(size_bytes)
    header = stream.read(min(int.from_bytes(length, "little"), _LONGEST_HEADER))
    try:
        shape, fortran_order, dtype = read(BytesIO(length + header))
    except Exception as error:
        raise InputError("E_DECODE", f"array is damaged at its beginning: {quote(path)}") from error
    return shape, "F" if fortran_order else "C", dtype


def _find_layout(shape: tuple[int, ...], channels: int) -> tuple[tuple[int, int, int], int] | None:
    """Give three axes and which of them holds the channels, or None."""
    match shape:
        case (height, width):
            stored, axes = (1, height, width), [0]
        case (first, middle, last) | (1, first, middle, last):
            stored, axes = (first, middle, last), [2, 0]
        case _:
            return None
    fitting = [axis for axis in axes if is_usable(stored[axis], channels)]
    exact = [axis for axis in fitting if stored[axis] == channels]
    return (stored, (exact or fitting)[0]) if fitting else None
