"""Clusters of each layer's positions over all images (k-means), each cluster in one colour.

Vectors are divided by their lengths first, as Amir et al. do, "Deep ViT Features as Dense Visual Descriptors", 2021: the few
tokens of great length that vision transformers have would be clusters of their own. scikit-learn's KMeans finds the same
clusters; its import alone takes 0.7 s, and it would be the only use of a dependency of 30 MB.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from math import log
from typing import TYPE_CHECKING

import numpy as np
import torch

from fmapviz.core.drawings import Rendered
from fmapviz.data import CustomContent
from fmapviz.draw.colormaps import checkerboard
from fmapviz.draw.facts import channel_facts
from fmapviz.draw.heatmap import nearest_values
from fmapviz.features.tokens.shared import sample_note, size_of, vectors_in
from fmapviz.features.tokens.vectors import vectors_of
from fmapviz.observe.reshape import NotAMapError
from fmapviz.views.base import BatchContent

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.config import Style
    from fmapviz.core.centres import Centres
    from fmapviz.core.drawings import Size
    from fmapviz.data import LayerResult
    from fmapviz.views.base import LayerMaps


@dataclass(frozen=True, slots=True, eq=False)
class Labels(CustomContent):
    """Content of a drawing: the number of the cluster of each position.

    Attributes:
        numbers: int16 `(h, w)`, from 0; -1 where a value is NaN or infinite.
        count: Number of clusters.
        sampled: Numbers of sampled and of all positions, if they were not computed from all.
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
        scaling = f"each colour is one of {self.count} {of_what}{sample_note(self.sampled)}"
        shown = "and their places drawn as a checkerboard"
        return channel_facts(layer, scaling=scaling, nonfinite=shown, more={"Clusters": self._shares()})

    def _shares(self) -> str:
        """Return the share of each cluster in the image."""
        counts = np.bincount(self.numbers[self.numbers >= 0], minlength=self.count)
        shares = (f"{number}: {count / self.numbers.size:.1%}" for number, count in enumerate(counts))
        return ", ".join(shares).replace("%", " %")


