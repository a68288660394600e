"""Check that a directory really holds, whole, everything that it claims to hold, and nothing else."""

from __future__ import annotations

import os
import stat
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal

from fmapviz import files, products, records
from fmapviz.errors import RequestError, quote
from fmapviz.inputs import PRODUCTS, RESERVED, RUN_FILE
from fmapviz.runs import FAILURES_FILE, LONGEST_LOG, SURVEY_FILE, is_surveyed, is_whole_failure, read_run
from fmapviz.staging import HIDDEN
from fmapviz.units import UNIT_FILE, find_done, find_places, has_wreck, is_wreck, read_unit
from fmapviz.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from fmapviz.values import ImageFile

    Remedy = Literal["repair", "again", "anew", "remove", "none"]

REMEDIES: Mapping[Remedy, str] = {
    "repair": "images: the command that made them, with --repair, draws those again that are not whole",
    "again": "what is made of a whole run: the same command makes it again",
    "anew": f"{SURVEY_FILE}: the same command with --force and all images of the run draws everything anew",
    "remove": "what does not belong there: remove it, or move it away",
}

_AHEAD = 64  # directories that are looked through while one waits for its turn


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as `unit.json` or `run.json` says.

    Attributes:
        path: The file or directory.
        message: What is wrong with it.
        remedy: What helps: the command that made the run, with `--repair`; the same command `again`; `anew`, with `--force`
            and all images; to `remove` what does not belong there; or `none` of these.
    """

    path: Path
    message: str
    remedy: Remedy


@dataclass(frozen=True, slots=True)
class Verified:
    """One image's directory, looked through.

    Attributes:
        directory: Which.
        files: How many files it claims to hold.
        problems: Empty if they are all there and whole, and no others.
        hidden: How many directories there are, of a run, that commands write to which still run, or were killed.
    """

    directory: Path
    files: int
    problems: tuple[Problem, ...]
    hidden: int = 0


@dataclass(frozen=True, slots=True)
class _Run:
    """The run that a directory is in."""

    directory: Path
    fingerprint: str | None


def verify(directory: Path | str, *, hashed: bool = True) -> Iterator[Verified]:
    """Look through a directory of runs, a run, or the directory of one image.

    Args:
        directory: Which; or its address elsewhere, `s3://...`.
        hashed: Whether to read every file; otherwise only sizes are compared, and records with their own checksums.

    Yields:
        One for every directory that claims to be an image's, one for every run, and in the end one more for each whole run
        with a report or statistics that were made of other images than it has.

    Raises:
        RequestError: Nothing in it was made by fmapviz.
    """
    if is_url(str(directory)):
        # Only here: few need it, and it needs this module.
        yield from import_module("fmapviz.remote_runs").verify(str(directory), hashed=hashed)
        return
    empty, directory = True, Path(directory)
    whole: list[Path] = []
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for place in _in_order(pool, _steps(directory, hashed=hashed)):
            empty = False
            if place.problems:
                whole = [run for run in whole if not place.directory.is_relative_to(run)]
            elif files.exists(place.directory / products.FILE):
                whole.append(place.directory)
            yield place
    if empty:
        raise RequestError(f"no run of fmapviz: {quote(directory)}")
    for run in whole:  # of others it shows what is wrong with them
        if not products.is_of_all(run):
            yield Verified(run, 0, (Problem(run / products.FILE, "not of all that is there now", "again"),))


def is_whole(run: Path, file: ImageFile, fingerprint: str, *, is_sound: Callable[[Path], bool]) -> bool:
    """Tell whether an input has a finished directory, of the run with this fingerprint, with all files as they were."""
    unit = find_done(run, file, fingerprint)
    return unit is not None and not has_wreck(run, file) and is_sound(unit)


def is_sound(unit: Path) -> bool:
    """Tell whether all files that a directory claims to hold are there, as they were written."""
    return all(problem.remedy != "repair" for problem in _look_through(unit, None, hashed=True).problems)


def _in_order(pool: ThreadPoolExecutor, steps: Iterable[Callable[[], Verified]]) -> Iterator[Verified]:
    """Take steps in several threads, reading not too far ahead: there may be millions."""
    pending: deque[Future[Verified]] = deque()
    for step in steps:
        pending.append(pool.submit(step))
        if len(pending) > _AHEAD:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _steps(top: Path, *, hashed: bool) -> Iterator[Callable[[], Verified]]:
    refusals: list[OSError] = []
    runs: list[_Run] = []
    without: set[Path] = set()
    for here, folders, names in os.walk(top, onerror=refusals.append):
        place = Path(here)
        seen, folders[:] = len(folders), sorted(name for name in folders if not name.startswith(HIDDEN))
        hidden = seen - len(folders)
        while runs and not place.is_relative_to(runs[-1].directory):
            runs.pop()
        run = runs[-1] if runs else None
        if RUN_FILE in names:
            known = records.load(place / RUN_FILE, sealed=True)
            runs.append(_Run(place, str(known.get("fingerprint")) if known else None))
            folders[:], strange = [name for name in folders if name not in RESERVED], RESERVED.intersection(folders)
            present = {*names, *strange, *_links(place, folders)}
            yield partial(_look_through_run, place, present, hidden=hidden, hashed=hashed)
        elif UNIT_FILE in names:
            folders.clear()
            if run is None and (lost := _run_of(place, top)) and lost not in without:
                without.add(lost)
                record = lost / RUN_FILE
                yield partial(
                    Verified, lost, 1, tuple(Problem(record, fault, _remedy(record)) for fault in _record_faults(record))
                )
            yield partial(_look_through, place, run, hashed=hashed)
        elif run is not None and is_wreck(place):
            folders.clear()
            yield partial(Verified, place, 0, (Problem(place / UNIT_FILE, "missing", "repair"),))
        elif run is not None and (strangers := {*names, *_links(place, folders)}):
            yield partial(Verified, place, 0, tuple(_strangers(place, strangers)))
    for refusal in refusals:
        where = Path(refusal.filename)
        if where != top:
            yield partial(Verified, where, 0, (Problem(where, str(refusal.strerror), "none"),))


def _run_of(unit: Path, top: Path) -> Path | None:
    """Give the directory of a unit's run, if the unit lies where its record says, and below a certain directory."""
    parts = PurePath(str((read_unit(unit) or {}).get("unit"))).parts
    run = Path(*unit.parts[: -len(parts)]) if unit.parts[-len(parts) :] == parts else None
    return run if run is not None and run.is_relative_to(top) else None


