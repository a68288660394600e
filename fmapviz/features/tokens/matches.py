"""Find the positions of two maps that match best: nearest neighbours by cosine, and which are mutual."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import adaptive_avg_pool2d

from fmapviz.features.tokens.vectors import vectors_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.core.centres import Centres
    from fmapviz.core.drawings import Size

MOST_PAIRS = 20
_SIDE = 64  # larger maps are averaged to about as many rows and columns
_CHUNK = 1024  # positions compared at once


@dataclass(frozen=True, slots=True)
class Pair:
    """Two positions that match.

    Attributes:
        theirs: Row and column in the reference's picture, pixels.
        ours: Row and column in the picture itself.
        cosine: Of their vectors, -1..1.
        mutual: Whether each is the best match of the other.
    """

    theirs: tuple[float, float]
    ours: tuple[float, float]
    cosine: float
    mutual: bool


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """A map that others are compared with.

    Attributes:
        maps: float32 `(C, h, w)`, as `averaged` returns it.
        image: Name of its image.
        picture: The input, as it is drawn, uint8 `(H, W)` or `(H, W, 3)`.
        centres: Where the positions of the map lie in it.
    """

    maps: Tensor
    image: str
    picture: NDArray[np.uint8]
    centres: Centres


def averaged(maps: Tensor) -> Tensor:
    """Return maps `(N, C, h, w)` averaged to at most about 64 x 64 positions.

    Example:
        >>> averaged(torch.zeros(1, 3, 112, 112)).shape, averaged(torch.zeros(1, 3, 14, 14)).shape
        (torch.Size([1, 3, 56, 56]), torch.Size([1, 3, 14, 14]))
    """
    height, width = maps.shape[2:]
    factor = ceil(sqrt(height * width) / _SIDE)
    if factor <= 1:
        return maps.detach().float()
    return adaptive_avg_pool2d(maps.detach().float(), (max(1, height // factor), max(1, width // factor)))


def match(own: Tensor, reference: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Find for each position of maps the best match in a reference.

    Args:
        own: `(N, C, h, w)`.
        reference: `(C, h', w')`.

    Returns:
        Index of the position in the reference, row by row, int64 `(N, h, w)`, -1 where a value is NaN or infinite; the
        cosine, float32 `(N, h, w)`, NaN there; and whether the position is the best match of its match too, boolean.

    Example:
        >>> maps = torch.eye(4).view(1, 4, 2, 2)
        >>> match(maps, maps[0].flip(2))[0].tolist()
        [[[1, 0], [3, 2]]]
    """
    other = vectors_of(reference[None].to(own.device)).units[0]
    known = other.isfinite().all(0)
    other = other.where(known, 0)
    found = [_match(vectors, other, known) for vectors in vectors_of(own).units]
    shape = (-1, *own.shape[2:])
    index, cosine, mutual = (torch.stack(parts).view(shape) for parts in zip(*found, strict=True))
    return index, cosine, mutual


def choose_pairs(
    index: NDArray[np.int32],
    cosine: NDArray[np.float32],
    mutual: NDArray[np.bool_],
    *,
    theirs: Centres,
    ours: Centres,
) -> tuple[Pair, ...]:
    """Choose the best mutual matches, spread over both pictures.

    Args:
        index: Of the match of each position, `(h, w)`.
        cosine: Of the match, `(h, w)`.
        mutual: Whether it is mutual, `(h, w)`.
        theirs: Where the positions of the reference's map lie in its picture.
        ours: Where those of the map lie in the picture itself.

    Returns:
        At most `MOST_PAIRS`, the largest cosine first. Two of them are at least a third as far from each other, in either
        picture, as `MOST_PAIRS` positions of a regular grid would be.
    """
    candidates = np.random.default_rng(0).permutation(np.flatnonzero(mutual))  # equal cosines are not all at the top
    ordered = candidates[np.argsort(-cosine.flat[candidates].astype(np.float64), kind="stable")]
    places = [(int(index.flat[own]), int(own)) for own in ordered]
    chosen: list[Pair] = []
    for other, own in places:
        pair = Pair(_point(other, theirs), _point(own, ours), float(cosine.flat[own]), True)
        if all(
            _apart(pair.theirs, each.theirs, theirs.picture) and _apart(pair.ours, each.ours, ours.picture)
            for each in chosen
        ):
            chosen.append(pair)
        if len(chosen) == MOST_PAIRS:
            break
    return tuple(chosen)


def best_pair(
    similar: NDArray[np.float32], index: NDArray[np.int32], *, at: Size, theirs: Centres, ours: Centres
) -> tuple[Pair, ...]:
    """Return the best match of one position of the reference; none if no value is finite.

    Args:
        similar: Cosine of each position to it, `(h, w)`.
        index: Of the best match of each position in the reference, `(h, w)`.
        at: Row and column of the position in the reference's map.
        theirs: As in `choose_pairs`.
        ours: As in `choose_pairs`.
    """
    if not np.isfinite(similar).any():
        return ()
    own, place = int(np.nanargmax(similar)), at[0] * theirs.grid[1] + at[1]
    is_mutual = int(index.flat[own]) == place
    return (Pair(_point(place, theirs), _point(own, ours), float(similar.flat[own]), is_mutual),)


def _match(own: Tensor, other: Tensor, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Match vectors of length one, `(C, n)` and `(C, m)`."""
    finite = own.isfinite().all(0)
    own = own.where(finite, 0)
    count = other.shape[1]
    best = torch.full((count,), -torch.inf, device=own.device)
    back = torch.zeros(count, dtype=torch.int64, device=own.device)
    cosines, indices = [], []
    for start in range(0, own.shape[1], _CHUNK):
        piece = slice(start, start + _CHUNK)
        products = (own[:, piece].mT @ other).clamp_(-1, 1).where(known, -2.0)
        largest = products.max(1)
        cosines.append(largest.values)
        indices.append(largest.indices)
        column = products.where(finite[piece, None], -3.0).max(0)
        better = column.values > best
        best = column.values.where(better, best)
        back = (column.indices + start).where(better, back)
    cosine, index = torch.cat(cosines), torch.cat(indices)
    found = finite & (cosine >= -1)
    mutual = found & (back[index] == torch.arange(own.shape[1], device=own.device))
    return index.where(found, -1), cosine.where(found, torch.nan), mutual


def _point(place: int, centres: Centres) -> tuple[float, float]:
    """Return row and column in the picture, pixels, of a position counted row by row; clipped to the picture."""
    row, column = divmod(place, centres.grid[1])
    height, width = centres.picture
    return min(max(float(centres.rows[row]), 0.0), height), min(max(float(centres.columns[column]), 0.0), width)


def _apart(one: tuple[float, float], other: tuple[float, float], picture: Size) -> bool:
    distance = sqrt((one[0] - other[0]) ** 2 + (one[1] - other[1]) ** 2)
    return distance >= sqrt(picture[0] * picture[1] / MOST_PAIRS) / 3
