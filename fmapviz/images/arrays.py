"""Read .npy files without trusting them."""

from __future__ import annotations

import os
from io import BytesIO
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.lib import format as npy_format

from fmapviz.core.errors import InputError, quote
from fmapviz.images.errors import wrong_channels
from fmapviz.images.samples import compose, fits, format_shape, require_numbers, require_size

if TYPE_CHECKING:
    from PIL import Image as PillowImage

    from fmapviz.core.types import Bands

_LONGEST_HEADER = 10_000  # bytes: NumPy's own limit, which it checks only after reading them


def read_npy(stream: BinaryIO, path: str, *, channels: int) -> tuple[PillowImage.Image | Bands, tuple[str, ...]]:
    """Read a picture from a .npy file: `(H, W)`, `(H, W, C)` or `(C, H, W)`, or one of these after an axis of length 1.

    Of three axes, the channels are the last one with the length that the model takes, as is usual in NumPy. If neither the
    last nor the first has it, an axis of length 1 is grey for a model of RGB, and one of length 3 is RGB for a model of
    grey.

    Args:
        stream: At the beginning of the file.
        path: For error messages.
        channels: C, the number of channels that the model takes.

    Raises:
        InputError: `E_DECODE` (damaged, truncated or without pixels), `E_FORMAT` (not real numbers; Python objects are not
            loaded), `E_TOO_LARGE` or `E_CHANNELS`.
    """
    shape, order, dtype = _read_header(stream, path)
    require_numbers(dtype, path)
    layout = _find_layout(shape, channels)
    stored, axis = layout or (shape, None)
    require_size(shape, path, channels=3 if axis is None else stored[axis])
    if axis is None:
        raise wrong_channels(format_shape(shape), path, channels=channels)
    count = prod(shape)
    if os.fstat(stream.fileno()).st_size - stream.tell() < count * dtype.itemsize:
        raise InputError("E_DECODE", f"array is cut off: {quote(path)}")
    values = np.fromfile(stream, dtype, count).reshape(stored, order=order)
    return compose(np.moveaxis(values, axis, 0), channels)


# Any: the file declares the type.
def _read_header(stream: BinaryIO, path: str) -> tuple[tuple[int, ...], Any, np.dtype[Any]]:
    """Return the shape, the order `C` or `F`, and the type. Nothing of the declared size is allocated."""
    version, size_bytes = stream.read(npy_format.MAGIC_LEN)[-2:], 2
    read = npy_format.read_array_header_1_0
    if version != b"\1\0":
        read, size_bytes = npy_format.read_array_header_2_0, 4
    if version not in {b"\1\0", b"\2\0"}:  # 3.0 only adds names of record fields
        raise InputError("E_FORMAT", f"array of a version that holds no picture: {quote(path)}")
    length = stream.read(size_bytes)
    header = stream.read(min(int.from_bytes(length, "little"), _LONGEST_HEADER))
    try:
        shape, fortran_order, dtype = read(BytesIO(length + header))
    except Exception as error:
        raise InputError("E_DECODE", f"array is damaged at its beginning: {quote(path)}") from error
    return shape, "F" if fortran_order else "C", dtype


def _find_layout(shape: tuple[int, ...], channels: int) -> tuple[tuple[int, int, int], int] | None:
    """Return the shape with three axes and the axis of the channels, or None."""
    match shape:
        case (height, width):
            stored, axes = (1, height, width), [0]
        case (first, middle, last) | (1, first, middle, last):
            stored, axes = (first, middle, last), [2, 0]
        case _:
            return None
    fitting = [axis for axis in axes if fits(stored[axis], channels)]
    exact = [axis for axis in fitting if stored[axis] == channels]
    return (stored, (exact or fitting)[0]) if fitting else None
