"""Where a preprocessed input lies in its picture."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor

Box = tuple[float, float, float, float]  # left, top, right and bottom

_SLACK = 0.04  # pixels of the file or of the input, whichever are larger: measured placements are that exact


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

    def to_file(self, box: Box, *, orientation: int, size: tuple[int, int]) -> tuple[int, int, int, int]:
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


@dataclass(frozen=True, slots=True)
class InFile:
    """The picture that a preprocessed input shows, or a part of it, upright as viewers show it.

    Attributes:
        placement: Where the input lies in the picture; None if that is unknown.
        size: Width and height of the picture; pixels.
    """

    placement: Placement | None
    size: tuple[int, int]

    def to_file(self, box: Box) -> Box | None:
        """Return the part of a box of the input that is in the picture; None if it is unknown where that lies.

        Example:
            >>> InFile(Placement(scale=(2.0, 2.0), offset=(-4.0, 0.0)), (20, 16)).to_file((1, 2, 3.25, 5))
            (0.0, 4.0, 2.5, 10.0)
        """
        if self.placement is None:
            return None
        lines = zip(self.placement.scale, self.placement.offset, self.size, strict=True)
        across, down = (
            sorted(min(max(scale * end + offset, 0.0), float(side)) for end in ends)
            for ends, (scale, offset, side) in zip((box[::2], box[1::2]), lines, strict=True)
        )
        return across[0], down[0], across[1], down[1]

    def to_input(self, box: Box) -> Box | None:
        """Return where a box of the picture lies in the input, perhaps outside of it; None if that is unknown.

        Example:
            >>> InFile(Placement(scale=(2.0, 2.0), offset=(-4.0, 0.0)), (20, 16)).to_input((0, 4, 2, 10))
            (2.0, 2.0, 3.0, 5.0)
        """
        if self.placement is None:
            return None
        lines = zip((box[::2], box[1::2]), self.placement.scale, self.placement.offset, strict=True)
        across, down = (sorted((end - offset) / scale for end in ends) for ends, scale, offset in lines)
        return across[0], down[0], across[1], down[1]


def _cover(low: float, high: float, line: tuple[float, float], length: int) -> tuple[int, int]:
    """Return the whole pixels of the picture that an interval of the input covers by more than the slack."""
    scale, offset = line
    first, last = sorted((scale * low + offset, scale * high + offset))
    slack = _SLACK * max(1.0, abs(scale))
    begin = floor(first + slack)
    end = max(begin + 1, ceil(last - slack))
    return min(max(begin, 0), length), min(max(end, 0), length)
