"""Image summaries for TensorBoard, one run per shard; its images are the steps."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from fmapviz import events
from fmapviz.index import Stored
from fmapviz.summaries import summaries
from fmapviz.units import EVENTS_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tensorboard.compat.proto.event_pb2 import Event

    from fmapviz.values import Picture, RunInfo, Unit

# TensorBoard shows one description for all steps: only what is true of all images may be in it.
_COMMON = {"Layer", "Type", "Shows", "Scaling", "Model", "Weights", "Software"}


class TensorBoard:
    """Appends the pictures of images to an event file, one image after the other."""

    def __init__(self, append: Callable[[Event], int]) -> None:
        self._append = append
        self._count = 1  # the file's own header

    def add(self, key: int, _unit: Unit, pictures: Sequence[Picture]) -> list[Stored]:
        """Append an image's pictures as the step of its number, and say where each is."""
        stored = []
        for picture in pictures:
            common = {name: fact for name, fact in picture.facts.items() if name in _COMMON}
            for number, event in enumerate(summaries(replace(picture, facts=common), step=key)):
                offset = self._append(event)
                self._count += 1
                if number == 0:
                    stored.append(Stored(EVENTS_FILE, offset + event.SerializeToString().rfind(picture.png)))
        return stored

    @property
    def members(self) -> dict[str, int]:
        """How many events are in the file."""
        return {EVENTS_FILE: self._count}


@contextmanager
def open_shard(directory: Path, _info: RunInfo) -> Iterator[TensorBoard]:
    """Write the pictures of a shard's images into one event file; it bears its name when all of them are in it.

    Raises:
        OSError: The file could not be written, or is there already.
    """
    with events.create(directory / EVENTS_FILE) as append:
        yield TensorBoard(append)
