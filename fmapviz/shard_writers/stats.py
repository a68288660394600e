"""Statistics of every channel over the images of a shard, as a Parquet table, and over the whole run."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from fmapviz import channel_tables
from fmapviz.statistics import Gatherer, columns_of, merge
from fmapviz.statistics_files import make
from fmapviz.units import read_unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from fmapviz.index import Stored
    from fmapviz.values import Picture, RunInfo, Unit


class Stats:
    """Takes note of what each image's channels are like."""

    members: dict[str, int] = {}  # noqa: RUF012  never changed

    def __init__(self) -> None:
        self.gatherer = Gatherer()

    def add(self, _key: int, unit: Unit, _pictures: Sequence[Picture]) -> list[Stored]:
        """Add an image; no picture is stored."""
        self.gatherer.add(*columns_of(unit.drawn))
        return []


@contextmanager
def open_shard(directory: Path, _info: RunInfo) -> Iterator[Stats]:
    """Write what is known of the channels of a shard's images, `stats.parquet`.

    Raises:
        OSError: The file could not be written, or is there already.
    """
    stats = Stats()
    yield stats
    channel_tables.write(directory, stats.gatherer.layers(), images=stats.gatherer.images)


def publish(_run: Path, units: list[Path], info: RunInfo) -> tuple[dict[str, bytes], list[Path]]:
    """Make `stats.csv` and `stats.json` of all shards of a run, but for those that are damaged."""
    images, parts, without = channel_tables.gather(units)
    left_out = [unit for unit in without if (read_unit(unit) or {}).get("kind") != "model"]
    return make(images, merge(parts), info), left_out
