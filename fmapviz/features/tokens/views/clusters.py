"""Clusters of each layer's positions over all images (k-means), each cluster in one colour."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.core.drawings import Rendered
from fmapviz.draw.facts import channel_facts
from fmapviz.features.tokens.clusters import find_labels
from fmapviz.features.tokens.marks import cluster_colours, colour_labels, size_of, told_sample
from fmapviz.features.tokens.shared import vectors_in
from fmapviz.observe.reshape import NotAMapError
from fmapviz.types import CustomContent
from fmapviz.views.base import BatchContent

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from numpy.typing import NDArray

    from fmapviz.config import Style
    from fmapviz.types import LayerResult
    from fmapviz.views.base import LayerMaps


@dataclass(frozen=True, slots=True, eq=False)
class Labels(CustomContent):
    """Content of a drawing: the number of the cluster of each position.

    Attributes:
        numbers: int16 `(h, w)`, from 0; -1 where a value is NaN or infinite.
        count: Number of clusters.
        sampled: How many positions of how many in all images they were found of, if not of all.
    """

    numbers: NDArray[np.int16]
    count: int
    sampled: tuple[int, int] | None = None

    @property
    def values(self) -> Mapping[str, NDArray[Any]]:
        """See `CustomContent`."""
        return {"": self.numbers}

    def render(self, layer: LayerResult, seen: NDArray[np.uint8], style: Style, /) -> Rendered:
        """See `CustomContent`."""
        size = size_of((self.numbers.shape[0], self.numbers.shape[1]), seen, style)
        legend = {str(number): colour for number, colour in enumerate(cluster_colours()[: self.count])}
        return Rendered(colour_labels(self.numbers, size, layer.centres), legend=legend)

    def describe(self, layer: LayerResult, _style: Style, /) -> dict[str, str | None]:
        """See `CustomContent`."""
        of_what = "clusters of all images of the run: k-means of vectors of length one"
        scaling = f"each colour is one of {self.count} {of_what}{told_sample(self.sampled)}"
        shown = "and their places drawn as a checkerboard"
        return channel_facts(layer, scaling=scaling, nonfinite=shown, more={"Clusters": self._shares()})

    def _shares(self) -> str:
        """Return which part of the image each cluster is."""
        counts = np.bincount(self.numbers[self.numbers >= 0], minlength=self.count)
        shares = (f"{number}: {count / self.numbers.size:.1%}" for number, count in enumerate(counts))
        return ", ".join(shares).replace("%", " %")


def draw(maps: LayerMaps, _style: Style) -> BatchContent:
    """Find the cluster of each position, of those that all images of the run share.

    Raises:
        NotAMapError: A vector, or a layer that no image of the run had when the clusters were found.
    """
    shared = vectors_in(maps.ranges.shared)
    if maps.vector:
        raise NotAMapError("is a vector, not a map")
    if shared.centres is None or shared.centres.shape[1] != maps.values.shape[1]:
        raise NotAMapError("has no clusters: no image that the run began with has such a map")
    make = partial(Labels, count=len(shared.centres), sampled=shared.clustered)
    return BatchContent(make, {"numbers": find_labels(maps.values, shared.centres)})
