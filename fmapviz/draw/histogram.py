"""Draw a histogram of values."""

from __future__ import annotations

from math import ceil, floor, log10
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from fmapviz.draw.layout import WHITE, Box, column, row
from fmapviz.draw.text import Typeface, set_lines, wrap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from fmapviz.core.drawings import Histogram

# Pixels.
_WIDTH, _HEIGHT = 448, 160  # the area of the bars: 64 of them are 7 pixels wide
_LEFT, _RIGHT, _TICK, _GAP = 68, 16, 4, 10
_PAGE = _LEFT + _WIDTH + _RIGHT
_BAR, _ZERO, _GRID, _AXIS = 70, 160, 228, 120  # grey levels
_TITLE, _DIM = Typeface(15, 20, 0.25), Typeface(12, 105)
_BOTTOM = _DIM.leading // 2 + _HEIGHT  # half of the label at the upper end of the vertical axis, then the bars
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


def lay_out_histogram(histogram: Histogram, *, title: str, note: str) -> Box:
    """Lay out a histogram with its axes.

    Args:
        histogram: A histogram of any range.
        title: Text above the bars.
        note: Small print below the bars.

    Returns:
        A page, dark on white, the bars at level 70. The highest bar fills the height; the others are proportional,
        rounded up to whole pixels. A bar more than four times as high as all others is cut a quarter above them, and the
        picture says so.

    Example:
        >>> from fmapviz.core.drawings import Histogram
        >>> page = lay_out_histogram(Histogram(np.arange(64), -1.0, 2.0, nonfinite=0), title="features.0", note="")
        >>> page.height, page.width
        (249, 532)
    """
    lines = [_text(title, _TITLE, lines=2), *(_text(text, lines=3) for text in (*_remarks(histogram), note))]
    heading, *remarks = [row([Box(_LEFT, 0), line]) for line in lines]
    edge = Box(_PAGE, _GAP)
    return column([edge, heading, _lay_out_chart(histogram), _lay_out_extremes(histogram), *remarks, edge])


def _lay_out_extremes(histogram: Histogram) -> Box:
    """Set the smallest and the largest value below the ends of the axis."""
    low, high = histogram.low, histogram.high
    if not histogram.counts.any():
        return Box(0, 0)
    if low == high:
        return row([Box(_LEFT, 0), _text(f"all values are {low:.4g}")])
    digits = 4 if f"{low:.4g}" != f"{high:.4g}" else 9  # nine digits distinguish any two float32 numbers
    left, right = _text(f"minimum {low:.{digits}g}"), _text(f"maximum {high:.{digits}g}")
    return Box(_PAGE, _DIM.leading, [(left, _LEFT, 0), (right, _LEFT + _WIDTH - right.width, 0)])


def _remarks(histogram: Histogram) -> list[str]:
    remarks = []
    most, total = int(histogram.counts.max()), int(histogram.counts.sum())
    if _full_height(histogram.counts) < most:
        remarks.append(f"the highest bar is cut: it holds {most * 1000 // total / 10} % of the values")
    if histogram.nonfinite:
        remarks.append(f"not shown: {histogram.nonfinite} NaN or infinite")
    return remarks


def _lay_out_chart(histogram: Histogram) -> Box:
    chart = Image.new("L", (_PAGE, _BOTTOM + 1 + _TICK + _DIM.leading + _TICK), WHITE)
    drawing = ImageDraw.Draw(chart)
    if histogram.counts.any():
        labels = list(_draw_shares(drawing, histogram))
        _draw_bars(drawing, histogram)
        labels += _draw_values(drawing, histogram)
    else:
        text = _text("no finite value")
        labels = [(text, _LEFT + (_WIDTH - text.width) // 2, _BOTTOM - _HEIGHT // 2)]
    drawing.line((_LEFT, _BOTTOM, _LEFT + _WIDTH - 1, _BOTTOM), _AXIS)
    return Box(chart.width, chart.height, [(np.asarray(chart), 0, 0), *labels])


def _full_height(counts: NDArray[np.int64]) -> int:
    """Return the count for which a bar is as high as the chart."""
    second, first = sorted([0, *map(int, counts)])[-2:]
    return ceil(1.25 * second) if first > _TALLER * second > 0 else first


def _draw_bars(drawing: ImageDraw.ImageDraw, histogram: Histogram) -> None:
    full, bins = _full_height(histogram.counts), len(histogram.counts)
    for number, count in enumerate(histogram.counts.tolist()):
        if count:
            left = _LEFT + number * _WIDTH // bins
            right = max(left, _LEFT + (number + 1) * _WIDTH // bins - 2)
            height = min(_HEIGHT, -(-count * _HEIGHT // full))
            drawing.rectangle((left, _BOTTOM - height, right, _BOTTOM - 1), _BAR)
            if count > full:  # a gap marks a bar that is cut
                drawing.line((left - 1, _BOTTOM - _HEIGHT + 12, right + 1, _BOTTOM - _HEIGHT + 8), WHITE, 2)


def _draw_shares(drawing: ImageDraw.ImageDraw, histogram: Histogram) -> Iterator[tuple[Box, int, int]]:
    """Draw the vertical axis, percentages of all values; yield its labels, each with its left and top."""
    percent = 100 * (_full_height(histogram.counts) / int(histogram.counts.sum()))
    for share, text in _ticks(0.0, percent, most=4):
        level = _BOTTOM - round(share / percent * _HEIGHT)
        drawing.line((_LEFT, level, _LEFT + _WIDTH - 1, level), _GRID)
        label = _text(f"{text} %")
        yield label, _LEFT - 6 - label.width, level - _DIM.leading // 2


def _draw_values(drawing: ImageDraw.ImageDraw, histogram: Histogram) -> Iterator[tuple[Box, int, int]]:
    """Draw the horizontal axis, and a vertical line at zero; yield its labels, each with its left and top."""
    low, *_, high = bin_edges(histogram).tolist()
    constant = histogram.low == histogram.high
    for value, text in [(histogram.low, f"{histogram.low:.4g}")] if constant else _ticks_that_fit(low, high):
        across = _LEFT + round((value - low) / (high - low) * (_WIDTH - 1))
        drawing.line((across, _BOTTOM, across, _BOTTOM + _TICK), _AXIS)
        if value == 0 and histogram.low < 0 < histogram.high:
            drawing.line((across, _BOTTOM - _HEIGHT, across, _BOTTOM - 1), _ZERO)
        label = _text(text)
        yield label, min(across - label.width // 2, _PAGE - _TICK - label.width), _BOTTOM + 1 + _TICK


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


def _text(text: str, face: Typeface = _DIM, *, lines: int = 1) -> Box:
    return set_lines(wrap(text, face, _WIDTH, lines=lines))
