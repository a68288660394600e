"""How two networks differ, as tables: diff.csv for each image, layer and channel, and cka.csv."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmapviz.features.diff.unit_differences import write_unit
from fmapviz.formats import base

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from fmapviz.types import Picture, UnitImage


def _write(directory: Path, image: UnitImage, _pictures: Iterable[Picture]) -> None:
    """Write the numbers of an image, from which the tables are made."""
    write_unit(directory, image.result)


open_writer = base.separate_files(_write)
