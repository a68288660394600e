"""Rank images in a user's loop, or from the statistics of a finished run, without drawing anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.config import check_type, explain_arguments
from fmapviz.core.words import counted
from fmapviz.data import FeatureMap
from fmapviz.draw.grid import as_floats, measure
from fmapviz.draw.measures import measures_of
from fmapviz.errors import LayerKeyError, RequestError, quote, suggest
from fmapviz.features.top.of_run import rank_run
from fmapviz.features.top.options import TopOptions
from fmapviz.images.preprocess import digest_of
from fmapviz.store.aggregates.channels import FeatureMapInfo
from fmapviz.store.aggregates.ranker import Ranker
from fmapviz.store.aggregates.unit_ranking import COLUMNS, digest_of_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.store.aggregates.ranking import By, Ranking


@dataclass(frozen=True, slots=True, eq=False)
class TopLayer:
    """The images with the largest values of each channel of a layer.

    Attributes:
        images: For each of C channels the names of up to k images, in the order of their values.
        values: Their values, float32 `(C, k)`; NaN behind the last image.
        constant: Whether all images have the same value, so that the order says nothing, boolean `(C,)`.
        copies: For each ranked image with copies, the number of images with the same input, by name.
    """

    images: tuple[tuple[str, ...], ...]
    values: NDArray[np.float32]
    constant: NDArray[np.bool_]
    copies: Mapping[str, int]


class TopImages(Mapping[str, TopLayer]):
    """The images with the largest values of each channel, by the name of the feature map.

    A larger value comes first; of equal ones, the image whose name comes first in natural order, `x2` before `x10`. So the
    result does not depend on batches, their order or their division among processes. NaN and infinite values do not count.

    Args:
        k: Number of images per channel, 1 to 100.
        by: Value of the ranking: `max`, the largest value of a channel in an image; `mean`; `min`, the smallest value,
            smallest first.

    Raises:
        RequestError: An option is out of range.

    Example:
        >>> import fmapviz, torch
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))
        >>> top = TopImages(k=2)
        >>> with fmapviz.capture(net) as maps:
        ...     for number in range(5):
        ...         _ = net(torch.randn(1, 3, 8, 8))
        ...         top.add([f"image {number}"], maps)
        >>> [*top], top["0"].values.shape, len(top["0"].images[0])
        (['0'], (4, 2), 2)
    """

    @explain_arguments
    def __init__(self, k: int = 9, *, by: By = "max") -> None:
        self._options = TopOptions(k=k, by=by)
        self._ranker = Ranker(self._options.by, self._options.k)

    @classmethod
    @explain_arguments
    def read(cls, run: str | Path, *, k: int = 9, by: By = "max") -> TopImages:
        """Rank the images of a local run by the statistics that it keeps.

        Args:
            run: The run's directory.
            k: See the class; up to 16 for a run with shards.
            by: See the class.

        Raises:
            RequestError: It is no run, keeps no statistics, or ranks fewer images.
        """
        top = cls(k, by=by)
        top._ranker.merge(rank_run(Path(run), top._options))
        return top

    def add(
        self, names: str | Sequence[str], maps: Mapping[str, FeatureMap | Tensor], *, inputs: Tensor | None = None
    ) -> None:
        """Add the images of a batch.

        Args:
            names: A name for each of N images; an image that is added again under the same name counts once.
            maps: By name, `(N, C, H, W)` or vectors `(N, K)`: what `fmapviz.capture` holds, for example.
            inputs: The batch, `(N, ...)`; with it, images with equal inputs count as one.

        Raises:
            RequestError: The shapes do not fit.
        """
        listed = (
            [names] if isinstance(names, str) else list(check_type("names", names, tuple[str, ...], hint="one per image"))
        )
        infos, values = [], []
        for index, (name, given) in enumerate(maps.items()):
            tensor = given.values if isinstance(given, FeatureMap) else given
            kind = given.layer.type if isinstance(given, FeatureMap) else ""
            values.append(_measure(name, tensor, self._options.by, images=len(listed)))
            infos.append(FeatureMapInfo(name, "output", "", kind, values[-1].shape[1], index))
        if inputs is not None and len(inputs) != len(listed):
            raise RequestError(
                f"{counted(len(listed), 'name')} for {counted(len(inputs), 'input')}", hint="names has one for each image"
            )
        for number, name in enumerate(listed):
            digest = digest_of_name(name) if inputs is None else int(digest_of(inputs[number].detach().cpu())[:16], 16)
            self._ranker.add(
                tuple(infos), name, digest, np.concatenate([np.zeros(0, np.float32), *(own[number] for own in values)])
            )

    def merge(self, other: TopImages) -> None:
        """Add the images of another ranking by the same value, such as that of another process.

        Raises:
            RequestError: It ranks by another value, or another number of images.
        """
        if self._options != other._options:
            raise RequestError(f"rankings of other kinds: {self._options}, {other._options}", hint="the same k= and by=")
        self._ranker.merge(other._ranking)

    def __getitem__(self, layer: str) -> TopLayer:
        """Return the images of a feature map.

        Raises:
            LayerKeyError: There is none of that name.
        """
        ranking = self._ranking
        for info, own in ranking.slices():
            if info.layer == layer:
                shown = [name.partition("\0")[0] for name in ranking.names]
                images = tuple(tuple(shown[place] for place in row if place >= 0) for row in ranking.places[own].tolist())
                copies = {shown[place]: count for place, count in enumerate(ranking.copies.tolist()) if count > 1}
                return TopLayer(images, ranking.values[own], ranking.constant[own], copies)
        raise LayerKeyError(f"no such feature map: {quote(layer)}", hint=suggest(layer, list(self)))

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of feature maps, in the order of execution."""
        return (info.layer for info in self._ranking.maps)

    def __len__(self) -> int:
        """Return the number of feature maps."""
        return len(self._ranking.maps)

    def __repr__(self) -> str:
        """Summarize it."""
        return f"TopImages(k={self._options.k}, by={self._options.by!r}, {len(self)} feature maps)"

    @property
    def _ranking(self) -> Ranking:
        return self._ranker.finish()


def _measure(name: str, values: Tensor, by: By, *, images: int) -> NDArray[np.float32]:
    """Return the ranked value of each channel, float32 `(N, C)`, as the statistics of a run have it.

    Raises:
        RequestError: The tensor is not of N images with rows and columns, or N vectors.
    """
    if values.ndim not in {2, 4} or len(values) != images:
        shape = tuple(values.shape)
        raise RequestError(
            f"{quote(name)} is {shape}, not ({images}, C, H, W) or ({images}, K)", hint="one name for each image"
        )
    maps = as_floats(values.detach() if values.ndim == 4 else values.detach()[:, :, None, None])
    return np.stack([getattr(each, COLUMNS[by]) for each in measures_of(measure(maps, moments=True))])
