"""Rank images by the value of each channel: a total order, in which rankings of several sets of images can be merged.

The largest value comes first; of equal values, the image whose name comes first in natural order. So the ranking of a set of
images is the same however the set was divided. `torch.topk` leaves the order of equal values open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from fmapviz.images.find import in_natural_order
from fmapviz.store.aggregates.channels import FeatureMapInfo, rows_of, slices_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    NameKey = tuple[list[tuple[str, str]], str]

By = Literal["max", "mean", "min"]
BYS: tuple[By, ...] = get_args(By)

# Bins of equal width in each power of two of the magnitudes from 2**-24 to 2**12, for each sign; in the middle that of 0.
_LOWEST_POWER, _OCTAVES, _PER_OCTAVE = -24, 36, 8
_HALF = _OCTAVES * _PER_OCTAVE
BINS = 2 * _HALF + 1
_TOGETHER = 256
_BLANK = np.uint64(2**64 - 1)  # the key of no image


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """The k images with the largest value for each channel, of a set of images.

    C counts the channels of all feature maps, one map after the other.

    Attributes:
        by: Value of the ranking: a channel's largest value in an image, its mean, or its smallest value, smallest first.
        k: Number of images per channel.
        maps: The feature maps, in the order of execution.
        names: The ranked images, in natural order of their names.
        digests: Those of their prepared inputs, uint64; images with equal ones count as one, under the first name.
        places: Index into `names`, int32 `(C, k)`; -1 behind the last image.
        scores: The values, negated if the smallest comes first, float32 `(C, k)`; NaN behind the last image.
        worst: The lowest score of all images, float32 `(C,)`; NaN without an image.
        images: Number of images with a finite value, int64 `(C,)`.
        excluded: Number of images without a finite value, int64 `(C,)`.
        counts: Number of images by their value, int32 `(C, BINS)`, see `bin_edges`; `(C, 0)` if they are not counted.
        inputs: The digest of every image of the set, sorted, uint64.
    """

    by: By
    k: int
    maps: tuple[FeatureMapInfo, ...]
    names: tuple[str, ...]
    digests: NDArray[np.uint64]
    places: NDArray[np.int32]
    scores: Floats
    worst: Floats
    images: NDArray[np.int64]
    excluded: NDArray[np.int64]
    counts: NDArray[np.int32]
    inputs: NDArray[np.uint64]

    @property
    def values(self) -> Floats:
        """The values, float32 `(C, k)`; NaN behind the last image."""
        return values_of(self.scores, self.by)

    @property
    def constant(self) -> NDArray[np.bool_]:
        """True if several images have the channel and all of them the same value, so that none is a top image."""
        return np.asarray((self.images > 1) & (self.scores[:, 0] == self.worst))

    @property
    def copies(self) -> NDArray[np.int64]:
        """Number of images of the set with the same prepared input as each ranked one, int64, at least 1."""
        ends = (np.searchsorted(self.inputs, self.digests, side) for side in ("right", "left"))
        return np.asarray(next(ends) - next(ends), np.int64)

    def of_maps(self, maps: Sequence[FeatureMapInfo]) -> Ranking:
        """Return the ranking for some of the feature maps only."""
        rows = rows_of(maps, self.maps)
        names, digests, places = drop_unranked(self.names, self.digests, self.places[rows])
        chosen = {name: getattr(self, name)[rows] for name in ("scores", "worst", "images", "excluded", "counts")}
        return replace(self, maps=tuple(maps), names=names, digests=digests, places=places, **chosen)

    def slices(self) -> Iterator[tuple[FeatureMapInfo, slice]]:
        """Yield each feature map, and where its channels are."""
        return slices_of(self.maps)


def no_images(by: By, k: int, maps: tuple[FeatureMapInfo, ...] = (), *, counted: bool = True) -> Ranking:
    """Return the ranking of no images, which changes nothing when it is merged."""
    channels = sum(each.channels for each in maps)
    return Ranking(
        by,
        k,
        maps,
        names=(),
        digests=np.zeros(0, np.uint64),
        places=np.full((channels, k), -1, np.int32),
        scores=np.full((channels, k), np.nan, np.float32),
        worst=np.full(channels, np.nan, np.float32),
        images=np.zeros(channels, np.int64),
        excluded=np.zeros(channels, np.int64),
        counts=np.zeros((channels, BINS if counted else 0), np.int32),
        inputs=np.zeros(0, np.uint64),
    )


def values_of(scores: Floats, by: By) -> Floats:
    """Convert values to scores, of which the largest comes first, or back; -0.0 becomes 0.0."""
    return np.asarray((-scores if by == "min" else scores) + np.float32(0))


def merge(one: Ranking, other: Ranking) -> Ranking:
    """Merge the rankings of two sets of images by the same value.

    Which images are ranked does not depend on the order of merges, and an image that is in both sets is ranked once. The
    counts suppose disjoint sets.

    Raises:
        ValueError: They rank by different values, or one has fewer images per channel than the other.
    """
    if (one.by, one.k) != (other.by, other.k):
        raise ValueError(one.by, one.k, other.by, other.k)
    maps = _join_maps(one.maps, other.maps)
    one, other = (_spread(each, maps) for each in (one, other))
    names, digests, places = join_names([(each.names, each.digests) for each in (one, other)])
    own, others = (
        np.where(each.places < 0, np.int32(-1), position[each.places]) if len(position) else each.places.copy()
        for each, position in zip((one, other), places, strict=True)
    )
    scores = one.scores.copy()
    rows = np.flatnonzero(others[:, 0] >= 0)  # of a few images, only some channels have any that rank
    own[rows], scores[rows] = best_of(
        np.hstack([own[rows], others[rows]]), np.hstack([scores[rows], other.scores[rows]]), one.k
    )
    names, digests, best = drop_unranked(names, digests, own)
    return Ranking(
        one.by,
        one.k,
        maps,
        names,
        digests,
        best,
        scores,
        np.fmin(one.worst, other.worst),
        one.images + other.images,
        one.excluded + other.excluded,
        one.counts + other.counts if one.counts.shape == other.counts.shape else max(one.counts, other.counts, key=np.size),
        np.sort(np.concatenate([one.inputs, other.inputs]), kind="stable"),
    )


def best_of(places: NDArray[np.int32], scores: Floats, k: int) -> tuple[NDArray[np.int32], Floats]:
    """Return the first k of the images of each channel, each image once.

    Args:
        places: Positions of images in their order, int32 `(C, M)`; -1 for none.
        scores: Their scores, float32 `(C, M)`, finite where there is an image.
        k: At most M.

    Returns:
        Positions and scores, `(C, k)`, -1 and NaN behind the last image.

    Example:
        >>> places, scores = best_of(np.array([[0, 1, 2, 1]]), np.array([[1, 5, 5, 5]], "f4"), 3)
        >>> places.tolist(), scores.tolist()
        ([[1, 2, 0]], [[5.0, 5.0, 1.0]])
    """
    keys = sort_keys(places, scores)
    keys.sort(1)
    places, _ = read_keys(keys)
    by_image = places.argsort(1, kind="stable")
    same = np.diff(np.take_along_axis(places, by_image, 1), axis=1) == 0
    twice = np.zeros(keys.shape, np.bool_)
    np.put_along_axis(twice, by_image[:, 1:], same, 1)
    if (twice & (places >= 0)).any():
        keys[twice] = _BLANK
        keys.sort(1)
    return read_keys(keys[:, :k])


def join_names(
    sets: Sequence[tuple[Sequence[str], NDArray[np.uint64]]],
) -> tuple[tuple[str, ...], NDArray[np.uint64], list[NDArray[np.int32]]]:
    """Join sets of images by names and digests.

    Returns:
        The names in natural order, without those of copies; their digests; and for each set the position of each of its
        images, or of the first image with the same digest.
    """
    known = {name: digest for names, digests in sets for name, digest in zip(names, digests.tolist(), strict=True)}
    first: dict[int, int] = {}
    kept: list[str] = []
    at: dict[str, int] = {}
    for name in sorted(known, key=name_key):
        position = first.setdefault(known[name], len(kept))
        if position == len(kept):
            kept.append(name)
        at[name] = position
    digests = np.array([known[name] for name in kept], np.uint64)
    return tuple(kept), digests, [np.array([at[name] for name in names], np.int32) for names, _ in sets]


def drop_unranked(
    names: Sequence[str], digests: NDArray[np.uint64], places: NDArray[np.int32]
) -> tuple[tuple[str, ...], NDArray[np.uint64], NDArray[np.int32]]:
    """Return the images that are ranked, their digests, and the positions among these."""
    used = np.zeros(len(names) + 1, np.bool_)
    used[places] = True
    used[-1] = False
    position = np.append(np.cumsum(used[:-1], dtype=np.int32) - 1, np.int32(-1))
    kept = np.flatnonzero(used)
    return tuple(names[index] for index in kept.tolist()), digests[kept], position[places].astype(np.int32)


@lru_cache(2**16)  # names are merged repeatedly
def name_key(name: str) -> NameKey:
    """Return the sort key of an image's name, by which `x2` comes before `x10`; see `identity`."""
    return in_natural_order(name.partition("\0")[0].split("/")), name


