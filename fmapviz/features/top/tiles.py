"""Draw the part of a picture in a receptive field."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from fmapviz.core import files
from fmapviz.core.centres import Centres
from fmapviz.features.top.options import LARGEST

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from fmapviz.features.top.locate import Position
    from fmapviz.features.top.options import Crop, TopOptions
    from fmapviz.observe.receptive_field import ReceptiveField
    from fmapviz.store.aggregates.ranking import By

    Picture = NDArray[np.uint8]
    Map = NDArray[np.float32]

SIDE = 96  # of a tile, pixels
GREY, WHITE = 128, 255
_CONTOUR, _EDGE = (255, 230, 0), (20, 20, 20)


class TileFile:
    """Tiles on the disk by number, because those of a large network do not fit into memory.

    Args:
        directory: Directory of the file, which has no name and ends with the process.
        side: Width and height of a tile, pixels.
    """

    def __init__(self, directory: Path, side: int) -> None:
        self.side = side
        self._bytes = side * side * 3
        self._file = files.Scratch(directory)

    def write(self, number: int, tile: Picture) -> None:
        """Store a tile, uint8 `(side, side, 3)`; may be called by several threads at once.

        Raises:
            OSError: The disk is full, for example.
        """
        self._file.write(np.ascontiguousarray(tile).data, number * self._bytes)

    def read(self, number: int) -> Picture:
        """Return a tile that was stored."""
        data = self._file.read(self._bytes, number * self._bytes)
        return np.frombuffer(data, np.uint8).reshape(self.side, self.side, 3)

    def close(self) -> None:
        """Remove the file."""
        self._file.close()


def draw_tile(
    seen: Picture,
    values: Map,
    field: ReceptiveField | None,
    position: Position,
    options: TopOptions,
    *,
    centres: Centres | None = None,
    side: int = SIDE,
) -> Picture:
    """Draw the part of a picture in a receptive field.

    Args:
        seen: The input as the network saw it, uint8 `(H, W)` or `(H, W, 3)`.
        values: The channel, float32 `(h, w)`.
        field: The fields of the positions; None if they are not known.
        position: The position that is shown.
        options: Which part is shown.
        centres: Where the positions of the map lie; None if it spans the picture.
        side: Pixels of a tile, which is square.

    Returns:
        uint8 `(side, side, 3)`. A field that extends beyond the picture is grey there. Of a whole picture, a contour
        surrounds where the enlarged map is above half of its maximum, unless it is of one of several samples.
    """
    colour = np.repeat(seen[:, :, None], 3, 2) if seen.ndim == 2 else seen
    if shows_field(field, position, options.crop):
        return _framed(_fit(_cut(colour, position.box), side), side)
    shown = _fit(colour, side)
    if position.sample:
        return _framed(shown, side)
    known = centres or Centres.spread(values.shape, position.picture)
    return _framed(_add_contour(shown, _above_half(values, known, shown.shape[:2], options.by)), side)


def shows_field(field: ReceptiveField | None, position: Position, crop: Crop) -> bool:
    """Return True if a tile shows the receptive field alone, False if it shows the whole picture."""
    if crop != "auto" or field is None:
        return crop == "field" and field is not None
    return all(have < LARGEST * side for have, side in zip(field.size, position.picture, strict=True))


def _cut(picture: Picture, box: tuple[int, int, int, int]) -> Picture:
    """Cut a box out of a picture; it is grey beyond it."""
    left, top, right, bottom = box
    height, width = picture.shape[:2]
    cut = np.full((bottom - top, right - left, 3), GREY, np.uint8)
    rows, columns = slice(max(top, 0), min(bottom, height)), slice(max(left, 0), min(right, width))
    if rows.start < rows.stop and columns.start < columns.stop:
        inner = picture[rows, columns]
        cut[rows.start - top : rows.stop - top, columns.start - left : columns.stop - left] = inner
    return cut


def _fit(picture: Picture, side: int) -> Picture:
    """Scale a picture to the largest size within a square; an enlarged pixel stays a sharp rectangle."""
    height, width = picture.shape[:2]
    factor = side / max(height, width)
    size = max(1, round(width * factor)), max(1, round(height * factor))
    method = Image.Resampling.NEAREST if factor >= 1 else Image.Resampling.BOX
    return np.asarray(Image.fromarray(picture).resize(size, method))


def _framed(picture: Picture, side: int) -> Picture:
    """Place a picture in the middle of a white square."""
    height, width = picture.shape[:2]
    framed = np.full((side, side, 3), WHITE, np.uint8)
    top, left = (side - height) // 2, (side - width) // 2
    framed[top : top + height, left : left + width] = picture
    return framed


def _above_half(values: Map, centres: Centres, shape: tuple[int, int], by: By) -> NDArray[np.bool_]:
    """Return where the enlarged map is above half of its maximum, boolean of a shape.

    Without a maximum above 0, half is between minimum and maximum.
    """
    finite = np.where(np.isfinite(values), values, 0).astype(np.float64)
    signed = -finite if by == "min" else finite
    low, high = float(signed.min()), float(signed.max())
    if low == high:
        return np.zeros(shape, np.bool_)
    for axis, (before, after, part) in enumerate(centres.between(shape)):
        share = part[:, None] if axis == 0 else part[None, :]
        signed = signed.take(before, axis) * (1 - share) + signed.take(after, axis) * share
    enlarged: NDArray[np.bool_] = signed > (high / 2 if high > 0 else (low + high) / 2)
    return enlarged


def _add_contour(picture: Picture, above: NDArray[np.bool_]) -> Picture:
    """Draw a line around where a mask is set, bright on a dark edge."""
    padded = np.pad(above, 1, mode="edge")
    neighbours = [padded[1:-1, :-2], padded[1:-1, 2:], padded[:-2, 1:-1], padded[2:, 1:-1]]
    inner = above & ~np.logical_and.reduce(neighbours)
    outer = ~above & np.logical_or.reduce(neighbours)
    drawn = picture.copy()
    drawn[outer], drawn[inner] = _EDGE, _CONTOUR
    return drawn