def _links(place: Path, folders: list[str]) -> list[str]:
    """Give the links among folders, which are not followed."""
    return [name for name in folders if (place / name).is_symlink()]


def _look_through_run(place: Path, present: AbstractSet[str], *, hidden: int, hashed: bool) -> Verified:
    run, made = read_run(place), products.read(place)
    claimed = {str(entry["name"]): entry for entry in (made or {"files": []})["files"]}
    found = [Problem(place / RUN_FILE, fault, _remedy(place / RUN_FILE)) for fault in _record_faults(place / RUN_FILE)]
    if run is None:
        return Verified(place, 1 + len(claimed), tuple(found), hidden)
    made_here = {name for form in _settings(run)["formats"] for name in present & PRODUCTS.get(form, set())}
    if products.FILE in present or made_here or (_has_products(run) and products.has_units(place)):
        record = place / products.FILE
        found += (Problem(record, fault, _remedy(record)) for fault in _record_faults(record))
    if SURVEY_FILE in present or _is_surveyed(place, run):
        remedy: Remedy = "anew" if (known := _remedy(place / SURVEY_FILE)) == "again" else known
        found += (Problem(place / SURVEY_FILE, fault, remedy) for fault in _record_faults(place / SURVEY_FILE))
    if FAILURES_FILE in present:
        found += _failure_problems(place / FAILURES_FILE)
    found += (Problem(place / name, fault, "again") for name, fault in _faults(place, claimed, hashed=hashed))
    ours = {RUN_FILE, products.FILE, SURVEY_FILE, FAILURES_FILE, *claimed, *(() if made else made_here)}
    found += _strangers(place, present - ours)
    return Verified(place, 1 + len(claimed), tuple(found), hidden)


