"""Frame a picture as its style wants it: channel numbers, a colour bar, a header."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fmapviz.frames import add_colorbar, add_header, number_rows, number_tiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from fmapviz.options import Style
    from fmapviz.tiles import Tiles

    Marks = Sequence[tuple[float, str]]


def is_numbered(style: Style) -> bool:
    """Tell whether tiles are to bear numbers: also where these are not known beforehand, unless they are unwanted."""
    return bool(style.labels or (style.labels is None and style.top))


def frame(
    pixels: NDArray[np.uint8],
    style: Style,
    *,
    lines: Sequence[str],
    colormap: str | None = None,
    marks: Marks = (),
    tiles: Tiles | None = None,
    rows: Tiles | None = None,
    numbers: Sequence[int] | None = None,
) -> tuple[NDArray[np.uint8], Tiles | None]:
    """Put around a picture what `style.labels` and `style.colorbar` ask for.

    Args:
        pixels: uint8 `(H, W)` or `(H, W, 3)`.
        style: How pictures look.
        lines: The header.
        colormap: Of the colour bar, None for a grey one.
        marks: What the colour bar is to say: places from 0, its foot, to 1; without any there is none.
        tiles: Where the picture's tiles lie, if it has any.
        rows: Where rows of tiles lie that belong together, if there are such.
        numbers: Of the tiles, or of those rows; None: they are counted from 0.

    Returns:
        The framed picture, and where its tiles lie now.
    """
    numbered = tiles or rows
    if numbered and is_numbered(style):
        number = number_tiles if tiles else number_rows
        pixels, numbered = number(pixels, numbered, range(numbered.count) if numbers is None else numbers)
        tiles = tiles and numbered
    if style.colorbar and marks:
        pixels = add_colorbar(pixels, colormap=colormap, marks=marks)
    if style.labels and lines:
        height = pixels.shape[0]
        pixels = add_header(pixels, lines)
        tiles = tiles and replace(tiles, top=tiles.top + pixels.shape[0] - height)
    return pixels, tiles
