"""One tar archive per image, or with --shard per shard, as WebDataset reads it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from fmapviz import archives

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fmapviz.values import Picture, Unit


@contextmanager
def open_writer(directory: Path, unit: Unit) -> Iterator[Callable[[Picture], None]]:
    """Write pictures into one archive, `pictures.tar`; see `fmapviz.archives` for its keys and fields.

    Yields:
        A function that takes note of one picture.

    Raises:
        OSError: The file could not be written, or is there already.
    """
    pictures: list[Picture] = []
    yield pictures.append
    with archives.create(directory) as archive:
        archive.add(0, unit, pictures)
