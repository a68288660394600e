"""Statistics of every channel over the whole run, as a table and as JSON; no pictures."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from fmapviz import files, statistics
from fmapviz.statistics_files import make
from fmapviz.units import read_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fmapviz.values import Picture, RunInfo, Unit

NEEDS = "measures"


@contextmanager
def open_writer(directory: Path, unit: Unit) -> Iterator[Callable[[Picture], None]]:
    """Write what is known of one image's channels: what the run's statistics are made of.

    Yields:
        A function that takes a picture and does nothing with it.

    Raises:
        OSError: The file could not be written, or is there already.
    """
    yield lambda _: None
    files.write(directory / statistics.FILE, statistics.encode(unit.drawn))


def publish(_run: Path, units: list[Path], info: RunInfo) -> tuple[dict[str, bytes], list[Path]]:
    """Make `stats.csv` and `stats.json` of all images of a run, but for those whose directories are damaged.

    For a report `stats.js` is made too, so that nothing is gathered twice.
    """
    images, layers, without = statistics.gather(units)
    left_out = [unit for unit in without if (read_unit(unit) or {}).get("kind") is None]  # what the model is like has none
    return make(images, layers, info), left_out
