"""Image summaries for TensorBoard, one run per image.

With `--shard` it is one run per shard, whose images are the steps.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tensorboard.plugins.image import metadata as images

from fmapviz.data import StoredAt
from fmapviz.formats.tensorboard import event_file
from fmapviz.formats.tensorboard.image_summary import scalars, summaries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from fmapviz.data import Picture, UnitImage
    from fmapviz.formats.tensorboard.event_file import Record

_FILE = "events.out.tfevents.fmapviz"

# TensorBoard shows one description for all steps: only facts that hold for all images may be in it.
_COMMON = {"Layer", "Type", "Shows", "Scaling", "Model", "Weights", "Software"}


class TensorBoardRun:
    """Appends the pictures of images to an event file, the number of the image, or of the page, as the step."""

    def __init__(self, append: Callable[[Record], int], *, many: bool) -> None:
        self.members = {_FILE: 1}  # the file's own header
        self._append = append
        self._many = many

    def add(self, image: UnitImage, pictures: Iterable[Picture]) -> list[StoredAt]:
        """See `fmapviz.formats.base.Writer`."""
        stored = []
        for picture in pictures:
            facts = {name: fact for name, fact in picture.facts.items() if name in _COMMON} if self._many else picture.facts
            offset, *others = map(self._append, summaries(picture, facts, step=image.key if self._many else picture.page))
            if self._many:
                stored.append(StoredAt(_FILE, offset))
            self.members[_FILE] += 1 + len(others)
        if not self._many:
            self.members[_FILE] += len([self._append(record) for record in scalars(image.result)])
        return stored


@contextmanager
def open_writer(directory: Path, *, many: bool = False) -> Iterator[TensorBoardRun]:
    """Write pictures to one event file, which appears when it is complete.

    Args:
        directory: The staged unit.
        many: Whether the unit holds many images.
    """
    with event_file.create(directory / _FILE) as append:
        yield TensorBoardRun(append, many=many)


def read_pictures(unit: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the tag and the PNG file of each picture in the event file of a unit.

    Raises:
        OSError: The file cannot be read.
        google.protobuf.message.DecodeError: It is damaged.
    """
    for event in event_file.read_events(unit / _FILE):
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == images.PLUGIN_NAME:
                yield value.tag, value.tensor.string_val[2]  # behind width and height
