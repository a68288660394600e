"""Statistics of every channel over all images of the run, as a table and as JSON; no pictures."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from fmapviz.runs.aggregates._channels import NO_IMAGES, combine
from fmapviz.runs.aggregates._unit_ranking import UnitRanking, write_rankings
from fmapviz.runs.aggregates._unit_statistics import columns_of, statistics_of, write_image, write_table
from fmapviz.runs.aggregates.statistics import merge

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from fmapviz.core.types import Picture, UnitImage

NEEDS = "measures"
AGGREGATES = "statistics"
UNIT_FILES = "stats.safetensors stats.parquet ranking.parquet"
MANY = True


class UnitStatistics:
    """Writes the statistics of one image, or combines those of many and ranks these by the values of each channel."""

    def __init__(self, directory: Path, *, many: bool) -> None:
        self.members: Mapping[str, int] = {}
        self.combined = NO_IMAGES
        self.ranking = UnitRanking()
        self._directory = directory
        self._many = many

    def add(self, image: UnitImage, _pictures: Iterable[Picture]) -> tuple[()]:
        """See `fmapviz.writers.base.Writer`."""
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
