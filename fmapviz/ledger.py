"""Remember how far tasks are, wherever their workers may end.

Imports nothing heavy: it has a process of its own, by `fmapviz.ray_engine`, which starts as the workers do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fmapviz.values import Staged


class Ledger:
    """Remembers which image each task has begun last, and how far it is; an actor."""

    def __init__(self) -> None:
        self._begun: dict[int, str] = {}
        self._staged: list[tuple[int, Staged]] = []

    def note(self, number: int, path: str) -> None:
        """Note which image a task begins."""
        self._begun[number] = path

    def take(self, number: int) -> str | None:
        """Give which image a task has begun last, once."""
        return self._begun.pop(number, None)

    def tell(self, number: int, staged: list[Staged]) -> None:
        """Note which images of a task are staged."""
        self._staged += [(number, each) for each in staged]

    def told(self) -> list[tuple[int, Staged]]:
        """Give what is staged, each image once."""
        told, self._staged = self._staged, []
        return told
