"""A page of cut-out shapes on a sheet of paper."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from painting.canvas import circle, colour, cross, grid, lay, pixels, polygon, ring, square, star, turned
from painting.vectors import noise

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from painting.vectors import Floats

PAPER, SHADOW = colour("f7f0e1"), colour("5b4a3a")
INKS = [colour(code) for code in ("d9523c", "eda33b", "2a7f86", "24395c", "7fa36b", "8a4a6b", "e58f83", "4f86c2")]
CUTS = (
    circle,
    square,
    polygon,
    star,
    cross,
    ring,
    partial(polygon, sides=6),
    partial(star, points=8, waist=0.6),
)
COLUMNS, ROWS = 6, 4
SIZES = (0.26, 0.33, 0.40, 0.46)  # of the way between two shapes


def draw_shapes(width: int, height: int) -> NDArray[np.uint8]:
    """Draw the page as uint8 `(height, width, 3)`: a loose grid of paper cuts with soft shadows."""
    random = np.random.default_rng(5)
    canvas = laid_paper(width, height)
    x, y = grid(width, height)
    pitch_x, pitch_y = width / (COLUMNS + 0.35), height / (ROWS + 0.3)
    for number in range(COLUMNS * ROWS):
        row, column = divmod(number, COLUMNS)
        across = x - width / 2 - pitch_x * (column - (COLUMNS - 1) / 2) - random.uniform(-6, 6)
        down = y - height / 2 - pitch_y * (row - (ROWS - 1) / 2) - random.uniform(-6, 6)
        cut, ink = CUTS[(column + 3 * row) % len(CUTS)], INKS[(5 * column + 2 * row) % len(INKS)]
        radius, turn = pitch_x * random.choice(SIZES), random.uniform(-30, 30)
        lay(canvas, cut(*turned(across - 2, down - 4, turn), radius), SHADOW, soft=9, opacity=0.35)
        lay(canvas, cut(*turned(across, down, turn), radius), ink)
    return pixels(canvas)


def laid_paper(width: int, height: int) -> Floats:
    """Cream paper with the lines of the mould it was made in, and a few clouds."""
    x, y = grid(width, height)
    lines = 0.5 + 0.5 * np.sin(y * (2 * np.pi / 4)) + 2 * np.exp(-(((x % 80 - 40) / 1.5) ** 2))
    clouds = np.round(4 * noise(np.stack([x.ravel(), y.ravel(), 0 * x.ravel()]) / 45)).reshape(height, width)
    return PAPER - (0.010 * lines + 0.006 * clouds)[..., None].astype(np.float32)
