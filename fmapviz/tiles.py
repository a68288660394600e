"""Where the tiles of a grid lie."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tiles:
    """Equal rectangles in rows, all measures in pixels.

    Attributes:
        left: From the picture's left edge to the first tile.
        top: From its upper edge.
        width: Of a tile.
        height: Of a tile.
        across: From one tile's left edge to that of the next in its row.
        down: From one row to the next.
        columns: Tiles in a row; the last row may have fewer.
        count: Tiles in all.

    Example:
        >>> Tiles(left=2, top=2, width=55, height=55, across=57, down=57, columns=8, count=64).corner(9)
        (59, 59)
    """

    left: int
    top: int
    width: int
    height: int
    across: int
    down: int
    columns: int
    count: int

    def corner(self, number: int) -> tuple[int, int]:
        """Give the left upper corner of a tile, counted from 0 row by row: x and y."""
        row, column = divmod(number, self.columns)
        return self.left + column * self.across, self.top + row * self.down
