"""One PNG file per picture."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from fmapviz import files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fmapviz.values import Picture, Unit


@contextmanager
def open_writer(directory: Path, _unit: Unit) -> Iterator[Callable[[Picture], None]]:
    """Write pictures into a directory, each under its own file name.

    Yields:
        A function that writes one picture.

    Raises:
        OSError: A file could not be written, or is there already.
    """
    yield lambda picture: files.write(directory / picture.file_name, picture.png)
