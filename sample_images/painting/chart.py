"""A test chart: everything that tells one filter of a network from another."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from painting.canvas import grid, pixels

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from painting.vectors import Floats

Figure: TypeAlias = "Callable[[Floats, Floats], Floats]"

SIZE = (640, 480)
FINE = 4  # samples along either side of a pixel
BACKGROUND = 0.5
BARS = np.array([[1, 1, 1], [1, 1, 0], [0, 1, 1], [0, 1, 0], [1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 0, 0]], np.float32)


def draw_chart() -> NDArray[np.uint8]:
    """Draw the chart as uint8 `(480, 640, 3)`."""
    canvas = np.full((SIZE[1], SIZE[0], 3), BACKGROUND, np.float32)
    for left, figure in zip((12, 220, 428), (siemens_star, zone_plate, edges), strict=True):
        put(canvas, figure, (left, 12), (200, 200))
    put(canvas, partial(sweep, hard=False), (12, 220), (304, 44))
    put(canvas, partial(sweep, hard=True), (12, 272), (304, 44))
    for number, side in enumerate((24, 12, 6, 3)):
        put(canvas, partial(checkerboard, side=side), (325 + 77 * number, 220), (72, 96))
    for number in range(8):
        put(canvas, partial(grating, degrees=22.5 * number), (12 + 78 * number, 324), (70, 60))
    put(canvas, colour_bars, (12, 392), (616, 40))
    put(canvas, grey_ramps, (12, 440), (616, 28))
    return pixels(canvas)


def put(canvas: Floats, figure: Figure, corner: tuple[int, int], size: tuple[int, int]) -> None:
    """Draw a figure of x and y, in pixels from its middle, into the field with that upper left corner and size."""
    (left, top), (width, height) = corner, size
    x, y = grid(width * FINE, height * FINE)
    values = figure(x / FINE - width / 2, y / FINE - height / 2)
    blocks = values.reshape(height, FINE, width, FINE, -1)
    canvas[top : top + height, left : left + width] = blocks.mean(axis=(1, 3))


def siemens_star(x: Floats, y: Floats) -> Floats:
    """36 black and 36 white spokes."""
    radius = np.hypot(x, y)
    spokes = np.sin(36 * np.arctan2(y, x)) > 0
    return np.where(radius > 96, BACKGROUND, np.where(radius < 3, 0, spokes)).astype(np.float32)


def zone_plate(x: Floats, y: Floats) -> Floats:
    """Rings whose frequency grows with the radius, up to a quarter of a wave a pixel at the middle of each side."""
    return 0.5 + 0.5 * np.cos((x * x + y * y) * (np.pi / 400))


def edges(x: Floats, y: Floats) -> Floats:
    """Nine discs, each halved in another direction, 20 degrees apart."""
    column, row = np.floor((x + 100) / 66.7), np.floor((y + 100) / 66.7)
    across, down = (x + 100) % 66.7 - 33.35, (y + 100) % 66.7 - 33.35
    angle = np.radians(20 * (column + 3 * row))
    halves = across * np.sin(angle) + down * np.cos(angle) > 0
    return np.where(np.hypot(across, down) < 30, halves, BACKGROUND).astype(np.float32)


def sweep(x: Floats, y: Floats, *, hard: bool) -> Floats:
    """Stripes from 1/64 to 1/3 of a wave a pixel, their frequency growing by the same factor in every pixel."""
    low, high, length = 1 / 64, 1 / 3, 304
    growth = np.log(high / low) / length
    wave = np.cos(2 * np.pi * low / growth * np.exp(growth * (x + length / 2))) + 0 * y
    return (wave > 0).astype(np.float32) if hard else 0.5 + 0.5 * wave


def checkerboard(x: Floats, y: Floats, *, side: int) -> Floats:
    """Black and white fields of so many pixels."""
    return ((np.floor(x / side) + np.floor(y / side)) % 2).astype(np.float32)


def grating(x: Floats, y: Floats, *, degrees: float) -> Floats:
    """Sharp stripes in one direction, eight pixels a pair."""
    angle = np.radians(degrees)
    return (np.sin((x * np.cos(angle) + y * np.sin(angle)) * (2 * np.pi / 8)) > 0).astype(np.float32)


def colour_bars(x: Floats, y: Floats) -> Floats:
    """The eight corners of the colour cube, at three quarters of full strength below."""
    strength = np.where(y < 8, 1, 0.75)
    return BARS[((x + 308) // 77).astype(int)] * strength[..., None]


def grey_ramps(x: Floats, y: Floats) -> Floats:
    """From black to white, evenly above and in eleven steps below."""
    part = (x + 308) / 616
    return np.where(y < 0, part, np.floor(part * 11) / 10)
