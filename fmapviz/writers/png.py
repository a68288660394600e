"""One PNG file per picture."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fmapviz.values import Picture, Unit

# Straight from the system: a file object takes as long again for a small file.
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


@contextmanager
def open_writer(directory: Path, _unit: Unit) -> Iterator[Callable[[Picture], None]]:
    """Write pictures into a directory, each under its own file name.

    Yields:
        A function that writes one picture.

    Raises:
        OSError: A file could not be written, or is there already.
    """

    def write(picture: Picture) -> None:
        file = os.open(directory / picture.file_name, _NEW, 0o666)
        try:
            left = memoryview(picture.png)
            while left:  # a disk that fills takes a part, and refuses the rest
                left = left[os.write(file, left) :]
        finally:
            os.close(file)

    yield write
