"""Paint flat shapes, given by their distances in pixels, with smooth edges on a canvas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from painting.vectors import Floats


def grid(width: int, height: int) -> tuple[Floats, Floats]:
    """The x and y of the middles of all pixels, each `(height, width)`."""
    y, x = np.mgrid[:height, :width].astype(np.float32) + np.float32(0.5)
    return x, y


def colour(code: str) -> Floats:
    """A colour `(3,)` in 0..1 from its hexadecimal code."""
    return np.frombuffer(bytes.fromhex(code), np.uint8).astype(np.float32) / np.float32(255)


def lay(canvas: Floats, distance: Floats, ink: Floats, *, soft: float = 1, opacity: float = 1) -> None:
    """Lay ink on a canvas `(height, width, 3)` wherever the distance is negative; the edge is `soft` pixels wide."""
    cover = np.clip(0.5 - distance / soft, 0, 1) * opacity
    canvas += cover[..., None] * (ink - canvas)


def pixels(canvas: Floats) -> NDArray[np.uint8]:
    """The canvas, whose values are display values in 0..1, as uint8."""
    return np.rint(np.clip(canvas, 0, 1) * 255).astype(np.uint8)


def turned(x: Floats, y: Floats, degrees: float) -> tuple[Floats, Floats]:
    """Coordinates in a frame that is turned clockwise about the origin."""
    cos, sin = float(np.cos(np.radians(degrees))), float(np.sin(np.radians(degrees)))
    return cos * x + sin * y, cos * y - sin * x


def circle(x: Floats, y: Floats, radius: float) -> Floats:
    """A disc."""
    return np.hypot(x, y) - radius


def ring(x: Floats, y: Floats, radius: float) -> Floats:
    """A ring, a third of whose radius is its width."""
    return abs(np.hypot(x, y) - radius * 0.83) - radius * 0.17


def box(x: Floats, y: Floats, half_width: float, half_height: float) -> Floats:
    """A rectangle."""
    return np.maximum(abs(x) - half_width, abs(y) - half_height)


def square(x: Floats, y: Floats, radius: float) -> Floats:
    """A square with the area of a disc, more or less."""
    return box(x, y, radius * 0.86, radius * 0.86)


def cross(x: Floats, y: Floats, radius: float) -> Floats:
    """A plus sign."""
    return np.minimum(box(x, y, radius, radius * 0.33), box(x, y, radius * 0.33, radius))


def polygon(x: Floats, y: Floats, radius: float, *, sides: int = 3) -> Floats:
    """A regular polygon that stands on its side."""
    angle = np.arange(sides) * (2 * np.pi / sides) + np.pi / 2
    inner = radius * float(np.cos(np.pi / sides))
    return np.maximum.reduce([x * float(np.cos(a)) + y * float(np.sin(a)) - inner for a in angle])


def star(x: Floats, y: Floats, radius: float, *, points: int = 5, waist: float = 0.45) -> Floats:
    """A star that stands on two points; `waist` is the radius of its notches, relative to its points'."""
    step = np.pi / points
    angle = abs((np.arctan2(x, -y) + step) % (2 * step) - step)
    along, beside = np.hypot(x, y) * np.cos(angle), np.hypot(x, y) * np.sin(angle)
    notch_along, notch_beside = radius * waist * np.cos(step), radius * waist * np.sin(step)
    edge = np.hypot(radius - notch_along, notch_beside)
    return ((along - radius) * notch_beside + beside * (radius - notch_along)) / edge
