"""Compare the checkpoints of a training with the first, or each with the one before it."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fmapviz.config import check_glob
from fmapviz.core import registry
from fmapviz.core.file_names import STEP
from fmapviz.data import Failure, ImageFile
from fmapviz.errors import FmapvizError, NothingToDoError, RequestError, quote
from fmapviz.events import Notice, Outcome
from fmapviz.features.diff.session import add_second
from fmapviz.models.load import load_model
from fmapviz.run.load import load_session
from fmapviz.store.failures import append_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fmapviz.config import RunConfig
    from fmapviz.events import Event
    from fmapviz.features.diff.networks import PairSetup
    from fmapviz.run.session import Session
    from fmapviz.store.unit_key import Version

FIRST, PREVIOUS = REFERENCES = ("first", "previous")
_DAMAGED = "E_WEIGHTS"
_WHOLE = re.compile(r"(?<!\d)(?<!\d\.)\d+(?!\d|\.\d)")  # a number without a decimal point


@dataclass(frozen=True, slots=True)
class SeriesStep:
    """A checkpoint of a series.

    Attributes:
        number: The step, from its name; see `list_steps`.
        path: The file.
        entry: Which of several sets of weights in it, with a `#` in front; empty: the usual one.
    """

    number: int
    path: Path
    entry: str = ""

    @property
    def weights(self) -> str:
        """Its weights, as `load_model` takes them."""
        return f"{self.path}{self.entry}"


def list_steps(pattern: str) -> list[SeriesStep]:
    """List the files of a glob by the number in their names that is their step.

    It is the last whole number in which all names differ: 7 in `e07_acc0.91_v2.pt`.

    Args:
        pattern: The glob; `#` and the name of an entry may follow it.

    Raises:
        RequestError: The glob is too long, there are fewer than two files, one has no number, or two have the same.
    """
    check_glob(pattern)
    found, entry = glob.glob(pattern, recursive=True), ""  # noqa: PTH207  the pattern may be absolute
    if not found and "#" in pattern:
        names, _, entry = pattern.rpartition("#")
        found, entry = glob.glob(names, recursive=True), f"#{entry}"  # noqa: PTH207
    paths = sorted(path for path in map(Path, found) if os.path.isfile(path))
    if len(paths) < 2:
        raise RequestError(
            f"{'no file' if not paths else 'one file only'} of this name: {quote(pattern)}",
            hint="a series has two checkpoints or more",
        )
    numbers = [[int(each) for each in _WHOLE.findall(path.stem) or re.findall(r"\d+", path.stem)] for path in paths]
    hint = "rename it, such as epoch_10.pt: the number is the step"
    if [] in numbers:
        raise RequestError(f"no number in the name of a checkpoint: {quote(paths[numbers.index([])])}", hint=hint)
    places = range(-1, -1 - min(map(len, numbers)), -1)
    place = next((place for place in places if len({each[place] for each in numbers}) == len(paths)), -1)
    steps: dict[int, SeriesStep] = {}
    for path, own in zip(paths, numbers, strict=True):
        if own[place] in steps:
            both = f"{quote(steps[own[place]].path)} and {quote(path)}"
            raise RequestError(f"two checkpoints of step {own[place]}: {both}", hint=hint)
        steps[own[place]] = SeriesStep(own[place], path, entry)
    return [steps[number] for number in sorted(steps)]


class Series:
    """Compares checkpoints one by one; each file is loaded once, and two networks are in memory, or three with `previous`.

    Args:
        steps: The checkpoints, ascending.
        reference: The checkpoint to compare each one with: `first` or `previous`.
    """

    def __init__(self, steps: Sequence[SeriesStep], reference: str) -> None:
        self._steps = list(steps)
        self._reference = reference
        self._failures: list[Failure] = []
        self._begin = 0  # position of the first that can be read

    def load(self, config: RunConfig) -> tuple[Session, list[str]]:
        """Load the first checkpoint that can be read; see `fmapviz.run.load.load_session`.

        Raises:
            RequestError: None can be read, or the request is wrong.
        """
        pattern = str(config.weights)
        formats = _with_pictures(config.to)
        for position, step in enumerate(self._steps):
            try:
                session, notices = load_session(replace(config, weights=step.weights, to=formats, predictions=0), pair=True)
            except FmapvizError as error:
                if not _is_damaged(config, error) or position == len(self._steps) - 1:
                    raise
                self._failures.append(_failure(step, error))
                continue
            self._begin = position
            if position and self._reference == FIRST:
                notices.append(f"the reference is {quote(step.path)}: no earlier checkpoint can be read")
            against = {"weights": Path(pattern).name, "reference": self._reference, "series": True}
            is_first = self._reference == FIRST
            info = replace(
                session.info, weights=Path(pattern).name, against=against, sha256=session.info.sha256 if is_first else None
            )
            together = {form for form in formats if registry.form(form).write_series}
            writers = {form: open_writer for form, open_writer in session.writers.items() if form not in together}
            return replace(session, info=info, writers=writers, times=len(self._steps) - position), notices
        raise AssertionError("the last one raises")

    def rounds(
        self, session: Session, items: Iterable[ImageFile | Failure], on_event: Callable[[Event], None]
    ) -> Iterator[tuple[Session, Iterable[ImageFile | Failure]]]:
        """Yield the session of each checkpoint, and the images as its units name them.

        Raises:
            NothingToDoError: No checkpoint could be compared.
        """
        listed, reference, count = list(items), session, 0
        for failure in self._failures:
            _report(session, failure, on_event)
        for position in range(self._begin, len(self._steps)):
            step = self._steps[position]
            try:
                at_step, setup = _add_step(session, reference, step, is_loaded=position == self._begin)
            except RequestError as error:
                _report(session, _failure(step, error), on_event)
                continue
            if position == self._begin + 1 and not setup.compared.related:
                on_event(Notice("the weights of the first two checkpoints have nothing in common"))
            yield at_step, [_at(each, setup.at) for each in listed if isinstance(each, ImageFile) or not count]
            count += 1
            if self._reference == PREVIOUS:
                reference = replace(session, model=setup.compared.second)
            del at_step, setup  # before another network is loaded
        if not count:
            raise NothingToDoError("no checkpoint could be compared")


def _add_step(session: Session, reference: Session, step: SeriesStep, *, is_loaded: bool) -> tuple[Session, PairSetup]:
    """Return the session of a checkpoint and its reference; load it unless it is the first one.

    Raises:
        RequestError: It cannot be loaded, or compared.
    """
    second, name = session.model, session.request.model
    if not is_loaded:
        assert isinstance(name, str)
        second = load_model(name, weights=step.weights, preprocessing=session.request.preprocessing)
    second.module.to(session.device)
    return add_second(reference, second, step=step.number, against=dict(session.info.against))


def _at(item: ImageFile | Failure, at: Version) -> ImageFile | Failure:
    if isinstance(item, Failure):
        return item
    return replace(item, unit=f"{item.unit}/{STEP.format(at['step'])}", version={**item.version, **at})


def _with_pictures(formats: Sequence[str]) -> tuple[str, ...]:
    """Add the format of plain pictures if another format collects those of all steps."""
    plain = [name for name, form in registry.formats().items() if form.plain]
    collects = any(registry.form(form).write_series for form in formats)
    return tuple(dict.fromkeys((*formats, *(plain if collects else ()))))


def _is_damaged(config: RunConfig, error: FmapvizError) -> bool:
    """Return True if the weights are wrong, not the request."""
    return isinstance(config.model, str) and isinstance(error, RequestError) and type(error) is not RequestError


def _failure(step: SeriesStep, error: FmapvizError) -> Failure:
    return Failure(str(step.path), _DAMAGED, str(error), hint=error.hint)


def _report(session: Session, failure: Failure, on_event: Callable[[Event], None]) -> None:
    append_failure(session.directory, failure, sync=session.config.fsync)
    on_event(Outcome(failure.path, "failed", failure=failure))
