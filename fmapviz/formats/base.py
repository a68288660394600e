"""The contract of a format, which writes the files of a unit of one or of many images.

A format is a value of the catalogue, see `fmapviz.core.members.Format`, which lists its files and names these functions:

* `open_writer(directory, *, many=False)`: Open a `Writer` of one unit, as a context manager. Its files are complete when the
  block ends. If the block raises, they are closed. `separate_files` makes it from a function that writes one image's files.
* `read_pictures(unit)`: Yield the name and the PNG file of each picture of a unit, in the order in which they were written.
* `publish(run, info, summaries)`: Return the contents of further run-level files, made from the summaries of the run's
  aggregates by their names.
* `write_film(target, pictures, size=, rate=, times=)`: Write one picture of many images as a film, into a file whose suffix
  is the name of the format. The pictures are Pillow's, of at most the size; the rate is in frames per second; `times`, if
  there are any, are the seconds at which each picture begins and the last one ends.
* `write_series(run, units)`: Write the steps of a series, from the PNG files of the units, in natural order, and from
  `unit.json`; such a format writes nothing for each unit of a series.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import numpy as np
from PIL import Image as PillowImage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from fmapviz.data import Picture, StoredAt, UnitImage

    WriteImage = Callable[[Path, UnitImage, Iterable[Picture]], None]


class Writer(Protocol):
    """Writes the files of one format in one unit."""

    @property
    def members(self) -> Mapping[str, int]:
        """Numbers of records of the files that are sequences of records, by file name."""

    def add(self, image: UnitImage, pictures: Iterable[Picture]) -> Sequence[StoredAt]:
        """Add an image; images come in the order of their numbers.

        Args:
            image: The image and its results.
            pictures: Its encoded pictures.

        Returns:
            The position of each picture, if the files of the format hold many; else nothing.

        Raises:
            OSError: A file could not be written, or exists.
        """


class OpenWriter(Protocol):
    """The function `open_writer` of a format."""

    def __call__(self, directory: Path, *, many: bool = False) -> AbstractContextManager[Writer]:
        """Open a writer.

        Args:
            directory: The staged unit.
            many: Whether the unit holds many images.
        """


class SeparateFiles:
    """Writes files that belong to one image each: they are complete as soon as it has been added."""

    members: Mapping[str, int] = MappingProxyType({})

    def __init__(self, write: WriteImage, directory: Path) -> None:
        self._write = write
        self._directory = directory

    def add(self, image: UnitImage, pictures: Iterable[Picture]) -> tuple[()]:
        """See `Writer`."""
        self._write(self._directory, image, pictures)
        return ()


def separate_files(write: WriteImage) -> OpenWriter:
    """Return the `open_writer` of a format from a function that writes the files of one image."""

    @contextmanager
    def open_writer(directory: Path, *, many: bool = False) -> Iterator[SeparateFiles]:  # noqa: ARG001
        yield SeparateFiles(write, directory)

    return open_writer


def padded(picture: PillowImage.Image, size: tuple[int, int]) -> PillowImage.Image:
    """Return a picture in mode RGB, extended to a size at the right and at the bottom by its last pixels.

    Example:
        >>> from PIL import Image
        >>> padded(Image.new("L", (3, 3), 255), (4, 4)).getpixel((3, 3))
        (255, 255, 255)
    """
    rgb = picture.convert("RGB")
    across, down = size[0] - rgb.width, size[1] - rgb.height
    if not (across or down):
        return rgb
    return PillowImage.fromarray(np.pad(np.asarray(rgb), ((0, down), (0, across), (0, 0)), mode="edge"))
