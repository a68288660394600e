"""Check that the files of runs are complete and unchanged, and that there are no others."""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from fmapviz.core import checksummed_json, files, registry
from fmapviz.core.file_names import (
    EVENTS,
    FAILURES_FILE,
    FILMSTRIP_FILE,
    HIDDEN,
    RUN_FILE,
    RUN_FILES_RECORD,
    SURVEY_FILE,
    UNIT_FILE,
    UNIT_TABLE,
    draws_pictures,
    own_run_files,
    run_files_of,
)
from fmapviz.errors import RefusedError, RequestError, printable, quote, suggest_file
from fmapviz.store import run_files
from fmapviz.store.digest import Digests, content_of
from fmapviz.store.failures import LONGEST_LOG
from fmapviz.store.failures import is_whole as is_whole_line
from fmapviz.store.remote.local_copy import local_copy
from fmapviz.store.run import IN_TRAINING, check_format, is_series, is_surveyed, read_run, shares_values
from fmapviz.store.staleness import stale_files
from fmapviz.store.unfinished import State, is_being_written, is_record, read_unfinished, state_of
from fmapviz.store.unit import holds_images, lacks_record, read_unit
from fmapviz.store.unit_key import key_of, possible_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet
    from concurrent.futures import Executor, Future

    from fmapviz.store.remote.local_copy import LocalCopy

    Checksum = Callable[[Path], str]

_REMEDIES: Mapping[str, str] = {
    "repair": "run the original command with --repair",
    "again": "run-level files: run the original command again, or resume the training",
    "finish": "a run that is not finished: run the original command again",
    "redraw": f"{SURVEY_FILE}: run the original command with --force, for all images of the run",
    "remove": "foreign files: remove them, or move them away",
}

_FOREIGN, _STALE = "not made by fmapviz", "out of date"
_MOMENT_SECONDS = 0.2  # in which a command replaces a unit
_AHEAD = 64  # directories that are checked while one waits for its turn


@dataclass(frozen=True, slots=True)
class Problem:
    """A difference from `unit.json` or `run.json`.

    Attributes:
        path: The file or directory.
        message: The difference.
        remedy: `repair`: the command that made the run, with `--repair`; `again`: the same command; `redraw`: the same with
            `--force` and all images; `remove`: remove a foreign file; `finish`: no damage, the same command finishes the run
            or is running; the name of another command, such as `top`, that draws the file; or `none`.
    """

    path: Path
    message: str
    remedy: str

    @property
    def kind(self) -> str:
        """Return `foreign` for what fmapviz did not make, `stale` for what is out of date, and `damaged` otherwise."""
        if self.message == _FOREIGN:
            return "foreign"
        return "stale" if self.message.startswith(_STALE) else "damaged"


@dataclass(frozen=True, slots=True)
class Verified:
    """A unit or a run that was checked.

    Attributes:
        directory: Its directory.
        files: Number of files in its record.
        problems: Empty if all of them are complete and there are no others.
        hidden: Number of staged directories in a run, of running or killed commands.
        state: The state of a run, see `fmapviz.store.listing.ListedRun`.
        content: SHA-256 of what counts for the digest of the run, see `fmapviz.store.digest`; empty with problems, or if no
            file was read.
    """

    directory: Path
    files: int
    problems: tuple[Problem, ...]
    hidden: int = 0
    state: State = "finished"
    content: str = ""

    @property
    def worst(self) -> str:
        """The worst of its problems: `damaged`, `stale` or `foreign`; empty if there is none but an unfinished run."""
        kinds = {problem.kind for problem in self.problems if problem.remedy != "finish"}
        return next((kind for kind in ("damaged", "stale", "foreign") if kind in kinds), "")


def verify(directory: Path | str, *, hashed: bool = True) -> Iterator[Verified]:
    """Check a directory of runs, a run, or a unit.

    Args:
        directory: The path, or the address of a remote one, `s3://...`.
        hashed: Whether to read every file; otherwise only sizes are compared, and records with their own checksums.

    Yields:
        One for each unit and each run; at the end one more for each run without problems whose run-level files are out of
        date.

    Raises:
        RequestError: It holds no files of fmapviz.
    """
    with local_copy(directory) as copy:
        yield from verify_copy(copy, hashed=hashed)


def verify_copy(copy: LocalCopy, *, hashed: bool = True, digests: Digests | None = None) -> Iterator[Verified]:
    """Check an open directory of runs, a run, or a unit; see `verify`.

    Args:
        copy: The directory.
        hashed: See `verify`.
        digests: Collects the contents of runs and units under their local paths, if every file is read.
    """
    digests = digests or Digests()
    for each in _verify(copy, hashed=hashed):
        digests.note(
            each.directory, each.content, is_run=_is_run(each), is_sound=not each.problems and each.state == "finished"
        )
        yield replace(
            each,
            directory=copy.address_of(each.directory),
            problems=tuple(replace(problem, path=copy.address_of(problem.path)) for problem in each.problems),
            hidden=each.hidden + copy.orphans.get(each.directory, 0),
        )
    for path in copy.uncopied:
        yield Verified(path, 0, (Problem(path, _FOREIGN, "remove"),))


