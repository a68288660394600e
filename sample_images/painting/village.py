"""A tall landscape: the sun over hills, a village, trees and a winding road."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from painting.canvas import box, circle, colour, grid, lay, pixels
from painting.vectors import mix, rise

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from painting.vectors import Floats

WIDTH, HEIGHT = 360, 540


class Hill(NamedTuple):
    """A hill's outline, whose waves go `waves` times across the picture, and its colours above and below."""

    top: float
    height: float
    waves: float
    shift: float
    above: str
    below: str


class House(NamedTuple):
    """Where the middle of a house's floor lies, the house's width and its colours."""

    x: float
    y: float
    width: float
    walls: str
    roof: str


HILLS = (
    Hill(262, 24, 1.3, 0.4, "9fb4d0", "c9cfd6"),
    Hill(292, 30, 0.9, 3.9, "7b9fb6", "b3c6bd"),
    Hill(338, 22, 1.4, 4.9, "6fa08a", "a9c98f"),
    Hill(385, 24, 0.8, 1.1, "86b560", "b4cf72"),
    Hill(462, 18, 1.0, 3.6, "4f8f4a", "79b04f"),
)
HOUSES = (
    House(92, 392, 34, "f3e3c3", "b5483a"),
    House(140, 384, 30, "e8d2d0", "7c4a52"),
    House(186, 392, 38, "fdf4e3", "c8643c"),
    House(240, 398, 32, "dfe6ea", "4c5f7d"),
    House(120, 418, 40, "fff3d6", "a83f3f"),
    House(214, 424, 42, "f6dfc0", "8c4b3a"),
)
FOREST, MEADOW = slice(270, 400), slice(470, HEIGHT)  # the rows that trees and flowers can touch
WINDOW, DOOR = colour("ffd773"), colour("5c3b2e")


def draw_village() -> NDArray[np.uint8]:
    """Draw the landscape as uint8 `(540, 360, 3)`."""
    x, y = grid(WIDTH, HEIGHT)
    random = np.random.default_rng(4)
    canvas = sky(x, y)
    for hill in HILLS[:4]:
        add_hill(canvas, x, y, hill)
    add_road(canvas, x, y)
    for left in random.uniform(0, WIDTH, 26):
        foot = crest(left, HILLS[2]) + random.uniform(4, 26)
        add_fir(canvas[FOREST], x[FOREST] - left, y[FOREST] - foot, random.uniform(20, 30))
    for house in HOUSES:
        add_house(canvas, x - house.x, y - house.y, house)
    add_hill(canvas, x, y, HILLS[4])
    for middle, ground, size in ((38, 470, 34), (322, 462, 40), (284, 486, 24), (70, 492, 22)):
        add_tree(canvas, x - middle, y - ground, size)
    add_flowers(canvas[MEADOW], x[MEADOW], y[MEADOW], random)
    return pixels(canvas)


def sky(x: Floats, y: Floats) -> Floats:
    """A morning sky with the sun, clouds and birds."""
    canvas = mix(colour("5d9bd0"), colour("fde3c0"), rise(0, 260, y)[..., None])
    away = np.hypot(x - 248, y - 196)
    canvas = mix(canvas, colour("ffe9a8"), 0.75 * np.exp(-away / 70)[..., None])
    lay(canvas, away - 40, colour("fff6d8"), soft=2)
    for left, top, size in ((92, 92, 26), (286, 66, 20), (176, 148, 13)):
        add_cloud(canvas, x - left, y - top, size)
    for left, top, size in ((150, 60, 9), (172, 72, 7), (128, 74, 6), (196, 56, 5)):
        wings = abs(y - top + size * 0.5 * np.sin(np.pi * np.clip(abs(x - left) / size, 0, 1))) - 0.8
        lay(canvas, np.maximum(wings, abs(x - left) - size), colour("39485c"))
    return canvas


def add_cloud(canvas: Floats, x: Floats, y: Floats, size: float) -> None:
    """Lay four puffs with a flat underside."""
    puffs = ((-1.3, 0.1, 0.6), (-0.5, -0.3, 0.9), (0.5, -0.15, 0.8), (1.3, 0.15, 0.55))
    outline = np.minimum.reduce([circle(x - size * u, y - size * v, size * w) for u, v, w in puffs])
    outline = np.maximum(outline, y - size * 0.45)
    lay(canvas, outline, colour("ffffff"), soft=2, opacity=0.95)
    lay(canvas, np.maximum(outline, -(y - size * 0.1)), colour("dfe3ee"), soft=6, opacity=0.8)


