"""Draw filmstrips of a training: a row per step, a column per channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fmapviz.draw.layout import BLACK, Box, column, draw, picture
from fmapviz.draw.text import Typeface, set_lines, wrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

CELL = 32  # pixels: smaller maps are enlarged to about that
_MARGIN, _GAP, _BESIDE = 8, 2, 6
_TITLE, _NOTE, _NUMBER = Typeface(15, 235, 0.25), Typeface(12, 165), Typeface(11, 200)


def draw_filmstrip(
    maps: NDArray[np.float32], steps: Sequence[int], channels: Sequence[int], *, title: str, note: str = ""
) -> NDArray[np.uint8]:
    """Draw a filmstrip, as Zeiler and Fergus, "Visualizing and Understanding Convolutional Networks", 2014, figure 4.

    Each column has one range over all steps, from black to white, so that its rows compare. Values that are NaN or infinite
    are a checkerboard.

    Args:
        maps: float32 `(R, K, h, w)`, any range.
        steps: Labels of the R rows.
        channels: Labels of the K columns.
        title: Text above.
        note: Small print below the title.

    Returns:
        uint8 `(H, W)`.

    Example:
        >>> draw_filmstrip(np.zeros((3, 2, 8, 8), np.float32), [0, 10, 20], [4, 7], title="conv1").ndim
        2
    """
    levels = _scale_columns(maps)
    times = max(1, CELL // max(levels.shape[2:]))
    levels = levels.repeat(times, 2).repeat(times, 3)
    height, width = levels.shape[2:]
    across, down = max([width, *(_text(str(each)).width for each in channels)]) + _GAP, max(height, _NUMBER.leading) + _GAP
    labels = [_text(f"{step:,}") for step in steps]
    left = max((label.width for label in labels), default=0) + _BESIDE
    page_width = left + across * len(channels)
    head = Box(page_width, _NUMBER.leading, [(_text(str(each)), left + across * at, 0) for at, each in enumerate(channels)])
    rows = []
    for label, row in zip(labels, levels, strict=True):
        cells = [(picture(cell), left + across * at, 0) for at, cell in enumerate(row)]
        beside = label.within(left - _BESIDE, height, x=1) if label.height <= height else label
        rows.append(Box(page_width, down, [(beside, 0, 0), *cells]))
    room = max(page_width, 320)
    above = set_lines([*wrap(title, _TITLE, room, lines=2), *wrap(note, _NOTE, room, lines=3)])
    return draw(column([above.within(room, above.height + _BESIDE, x=0, y=0), head, *rows]).padded(_MARGIN), BLACK)


def _scale_columns(maps: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Scale each column of maps `(R, K, h, w)` to 0..255 over all rows."""
    finite = np.isfinite(maps)
    low = np.where(finite, maps, np.inf).min((0, 2, 3), keepdims=True).astype(np.float64)
    high = np.where(finite, maps, -np.inf).max((0, 2, 3), keepdims=True).astype(np.float64)
    span = np.where(high > low, high - low, 1)
    known = np.where(finite, maps, np.where(np.isfinite(low), low, 0))
    levels = ((known - np.where(np.isfinite(low), low, 0)) / span * 255 + 0.5).clip(0, 255).astype(np.uint8)
    rows, columns = np.indices(maps.shape[2:])
    return np.where(finite, levels, np.where((rows + columns) % 2, 255, 0).astype(np.uint8))


def _text(text: str) -> Box:
    return set_lines(wrap(text, _NUMBER, 200))
