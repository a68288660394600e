"""Read .npy files without trusting them, and decide which of a file's samples are black and white.

`compose` is the one place of that decision, for every format, type, depth and number of channels.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from io import BytesIO
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.lib import format as npy_format
from PIL import Image as PillowImage

from fmapviz.core.bands import Bands
from fmapviz.core.samples import Samples
from fmapviz.errors import InputError
from fmapviz.images.errors import MAX_PIXELS, MAX_VALUES, wrong_channels
from fmapviz.images.notices import TRANSPARENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_LONGEST_HEADER = 10_000  # bytes: NumPy's own limit, which it checks only after reading them
_PIECE_VALUES = 1 << 22  # 32 MiB as float64
_OTHER_KINDS = {"c": "complex numbers", "O": "Python objects", "V": "records"}
_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as in Pillow's mode L


@dataclass(frozen=True, slots=True)
class Declared:
    """The declarations of a file about its samples.

    Attributes:
        range: The samples that are black and white; None if the file declares only the number of stored bits.
        source: The part of the file that declares it, for a notice; empty for no notice.
        zero_is_white: Whether the smallest sample is white.
        nodata: The sample of pixels without a value.
        alpha: Whether the last channel is opacity.
        premultiplied: Whether the colours have been multiplied by it.
    """

    range: tuple[float, float] | None = None
    source: str = ""
    zero_is_white: bool = False
    nodata: float | None = None
    alpha: bool = False
    premultiplied: bool = False


_NOTHING = Declared()


def read_npy(
    stream: BinaryIO, *, channels: int, volume: bool = False
) -> tuple[PillowImage.Image | Samples, tuple[str, ...]]:
    """Read a picture from a .npy file: `(H, W)`, `(H, W, C)` or `(C, H, W)`, or one of these after an axis of length 1.

    Of three axes, the channels are the last one with the length that the model takes, as is usual in NumPy. If the first one
    has the same length, a notice reports it. If neither has it, an axis of length 1 is grey for a model of RGB, and one of
    length 3 is RGB for a model of grey.

    Of a volume the shape is `(C, D, H, W)`, `(D, H, W, C)`, or `(D, H, W)` for a model of one channel, or one of these after
    an axis of length 1. If both the first and the last axis have length C, the first holds the channels, with a notice.

    Args:
        stream: At the beginning of the file.
        channels: C, the number of channels that the model takes.
        volume: Whether the model takes volumes.

    Raises:
        InputError: `E_DECODE` (damaged, truncated or without pixels), `E_FORMAT` (not real numbers; Python objects are not
            loaded), `E_TOO_LARGE` or `E_CHANNELS`.
    """
    shape, order, dtype = _read_header(stream)
    require_numbers(dtype)
    _fitting_layout(shape, channels, volume=volume)  # before it is read
    count = prod(shape)
    if os.fstat(stream.fileno()).st_size - stream.tell() < count * dtype.itemsize:
        raise InputError("E_DECODE", "array is cut off")
    return read_array(np.fromfile(stream, dtype, count).reshape(shape, order=order), channels=channels, volume=volume)


def read_array(
    values: NDArray[Any], *, channels: int, volume: bool = False
) -> tuple[PillowImage.Image | Samples, tuple[str, ...]]:
    """Read a picture from an array as from a .npy file of its content; see `read_npy`.

    Raises:
        InputError: As `read_npy`.

    Example:
        >>> read_array(np.zeros((8, 6, 3), np.uint8), channels=3)[0].size
        (6, 8)
    """
    require_numbers(values.dtype)
    stored, axis, remarks = _fitting_layout(values.shape, channels, volume=volume)
    pixels, notices = compose(np.moveaxis(values.reshape(stored), axis, 0), channels)
    return pixels, (*remarks, *notices)


def require_numbers(dtype: np.dtype[Any]) -> None:
    """Raise `E_FORMAT` unless the samples are real numbers."""
    if dtype.kind not in "buif":
        found = _OTHER_KINDS.get(dtype.kind, f"values of type {dtype.name}")
        raise InputError("E_FORMAT", f"holds {found}, not real numbers")


def require_size(shape: Sequence[int], *, channels: int, volume: bool = False) -> None:
    """Check the shape of an array before it is read.

    Args:
        shape: Shape of the whole array.
        channels: Number of values for each pixel.
        volume: Whether the pixels are those of many slices.

    Raises:
        InputError: `E_DECODE` (no pixels) or `E_TOO_LARGE`.
    """
    if min(shape, default=1) <= 0:
        raise InputError("E_DECODE", "array without a pixel")
    if prod(shape) > (MAX_VALUES if volume else min(MAX_VALUES, MAX_PIXELS * channels)):
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


def compose(
    planes: NDArray[Any], channels: int, declared: Declared = _NOTHING, *, is_picture: bool = False
) -> tuple[PillowImage.Image | Samples, tuple[str, ...]]:
    """Decide which samples are black and white.

    * The range that the file declares holds, if no sample is outside of it.
    * uint8 has the range 0..255; with 1 or 3 channels it becomes an ordinary picture, unless zero is white. Booleans are 0
      and 1.
    * Floating-point numbers within 0..1 are not scaled.
    * All others are scaled from the finite minimum to the maximum of all channels. If these are equal, all is black. A file
      of 16 bits does not declare how many of them its samples use: cameras and scanners store 10, 12 or 14.
    * NaN, and what the file calls no data, becomes black. Transparent pixels are laid over black, which is then zero.

    Args:
        planes: `(C, H, W)`, or `(C, D, H, W)`, real numbers; without opacity, `fits(C, channels)` is True.
        channels: Number of channels that the model takes. RGB is converted to grey, grey is repeated.
        declared: The file's declarations about them.
        is_picture: Whether they are those of a picture, not of an array.

    Returns:
        A Pillow image in mode L or RGB, or samples; and the notices.
    """
    colours, straight, remarks = _over_black(planes, declared)
    is_plain = declared.range is None and declared.nodata is None and not declared.zero_is_white
    if colours.dtype == np.uint8 and channels in {1, 3} and colours.ndim == 3 and is_plain:
        grey_or_rgb = colours[0] if len(colours) == 1 else np.moveaxis(colours, 0, -1)
        return PillowImage.fromarray(np.ascontiguousarray(grey_or_rgb)).convert("L" if channels == 1 else "RGB"), ()
    black, white, notices = _limits(straight, declared, least=0.0 if straight is not colours else None)
    nodata = declared.nodata
    if channels == 1 and len(colours) == 3:
        colours, nodata = _grey(colours, nodata), None
    if declared.zero_is_white:
        black, white = white, black
    return Samples(colours, black, white, nodata=nodata, channels=channels, is_picture=is_picture), (*remarks, *notices)


def scale(samples: Samples) -> Bands:
    """Scale samples to 0..1, and repeat grey for a network of RGB.

    Example:
        >>> bands = scale(Samples(np.array([[[10, 20, 30]]]), black=10, white=30))
        >>> len(bands.planes), np.asarray(bands.planes[0]).tolist()
        (3, [[0.0, 0.5, 1.0]])
    """
    planes = [PillowImage.fromarray(_scale(plane, samples)) for plane in samples.values]
    return Bands(tuple(planes * (samples.channels // len(planes))))


def scale_volume(samples: Samples) -> NDArray[np.float32]:
    """Scale the samples of a volume to 0..1, float32 `(C, D, H, W)`."""
    return np.stack([[_scale(plane, samples) for plane in channel] for channel in samples.values])


def is_about_scaling(notice: str) -> bool:
    """Return True for a notice on how `scale` changes samples; it does not apply to samples as stored."""
    return "scaled to 0..1" in notice or "shown as" in notice


def in_pieces(plane: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Split an array into groups of rows, to bound the memory of a computation.

    Example:
        >>> [len(piece) for piece in in_pieces(np.zeros((9, 1 << 20)))]
        [4, 4, 1]
    """
    rows = max(1, _PIECE_VALUES // max(1, plane.shape[1]))
    return (plane[first : first + rows] for first in range(0, len(plane), rows))


def finite_range(plane: NDArray[Any], nodata: float | None = None) -> tuple[float, float] | None:
    """Return the finite minimum and maximum of rows without no-data values, or None if no number is finite.

    Example:
        >>> finite_range(np.array([[1, np.nan], [np.inf, 3]]))
        (1.0, 3.0)
    """
    ranges = [
        (float(values.min()), float(values.max()))
        for values in (_finite(piece, nodata) for piece in in_pieces(plane))
        if values.size
    ]
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


def _fitting_layout(shape: tuple[int, ...], channels: int, *, volume: bool) -> tuple[tuple[int, ...], int, tuple[str, ...]]:
    """Return the shape with an axis for the channels, that axis, and a notice if another axis would fit, too.

    Raises:
        InputError: See `require_size`; or no axis has as many channels as the model takes.
    """
    layout = _find_volume(shape, channels) if volume else _find_layout(shape, channels)
    require_size(shape, channels=3 if layout is None else layout[0][layout[1]], volume=volume)
    if layout is None:
        raise wrong_channels(format_shape(shape), channels=channels, volume=volume)
    stored, axis = layout
    is_double = len(shape) > 2 and stored[0] == stored[-1] and (channels > 1 or not volume)
    axes = "channels, depth, height, width" if volume else "height, width, channels"
    return stored, axis, (f"axes of {format_shape(shape)} are read as {axes}",) if is_double else ()


def _find_volume(shape: tuple[int, ...], channels: int) -> tuple[tuple[int, ...], int] | None:
    """Return the shape of a volume with four axes and the axis of the channels, or None."""
    if len(shape) == 5 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) == 3 and channels == 1:
        shape = (1, *shape)
    if len(shape) != 4:
        return None
    return next(((shape, axis) for axis in (0, 3) if shape[axis] == channels), None)


