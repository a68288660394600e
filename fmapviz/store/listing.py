"""List the runs of a directory, their contents, and the differences between runs of one model."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from fmapviz.core import checksummed_json, files
from fmapviz.core.file_names import HIDDEN, RUN_FILE
from fmapviz.core.files import reading_from
from fmapviz.core.urls import expand_home, is_path, is_unknown, is_url
from fmapviz.errors import RequestError, quote, suggest_file
from fmapviz.images.find import natural, unit_name
from fmapviz.images.memory.image import is_in_memory
from fmapviz.store.failures import read_failures
from fmapviz.store.run import IN_TRAINING, differences, flat_settings, is_run, settings_of
from fmapviz.store.run_files import is_named_like_image
from fmapviz.store.unfinished import State, expected_images, read_unfinished, state_of
from fmapviz.store.unit import images_of, read_unit
from fmapviz.store.unit_table import walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmapviz.store.unit_table import Folder

    Failed = dict[str, float]  # the time of the last failure, by the path of the input


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run and its contents.

    Attributes:
        directory: Its directory.
        model: Name of the model; None if its record is damaged.
        weights: Source of the weights; likewise.
        formats: Its formats.
        images: Number of finished images.
        expected: Number of inputs of the command that has not finished; None if all have, or if it is unknown.
        state: `finished`; `running`, while a command is writing; `interrupted`, also by a kill or a power failure; or
            `failed`, for instance at a full disk.
        reason: Why it was interrupted or failed, if that is known.
        failures: Number of inputs that failed and were not finished since.
        bytes: Space on the disk.
        written: When its newest file was written, in seconds since 1970.
        damaged: Whether `run.json` is not as it was written.
        being_written: Whether a command is writing to it at this moment.
        killed: Whether a command was killed that wrote to it; the next one removes what it left.
        first: Name of the run of the same model that it is compared with, of comparisons a comparison: the one whose
            settings most others share, of several the first that was made. None for that run itself.
        differences: The settings that differ from those of that run.
    """

    directory: Path
    model: str | None
    weights: str | None
    formats: tuple[str, ...]
    images: int
    expected: int | None
    state: State
    reason: str | None
    failures: int
    bytes: int
    written: float
    damaged: bool
    being_written: bool
    killed: bool
    first: str | None = None
    differences: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the directory; of a run in the directory of a training with that one's: `training/fmapviz`."""
        path = self.directory if self.directory.name else self.directory.resolve()
        return f"{path.absolute().parent.name}/{path.name}" if self.weights == IN_TRAINING else path.name


def list_runs(directory: str | Path) -> Iterator[ListedRun]:
    """List the runs directly below a directory, in natural order; first itself, if it is a run.

    The runs that `fmapviz.Watch` draws into the directories of trainings are listed too, one directory deeper.

    Raises:
        RequestError: There is no such local directory.
        OutputError: It cannot be read.
    """
    listed = [(run, settings_of(run)) for run in _find_runs(local_directory(directory))]
    groups: dict[object, list[tuple[Path, dict[str, Any]]]] = {}  # by the model, and whether it is compared
    for run, settings in listed:
        if model := _text(settings.get("model")):
            groups.setdefault((model, "against" in settings), []).append((run, settings))
    references = {run: _reference(group) for group in groups.values() for run, _ in group}
    for run, _ in listed:
        reference, others = references.get(run, (run, {}))
        with suppress(FileNotFoundError):  # it was removed since
            yield describe_run(run, first=None if reference == run else reference.name, others=others)


def _reference(group: Sequence[tuple[Path, dict[str, Any]]]) -> tuple[Path, dict[str, Any]]:
    """Return the run whose settings most of a group have, value by value; of several the one that was made first."""
    values = [{(name, repr(value)) for name, value in flat_settings(settings).items()} for _, settings in group]
    counts = Counter(chain.from_iterable(values))

    def rank(at: int) -> tuple[int, float]:
        with suppress(OSError):
            return -sum(counts[each] for each in values[at]), (group[at][0] / RUN_FILE).stat().st_mtime
        return 0, inf

    return group[min(range(len(group)), key=rank)]


