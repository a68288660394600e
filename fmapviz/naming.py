"""Let the first of several sources with one name have it, whichever of them is written first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fmapviz.inputs import path_hash
from fmapviz.units import find_own
from fmapviz.values import ImageFile

if TYPE_CHECKING:
    from pathlib import Path

    from fmapviz.grouping import Item


class Naming:
    """Knows the names of the units under way, with their sources."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._names: dict[str, str] = {}

    def claim(self, item: Item) -> Item:
        """Give an image with a name of its own; called in the order in which they are found."""
        if not isinstance(item, ImageFile) or self._names.setdefault(item.unit, item.path) == item.path:
            return item
        return item if find_own(self._run, item) else replace(item, unit=item.unit + distinction(item))

    def release(self, file: ImageFile) -> None:
        """Forget whose a name is: from here on the disk knows it."""
        if self._names.get(file.unit) == file.path:
            del self._names[file.unit]


def distinction(file: ImageFile) -> str:
    """Tell a source from others of its name."""
    return f"~{path_hash(file.path)}"
