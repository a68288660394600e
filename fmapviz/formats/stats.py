"""Statistics of every channel over all images of the run, as a table and as JSON; no pictures."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fmapviz.data import ImageResult, LayerResult
from fmapviz.draw.grid import ROUNDED, as_floats, is_rounded, measure
from fmapviz.draw.measures import measures_of
from fmapviz.observe.reshape import own_frames
from fmapviz.store.aggregates.channels import NO_IMAGES, combine
from fmapviz.store.aggregates.statistics import merge
from fmapviz.store.aggregates.statistics import tabulate as table_of
from fmapviz.store.aggregates.unit_ranking import UnitRanking, write_rankings
from fmapviz.store.aggregates.unit_statistics import columns_of, statistics_of, write_image, write_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from fmapviz.core.channel_table import ChannelTable
    from fmapviz.data import FeatureMap, Picture, UnitImage


class UnitStatistics:
    """Writes the statistics of one image, or combines those of many and ranks these by the values of each channel."""

    def __init__(self, directory: Path, *, many: bool) -> None:
        self.members: Mapping[str, int] = {}
        self.combined = NO_IMAGES
        self.ranking = UnitRanking()
        self._directory = directory
        self._many = many

    def add(self, image: UnitImage, _pictures: Iterable[Picture]) -> tuple[()]:
        """See `fmapviz.formats.base.Writer`."""
        if self._many:
            self.combined = combine(self.combined, statistics_of(*columns_of(image.result)))
            self.ranking.add(image)
        else:
            write_image(self._directory, image.result, digest=image.input)
        return ()


@contextmanager
def open_writer(directory: Path, *, many: bool = False) -> Iterator[UnitStatistics]:
    """Write the statistics of a unit's channels, from which the run's are made."""
    writer = UnitStatistics(directory, many=many)
    yield writer
    if many:
        write_table(directory, merge([writer.combined]))
        write_rankings(directory, writer.ranking.finish())


def tabulate(feature_map: FeatureMap) -> ChannelTable:
    """Return the statistics of a captured feature map over its images, see `FeatureMap.statistics`.

    Raises:
        RequestError: It is no map and no vector.
    """
    frames = own_frames(feature_map)
    if any(map(is_rounded, frames.values())):
        warnings.warn(f"{ROUNDED} of {feature_map.name}", stacklevel=3)
    layers = [
        [
            LayerResult(f"{feature_map.name}{suffix}", feature_map.layer.type, feature_map.call, feature_map.index,
                        tuple(maps.shape[1:]), measures=measures)
            for measures in measures_of(measure(as_floats(maps[:, :, None, None] if maps.ndim == 2 else maps), moments=True))
        ]
        for suffix, maps in frames.items()
    ]  # fmt: skip
    images = (ImageResult(of_image, (), {}) for of_image in zip(*layers, strict=True))
    return table_of(merge(statistics_of(*columns_of(each)) for each in images))