def _is_run(checked: Verified) -> bool:
    return files.exists(checked.directory / RUN_FILE) and not files.exists(checked.directory / UNIT_FILE)


def _with_content(step: Callable[[], Verified], copy: LocalCopy) -> Verified:
    """Check a directory and read what counts for the digest of its run."""
    checked = step()
    if checked.problems:
        return checked
    try:
        return replace(checked, content=content_of(checked.directory, copy.open))
    except ValueError as error:
        is_unit = os.path.isfile(checked.directory / UNIT_FILE)
        record = checked.directory / (UNIT_FILE if is_unit else RUN_FILE)
        problem = Problem(record, f"damaged: {printable(str(error))}", "repair" if is_unit else "none")
        return replace(checked, problems=(problem,))


def _verify(copy: LocalCopy, *, hashed: bool) -> Iterator[Verified]:
    empty = True
    whole: list[Path] = []
    steps = _steps(copy.directory, copy.checksum if hashed else None)
    if hashed:
        steps = (partial(_with_content, step, copy) for step in steps)
    for checked in _in_order(copy.pool, steps):
        empty = False
        if checked.problems:
            whole = [run for run in whole if not checked.directory.is_relative_to(run)]
        elif files.exists(checked.directory / RUN_FILES_RECORD):
            whole.append(checked.directory)
        yield checked
    if empty:
        typed = copy.address_of(copy.directory)
        is_there = copy.store is not None or os.path.isdir(copy.directory)
        hint = f"the directory of a run holds {RUN_FILE}" if is_there else suggest_file(str(typed), lambda _name: False)
        raise RequestError(f"no run of fmapviz: {quote(copy.directory)}", hint=hint)
    for run in whole:  # other runs have problems that explain it
        if not run_files.is_up_to_date(run):
            state, _ = state_of(run, read_unfinished(run))
            remedy = "again" if state == "finished" else "finish"
            problem = Problem(run / RUN_FILES_RECORD, f"{_STALE}: units were added, changed or removed", remedy)
            yield Verified(run, 0, (problem,), state=state)
        elif stale := stale_files(run):
            why = f"{_STALE}: images were added, changed or removed"
            yield Verified(run, 0, tuple(Problem(run / name, why, command) for name, command in sorted(stale.items())))


def hints_of(remedies: AbstractSet[str]) -> list[str]:
    """Return what to do about problems with these remedies."""
    others = [name for name in registry.commands() if name in remedies]
    return [
        *(hint for remedy, hint in _REMEDIES.items() if remedy in remedies),
        *(f"pictures of all images: `fmapviz {name} RUN` draws them again" for name in others),
    ]


def is_sound(unit: Path) -> bool:
    """Return True if all files in the record of a unit are unchanged."""
    found = _check_unit(unit, set(), lambda path: files.measure(path)[1]).problems
    return all(problem.remedy != "repair" for problem in found)


def _in_order(pool: Executor, steps: Iterable[Callable[[], Verified]]) -> Iterator[Verified]:
    """Run steps in several threads, not too far ahead: there may be millions."""
    pending: deque[Future[Verified]] = deque()
    for step in steps:
        pending.append(pool.submit(step))
        if len(pending) > _AHEAD:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _steps(top: Path, checksum: Checksum | None) -> Iterator[Callable[[], Verified]]:
    refusals: list[OSError] = []
    fingerprints: dict[Path, str | None] = {}  # by run; None: unknown
    without: set[Path] = set()
    reserved = own_run_files() | {UNIT_FILE}
    for here, folders, names in os.walk(top, onerror=refusals.append):
        directory, present = Path(here), {*names, *folders}
        seen, folders[:] = len(folders), sorted(name for name in folders if not name.startswith(HIDDEN))
        hidden = seen - len(folders)
        run = next(filter(fingerprints.__contains__, directory.parents), None)
        if RUN_FILE in names:
            known = checksummed_json.load(directory / RUN_FILE, intact=True)
            try:
                check_format(known or {}, directory)
            except RefusedError as error:
                if directory == top:
                    raise
                why = str(error).removeprefix(f"{quote(directory)} ")  # other runs are checked all the same
                yield partial(Verified, directory, 0, (Problem(directory / RUN_FILE, why, "none"),))
                folders.clear()
                continue
            fingerprints[directory] = str(known.get("fingerprint")) if known else None
            folders[:], strange = [name for name in folders if name not in reserved], reserved.intersection(folders)
            present = {*names, *strange, *_links(directory, folders)}
            yield partial(_check_run_at_rest, directory, present, checksum, hidden=hidden)
        elif UNIT_FILE in names:
            folders.clear()
            if run is None and (lost := _run_of(directory, top)) and lost not in without:
                without.add(lost)
                yield partial(Verified, lost, 1, tuple(_record_problems(lost / RUN_FILE)))
            fingerprint = fingerprints[run] if run else None
            yield partial(_check_unit_at_rest, directory, present, checksum, run=run, fingerprint=fingerprint)
        elif run is not None and lacks_record(directory):
            folders.clear()
            yield partial(Verified, directory, 0, (Problem(directory / UNIT_FILE, "missing", "repair"),))
        elif run is not None and (foreign := {*names, *_links(directory, folders)}):
            yield partial(Verified, directory, 0, tuple(_foreign(directory, foreign)))
    for refusal in refusals:
        where = Path(refusal.filename)
        if where != top:
            yield partial(Verified, where, 0, (Problem(where, str(refusal.strerror), "none"),))