def _find_layout(shape: tuple[int, ...], channels: int) -> tuple[tuple[int, ...], int] | None:
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


def _over_black(planes: NDArray[Any], declared: Declared) -> tuple[NDArray[Any], NDArray[Any], tuple[str, ...]]:
    """Return the colours blended with black, the colours that define the range (without opacity the same), and notices."""
    if not declared.alpha:
        return planes, planes, ()
    colours, opacity = planes[:-1], planes[-1]
    notices: tuple[str, ...] = ()
    opaque = 1.0 if planes.dtype.kind == "f" else float(declared.range[1] if declared.range else np.iinfo(planes.dtype).max)
    if 0 < opacity.max() < opaque and planes.dtype.itemsize > 1 and planes.dtype.kind != "f":
        opaque = float(opacity.max())  # of fewer bits than the file stores
        notices = (f"the largest opacity, {opaque:g}, is taken as opaque",)
    if (opacity >= opaque).all():
        return colours, colours, notices
    notices = (TRANSPARENT, *notices)
    visible = np.where(opacity > 0, colours, 0)
    if declared.premultiplied:
        return colours.astype(np.float32), visible, notices
    share = (opacity / opaque).astype(np.float32)
    top = opaque if declared.zero_is_white else 0.0
    return (top + (colours - np.float32(top)) * share).astype(np.float32), visible, notices


