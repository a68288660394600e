"""Where in the network's input the positions of a feature map lie."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fmapviz.errors import PositionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fmapviz.core.drawings import Size

    Numbers = NDArray[np.float64]
    Indices = NDArray[np.int64]

_CLOSE = 1e-3  # of a pixel
_NEAR = 0.05  # likewise, between positions that were found in two ways


class Between(NamedTuple):
    """Which positions of a row each pixel lies between.

    Attributes:
        before: int64 `(n,)`.
        after: int64 `(n,)`; the same as `before` beyond the first and the last position.
        share: Of the value at `after`, float64 `(n,)`, 0..1.
    """

    before: Indices
    after: Indices
    share: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class Centres:
    """The centres of the parts of the input that the positions of a map are computed from, without their sizes.

    Coordinates are distances from the upper or left edge in pixels: pixel 3 covers 3 to 4, its centre is 3.5. Maps are drawn
    over the input with each value at its centre; beyond the first and the last one, the nearest value is repeated.

    Attributes:
        rows: Of each row of the map, float64 `(h,)`; descending if the network mirrors its input.
        columns: Of each column, float64 `(w,)`.
        picture: Height and width of the input, pixels.
        seen: The first and last row, and the first and last column, that some position depends on, or
            that are a rest at the border of less than a step; None: all.
    """

    rows: Numbers
    columns: Numbers
    picture: Size
    seen: tuple[tuple[int, int], tuple[int, int]] | None = None

    @classmethod
    def spread(cls, grid: Size, picture: Size) -> Centres:
        """Return the centres of a map that spans the input in equal parts.

        Example:
            >>> Centres.spread((2, 4), (8, 8)).columns.tolist()
            [1.0, 3.0, 5.0, 7.0]
        """
        rows, columns = ((np.arange(count) + 0.5) * side / count for count, side in zip(grid, picture, strict=True))
        return cls(rows, columns, picture)

    @property
    def grid(self) -> Size:
        """Rows and columns of the map."""
        return len(self.rows), len(self.columns)

    @property
    def is_spread(self) -> bool:
        """True if the map spans the input: a position for each step, whose centre lies in its own equal part of the input.

        Convolutions that halve a padded picture have their centres up to half a step before the middle of that part, by
        their geometry. What they have learnt lies nearer to the middle: shapesnet answers to dots at 8 k + 3.7 pixels; the
        centres are 8 k + 0.5 and the middles 8 k + 4. Placed by the centres, 90 % of its Grad-CAM's peaks lie in the
        shape; placed in the middles, more than 95 %.
        """
        return all(_are_parts(centres, side) for centres, side in zip((self.rows, self.columns), self.picture, strict=True))

    @property
    def reaches_borders(self) -> bool:
        """True if no pixel is more than a step beyond the first or the last position; false of a single one."""
        for centres, side in zip((self.rows, self.columns), self.picture, strict=True):
            step = np.ptp(centres) / (len(centres) - 1) if len(centres) > 1 else 0.0
            if not (centres.min() <= step and side - centres.max() <= step):
                return False
        return True

    def part(self, rows: Numbers, columns: Numbers) -> Centres | None:
        """Return the centres of some rows and columns, in their order; None if one is outside.

        Args:
            rows: About where each row lies.
            columns: Likewise.
        """
        found = []
        for centres, places in ((self.rows, rows), (self.columns, columns)):
            near = centres[_nearest(centres, places)]
            if (abs(near - places) > _NEAR).any() or (np.diff(near) == 0).any():
                return None
            found.append(near)
        return replace(self, rows=found[0], columns=found[1])

    def equals(self, other: Centres) -> bool:
        """Return True if the positions of another map of this input lie at the same places."""
        pairs = ((self.rows, other.rows), (self.columns, other.columns))
        return all(len(one) == len(two) and bool((abs(one - two) < _CLOSE).all()) for one, two in pairs)

    def cell(self, at: tuple[int, int]) -> tuple[int, int]:
        """Return row and column of the position that is nearest to a pixel of the input.

        Raises:
            PositionError: The pixel is outside the picture.

        Example:
            >>> Centres.spread((14, 14), (224, 224)).cell((112, 80))
            (7, 5)
        """
        height, width = self.picture
        if not (at[0] < height and at[1] < width):
            raise PositionError(
                f"row {at[0]}, column {at[1]} is outside the picture",
                hint=f"the input is {height} x {width} pixels, counted from 0",
            )
        row, column = (
            int(_nearest(centres, np.array([place + 0.5]))[0])
            for centres, place in zip((self.rows, self.columns), at, strict=True)
        )
        return row, column

    def nearest(self, size: Size) -> tuple[Indices, Indices]:
        """Return which row and column of the map is nearest to each pixel of the input, drawn at a size.

        Example:
            >>> Centres.spread((2, 3), (6, 6)).nearest((4, 6))[1].tolist()
            [0, 0, 1, 1, 2, 2]
        """
        rows, columns = map(_nearest, (self.rows, self.columns), self._pixels(size))
        return rows, columns

    def between(self, size: Size) -> tuple[Between, Between]:
        """Return which rows and columns of the map each pixel of the input, drawn at a size, lies between.

        Example:
            >>> Centres.spread((1, 2), (1, 4)).between((1, 4))[1].share.tolist()
            [0.0, 0.25, 0.75, 0.0]
        """
        rows, columns = map(_between, (self.rows, self.columns), self._pixels(size))
        return rows, columns

    def unseen(self, size: Size) -> NDArray[np.bool_] | None:
        """Return which pixels of the input, drawn at a size, no position depends on, `(H, W)`; None if there is none.

        Example:
            >>> Centres(np.array([1.5]), np.array([1.0, 2.0]), (3, 4), ((0, 2), (0, 2))).unseen((1, 4)).tolist()
            [[False, False, False, True]]
        """
        if self.seen is None:
            return None
        rows, columns = (
            (places < ends[0]) | (places > ends[1] + 1) for places, ends in zip(self._pixels(size), self.seen, strict=True)
        )
        return rows[:, None] | columns if rows.any() or columns.any() else None

    def averaged(self, grid: Size) -> Centres:
        """Return the centres of a map that was averaged to fewer rows and columns, as adaptive pooling does."""
        parts = []
        for centres, count in zip((self.rows, self.columns), grid, strict=True):
            have, part = len(centres), np.arange(count)
            begin, end = part * have // count, -(-(part + 1) * have // count)
            sums = np.concatenate([[0.0], np.cumsum(centres)])
            parts.append((sums[end] - sums[begin]) / (end - begin))
        return replace(self, rows=parts[0], columns=parts[1])

    def _pixels(self, size: Size) -> tuple[Numbers, Numbers]:
        """Return the centres of the pixels of the input, drawn at a size."""
        rows, columns = ((np.arange(wanted) + 0.5) * side / wanted for wanted, side in zip(size, self.picture, strict=True))
        return rows, columns


def _are_parts(centres: Numbers, side: int) -> bool:
    """Return True if there is one centre for each step, in order, and each lies in its own equal part of a side."""
    count = len(centres)
    if count == 1:
        return True
    step = (centres[-1] - centres[0]) / (count - 1)
    parts = np.floor(centres * count / side + _CLOSE)
    return bool(step > 0 and count == np.ceil(side / step - _CLOSE) and (parts == np.arange(count)).all())


def _nearest(centres: Numbers, places: Numbers) -> Indices:
    """Return the index of the nearest centre for each place; of two equally near ones, the one behind it."""
    order = np.argsort(centres, kind="stable")
    ascending = centres[order]
    found: Indices = order[np.searchsorted((ascending[1:] + ascending[:-1]) / 2, places, side="right")]
    return found


def _between(centres: Numbers, places: Numbers) -> Between:
    order = np.argsort(centres, kind="stable")
    at = np.interp(places, centres[order], np.arange(len(centres)))
    before = at.astype(np.int64)
    return Between(order[before], order[np.minimum(before + 1, len(centres) - 1)], at - before)
