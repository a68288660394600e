"""Values of one layer's channel vectors that all images of a run share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.config import Style
    from fmapviz.core.drawings import Size
    from fmapviz.draw.grid import Shared
    from fmapviz.features.tokens.components import Basis, Foreground
    from fmapviz.features.tokens.matches import Reference


@dataclass(frozen=True, slots=True, eq=False)
class SharedVectors:
    """Shared values of token views, if requested: `more` of `fmapviz.draw.grid.Shared`.

    Attributes:
        basis: Principal components of all images.
        foreground: The split of foreground and background.
        centres: Centres of the clusters of all images, float32 `(K, C)`.
        clustered: Number of positions in the sample and in all images; None: all were used.
        anchor: Direction of the anchor in its image, float32 `(1, C)`.
        reference: The map of the anchor's image.
    """

    basis: Basis | None = None
    foreground: Foreground | None = None
    centres: Tensor | None = None
    clustered: tuple[int, int] | None = None
    anchor: Tensor | None = None
    reference: Reference | None = None


def vectors_in(shared: Shared | None) -> SharedVectors:
    """Return what images share of a layer's vectors; empty if they share nothing."""
    more = shared and shared.more
    return more if isinstance(more, SharedVectors) else SharedVectors()


def size_of(grid: Size, seen: NDArray[np.uint8], style: Style) -> Size:
    """Return height and width of a map that is enlarged to the input's size, times the scale."""
    rows, columns = (style.scale * max(sides) for sides in zip(grid, seen.shape[:2], strict=True))
    return rows, columns


def sample_note(part: tuple[int, int] | None) -> str:
    """Return a note on the size of a random sample of positions; empty if all were used."""
    return f", found of a random sample, {part[0]} of {part[1]} positions" if part else ""
