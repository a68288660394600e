"""Rank a stream of images, a block of them at a time, in memory that does not grow with their number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fmapviz.runs.aggregates._ranking import (
    Ranking,
    count_values,
    drop_unranked,
    join_names,
    merge,
    name_key,
    no_images,
    read_keys,
    sort_keys,
    values_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fmapviz.runs.aggregates._channels import FeatureMapInfo
    from fmapviz.runs.aggregates._ranking import By, Floats

_BLOCK_BYTES = 16 * 2**20
_MOST_IMAGES = 4096  # in a block


class Ranker:
    """Ranks images that are added one by one, or as rankings of several.

    A block is compared with the last image that is ranked for each channel. So only the few images that are better cost
    more than a comparison.

    Args:
        by: The value to rank by.
        k: Number of images per channel.
    """

    def __init__(self, by: By, k: int) -> None:
        self._ranking = no_images(by, k)
        self._maps: tuple[FeatureMapInfo, ...] = ()
        self._names: list[str] = []
        self._digests: list[int] = []
        self._rows: list[Floats] = []
        self._inputs: list[NDArray[np.uint64]] = []  # sorted at the end

    def add(self, maps: tuple[FeatureMapInfo, ...], name: str, digest: int, values: Floats) -> None:
        """Add an image.

        Args:
            maps: Its feature maps.
            name: Its name.
            digest: That of its prepared input, below 2**64.
            values: Of all channels, float32 `(C,)`; NaN where no value is finite.
        """
        if maps != self._maps or len(self._rows) >= min(_MOST_IMAGES, _BLOCK_BYTES // max(4, values.nbytes)):
            self._rank()
            self._maps = maps
        self._names.append(name)
        self._digests.append(digest)
        self._rows.append(values)

    def merge(self, ranking: Ranking) -> None:
        """Add the images of a ranking."""
        self._ranking = merge(self._ranking, ranking)

    def finish(self) -> Ranking:
        """Return the ranking of all images that were added."""
        self._rank()
        return self._ranking

    def _rank(self) -> None:
        if not self._rows:
            return
        block = np.stack(self._rows)
        ranked = self._ranking
        needed = np.ones(block.shape[1], np.bool_)
        if ranked.maps == self._maps and ranked.names:
            scores, last = values_of(block, ranked.by), ranked.scores[:, -1]
            # Of equal scores the first name counts, and images usually come in the order of their names.
            is_later = name_key(ranked.names[-1]) < min(map(name_key.__wrapped__, self._names))
            better = (scores > last) if is_later else (scores >= last)
            needed = better.any(0) | np.isnan(last)
        self.merge(rank_block(block, ranked.by, ranked.k, self._maps, (self._names, self._digests), needed=needed))
        self._names, self._digests, self._rows = [], [], []


def rank_block(
    values: Floats,
    by: By,
    k: int,
    maps: tuple[FeatureMapInfo, ...],
    images: tuple[Sequence[str], Sequence[int]],
    *,
    needed: NDArray[np.bool_] | None = None,
) -> Ranking:
    """Rank a block of images.

    Args:
        values: Float32 `(N, C)`, of N images; NaN where an image has no finite value.
        by: What the values are.
        k: Number of images per channel.
        maps: The feature maps, of C channels.
        images: Names and digests of the images.
        needed: The channels whose images are ranked, `(C,)`; the others are only counted. None: all.
    """
    inputs = np.array(images[1], np.uint64)
    names, digests, (at,) = join_names([(images[0], inputs)])
    rows = np.unique(at, return_index=True)[1]  # of copies one
    ranking = no_images(by, k, maps)
    columns = np.arange(values.shape[1]) if needed is None else np.flatnonzero(needed)
    scores = values_of(values, by)
    known = ~np.isnan(values)
    candidates = scores[np.ix_(rows, columns)].T
    order = np.where(np.isnan(candidates), np.int32(-1), np.arange(len(rows), dtype=np.int32))
    keys = sort_keys(order, candidates)
    if keys.shape[1] > k:
        keys = np.partition(keys, k, 1)[:, :k]
    keys.sort(1)
    places, best = read_keys(keys)
    ranking.places[columns, : places.shape[1]] = places
    ranking.scores[columns, : places.shape[1]] = best
    names, digests, places = drop_unranked(names, digests, ranking.places)
    return Ranking(
        by,
        k,
        maps,
        names,
        digests,
        places,
        ranking.scores,
        np.fmin.reduce(scores, 0),
        known.sum(0),
        len(values) - known.sum(0),
        count_values(values),
        np.sort(inputs),
    )
