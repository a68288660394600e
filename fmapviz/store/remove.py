"""Remove runs: the files of fmapviz; a run with any other file is kept."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fmapviz.core import checksummed_json, files
from fmapviz.core.file_names import HIDDEN, RUN_FILE, RUN_FILES_RECORD, SURVEY_FILE, UNIT_FILE
from fmapviz.core.files import hidden, reading_from, removing
from fmapviz.errors import OutputError, RefusedError, RequestError, first_few, quote, suggest_file
from fmapviz.store.listing import local_directory, local_path, runs_of_training
from fmapviz.store.run import check_format, is_run, read_run
from fmapviz.store.unit import check_only_own_files, parse_unit
from fmapviz.store.verify import is_own_record, own_names

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any


def find_run(typed: str, out: str | Path) -> Path:
    """Return the directory of a run.

    Args:
        typed: Its name in `out`, or its path; of the only run in the directory of a training, the name of that directory.
        out: The directory of runs.

    Raises:
        RequestError: There is no such run, or it is a link.
    """
    path, named = local_path(typed), local_path(out) / typed
    is_path = not {os.sep, os.altsep}.isdisjoint(typed)
    if is_path and not os.path.lexists(path) and is_run(named):  # `training/fmapviz`, as it is listed
        path = named
    elif not is_path and typed not in {".", ".."}:
        if not os.path.lexists(named) and not is_run(path):
            raise RequestError(f"no such run: {quote(named)}", hint=suggest_file(str(named), lambda _name: False))
        path = named if os.path.lexists(named) else path
    if os.path.islink(path):
        raise RequestError(
            f"a link, which is not followed: {quote(path)}", hint=f"it leads to {quote(os.path.realpath(path))}"
        )
    if not is_run(local_directory(path)):
        inside = runs_of_training(path)
        if len(inside) == 1:
            return inside[0]
        if inside:
            raise RequestError(
                f"several runs of a training: {quote(path)}", hint=f"one of {first_few([str(each) for each in inside])}"
            )
        raise RequestError(f"no run of fmapviz: {quote(path)}", hint=f"the directory of a run holds {RUN_FILE}")
    return path if path.name not in {"", ".."} else path.resolve()


def check_removable(run: Path) -> None:
    """Check, without changing anything, that a run may be removed.

    Raises:
        RefusedError: It holds a file that fmapviz did not make, or that no record lists; it is being written; or it was made
            by a version with another format.
        OutputError: It cannot be read.
    """
    check_format(read_run(run) or {}, run)
    with reading_from(run):
        for part in _parts(run, run):
            if _is_unit(part):
                check_only_own_files(part, _record_of(part), change="removed")


def remove_run(run: Path) -> None:
    """Remove a run that `check_removable` has checked. An interrupted removal is continued by the next one.

    Each unit disappears at once, and `run.json` last, so that what is left is a run of complete units.

    Raises:
        RefusedError: A file was added since the check.
        OutputError: A file cannot be removed.
    """
    with removing(run), files.locked(run / RUN_FILE):
        for part in _parts(run, run):
            if part.name.startswith(HIDDEN):
                files.remove_tree(part)
            elif _is_unit(part):
                _remove_unit(part, run)
            else:
                files.remove_folder(part)
        for name in sorted(_own_files(run), key=lambda name: name == RUN_FILES_RECORD):  # the record of others after them
            files.remove(run / name)
        if left := next((path for path in run.iterdir() if path.name != RUN_FILE), None):
            raise OutputError(f"cannot remove {quote(left)}", hint="remove it, and the same call continues")
        files.remove(run / RUN_FILE)
        files.remove_folder(run)


def _parts(directory: Path, run: Path) -> Iterator[Path]:
    """Yield the units below a directory of a run, the leftovers of killed commands, and each folder after its content.

    Raises:
        RefusedError: There is a file that fmapviz did not make, or a command is writing.
        OSError: A directory cannot be read.
    """
    folders, names = _list(directory)
    for name in folders:
        if name.startswith(HIDDEN) and not files.is_left_over(directory / name):
            raise RefusedError(f"a command is writing to {quote(run)}", hint="wait for its end, or interrupt it")
    if directory != run and RUN_FILE in names:
        raise RefusedError(f"{quote(directory)} is a run of its own, inside of {quote(run)}", hint="remove that one first")
    own = _own_files(run) | {RUN_FILE} if directory == run else set()
    if foreign := sorted({*names} - own):
        where = quote(directory / foreign[0])
        raise RefusedError(f"{where} was not made by fmapviz", hint="move it away, and the same call continues")
    for name in folders:
        path = directory / name
        if name.startswith(HIDDEN) or _is_unit(path):
            yield path
        else:
            yield from _parts(path, run)
            yield path


def _list(directory: Path) -> tuple[list[str], list[str]]:
    """Return the names of the directories and of the files in a directory; links count as files."""
    folders: list[str] = []
    names: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            (folders if entry.is_dir(follow_symlinks=False) else names).append(entry.name)
    return folders, names


def _own_files(run: Path) -> set[str]:
    """Return the names of the files that fmapviz made in a run's directory, except `run.json`."""
    names = own_names(run, {*_list(run)[1]}) - {RUN_FILE}
    return {name for name in names if name not in {RUN_FILES_RECORD, SURVEY_FILE} or is_own_record(run / name)}


def _is_unit(directory: Path) -> bool:
    return os.path.lexists(directory / UNIT_FILE) and not directory.name.startswith(HIDDEN)


def _remove_unit(unit: Path, run: Path) -> None:
    record = _record_of(unit)
    check_only_own_files(unit, record, change="removed")
    waste = hidden(run)
    files.rename(unit, waste)  # a unit under its own name is complete
    try:
        check_only_own_files(waste, record, shown=unit, change="removed")  # a file may have been added in the meantime
    except RefusedError:
        files.rename(waste, unit)
        raise
    files.remove_tree(waste)


def _record_of(unit: Path) -> dict[str, Any]:
    """Return the record of a unit.

    Raises:
        RefusedError: It is damaged, so that it does not prove which files are its own.
        OSError: It cannot be read.
    """
    data = checksummed_json.read(unit / UNIT_FILE)
    record = parse_unit(data) if checksummed_json.is_intact(data) else None
    if record is None:
        raise RefusedError(
            f"{quote(unit / UNIT_FILE)} is damaged, so that its own files are unknown",
            hint="the call that made the run repairs it with repair=True; or remove its directory",
        )
    return record
