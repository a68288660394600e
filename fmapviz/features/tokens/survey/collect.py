"""Collect values that all images of a run share: ranges, components, samples of vectors, the anchor's map."""

from __future__ import annotations

from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import torch

from fmapviz.core.centres import Centres
from fmapviz.draw.grid import Shared
from fmapviz.errors import RequestError, quote
from fmapviz.features.tokens.clusters import find_centres
from fmapviz.features.tokens.components import Covariance, separate
from fmapviz.features.tokens.matches import Reference, averaged
from fmapviz.features.tokens.sample import Sample
from fmapviz.features.tokens.shared import SharedVectors
from fmapviz.features.tokens.vectors import direction_at
from fmapviz.images.preprocess import digest_of
from fmapviz.images.seen import Seen
from fmapviz.observe.reshape import picture_size
from fmapviz.store.shards.grouping import Failed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from fmapviz.config.positions import Anchor
    from fmapviz.data import LayerResult, Preparation
    from fmapviz.run.pipeline.scheduler import Result

    Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class SurveyRequest:
    """The values that a survey computes besides ranges.

    Attributes:
        ranges: Whether ranges are needed at all.
        components: Whether principal components of all images are needed.
        foreground: Whether these are of the foreground.
        clusters: Number of clusters; 0: none.
        anchor: The image that the pictures are compared with; None: no image.
        path: Path of that image; empty: none.
    """

    ranges: bool = False
    components: bool = False
    foreground: bool = False
    clusters: int = 0
    anchor: Anchor | None = None
    path: str = ""

    @property
    def of_all(self) -> bool:
        """True if every image must be read."""
        return bool(self.ranges or self.components or self.clusters)

    @property
    def maps(self) -> bool:
        """True if the values of channels are needed."""
        return bool(self.components or self.clusters or self.anchor)


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """Values that all images of a run share.

    Attributes:
        images: Number of images surveyed.
        shared: By feature map.
        path: Path of the anchor's image; empty: none.
    """

    images: int
    shared: Mapping[Key, Shared]
    path: str = ""


class Surveyor:
    """Collects what images share; its methods may be called by several threads at once.

    Args:
        request: The values to compute.
        preparation_of: Returns the preprocessing of an image, to draw the anchor's.
    """

    def __init__(self, request: SurveyRequest, preparation_of: Callable[[Tensor], Preparation]) -> None:
        self.paths: set[str] = set()
        self.failure = ""  # why the anchor's image could not be drawn
        self._request = request
        self._preparation_of = preparation_of
        self._lock = Lock()
        self._ranges: dict[Key, tuple[float, float]] = {}
        self._covariances: dict[Key, Covariance] = {}
        self._samples: dict[Key, Sample] = {}
        # Of the anchor's image: layers, input, size and name.
        self._layers: dict[Key, LayerResult] = {}
        self._picture: Seen | None = None
        self._size = (0, 0)
        self._image = ""

    def note(self, result: Result) -> None:
        """Add the results of an image."""
        request = self._request
        if isinstance(result, Failed):
            if result.member.file.path == request.path:
                self.failure = result.failure.message
            return
        file = result.image.member.file
        is_anchor = bool(request.path) and file.path == request.path
        digest = digest_of(result.image.values) if request.clusters or request.foreground else ""
        with self._lock:
            self.paths.add(file.path)
            if is_anchor:
                self._picture = Seen(result.image.values, self._preparation_of(result.image.values))
                self._size, self._image = picture_size(result.image.values[None]) or (0, 0), file.unit
            for layer in result.drawn.layers:
                self._note_layer(layer, digest=digest, is_anchor=is_anchor)
            for layer, view, heat in result.drawn.heat_maps:
                finite = heat.raw[np.isfinite(heat.raw)]
                of_class = heat.limits is None
                finite = finite.clip(min=0) if of_class else finite  # negative values are not drawn
                label = layer.target.label if layer.target and of_class else ""
                if finite.size:
                    self._widen((view, layer.layer, label), float(finite.min()), float(finite.max()))

    def _note_layer(self, layer: LayerResult, *, digest: str, is_anchor: bool) -> None:
        if not layer.statistics:
            return
        key = (layer.of, layer.layer, layer.target.label if layer.target else "")
        if layer.statistics.minimum is not None and layer.statistics.maximum is not None:
            self._widen(key, layer.statistics.minimum, layer.statistics.maximum)
        if layer.maps is None:
            return
        if self._request.components:
            self._covariances.setdefault(key, Covariance()).add(torch.from_numpy(layer.maps))
        if digest:
            if key not in self._samples:
                self._samples[key] = Sample(layer.maps.shape[1], large=self._request.foreground)
            self._samples[key].add(layer.maps, digest=digest)
        if is_anchor:
            self._layers[key] = layer

    def _widen(self, key: Key, low: float, high: float) -> None:
        before = self._ranges.get(key, (low, high))
        self._ranges[key] = min(before[0], low), max(before[1], high)

    def finish(self) -> Survey:
        """Return the survey of all images that were added.

        Raises:
            RequestError: The anchor's image was not drawn, or the anchor is outside it.
        """
        if self._request.path and self._picture is None:
            raise RequestError(
                f"the image of the anchor could not be drawn: {self.failure or quote(self._request.path)}",
                hint="choose another image of the inputs, Style(anchor='photo.jpg:112,80')",
            )
        shared = {key: Shared(low, high, self._share(key)) for key, (low, high) in sorted(self._ranges.items())}
        return Survey(len(self.paths), shared, self._request.path)

    def _share(self, key: Key) -> SharedVectors:
        """Return the shared values of a feature map besides its range."""
        shared, request, sample = SharedVectors(), self._request, self._samples.get(key)
        if key in self._covariances:
            shared = replace(shared, basis=self._covariances[key].basis())
        if sample and len(sample.vectors) and request.foreground:
            vectors = torch.from_numpy(sample.vectors).mT
            split = separate(vectors, torch.from_numpy(sample.at_border), shared.basis)
            shared = replace(shared, foreground=replace(split, positions=_part(vectors.shape[1], sample.seen)))
        if sample and len(sample.vectors) and request.clusters:
            some = torch.from_numpy(sample.vectors[: sample.fewer])
            shared = replace(shared, centres=find_centres(some, request.clusters), clustered=_part(len(some), sample.seen))
        layer = self._layers.get(key)
        if layer and layer.maps is not None and request.anchor and self._picture:
            maps = torch.from_numpy(layer.maps[:1])
            centres = layer.centres or Centres.spread((maps.shape[2], maps.shape[3]), self._size)
            if request.anchor.at:
                shared = replace(shared, anchor=direction_at(maps, *centres.cell(request.anchor.at)))
            reduced = averaged(maps)[0]
            places = centres.averaged((reduced.shape[1], reduced.shape[2]))
            picture = self._picture.at(layer.frame)
            shared = replace(shared, reference=Reference(reduced, self._image, picture, places))
        return shared


def _part(used: int, count: int) -> tuple[int, int] | None:
    """Return the numbers of positions used and of all; None if all were used."""
    return (used, count) if used < count else None
