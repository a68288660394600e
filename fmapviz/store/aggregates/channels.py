"""Statistics of every channel over a set of images: values, derived numbers, and the merge of two sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class FeatureMapInfo:
    """The feature map that statistics describe.

    Attributes:
        layer: The layer's name.
        of: The tensor of the layer: `output`, `input`, `gradient`, `input gradient` or `attention`.
        target: For gradients the class as it was requested, otherwise empty.
        type: The layer's class.
        channels: Number of channels.
        index: Position of the layer in the order of execution, as in the names of pictures.
    """

    layer: str
    of: str
    target: str
    type: str
    channels: int
    index: int = field(compare=False)  # an image may run a layer earlier than another

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What identifies the feature map in all images."""
        return self.layer, self.of, self.target, self.channels


@dataclass(frozen=True, slots=True, eq=False)
class ChannelStatistics:
    """Statistics of all channels of several feature maps over a set of images.

    Attributes:
        images: Number of images.
        maps: The feature maps, in the order of execution.
        columns: Arrays (of smaller types for a single image) over the channels of all feature maps, one map after the other:

            * `images`: number of images that have the feature map, int64.
            * `finite`, `nonfinite`: number of finite values in all images, and of NaN and infinite ones, int64.
            * `zeros`: number of values that are exactly zero, int64.
            * `single`: whether no image has more than one value, bool.
            * `min`, `max`: of the finite values, float64; NaN if no value is finite.
            * `mean`: of the finite values, float64. If no value is finite, 0 where it is to be combined, NaN once merged.
            * `scatter`: sum of squared distances of the finite values from their mean, float64.
            * `dead`: whether all values of each single image are equal and finite, bool; see `flat`.
    """

    images: int
    maps: tuple[FeatureMapInfo, ...]
    columns: Mapping[str, NDArray[Any]]

    def __getitem__(self, column: str) -> NDArray[Any]:
        return self.columns[column]

    @property
    def values(self) -> NDArray[np.int64]:
        """Number of values in all images."""
        return np.asarray(self["finite"] + self["nonfinite"])

    @property
    def std(self) -> NDArray[np.float64]:
        """Population standard deviation of the finite values; NaN if no value is finite."""
        finite = self["finite"]
        variance = np.divide(self["scatter"], finite, out=np.full(len(finite), np.nan), where=finite > 0)
        return np.asarray(np.sqrt(variance))

    @property
    def constant(self) -> NDArray[np.bool_]:
        """True if all values of all images are equal and finite."""
        return np.asarray((self["min"] == self["max"]) & (self["nonfinite"] == 0) & (self["finite"] > 1))

    @property
    def flat(self) -> NDArray[np.bool_]:
        """True if a channel is dead: the same value everywhere in each image; with one value per image, in all images."""
        return np.where(self["single"], self.constant, self["dead"])

    def slices(self) -> Iterator[tuple[FeatureMapInfo, slice]]:
        """Yield each feature map, and where its channels are in the columns."""
        return slices_of(self.maps)


def slices_of(maps: Sequence[FeatureMapInfo]) -> Iterator[tuple[FeatureMapInfo, slice]]:
    """Yield feature maps, and where the channels of each are if all follow one another."""
    begin = 0
    for info in maps:
        yield info, slice(begin, begin + info.channels)
        begin += info.channels


# A channel that no image has.
_NEUTRAL = {
    **dict.fromkeys(("images", "finite", "nonfinite", "zeros"), np.array([0])),
    **dict.fromkeys(("min", "max"), np.array([np.nan])),
    **dict.fromkeys(("mean", "scatter"), np.array([0.0])),
    **dict.fromkeys(("single", "dead"), np.array([True])),
}
NO_IMAGES = ChannelStatistics(0, (), {name: column[:0] for name, column in _NEUTRAL.items()})


def combine(one: ChannelStatistics, other: ChannelStatistics) -> ChannelStatistics:
    """Combine the statistics of two disjoint sets of images.

    Means and scatters: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances",
    1979.
    """
    if one.maps != other.maps:
        maps = union(one.maps, other.maps)
        one, other = _spread(one, maps), _spread(other, maps)
    sums = {name: one[name] + other[name] for name in ("images", "finite", "nonfinite", "zeros")}
    share = other["finite"] / np.maximum(sums["finite"], 1)
    apart = other["mean"] - one["mean"]
    columns = {
        **sums,
        **{name: one[name] & other[name] for name in ("single", "dead")},
        "min": np.fmin(one["min"], other["min"]),
        "max": np.fmax(one["max"], other["max"]),
        "mean": one["mean"] + apart * share,
        "scatter": one["scatter"] + other["scatter"] + apart * apart * (one["finite"] * share),
    }
    return ChannelStatistics(one.images + other.images, one.maps, columns)


def union(one: Sequence[FeatureMapInfo], other: Sequence[FeatureMapInfo]) -> tuple[FeatureMapInfo, ...]:
    """Join two lists of feature maps; each stays behind the map that ran before it."""
    known = {each.key: each for each in one}
    order, position = list(known), 0
    for each in other:
        if each.key in known:
            position = order.index(each.key) + 1
        else:
            order.insert(position, each.key)
            position += 1
    known = {each.key: each for each in other} | known
    return tuple(known[key] for key in order)


def rows_of(maps: Sequence[FeatureMapInfo], among: Sequence[FeatureMapInfo]) -> NDArray[np.intp]:
    """Return the position of each channel of some feature maps among the channels of others; -1 where it is not there."""
    at = {info.key: range(rows.start, rows.stop) for info, rows in slices_of(among)}
    return np.array([row for each in maps for row in at.get(each.key, [-1] * each.channels)], np.intp)


def _spread(known: ChannelStatistics, maps: tuple[FeatureMapInfo, ...]) -> ChannelStatistics:
    """Insert feature maps that no image of the set has."""
    rows = rows_of(maps, known.maps)  # -1 is the neutral one at the end
    columns = {name: np.append(known[name], value)[rows] for name, value in _NEUTRAL.items()}
    return ChannelStatistics(known.images, maps, columns)
