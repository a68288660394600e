"""Six textures in six fields: bricks, wickerwork, leaves, pebbles, knitting and sand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from painting.canvas import colour, grid, lay, pixels, turned
from painting.vectors import mix, noise, rise

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from painting.vectors import Floats

SIDE = 160  # pixels of a field
FINE = 2  # samples along either side of a pixel


def draw_textures() -> NDArray[np.uint8]:
    """Draw the six fields, three in a row, as uint8 `(320, 480, 3)`."""
    x, y = (axis / FINE for axis in grid(SIDE * FINE, SIDE * FINE))
    fields = [texture(x, y) for texture in (bricks, wickerwork, leaves, pebbles, knitting, sand)]
    rows = [np.concatenate(fields[:3], axis=1), np.concatenate(fields[3:], axis=1)]
    fine = np.concatenate(rows).reshape(2 * SIDE, FINE, 3 * SIDE, FINE, 3)
    return pixels(fine.mean(axis=(1, 3)))


def field(x: Floats, y: Floats, z: float = 0) -> Floats:
    """Noise over the plane."""
    return noise(x.ravel(), y.ravel(), np.full(x.size, z, np.float32)).reshape(x.shape)


def lit(colours: Floats, height: Floats, *, strength: float) -> Floats:
    """Colours `(H, W, 3)` on a relief whose height is in pixels, in light from the upper left."""
    down, right = np.gradient(height)
    return colours * np.clip(1 - strength * (down + right), 0.25, 1.7)[..., None]


def bricks(x: Floats, y: Floats) -> Floats:
    """A brick wall in running bond, with mortar."""
    row = np.floor(y / 20)
    shifted = x + 20 * (row % 2)
    column = np.floor(shifted / 40)
    wobble = 1.2 * (field(x / 7, y / 7) - 0.5)
    inside = np.minimum(20 - abs(shifted % 40 - 20), 10 - abs(y % 20 - 10)) + wobble
    body = rise(1.2, 2.6, inside)
    tint = field(column * 3.7 + 0.5, row * 5.3 + 0.5)[..., None]
    clay = mix(colour("8a3f2c"), colour("c8754f"), tint) * (0.85 + 0.3 * field(x / 2.5, y / 2.5, 4)[..., None])
    height = 2.5 * body + 0.7 * field(x / 1.8, y / 1.8, 9)
    return lit(mix(colour("b9ad9c"), clay, body[..., None]), height, strength=0.22)


def wickerwork(x: Floats, y: Floats) -> Floats:
    """Flat strands over and under each other."""
    pitch = 20
    upright = (np.floor(x / pitch) + np.floor(y / pitch)) % 2 == 0
    u, v = x % pitch - pitch / 2, y % pitch - pitch / 2
    beside, along = np.where(upright, u, v), np.where(upright, v, u)
    height = 6 * np.sqrt(np.clip(1 - (beside / (0.5 * pitch)) ** 2, 0, 1)) + 4 * np.cos(np.pi * along / pitch)
    strand = np.where(upright, np.floor(x / pitch), np.floor(y / pitch) + 50)
    fibres = field(beside * 1.1, along / 14 + strand * 3.1, 2)
    straw = mix(colour("a8742f"), colour("e8c983"), (0.65 * fibres + 0.35 * field(strand + 0.5, strand + 0.5))[..., None])
    shade = rise(-1.5, 5, height)[..., None]
    return lit(straw * (0.35 + 0.65 * shade), height, strength=0.16)


def leaves(x: Floats, y: Floats) -> Floats:
    """Fallen leaves on each other, each with a midrib and veins."""
    random = np.random.default_rng(2)
    inks = [colour(code) for code in ("5d7f2f", "7c9a3c", "a8a43a", "c98a2b", "b8562a", "3f6a35")]
    canvas = np.broadcast_to(colour("2a2a18"), (*x.shape, 3)).copy()
    for _ in range(170):
        left, top = random.uniform(-10, SIDE + 10, 2)
        near = np.ix_(abs(y[:, 0] - top) < 30, abs(x[0] - left) < 30)
        patch = canvas[near]
        add_leaf(patch, x[near] - left, y[near] - top, ink=inks[random.integers(len(inks))], random=random)
        canvas[near] = patch
    return canvas


def add_leaf(canvas: Floats, x: Floats, y: Floats, *, ink: Floats, random: np.random.Generator) -> None:
    """Lay a leaf with its shadow, darker lower half, midrib and veins."""
    u, v = turned(x, y, random.uniform(0, 360))
    length = random.uniform(15, 23)
    outline = leaf(u, v, length)
    lay(canvas, leaf(u - 1, v - 2, length), colour("151208"), soft=5, opacity=0.55)
    lay(canvas, outline, ink * random.choice([0.94, 1.08]))
    lay(canvas, np.maximum(outline, v), ink * 0.82, opacity=0.8)
    ribs = np.minimum(abs(v), abs((u + abs(v)) % 5 - 2.5) + 0.25) - 0.45
    lay(canvas, np.maximum(ribs, outline + 0.8), ink * 1.35 + 0.06, opacity=0.5)


def leaf(x: Floats, y: Floats, length: float) -> Floats:
    """What two circles share: a shape pointed at both ends, twice as long as wide."""
    offset = 0.75 * length
    return np.hypot(x, abs(y) + offset) - np.hypot(length, offset)


def pebbles(x: Floats, y: Floats) -> Floats:
    """Rounded stones in sand: the cells around scattered points."""
    random = np.random.default_rng(9)
    cells = np.stack(np.meshgrid(np.arange(-1, 9), np.arange(-1, 9)), axis=-1).reshape(-1, 2)
    spots = (cells + 0.5 + random.uniform(-0.36, 0.36, cells.shape)) * 20
    first, second, owner = np.full(x.shape, np.inf, np.float32), np.full(x.shape, np.inf, np.float32), np.zeros(x.shape, int)
    for number, (left, top) in enumerate(spots.astype(np.float32)):
        away = np.hypot(x - left, y - top)
        owner = np.where(away < first, number, owner)
        first, second = np.minimum(first, away), np.minimum(second, np.maximum(first, away))
    inside = second - first
    greys = np.stack([colour(code) for code in ("8f8a84", "b9b1a4", "6f7478", "a58f7b", "d6cfc2", "5a5552")])
    stones = greys[random.integers(len(greys), size=len(spots))[owner]]
    stones = stones * (0.8 + 0.4 * field(x / 2.2 + owner, y / 2.2, 3)[..., None])
    body = rise(1.0, 3.0, inside)[..., None]
    height = 7 * np.sqrt(np.clip(inside, 0, 12) / 12)
    return lit(mix(colour("3b332b"), stones, body), height, strength=0.2)


def knitting(x: Floats, y: Floats) -> Floats:
    """Columns of stitches, each two slanted strands of wool, with a pattern in a second colour."""
    column = np.floor(x / 16)
    u = x % 16 - 8
    slanted = y - 0.9 * abs(u)
    row = np.floor(slanted / 12)
    v = slanted % 12 - 6
    u_half = abs(u) - 4
    height = 6 * np.sqrt(np.clip(1 - (v / 6.2) ** 2 - 0.75 * (u_half / 4.4) ** 2, 0, 1))
    twist = 0.5 + 0.5 * np.sin((abs(u) * 0.8 + v) * 1.6)
    pattern = ((abs(column - 4.5) - 0.5 + row) % 6 < 2)[..., None]
    wool = np.where(pattern, colour("f0e6d2"), colour("a63446"))
    shade = (0.30 + 0.70 * rise(0, 4, height)) * (0.88 + 0.12 * twist)
    return lit(wool * shade[..., None], height, strength=0.12)


def sand(x: Floats, y: Floats) -> Floats:
    """Ripples that the wind has made, which meet and part."""
    bent = y + 16 * field(x / 40, y / 55, 1) + 7 * field(x / 17, y / 28, 6)
    phase = (bent / 13) % 1
    height = 6 * np.where(phase < 0.7, phase / 0.7, (1 - phase) / 0.3) + 0.8 * field(x / 1.3, y / 1.3, 8)
    tone = mix(colour("b98a55"), colour("ecd0a0"), (height / 7)[..., None])
    return lit(tone, height, strength=0.14)
