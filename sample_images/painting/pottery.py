"""A bowl with oranges and a vase with tulips."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from painting.fruit import orange
from painting.raymarch import Thing
from painting.solids import ball, ellipsoid, pitch, rod, roll, yaw
from painting.vectors import Floats, mix, noise, rgb, rise, vector

ORANGES = ((-0.42, 0.62, 0.12), (0.12, 0.62, 0.40), (0.45, 0.63, -0.10), (-0.05, 0.62, -0.42), (0.02, 1.06, -0.02))
TULIPS = (
    ((-0.62, 0.95, 0.10), rgb(0.85, 0.10, 0.10)),
    ((-0.22, 1.22, -0.12), rgb(0.95, 0.50, 0.06)),
    ((0.20, 1.02, 0.20), rgb(0.86, 0.16, 0.28)),
    ((0.62, 0.85, 0.0), rgb(0.95, 0.66, 0.30)),
    ((-0.06, 0.68, 0.36), rgb(0.90, 0.32, 0.12)),
)
LEAVES = ((-0.9, 0.62), (1.05, 0.66), (0.35, 0.5), (3.4, 0.4), (2.6, 0.5))


def bowl_of_oranges(place: Floats) -> list[Thing]:
    """A bowl, blue outside and white inside, heaped with oranges."""

    def solid(points: Floats) -> Floats:
        x, y, z = points
        shell = np.maximum(abs(ball(points, 0.94)) - 0.03, y + 0.34)
        foot = np.maximum(abs(np.hypot(x, z) - 0.36) - 0.04, abs(y + 0.95) - 0.06)
        return np.minimum(shell, foot) - 0.012

    def paint(points: Floats) -> Floats:
        y = points[1]
        glaze = mix(rgb(0.02, 0.10, 0.28), rgb(0.03, 0.20, 0.42), noise(points * 4))
        glaze = mix(glaze, rgb(0.75, 0.70, 0.58), rise(-0.40, -0.37, y) * rise(-0.325, -0.34, y))
        return mix(rgb(0.72, 0.68, 0.58), glaze, ball(points, 0.94) > 0)

    bowl = Thing(solid, paint, place + vector(0, 1.0, 0), 1.03, gloss=1.0)
    return [bowl, *(orange(place + vector(*spot)) for spot in ORANGES)]


def vase_of_tulips(place: Floats) -> list[Thing]:
    """A white vase with blue bands, five tulips and their leaves."""
    mouth = place + vector(0, 1.5, 0)
    flowers = [part for spot, colour in TULIPS for part in tulip(mouth, mouth + vector(*spot), colour)]
    return [vase(place + vector(0, 0.8, 0)), *flowers, *(leaf(mouth, turn, bend) for turn, bend in LEAVES)]


def vase(centre: Floats) -> Thing:
    """A wall of even thickness around a profile, painted with bands and a wave."""
    profile = np.polyfit([-0.8, -0.6, -0.25, 0.15, 0.45, 0.65, 0.8], [0.30, 0.40, 0.53, 0.45, 0.27, 0.21, 0.27], 5)

    def solid(points: Floats) -> Floats:
        x, y, z = points
        wall = abs(np.hypot(x, z) - np.polyval(profile.astype(np.float32), np.clip(y, -0.8, 0.8))) - 0.012
        return 0.7 * np.maximum(wall, abs(y) - 0.79) - 0.01

    def paint(points: Floats) -> Floats:
        x, y, z = points
        wave = 0.05 * np.sin(10 * np.arctan2(x, z))
        ink = np.maximum(rise(0.035, 0.025, abs(y + 0.22 - wave)), rise(0.022, 0.015, abs(y + 0.22)))
        for band in (-0.42, -0.02, 0.02, 0.72):
            ink = np.maximum(ink, rise(0.02, 0.012, abs(y - band)))
        return mix(rgb(0.80, 0.77, 0.70), rgb(0.03, 0.09, 0.32), ink * 0.9)

    return Thing(solid, paint, centre, 1.0, gloss=1.0)


def tulip(mouth: Floats, head: Floats, colour: Floats) -> list[Thing]:
    """A flower on its stem, leaning outwards from the mouth of the vase."""
    outward = head - mouth
    lean_x, _, lean_z = outward / np.linalg.norm(outward)
    turn = pitch(lean_z) @ roll(-lean_x)
    return [stem(mouth, head), flower(head + vector(0, 0.14, 0), colour, turn)]


def stem(start: Floats, end: Floats) -> Thing:
    """Five rods along a curve that first rises and then bends outwards."""
    outward = (end - start) / 2
    bend = outward * vector(-0.5, 0.2, -0.5)
    knots = [t * outward + (1 - t * t) * bend for t in np.linspace(-1, 1, 6, dtype=np.float32)]

    def solid(points: Floats) -> Floats:
        return np.minimum.reduce([rod(points, low, high, 0.026) for low, high in pairwise(knots)])

    reach = float(np.linalg.norm(outward)) + 0.1
    return Thing(solid, lambda _: rgb(0.12, 0.26, 0.06), (start + end) / 2, reach, gloss=0.3)


def flower(centre: Floats, colour: Floats, turn: Floats) -> Thing:
    """Three outer and three inner petals, each a bent ellipsoid, pointed at the top."""

    def petals(points: Floats, shift: float, lean: float) -> Floats:
        x, y, z = points
        third = 2 * np.pi / 3
        angle, radius = (np.arctan2(x, z) + shift) % third - third / 2, np.hypot(x, z)
        side = radius * np.sin(angle) * (1 + rise(0, 0.4, y))
        out = radius * np.cos(angle) - lean - 0.12 * y + 0.9 * (y + 0.05) ** 2
        return 0.7 * ellipsoid(np.stack([side, y, out]), rgb(0.165, 0.31, 0.05))

    def solid(points: Floats) -> Floats:
        return np.minimum(petals(points, 0, 0.105), petals(points, np.pi / 3, 0.085))

    def paint(points: Floats) -> Floats:
        x, y, z = points
        streaks = noise(8 * np.arctan2(x, z), 2 * y, z)
        return mix(mix(0.8 * colour, colour, streaks), rgb(0.80, 0.66, 0.18), 0.8 * rise(-0.12, -0.27, y))

    return Thing(solid, paint, centre, 0.36, gloss=0.35, turn=turn)


def leaf(mouth: Floats, turn: float, bend: float) -> Thing:
    """A long leaf, folded along its middle, that arches away from the vase."""

    def solid(points: Floats) -> Floats:
        x, y, z = points
        arch = bend * np.clip(y + 0.5, 0, 1.2) ** 2 - 0.12
        return 0.6 * ellipsoid(np.stack([x, y, z - arch - 0.25 * abs(x)]), rgb(0.16, 0.68, 0.022))

    def paint(points: Floats) -> Floats:
        x, y, _ = points
        return mix(rgb(0.07, 0.20, 0.06), rgb(0.16, 0.34, 0.09), noise(60 * x, 2 * y, 0 * x))

    return Thing(solid, paint, mouth + vector(0, 0.42, 0), 0.95, gloss=0.4, turn=yaw(turn))
