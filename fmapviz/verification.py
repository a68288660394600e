"""Check that a directory really holds, whole, everything that it claims to hold."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmapviz import products, survey
from fmapviz.errors import RequestError, quote
from fmapviz.runs import FAILURES_FILE, RUN_FILE, read_run
from fmapviz.units import HIDDEN, UNIT_FILE, digest, is_sealed, read_unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as `unit.json` or `run.json` says.

    Attributes:
        path: The file or directory.
        message: What is wrong with it.
    """

    path: Path
    message: str


@dataclass(frozen=True, slots=True)
class Verified:
    """One image's directory, looked through.

    Attributes:
        directory: Which.
        files: How many files it claims to hold.
        problems: Empty if they are all there and whole, and no others.
    """

    directory: Path
    files: int
    problems: tuple[Problem, ...]


def verify(directory: Path) -> Iterator[Verified]:
    """Look through a directory of runs, a run, or the directory of one image.

    Yields:
        One for every directory that claims to be an image's, and one for every run directory with problems of its own.

    Raises:
        RequestError: Nothing in it was made by fmapviz.
    """
    empty = True
    for place in _places(directory):
        empty = False
        yield place
    if empty:
        raise RequestError(f"no run of fmapviz: {quote(directory)}")


def _places(top: Path) -> Iterator[Verified]:
    refusals: list[OSError] = []
    for here, folders, files in os.walk(top, onerror=refusals.append):
        place = Path(here)
        folders[:] = sorted(name for name in folders if not name.startswith(HIDDEN))
        if RUN_FILE in files:
            made = (products.read(place) or {"files": []})["files"]
            yield Verified(place, 1 + len(made), _verify_run(place, set(files)))
        elif UNIT_FILE in files:
            yield _verify_unit(place, {*files, *folders})
            folders.clear()
        elif _inside_run(place, top) and files:
            yield Verified(place, 0, _strangers(place, set(files)))
    for refusal in refusals:
        if Path(refusal.filename) != top:
            yield Verified(Path(refusal.filename), 0, (Problem(Path(refusal.filename), str(refusal.strerror)),))


def _verify_run(place: Path, present: set[str]) -> tuple[Problem, ...]:
    if read_run(place) is None:
        return _verify_record(place / RUN_FILE)
    records = [name for name in (RUN_FILE, products.FILE, survey.FILE) if name in present or name == RUN_FILE]
    claimed = {str(entry["name"]): entry for entry in (products.read(place) or {"files": []})["files"]}
    strangers = present - {*records, FAILURES_FILE} - claimed.keys()
    settings = (read_run(place) or {}).get("settings")
    if settings and survey.FILE not in present and _is_surveyed(place, settings):
        records.append(survey.FILE)
    return (
        *(problem for name in records for problem in _verify_record(place / name)),
        *_damaged(place, claimed),
        *_strangers(place, strangers),
    )


def _is_surveyed(place: Path, settings: Mapping[str, Any]) -> bool:
    """Tell whether a run's pictures were drawn by what all of its images have in common."""
    draws = any(form in {"png", "html", "tensorboard"} for form in settings.get("formats", ()))
    try:
        if not draws or not survey.is_needed(settings):
            return False
    except (KeyError, TypeError):  # of another version
        return False
    return any((record := read_unit(unit)) and record.get("kind") is None for unit in products.find_units(place))


def _verify_unit(place: Path, present: set[str]) -> Verified:
    record = read_unit(place)
    if record is None:
        return Verified(place, 0, _verify_record(place / UNIT_FILE))
    claimed = {str(entry["name"]): entry for entry in record["files"]}
    strangers = _strangers(place, present - claimed.keys() - {UNIT_FILE})
    return Verified(place, len(claimed), (*_verify_record(place / UNIT_FILE), *_damaged(place, claimed), *strangers))


def _damaged(place: Path, claimed: Mapping[str, dict[str, Any]]) -> Iterator[Problem]:
    for name, entry in claimed.items():
        if fault := _fault(place / name, entry):
            yield Problem(place / name, fault)


def _verify_record(record: Path) -> tuple[Problem, ...]:
    """Compare a record with its own checksum."""
    try:
        return () if is_sealed(record.read_bytes()) else (Problem(record, "damaged"),)
    except OSError as error:
        return (Problem(record, str(error.strerror)),)


def _fault(path: Path, entry: dict[str, Any]) -> str | None:
    try:
        if path.stat().st_size != entry["size"]:
            return f"{path.stat().st_size} bytes instead of {entry['size']}"
        return None if digest(path) == entry["sha256"] else "other content than was written"
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return str(error.strerror)


def _strangers(place: Path, names: set[str]) -> tuple[Problem, ...]:
    return tuple(Problem(place / name, "not made by fmapviz") for name in sorted(names))


def _inside_run(place: Path, top: Path) -> bool:
    return any(read_run(parent) is not None for parent in place.parents if parent.is_relative_to(top))
