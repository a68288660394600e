"""Lay out the grids of two networks, and of what the second adds, beside each other under their captions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fmapviz.render.labels import number_tiles
from fmapviz.render.layout import BLACK, column, draw, picture, row
from fmapviz.render.text import Typeface, set_lines, wrap

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fmapviz.core.drawings import Panels

_CAPTION = Typeface(12, 200)
_NARROWEST, _GAP, _BELOW = 110, 10, 4  # pixels
_ALONE = 160  # pixels: a single map is enlarged to about that


def draw_panels(panels: Panels, *, numbered: bool) -> NDArray[np.uint8]:
    """Draw grids beside each other.

    Args:
        panels: The grids.
        numbered: Whether tiles show the numbers of their channels.

    Returns:
        uint8 `(H, W)` or `(H, W, 3)`.

    Example:
        >>> from fmapviz.core.drawings import Panels
        >>> draw_panels(Panels(np.zeros((200, 600), np.uint8), ("A", "B", "B - A")), numbered=False).shape
        (220, 620)
    """
    columns = []
    grids = np.split(panels.pixels, len(panels.captions), axis=1)
    times = 1 if panels.tiles else max(1, _ALONE // max(grids[0].shape[:2]))
    for caption, pixels in zip(panels.captions, grids, strict=True):
        shown = pixels.repeat(times, 0).repeat(times, 1)
        if numbered and panels.tiles:
            shown, _ = number_tiles(shown, panels.tiles, panels.channels or range(panels.tiles.count))
        width = max(shown.shape[1], _NARROWEST)
        text = set_lines(wrap(caption, _CAPTION, width, lines=3), ground=BLACK)
        columns.append((text.within(width, text.height, x=0), picture(shown)))
    height = max(text.height for text, _ in columns)
    boxes = [column([text.within(text.width, height, y=1), shown], gap=_BELOW) for text, shown in columns]
    return draw(row(boxes, gap=_GAP), BLACK)
