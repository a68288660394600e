"""Image summaries for TensorBoard, one run per image."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from fmapviz import events
from fmapviz.summaries import summaries
from fmapviz.units import EVENTS_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fmapviz.values import Picture, Unit


@contextmanager
def open_writer(directory: Path, _unit: Unit) -> Iterator[Callable[[Picture], None]]:
    """Write pictures into one event file in a directory; it bears its name when all of them are in it.

    Yields:
        A function that writes one picture.

    Raises:
        OSError: The file could not be written, or is there already.
    """
    with events.create(directory / EVENTS_FILE) as append:

        def write(picture: Picture) -> None:
            for event in summaries(picture):
                append(event)

        yield write
