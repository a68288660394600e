"""Find what rays hit: things given by their distances, a table and a wall.

Lengths are in units of about 10 cm, x to the right, y up, z towards the viewer. Things are marched towards
(https://iquilezles.org/articles/raymarchingdf/), but only by the rays that cross the ball around them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from painting.vectors import dot, unit

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from painting.vectors import Floats

Solid: TypeAlias = "Callable[[Floats], Floats]"
Paint: TypeAlias = "Callable[[Floats], Floats]"
Plane: TypeAlias = "Callable[[Floats], Surface]"

ARRIVED = 0.0015
WALL_Z = np.float32(-2.7)


class Surface(NamedTuple):
    """What light needs to know of points on surfaces: normals `(3, N)`, colours `(3, N)`, gloss `(N,)` in 0..1."""

    normals: Floats
    colours: Floats
    gloss: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Thing:
    """Something on the table: a solid and its paint in its own coordinates, within `reach` of its centre."""

    solid: Solid
    paint: Paint
    centre: Floats
    reach: float
    gloss: float
    turn: Floats = field(default_factory=lambda: np.eye(3, dtype=np.float32))
    relief: Solid | None = None

    def local(self, points: Floats) -> Floats:
        """Points of the room in the thing's own coordinates."""
        return self.turn @ (points - self.centre[:, None])

    def distance(self, points: Floats) -> Floats:
        """The distance of points to the thing."""
        return self.solid(self.local(points))

    def surface(self, points: Floats) -> Floats:
        """The distance with the fine relief that only the light sees."""
        local = self.local(points)
        return self.solid(local) if self.relief is None else self.solid(local) - self.relief(local)


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """Things on a table before a wall."""

    things: list[Thing]
    table: Plane
    wall: Plane


class Crossing(NamedTuple):
    """Which rays cross a ball, and the ways along them to its front and its back."""

    rays: NDArray[np.intp]
    start: Floats
    end: Floats


def trace(origins: Floats, directions: Floats, things: list[Thing]) -> tuple[Floats, NDArray[np.intp]]:
    """The way to the first surface and its number: a thing's, then the table's, then the wall's; -1 for none."""
    with np.errstate(divide="ignore"):
        table = np.where(directions[1] < 0, -origins[1] / directions[1], np.inf)
        wall = np.where(directions[2] < 0, (WALL_Z - origins[2]) / directions[2], np.inf)
    nearest = np.minimum(table, wall)
    hit = np.where(table < wall, len(things), len(things) + 1)
    hit[np.isinf(nearest)] = -1
    for number, thing in enumerate(things):
        rays, start, end = crossing(thing, origins, directions)
        way = march(thing, origins[:, rays], directions[:, rays], start=start, end=np.minimum(end, nearest[rays]))
        closer = np.isfinite(way)
        nearest[rays[closer]], hit[rays[closer]] = way[closer], number
    return nearest, hit


def crossing(thing: Thing, origins: Floats, directions: Floats, *, spread: float = 0) -> Crossing:
    """Which rays, growing into cones by `spread` a unit of way, cross the ball around a thing."""
    towards = thing.centre[:, None] - origins
    ahead = dot(towards, directions)
    reach = np.float32(thing.reach) + np.float32(spread) * np.maximum(ahead, 0)
    square = reach * reach - (dot(towards, towards) - ahead * ahead)
    rays = np.flatnonzero((square > 0) & (ahead > -reach))
    half = np.sqrt(square[rays])
    start, end = ahead[rays] - half, ahead[rays] + half
    keep = end > 0
    return Crossing(rays[keep], np.maximum(start[keep], 0), end[keep])


def march(thing: Thing, origins: Floats, directions: Floats, *, start: Floats, end: Floats) -> Floats:
    """Step along each ray by the distance to the thing; the way to it `(N,)`, infinite where it is missed."""
    reached = np.full_like(start, np.inf)
    alive = np.flatnonzero(start < end)
    way = start[alive]
    for _ in range(70):
        if not alive.size:
            break
        gap = thing.distance(origins[:, alive] + way * directions[:, alive])
        way = way + gap
        arrived = gap < ARRIVED
        reached[alive[arrived]] = way[arrived]
        going = ~arrived & (way < end[alive])
        alive, way = alive[going], way[going]
    return reached


def describe(points: Floats, hit: NDArray[np.intp], scene: Scene) -> Surface:
    """The surfaces at points that `trace` found."""
    normals, colours, gloss = np.zeros_like(points), np.zeros_like(points), np.zeros_like(points[0])
    for number, thing in enumerate(scene.things):
        here = np.flatnonzero(hit == number)
        normals[:, here], gloss[here] = slope(thing, points[:, here]), thing.gloss
        colours[:, here] = thing.paint(thing.local(points[:, here]))
    for number, plane in enumerate((scene.table, scene.wall), start=len(scene.things)):
        here = np.flatnonzero(hit == number)
        normals[:, here], colours[:, here], gloss[here] = plane(points[:, here])
    return Surface(normals, colours, gloss)


def slope(thing: Thing, points: Floats) -> Floats:
    """A thing's normals: the gradient of its distance, from the corners of a small tetrahedron."""
    corners = np.array([[1, -1, -1], [-1, -1, 1], [-1, 1, -1], [1, 1, 1]], np.float32)[:, :, None]
    return unit(sum(corner * thing.surface(points + np.float32(0.004) * corner) for corner in corners))
