"""Write runs to an object store.

A run is written in a temporary local directory. Units are finished there, and uploaded by `RunSync`. After that, the
directory keeps their records and what run-level files are made from: all that a run reads of its finished units.
"""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fmapviz.core import files
from fmapviz.core.file_names import FAILURES_FILE, RUN_FILE, RUN_FILES_RECORD, UNIT_FILE, own_run_files
from fmapviz.core.files import leftovers, reading_from, staging_folder, writing_to
from fmapviz.core.object_store import open_store
from fmapviz.core.urls import UrlPath, check_address, is_web
from fmapviz.errors import RefusedError, RequestError, quote
from fmapviz.store import run as runs
from fmapviz.store import run_files
from fmapviz.store.aggregates.base import names_of, unit_files
from fmapviz.store.remote.local_copy import naming_addresses
from fmapviz.store.remote.run_sync import TRIES, RunSync, list_objects
from fmapviz.store.unit import has_intact_record, read_unit
from fmapviz.store.unit_key import possible_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from fmapviz.config import RunInfo
    from fmapviz.core.object_store import Store
    from fmapviz.store.unit_key import UnitKey

UPLOAD_SECONDS = 10.0  # between two uploads of the failures
_ENDING = "-remote"
_THREADS = 16


@contextmanager
def open_remote(url: str) -> Iterator[RemoteDestination]:
    """Open a directory of runs in an object store.

    Raises:
        RequestError: The address is invalid, or read-only.
    """
    check_address(url)
    if is_web(url):
        raise RequestError(f"cannot write to a web address: {quote(url)}", hint="s3://..., or a local directory")
    store = open_store(url)
    here = Path(tempfile.gettempdir())
    pool = ThreadPoolExecutor(_THREADS)
    with ExitStack() as stack:
        _sweep(here)
        stack.callback(_sweep, here)  # of workers that were killed
        with writing_to(here):
            directory = stack.enter_context(staging_folder(here, _ENDING))
            files.protect(directory)
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        stack.enter_context(naming_addresses(directory, store))
        yield RemoteDestination(store, directory, pool)


