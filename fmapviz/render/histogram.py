"""Draw how often which values occur."""

from __future__ import annotations

from math import ceil, floor, log10
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from fmapviz.render.text import Typeface, draw_lines, wrap

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fmapviz.core.drawings import Histogram

# Pixels.
_WIDTH, _HEIGHT = 448, 160  # the area of the bars: 64 of them are 7 pixels wide
_LEFT, _RIGHT, _TICK, _GAP = 68, 16, 4, 10
_PAGE = _LEFT + _WIDTH + _RIGHT
_BAR, _ZERO, _GRID, _AXIS = 70, 160, 228, 120  # grey levels
_TITLE, _DIM = Typeface(15, (20, 20, 20), 0.25), Typeface(12, (105, 105, 105))
_TALLER = 4  # a bar this many times as high as the second highest is cut, else the others would not be visible


def bin_edges(histogram: Histogram) -> NDArray[np.float64]:
    """Return the edges of a histogram's bins, float64 `(B + 1,)`.

    If all values are equal they lie in the middle, as in NumPy.

    Example:
        >>> from fmapviz.core.drawings import Histogram
        >>> bin_edges(Histogram(np.array([3, 1]), -1.0, 2.0, nonfinite=0)).tolist()
        [-1.0, 0.5, 2.0]
    """
    low, high = histogram.low, histogram.high
    # Half of one is lost to rounding beside a large number.
    half = max(0.5, abs(low) * 1e-6) if low == high else 0.0
    return np.linspace(low - half, high + half, len(histogram.counts) + 1)


def draw_histogram(histogram: Histogram, *, title: str, note: str) -> NDArray[np.uint8]:
    """Draw a histogram with its axes.

    Args:
        histogram: A histogram of any range.
        title: Text above the bars.
        note: Small print below the bars.

    Returns:
        uint8 `(H, W)`, dark on white, the bars at level 70. The highest bar fills the height; the others are proportional,
        rounded up to whole pixels. A bar more than four times as high as all others is cut a quarter above them, and the
        picture says so.

    Example:
        >>> from fmapviz.core.drawings import Histogram
        >>> draw_histogram(Histogram(np.arange(64), -1.0, 2.0, nonfinite=0), title="features.0", note="").shape
        (249, 532)
    """
    rows = [
        [(_LEFT, draw_lines(wrap(title, _TITLE, _WIDTH, lines=2)))],
        [(0, _draw_chart(histogram))],
        _extremes(histogram),
        *([(_LEFT, draw_lines(wrap(text, _DIM, _WIDTH, lines=3)))] for text in (*_remarks(histogram), note)),
    ]
    heights = [max((part.height for _, part in row), default=0) for row in rows]
    page = Image.new("L", (_PAGE, 2 * _GAP + sum(heights)), 255)
    top = _GAP
    for row, height in zip(rows, heights, strict=True):
        for left, part in row:
            page.paste(part, (left, top))
        top += height
    return np.array(page)


def _extremes(histogram: Histogram) -> list[tuple[int, Image.Image]]:
    """Draw the smallest and the largest value, each with its left edge, below the ends of the axis."""
    low, high = histogram.low, histogram.high
    if not histogram.counts.any():
        return []
    if low == high:
        return [(_LEFT, _draw_text(f"all values are {low:.4g}"))]
    digits = 4 if f"{low:.4g}" != f"{high:.4g}" else 9  # nine digits distinguish any two float32 numbers
    right = _draw_text(f"maximum {high:.{digits}g}")
    return [(_LEFT, _draw_text(f"minimum {low:.{digits}g}")), (_LEFT + _WIDTH - right.width, right)]


def _remarks(histogram: Histogram) -> list[str]:
    remarks = []
    most, total = int(histogram.counts.max()), int(histogram.counts.sum())
    if _full_height(histogram.counts) < most:
        remarks.append(f"the highest bar is cut: it holds {most * 1000 // total / 10} % of the values")
    if histogram.nonfinite:
        remarks.append(f"not shown: {histogram.nonfinite} NaN or infinite")
    return remarks


