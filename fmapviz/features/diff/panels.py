"""Lay out the grids of two networks, and of what the second adds, beside each other under their captions."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.core.drawings import SHADES
from fmapviz.draw.colormaps import table
from fmapviz.draw.labels import number_tiles
from fmapviz.draw.layout import BLACK, column, draw, picture, row
from fmapviz.draw.text import Typeface, set_lines, wrap

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fmapviz.core.drawings import Panels

_CAPTION, _NUMBERED_CAPTION = Typeface(12, 200), Typeface(12, 100)  # the second is the number of that grey in the palette
_NARROWEST, _GAP, _BELOW = 110, 10, 4  # pixels
_ALONE = 160  # pixels: a single map is enlarged to about that


@cache
def panel_palette() -> NDArray[np.uint8]:
    """Return the colours of `Panels`, uint8 `(256, 3)`.

    Example:
        >>> panel_palette()[[0, 127, 128]].tolist()
        [[0, 0, 0], [255, 255, 255], [59, 76, 192]]
    """
    greys = np.linspace(0, 255, SHADES).round().astype(np.uint8)[:, None].repeat(3, 1)
    colours: NDArray[np.uint8] = table("coolwarm")[np.linspace(0, 255, SHADES).round().astype(int)]
    return np.concatenate([greys, colours])


def draw_panels(panels: Panels, *, numbered: bool, indexed: bool = True) -> NDArray[np.uint8]:
    """Draw grids beside each other.

    Args:
        panels: The grids.
        numbered: Whether tiles show the numbers of their channels.
        indexed: Whether the result may be numbers of colours in the palette, which takes a third of the time.

    Returns:
        uint8 `(H, W)`, numbers of colours, or `(H, W, 3)`.

    Example:
        >>> from fmapviz.core.drawings import Panels
        >>> draw_panels(Panels((np.zeros((200, 200), np.uint8),) * 3, ("A", "B", "B - A")), numbered=False).shape
        (220, 620)
    """
    is_plain = panels.grids[0].ndim == 2 and indexed and not (numbered and panels.tiles)
    times = 1 if panels.tiles else max(1, _ALONE // max(panels.grids[0].shape[:2]))
    face = _NUMBERED_CAPTION if is_plain else _CAPTION
    heads, grids = [], []
    for caption, grid in zip(panels.captions, panels.grids, strict=True):
        shown = grid if grid.ndim == 3 or is_plain else panel_palette()[grid]
        shown = shown.repeat(times, 0).repeat(times, 1) if times > 1 else shown
        if numbered and panels.tiles:
            shown, _ = number_tiles(shown, panels.tiles, panels.channels or range(panels.tiles.count))
        width = max(shown.shape[1], _NARROWEST)
        text = set_lines(wrap(caption, face, width, lines=3))
        heads.append(text.within(width, text.height, x=0))
        grids.append(picture(shown).within(width, shown.shape[0], x=0))
    height = max(text.height for text in heads)
    head = row([text.within(text.width, height, y=1) for text in heads], gap=_GAP)
    return draw(column([head, row(grids, gap=_GAP)], gap=_BELOW), BLACK)
