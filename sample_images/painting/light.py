"""Light a scene by the low sun through a window, the sky and the table, and take its photograph.

Soft shadows follow https://iquilezles.org/articles/rmshadows/: the narrowest gap on the way to the sun, relative to the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from painting.raymarch import crossing, describe, trace
from painting.vectors import dot, rgb, rise, unit, vector

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from painting.raymarch import Scene, Thing
    from painting.vectors import Floats

EYE = vector(0.35, 2.75, 8.0)
TARGET = vector(0.0, 1.13, 0.0)
FIELD_OF_VIEW = 0.522  # radians, vertical
APERTURE = 0.035
GOLDEN = 0.618034

SUN = unit(vector(-0.62, 0.40, 0.60))
SUNLIGHT = rgb(3.7, 2.85, 1.95)
SUN_SPREAD = 0.085  # the sun's radius at distance 1: larger than the real one's, for softer shadows
SKY = unit(vector(-0.8, 0.3, 0.5))
SKYLIGHT = rgb(0.50, 0.57, 0.68)
TABLE_LIGHT = rgb(0.36, 0.25, 0.16)
EXPOSURE = np.float32(0.58)


def photograph(scene: Scene, width: int, height: int, *, samples: int) -> NDArray[np.uint8]:
    """Render a scene as uint8 `(height, width, 3)`, with `samples` rays a pixel."""
    total = np.zeros((3, width * height), np.float32)
    for index in range(samples):
        origins, directions = camera(width, height, index=index, samples=samples)
        total += develop(radiance(origins, directions, scene, bounces=1))
    return np.rint(total / samples * 255).astype(np.uint8).T.reshape(height, width, 3)


def camera(width: int, height: int, *, index: int, samples: int) -> tuple[Floats, Floats]:
    """Origins and directions of rays through every pixel.

    Each sample has its own place in the pixel and on the lens; two in a row lie opposite each other.
    """
    pair, side = index // 2, 1 - 2 * (index % 2)
    shift_x, shift_y = side * (pair + 0.5) / samples, side * ((pair + 0.75) * GOLDEN % 1 - 0.5)
    x, y = np.meshgrid(np.arange(width) + 0.5 + shift_x - width / 2, height / 2 - np.arange(height) - 0.5 - shift_y)
    forward = unit(TARGET - EYE)
    right, up = frame(forward)
    angle, radius = 2 * np.pi * GOLDEN * pair, side * APERTURE * np.sqrt((index + 0.5) / samples)
    lens = radius * (np.cos(angle) * right + np.sin(angle) * up)
    focus = np.linalg.norm(TARGET - EYE) - 0.5
    scale = 2 * np.tan(FIELD_OF_VIEW / 2) / height
    aims = focus * (forward[:, None] + scale * (np.outer(right, x) + np.outer(up, y))) - lens[:, None]
    directions = unit(aims.astype(np.float32))
    return np.broadcast_to((EYE + lens).astype(np.float32)[:, None], directions.shape), directions


def frame(forward: Floats) -> tuple[Floats, Floats]:
    """The directions to the right and upwards of someone who looks forward."""
    right = unit(np.cross(forward, vector(0, 1, 0)))
    return right, np.cross(right, forward)


def develop(light: Floats) -> Floats:
    """Bring linear light to display values in 0..1 with the shoulder of film.

    The curve is https://knarkowicz.wordpress.com/2016/01/06/aces-filmic-tone-mapping-curve/.
    """
    light = light * EXPOSURE
    film = light * (2.51 * light + 0.03) / (light * (2.43 * light + 0.59) + 0.14)
    return np.clip(film, 0, 1) ** np.float32(1 / 2.2)


def radiance(origins: Floats, directions: Floats, scene: Scene, *, bounces: int) -> Floats:
    """The light `(3, N)` that comes back along rays, after at most so many reflections."""
    way, hit = trace(origins, directions, scene.things)
    light = window(directions)
    found = np.flatnonzero(hit >= 0)
    directions = directions[:, found]
    points = origins[:, found] + way[found] * directions
    surface = describe(points, hit[found], scene)
    light[:, found] = surface.colours * illuminate(points, surface.normals, scene.things)
    if bounces:
        cosine = np.clip(-dot(directions, surface.normals), 0, 1)
        mirror = surface.gloss * (0.04 + 0.5 * (1 - cosine) ** 5)  # Schlick; half at the rim, as nothing is polished
        shiny = np.flatnonzero(mirror > 0.01)
        normals = surface.normals[:, shiny]
        mirrored = directions[:, shiny] + 2 * cosine[shiny] * normals
        reflection = radiance(points[:, shiny] + 0.02 * normals, mirrored, scene, bounces=bounces - 1)
        light[:, found[shiny]] += mirror[shiny] * reflection
    return light


def window(directions: Floats) -> Floats:
    """What a mirror sees away from table and wall: a dim warm room and a bright window with four panes."""
    towards = unit(vector(-0.75, 0.42, 0.5))
    right, up = frame(towards)
    depth = towards @ directions
    with np.errstate(divide="ignore", invalid="ignore"):
        u, v = abs(right @ directions / depth), abs(up @ directions / depth)
    glass = rise(0.42, 0.38, u) * rise(0.55, 0.51, v) * rise(0.02, 0.05, u) * rise(0.02, 0.05, v) * (depth > 0)
    room = rgb(0.30, 0.27, 0.24) * (0.6 + 0.5 * directions[1])
    return room + rgb(11, 11.5, 12) * glass


def illuminate(points: Floats, normals: Floats, things: list[Thing]) -> Floats:
    """The light `(3, N)` that falls on points."""
    sun = np.clip(SUN @ normals, 0, 1) * panes(points)
    sunny = np.flatnonzero(sun > 0.01)
    sun[sunny] *= shadow(points[:, sunny] + 0.015 * normals[:, sunny], things)
    openness = exposure(points, normals, things)
    upward = 0.5 + 0.5 * normals[1]
    sky = upward * (0.65 + 0.35 * (SKY @ normals)) * openness
    table = (1 - upward) * (0.4 + 0.6 * openness)
    return SUNLIGHT * sun + SKYLIGHT * sky + TABLE_LIGHT * table


def panes(points: Floats) -> Floats:
    """How much sun the window lets through to each point: panes between bars, with soft edges."""
    right, up = frame(SUN)
    u, v = right @ points, up @ points
    opening = rise(2.75, 2.55, u) * rise(-3.2, -2.4, u) * rise(3.5, 3.3, v) * rise(-1.5, -0.9, v)
    bars = rise(0.03, 0.12, abs((u + 0.35) % 1.5 - 0.75)) * rise(0.03, 0.12, abs((v + 0.45) % 1.7 - 0.85))
    return 0.06 + 0.94 * opening * (0.25 + 0.75 * bars)


def shadow(points: Floats, things: list[Thing]) -> Floats:
    """How much of the sun each point sees past all things."""
    light = np.ones_like(points[0])
    towards = np.broadcast_to(SUN[:, None], points.shape)
    for thing in things:
        rays, start, end = crossing(thing, points, towards, spread=2 * SUN_SPREAD)
        light[rays] *= penumbra(thing, points[:, rays], start=start, end=end)
    return light


def penumbra(thing: Thing, points: Floats, *, start: Floats, end: Floats) -> Floats:
    """How much of the sun passes one thing."""
    narrowest = np.ones_like(start)
    alive, way = np.arange(start.size), np.maximum(start, np.float32(0.01))
    for _ in range(28):
        if not alive.size:
            break
        gap = thing.distance(points[:, alive] + way * SUN[:, None])
        narrowest[alive] = np.minimum(narrowest[alive], gap / (np.float32(SUN_SPREAD) * way))
        way = way + np.clip(gap, 0.025, 0.3)
        going = (way < end[alive]) & (narrowest[alive] > -1)
        alive, way = alive[going], way[going]
    narrowest = np.maximum(narrowest, -1)
    return np.float32(0.25) * (1 + narrowest) ** 2 * (2 - narrowest)


def exposure(points: Floats, normals: Floats, things: list[Thing]) -> Floats:
    """How open the room is above each point: ambient occlusion from the gaps at three steps along its normal."""
    steps = (0.06, 0.18, 0.4)
    openness = np.ones_like(points[0])
    for thing in things:
        offset = points - thing.centre[:, None]
        near = np.flatnonzero(dot(offset, offset) < (thing.reach + 2 * max(steps)) ** 2)
        here, out = points[:, near], normals[:, near]
        closed = sum(1 - np.clip(thing.distance(here + step * out) / step, 0, 1) for step in steps)
        openness[near] *= 1 - np.float32(0.25) * closed
    near_table = 1 - rise(-0.1, 0.7, points[1])
    return openness * (1 - np.float32(0.7) * near_table * np.clip(-normals[1], 0, 1))
