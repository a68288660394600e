"""Rank a stream of images, a block of them at a time, in memory that does not grow with their number."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.store.aggregates.ranking import (
    BINS,
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

    from fmapviz.store.aggregates.channels import FeatureMapInfo
    from fmapviz.store.aggregates.ranking import By, Floats

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
        self._counts = np.zeros((0, BINS), np.int32)  # of these maps

    def add(self, maps: tuple[FeatureMapInfo, ...], name: str, digest: int, values: Floats) -> None:
        """Add an image.

        Args:
            maps: Its feature maps.
            name: Its name.
            digest: That of its prepared input, below 2**64.
            values: Of all channels, float32 `(C,)`; NaN where no value is finite.
        """
        if maps != self._maps:
            self._settle()
            self._maps, self._counts = maps, np.zeros((len(values), BINS), np.int32)
        elif len(self._rows) >= min(_MOST_IMAGES, _BLOCK_BYTES // max(4, values.nbytes)):
            self._rank()
        self._names.append(name)
        self._digests.append(digest)
        self._rows.append(values)

    def merge(self, ranking: Ranking) -> None:
        """Add the images of a ranking."""
        self._ranking = merge(self._ranking, ranking)

    def finish(self) -> Ranking:
        """Return the ranking of all images that were added."""
        self._settle()
        return self._ranking

    def _settle(self) -> None:
        """Rank the images that wait, and add the numbers of images by value."""
        self._rank()
        ranking, counts = self._ranking, self._counts
        self._counts = np.zeros_like(counts)
        if ranking.maps == self._maps and ranking.counts.size:
            self._ranking = replace(ranking, counts=ranking.counts + counts)
        else:
            self.merge(replace(no_images(ranking.by, ranking.k, self._maps, counted=False), counts=counts))

    def _rank(self) -> None:
        if not self._rows:
            return
        block = np.stack(self._rows)
        count_values(block, self._counts)
        ranked, better = self._ranking, None
        if ranked.maps == self._maps and ranked.names:
            scores, last = values_of(block, ranked.by), ranked.scores[:, -1]
            # Of equal scores the first name counts, and images usually come in the order of their names.
            is_later = name_key(ranked.names[-1]) < min(map(name_key.__wrapped__, self._names))
            better = (scores > last if is_later else scores >= last) | np.isnan(last)
        self.merge(rank_block(block, ranked.by, ranked.k, self._maps, (self._names, self._digests), better=better))
        self._names, self._digests, self._rows = [], [], []


def rank_block(
    values: Floats,
    by: By,
    k: int,
    maps: tuple[FeatureMapInfo, ...],
    images: tuple[Sequence[str], Sequence[int]],
    *,
    better: NDArray[np.bool_] | None = None,
) -> Ranking:
    """Rank a block of images; they are not counted by value.

    Args:
        values: Float32 `(N, C)`, of N images; NaN where an image has no finite value.
        by: Kind of the values.
        k: Number of images per channel.
        maps: The feature maps, of C channels.
        images: Names and digests of the images.
        better: Which values may be ranked, `(N, C)`; None: all.
    """
    inputs = np.array(images[1], np.uint64)
    names, digests, (at,) = join_names([(images[0], inputs)])
    scores = values_of(values, by)
    known = ~np.isnan(values)
    chosen = known if better is None else better & known
    chosen[np.setdiff1d(np.arange(len(at)), np.unique(at, return_index=True)[1])] = False  # of copies one counts
    ranking = no_images(by, k, maps, counted=False)
    places, best = _first_of(scores, chosen, at, k)
    ranking.places[:, : places.shape[1]] = places
    ranking.scores[:, : places.shape[1]] = best
    names, digests, places = drop_unranked(names, digests, ranking.places)
    found = np.count_nonzero(~np.isnan(values), 0)
    return Ranking(
        by,
        k,
        maps,
        names,
        digests,
        places,
        ranking.scores,
        np.fmin.reduce(scores, 0),
        found,
        len(values) - found,
        ranking.counts,
        np.sort(inputs),
    )


def _first_of(
    scores: Floats, chosen: NDArray[np.bool_], places: NDArray[np.int32], k: int
) -> tuple[NDArray[np.int32], Floats]:
    """Return the first k of the chosen images of each channel.

    Args:
        scores: Float32 `(N, C)`.
        chosen: Boolean `(N, C)`.
        places: Positions of the N images in their order.
        k: Number of images per channel.

    Returns:
        Places and scores, `(C, M)` with M at most k; -1 and NaN behind the last image.
    """
    if chosen.all():  # as of the first block usually
        keys = sort_keys(np.broadcast_to(places, scores.shape[::-1]), np.ascontiguousarray(scores.T))
    else:
        channels, images = np.nonzero(chosen.T)
        lengths = np.bincount(channels, minlength=chosen.shape[1])
        within = np.arange(len(channels)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        shape = (chosen.shape[1], int(lengths.max(initial=0)))
        order, own = np.full(shape, -1, np.int32), np.full(shape, np.nan, np.float32)
        order[channels, within], own[channels, within] = places[images], scores[images, channels]
        keys = sort_keys(order, own)
    if keys.shape[1] > k:
        keys = np.partition(keys, k, 1)[:, :k]
    keys.sort(1)
    return read_keys(keys)