class RemoteDestination:
    """A directory of runs in an object store, with the methods of `fmapviz.store.remote.destination.LocalDestination`.

    `upload`, `is_intact` and `fetch_records` are safe in several threads.
    """

    is_local = False

    def __init__(self, store: Store, directory: Path, pool: ThreadPoolExecutor) -> None:
        self.directory = directory
        self.address: Path | str = store.url
        self._store = store
        self._sync = RunSync(store, directory, pool)
        self._upload_due = 0.0

    def check(self) -> None:
        """See `LocalDestination`."""
        with self._writing():
            next(self._store.list(), None)

    def find_run(self, info: RunInfo, *, name: str | None) -> Path:
        """See `LocalDestination`."""
        with self._writing():
            self._download_run_files(info, name)
        run = runs.find_run(self.directory, info, name=name)
        if files.exists(run):
            self._refresh(run)
        return run

    def open_run(self, info: RunInfo, *, name: str | None, sync: bool, more: Iterable[str] = ()) -> Path:
        """See `LocalDestination`."""
        self._sync.copied = unit_files([*names_of(info.config), *more])
        for _ in range(TRIES):
            with self._writing():
                chosen = self._download_run_files(info, name)
                run = runs.open_run(self.directory, info, name=chosen, sync=sync)
                self.share_file(run, RUN_FILE)
            if (runs.read_run(run) or {}).get("fingerprint") == info.fingerprint:
                self._refresh(run)
                return run
        raise RefusedError(f"no free name in {quote(self.address)}")

    def join_run(self, name: str) -> Path:
        """See `LocalDestination`."""
        run = self.directory / name
        with self._writing():
            self._sync.download(*(f"{name}/{file}" for file in own_run_files()))
        return run

    def fetch_records(self, run: Path, keys: Iterable[UnitKey]) -> None:
        """See `LocalDestination`."""
        names = [self._sync.name(place / UNIT_FILE) for key in keys for place in possible_paths(run, key)]
        with self._writing():
            self._sync.download(*names)

    def upload(self, unit: Path) -> Path:
        """See `LocalDestination`."""
        with self._writing(self._sync.name(unit)):
            return self._sync.commit(unit)

    def is_intact(self, unit: Path) -> bool:
        """See `LocalDestination`."""
        record = read_unit(unit)
        if record is None or not has_intact_record(unit):
            return False
        with reading_from(self.address_of(unit)):
            return self._sync.is_intact(unit, record)

    def share_file(self, run: Path, name: str) -> None:
        """See `LocalDestination`."""
        with self._writing(run.name, name):
            self._sync.upload(self._sync.name(run / name))

    def upload_failures(self, run: Path, *, now: bool = False) -> None:
        """See `LocalDestination`."""
        begun = time.monotonic()
        if not files.exists(run / FAILURES_FILE) or not (now or begun > self._upload_due):
            return
        with self._writing(run.name, FAILURES_FILE):
            self._sync.append_failures(self._sync.name(run / FAILURES_FILE))
        self._upload_due = time.monotonic() + max(UPLOAD_SECONDS, 20 * (time.monotonic() - begun))

    def refresh(self, run: Path) -> None:
        """See `LocalDestination`."""
        self._refresh(run)
        with reading_from(self.address_of(run)):
            self._sync.download(self._sync.name(run / RUN_FILE))

    def publish(self, run: Path, make: Callable[[], list[Path]]) -> list[Path]:
        """See `LocalDestination`."""
        left_out: list[Path] = []
        for _ in range(TRIES):
            self._refresh(run)
            left_out = make()
            with self._writing():
                made = run_files.read(run) or {"files": []}
                names = [*(entry["name"] for entry in made["files"]), RUN_FILES_RECORD]
                uploaded = [self._sync.upload(self._sync.name(run / name)) for name in names]
            if all(uploaded) and not self._refresh(run):
                break
        return left_out

    def discard_run(self, run: Path) -> None:
        """See `LocalDestination`."""
        if not files.exists(run):
            self._sync.discard(run.name)

    def address_of(self, path: Path) -> Path:
        """See `LocalDestination`."""
        if not path.is_relative_to(self.directory):
            return path
        return UrlPath(self.address, *path.relative_to(self.directory).parts)

    def _refresh(self, run: Path) -> bool:
        """Download what other processes have changed; return True if there was anything."""
        self.upload_failures(run, now=True)
        with reading_from(self.address_of(run)):
            return self._sync.refresh(run.name)

    def _download_run_files(self, info: RunInfo, name: str | None) -> str:
        """Download the files of runs that may have these settings; return the name of that run, or a free one."""
        for candidate in runs.names_of(info, name):
            run = self.directory / candidate
            if not next(self._store.list(candidate), None):
                return candidate
            files.make_folders(run)
            self._sync.download(*(f"{candidate}/{file}" for file in own_run_files()))
            if not any(run.iterdir()):
                files.write(run / "others")  # marks the directory as not empty
            if (runs.read_run(run) or self._any_record(candidate)).get("fingerprint") == info.fingerprint:
                break
        return candidate

    def _any_record(self, run: str) -> dict[str, object]:
        """Return the fingerprint of a run whose `run.json` is lost, as one of its units recorded it."""
        for entry in list_objects(self._store, run):
            name = f"{run}/{entry.name}"
            if name.endswith(f"/{UNIT_FILE}"):
                self._sync.download(name)
                if record := read_unit((self.directory / name).parent):
                    return {"fingerprint": record.get("run")}
        return {}

    def _writing(self, *names: str) -> AbstractContextManager[None]:
        return writing_to(self._store.address(*names))


def _sweep(here: Path) -> None:
    """Remove the directories of processes that no longer run."""
    for old in leftovers(here):
        if old.name.endswith(_ENDING):
            files.remove_tree(old)
