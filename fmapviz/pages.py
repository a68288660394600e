"""What is to be written of one image of a shard, which may have to wait for its turn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fmapviz.values import Drawing, HeatMap, Picture, Unit

_NO_PIXELS = np.zeros((0, 0), np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """What is to be written of one image, encoded.

    Attributes:
        unit: What is to be said of it, without pixels.
        pictures: Its pictures.
        seconds: How long it took so far.
    """

    unit: Unit
    pictures: tuple[Picture, ...]
    seconds: float

    @property
    def bytes(self) -> int:
        """How large its pictures are."""
        return sum(len(picture.png) for picture in self.pictures)


def make_page(unit: Unit, pictures: Iterable[Picture], seconds: float) -> Page:
    """Keep of an image what is to be written, not what that was made of."""
    made = tuple(pictures)
    slim: dict[int, Drawing | HeatMap] = {}
    drawings, heats = [], []
    for drawing in unit.drawn.drawings:
        drawings.append(replace(drawing, pixels=_NO_PIXELS, everything=None))
        slim[id(drawing)] = drawings[-1]
    for heat in unit.drawn.heats:
        heats.append(replace(heat, pixels=_NO_PIXELS))
        slim[id(heat)] = heats[-1]
    drawn = replace(unit.drawn, drawings=tuple(drawings), heats=tuple(heats), kept=())
    kept = (replace(picture, source=slim[id(picture.source)] if picture.source else None) for picture in made)
    return Page(replace(unit, drawn=drawn), tuple(kept), seconds)