def _remedy(record: Path) -> Remedy:
    """Say what helps if a run's record is damaged: the same command does, unless it cannot tell that the file is ours."""
    try:
        return "again" if records.is_remnant(records.read(record)) else "remove"
    except FileNotFoundError:
        return "again"
    except PermissionError:
        return "none"
    except OSError:  # something else than a file
        return "remove"


def _has_products(run: Mapping[str, Any]) -> bool:
    return any(form in PRODUCTS for form in _settings(run)["formats"])


def _is_surveyed(place: Path, run: Mapping[str, Any]) -> bool:
    """Tell whether a run's pictures were drawn by what all of its images have in common."""
    settings = _settings(run)
    draws = any(form in {"png", "html", "tar", "tensorboard"} for form in settings["formats"])
    if not draws or not is_surveyed(settings):
        return False
    return any((record := read_unit(unit)) and record.get("kind") != "model" for unit in products.find_units(place))


def _settings(run: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give what a run says was asked for, as far as that is told as we tell it."""
    settings: Any = run.get("settings")  # Any: whatever JSON may hold
    try:
        style = {"norm": str(settings["style"]["norm"]), "pca": str(settings["style"]["pca"])}
        return {"formats": list(map(str, settings["formats"])), "views": list(map(str, settings["views"])), "style": style}
    except (KeyError, TypeError, IndexError):
        return {"formats": [], "views": [], "style": {"norm": "", "pca": ""}}


def _failure_problems(path: Path) -> Iterator[Problem]:
    try:
        lines = files.read(path, most=LONGEST_LOG).splitlines()
    except OSError as error:
        yield Problem(path, str(error.strerror), "remove")
        return
    for number, line in enumerate(lines, 1):
        if not is_whole_failure(line):
            yield Problem(path, f"line {number} is damaged: to be taken out", "remove")


def _look_through(place: Path, run: _Run | None, *, hashed: bool) -> Verified:
    record, faults = read_unit(place), [*_record_faults(place / UNIT_FILE)]
    if record is None or faults:  # what a damaged record says of others is worth nothing
        return Verified(place, 0, (Problem(place / UNIT_FILE, (faults or ["damaged"])[0], "repair"),))
    claimed = {str(entry["name"]): entry for entry in record["files"]}
    found = [Problem(place / name, fault, "repair") for name, fault in _faults(place, claimed, hashed=hashed)]
    if run is not None and run.fingerprint is not None and not found:
        if record.get("run") != run.fingerprint:
            found.append(Problem(place, "of a run with other settings", "remove"))
        elif place not in find_places(run.directory, record):
            found.append(Problem(place, f"the directory of {quote(record.get('unit'))}, in another place", "remove"))
    try:
        present = {path.name for path in place.iterdir()}
    except OSError as error:
        return Verified(place, len(claimed), (*found, Problem(place, str(error.strerror), "none")))
    return Verified(place, len(claimed), (*found, *_strangers(place, present - claimed.keys() - {UNIT_FILE})))


def _faults(place: Path, claimed: Mapping[str, dict[str, Any]], *, hashed: bool) -> Iterator[tuple[str, str]]:
    for name, entry in claimed.items():
        if fault := _fault(place / name, entry, hashed=hashed):
            yield name, fault


def _record_faults(record: Path) -> Iterator[str]:
    """Compare a record with its own checksum."""
    try:
        if not records.is_sealed(records.read(record)):
            yield "damaged"
    except FileNotFoundError:
        yield "missing"
    except OSError as error:
        yield str(error.strerror)


def _fault(path: Path, entry: Mapping[str, Any], *, hashed: bool) -> str | None:
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return "not a regular file"
        if status.st_size != entry["size"]:
            return f"{status.st_size} bytes instead of {entry['size']}"
        return "other content than was written" if hashed and files.measure(path)[1] != entry["sha256"] else None
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return str(error.strerror)


def _strangers(place: Path, names: AbstractSet[str]) -> Iterator[Problem]:
    return (Problem(place / name, "not made by fmapviz", "remove") for name in sorted(names))