def describe_run(run: Path, *, first: str | None = None, others: object = None) -> ListedRun:
    """Measure a run.

    Args:
        run: Its directory.
        first: Name of the run to compare it with; None for none.
        others: The settings of that run.

    Raises:
        FileNotFoundError: It is gone.
    """
    settings, found = settings_of(run), _Found(_last_failures(run))
    for folder in walk(run):
        found.add(folder, run)
    formats = settings.get("formats")
    commands = read_unfinished(run)
    state, reason = state_of(run, commands)
    return ListedRun(
        run,
        _text(settings.get("model")),
        _text(settings.get("weights")),
        tuple(map(str, formats)) if isinstance(formats, list) else (),
        images=found.images,
        expected=expected_images(commands, found.images),
        state=state,
        reason=reason,
        failures=len(found.failed),
        bytes=found.bytes,
        written=found.written or run.stat().st_mtime,
        damaged=checksummed_json.load(run / RUN_FILE, intact=True) is None,
        being_written=state == "running",
        killed=any(map(files.is_left_over, found.hidden)),
        first=first,
        differences=tuple(differences(settings, others)) if first is not None else (),
    )


def local_directory(typed: str | Path) -> Path:
    """Return the path of an existing directory, as `local_path` reads it.

    Raises:
        RequestError: There is none, or it is not local.
    """
    path = local_path(typed)
    if not os.path.isdir(path):
        what = "not a directory" if os.path.lexists(path) else "no such directory"
        raise RequestError(f"{what}: {quote(typed)}", hint=suggest_file(str(path), lambda _name: False))
    return path


def local_path(typed: str | Path) -> Path:
    """Return a typed path; a leading `~` is the home directory.

    Raises:
        RequestError: It is an address, or no path can hold it.
    """
    if is_url(typed) or is_unknown(typed):
        raise RequestError(
            f"runs are listed and removed in local directories only: {quote(typed)}", hint="copy the runs here, or a path"
        )
    if not is_path(str(typed)) or not str(typed):
        raise RequestError(f"no path can hold this: {quote(typed)}", hint="a directory, such as 'runs'")
    return Path(expand_home(typed))


def _find_runs(directory: Path) -> Iterator[Path]:
    if is_run(directory):
        yield directory
    with reading_from(directory), os.scandir(directory) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]  # a run may be a link
    for path in (directory / name for name in sorted(names, key=natural)):
        yield from [path] if is_run(path) else runs_of_training(path)


def runs_of_training(directory: Path) -> list[Path]:
    """Return the runs of trainings in a directory that is no run itself; none if it is a link, or cannot be read."""
    with suppress(OSError):
        if not os.path.islink(directory):
            found = sorted(
                (path for path in directory.iterdir() if os.path.isdir(path) and is_run(path)),
                key=lambda path: natural(path.name),
            )
            return [path for path in found if settings_of(path).get("weights") == IN_TRAINING]
    return []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _last_failures(run: Path) -> Failed:
    times = ((str(failure.get("path")), failure.get("time")) for failure in read_failures(run))
    return {path: time if isinstance(time, int | float) else 0.0 for path, time in times}


@dataclass(slots=True)
class _Found:
    """Sums over the directories of a run.

    Attributes:
        failed: Inputs that failed and are not finished.
        hidden: Directories that are being written, or were when a command was killed.
        names: Names of units of these inputs; empty: they may have any name; None: not determined yet.
    """

    failed: Failed
    images: int = 0
    bytes: int = 0
    written: float = 0.0
    hidden: list[Path] = field(default_factory=list)
    names: set[str] | None = None

    def add(self, folder: Folder, run: Path) -> None:
        """Add a directory."""
        self.bytes += folder.bytes
        self.written = max(self.written, folder.written)
        parts = folder.path.split("/")
        if HIDDEN in folder.path and any(part.startswith(HIDDEN) for part in parts):
            if len(parts) == 1:
                self.hidden.append(run / folder.path)
        elif folder.recorded is not None and folder.path:
            is_plain = is_named_like_image(parts) and not self._may_have_failed(parts[-1])
            self._add_unit(run / folder.path if not is_plain else run, folder.recorded, is_plain=is_plain)

    def _may_have_failed(self, name: str) -> bool:
        """Return True if a unit of this name may be of an input that failed."""
        if self.failed and self.names is None:
            paths = [path for path in self.failed if not (is_url(path) or is_in_memory(path))]
            known = {unit_name(PurePath(path).name, path).partition("~")[0] for path in paths}
            self.names = known if len(paths) == len(self.failed) else set()
        return bool(self.failed) and (not self.names or name.partition("~")[0] in self.names)

    def _add_unit(self, unit: Path, recorded: float, *, is_plain: bool) -> None:
        """Count the images of a unit. Records are read only if necessary: 100,000 of them take 20 seconds."""
        if is_plain:
            self.images += 1
            return
        images = images_of(read_unit(unit))
        self.images += len(images)
        for image in images:
            if recorded >= self.failed.get(image.path, recorded + 1):
                del self.failed[image.path]
