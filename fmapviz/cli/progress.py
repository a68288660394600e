"""Show how many images of a run are finished: a bar in a terminal, a line every 30 seconds in a log file."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from fmapviz.cli.printing import erase_status, fit, print_message

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

LOG_INTERVAL_SECONDS = 30.0
_SLOW = 0.5  # images a second, below which the time of an image says more


_begun: list[ProgressLine] = []  # that of the command


def describe() -> str:
    """Describe the progress for the message of an interruption; empty if no run has begun."""
    return f": {_begun[-1].finished}; run the same command to resume" if _begun else ""


class ProgressLine:
    """Counts finished images and shows their number, their rate and the time left.

    Args:
        shown: False prints messages only.
    """

    def __init__(self, *, shown: bool) -> None:
        self.total: int | None = None
        self.staged = 0  # images drawn in shards that are not complete
        self.drawn = self.skipped = self.failed = 0
        self._within: dict[str, tuple[int, int]] = {}  # passes done and needed, of images of which views take many
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
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
            from rich.progress import Progress as Bar

            # Rich's own column of the time left counts skipped images, which take none.
            columns = BarColumn(), MofNCompleteColumn(), TextColumn("images  {task.fields[speed]}")
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._bar.add_task("images", total=None, speed="")

    def advance(self, path: str, done: int, total: int) -> None:
        """Show how many of the passes of an image are done."""
        self._within[path] = done, max(done, total)
        self.update()

    def leave(self, path: str) -> None:
        """Forget an image that is done or failed."""
        self._within.pop(path, None)

    def update(self) -> None:
        """Show the current counts."""
        finished = self.drawn + self.skipped + self.failed + self.staged
        now = time.monotonic()
        if finished == self.skipped:
            self._begun = now  # looking for finished images is no work on new ones
        speed = self._speed(finished, now - self._begun)
        within = next((_passes(path, *counts) for path, counts in reversed(self._within.items())), "")
        if self._bar is not None:
            text = ", ".join(filter(None, (speed, within)))
            # The number of images beside the bar is rounded down.
            begun = min(0.99, sum(done / total for done, total in self._within.values() if total))
            self._bar.update(self._bar.task_ids[0], completed=finished + begun, total=self.total, speed=text)
        elif self._shown and now - self._logged >= LOG_INTERVAL_SECONDS:
            self._logged = now
            total = f" of {self.total}" if self.total else ""
            details = ", ".join(filter(None, (speed, within))) or "all of them done before"
            print_message(f"progress: {finished}{total} images, {details}")

    def _speed(self, finished: int, elapsed: float) -> str:
        """Return the rate of the images that this command draws, and the time that the others will take."""
        drawn = finished - self.skipped
        if not drawn or elapsed <= 0:
            return ""
        rate = drawn / elapsed
        left = f", about {_duration((self.total - finished) / rate)} left" if self.total else ""
        speed = f"{rate:.1f} images/s" if rate >= _SLOW else f"{_duration(1 / rate)} for each image"
        return f"{speed}{left}"

    def print(self, text: str) -> None:
        """Print a line on standard error, above the bar."""
        if self._bar is not None:
            self._bar.console.print(fit(text), markup=False, highlight=False, soft_wrap=True)
        else:
            print_message(text)

    def stop(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self.update()
            self._bar.stop()
            self._bar = None


def _passes(path: str, done: int, total: int) -> str:
    return f"{path.rpartition('/')[2]}: {done:,} of {total:,} passes"


def _duration(seconds: float) -> str:
    """Format a time to wait.

    Example:
        >>> _duration(59.6), _duration(3599), _duration(90_000)
        ('60 s', '60 min', '25 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.0f} h"
