"""One PNG file per picture."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from fmapviz.core import files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from fmapviz.core.types import Picture, UnitImage

UNIT_FILES = "input.png *.png"


class PngFiles:
    """Writes each picture to a file of its own."""

    def __init__(self, directory: Path) -> None:
        self.members: Mapping[str, int] = {}
        self._directory = directory

    def add(self, _image: UnitImage, pictures: Iterable[Picture]) -> tuple[()]:
        """See `fmapviz.writers.base.Writer`."""
        for picture in pictures:
            files.write(self._directory / picture.file_name, picture.png)
        return ()


@contextmanager
def open_writer(directory: Path, *, many: bool = False) -> Iterator[PngFiles]:  # noqa: ARG001
    """Write pictures to files named by layer and view, `00_features.0.maps.png`."""
    yield PngFiles(directory)
