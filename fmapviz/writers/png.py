"""One PNG file per picture."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fmapviz.values import Picture


@contextmanager
def open_writer(directory: Path) -> Iterator[Callable[[Picture], None]]:
    """Write pictures into a directory, each under its own file name.

    Yields:
        A function that writes one picture.

    Raises:
        OSError: A file could not be written, or is there already.
    """

    def write(picture: Picture) -> None:
        with (directory / picture.file_name).open("xb", buffering=0) as file:
            left = memoryview(picture.png)
            while left:  # a disk that fills takes a part, and refuses the rest
                left = left[file.write(left) :]

    yield write
