"""Read .npy files without trusting them, and convert the samples of any file to a picture or to bands."""

from __future__ import annotations

import os
from io import BytesIO
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.lib import format as npy_format
from PIL import Image as PillowImage

from fmapviz.core.bands import Bands
from fmapviz.core.errors import InputError
from fmapviz.images.errors import MAX_PIXELS, MAX_VALUES, wrong_channels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

_LONGEST_HEADER = 10_000  # bytes: NumPy's own limit, which it checks only after reading them
_PIECE_VALUES = 1 << 22  # 32 MiB as float64
_OTHER_KINDS = {"c": "complex numbers", "O": "Python objects", "V": "records"}


def read_npy(stream: BinaryIO, *, channels: int) -> tuple[PillowImage.Image | Bands, tuple[str, ...]]:
    """Read a picture from a .npy file: `(H, W)`, `(H, W, C)` or `(C, H, W)`, or one of these after an axis of length 1.

    Of three axes, the channels are the last one with the length that the model takes, as is usual in NumPy. If neither the
    last nor the first has it, an axis of length 1 is grey for a model of RGB, and one of length 3 is RGB for a model of
    grey.

    Args:
        stream: At the beginning of the file.
        channels: C, the number of channels that the model takes.

    Raises:
        InputError: `E_DECODE` (damaged, truncated or without pixels), `E_FORMAT` (not real numbers; Python objects are not
            loaded), `E_TOO_LARGE` or `E_CHANNELS`.
    """
    shape, order, dtype = _read_header(stream)
    require_numbers(dtype)
    stored, axis = _fitting_layout(shape, channels)
    count = prod(shape)
    if os.fstat(stream.fileno()).st_size - stream.tell() < count * dtype.itemsize:
        raise InputError("E_DECODE", "array is cut off")
    values = np.fromfile(stream, dtype, count).reshape(stored, order=order)
    return compose(np.moveaxis(values, axis, 0), channels)


def read_array(values: NDArray[Any], *, channels: int) -> tuple[PillowImage.Image | Bands, tuple[str, ...]]:
    """Read a picture from an array as from a .npy file of its content; see `read_npy`.

    Raises:
        InputError: As `read_npy`.

    Example:
        >>> read_array(np.zeros((8, 6, 3), np.uint8), channels=3)[0].size
        (6, 8)
    """
    require_numbers(values.dtype)
    stored, axis = _fitting_layout(values.shape, channels)
    return compose(np.moveaxis(values.reshape(stored), axis, 0), channels)


def require_numbers(dtype: np.dtype[Any]) -> None:
    """Raise `E_FORMAT` unless the samples are real numbers."""
    if dtype.kind not in "buif":
        found = _OTHER_KINDS.get(dtype.kind, f"values of type {dtype.name}")
        raise InputError("E_FORMAT", f"holds {found}, not real numbers")


def require_size(shape: Sequence[int], *, channels: int) -> None:
    """Check the shape of an array before it is read.

    Args:
        shape: Shape of the whole array.
        channels: Number of values for each pixel.

    Raises:
        InputError: `E_DECODE` (no pixels) or `E_TOO_LARGE`.
    """
    if min(shape, default=1) <= 0:
        raise InputError("E_DECODE", "array without a pixel")
    if prod(shape) > min(MAX_VALUES, MAX_PIXELS * channels):
        raise InputError("E_TOO_LARGE", f"more than {MAX_PIXELS:,} pixels or {MAX_VALUES:,} values")


def fits(found: int, channels: int) -> bool:
    """Return True if a file has the channels of a model, or one of them is grey and the other RGB."""
    return found == channels or {found, channels} == {1, 3}


def format_shape(shape: Sequence[int]) -> str:
    """Format a shape for messages.

    Example:
        >>> format_shape((6, 48, 64))
        '6 x 48 x 64'
    """
    return " x ".join(map(str, shape)) or "a single value"