def _run_of(unit: Path, top: Path) -> Path | None:
    """Return the run of a unit whose path agrees with its record, if that is inside a directory."""
    record = read_unit(unit)
    parts = PurePath(key_of(record).name).parts if record else ()
    run = Path(*unit.parts[: -len(parts)]) if parts and unit.parts[-len(parts) :] == parts else None
    return run if run is not None and run.is_relative_to(top) else None


def _links(directory: Path, folders: list[str]) -> list[str]:
    """Return the links among folders, which are not followed."""
    return [name for name in folders if os.path.islink(directory / name)]


def _check_run_at_rest(directory: Path, present: AbstractSet[str], checksum: Checksum | None, *, hidden: int) -> Verified:
    """Check a run while no command replaces its run-level files; of one that is not finished, these may be missing."""
    with files.locked(directory):
        checked = _check_run(directory, present, checksum, hidden=hidden)
    state, _ = state_of(directory, read_unfinished(directory))
    if state == "finished":
        return checked
    problems = [replace(each, remedy="finish") if each.remedy == "again" else each for each in checked.problems]
    return replace(checked, problems=tuple(problems), state=state)


def _check_unit_at_rest(
    directory: Path, present: AbstractSet[str], checksum: Checksum | None, *, run: Path | None, fingerprint: str | None
) -> Verified:
    """Check a unit; once more, if a command may just have replaced it."""
    checked = _check_unit(directory, present, checksum, run=run, fingerprint=fingerprint)
    if not checked.problems or run is None or not is_being_written(run):
        return checked
    time.sleep(_MOMENT_SECONDS)
    try:
        names = {path.name for path in directory.iterdir()}
    except FileNotFoundError:
        return Verified(directory, 0, ())
    return _check_unit(directory, names, checksum, run=run, fingerprint=fingerprint)


def _check_run(directory: Path, present: AbstractSet[str], checksum: Checksum | None, *, hidden: int) -> Verified:
    run, made = read_run(directory), run_files.read(directory)
    entries = made["files"] if made else []
    claimed = {entry["name"] for entry in entries}
    found = [*_record_problems(directory / RUN_FILE)]
    if run is None:
        return Verified(directory, 1 + len(claimed), tuple(found), hidden)
    settings = _settings(run)
    to_make = frozenset().union(*map(run_files_of, (*settings["formats"], *settings["views"])))
    made_here = present & to_make
    if RUN_FILES_RECORD in present or made_here or (to_make and run_files.has_units(directory)):
        found += _record_problems(directory / RUN_FILES_RECORD)
    if SURVEY_FILE in present or _is_surveyed(directory, settings):
        found += (
            replace(problem, remedy="redraw" if problem.remedy == "again" else problem.remedy)
            for problem in _record_problems(directory / SURVEY_FILE)
        )
    if FAILURES_FILE in present:
        found += _failure_problems(directory / FAILURES_FILE)
    found += _file_problems(directory, entries, "again", checksum)
    found += _foreign(directory, present - own_names(directory, present))
    return Verified(directory, 1 + len(claimed), tuple(found), hidden)


def own_names(run: Path, present: AbstractSet[str]) -> set[str]:
    """Return the names of a run's own files among those that are present in its directory."""
    settings, made = _settings(read_run(run) or {}), run_files.read(run)
    if made:
        ours = {entry["name"] for entry in made["files"]} & own_run_files()
    else:
        ours = {*()}.union(*map(run_files_of, (*settings["formats"], *settings["views"])))
    ours |= {RUN_FILE, RUN_FILES_RECORD, SURVEY_FILE, FAILURES_FILE, UNIT_TABLE, *filter(is_record, present)}
    if settings["weights"] == IN_TRAINING or is_series(settings):
        ours |= {name for name in present if name == FILMSTRIP_FILE or name.startswith(EVENTS)}
    return ours & present


