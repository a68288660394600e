"""Distances to simple solids and the ways to turn them; see https://iquilezles.org/articles/distfunctions/."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from painting.vectors import dot

if TYPE_CHECKING:
    from painting.vectors import Floats


def ball(points: Floats, radius: float) -> Floats:
    """The distance of points `(3, N)` to a ball about the origin."""
    return np.sqrt(dot(points, points)) - np.float32(radius)


def ellipsoid(points: Floats, radii: Floats) -> Floats:
    """A lower bound of the distance to an ellipsoid with half axes `(3, 1)`.

    The usual bound is far too small beside the edge of a flat ellipsoid, which there casts shadows of nothing; the
    distance to the surrounding box repairs that.
    """
    near, far = points / radii, points / (radii * radii)
    size = np.sqrt(dot(near, near))
    bound = size * (size - 1) / np.maximum(np.sqrt(dot(far, far)), np.float32(1e-6))
    return np.maximum(bound, (abs(points) - radii).max(axis=0))


def rod(points: Floats, start: Floats, end: Floats, radius: float) -> Floats:
    """The distance to a round-ended rod between two points `(3,)`."""
    axis = end - start
    offset = points - start[:, None]
    part = np.clip(axis @ offset / np.float32(axis @ axis), 0, 1)
    return ball(offset - axis[:, None] * part, radius)


def blend(first: Floats, second: Floats, width: float) -> Floats:
    """The union of two solids with a fillet."""
    part = np.maximum(np.float32(width) - abs(first - second), 0) / np.float32(width)
    return np.minimum(first, second) - part * part * np.float32(width / 4)


def pitch(angle: float) -> Floats:
    """A rotation about x, in radians."""
    cos, sin = np.cos(angle), np.sin(angle)
    return np.array([[1, 0, 0], [0, cos, sin], [0, -sin, cos]], np.float32)


def yaw(angle: float) -> Floats:
    """A rotation about y, in radians."""
    cos, sin = np.cos(angle), np.sin(angle)
    return np.array([[cos, 0, -sin], [0, 1, 0], [sin, 0, cos]], np.float32)


def roll(angle: float) -> Floats:
    """A rotation about z, in radians."""
    cos, sin = np.cos(angle), np.sin(angle)
    return np.array([[cos, sin, 0], [-sin, cos, 0], [0, 0, 1]], np.float32)