def compose(planes: NDArray[Any], channels: int) -> tuple[PillowImage.Image | Bands, tuple[str, ...]]:
    """Scale stored samples to 0..1.

    * uint8 has the range 0..255; with 1 or 3 channels it becomes an ordinary picture. Booleans are 0 and 1.
    * Floating-point numbers within 0..1 are not scaled.
    * All others are scaled from the finite minimum to the maximum of all channels. If these are equal, all is black.
    * NaN becomes black.

    Args:
        planes: `(C, H, W)`, real numbers; `fits(C, channels)` is True.
        channels: Number of channels that the model takes. RGB is converted to grey, grey is repeated.

    Returns:
        A Pillow image in mode L or RGB, or bands; and the notices.
    """
    if planes.dtype == np.uint8 and channels in {1, 3}:
        grey_or_rgb = planes[0] if len(planes) == 1 else np.moveaxis(planes, 0, -1)
        return PillowImage.fromarray(np.ascontiguousarray(grey_or_rgb)).convert("L" if channels == 1 else "RGB"), ()
    low, high, notices = _limits(planes)
    scaled: Iterable[NDArray[np.float32]] = (_scale(plane, low, high) for plane in planes)
    if channels == 1 and len(planes) == 3:
        red, green, blue = scaled
        scaled = [0.299 * red + 0.587 * green + 0.114 * blue]  # ITU-R BT.601, as in Pillow's mode L
    bands = [PillowImage.fromarray(plane) for plane in scaled]
    return Bands(tuple(bands * (channels // len(bands)))), notices


def stretch(image: PillowImage.Image) -> tuple[PillowImage.Image, str]:
    """Scale samples of more than 8 bits from their finite range to 0..255."""
    stored = np.asarray(image)
    low, high = finite_range(stored) or (0.0, 0.0)
    grey = np.zeros(stored.shape, np.uint8)
    pieces = zip(in_pieces(stored), in_pieces(grey), strict=True) if high > low else ()
    with np.errstate(all="ignore"):  # of infinity and NaN, which are handled below
        for piece, out in pieces:
            values = (piece.astype(np.float64) - low) * (255 / (high - low))
            out[:] = np.nan_to_num(values.clip(0, 255), nan=0).round()
    notice = f"more than 8 bits per pixel: {low:g}..{high:g} scaled to 0..255"
    return PillowImage.fromarray(grey).convert("RGB"), notice


def in_pieces(plane: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Split an array into groups of rows, to bound the memory of a computation.

    Example:
        >>> [len(piece) for piece in in_pieces(np.zeros((9, 1 << 20)))]
        [4, 4, 1]
    """
    rows = max(1, _PIECE_VALUES // max(1, plane.shape[1]))
    return (plane[first : first + rows] for first in range(0, len(plane), rows))


def finite_range(plane: NDArray[Any]) -> tuple[float, float] | None:
    """Return the finite minimum and maximum of rows, or None if no number is finite.

    Example:
        >>> finite_range(np.array([[1, np.nan], [np.inf, 3]]))
        (1.0, 3.0)
    """
    ranges = [(float(values.min()), float(values.max())) for values in map(_finite, in_pieces(plane)) if values.size]
    return (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None


# Any: the file declares the type.
def _read_header(stream: BinaryIO) -> tuple[tuple[int, ...], Any, np.dtype[Any]]:
    """Return the shape, the order `C` or `F`, and the type. Nothing of the declared size is allocated."""
    version, size_bytes = stream.read(npy_format.MAGIC_LEN)[-2:], 2
    read = npy_format.read_array_header_1_0
    if version != b"\1\0":
        read, size_bytes = npy_format.read_array_header_2_0, 4
    if version not in {b"\1\0", b"\2\0"}:  # 3.0 only adds names of record fields
        raise InputError("E_FORMAT", "array of a version that holds no picture")
    length = stream.read(size_bytes)
    header = stream.read(min(int.from_bytes(length, "little"), _LONGEST_HEADER))
    try:
        shape, fortran_order, dtype = read(BytesIO(length + header))
    except Exception as error:
        raise InputError("E_DECODE", "array is damaged at its beginning") from error
    return shape, "F" if fortran_order else "C", dtype


def _fitting_layout(shape: tuple[int, ...], channels: int) -> tuple[tuple[int, int, int], int]:
    """Return the shape with three axes and the axis of the channels.

    Raises:
        InputError: See `require_size`; or no axis has as many channels as the model takes.
    """
    layout = _find_layout(shape, channels)
    require_size(shape, channels=3 if layout is None else layout[0][layout[1]])
    if layout is None:
        raise wrong_channels(format_shape(shape), channels=channels)
    return layout


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


def _limits(planes: NDArray[Any]) -> tuple[float, float, tuple[str, ...]]:
    """Return the values that become 0 and 1, and the notices."""
    if planes.dtype.kind == "b" or planes.dtype == np.uint8:
        return 0.0, 255.0 if planes.dtype == np.uint8 else 1.0, ()
    ranges = [found for found in map(finite_range, planes) if found]
    low, high = min((low for low, _ in ranges), default=0.0), max((high for _, high in ranges), default=0.0)
    nonfinite: tuple[str, ...] = ()
    if planes.dtype.kind == "f":
        nan, infinite = (any(test(plane).any() for plane in planes) for test in (np.isnan, np.isinf))
        nonfinite += ("NaN is shown as black",) if nan else ()
        nonfinite += ("infinity is shown as the end of the range",) if infinite else ()
    if planes.dtype.kind == "f" and 0 <= low <= high <= 1:
        return 0.0, 1.0, nonfinite
    return low, high, (f"more than 8 bits per channel: {low:g}..{high:g} scaled to 0..1", *nonfinite)


def _finite(values: NDArray[Any]) -> NDArray[Any]:
    return values[np.isfinite(values)] if values.dtype.kind == "f" else values


def _scale(plane: NDArray[Any], low: float, high: float) -> NDArray[np.float32]:
    scaled = np.zeros(plane.shape, np.float32)
    if not high > low:
        return scaled
    with np.errstate(all="ignore"):  # of infinity and NaN, which are handled below
        for piece, out in zip(in_pieces(plane), in_pieces(scaled), strict=True):
            values = (piece.astype(np.float64) - low) / (high - low)
            out[:] = np.nan_to_num(values, copy=False, nan=0, posinf=1, neginf=0).clip(0, 1)
    return scaled
