"""Clusters of each layer's positions over all images (k-means), each cluster in one colour."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fmapviz.core.drawings import Labels
from fmapviz.features.tokens.clusters import find_labels
from fmapviz.features.tokens.shared import vectors_in
from fmapviz.observe.reshape import NotAMapError
from fmapviz.views.base import BatchContent

if TYPE_CHECKING:
    from fmapviz.config import Style
    from fmapviz.views.base import LayerMaps


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
