"""Draw a finished run again from its records, into another directory, and compare the digests."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmapviz.core import checksummed_json
from fmapviz.core.file_names import RUN_FILE
from fmapviz.core.urls import is_url, join
from fmapviz.core.words import counted
from fmapviz.errors import RefusedError, RequestError, first_few, quote
from fmapviz.events import Notice, Outcome, Started
from fmapviz.images.find import look_again
from fmapviz.images.memory.image import is_in_memory
from fmapviz.run.estimate import Estimate, estimate
from fmapviz.run.load import load_session
from fmapviz.run.loop import run as run_all
from fmapviz.run.recorded import (
    check_same,
    config_of,
    device_of,
    differing_versions,
    execution_of,
    explanations,
    in_recorded_directory,
    only_recorded_code,
    threads_of,
)
from fmapviz.store.digest import Digests
from fmapviz.store.remote.local_copy import local_copy
from fmapviz.store.run import check_format, load_run
from fmapviz.store.run_files import find_units
from fmapviz.store.unit import has_changed, listed_images_of, read_unit
from fmapviz.store.verify import verify_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fmapviz.config import RunConfig
    from fmapviz.data import ImageFile
    from fmapviz.events import Event, RunSummary
    from fmapviz.run.session import Session


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run as its records describe it.

    Attributes:
        place: Its directory, its address, or the path of its `run.json`.
        name: Name of its directory.
        record: The content of `run.json`.
        images: Its images in listing order; empty if there is only `run.json`, or if it needs none.
        digest: Its digest; None if it is damaged or not finished, or if there is only `run.json`.
        contents: The contents of its records by path, see `fmapviz.store.digest`.
    """

    place: str
    name: str
    record: Mapping[str, Any]
    images: Sequence[ImageFile]
    digest: str | None
    contents: Mapping[str, str]


def read_recorded(place: str | Path) -> RecordedRun:
    """Read the records of a run, and verify its files.

    Args:
        place: Its directory or address; or a copy of its `run.json`, or a directory with nothing else in it.

    Raises:
        RequestError: It is no run.
        RefusedError: It was made by a version with another format.
    """
    path = Path(place)
    if not is_url(place) and os.path.isfile(path):
        record = checksummed_json.load(path)
        if record is None or "fingerprint" not in record:
            raise RequestError(
                f"no record of a run: {quote(place)}", hint=f"the directory of a run, or a copy of its {RUN_FILE}"
            )
        check_format(record, path)
        if path.name != RUN_FILE:
            return RecordedRun(str(place), path.stem, record, (), None, {})
        path = path.parent
    with local_copy(str(place) if is_url(place) else path) as copy:
        record, digests = load_run(copy.directory, typed=place), Digests()
        for _ in verify_copy(copy, digests=digests):
            pass
        images = [image for unit in find_units(copy.directory) for image in listed_images_of(read_unit(unit))]
        digest = digests.digest(copy.directory) if digests.contents(copy.directory).keys() - {RUN_FILE} else None
        name = str(place).rstrip("/").rpartition("/")[2] if is_url(place) else path.absolute().name
        return RecordedRun(str(place), name, record, images, digest, digests.contents(copy.directory))


def plan_rerun(run: RecordedRun, *, out: str | Path, name: str | None = None, allow_versions: bool = False) -> Estimate:
    """Estimate the size and duration of `rerun`, which would be refused for the same reasons."""
    shown = _paths_below(out)

    def open_session(config: RunConfig) -> tuple[Session, list[str]]:
        with only_recorded_code(run.record, run.place):
            return load_session(config)

    with _prepared(run, out=out, name=name, on_event=None) as (config, images):
        _check(run, open_session(config)[0], allow_versions=allow_versions)
        expected = estimate(config, images=images, open_session=open_session)
        return replace(expected, directory=shown(expected.directory))


def rerun(
    run: RecordedRun,
    *,
    out: str | Path,
    name: str | None = None,
    allow_versions: bool = False,
    on_event: Callable[[Event], None] | None = None,
) -> RunSummary:
    """Draw a run again: the same network, weights, images and options.

    Args:
        run: The run.
        out: The directory of all runs, or its address.
        name: Name of the new run's directory; None: that of the run, and `-rerun`.
        allow_versions: Whether other versions may draw it than those that drew the run.
        on_event: Called with each event.

    Returns:
        What was done. `same` says whether the digests are the same.

    Raises:
        RequestError: Something is not recorded, or the network or its weights do not exist here.
        RefusedError: The code, the weights, the images or the versions are others.
        FmapvizError: As in `fmapviz.run.loop.run`.
    """
    known, shown = list[str](), _paths_below(out)

    def open_session(config: RunConfig) -> tuple[Session, list[str]]:
        with only_recorded_code(run.record, run.place):
            session, notices = load_session(config)
        session = _check(run, session, allow_versions=allow_versions)
        known.extend(explanations(run.record, session))
        return session, notices

    def report(event: Event) -> None:
        if isinstance(event, Started):
            event = replace(event, directory=shown(event.directory))
        elif isinstance(event, Outcome) and event.unit:
            event = replace(event, unit=shown(event.unit))
        if on_event:
            on_event(event)

    with _prepared(run, out=out, name=name, on_event=report) as (config, images):
        summary = run_all(config, open_session=open_session, images=images or None)
    left_out, units = tuple(map(shown, summary.left_out)), tuple(map(shown, summary.units))
    summary = replace(summary, directory=shown(summary.directory), left_out=left_out, units=units)
    return _compared(run, summary, known, report)