def identity(name: str, path: str) -> str:
    """Return the name of an image in a ranking, if another image in the run may have the same name: its path is added."""
    return f"{name}\0{path}"


def count_values(values: Floats, counts: NDArray[np.int32]) -> None:
    """Count values by their magnitude, see `bin_edges`.

    Args:
        values: Float32 `(N, C)`; NaN is not counted.
        counts: int32 `(C, BINS)`, to which the numbers are added.
    """
    for begin in range(0, len(counts), _TOGETHER):  # channels whose bins fit into the cache
        own = np.ascontiguousarray(values[:, begin : begin + _TOGETHER])
        some = own.shape[1]
        bits = own.view(np.int32)
        # A float32 begins with its exponent and the first bits of its mantissa, eight for each power of two.
        bins = ((bits & 0x7FFFFFFF) >> 20) - (((127 + _LOWEST_POWER) << 3) - 1)
        np.clip(bins, 0, _HALF, out=bins)
        np.negative(bins, out=bins, where=bits < 0)
        bins += np.arange(some, dtype=np.int32) * BINS + _HALF
        unknown = np.isnan(own)
        flat = bins[~unknown] if unknown.any() else bins.ravel()
        counts[begin : begin + some] += np.bincount(flat, minlength=some * BINS).reshape(some, BINS).astype(np.int32)


