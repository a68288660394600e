"""Statistics of every channel over the whole run, as a table and as JSON; no pictures."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fmapviz import statistics
from fmapviz.units import FORMAT, seal

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
    with (directory / statistics.FILE).open("xb") as file:
        file.write(statistics.encode(unit.drawn))


def publish(_run: Path, units: list[Path], info: RunInfo) -> dict[str, bytes]:
    """Make `stats.csv` and `stats.json` of all images of a run."""
    images, layers = statistics.gather(path for unit in units if (path := unit / statistics.FILE).exists())
    document: dict[str, Any] = {  # Any: JSON values of all kinds
        "fmapviz": FORMAT,
        "model": info.model,
        "weights": info.weights,
        "sha256": info.sha256,
        "images": images,
        "layers": statistics.as_records(layers),
    }
    return {statistics.CSV_FILE: statistics.as_rows(layers).encode(), statistics.JSON_FILE: seal(document)}
