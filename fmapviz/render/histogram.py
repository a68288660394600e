"""Draw how often which values occur."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log10
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from fmapviz.lettering import Typeface, draw_lines, set_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_WIDTH, _HEIGHT = 448, 160  # where the bars are: 64 of them are 7 pixels wide; these are all pixels
_LEFT, _RIGHT, _TICK, _GAP = 68, 16, 4, 10
_BAR, _ZERO, _GRID, _AXIS = 70, 160, 228, 120  # grey levels
_TITLE, _DIM = Typeface(15, (20, 20, 20), 0.25), Typeface(12, (105, 105, 105))
_TALLER = 4  # a bar so many times as high as the next one is cut: it would leave nothing to see of the others


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """How often which values occur.

    Attributes:
        counts: Of each of B equal bins, the last of which includes both of its edges; int64 `(B,)`.
        low: Smallest value; NaN if there is no finite one.
        high: Largest value.
        nonfinite: How many values are NaN or infinite; they are in no bin.
    """

    counts: NDArray[np.int64]
    low: float
    high: float
    nonfinite: int

    @property
    def edges(self) -> NDArray[np.float64]:
        """The edges of the bins, float64 `(B + 1,)`; if all values are the same they lie in the middle, as NumPy does it.

        Example:
            >>> Histogram(np.array([3, 1]), -1.0, 2.0, nonfinite=0).edges.tolist()
            [-1.0, 0.5, 2.0]
        """
        # Half of one would be lost in rounding beside a large number.
        half = max(0.5, abs(self.low) * 1e-6) if self.low == self.high else 0.0
        return np.linspace(self.low - half, self.high + half, len(self.counts) + 1)


def draw_histogram(histogram: Histogram, *, title: str, note: str) -> NDArray[np.uint8]:
    """Draw a histogram as one would paste it into a paper.

    Args:
        histogram: Of any range.
        title: Stands above.
        note: Stands below, small.

    Returns:
        uint8 `(H, W)`, dark on white, the bars at level 70. The highest fills the height, the others are as high in
        proportion, rounded up to whole pixels. One that is more than four times as high as all others is cut to their
        height and a quarter more, which the picture says.

    Example:
        >>> draw_histogram(Histogram(np.arange(64), -1.0, 2.0, nonfinite=0), title="features.0", note="").shape
        (249, 532)
    """
    parts = [
        _line(title, _TITLE, most=2),
        _chart(histogram),
        _ends(histogram),
        *(_line(remark, _DIM, most=3) for remark in (*_remarks(histogram), note)),
    ]
    page = Image.new("L", (_LEFT + _WIDTH + _RIGHT, 2 * _GAP + sum(part.height for part in parts)), 255)
    top = _GAP
    for part in parts:
        page.paste(part, (0, top))
        top += part.height
    return np.array(page)


def _line(text: str, face: Typeface, *, most: int) -> Image.Image:
    """Set a text as wide as the bars."""
    return _strip([(_LEFT, draw_lines(set_lines(text, face, _WIDTH, most=most)))])


def _ends(histogram: Histogram) -> Image.Image:
    """Name the smallest and the largest value below their places."""
    if not histogram.counts.any():
        return _strip([])
    low, high = histogram.low, histogram.high
    if low == high:
        return _strip([(_LEFT, _small(f"all values are {low:.4g}"))])
    digits = 4 if f"{low:.4g}" != f"{high:.4g}" else 9  # so many tell any two numbers of float32 apart
    right = _small(f"maximum {high:.{digits}g}")
    return _strip([(_LEFT, _small(f"minimum {low:.{digits}g}")), (_LEFT + _WIDTH - right.width, right)])


def _remarks(histogram: Histogram) -> list[str]:
    remarks = []
    most, total = int(histogram.counts.max()), int(histogram.counts.sum())
    if _top(histogram.counts) < most:
        remarks.append(f"the highest bar is cut: it holds {most * 1000 // total / 10} % of the values")
    if histogram.nonfinite:
        remarks.append(f"not shown: {histogram.nonfinite} NaN or infinite")
    return remarks


def _chart(histogram: Histogram) -> Image.Image:
    """Draw the bars and their axes."""
    counts = histogram.counts
    above = _DIM.leading // 2  # room for the upper half of a number beside the upper end
    chart = Image.new("L", (_LEFT + _WIDTH + _RIGHT, above + _HEIGHT + 1 + _TICK + _DIM.leading + _TICK), 255)
    draw = ImageDraw.Draw(chart)
    bottom = above + _HEIGHT
    if counts.any():
        _draw_shares(chart, _top(counts) / int(counts.sum()), bottom)
        _draw_bars(draw, counts, bottom)
        _draw_values(chart, histogram, bottom)
    else:
        nothing = _small("no finite value")
        chart.paste(nothing, (_LEFT + (_WIDTH - nothing.width) // 2, above + _HEIGHT // 2))
    draw.line((_LEFT, bottom, _LEFT + _WIDTH - 1, bottom), _AXIS)
    return chart


def _top(counts: NDArray[np.int64]) -> int:
    """Give the count that a bar of full height stands for."""
    second, first = sorted([0, *map(int, counts)])[-2:]
    return ceil(1.25 * second) if first > _TALLER * second > 0 else first


def _draw_bars(draw: ImageDraw.ImageDraw, counts: NDArray[np.int64], bottom: int) -> None:
    top = _top(counts)
    lefts = [_LEFT + number * _WIDTH // len(counts) for number in range(len(counts) + 1)]
    for (left, after), count in zip(pairwise(lefts), counts.tolist(), strict=True):
        if count:
            height = min(_HEIGHT, -(-count * _HEIGHT // top))
            right = max(left, after - 2)
            draw.rectangle((left, bottom - height, right, bottom - 1), _BAR)
            if count > top:  # a gap says that the bar is cut
                draw.line((left - 1, bottom - _HEIGHT + 12, right + 1, bottom - _HEIGHT + 8), 255, 2)


def _draw_shares(chart: Image.Image, top: float, bottom: int) -> None:
    """Draw the axis from 0 to a share of the values."""
    draw = ImageDraw.Draw(chart)
    for share, text in _round_numbers(0.0, 100 * top, most=4):
        level = bottom - round(share / (100 * top) * _HEIGHT)
        draw.line((_LEFT, level, _LEFT + _WIDTH - 1, level), _GRID)
        label = _small(f"{text} %")
        chart.paste(label, (_LEFT - 6 - label.width, level - _DIM.leading // 2))


def _draw_values(chart: Image.Image, histogram: Histogram, bottom: int) -> None:
    """Draw the axis of the values, and a line where zero is."""
    draw = ImageDraw.Draw(chart)
    low, *_, high = histogram.edges.tolist()
    same = histogram.low == histogram.high
    for value, text in [(histogram.low, f"{histogram.low:.4g}")] if same else _round_numbers_that_fit(low, high):
        across = _LEFT + round((value - low) / (high - low) * (_WIDTH - 1))
        draw.line((across, bottom, across, bottom + _TICK), _AXIS)
        if value == 0 and histogram.low < 0 < histogram.high:
            draw.line((across, bottom - _HEIGHT, across, bottom - 1), _ZERO)
        label = _small(text)
        left = min(across - label.width // 2, chart.width - _TICK - label.width)
        chart.paste(label, (left, bottom + 1 + _TICK))


def _round_numbers_that_fit(low: float, high: float) -> list[tuple[float, str]]:
    """Choose as many round numbers as can be written beside each other."""
    for most in (7, 5, 4, 3, 2):
        numbers = _round_numbers(low, high, most=most)
        room = _WIDTH * (numbers[1][0] - numbers[0][0]) / (high - low) if len(numbers) > 1 else _WIDTH
        if all(_DIM.width(text) + 2 * _GAP <= room for _, text in numbers):
            break
    return numbers


def _round_numbers(low: float, high: float, *, most: int) -> list[tuple[float, str]]:
    """Give the multiples of 1, 2 or 5 times a power of ten in a range, so many steps at most, and how they are written."""
    power = floor(log10((high - low) / most))
    step = next(factor * 10.0**power for factor in (1, 2, 5, 10) if factor * 10.0**power * most >= high - low)
    # What misses an end by rounding alone belongs to it.
    multiples = range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)
    largest = max(abs(low), abs(high))
    decimals = -floor(log10(step))
    if 1e-4 <= largest < 1e6 and decimals <= 6:
        return [(number * step, f"{number * step:.{max(0, decimals)}f}") for number in multiples]
    digits = max(1, floor(log10(largest)) + decimals + 1)
    return [(number * step, f"{number * step:.{digits}g}") for number in multiples]


def _small(text: str) -> Image.Image:
    return draw_lines([(text, _DIM)]).convert("L")


def _strip(parts: Sequence[tuple[int, Image.Image]]) -> Image.Image:
    """Put pictures beside each other, each so far from the left."""
    strip = Image.new("L", (_LEFT + _WIDTH + _RIGHT, max((part.height for _, part in parts), default=0)), 255)
    for left, part in parts:
        strip.paste(part.convert("L"), (left, 0))
    return strip