def _limits(planes: NDArray[Any], declared: Declared, *, least: float | None) -> tuple[float, float, tuple[str, ...]]:
    """Return the samples that become 0 and 1, the smaller one first, and the notices."""
    missing: tuple[str, ...] = (
        ("no data is shown as black",) if declared.nodata is not None and (planes == declared.nodata).any() else ()
    )
    is_byte = planes.dtype == np.uint8
    if (planes.dtype.kind == "b" or is_byte) and declared.range is None:
        return 0.0, 255.0 if is_byte else 1.0, missing
    flat = planes.reshape(-1, *planes.shape[-2:])
    ranges = [found for found in (finite_range(plane, declared.nodata) for plane in flat) if found]
    low, high = min((low for low, _ in ranges), default=0.0), max((high for _, high in ranges), default=0.0)
    if planes.dtype.kind == "f":
        nan, infinite = (any(test(plane).any() for plane in flat) for test in (np.isnan, np.isinf))
        missing += ("NaN is shown as black",) if nan else ()
        missing += ("infinity is shown as the end of the range",) if infinite else ()
    if declared.range and declared.range[0] <= low <= high <= declared.range[1]:
        words = f"{declared.source}: {declared.range[0]:g}..{declared.range[1]:g} scaled to 0..1"
        return *declared.range, ((words, *missing) if declared.source else missing)
    if planes.dtype.kind == "f" and 0 <= low <= high <= 1 and not declared.range:
        return 0.0, 1.0, missing
    low = low if least is None else min(low, least)
    what = "values below zero" if planes.dtype == np.int8 else "more than 8 bits per channel"
    return low, high, (f"{what}: {low:g}..{high:g} scaled to 0..1", *missing)


def _finite(values: NDArray[Any], nodata: float | None) -> NDArray[Any]:
    values = values if nodata is None else values[values != nodata]
    return values[np.isfinite(values)] if values.dtype.kind == "f" else values


def _grey(colours: NDArray[Any], nodata: float | None) -> NDArray[Any]:
    """Return RGB as grey `(1, H, W)`, NaN where a channel has no data."""
    precise = np.float64 if colours.dtype.itemsize > 4 or colours.dtype in {np.int32, np.uint32} else np.float32
    grey = sum(share * colour.astype(precise) for share, colour in zip(_LUMA, colours, strict=True))
    if nodata is not None:
        grey = np.where((colours == nodata).any(axis=0), np.nan, grey)
    return np.asarray(grey, precise)[np.newaxis]


def _scale(plane: NDArray[Any], samples: Samples) -> NDArray[np.float32]:
    scaled = np.zeros(plane.shape, np.float32)
    if samples.white == samples.black:
        return scaled
    with np.errstate(all="ignore"):  # of infinity and NaN, which are handled below
        for piece, out in zip(in_pieces(plane), in_pieces(scaled), strict=True):
            values = (piece.astype(np.float64) - samples.black) / (samples.white - samples.black)
            out[:] = np.nan_to_num(values, copy=False, nan=0, posinf=1, neginf=0).clip(0, 1)
            if samples.nodata is not None:
                out[piece == samples.nodata] = 0
    return scaled
