"""Runs elsewhere, `--out s3://...`: a stand-in on this machine, and what is brought there from it.

A unit is finished in the stand-in, and brought there as `fmapviz.sealing` says. From then on the stand-in holds its record,
and of its files only those that statistics are made of.
"""

from __future__ import annotations

import errno
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmapviz import files, products, records, runs, statistics
from fmapviz.errors import OutputError, RefusedError, RequestError, quote
from fmapviz.images import hint_of
from fmapviz.inputs import PRODUCTS, RUN_FILE
from fmapviz.remote import Store
from fmapviz.runs import FAILURES_FILE, SURVEY_FILE, writing_to
from fmapviz.sealing import TRIES, Sealer, is_marked, object_of
from fmapviz.staging import hidden, leftovers, stage
from fmapviz.units import UNIT_FILE, find_places, places_of, read_unit
from fmapviz.urls import UrlPath, scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fmapviz.remote import Entry
    from fmapviz.values import ImageFile, RunInfo

KEPT = {statistics.FILE, "stats.parquet"}  # what the statistics of a run are made of, of images and of shards
TOP = {RUN_FILE, FAILURES_FILE, SURVEY_FILE, products.FILE}.union(*PRODUCTS.values())  # of a run itself
NOTE_SECONDS = 10.0
_ENDING = "-mirror"
_THREADS = 16


def open_store(url: str) -> Store:
    """Find the way to an address.

    Raises:
        RequestError: Nobody knows how to get there.
    """
    try:
        return Store(url)
    except OSError as error:
        hint = hint_of(url) if error.errno == errno.ENOSYS else None
        raise RequestError(f"cannot open {quote(url)}: {error.strerror}", hint=hint) from error


@contextmanager
def opened(url: str) -> Iterator[Mirror]:
    """Have a stand-in for a directory of runs.

    Raises:
        RequestError: Nobody knows how to get there.
    """
    if scheme_of(url) in {"http", "https"}:
        raise RequestError(f"nothing can be written to {quote(url)}", hint="s3:// and others can, or a directory")
    store = open_store(url)
    here = Path(tempfile.gettempdir())
    pool = ThreadPoolExecutor(_THREADS)
    with ExitStack() as stack:
        _sweep(here)
        stack.callback(_sweep, here)  # workers that have been ended leave theirs
        with writing_to(here):
            place = stack.enter_context(stage(here, _ENDING))
            files.protect(place)
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        yield Mirror(store, place, pool)


