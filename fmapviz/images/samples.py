"""Make a picture, or bands, of the numbers that a file holds for each pixel."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image as PillowImage

from fmapviz.errors import InputError, quote
from fmapviz.pixels import MAX_PIXELS, MAX_VALUES, Bands

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

_AT_ONCE = 1 << 22  # values that are computed with together: 32 MiB as float64
_OTHER_KINDS = {"c": "complex numbers", "O": "Python objects", "V": "records"}


def require_numbers(dtype: np.dtype[Any], path: str) -> None:
    """Refuse what cannot be shown as light and dark.

    Raises:
        InputError: `E_FORMAT`.
    """
    if dtype.kind not in "buif":
        found = _OTHER_KINDS.get(dtype.kind, f"values of type {dtype.name}")
        raise InputError("E_FORMAT", f"holds {found}, not real numbers: {quote(path)}")


def require_bearable(shape: Sequence[int], path: str, *, channels: int) -> None:
    """Refuse by its shape an array that is not yet read.

    Args:
        shape: Of all of it.
        path: For what is said of it.
        channels: How many of its values make a pixel.

    Raises:
        InputError: `E_DECODE` (there is no pixel) or `E_TOO_LARGE`.
    """
    if min(shape, default=1) <= 0:
        raise InputError("E_DECODE", f"array without a pixel: {quote(path)}")
    if prod(shape) > min(MAX_VALUES, MAX_PIXELS * channels):
        raise InputError("E_TOO_LARGE", f"more than {MAX_PIXELS:,} pixels or {MAX_VALUES:,} values: {quote(path)}")


def is_usable(found: int, channels: int) -> bool:
    """Tell whether a network can be given so many channels: what it takes, grey for RGB or RGB for grey."""
    return found == channels or {found, channels} == {1, 3}


def words(shape: Sequence[int]) -> str:
    """Write a shape for people.

    Example:
        >>> words((6, 48, 64))
        '6 x 48 x 64'
    """
    return " x ".join(map(str, shape)) or "a single value"


def compose(planes: NDArray[Any], channels: int) -> tuple[PillowImage.Image | Bands, tuple[str, ...]]:
    """Scale to 0..1 what was stored for each channel.

    * uint8 is 0..255; for 1 or 3 channels it becomes an ordinary picture. Truth values are 0 and 1.
    * Floating-point numbers that lie within 0..1 stay as they are.
    * Others are scaled from the smallest to the largest finite one among all channels; if these are equal, all is black.
    * NaN is black.

    Args:
        planes: `(C, H, W)`, real numbers; C is `channels`, or 1 or 3 where it is the other.
        channels: What the network takes: RGB is made grey, or grey repeated.

    Returns:
        A Pillow image in mode L or RGB, or bands, and the notices.
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
    """Stretch values of more than 8 bits from their finite range to 0..255."""
    stored = np.asarray(image)
    low, high = finite_range(stored) or (0.0, 0.0)
    grey = np.zeros(stored.shape, np.uint8)
    pieces = zip(in_pieces(stored), in_pieces(grey), strict=True) if high > low else ()
    with np.errstate(all="ignore"):  # infinity and NaN have their places
        for piece, out in pieces:
            values = (piece.astype(np.float64) - low) * (255 / (high - low))
            out[:] = np.nan_to_num(values.clip(0, 255), nan=0).round()
    notice = f"more than 8 bits per pixel: {low:g}..{high:g} scaled to 0..255"
    return PillowImage.fromarray(grey).convert("RGB"), notice


def in_pieces(plane: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Give an array of rows in parts, so that what is computed of each takes little memory.

    Example:
        >>> [len(piece) for piece in in_pieces(np.zeros((9, 1 << 20)))]
        [4, 4, 1]
    """
    rows = max(1, _AT_ONCE // max(1, plane.shape[1]))
    return (plane[first : first + rows] for first in range(0, len(plane), rows))


def finite_range(plane: NDArray[Any]) -> tuple[float, float] | None:
    """Give the smallest and the largest finite number among rows of numbers, or None if there is none.

    Example:
        >>> finite_range(np.array([[1, np.nan], [np.inf, 3]]))
        (1.0, 3.0)
    """
    ranges = [(float(values.min()), float(values.max())) for values in map(_finite, in_pieces(plane)) if values.size]
    return (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None


def _limits(planes: NDArray[Any]) -> tuple[float, float, tuple[str, ...]]:
    """Give what becomes 0 and 1, and the notices."""
    if planes.dtype.kind == "b" or planes.dtype == np.uint8:
        return 0.0, 255.0 if planes.dtype == np.uint8 else 1.0, ()
    ranges = [found for found in map(finite_range, planes) if found]
    low, high = min((low for low, _ in ranges), default=0.0), max((high for _, high in ranges), default=0.0)
    holes = _holes(planes) if planes.dtype.kind == "f" else ()
    if planes.dtype.kind == "f" and 0 <= low <= high <= 1:
        return 0.0, 1.0, holes
    return low, high, (f"more than 8 bits per channel: {low:g}..{high:g} scaled to 0..1", *holes)


def _holes(planes: NDArray[Any]) -> tuple[str, ...]:
    nan, infinite = (any(test(plane).any() for plane in planes) for test in (np.isnan, np.isinf))
    notices = ("NaN is shown as black" if nan else "", "infinity is shown as the end of the range" if infinite else "")
    return tuple(notice for notice in notices if notice)


def _finite(values: NDArray[Any]) -> NDArray[Any]:
    return values[np.isfinite(values)] if values.dtype.kind == "f" else values


def _scale(plane: NDArray[Any], low: float, high: float) -> NDArray[np.float32]:
    scaled = np.zeros(plane.shape, np.float32)
    if not high > low:
        return scaled
    with np.errstate(all="ignore"):  # infinity and NaN have their places
        for piece, out in zip(in_pieces(plane), in_pieces(scaled), strict=True):
            values = (piece.astype(np.float64) - low) / (high - low)
            out[:] = np.nan_to_num(values, copy=False, nan=0, posinf=1, neginf=0).clip(0, 1)
    return scaled