def crest(x: Floats, hill: Hill) -> Floats:
    """The y of a hill's outline."""
    phase = 2 * np.pi * hill.waves * x / WIDTH + hill.shift
    return hill.top - hill.height * (0.75 * np.sin(phase) + 0.25 * np.sin(2.3 * phase + 1))


def add_hill(canvas: Floats, x: Floats, y: Floats, hill: Hill) -> None:
    """Lay a hill that grows lighter downwards, where the mist lies."""
    depth = y - crest(x, hill)
    lay(canvas, -depth, mix(colour(hill.above), colour(hill.below), rise(0, 80, depth)[..., None]))


def add_road(canvas: Floats, x: Floats, y: Floats) -> None:
    """Lay a road that winds from the village towards the viewer and widens."""
    nearness = np.clip((y - 372) / 100, 0, 1)
    middle = 166 + 46 * nearness * np.sin(5.5 * nearness + 0.4)
    lay(canvas, np.maximum(abs(x - middle) - 3 - 16 * nearness**1.5, 372 - y), colour("ecd9b0"), soft=1.5)


def add_house(canvas: Floats, x: Floats, y: Floats, house: House) -> None:
    """Lay a house whose floor's middle is the origin: walls, a gable roof, a chimney, a door and windows."""
    walls, roof, width = colour(house.walls), colour(house.roof), house.width
    tall, half = width * 0.62, width / 2
    lay(canvas, box(x - half * 0.55, y + tall * 1.5, width * 0.06, tall * 0.35), roof * 0.7)
    lay(canvas, box(x, y + tall / 2, half, tall / 2), mix(walls, walls * 0.8, rise(-half, half, x)[..., None]))
    slope = (abs(x) * 0.62 - (y + tall * 1.72) * 0.9) * 0.9
    lay(canvas, np.maximum(slope, y + tall * 0.95), mix(roof, roof * 0.72, rise(-2, 2, x)[..., None]))
    lay(canvas, box(x, y + tall * 0.25, width * 0.09, tall * 0.25), DOOR)
    for side in (-0.29, 0.29):
        lay(canvas, box(x - side * width, y + tall * 0.5, width * 0.09, tall * 0.15), WINDOW)


def add_fir(canvas: Floats, x: Floats, y: Floats, size: float) -> None:
    """Lay a fir of three tiers, its foot at the origin."""
    lay(canvas, box(x, y, size * 0.06, size * 0.12), DOOR)
    for tier in range(3):
        foot, tall = -size * (0.08 + 0.27 * tier), size * 0.45
        outline = np.maximum(abs(x) - (y - foot + tall) * (0.62 - 0.1 * tier), y - foot)
        lay(canvas, outline, mix(colour("3f7a5c"), colour("2a5747"), rise(-2, 2, x)[..., None]))


def add_tree(canvas: Floats, x: Floats, y: Floats, size: float) -> None:
    """Lay a leafy tree, its foot at the origin, in the light from the right."""
    lay(canvas, box(x, y + size * 0.4, size * 0.07, size * 0.5), DOOR)
    puffs = ((0, -1.3, 0.62), (-0.45, -0.95, 0.5), (0.45, -0.95, 0.5), (0, -0.8, 0.45))
    for offset, ink in ((0, "3c7a3a"), (0.12, "5c9a44"), (0.26, "86bb55")):
        shapes = [circle(x - size * (u + offset), y - size * (v - offset), size * (w - offset)) for u, v, w in puffs]
        lay(canvas, np.minimum.reduce(shapes), colour(ink), soft=1 + 12 * offset)


def add_flowers(canvas: Floats, x: Floats, y: Floats, random: np.random.Generator) -> None:
    """Scatter poppies, daisies and blades of grass over the meadow in front, larger towards the viewer."""
    inks = [colour(code) for code in ("e2453c", "fff7ec", "f6c343", "d773b0")]
    for top in np.sort(random.uniform(484, HEIGHT, 120)):
        left, size = random.uniform(0, WIDTH), 1.0 + (top - 480) / 22
        lay(canvas, box(x - left, y - top - size * 1.6, 0.5, size * 1.6), colour("3b7038"), opacity=0.8)
        lay(canvas, circle(x - left, y - top, size), inks[random.integers(len(inks))])
