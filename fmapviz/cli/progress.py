"""Show how many images of a run are finished: a bar in a terminal, a line now and then in a log file."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from fmapviz.cli.printing import erase_status, print_message

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

LOG_INTERVAL_SECONDS = 30.0


_begun: list[Progress] = []  # that of the command


def describe() -> str:
    """Return how far the run has come, for the message of an interruption; nothing if no run has begun."""
    return f": {_begun[-1].finished}; run the same command to resume" if _begun else ""


class Progress:
    """Counts finished images and shows their number, their rate and the time left.

    Args:
        shown: False prints messages only.
    """

    def __init__(self, *, shown: bool) -> None:
        self.total: int | None = None
        self.staged = 0  # images drawn in shards that are not complete
        self.drawn = self.skipped = self.failed = 0
        self._shown = shown
        self._begun = self._logged = time.monotonic()
        self._bar: Bar | None = None

    @property
    def finished(self) -> str:
        """The number of images that are done."""
        total = f" of {self.total}" if self.total is not None else ""
        return f"{self.drawn + self.skipped}{total} done"

    def start(self) -> None:
        """Begin to measure time and, in a terminal, show the bar."""
        _begun.append(self)
        erase_status()
        self._begun = self._logged = time.monotonic()
        if self._shown and sys.stderr is not None and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            rate = TextColumn("images  {task.fields[rate]:.1f} images/s")
            columns = BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn()
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._bar.add_task("images", total=None, rate=0.0)

    def update(self) -> None:
        """Show the current counts."""
        finished = self.drawn + self.skipped + self.failed + self.staged
        elapsed = time.monotonic() - self._begun
        rate = (finished - self.skipped) / elapsed if elapsed > 0 else 0.0
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=finished, total=self.total, rate=rate)
        elif self._shown and time.monotonic() - self._logged >= LOG_INTERVAL_SECONDS:
            self._logged = time.monotonic()
            left = f", about {(self.total - finished) / rate:.0f} s left" if self.total and rate else ""
            total = f" of {self.total}" if self.total else ""
            print_message(f"progress: {finished}{total} images, {rate:.1f} images/s{left}")

    def print(self, text: str) -> None:
        """Print a line on standard error, above the bar."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print_message(text)

    def stop(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self.update()
            self._bar.stop()
            self._bar = None
