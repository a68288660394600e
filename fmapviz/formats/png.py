"""One PNG file per picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmapviz.core import files
from fmapviz.formats import base

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from fmapviz.data import Picture, UnitImage


def _write(directory: Path, _image: UnitImage, pictures: Iterable[Picture]) -> None:
    """Write pictures to files named by layer and view, `00_features.0.maps.png`."""
    for picture in pictures:
        files.write(directory / picture.file_name, picture.png)


open_writer = base.separate_files(_write)


def read_pictures(unit: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file, the input first.

    Raises:
        OSError: A file cannot be read.
    """
    for path in sorted(unit.glob("*.png"), key=lambda path: (path.name != "input.png", path.name)):
        yield path.name, files.read(path)
