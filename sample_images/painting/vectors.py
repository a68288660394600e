"""Small mathematics on columns: float32 arrays `(3, N)` of points, directions or colours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.floating[Any]]"

LATTICE = np.random.default_rng(7).random((32, 32, 32), dtype=np.float32)


def dot(first: Floats, second: Floats) -> Floats:
    """The dot product of each pair of columns, `(N,)`."""
    return first[0] * second[0] + first[1] * second[1] + first[2] * second[2]


def unit(vectors: Floats) -> Floats:
    """The columns, or the one vector `(3,)`, at length 1."""
    return vectors / np.sqrt((vectors * vectors).sum(axis=0))


def vector(x: float, y: float, z: float) -> Floats:
    """One point or direction `(3,)`."""
    return np.array([x, y, z], np.float32)


def rgb(red: float, green: float, blue: float) -> Floats:
    """One column `(3, 1)`: a colour in 0..1, or any other triple."""
    return vector(red, green, blue)[:, None]


def mix(first: Floats, second: Floats, part: Floats | NDArray[np.bool_]) -> Floats:
    """From `first` where `part` is 0 to `second` where it is 1."""
    return first + (second - first) * part


def rise(low: float, high: float, value: Floats) -> Floats:
    """A smooth step from 0 at `low` to 1 at `high`, which may lie below `low`."""
    part = np.clip((value - np.float32(low)) * np.float32(1 / (high - low)), 0, 1)
    return part * part * (3 - 2 * part)


def noise(*coordinates: Floats) -> Floats:
    """Smooth noise in 0..1 with one wave a unit, at points given as one array `(3, N)` or as x, y, z."""
    points = np.stack(np.broadcast_arrays(*coordinates)) if len(coordinates) > 1 else coordinates[0]
    floor = np.floor(points)
    part = points - floor
    part = part * part * (3 - 2 * part)
    x, y, z = floor.astype(np.int32) & 31
    x_next, y_next, z_next = (x + 1) & 31, (y + 1) & 31, (z + 1) & 31

    def row(y: Floats, z: Floats) -> Floats:
        return mix(LATTICE[z, y, x], LATTICE[z, y, x_next], part[0])

    def plane(z: Floats) -> Floats:
        return mix(row(y, z), row(y_next, z), part[1])

    return mix(plane(z), plane(z_next), part[2])
