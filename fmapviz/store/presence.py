"""Check at the end of a run that its finished units still exist: a run may be removed while it is drawn."""

from __future__ import annotations

import time
from array import array
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.core import files
from fmapviz.core.file_names import RUN_FILE
from fmapviz.errors import OutputError, quote
from fmapviz.store.run_files import unit_names
from fmapviz.store.unit_table import digest

if TYPE_CHECKING:
    from pathlib import Path

_TRIES = 4  # while other processes replace units
_PAUSE_SECONDS = 0.1
_HINT = "something else removed it during the run; the same call draws what is missing"


class Presence:
    """The units that a run reports as finished, in eight bytes for each.

    Args:
        run: The directory of the run.
        address: The same for messages, and as the units are reported.
    """

    def __init__(self, run: Path, address: Path) -> None:
        self._run = run
        self._address = address
        self._identity = _identify(run)
        self._units = array("Q")

    def note(self, unit: Path) -> None:
        """Note a unit that is finished."""
        self._units.append(digest(str(unit).removeprefix(f"{self._address}/")))

    def check(self) -> None:
        """Check that the run and all these units are there; one listing of the directories.

        Raises:
            OutputError: They are not.
        """
        found = _identify(self._run)
        if found is None:
            raise OutputError(f"the directory of the run is gone: {quote(self._address)}", hint=_HINT)
        if self._identity not in {None, found}:
            raise OutputError(f"another directory is in the place of the run: {quote(self._address)}", hint=_HINT)
        if not files.exists(self._run / RUN_FILE):
            raise OutputError(f"the record of the run is gone: {quote(self._address / RUN_FILE)}", hint=_HINT)
        units = np.unique(np.frombuffer(self._units, np.uint64)) if self._units else np.zeros(0, np.uint64)
        missing = self._count_missing(units)
        if missing:
            kind = "directory" if len(units) == 1 else "directories"
            message = f"{missing} of {len(units)} finished {kind} {'is' if missing == 1 else 'are'} gone from"
            raise OutputError(f"{message} {quote(self._address)}", hint=_HINT)

    def _count_missing(self, units: np.ndarray) -> int:
        missing = 0
        for attempt in range(_TRIES if len(units) else 0):
            time.sleep(_PAUSE_SECONDS if attempt else 0)
            with suppress(OSError):
                present = np.fromiter(map(digest, unit_names(self._run)), np.uint64)
                missing = len(units) - int(np.isin(units, present, kind="sort").sum())
            if not missing:
                break
        return missing


def _identify(directory: Path) -> tuple[int, int] | None:
    try:
        status = directory.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
