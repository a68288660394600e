"""Append to a TensorBoard event file during a training."""

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
from fmapviz.formats.tensorboard.event_file import Record, write_record

if TYPE_CHECKING:
    from pathlib import Path


class EventLog:
    """The methods of a `SummaryWriter` that a watch calls, without its thread, which would end with the first failure.

    It takes a tenth of the time, too: TensorBoard computes the checksums of pictures in Python.

    Args:
        folder: Folder of the file.
    """

    def __init__(self, folder: Path) -> None:
        self.log_dir = str(folder)
        name = f"{EVENTS}{int(time.time()):010d}.{time.monotonic_ns()}.{os.getpid()}"
        self._path = folder / name
        self._pending = io.BytesIO()
        self._add(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def add_summary(self, summary: Summary, step: int) -> None:
        """Add a summary, such as an encoded picture."""
        self._add(Event(wall_time=time.time(), step=step, summary=summary))

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Add a number."""
        self.add_summary(Summary(value=[Summary.Value(tag=tag, simple_value=value)]), step)

    def add_histogram_raw(self, tag: str, *, global_step: int, **numbers: Any) -> None:
        """Add a histogram, with the arguments of PyTorch's writer."""
        self.add_summary(histogram_raw(tag, **numbers), global_step)  # type: ignore[no-untyped-call]

    def flush(self) -> None:
        """Write the records that were added since the last call, in one piece.

        Raises:
            OSError: The disk is full, for example.
        """
        if self._pending.tell():
            files.extend(self._path, self._pending.getvalue())
            self._pending.seek(0)
            self._pending.truncate()

    def _add(self, event: Event) -> None:
        write_record(self._pending, Record(event.SerializeToString()))
