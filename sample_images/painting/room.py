"""The planes of the still life: a table with a checked cloth, and a wall."""

from __future__ import annotations

import numpy as np
from painting.raymarch import Surface
from painting.vectors import Floats, mix, noise, rgb, rise, unit

CLOTH_HALF = (1.70, 1.05)
CLOTH_TURN = 0.33  # radians


def table(points: Floats) -> Surface:
    """Wooden planks with a checked cloth on them."""
    normals = np.zeros_like(points)
    normals[1] = 1
    colours, gloss = wood(points), np.full_like(points[0], 0.4)
    across, along = on_cloth(points)
    edge = np.maximum(abs(across) - CLOTH_HALF[0], abs(along) - CLOTH_HALF[1]) + 0.02 * (noise(points * 3) - 0.5)
    colours *= 1 - 0.55 * rise(0.07, 0.0, edge)
    here = np.flatnonzero(edge < 0)
    normals[:, here] = folds(points[:, here])
    colours[:, here], gloss[here] = gingham(across[here], along[here], edge[here]), 0
    return Surface(normals, colours, gloss)


def wall(points: Floats) -> Surface:
    """Matt plaster in a dusty blue-green."""
    normals = np.zeros_like(points)
    normals[2] = 1
    mottle = noise(points * 1.1) * 0.6 + noise(points * 5) * 0.25 + noise(points * 22) * 0.15
    return Surface(normals, mix(rgb(0.17, 0.27, 0.28), rgb(0.25, 0.36, 0.35), mottle), np.zeros_like(points[0]))


def wood(points: Floats) -> Floats:
    """Planks along x with rings, fibres and dark seams."""
    x, _, z = points
    plank = np.floor(z / 0.85 + 0.25)
    from_middle = abs(z / 0.85 + 0.25 - plank - 0.5)
    spots = np.stack([x * 0.45 + plank * 7.3, plank * 3.7, z * 2.2])
    rings = 0.5 + 0.5 * np.sin(2 * np.pi * (noise(spots) * 7 + noise(spots * 2.7) * 1.2))
    fibres = noise(x * 2.5 + plank, plank, z * 70)
    colours = mix(rgb(0.26, 0.11, 0.045), rgb(0.44, 0.215, 0.09), 0.7 * rings + 0.3 * fibres)
    colours *= 0.78 + 0.4 * noise(plank * 5.1, plank * 0.3, x * 0.2)
    return colours * (1 - 0.75 * rise(0.485, 0.497, from_middle))


def on_cloth(points: Floats) -> tuple[Floats, Floats]:
    """Where points of the table lie on the cloth: across and along it, from its middle."""
    x, z = points[0] + 0.5, points[2] - 0.78
    cos, sin = np.cos(CLOTH_TURN), np.sin(CLOTH_TURN)
    return cos * x + sin * z, cos * z - sin * x


def gingham(across: Floats, along: Floats, edge: Floats) -> Floats:
    """White and blue checks, threads and a white hem; `edge` is the distance to it, negative inside."""
    threads = 0.5 + 0.5 * np.sin(across * 160) * np.sin(along * 160)
    ink = (check(across) + check(along)) / 2 * rise(-0.03, -0.06, edge)
    seam = rise(-0.05, -0.04, edge) * rise(-0.02, -0.03, edge)
    return mix(rgb(0.86, 0.84, 0.80), rgb(0.07, 0.14, 0.36), ink + 0.3 * seam) * (0.9 + 0.1 * threads)


def check(side: Floats) -> Floats:
    """Stripes 0.2 wide: 0, then 1, with soft edges."""
    return rise(-0.06, 0.06, np.sin(np.pi * side / 0.2))


def folds(points: Floats) -> Floats:
    """The normals of the cloth, which has not been ironed."""
    step = np.float32(0.02)
    level = fold_height(points)
    slope_x = (fold_height(points + step * rgb(1, 0, 0)) - level) / step
    slope_z = (fold_height(points + step * rgb(0, 0, 1)) - level) / step
    return unit(np.stack([-slope_x, np.ones_like(level), -slope_z]))


def fold_height(points: Floats) -> Floats:
    """The height of the cloth above the table."""
    x, _, z = points
    spots = np.stack([0.8 * x + 0.5 * z, np.zeros_like(x), 2.2 * z - x])
    return 0.36 * noise(spots) + 0.06 * noise(spots * 2.3)
