"""Append to a TensorBoard event file as the training goes on; `flush` writes what was added."""

from __future__ import annotations

import io
import os
import time
from typing import TYPE_CHECKING, Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard.summary import histogram_raw

from fmapviz.core import files
from fmapviz.core.file_names import EVENTS
from fmapviz.writers.tensorboard.event_file import Record, write_record

if TYPE_CHECKING:
    from pathlib import Path


class EventLog:
    """Has of a `SummaryWriter` what a watch needs, without its thread, which would end with the first failure.

    It takes a tenth of the time, too: TensorBoard computes the checksums of pictures in Python.

    Args:
        folder: Where the file is.
    """

    def __init__(self, folder: Path) -> None:
        self.log_dir = str(folder)
        name = f"{EVENTS}{int(time.time()):010d}.{time.monotonic_ns()}.{os.getpid()}"
        self._path = folder / name
        self._pending = io.BytesIO()
        self._add(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def add_png(self, tag: str, png: bytes, size: tuple[int, int], step: int) -> None:
        """Add an encoded picture of a height and width."""
        image = Summary.Image(height=size[0], width=size[1], colorspace=3, encoded_image_string=png)
        self._add_value(Summary.Value(tag=tag, image=image), step)

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Add a number."""
        self._add_value(Summary.Value(tag=tag, simple_value=value), step)

    def add_histogram_raw(self, tag: str, *, global_step: int, **numbers: Any) -> None:
        """Add a histogram, with the arguments of PyTorch's writer."""
        summary = histogram_raw(tag, **numbers)  # type: ignore[no-untyped-call]
        self._add(Event(wall_time=time.time(), step=global_step, summary=summary))

    def flush(self) -> None:
        """Write what was added since the last time, in one piece.

        Raises:
            OSError: The disk is full, for example.
        """
        if self._pending.tell():
            files.extend(self._path, self._pending.getvalue())
            self._pending.seek(0)
            self._pending.truncate()

    def _add_value(self, value: Summary.Value, step: int) -> None:
        self._add(Event(wall_time=time.time(), step=step, summary=Summary(value=[value])))

    def _add(self, event: Event) -> None:
        write_record(self._pending, Record(event.SerializeToString()))
