"""The still life: fruit, tulips and a checked cloth in the low sun."""

from __future__ import annotations

from typing import TYPE_CHECKING

from painting.fruit import apple, grapes, half_orange, lemon, pear
from painting.light import photograph
from painting.pottery import bowl_of_oranges, vase_of_tulips
from painting.raymarch import Scene
from painting.room import table, wall
from painting.vectors import vector

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def render_still_life(width: int, height: int, *, samples: int) -> NDArray[np.uint8]:
    """Render the still life as uint8 `(height, width, 3)`, with `samples` rays a pixel."""
    things = [
        *bowl_of_oranges(vector(1.12, 0, -0.55)),
        *vase_of_tulips(vector(-1.2, 0, -0.75)),
        grapes(vector(-1.5, 0, 0.85)),
        apple(vector(-0.42, 0.30, 0.75)),
        pear(vector(0.22, 0.585, 0.15)),
        half_orange(vector(1.04, 0.36, 0.98)),
        lemon(vector(0.33, 0.27, 1.4)),
    ]
    return photograph(Scene(things, table, wall), width, height, samples=samples)