class Mirror:
    """Stands in for a directory of runs elsewhere; see `fmapviz.outputs.Output`.

    `deliver`, `is_sound` and `look_up` may be called in several threads at once.
    """

    limited = False

    def __init__(self, store: Store, place: Path, pool: ThreadPoolExecutor) -> None:
        self.place = place
        self.address = store.url
        self._store = store
        self._pool = pool
        self._sealer = Sealer(store, pool)
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}  # records of units that are there, by directory, with their states
        self._bare: set[str] = set()  # directories there with files, but without a record
        self._top: dict[str, str] = {}  # files of runs that are there, with their states
        self._at_work: set[str] = set()
        self._begun: set[str] = set()
        self._noted = 0
        self._note_due = 0.0
        self._keeps = False
        self._news = 0  # how often something came here that was not known

    def check(self) -> None:
        """See `Output`."""
        with self._writing():
            next(self._store.list(), None)

    def find_run(self, info: RunInfo, *, name: str | None) -> Path | None:
        """See `Output`."""
        with self._writing():
            self._pull_names(info, name)
        with self._renaming():
            run = runs.find_run(self.place, info, name=name)
        if run:
            self._refresh(run)
        return run

    def open_run(self, info: RunInfo, *, name: str | None, sync: bool) -> Path:
        """See `Output`."""
        self._keeps = "stats" in info.formats
        for _ in range(TRIES):
            with self._writing():
                chosen = self._pull_names(info, name)
                with self._renaming():
                    run = runs.open_run(self.place, info, name=chosen, sync=sync)
                self.share(run, RUN_FILE)
            if (runs.read_run(run) or {}).get("fingerprint") == info.fingerprint:
                self._refresh(run)
                return run
        raise RefusedError(f"no free name in {quote(self.address)}")

    def join_run(self, name: str) -> Path:
        """See `Output`."""
        with self._writing():
            self._pull_top(name)
        return self.place / name

    def look_up(self, run: Path, images: Iterable[ImageFile]) -> None:
        """See `Output`."""
        places = [self._name(place) for image in images for place in places_of(run, image)]
        with self._writing():
            list(self._pool.map(self._pull_unit, places))

    def deliver(self, unit: Path) -> Path:
        """See `Output`."""
        name = self._name(unit)
        with self._lock:
            self._at_work.add(name)
        try:
            with self._writing(name):
                return unit if self._bring(name, unit) else self._deliver_elsewhere(unit)
        finally:
            with self._lock:
                self._at_work.discard(name)

    def is_sound(self, unit: Path) -> bool:
        """See `Output`."""
        record = read_unit(unit)
        if record is None or not records.is_sealed(files.read(unit / UNIT_FILE)):
            return False
        name = self._name(unit)
        with self._reading(name):
            return self._sealer.is_whole(name, record)

    def share(self, run: Path, name: str) -> None:
        """See `Output`."""
        with self._writing(self._name(run / name)):
            if not self._push(run / name):
                self._pull(run / name)

    def note(self, run: Path, *, now: bool = False) -> None:
        """See `Output`."""
        begun = time.monotonic()
        path = run / FAILURES_FILE
        if not files.exists(path) or not (now or begun > self._note_due):
            return
        name = self._name(path)
        with self._writing(name):
            lines = files.read(path, start=self._noted) if self._noted < path.stat().st_size else b""
            if lines:
                self._append(name, lines)
                self._noted += len(lines)
        self._note_due = time.monotonic() + max(NOTE_SECONDS, 20 * (time.monotonic() - begun))

    def publish(self, run: Path, make: Callable[[], list[Path]]) -> list[Path]:
        """See `Output`."""
        left_out: list[Path] = []
        for _ in range(TRIES):
            self._refresh(run)
            with self._renaming():
                left_out = make()
            with self._writing():
                made = products.read(run) or {"files": []}
                pushed = [self._push(run / name) for name in (*(entry["name"] for entry in made["files"]), products.FILE)]
            if all(pushed) and not self._refresh(run):  # otherwise there is more to make them of
                break
        return left_out

    def forget(self, run: Path) -> None:
        """See `Output`."""
        if run.name in self._begun and not files.exists(run):
            with suppress(OSError):
                self._store.remove(f"{run.name}/{RUN_FILE}")

    def told(self, path: Path) -> Path:
        """See `Output`."""
        return UrlPath(self.address, *path.relative_to(self.place).parts) if path.is_relative_to(self.place) else path

    def _deliver_elsewhere(self, unit: Path) -> Path:
        """Give a unit another name, where another input has taken its own just now."""
        record = read_unit(unit)
        assert record
        run = self.place / unit.relative_to(self.place).parts[0]
        for place in find_places(run, record):
            if files.exists(place):
                continue
            files.make_folders(place.parent)
            files.rename(unit, place)
            self._pull_unit(self._name(unit))
            return self.deliver(place)
        raise RefusedError(f"no free name for {quote(record['source']['path'])} in {quote(self._store.address(run.name))}")

    def _bring(self, name: str, unit: Path) -> bool:
        """Bring a unit there, and tell whether its name was free, or the input's own."""
        with self._lock:
            is_known, is_bare = name in self._known, name in self._bare
        sealed = self._sealer.seal(name, unit, is_known=is_known, is_bare=is_bare)
        if sealed is None:
            return False
        if sealed.is_anothers:
            self._take_over(unit, sealed.record)
            return True
        self._slim(unit, sealed.record)
        with self._lock:
            self._known[name] = ""
            self._bare.discard(name)
        return True

    def _slim(self, unit: Path, record: bytes) -> None:
        """Keep of a unit that is there now what is needed here."""
        self._write(unit / UNIT_FILE, record)
        for entry in (read_unit(unit) or {"files": []})["files"]:
            if not (self._keeps and entry["name"] in KEPT):
                files.remove(unit / entry["name"])

    def _take_over(self, unit: Path, record: bytes) -> None:
        for path in unit.iterdir():
            files.remove(path)
        self._keep(self._name(unit), record)

    def _refresh(self, run: Path) -> bool:
        """Bring the records here that have come or changed since, and tell whether any have."""
        self.note(run, now=True)
        news = self._news
        with self._reading(run.name):
            with self._lock:
                before = {name for name in self._known if name.startswith(f"{run.name}/")}
            there: dict[str, str] = {}
            folders: set[str] = set()
            marked: dict[str, list[Entry]] = {}
            last = ""
            together: list[Entry] = []
            for entry in self._store.list_all(run.name):
                folder, _, file = entry.name.rpartition("/")
                place = f"{run.name}/{folder}"
                if folder != last:
                    last, together = folder, []
                together.append(replace(entry, name=file))
                if folder and is_marked(file):
                    marked[place] = together
                if not folder:
                    if file in TOP and self._top.get(f"{run.name}/{file}") != entry.state:
                        self._pull(run / file)
                elif file == UNIT_FILE:
                    there[place] = entry.state
                else:
                    folders.add(place)
            with self._lock:
                self._bare = folders - there.keys()
                busy = set(self._at_work)
            changed = [name for name, state in there.items() if name not in busy and self._known.get(name) != state]
            for name, came in zip(changed, self._pool.map(self._pull_unit, changed), strict=True):
                with self._lock:
                    self._known |= {name: there[name]} if came else {}
            for name in marked.keys() & there.keys() - busy:
                if standing := self._sealer.standing(name):
                    self._write(self.place / name / UNIT_FILE, self._sealer.settle(name, standing))
                self._sealer.remove_old(name, self.place / name, marked[name])
            gone = before - there.keys() - busy
            for name in gone:
                with self._lock:
                    self._known.pop(name, None)
                files.remove_tree(self.place / name)
        return bool(gone) or self._news > news

    def _pull_unit(self, name: str) -> bool:
        """Bring a unit's record here, if there is one that can be."""
        unit = self.place / name
        if any(part.startswith(".") or not part for part in name.split("/")) or not records.is_path(name):
            return False
        try:
            data = self._store.read(f"{name}/{UNIT_FILE}")
        except FileNotFoundError:
            return False
        if (unit / UNIT_FILE).is_file() and files.read(unit / UNIT_FILE) == data:
            return True
        self._keep(name, data)
        return True

    def _keep(self, name: str, data: bytes) -> None:
        unit = self.place / name
        with suppress(FileExistsError, NotADirectoryError):  # of another unit
            files.make_folders(unit)
            self._write(unit / UNIT_FILE, data)
            with self._lock:
                self._known.setdefault(name, "")
                self._news += 1
        for entry in (read_unit(unit) or {"files": []})["files"] if self._keeps else ():
            if entry["name"] in KEPT:
                with suppress(FileNotFoundError):
                    self._write(unit / entry["name"], self._store.read(f"{name}/{object_of(entry)}"))

    def _pull_names(self, info: RunInfo, name: str | None) -> str:
        """Bring what is there of the runs that may be the one with these settings, and give its name, or a free one."""
        for candidate in runs.names_of(info, name):
            if not self._pull_top(candidate):
                return candidate
            if (runs.read_run(self.place / candidate) or self._remnant(candidate)).get("fingerprint") == info.fingerprint:
                return candidate
        assert name
        return name

    def _remnant(self, run: str) -> dict[str, Any]:
        """Say of a run whose own record is lost what a unit's says."""
        for entry in self._store.list_all(run):
            folder, _, name = entry.name.rpartition("/")
            if folder and name == UNIT_FILE and self._pull_unit(f"{run}/{folder}"):
                return {"fingerprint": (read_unit(self.place / run / folder) or {}).get("run")}
        return {}

    def _pull_top(self, run: str) -> bool:
        """Bring a run's own files here, and tell whether there is anything."""
        empty = True
        for entry in self._store.list(run):
            empty = False
            files.make_folders(self.place / run)
            if not entry.is_folder and entry.name in TOP:
                self._pull(self.place / run / entry.name)
        if not empty and not files.exists(self.place / run / RUN_FILE) and not any((self.place / run).iterdir()):
            files.write(self.place / run / "others")  # so that it is taken for what it is: not ours
        return not empty

    def _pull(self, path: Path) -> None:
        """Bring one of a run's own files here."""
        name = self._name(path)
        try:
            state = self._store.look(name).state
            data = self._store.read(name)
        except FileNotFoundError:
            self._top.pop(name, None)
            if files.exists(path):
                files.remove(path)
            return
        if path.name == FAILURES_FILE:
            self._news += not files.exists(path) or files.read(path) != data
            self._noted = len(data)
        self._write(path, data)
        self._top[name] = state

    def _push(self, path: Path) -> bool:
        """Bring one of a run's own files there, and tell whether it was the one that is known to be there."""
        name = self._name(path)
        if not files.exists(path):
            return True
        data = files.read(path)
        if name in self._top:
            with suppress(FileNotFoundError):
                if self._store.read(name) == data:
                    return True
            done = self._store.replace(name, data, state=self._top[name])
        else:
            done = self._store.create(name, data)
            if done and path.name == RUN_FILE:
                self._begun.add(path.parent.name)
            done = done or self._store.read(name) == data
        if done:
            self._top[name] = self._store.look(name).state
        else:
            self._pull(path)
        return done

    def _append(self, name: str, lines: bytes) -> None:
        """Add lines to a file that other processes may add to at the same time.

        Raises:
            OSError: It could not be written.
        """
        for _ in range(4 * TRIES):
            try:
                state = self._store.look(name).state
                there = self._store.read(name)
            except FileNotFoundError:
                if self._store.create(name, lines):
                    return
                continue
            if there.endswith(lines) or self._store.replace(name, there + lines, state=state):
                return
        raise OSError(errno.EBUSY, "other processes write to it all the time")

    def _write(self, path: Path, data: bytes) -> None:
        """Write a file of the stand-in, in the place of one that may be there."""
        unfinished = hidden(path.parent)
        files.write(unfinished, data)
        files.replace(unfinished, path)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.place).as_posix()

    @contextmanager
    def _renaming(self) -> Iterator[None]:
        """Say of what is refused how others call it."""
        try:
            yield
        except RefusedError as error:
            raise RefusedError(str(error).replace(str(self.place), self.address), hint=error.hint) from error

    def _writing(self, *names: str) -> Any:
        # Any: a context manager.
        return writing_to(self._store.address(*names))

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            address = self._store.address(name)
            raise OutputError(f"cannot read {quote(address)}: {error.strerror or error}") from error


def _sweep(here: Path) -> None:
    """Remove what stood in for runs in processes that are gone."""
    for old in leftovers(here):
        if old.name.endswith(_ENDING):
            files.remove_tree(old)
