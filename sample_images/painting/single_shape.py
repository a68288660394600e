"""Paint synthetic images of one shape each, the same at any resolution."""

from __future__ import annotations

from colorsys import hsv_to_rgb
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.floating[Any]]
    Pattern = Callable[[np.random.Generator, int], Floats]

CLASSES = ("circle", "square", "triangle", "star", "cross", "ring")
SIDE = 96  # pixels: the network's input size

# All lengths are fractions of the side.
RADII = (0.15, 0.34)  # of the circle around a shape
MARGIN = 0.02
CONTRAST = 0.3  # at least, between the shape and every ink under it; 1 is black on white
EDGE = 0.02  # width of the transition between two inks in a pattern
SAMPLES = 4  # per pixel and axis
GRAINS = 96  # along a side


@dataclass(frozen=True, slots=True, eq=False)
class ShapePicture:
    """An image of exactly one shape.

    Attributes:
        pixels: uint8 `(H, W, 3)`.
        label: An index into `CLASSES`.
        mask: bool `(H, W)`: the pixels of which the shape covers at least half; a ring has a hole.
    """

    pixels: NDArray[np.uint8]
    label: int
    mask: NDArray[np.bool_]


def paint(generator: np.random.Generator, *, side: int = SIDE, label: int | None = None) -> ShapePicture:
    """Paint one shape of random colour, size, position and rotation on a patterned, noisy background.

    The random numbers do not depend on the side: equal generators paint the same image at any resolution.

    Args:
        generator: Draws everything else.
        side: Height and width, pixels.
        label: An index into `CLASSES`; None: random.

    Example:
        >>> picture = paint(np.random.default_rng(0), label=CLASSES.index("star"))
        >>> picture.pixels.shape, picture.mask.shape
        ((96, 96, 3), (96, 96))
    """
    label = int(generator.integers(len(CLASSES))) if label is None else label
    *grounds, ink = _inks(generator)
    canvas = _ground(generator, side, grounds)
    cover = _cover([_placed(_OUTLINES[CLASSES[label]](generator), generator)], side)
    shade = 0.9 + 0.2 * _gradient(generator, side)
    canvas += cover[..., None] * (ink * shade[..., None] - canvas)
    canvas += _grain(generator, side)[..., None]
    pixels = (canvas.clip(0, 1) * 255 + 0.5).astype(np.uint8)
    return ShapePicture(pixels, label, cover >= 0.5)


def _inks(generator: np.random.Generator) -> list[Floats]:
    """Choose three related inks for the background, and a fourth that contrasts with each of them."""
    first = _ink(generator)
    grounds = [first, *(np.clip(first + generator.uniform(-0.18, 0.18, 3), 0, 1) for _ in range(2))]
    while True:
        ink = _ink(generator)
        if min(_contrast(ink, ground) for ground in grounds) >= CONTRAST:
            return [*grounds, ink]


def _ink(generator: np.random.Generator) -> Floats:
    return np.array(hsv_to_rgb(generator.uniform(), generator.uniform(0.05, 0.9), generator.uniform(0.2, 1)))


def _contrast(one: Floats, other: Floats) -> float:
    """Return the perceived difference of two inks, 0..1: the eye is most sensitive to green."""
    return float(np.sqrt(((one - other) ** 2) @ [2 / 9, 4 / 9, 3 / 9]))


def _ground(generator: np.random.Generator, side: int, inks: Sequence[Floats]) -> Floats:
    """Mix two inks in a pattern, and add clutter in the third."""
    pattern, clutter = (family[generator.integers(len(family))] for family in (_PATTERNS, _CLUTTERS))
    canvas = inks[0] + pattern(generator, side)[..., None] * (inks[1] - inks[0])
    return canvas + clutter(generator, side)[..., None] * (inks[2] - canvas)


def _gradient(generator: np.random.Generator, side: int) -> Floats:
    across, _ = _turned_axes(generator, side)
    return across + 0.5


def _stripes(generator: np.random.Generator, side: int) -> Floats:
    across, _ = _turned_axes(generator, side)
    return 0.5 + 0.5 * _wave(across, period=generator.uniform(0.06, 0.25))


def _checks(generator: np.random.Generator, side: int) -> Floats:
    period = generator.uniform(0.08, 0.25)
    across, down = (_wave(axis, period=period) for axis in _turned_axes(generator, side))
    return 0.5 + 0.5 * across * down


def _blotches(generator: np.random.Generator, side: int) -> Floats:
    return _enlarged(generator.uniform(-0.3, 1.3, (8, 8)), side).clip(0, 1)


def _speckles(generator: np.random.Generator, side: int) -> Floats:
    return _enlarged(generator.uniform(0, 1, (40, 40)), side).clip(0, 1)


