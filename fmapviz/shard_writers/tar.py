"""One tar archive per shard, as WebDataset reads it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from fmapviz import archives
from fmapviz.index import Stored

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from fmapviz.archives import Archive
    from fmapviz.values import Picture, RunInfo, Unit


class Tar:
    """Puts the pictures of images into an archive, one image after the other."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    def add(self, key: int, unit: Unit, pictures: Sequence[Picture]) -> list[Stored]:
        """Append an image's pictures, and say where each is."""
        return [Stored(archives.FILE, offset) for offset in self._archive.add(key, unit, pictures)]

    @property
    def members(self) -> dict[str, int]:
        """How many files are in the archive."""
        return {archives.FILE: self._archive.members}


@contextmanager
def open_shard(directory: Path, _info: RunInfo) -> Iterator[Tar]:
    """Write the pictures of a shard's images, `pictures.tar`; see `fmapviz.archives` for its keys and fields.

    Raises:
        OSError: The file could not be written, or is there already.
    """
    with archives.create(directory) as archive:
        yield Tar(archive)