def _paths_below(out: str | Path) -> Callable[[Path], Path]:
    """Return a function that makes paths in the directory of all runs relative, if that is typed so.

    It holds for the working directory of now.
    """
    absolute = Path(out).absolute()
    return lambda path: path if is_url(str(out)) else Path(out) / path.relative_to(absolute)


@contextmanager
def _prepared(
    run: RecordedRun, *, out: str | Path, name: str | None, on_event: Callable[[Event], None] | None
) -> Iterator[tuple[RunConfig, list[ImageFile]]]:
    """Yield the configuration and the images of a rerun, with the directory and the threads of the run."""
    request, execution = _request(run.record), execution_of(run.record)
    out = str(out) if is_url(str(out)) else Path(out).absolute()
    name = name or f"{run.name}-rerun"
    target = join(str(out), name) if isinstance(out, str) else out / name
    if is_url(run.place) == is_url(str(target)) and (
        str(target).rstrip("/") == run.place.rstrip("/") or (isinstance(target, Path) and _is_same(target, Path(run.place)))
    ):
        raise RequestError(f"{quote(run.place)} is the run itself", hint="choose another name= or out=")
    images = _images_now(run)
    with in_recorded_directory(run.record), threads_of(execution.get("threads")):
        with only_recorded_code(run.record, run.place):
            config = config_of(run.record, run.place)
        inputs = request.get("inputs")
        inputs = inputs if isinstance(inputs, list) else [image.path for image in images]
        if config.needs_images and not (inputs or images):
            raise RequestError(
                f"{quote(run.place)} does not record its inputs: they were read from a stream, or given in Python",
                hint="the directory of the whole run names them",
            )
        config = replace(
            config,
            inputs=list(map(str, inputs)),
            out=out,
            name=name,
            device=device_of(run.record),
            workers=execution.get("workers"),
            batch_size=execution.get("batch_size"),
            on_event=on_event,
        )
        yield config, images


def _is_same(one: Path, other: Path) -> bool:
    other = other.parent if other.name == RUN_FILE else other
    return os.path.exists(one) and os.path.exists(other) and one.samefile(other)


def _request(record: Mapping[str, Any]) -> Mapping[str, Any]:
    request = record.get("request")
    return request if isinstance(request, dict) else {}


def _images_now(run: RecordedRun) -> list[ImageFile]:
    """Return the images in their present state.

    Raises:
        RefusedError: One is gone, or has another size.
        RequestError: One was given in Python.
    """
    if given := [image.path for image in run.images if is_in_memory(image.path)]:
        raise RequestError(f"images of {quote(run.place)} were given in Python: {first_few(given)}")
    now = [look_again(image) for image in run.images]
    changed = [
        image.path for image, found in zip(run.images, now, strict=True) if found is None or has_changed(image, found)
    ]
    if changed:
        verb = "is" if len(changed) == 1 else "are"
        gone = f"{counted(len(changed), 'image')} of {quote(run.place)} {verb} gone or changed"
        raise RefusedError(f"{gone}: {first_few(changed)}", hint="restore them; `fmapviz run` draws others")
    return [each for each in now if each]


def _check(run: RecordedRun, session: Session, *, allow_versions: bool) -> Session:
    """Return the session with the identity of the run.

    Raises:
        RefusedError: It is another network, or another version draws it.
    """
    session = check_same(run.record, run.place, session)
    versions = differing_versions(run.record, session)
    if versions and not allow_versions:
        raise RefusedError(
            f"the versions here are not those that drew {quote(run.place)}: {', '.join(versions)}",
            hint="install the versions that it records, or pass --allow-versions: pictures may differ by rounding",
        )
    return session


def _compared(
    run: RecordedRun, summary: RunSummary, known: Sequence[str], on_event: Callable[[Event], object]
) -> RunSummary:
    """Return the summary with the digests of both runs."""
    again = read_recorded(str(summary.directory))
    same = None if run.digest is None or again.digest is None else run.digest == again.digest
    if same is None:
        whose = run.place if run.digest is None else str(summary.directory)
        on_event(Notice(f"{quote(whose)} has no digest to compare with: it is damaged or not finished, or only its record"))
        line = f"{again.digest}  the digest of this run" if again.digest else ""
    elif same:
        line = f"{again.digest}  the same digest"
    else:
        on_event(Notice(f"the digest is not that of {quote(run.place)}: {_describe(run.contents, again.contents)}"))
        if known:
            on_event(Notice(f"this may explain it: {'; '.join(known)}"))
        line = f"{again.digest}  another digest than {run.digest}"
    fields = {"digest": again.digest, "digest_before": run.digest}
    lines = (*summary.highlights, *([line] if line else []))
    return replace(summary, results={**summary.results, **fields}, highlights=lines, same=same)


def _describe(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return which units of two runs differ."""
    names = {path: path.rpartition("/")[0] or path for path in before.keys() | after.keys()}
    other = sorted(names[path] for path in before.keys() & after.keys() if before[path] != after[path])
    missing = sorted(names[path] for path in before.keys() - after.keys())
    more = sorted(names[path] for path in after.keys() - before.keys())
    parts = [(other, "differ"), (missing, "not drawn by this command"), (more, "new")]
    return "; ".join(f"{first_few(listed)} {words}" for listed, words in parts if listed)