def _turned_axes(generator: np.random.Generator, side: int) -> tuple[Floats, Floats]:
    """Return every pixel's coordinates on two rotated axes through the centre."""
    angle = generator.uniform(0, 2 * np.pi)
    places = (np.arange(side) + 0.5) / side - 0.5
    across, down = places[None, :], places[:, None]
    return np.cos(angle) * across + np.sin(angle) * down, np.cos(angle) * down - np.sin(angle) * across


def _wave(axis: Floats, *, period: float) -> Floats:
    """Return a wave between -1 and 1 with flat tops."""
    slope: Floats = np.sin(axis * (2 * np.pi / period)) * (period / np.pi / EDGE)
    return slope.clip(-1, 1)


def _enlarged(coarse: Floats, side: int) -> Floats:
    image = Image.fromarray(coarse.astype(np.float32))
    return np.asarray(image.resize((side, side), Image.Resampling.BICUBIC))


def _nothing(_generator: np.random.Generator, side: int) -> Floats:
    return np.zeros((side, side))


def _lines(generator: np.random.Generator, side: int) -> Floats:
    """Draw thin random lines."""
    starts, ends = generator.uniform(-0.2, 1.2, (2, generator.integers(4, 16), 2))
    sideways = (ends - starts)[:, ::-1] * [1, -1]
    sideways *= 0.006 / np.linalg.norm(sideways, axis=1, keepdims=True)
    return _cover(np.stack([starts - sideways, starts + sideways, ends + sideways, ends - sideways], axis=1), side)


def _dots(generator: np.random.Generator, side: int) -> Floats:
    """Draw dots that are too small to look like the shape."""
    centres = generator.uniform(0, 1, (generator.integers(10, 60), 1, 2))
    return _cover(centres + generator.uniform(0.008, 0.02) * _corners(12), side)


def _grain(generator: np.random.Generator, side: int) -> Floats:
    return _enlarged(generator.normal(0, generator.uniform(0, 0.04), (GRAINS, GRAINS)), side)


def _circle(_generator: np.random.Generator) -> Floats:
    return _corners(90)


def _square(_generator: np.random.Generator) -> Floats:
    return _corners(4)


def _triangle(_generator: np.random.Generator) -> Floats:
    return _corners(3)


def _star(generator: np.random.Generator) -> Floats:
    corners = _corners(10)
    corners[1::2] *= generator.uniform(0.4, 0.5)
    return corners


def _cross(generator: np.random.Generator) -> Floats:
    """Outline two crossed bars whose ends are on the unit circle."""
    half = generator.uniform(0.26, 0.36)
    end = np.sqrt(1 - half**2)
    arm = np.array([(half, half), (end, half), (end, -half)])
    quarter_turn = np.array([(0, -1), (1, 0)])
    return np.concatenate([arm @ np.linalg.matrix_power(quarter_turn, turns) for turns in range(4)])


def _ring(generator: np.random.Generator) -> Floats:
    """Outline the outer circle, then the inner one backwards."""
    circle = _corners(90)[np.arange(91) % 90]
    return np.concatenate([circle, generator.uniform(0.5, 0.66) * circle[::-1]])


def _corners(number: int) -> Floats:
    """Return the corners of a regular polygon in the unit circle, `(number, 2)`."""
    angles = np.arange(number) * (2 * np.pi / number)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _placed(outline: Floats, generator: np.random.Generator) -> Floats:
    """Rotate, scale and move an outline in the unit circle to a random position inside the image."""
    radius, angle = generator.uniform(*RADII), generator.uniform(0, 2 * np.pi)
    centre = generator.uniform(MARGIN + radius, 1 - MARGIN - radius, 2)
    turn = np.array([(np.cos(angle), np.sin(angle)), (-np.sin(angle), np.cos(angle))])
    placed: Floats = centre + radius * (outline @ turn)
    return placed


def _cover(outlines: Iterable[Floats], side: int) -> Floats:
    """Fill outlines; return how much of each pixel they cover, 0..1."""
    fine = Image.new("L", (side * SAMPLES, side * SAMPLES))
    pen = ImageDraw.Draw(fine)
    for outline in outlines:
        # Pillow fills the pixels that contain the corners: coordinate 0 is the first pixel's centre.
        pen.polygon((outline * (side * SAMPLES) - 0.5).ravel().tolist(), fill=255)
    return np.asarray(fine.reduce(SAMPLES), np.float32) / 255


_OUTLINES: dict[str, Callable[[np.random.Generator], Floats]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "ring": _ring,
}
_PATTERNS: tuple[Pattern, ...] = (_gradient, _stripes, _checks, _blotches, _speckles)
_CLUTTERS: tuple[Pattern, ...] = (_nothing, _lines, _dots)