def bin_edges() -> NDArray[np.float64]:
    """Return the edges of the bins, `(BINS + 1,)`: eight equal bins for each power of two; the outermost ones are open.

    Example:
        >>> edges = bin_edges()
        >>> edges[-9:].tolist()
        [2048.0, 2304.0, 2560.0, 2816.0, 3072.0, 3328.0, 3584.0, 3840.0, 4096.0]
    """
    powers = 2.0 ** np.arange(_LOWEST_POWER, _LOWEST_POWER + _OCTAVES)
    positive = (powers[:, None] * (1 + np.arange(_PER_OCTAVE) / _PER_OCTAVE)).ravel()
    positive = np.append(positive, 2.0 ** (_LOWEST_POWER + _OCTAVES))
    return np.concatenate([-positive[::-1], positive])


def _join_maps(one: Iterable[FeatureMapInfo], other: Iterable[FeatureMapInfo]) -> tuple[FeatureMapInfo, ...]:
    """Join two lists of feature maps, in the order of the first execution in any image."""
    joined: dict[object, FeatureMapInfo] = {}
    for each in (*one, *other):
        known = joined.get(each.key)
        if known is None or _execution(each) < _execution(known):
            joined[each.key] = each
    return tuple(sorted(joined.values(), key=_execution))


def _execution(info: FeatureMapInfo) -> tuple[int, str, NameKey, int]:
    return info.index, info.of, name_key(info.layer), info.channels


def _spread(ranking: Ranking, maps: tuple[FeatureMapInfo, ...]) -> Ranking:
    """Insert feature maps that no image of the set has."""
    if ranking.maps == maps:
        return ranking
    rows = rows_of(maps, ranking.maps)
    empty = no_images(ranking.by, ranking.k, maps, counted=ranking.counts.shape[1] > 0)
    there = rows >= 0
    for name in ("places", "scores", "worst", "images", "excluded", "counts"):
        getattr(empty, name)[there] = getattr(ranking, name)[rows[there]]
    return replace(empty, names=ranking.names, digests=ranking.digests, inputs=ranking.inputs)


def sort_keys(places: NDArray[np.int32], scores: Floats) -> NDArray[np.uint64]:
    """Return integers that sort as the images of each channel do: int32 places and float32 scores of the same shape."""
    bits = (scores + np.float32(0)).view(np.uint32)
    ascending = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
    keys = (~ascending).astype(np.uint64) << np.uint64(32) | places.astype(np.uint32)
    return np.where(places < 0, _BLANK, keys)


def read_keys(keys: NDArray[np.uint64]) -> tuple[NDArray[np.int32], Floats]:
    """Return the places and scores of keys."""
    ascending = ~(keys >> np.uint64(32)).astype(np.uint32)
    bits = np.where(ascending >> 31, ascending & np.uint32(2**31 - 1), ~ascending)
    blank = keys == _BLANK
    scores = np.where(blank, np.float32(np.nan), bits.view(np.float32))
    return np.where(blank, np.int32(-1), (keys & np.uint64(2**32 - 1)).astype(np.uint32).view(np.int32)), scores
