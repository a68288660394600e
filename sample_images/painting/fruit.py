"""Fruit, made of solids and noise; one function each."""

from __future__ import annotations

from functools import partial

import numpy as np
from painting.raymarch import ARRIVED, Thing
from painting.solids import ball, blend, ellipsoid, pitch, rod, roll, yaw
from painting.vectors import Floats, mix, noise, rgb, rise, vector

BARK = rgb(0.15, 0.08, 0.03)


def apple(centre: Floats) -> Thing:
    """A red apple: a ring that closes in the middle, which leaves a dimple above and below, and a stem."""

    def solid(points: Floats) -> Floats:
        x, y, z = points
        radius = np.hypot(x, z) * (1 - 0.28 * y)
        flesh = np.hypot(radius - 0.17, y) - 0.25
        stem = rod(points, vector(0, 0.14, 0), vector(0.05, 0.36, 0.02), 0.018)
        return np.minimum(0.85 * flesh, stem)

    def paint(points: Floats) -> Floats:
        x, y, z = points
        radius = np.hypot(x, z)
        yellow = rgb(0.72, 0.30, 0.06)
        streaks = noise(9 * x / radius, y, 9 * z / radius) * 0.5 + noise(points * 2.2) * 0.6
        colours = mix(rgb(0.52, 0.015, 0.02), yellow, rise(0.5, 1.0, streaks) * 0.6)
        colours = mix(colours, rgb(0.50, 0.45, 0.10), 0.8 * rise(0.24, 0.04, radius) * rise(0, 0.1, y))
        colours = mix(colours, yellow, rise(0.78, 0.86, noise(points * 30)) * 0.4)
        return mix(colours, BARK, (radius < 0.2 * y) & (y > 0.17))

    return Thing(solid, paint, centre, 0.5, gloss=0.9, turn=roll(-0.12))


def pear(centre: Floats) -> Thing:
    """A green pear with a blush: a large and a small ball, and a stem."""

    def solid(points: Floats) -> Floats:
        body = ellipsoid(points + rgb(0, 0.2, 0), rgb(0.41, 0.39, 0.41))
        neck = ball(points - rgb(0.02, 0.3, 0), 0.215)
        stem = rod(points, vector(0, 0.5, 0), vector(-0.06, 0.75, 0.02), 0.022)
        return np.minimum(blend(body, neck, 0.36), stem)

    def paint(points: Floats) -> Floats:
        colours = mix(rgb(0.30, 0.42, 0.04), rgb(0.46, 0.47, 0.05), noise(points * 2.3))
        blush = rise(0.0, 0.55, noise(points * 1.7) * 0.5 - points[0] * 0.9)
        colours = mix(colours, rgb(0.62, 0.20, 0.05), blush * 0.55)
        colours = mix(colours, rgb(0.30, 0.20, 0.05), rise(0.66, 0.8, noise(points * 34)) * 0.4)
        return mix(colours, BARK, points[1] > 0.525)

    return Thing(solid, paint, centre, 0.82, gloss=0.55, turn=roll(-0.06))


def peel(points: Floats, depth: float) -> Floats:
    """The relief of a citrus fruit's pores."""
    return np.float32(depth) * noise(points * 32)


def orange(centre: Floats) -> Thing:
    """A slightly flattened ball with pores and a small green navel."""
    radius = 0.37

    def paint(points: Floats) -> Floats:
        colours = mix(rgb(0.78, 0.20, 0.006), rgb(0.84, 0.25, 0.01), noise(points * 4))
        navel = rise(0.06, 0.03, np.hypot(points[0], points[2])) * (points[1] > 0)
        return mix(colours, rgb(0.25, 0.22, 0.04), navel)

    solid = partial(ellipsoid, radii=rgb(radius, 0.95 * radius, radius))
    turn = roll(0.5) @ pitch(-0.6)
    return Thing(solid, paint, centre, radius + 0.02, gloss=0.7, turn=turn, relief=partial(peel, depth=0.0025))


def half_orange(centre: Floats) -> Thing:
    """Half an orange, its cut face towards the viewer and the light."""
    radius = 0.38
    zest, flesh, juice = rgb(0.80, 0.22, 0.008), rgb(0.80, 0.20, 0.006), rgb(0.92, 0.36, 0.02)

    def solid(points: Floats) -> Floats:
        return np.maximum(ball(points, radius), points[2] - np.float32(0.05))

    def paint(points: Floats) -> Floats:
        x, y, z = points
        size, angle = np.hypot(x, y) / radius, np.arctan2(y, x) * (10 / (2 * np.pi))
        from_skin = 0.5 - abs(angle % 1 - 0.5)
        skins = np.maximum(rise(0.035, 0.02, from_skin * size * 0.628), rise(0.11, 0.07, size))
        colours = mix(flesh, juice, noise(angle * 5.6, size * 5, 0.5 - from_skin))
        colours = mix(colours, rgb(0.95, 0.72, 0.33), skins * 0.8)
        colours = mix(colours, rgb(0.93, 0.80, 0.55), rise(0.86, 0.89, size))
        colours = mix(colours, zest, rise(0.945, 0.965, size))
        return mix(zest, colours, z > 0.045)

    turn = pitch(0.42) @ yaw(0.35)
    return Thing(solid, paint, centre, radius + 0.02, gloss=0.7, turn=turn, relief=partial(peel, depth=0.0025))


def lemon(centre: Floats) -> Thing:
    """An ellipsoid with a tip at either end."""

    def solid(points: Floats) -> Floats:
        tips = ball(np.stack([abs(points[0]) - np.float32(0.36), points[1], points[2]]), 0.055)
        return blend(ellipsoid(points, rgb(0.38, 0.28, 0.28)), tips, 0.14)

    def paint(points: Floats) -> Floats:
        return mix(rgb(0.80, 0.52, 0.02), rgb(0.84, 0.60, 0.03), noise(points * 5))

    return Thing(solid, paint, centre, 0.5, gloss=0.7, turn=yaw(0.5), relief=partial(peel, depth=0.0012))


def grapes(place: Floats) -> Thing:
    """A bunch of dark grapes with bloom on them, and a twig: three layers, each laid out like a sunflower's seeds."""
    random = np.random.default_rng(3)
    berries = []
    for height, count in ((-0.17, 9), (0.02, 6), (0.20, 3)):
        index = np.arange(count)
        angle, spread = 2.4 * index + 7 * (height + 0.3), 0.155 * np.sqrt(index + 0.3)
        spots = np.stack([1.25 * spread * np.cos(angle), np.full(count, height), spread * np.sin(angle)], axis=1)
        berries += [rgb(*spot) for spot in spots + random.normal(0, 0.012, spots.shape)]
    radii = random.uniform(0.125, 0.15, len(berries))

    def twig(points: Floats) -> Floats:
        return rod(points, vector(-0.12, 0, 0), vector(0.14, 0.46, 0.06), 0.022)

    def solid(points: Floats) -> Floats:
        return np.minimum.reduce([twig(points), *map(ball, (points - berry for berry in berries), radii)])

    def paint(points: Floats) -> Floats:
        colours = mix(rgb(0.09, 0.012, 0.06), rgb(0.20, 0.10, 0.22), rise(0.35, 0.9, noise(points * 6)))
        return mix(colours, rgb(0.20, 0.16, 0.05), twig(points) < 2 * ARRIVED)

    return Thing(solid, paint, place + vector(0, 0.3, 0), 0.72, gloss=0.8)
