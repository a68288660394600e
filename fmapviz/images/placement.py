"""Find where a preprocessed input lies in its file: undo resizing, cropping, padding and the EXIF orientation.

The geometry of a `Preparation` is measured, because it may be a function of the user: pictures whose values are positions
go through it. For grey and RGB these have 8 bits, as photos have: a function of the user may refuse float pictures or treat
them in another way. All channels are equal, so that a preprocessing may swap or mix them. Each picture is a ramp across both
axes: rounding errors then differ from pixel to pixel, and average out when a line is fitted. Black and white show how values
become positions again, whatever the mean and the standard deviation are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image as PillowImage

from fmapviz.core.bands import Bands
from fmapviz.core.placement import Placement

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.data import Preparation

    Array = NDArray[np.float64]
    Numbers = NDArray[np.intp]
    Size = tuple[int, int]  # width and height
    Window = tuple[float, float]  # pixels of the picture
    Windows = tuple[Window, Window]  # across and down
    Line = tuple[float, float]  # scale, offset

# Values of three pictures, in 0..1: a base, and the shares of the positions across and down. Two of them give the
# positions, the third one verifies them. No share is a simple fraction, or rounding would repeat from pixel to pixel.
_BASES = np.array([0.01, 0.01, 0.13])
_SHARES = np.array([[0.787, 0.191], [0.191, 0.787], [0.313, 0.427]])
_LEVEL = 1 / 255
REPEATS = 12
_MOST_SAMPLES = 1024  # rows and columns of an input that are looked at
_BLOCKS = 6  # in each direction, over which residuals are averaged
_RESIDUAL = 0.3  # of a pixel of the file or of the input, whichever is larger


class UnmeasurableError(Exception):
    """A preprocessing fails, or has another geometry than a scale and an offset on each axis."""


def find_placement(preparation: Preparation, size: tuple[int, int]) -> Placement | None:
    """Return the geometry of a preprocessing for upright pictures of one size, measured unless the preprocessing knows it.

    To measure it, the preprocessing is called five times with pictures of that size, three times more for each time that the
    visible part turns out to be small, and `REPEATS` times with a smaller one, once for each preprocessing. The mean and the
    standard deviation need not be known.

    Args:
        preparation: A preprocessing whose geometry depends on the size alone, not on what the picture shows.
        size: Width and height of the upright picture; pixels.

    Returns:
        The placement; or None if the preprocessing is not a scale and an offset on each axis (a rotation, a perspective), is
        random, fails, or shows too little to be measured: on an axis fewer than six pixels of the picture, or eight of the
        input. Positions are right to a quarter of a pixel, of the picture or of the input, whichever is larger, and nearly
        all to 0.04: the 8 bits after resizing do not average out where a ramp rises by about one level per pixel.

    Example:
        >>> from fmapviz.config import InputOptions
        >>> from fmapviz.images.preprocess import standard
        >>> placement = find_placement(standard(InputOptions(size=(96, 96), fit="squash")), (192, 384))
        >>> [round(scale, 2) for scale in placement.scale]
        [2.0, 4.0]
    """
    if preparation.place:
        return preparation.place(size)
    try:
        if not _repeats(preparation):
            return None
        across, down = _fit(preparation, size)
    except UnmeasurableError:
        return None
    return Placement((across[0], down[0]), (across[1], down[1]))


def _fit(preparation: Preparation, size: Size) -> tuple[Line, Line]:
    """Return the lines across and down, after zooming to the visible part of the picture."""
    view = _calibrate(preparation, size)
    windows: Windows = ((0.0, float(size[0])), (0.0, float(size[1])))
    while True:
        across, down = _measure(preparation, view, size=size, windows=windows)
        axes = (across, view.columns), (down.T, view.rows)
        zoomed = tuple(_zoom(*axis, window) for axis, window in zip(axes, windows, strict=True))
        if zoomed == windows:
            return _fit_line(*axes[0], windows[0]), _fit_line(*axes[1], windows[1])
        windows = zoomed[0], zoomed[1]


def _zoom(positions: Array, columns: Numbers, window: Window) -> Window:
    """Return the part of the window that is visible, with a margin, if it is less than half of the window."""
    quarter = len(columns) // 4
    scale, offset = _line(positions[:, quarter : len(columns) - quarter], columns[quarter : len(columns) - quarter])
    first, last = sorted((scale * columns[0] + offset, scale * (columns[-1] + 1) + offset))
    margin = max((last - first) / 4, 4.0, 4 * _LEVEL * (window[1] - window[0]))
    zoomed = first - margin, last + margin
    return zoomed if zoomed[1] - zoomed[0] < (window[1] - window[0]) / 2 else window


def _fit_line(positions: Array, columns: Numbers, window: Window) -> Line:
    """Fit a line to positions in the columns of an input, except near the edges, where interpolation flattens a ramp."""
    scale, _ = _line(positions, columns)
    require(scale)
    # Lanczos, the widest kernel, reaches 3 pixels of the picture or of the input, whichever are larger.
    margin = max(3.0, 2.5 / abs(scale))
    inner = (columns >= columns[0] + margin) & (columns <= columns[-1] - margin)
    require(inner.sum() >= 2)
    scale, offset = _line(positions[:, inner], columns[inner])
    residuals = positions[:, inner] - (scale * (columns[inner] + 0.5) + offset)
    blocks = [block.mean() for rows in _split(residuals, 0) for block in _split(rows, 1)]
    noise = 2 * _LEVEL * (window[1] - window[0]) / np.sqrt(residuals.size / len(blocks))
    require(np.abs(blocks).max() < _RESIDUAL * max(1.0, abs(scale)) + noise)
    return scale, offset


def _line(positions: Array, columns: Numbers) -> Line:
    require(len(columns) >= 2)
    scale, offset = np.polyfit(columns + 0.5, positions.mean(axis=0), 1)
    return float(scale), float(offset)


def _split(values: Array, axis: int) -> list[Array]:
    return np.array_split(values, min(_BLOCKS, values.shape[axis]), axis=axis)


@dataclass(frozen=True, slots=True, eq=False)
class _SeenRegion:
    """The rows and columns of an input that are sampled, without padding.

    Attributes:
        shape: Shape of the whole input.
        rows: Their numbers.
        columns: Their numbers.
        black: Values there for a black picture, means of all channels, `(rows, columns)`.
        gain: The change of values for a white one.
    """

    shape: torch.Size
    rows: Numbers
    columns: Numbers
    black: Array
    gain: Array


@lru_cache(maxsize=4)
def _repeats(preparation: Preparation) -> bool:
    """Return False if a preprocessing returns different inputs for the same picture.

    A flip of one picture in two passes once in 2048 times.
    """
    picture = _ramp(0, ((0, 640), (0, 480)), size=(640, 480), channels=preparation.channels)
    first = _apply(preparation, picture)
    return all(torch.equal(_apply(preparation, picture), first) for _ in range(REPEATS - 1))


def _calibrate(preparation: Preparation, size: Size) -> _SeenRegion:
    """Measure the values of black and white, and where the picture is: padding is the same for both."""
    black, white = (_apply(preparation, _flat(value, size=size, channels=preparation.channels)) for value in (0, 1))
    rows, columns = map(_spread, black.shape[1:])
    low, high = (_sample(prepared, rows, columns, shape=black.shape) for prepared in (black, white))
    gain = np.abs(high - low)
    shown = gain > 0.99 * gain.max()
    y, x = np.flatnonzero(shown.any(axis=1)), np.flatnonzero(shown.any(axis=0))
    require(shown.any() and shown[y[0] : y[-1] + 1, x[0] : x[-1] + 1].all())
    inside = np.ix_(y, x)
    return _SeenRegion(black.shape, rows[y], columns[x], low[inside], (high - low)[inside])


def _measure(preparation: Preparation, view: _SeenRegion, *, size: Size, windows: Windows) -> tuple[Array, Array]:
    """Measure which positions of the picture the input shows, across and down, `(rows, columns)`."""
    pictures = (_ramp(number, windows, size=size, channels=preparation.channels) for number in range(3))
    prepared = (_apply(preparation, picture) for picture in pictures)
    values = np.stack([_sample(pixels, view.rows, view.columns, shape=view.shape) for pixels in prepared])
    above = (values - view.black) / view.gain - _BASES[:, None, None]
    shares = np.tensordot(np.linalg.inv(_SHARES[:2]), above[:2], axes=1)
    # Rounding to 8 bits, of the picture and after resizing each axis, makes at most 2.7 levels.
    require(np.abs(np.tensordot(_SHARES[2], shares, axes=1) - above[2]).max() < 3 * _LEVEL)
    across, down = (low + share * (high - low) for share, (low, high) in zip(shares, windows, strict=True))
    return across, down


def require(condition: object) -> None:
    """Raise `UnmeasurableError` unless a condition is met."""
    if not condition:
        raise UnmeasurableError


def _apply(preparation: Preparation, picture: PillowImage.Image | Bands) -> Tensor:
    """Return the prepared input `(C, H, W)`; of a clip the first frame."""
    try:
        prepared = preparation.apply(picture)
    except Exception as error:
        raise UnmeasurableError from error
    return prepared[:, 0] if prepared.ndim == 4 else prepared


def _spread(length: int) -> Numbers:
    """Return up to `_MOST_SAMPLES` numbers of rows or columns, the first and the last one among them."""
    return np.unique(np.linspace(0, length - 1, min(length, _MOST_SAMPLES)).round().astype(np.intp))


def _sample(prepared: Tensor, rows: Numbers, columns: Numbers, *, shape: torch.Size) -> Array:
    """Return means of all channels at some rows and columns."""
    require(prepared.shape == shape)
    chosen = prepared[:, torch.from_numpy(rows)][:, :, torch.from_numpy(columns)]
    means: Array = chosen.double().mean(dim=0).numpy()
    require(np.isfinite(means).all())
    return means


def _ramp(number: int, windows: Windows, *, size: Size, channels: int) -> PillowImage.Image | Bands:
    """Return one of the three pictures of positions.

    Args:
        number: 0 to 2.
        windows: The part that has all values; pixels beyond it have those of its edges.
        size: Width and height; pixels.
        channels: C.

    Returns:
        A picture in mode L or RGB for one or three channels, else bands.
    """
    shares = (_share(length, window) for length, window in zip(size, windows, strict=True))
    across, down = (weight * share for weight, share in zip(_SHARES[number], shares, strict=True))
    if channels in {1, 3}:
        # Fixed-point numbers take a third of the time. Rounding halves up adds half a step on average, which truncating the
        # columns takes away: at 4000 pixels that is 0.04 of a pixel.
        columns, rows = (across * 0xFF00).astype(np.uint16), np.rint((down + _BASES[number]) * 0xFF00).astype(np.uint16)
        grey = PillowImage.fromarray((np.add.outer(rows + np.uint16(0x80), columns) >> 8).astype(np.uint8))
        return grey if channels == 1 else grey.convert("RGB")
    plane = PillowImage.fromarray(np.add.outer(down + _BASES[number], across).astype(np.float32))
    return Bands((plane,) * channels)


def _flat(value: int, *, size: Size, channels: int) -> PillowImage.Image | Bands:
    """Return a black or a white picture."""
    if channels in {1, 3}:
        return PillowImage.new("L" if channels == 1 else "RGB", size, "white" if value else "black")
    return Bands((PillowImage.new("F", size, value),) * channels)


def _share(length: int, window: Window) -> NDArray[np.float64]:
    """Return the positions of pixels inside a window, from 0 to 1."""
    return ((np.arange(length) + 0.5 - window[0]) / (window[1] - window[0])).clip(0, 1)
