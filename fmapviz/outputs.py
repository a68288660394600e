"""Where runs are written to: a directory of this machine, or one elsewhere with a stand-in here.

A run goes on in a directory of this machine in both cases. What differs is what else has to be done so that something is
there for others.
"""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fmapviz import runs, verification
from fmapviz.errors import RequestError, quote
from fmapviz.urls import SCHEMES, is_unknown, is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fmapviz.values import ImageFile, RunInfo


class Output(Protocol):
    """Where runs are written to.

    Attributes:
        place: The directory of this machine.
        address: How others call it.
        limited: Whether what fits into it is what fits on the disk of this machine.
    """

    @property
    def place(self) -> Path: ...  # noqa: D102

    @property
    def address(self) -> Path | str: ...  # noqa: D102

    @property
    def limited(self) -> bool: ...  # noqa: D102

    def check(self) -> None:
        """Make sure, without writing anything, that it can be written to.

        Raises:
            OutputError: It cannot.
        """

    def find_run(self, info: RunInfo, *, name: str | None) -> Path | None:
        """Do what `fmapviz.runs.find_run` does."""

    def open_run(self, info: RunInfo, *, name: str | None, sync: bool) -> Path:
        """Do what `fmapviz.runs.open_run` does."""

    def join_run(self, name: str) -> Path:
        """Give the directory of a run that another process has opened."""

    def look_up(self, run: Path, images: Iterable[ImageFile]) -> None:
        """Have at hand what a run says of some images, in a process that did not open it."""

    def deliver(self, unit: Path) -> Path:
        """Let others have a finished directory, and give the one that it is now.

        Raises:
            OutputError: It could not be written.
        """

    def is_sound(self, unit: Path) -> bool:
        """Tell whether all files that a directory claims to hold are there, as they were written."""

    def share(self, run: Path, name: str) -> None:
        """Let others have a file of the run's own, unless they have one already: then that is taken over."""

    def note(self, run: Path, *, now: bool = False) -> None:
        """Let others have the list of failures: now, or at some time if that was done just now."""

    def publish(self, run: Path, make: Callable[[], list[Path]]) -> list[Path]:
        """Have files made of all images, and let others have them."""

    def forget(self, run: Path) -> None:
        """Take back a run that nothing came of, if its directory is gone."""

    def told(self, path: Path) -> Path:
        """Give how others call something."""


class Disk:
    """A directory of this machine."""

    limited = True

    def __init__(self, place: Path) -> None:
        self.place = self.address = place

    def check(self) -> None:
        """See `Output`."""
        runs.check_output(self.place)

    def find_run(self, info: RunInfo, *, name: str | None) -> Path | None:
        """See `Output`."""
        return runs.find_run(self.place, info, name=name)

    def open_run(self, info: RunInfo, *, name: str | None, sync: bool) -> Path:
        """See `Output`."""
        return runs.open_run(self.place, info, name=name, sync=sync)

    def join_run(self, name: str) -> Path:
        """See `Output`."""
        return self.place / name

    def look_up(self, run: Path, images: Iterable[ImageFile]) -> None:
        """See `Output`."""

    def deliver(self, unit: Path) -> Path:
        """See `Output`."""
        return unit

    def is_sound(self, unit: Path) -> bool:
        """See `Output`."""
        return verification.is_sound(unit)

    def share(self, run: Path, name: str) -> None:
        """See `Output`."""

    def note(self, run: Path, *, now: bool = False) -> None:
        """See `Output`."""

    def publish(self, run: Path, make: Callable[[], list[Path]]) -> list[Path]:  # noqa: ARG002
        """See `Output`."""
        return make()

    def forget(self, run: Path) -> None:
        """See `Output`."""

    def told(self, path: Path) -> Path:
        """See `Output`."""
        return path


@contextmanager
def opened(out: str | Path) -> Iterator[Output]:
    """Have a place to write to.

    Args:
        out: A directory, or the address of one.

    Raises:
        RequestError: Nobody knows how to get there.
    """
    if is_unknown(out):
        hint = "a path without file://" if str(out).startswith("file:") else f"known are {', '.join(SCHEMES)}"
        raise RequestError(f"no such kind of place: {quote(out)}", hint=hint)
    if not is_url(str(out)):
        yield Disk(Path(out))
        return
    # Only here: few need it.
    with import_module("fmapviz.mirror").opened(str(out)) as output:
        yield output
