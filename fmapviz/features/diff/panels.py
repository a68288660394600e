"""Lay out the grids of A, B and B - A beside each other under their captions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import isfinite, nan
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.core.drawings import Rendered
from fmapviz.data import CustomContent
from fmapviz.draw.colormaps import table
from fmapviz.draw.facts import list_numbers, number
from fmapviz.draw.labels import number_tiles
from fmapviz.draw.layout import BLACK, column, draw, picture, row
from fmapviz.draw.picture import is_numbered
from fmapviz.draw.text import Typeface, set_lines, wrap

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fmapviz.config import Style
    from fmapviz.core.drawings import Tiles
    from fmapviz.data import LayerResult

SHADES = 128  # greys of `Panels`, and colours
_CAPTION, _NUMBERED_CAPTION = Typeface(12, 200), Typeface(12, 100)  # the second is the number of that grey in the palette
_NARROWEST, _GAP, _BELOW = 110, 10, 4  # pixels
_ALONE = 160  # pixels: a single map is enlarged to about that


@dataclass(frozen=True, slots=True, eq=False)
class Panels(CustomContent):
    """Content of a drawing: grids of A, B and B - A beside each other.

    Attributes:
        pixels: Of one size: uint8 `(H, W)`, numbers of colours: first `SHADES` greys from black to white, then as many
            colours from blue to red. Or, all of them, `(H, W, 3)`.
        captions: The text above each grid.
        tiles: Position of the tiles in a grid; None if it is one map.
        channels: The channels shown, in the order of the tiles; None for all.
        limits: Values at the ends of the scale of both networks; None if each channel has its own, or each network.
        largest: Magnitude at the ends of the scale of the third grid; NaN if there is none.
        bars: Whether the tiles are bars.
        total: Number of all channels, also of those that are not shown.
    """

    pixels: tuple[NDArray[np.uint8], ...]
    captions: tuple[str, ...]
    tiles: Tiles | None = None
    channels: tuple[int, ...] | None = None
    limits: tuple[float, float] | None = None
    largest: float = nan
    bars: bool = False
    total: int = 0

    def render(self, _layer: LayerResult, _seen: NDArray[np.uint8], style: Style, /) -> Rendered:
        """See `CustomContent`."""
        pixels = draw_panels(self, numbered=is_numbered(style), indexed=not style.labels)
        return Rendered(pixels, palette=panel_palette() if pixels.ndim == 2 else None)

    def describe(self, layer: LayerResult, _style: Style, /) -> dict[str, str | None]:
        """See `CustomContent`."""
        numbers = layer.difference.numbers if layer.difference else {}
        said = {name: number(value) for name, value in numbers.items()}
        scaling = "each map from its minimum to its maximum"
        if isfinite(self.largest):
            scaling = "A and B alike, each channel from its minimum to its maximum"
            if self.limits:
                scaling = f"A and B alike, {number(self.limits[0])} to {number(self.limits[1])}"
            ends = f"from blue to red, {number(-self.largest)} to {number(self.largest)}, zero in the middle"
            scaling += f"; B - A {ends if self.largest else 'is 0 everywhere'}"
        bad = numbers.get("nonfinite")
        return {
            **{caption[0]: caption[3:] for caption in self.captions if caption[1:3] == ": "},
            "Difference": f"largest {said['max_abs']}, RMS {said['rms']}" if numbers else None,
            "SQNR": f"{said['sqnr']} dB" if numbers else None,
            "Cosine": said.get("cosine"),
            "Scaling": scaling,
            "Channels": list_numbers(self.channels),
            "Not finite": f"{bad:.0f} positions take no part, and are drawn as a checkerboard" if bad else None,
        }


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
        >>> draw_panels(Panels((np.zeros((200, 200), np.uint8),) * 3, ("A", "B", "B - A")), numbered=False).shape
        (220, 620)
    """
    is_plain = panels.pixels[0].ndim == 2 and indexed and not (numbered and panels.tiles)
    times = 1 if panels.tiles else max(1, _ALONE // max(panels.pixels[0].shape[:2]))
    face = _NUMBERED_CAPTION if is_plain else _CAPTION
    heads, grids = [], []
    for caption, grid in zip(panels.captions, panels.pixels, strict=True):
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