def draw(maps: LayerMaps, _style: Style) -> BatchContent:
    """Assign each position to one of the clusters of all images of the run.

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


_STARTS, _MOST_STEPS = 8, 100
_FIRST, _FIRST_STEPS = 1024, 5  # vectors and steps of each start; then the best one continues with all vectors
_TOLERANCE = 1e-4  # of the variance, as in scikit-learn: a smaller move of all centres ends the search
_NOISE = 1e-6  # a squared distance that may be a rounding error
UNKNOWN = -1  # the cluster of a position with a value that is NaN or infinite


def find_centres(vectors: Tensor, clusters: int) -> Tensor:
    """Return the centres of clusters of directions, the largest cluster first.

    Lloyd's algorithm, begun with k-means++ (Arthur and Vassilvitskii, "k-means++: The Advantages of Careful Seeding", 2007)
    from several starts with fixed random numbers. One core does it: several would mostly wait for each other.

    Args:
        vectors: float32 `(n, C)`, finite, in random order.
        clusters: Their number; there are fewer if the vectors have fewer directions.

    Returns:
        Means of vectors of length one, float32 `(K, C)`.

    Example:
        >>> find_centres(torch.tensor([[2.0, 0.0], [5.0, 0.0], [0.0, 3.0]]), 2)
        tensor([[1., 0.],
                [0., 1.]])
    """
    cores = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        points = vectors_of(vectors.mT[None, :, :, None]).units[0].mT.contiguous()
        tolerance = _TOLERANCE * float(points.var(0, correction=0).mean())
        chance = torch.Generator().manual_seed(0)
        some = points[:_FIRST]
        starts = [_refine(some, _choose(some, clusters, chance), _FIRST_STEPS, tolerance) for _ in range(_STARTS)]
        centres, _ = _refine(points, min(starts, key=lambda each: each[1])[0], _MOST_STEPS, tolerance)
        labels = _nearness(points, centres).argmax(1)
        counts = torch.bincount(labels, minlength=len(centres))
        kept = sorted(range(len(centres)), key=lambda each: (-int(counts[each]), centres[each].tolist()))
        return centres[[each for each in kept if counts[each]]]
    finally:
        torch.set_num_threads(cores)


def find_labels(maps: Tensor, centres: Tensor) -> Tensor:
    """Return the number of the nearest centre for each position, int16 `(N, h, w)`, or `UNKNOWN`.

    Args:
        maps: `(N, C, h, w)`, any floating type, any range.
        centres: `(K, C)`, as `find_centres` returns them.
    """
    centres = centres.to(maps.device)
    vectors = vectors_of(maps)
    nearness = vectors.products(centres) - centres.square().sum(1)[:, None] / 2
    labels = nearness.nan_to_num(nan=0).argmax(1).where(vectors.lengths.isfinite(), UNKNOWN)
    return labels.to(torch.int16).view(-1, *maps.shape[2:])


def _choose(points: Tensor, clusters: int, chance: torch.Generator) -> Tensor:
    """Choose points far from each other, each the best of several candidates."""
    trials = 2 + int(log(clusters))
    chosen = [int(torch.randint(len(points), (1,), generator=chance))]
    nearest = _distances(points, points[chosen])[:, 0]
    while len(chosen) < clusters and float(nearest.max()) > _NOISE:
        limits = nearest.double().cumsum(0)
        drawn = torch.rand(trials, generator=chance, dtype=torch.float64) * limits[-1]
        candidates = torch.searchsorted(limits, drawn).clamp_(max=len(points) - 1)
        closer = torch.minimum(nearest[:, None], _distances(points, points[candidates]))
        best = int(closer.sum(0).argmin())
        chosen.append(int(candidates[best]))
        nearest = closer[:, best]
    return points[chosen]


def _refine(points: Tensor, centres: Tensor, steps: int, tolerance: float) -> tuple[Tensor, float]:
    """Move centres to the means of their points; return them and the sum of squared distances, up to a constant."""
    for _ in range(steps):
        labels = _nearness(points, centres).argmax(1)
        members = torch.zeros(len(centres), len(points))
        members[labels, torch.arange(len(points))] = 1
        counts = members.sum(1, keepdim=True)
        moved = (members @ points / counts.clamp(min=1)).where(counts > 0, centres)
        shift = float((moved - centres).square().sum())
        centres = moved
        if shift <= tolerance:
            break
    return centres, -2 * float(_nearness(points, centres).amax(1).sum(dtype=torch.float64))


def _nearness(points: Tensor, centres: Tensor) -> Tensor:
    """Return half of the negative squared distance of points to centres, up to a constant of each point."""
    return points @ centres.mT - centres.square().sum(1) / 2


def _distances(points: Tensor, others: Tensor) -> Tensor:
    """Return the squared distances of vectors of length one, or zero, `(n, m)`."""
    squares = points.square().sum(1)[:, None], others.square().sum(1)
    return (squares[0] - 2 * points @ others.mT + squares[1]).clamp_(min=0)


# Those of Okabe and Ito, "Color Universal Design", 2008, without black; then each the farthest from those before it, and
# from black and white, for normal, deuteranopic and protanopic vision: the smallest distance in CIELAB is 25.
_COLOURS = (
    "0072b2 e69f00 009e73 cc79a7 56b4e9 d55e00 f0e442 0000ff 00004b 692d0f "
    "3cff96 6969ff 000096 5a3c5a e10f4b a5d2b4 1e4bb4 f0965a 6996ff 4be1f0"
)


@cache
def cluster_colours() -> NDArray[np.uint8]:
    """Return the colours of clusters, uint8 `(20, 3)`, read-only."""
    colours = np.array([[*bytes.fromhex(colour)] for colour in _COLOURS.split()], np.uint8)
    colours.flags.writeable = False
    return colours


def colour_labels(labels: NDArray[np.int16], size: Size, centres: Centres | None = None) -> NDArray[np.uint8]:
    """Draw clusters in their colours, each value as a rectangle, uint8 `(H, W, 3)`; negative ones as a checkerboard.

    Args:
        labels: Number of the cluster of each position of a map, int16 `(h, w)`; negative where there is none.
        size: Height and width, pixels.
        centres: Where the positions lie in the input; None: they span it.
    """
    rows, columns = nearest_values((labels.shape[0], labels.shape[1]), size, centres)
    numbers = labels[rows[:, None], columns]
    pixels: NDArray[np.uint8] = cluster_colours()[numbers]
    if labels.min() < 0:
        pixels = np.where(numbers[..., None] < 0, checkerboard(*size).numpy()[..., None], pixels)
    return pixels
