"""Where runs are written: a local directory, or an object store.

A run is always written in a local directory. A destination adds what makes the results visible to others.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fmapviz.core.urls import HINT, is_unknown, is_url
from fmapviz.errors import RequestError, quote
from fmapviz.store import run as runs
from fmapviz.store import verify
from fmapviz.store.remote.remote import RemoteDestination, open_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fmapviz.config import RunInfo
    from fmapviz.store.unit_key import UnitKey


class LocalDestination:
    """A local directory of runs: a unit is visible to others when it is renamed, so most methods have nothing left to do.

    These methods are all that a run requires of a destination.

    Attributes:
        directory: The local directory in which runs are written.
        address: The directory or address for messages.
        is_local: True if results stay in `directory`, so that they must fit on its disk.
    """

    is_local = True

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address: Path | str = directory

    def check(self) -> None:
        """Check, without writing anything, that runs can be written.

        Raises:
            OutputError: They cannot.
        """
        runs.check_output(self.directory)

    def find_run(self, info: RunInfo, *, name: str | None) -> Path:
        """See `fmapviz.store.run.find_run`."""
        return runs.find_run(self.directory, info, name=name)

    def open_run(self, info: RunInfo, *, name: str | None, sync: bool, more: Iterable[str] = ()) -> Path:  # noqa: ARG002
        """See `fmapviz.store.run.open_run`; `more` are aggregates that the run feeds besides those of its settings."""
        return runs.open_run(self.directory, info, name=name, sync=sync)

    def join_run(self, name: str) -> Path:
        """Return the directory of a run that another process has opened."""
        return self.directory / name

    def fetch_records(self, run: Path, keys: Iterable[UnitKey]) -> None:
        """Make the records of units available in a process that did not open the run."""

    def upload(self, unit: Path) -> Path:
        """Publish a committed unit, and return its directory, which may have been renamed.

        Raises:
            OutputError: It cannot be written.
        """
        return unit

    def is_intact(self, unit: Path) -> bool:
        """Return True if all files of a unit exist with their recorded content."""
        return verify.is_sound(unit)

    def share_file(self, run: Path, name: str) -> None:
        """Publish a run-level file, unless another process has done so: then take over that."""

    def upload_failures(self, run: Path, *, now: bool = False) -> None:
        """Publish the list of failures, unless that was done a moment ago and need not be `now`."""

    def refresh(self, run: Path) -> None:
        """Take over the units that other processes have finished."""

    def publish(self, run: Path, make: Callable[[], list[Path]]) -> list[Path]:  # noqa: ARG002
        """Make the files that summarize all units, publish them, and return the units that had to be left out."""
        return make()

    def discard_run(self, run: Path) -> None:
        """Remove a run that this process began, if its directory was removed."""

    def address_of(self, path: Path) -> Path:
        """Return a path or address for messages."""
        return path


Destination = LocalDestination | RemoteDestination


@contextmanager
def open_destination(out: str | Path) -> Iterator[Destination]:
    """Open a directory of runs by path or address.

    Raises:
        RequestError: The address is invalid, or not supported.
    """
    if is_unknown(out):
        hint = "a path without file://" if str(out).startswith("file:") else HINT
        raise RequestError(f"unsupported address: {quote(out)}", hint=hint)
    if is_url(str(out)):
        with open_remote(str(out)) as remote:
            yield remote
    else:
        yield LocalDestination(Path(out))
