"""One SVG file per picture of a layer, for papers: texts as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmapviz.core import files
from fmapviz.writers import base

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from fmapviz.core.types import Picture, UnitImage

UNIT_FILES = "*.svg"


def _write(directory: Path, _image: UnitImage, pictures: Iterable[Picture]) -> None:
    """Write files named by layer and view, `00_features.0.maps.svg`; pictures without texts of their own have none."""
    for picture in pictures:
        if picture.svg:
            name = f"{picture.file_name.removesuffix('.png')}.svg"
            files.write(directory / name, picture.svg.encode("ascii", "xmlcharrefreplace"))


open_writer = base.separate_files(_write)