def is_own_record(record: Path) -> bool:
    """Return True for a checksummed record that fmapviz wrote, also if it is missing or truncated."""
    return all(problem.remedy != "remove" for problem in _record_problems(record))


def _record_problems(record: Path) -> Iterator[Problem]:
    """Compare a record with its own checksum; the same command rewrites one that it can recognize as its own."""
    try:
        data = checksummed_json.read(record)
        if not checksummed_json.is_intact(data):
            yield Problem(record, "damaged", "again" if checksummed_json.is_truncated(data) else "remove")
    except FileNotFoundError:
        yield Problem(record, "missing", "again")
    except PermissionError as error:
        yield Problem(record, str(error.strerror), "none")
    except OSError as error:  # not a file
        yield Problem(record, str(error.strerror), "remove")


def _is_surveyed(directory: Path, settings: Mapping[str, Any]) -> bool:
    """Return True if the run's pictures or values depend on what all images share."""
    if not (is_surveyed(settings) if any(map(draws_pictures, settings["formats"])) else shares_values(settings)):
        return False
    return any((record := read_unit(unit)) and holds_images(record) for unit in run_files.find_units(directory))


def _settings(run: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of a run; empty ones if they are malformed."""
    settings: Any = run.get("settings")  # Any: a JSON file may hold any value
    try:
        style: dict[str, str | int] = {"norm": str(settings["style"]["norm"]), "pca": str(settings["style"]["pca"])}
        style |= {"anchor": str(settings["style"]["anchor"] or ""), "clusters": int(settings["style"]["clusters"])}
        listed = {name: list(map(str, settings[name])) for name in ("formats", "views")}
        return {**listed, "style": style, **{name: settings.get(name) for name in ("weights", "against")}}
    except (KeyError, TypeError, IndexError, ValueError, OverflowError):
        return {"formats": [], "views": [], "style": {"norm": "", "pca": "", "anchor": "", "clusters": 0}, "weights": None}


def _failure_problems(path: Path) -> Iterator[Problem]:
    try:
        lines = files.read(path, most=LONGEST_LOG).splitlines()
    except OSError as error:
        yield Problem(path, str(error.strerror), "remove")
        return
    for number, line in enumerate(lines, 1):
        if not is_whole_line(line):
            yield Problem(path, f"line {number} is damaged: remove it", "remove")


def _check_unit(
    directory: Path,
    present: AbstractSet[str],
    checksum: Checksum | None,
    *,
    run: Path | None = None,
    fingerprint: str | None = None,
) -> Verified:
    record, damage = read_unit(directory), [problem.message for problem in _record_problems(directory / UNIT_FILE)]
    if record is None or damage:  # a damaged record proves nothing about the files
        return Verified(directory, 0, (Problem(directory / UNIT_FILE, (damage or ["damaged"])[0], "repair"),))
    claimed = {entry["name"] for entry in record["files"]}
    found = [*_file_problems(directory, record["files"], "repair", checksum)]
    if run is not None and "\n" in directory.relative_to(run).as_posix():  # in the list of the digest it would be two lines
        found.append(Problem(directory, "its name has a line break, which fmapviz does not write", "remove"))
    if run is not None and fingerprint is not None and not found:
        if record.get("run") != fingerprint:
            found.append(Problem(directory, "belongs to a run with other settings", "remove"))
        elif directory not in possible_paths(run, key := key_of(record)):
            found.append(Problem(directory, f"the unit {quote(key.name)} under another name", "remove"))
    found += _foreign(directory, present - claimed - {UNIT_FILE})
    return Verified(directory, len(claimed), tuple(found))


def _file_problems(
    directory: Path, entries: Iterable[Mapping[str, Any]], remedy: str, checksum: Checksum | None
) -> Iterator[Problem]:
    """Compare files with the entries of a record."""
    for entry in entries:
        path = directory / entry["name"]
        try:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):
                yield Problem(path, "not a regular file", remedy)
            elif status.st_size != entry["size"]:
                yield Problem(path, f"{status.st_size} bytes instead of {entry['size']}", remedy)
            elif checksum and checksum(path) != entry["sha256"]:
                yield Problem(path, "changed since it was written", remedy)
        except FileNotFoundError:
            yield Problem(path, "missing", remedy)
        except OSError as error:
            yield Problem(path, str(error.strerror), remedy)


def _foreign(directory: Path, names: AbstractSet[str]) -> Iterator[Problem]:
    return (Problem(directory / name, _FOREIGN, "remove") for name in sorted(names))
