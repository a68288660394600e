"""Find where a preprocessed input lies in its file: undo resizing, cropping, padding and the EXIF orientation.

The geometry of a `Preparation` is measured, because it may be a function of the user: pictures whose values are positions go
through it, see `fmapviz.images.positions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.images.positions import LEVEL, UnmeasurableError, calibrate, measure, repeats, require

if TYPE_CHECKING:
    from fmapviz.images.positions import Array, Numbers, Size, Window, Windows
    from fmapviz.types import Preparation

    Line = tuple[float, float]  # scale, offset

_BLOCKS = 6  # in each direction, over which residuals are averaged
_RESIDUAL = 0.3  # of a pixel of the file or of the input, whichever is larger
_SLACK = 0.04  # of a pixel, likewise; of 1500 random sizes, 98 % are fitted better than that


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the pixels of a preprocessed input lie in the upright picture.

    On each axis, a position p in the input lies at `scale * p + offset` in the picture. Positions are distances in pixels
    from the left or upper edge: pixel 3 covers 3 to 4. A negative scale mirrors the picture.

    Attributes:
        scale: Pixels of the picture per pixel of the input, across and down.
        offset: Position of the input's left and upper edge in the picture; negative if the picture is padded.
    """

    scale: tuple[float, float]
    offset: tuple[float, float]

    def to_file(
        self, box: tuple[float, float, float, float], *, orientation: int, size: tuple[int, int]
    ) -> tuple[int, int, int, int]:
        """Return the smallest rectangle of stored pixels that covers a box of an input.

        Args:
            box: Left, top, right and bottom in the input; pixels, right and bottom exclusive.
            orientation: EXIF orientation of the file, 1 to 8.
            size: Width and height of the upright picture.

        Returns:
            Left, top, right and bottom in the picture as stored. It is empty if the box covers only padding.

        Example:
            >>> halved = Placement(scale=(2.0, 2.0), offset=(0.0, 0.0))
            >>> halved.to_file((1, 2, 3, 5), orientation=1, size=(20, 16))
            (2, 4, 6, 10)
            >>> halved.to_file((1, 2, 3, 5), orientation=6, size=(20, 16))  # the camera was held on its side
            (4, 14, 10, 18)
        """
        x = _cover(box[0], box[2], (self.scale[0], self.offset[0]), size[0])
        y = _cover(box[1], box[3], (self.scale[1], self.offset[1]), size[1])
        if orientation in {2, 3, 6, 7}:
            x = size[0] - x[1], size[0] - x[0]
        if orientation in {3, 4, 7, 8}:
            y = size[1] - y[1], size[1] - y[0]
        if orientation >= 5:
            x, y = y, x
        return x[0], y[0], x[1], y[1]


def find_placement(preparation: Preparation, size: tuple[int, int]) -> Placement | None:
    """Measure the geometry of a preprocessing for upright pictures of one size.

    The preprocessing is called five times with pictures of that size, three times more for each time that the visible part
    turns out to be small, and `REPEATS` times with a smaller one, once for each preprocessing. The mean and the standard
    deviation need not be known.

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
    try:
        if not repeats(preparation):
            return None
        across, down = _fit(preparation, size)
    except UnmeasurableError:
        return None
    return Placement((across[0], down[0]), (across[1], down[1]))


def _cover(low: float, high: float, line: Line, length: int) -> tuple[int, int]:
    """Return the whole pixels of the picture that an interval of the input covers by more than the slack."""
    scale, offset = line
    first, last = sorted((scale * low + offset, scale * high + offset))
    slack = _SLACK * max(1.0, abs(scale))
    begin = floor(first + slack)
    end = max(begin + 1, ceil(last - slack))
    return min(max(begin, 0), length), min(max(end, 0), length)


def _fit(preparation: Preparation, size: Size) -> tuple[Line, Line]:
    """Return the lines across and down, after zooming to the visible part of the picture."""
    view = calibrate(preparation, size)
    windows: Windows = ((0.0, float(size[0])), (0.0, float(size[1])))
    while True:
        across, down = measure(preparation, view, size=size, windows=windows)
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
    margin = max((last - first) / 4, 4.0, 4 * LEVEL * (window[1] - window[0]))
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
    noise = 2 * LEVEL * (window[1] - window[0]) / np.sqrt(residuals.size / len(blocks))
    require(np.abs(blocks).max() < _RESIDUAL * max(1.0, abs(scale)) + noise)
    return scale, offset


def _line(positions: Array, columns: Numbers) -> Line:
    require(len(columns) >= 2)
    scale, offset = np.polyfit(columns + 0.5, positions.mean(axis=0), 1)
    return float(scale), float(offset)


def _split(values: Array, axis: int) -> list[Array]:
    return np.array_split(values, min(_BLOCKS, values.shape[axis]), axis=axis)
