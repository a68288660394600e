"""Locate boxes and pixels of files in the preprocessed inputs of a batch, and in the scores of their pixels."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fmapviz.core.centres import Centres
    from fmapviz.core.placement import Box, InFile


class AbsentError(Exception):
    """An image does not have a target; the text is the reason."""


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """Where the inputs of a batch lie in their files.

    Attributes:
        size: Height and width of the inputs; pixels.
        files: The file of each image; None of an input that is no file, whose own pixels count. Empty: all are such.
        scores: Where the pixels of scores lie in the inputs; None if that is unknown.
    """

    size: tuple[int, int]
    files: Sequence[InFile | None] = ()
    scores: Centres | None = None

    def box(self, image: int, box: Box) -> Box:
        """Return where a box of the file lies in the input.

        Args:
            image: Position in the batch.
            box: Left, top, right and bottom; pixels of the upright picture.

        Raises:
            AbsentError: It is outside the picture, or outside the part that the network sees, or this is unknown.

        Example:
            >>> Located((4, 8)).box(0, (1, 1, 3, 2))
            (1, 1, 3, 2)
        """
        file = self.files[image] if self.files else None
        height, width = self.size
        picture = (width, height) if file is None else file.size
        if not _overlap(box, (0, 0, *picture)):
            raise AbsentError(f"it is outside the picture, which has {picture[0]} x {picture[1]} pixels")
        if file is None:
            return box
        found = file.to_input(box)
        if found is None:
            raise AbsentError("the preprocessing is not a scale and an offset: where the input lies in the file is unknown")
        if not _overlap(found, (0, 0, width, height)):
            seen = ",".join(map(str, self.in_file(image, (0, 0, width, height))))
            raise AbsentError(f"the network does not see it: left, top, right and bottom of what it sees are {seen}")
        return found

    def pixel(self, image: int, place: tuple[float, float], *, grid: tuple[int, int]) -> tuple[int, int]:
        """Return row and column of the score of a pixel of the file.

        Args:
            image: Position in the batch.
            place: Column and row of the pixel, from 0.
            grid: Rows and columns of the scores.

        Raises:
            AbsentError: As of `box`; or there is no score of that pixel, or it is unknown where the scores lie.

        Example:
            >>> Located((4, 8)).pixel(0, (6, 2), grid=(4, 8))
            (2, 6)
        """
        x, y = place
        left, top, right, bottom = self.box(image, (x, y, x + 1, y + 1))
        at = ((top + bottom) / 2, (left + right) / 2)
        centres = self.scores if self.scores and self.scores.grid == grid else None
        if grid == self.size or (centres and centres.is_spread):  # a score for each pixel, or for each patch
            row, column = (min(max(floor(p * n / side), 0), n - 1) for p, n, side in zip(at, grid, self.size, strict=True))
        elif centres:
            row, column = (_nearest(lines, p) for lines, p in zip((centres.rows, centres.columns), at, strict=True))
        else:
            scores, pixels = (" x ".join(map(str, size)) for size in (grid, self.size))
            raise AbsentError(f"it is unknown where the network's {scores} scores lie in its {pixels} pixels")
        return row, column

    def in_file(self, image: int, box: Box) -> tuple[int, ...]:
        """Return where a box of the input lies in the file; empty if that is unknown."""
        file = self.files[image] if self.files else None
        return tuple(map(round, (box if file is None else file.to_file(box)) or ()))


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _nearest(centres: NDArray[np.float64], place: float) -> int:
    found = int(np.abs(centres - place).argmin())
    step = np.ptp(centres) / max(1, len(centres) - 1)
    if abs(centres[found] - place) > step:
        raise AbsentError("the network returns no score of it")
    return found
