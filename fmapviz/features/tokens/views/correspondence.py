"""Positions of each layer that match those of another image best, as numbered points in both pictures.

The other image is `--anchor IMAGE`. Drawn are mutual nearest neighbours by cosine, the best first, spread over the pictures;
of `--anchor IMAGE:Y,X` the best match of that position alone. Maps of more than 64 x 64 positions are averaged to fewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from fmapviz.core.drawings import Rendered
from fmapviz.draw.facts import channel_facts
from fmapviz.features.tokens.marks import draw_matches
from fmapviz.features.tokens.matches import averaged, best_pair, choose_pairs, match
from fmapviz.features.tokens.shared import vectors_in
from fmapviz.features.tokens.vectors import cosines, direction_at
from fmapviz.observe.reshape import NotAMapError
from fmapviz.types import CustomContent
from fmapviz.views.base import BatchContent

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from numpy.typing import NDArray

    from fmapviz.config import Style
    from fmapviz.core.drawings import Size
    from fmapviz.features.tokens.matches import Pair
    from fmapviz.types import LayerResult
    from fmapviz.views.base import LayerMaps


@dataclass(frozen=True, slots=True, eq=False)
class Matches(CustomContent):
    """Content of a drawing: which position of another image matches best.

    Attributes:
        index: Of the best match, row by row, int32 `(h, w)`; -1 where a value is NaN or infinite.
        cosine: Of the match, float32 `(h, w)`; NaN there.
        mutual: Whether the position is the best match of its match too, boolean `(h, w)`.
        image: Name of the other image.
        picture: The other image, uint8 `(H, W)` or `(H, W, 3)`.
        grid: Height and width of its map.
        pairs: Those that are drawn.
    """

    index: NDArray[np.int32]
    cosine: NDArray[np.float32]
    mutual: NDArray[np.bool_]
    image: str
    picture: NDArray[np.uint8]
    grid: Size
    pairs: tuple[Pair, ...]

    @property
    def values(self) -> Mapping[str, NDArray[Any]]:
        """See `CustomContent`."""
        return {"": self.index, ".cosine": self.cosine, ".mutual": self.mutual}

    def render(self, _layer: LayerResult, seen: NDArray[np.uint8], style: Style, /) -> Rendered:
        """See `CustomContent`."""
        return Rendered(draw_matches(self.pairs, self.picture, seen, scale=style.scale), has_input=True)

    def describe(self, layer: LayerResult, style: Style, /) -> dict[str, str | None]:
        """See `CustomContent`."""
        told = "; ".join(f"{number}: {pair.cosine:.3f}" for number, pair in enumerate(self.pairs, 1))
        shown = "and their places match nothing"
        return channel_facts(layer, scaling=self._scaling(style), nonfinite=shown, more={"Matches": told or "none"})

    def _scaling(self, style: Style) -> str:
        """Return what the lines mean."""
        start = style.start
        if start and start.at:
            mutual = "the best match of each other" if self.pairs and self.pairs[0].mutual else "not the other way round"
            return f"the best match, by cosine, of {start}, {mutual}"
        count = np.count_nonzero(self.mutual)
        return f"the best {len(self.pairs)} of {count} mutual nearest neighbours, by cosine, with {self.image} on the left"


def draw(maps: LayerMaps, style: Style) -> BatchContent:
    """Match each image with that of the anchor.

    Raises:
        NotAMapError: A vector, or a layer that the image of the anchor does not have.
    """
    anchor, reference = style.start, vectors_in(maps.ranges.shared).reference
    assert anchor
    if maps.vector or maps.picture is None:
        raise NotAMapError("is a vector, not a map")
    if reference is None or len(reference.maps) != maps.values.shape[1]:
        raise NotAMapError(f"{anchor.image} has no such map")
    own = averaged(maps.values)
    index, cosine, mutual = match(own, reference.maps)
    tensors = {"index": index.to(torch.int32), "cosine": cosine, "mutual": mutual}
    theirs, ours = reference.centres, maps.placed.averaged((own.shape[2], own.shape[3]))
    cell = theirs.cell(anchor.at) if anchor.at else None
    if cell:
        tensors["similar"] = cosines(own, direction_at(reference.maps[None], *cell))

    def make(
        index: NDArray[np.int32],
        cosine: NDArray[np.float32],
        mutual: NDArray[np.bool_],
        similar: NDArray[np.float32] | None = None,
    ) -> Matches:
        if cell is None or similar is None:
            pairs = choose_pairs(index, cosine, mutual, theirs=theirs, ours=ours)
        else:
            pairs = best_pair(similar, index, at=cell, theirs=theirs, ours=ours)
        return Matches(index, cosine, mutual, reference.image, reference.picture, theirs.grid, pairs)

    return BatchContent(make, tensors)
