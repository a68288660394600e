"""What views draw, and how it looks before it has a frame; of other contents see `fmapviz.types.CustomContent`."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, nan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray

Size = tuple[int, int]  # height and width


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
        """Return the top left corner of a tile, counted from 0 row by row: x and y."""
        row, column = divmod(number, self.columns)
        return self.left + column * self.across, self.top + row * self.down


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Content of a drawing: one tile per channel, or one bar per element of a vector.

    Attributes:
        pixels: uint8 `(H, W)` or `(H, W, 3)`.
        tiles: Position of the tiles.
        rows: Whether each of them is a row of tiles that belong together: a filter.
        cells: Position of the single tiles of which `tiles` has several each, with padding between them; None if they are
            the same.
        channels: The channels shown, in the order of the tiles; None for all.
        limits: Values at the ends of the scale; None if each channel has its own, or no value is finite.
        bars: Whether the tiles are bars.
        total: Number of all channels, also of those that are not shown.
        ends: Values that levels 0 and 255 of each tile stand for, float32 `(2, T)`; None if pixels have no such values.
        palette: Colour map of the pixels; None if they are the levels.
    """

    pixels: NDArray[np.uint8]
    tiles: Tiles | None = None
    rows: bool = False
    channels: tuple[int, ...] | None = None
    limits: tuple[float, float] | None = None
    bars: bool = False
    total: int = 0
    ends: NDArray[np.float32] | None = None
    palette: str | None = None
    cells: Tiles | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """Content of a drawing: number of values per bin.

    Attributes:
        counts: int64 `(B,)`, of B equal bins; the last one includes both of its edges.
        low: Smallest finite value; NaN if there is none.
        high: Largest finite value; NaN if there is none.
        nonfinite: Number of values that are NaN or infinite; no bin counts them.
    """

    counts: NDArray[np.int64]
    low: float
    high: float
    nonfinite: int


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """Content of a drawing: one map, either the evidence for a class or all channels of a layer reduced to one.

    Attributes:
        raw: float32 `(h, w)` at the layer's resolution; signed for a class.
        pixels: uint8 `(H, W)`, 0..255: the positive part of `raw` for a class, all of it for a reduction.
        over: Whether it is drawn over the input.
        colormap: Used unless the style names one.
        limits: Values at the ends of the scale of a reduction, NaN if no value is finite; None for a class.
        nonfinite: Number of values that are NaN or infinite and were left out of a reduction.
        shows: Meaning of the values, if they have their own scale, the same for all images; else empty.
        mark: Row and column of a pixel of the input to mark; None: nothing is marked.
        common: Values at the ends of the scale of a class, if all images of the run share it; None: its own extremes.
        ends: Of a class the values at 0 and 255 of `pixels`, which are enlarged and so flatter than `raw`.
        method: How it was computed, in words; empty: the view says all.
        note: A number about this map, in few words, for its caption; empty: there is none.
    """

    raw: NDArray[np.float32]
    pixels: NDArray[np.uint8]
    over: bool
    colormap: str
    limits: tuple[float, float] | None = None
    nonfinite: int = 0
    shows: str = ""
    mark: tuple[int, int] | None = None
    common: tuple[float, float] | None = None
    ends: tuple[float, float] | None = None
    method: str = ""
    note: str = ""

    @property
    def values(self) -> Mapping[str, NDArray[Any]]:
        """The raw values, by the suffix of the map's name."""
        return {"": self.raw}

    @property
    def finite(self) -> NDArray[np.bool_]:
        """Which raw values are finite, boolean `(h, w)`."""
        finite: NDArray[np.bool_] = abs(self.raw) < inf
        return finite

    @property
    def extremes(self) -> tuple[float, float]:
        """Smallest and largest raw value; of a reduction the finite ones, NaN if there is none."""
        values = self.raw if self.limits is None else self.raw[self.finite]
        return (float(values.min()), float(values.max())) if values.size else (nan, nan)

    @property
    def empty(self) -> bool:
        """True if all pixels are 0: no positive value, or the same value everywhere."""
        return not bool(self.pixels.any())


@dataclass(frozen=True, slots=True, eq=False)
class Rendered:
    """A picture before its frame: numbers, colour bar and header.

    Attributes:
        pixels: uint8 `(H, W)` or `(H, W, 3)`.
        colormap: Of the colour bar; None for grey.
        marks: Labels of the colour bar, by their height from 0 to 1; none: no colour bar.
        alpha: Opacity of the colours, over a grey picture.
        legend: Colours in the picture, red, green and blue, by what they are; none: no legend.
        palette: Colours whose numbers the pixels are, uint8 `(256, 3)`; such a picture gets no frame.
        has_input: Whether the input is in it already.
    """

    pixels: NDArray[np.uint8]
    colormap: str | None = None
    marks: Sequence[tuple[float, str]] = ()
    alpha: float = 1.0
    legend: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)
    palette: NDArray[np.uint8] | None = None
    has_input: bool = False