def _draw_chart(histogram: Histogram) -> Image.Image:
    above = _DIM.leading // 2  # half of the label at the upper end of the vertical axis
    bottom = above + _HEIGHT
    chart = Image.new("L", (_PAGE, bottom + 1 + _TICK + _DIM.leading + _TICK), 255)
    draw = ImageDraw.Draw(chart)
    if histogram.counts.any():
        _draw_shares(chart, draw, histogram, bottom)
        _draw_bars(draw, histogram, bottom)
        _draw_values(chart, draw, histogram, bottom)
    else:
        text = _draw_text("no finite value")
        chart.paste(text, (_LEFT + (_WIDTH - text.width) // 2, above + _HEIGHT // 2))
    draw.line((_LEFT, bottom, _LEFT + _WIDTH - 1, bottom), _AXIS)
    return chart


def _full_height(counts: NDArray[np.int64]) -> int:
    """Return the count for which a bar is as high as the chart."""
    second, first = sorted([0, *map(int, counts)])[-2:]
    return ceil(1.25 * second) if first > _TALLER * second > 0 else first


def _draw_bars(draw: ImageDraw.ImageDraw, histogram: Histogram, bottom: int) -> None:
    full, bins = _full_height(histogram.counts), len(histogram.counts)
    for number, count in enumerate(histogram.counts.tolist()):
        if count:
            left = _LEFT + number * _WIDTH // bins
            right = max(left, _LEFT + (number + 1) * _WIDTH // bins - 2)
            height = min(_HEIGHT, -(-count * _HEIGHT // full))
            draw.rectangle((left, bottom - height, right, bottom - 1), _BAR)
            if count > full:  # a gap marks a bar that is cut
                draw.line((left - 1, bottom - _HEIGHT + 12, right + 1, bottom - _HEIGHT + 8), 255, 2)


def _draw_shares(chart: Image.Image, draw: ImageDraw.ImageDraw, histogram: Histogram, bottom: int) -> None:
    """Draw the vertical axis: percentages of all values."""
    percent = 100 * (_full_height(histogram.counts) / int(histogram.counts.sum()))
    for share, text in _ticks(0.0, percent, most=4):
        level = bottom - round(share / percent * _HEIGHT)
        draw.line((_LEFT, level, _LEFT + _WIDTH - 1, level), _GRID)
        label = _draw_text(f"{text} %")
        chart.paste(label, (_LEFT - 6 - label.width, level - _DIM.leading // 2))


def _draw_values(chart: Image.Image, draw: ImageDraw.ImageDraw, histogram: Histogram, bottom: int) -> None:
    """Draw the horizontal axis, and a vertical line at zero."""
    low, *_, high = bin_edges(histogram).tolist()
    constant = histogram.low == histogram.high
    for value, text in [(histogram.low, f"{histogram.low:.4g}")] if constant else _ticks_that_fit(low, high):
        across = _LEFT + round((value - low) / (high - low) * (_WIDTH - 1))
        draw.line((across, bottom, across, bottom + _TICK), _AXIS)
        if value == 0 and histogram.low < 0 < histogram.high:
            draw.line((across, bottom - _HEIGHT, across, bottom - 1), _ZERO)
        label = _draw_text(text)
        chart.paste(label, (min(across - label.width // 2, _PAGE - _TICK - label.width), bottom + 1 + _TICK))


def _ticks_that_fit(low: float, high: float) -> list[tuple[float, str]]:
    """Return as many ticks as there is room for beside each other."""
    for most in (7, 5, 4, 3, 2):
        ticks = _ticks(low, high, most=most)
        room = _WIDTH * (ticks[1][0] - ticks[0][0]) / (high - low) if len(ticks) > 1 else _WIDTH
        if all(_DIM.width(text) + 2 * _GAP <= room for _, text in ticks):
            break
    return ticks


def _ticks(low: float, high: float, *, most: int) -> list[tuple[float, str]]:
    """Return the multiples of 1, 2 or 5 times a power of ten within a range, up to `most` steps, and their labels."""
    power = floor(log10((high - low) / most))
    step = next(factor * 10.0**power for factor in (1, 2, 5, 10) if factor * 10.0**power * most >= high - low)
    # A multiple that misses an end by rounding counts as the end.
    multiples = range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)
    largest = max(abs(low), abs(high))
    decimals = -floor(log10(step))
    if 1e-4 <= largest < 1e6 and decimals <= 6:
        form = f".{max(0, decimals)}f"
    else:
        form = f".{max(1, floor(log10(largest)) + decimals + 1)}g"
    return [(number * step, f"{number * step:{form}}") for number in multiples]


def _draw_text(text: str) -> Image.Image:
    return draw_lines([(text, _DIM)])
