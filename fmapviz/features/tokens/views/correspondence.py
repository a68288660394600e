"""Positions of each layer that match those of another image best, as numbered points in both pictures.

The other image is `--anchor IMAGE`. Drawn are mutual nearest neighbours by cosine, the best first, spread over the pictures;
of `--anchor IMAGE:Y,X` the best match of that position alone. Maps of more than 64 x 64 positions are averaged to fewer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fmapviz.core.drawings import Matches
from fmapviz.features.tokens.matches import averaged, best_pair, choose_pairs, match
from fmapviz.features.tokens.shared import vectors_in
from fmapviz.features.tokens.vectors import cosines, direction_at
from fmapviz.observe.reshape import NotAMapError
from fmapviz.views.base import BatchContent

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fmapviz.config import Style
    from fmapviz.views.base import LayerMaps


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
