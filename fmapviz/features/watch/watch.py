"""Draw the feature maps of a few images at some steps of a training: `fmapviz.Watch`."""

from __future__ import annotations

import os
import sys
import time
import warnings
from contextlib import suppress
from functools import partial
from itertools import count
from operator import index
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import torch

from fmapviz.config import RunConfig, Style, check_type, explain_arguments, renamed
from fmapviz.core import registry
from fmapviz.errors import ArgumentError, FmapvizError, RefusedError, RequestError, quote
from fmapviz.events import Notice
from fmapviz.features.watch.recorder import Recorder, configure
from fmapviz.features.watch.schedule import NEVER, StepSchedule
from fmapviz.features.watch.targets import RUN, RunTarget, place_of
from fmapviz.store.run import check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from fmapviz.data import Inputs
    from fmapviz.features.watch.drawing import Network
    from fmapviz.features.watch.schedule import Every
    from fmapviz.features.watch.targets import SummaryWriter

T = TypeVar("T")
_OPEN: WeakSet[Recorder] = WeakSet()  # of all that are not closed
_DRAWING: WeakSet[Recorder] = WeakSet()  # those that have begun
_RENAMED = "another Watch draws there: the name of this one is '{}'; name= chooses another"


class Watch:
    """Draws the feature maps of a few images while a network is trained, and leaves the training as it is.

    Each time, the images go through the network once more, in evaluation mode and without gradients; weights, buffers,
    random generators and training flags are as before. Of several processes, the one of rank 0 draws. A failure is a
    warning, once, and the training continues.

    Into a `SummaryWriter` go pictures under `VIEW/NN LAYER/IMAGE`, where NN counts layers in the order of execution,
    filmstrips under `film/NN LAYER/IMAGE`, and the numbers `zeros/NN LAYER`, `dead/NN LAYER` and `change/NN LAYER`; into a
    directory, a run `fmapviz` with the same, and a report.

    Args:
        model: The network, or a function that returns it, such as `lambda: ema.module`.
        images: One or several, the same at every step: paths, Pillow pictures, arrays or tensors, as of `fmapviz.visualize`.
        out: A `SummaryWriter` of PyTorch or tensorboardX, or a directory.
        name: Name of the run in the directory, or what all tags begin with. Two that draw at once get distinct names.
        every: A number of steps, `"epoch"`, `"log"` (1, 2, 4, 8, ...), or a function of the step. The first step is drawn
            too, and the last one by `close`.
        layers: As of `fmapviz.visualize`; likewise `views`, `style` and the other `options` of a run, such as `types`,
            `exclude`, `targets` and `preprocessing`, an `InputOptions`.
        views: Likewise. Filmstrips show what the layers return.
        style: Likewise. `Style(channels="top:16")` also chooses the channels of filmstrips.
        budget: Largest part of the time since the first step that drawing may take; above it, `every` is doubled.
        strict: Whether a failure is raised instead.
        on_event: Called with each `Notice`; without it, lines go to standard error at the first step: where pictures go, and
            what is assumed.

    Raises:
        RequestError: An option is wrong, or the network cannot be drawn while it is trained.
        InputError: An image cannot be read.
        OutputError: The directory cannot be written.
        RefusedError: There is a run with other settings.

    Attributes:
        directory: Directory of the run, or None.

    Example:
        >>> import tempfile
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
        >>> with tempfile.TemporaryDirectory() as out:
        ...     with Watch(net, torch.rand(3, 16, 16), out=out, every=10, budget=1, on_event=bool) as watch:
        ...         for step in range(25):
        ...             watch(step)
        ...     names = sorted(path.name for path in (watch.directory / "image_0").iterdir())
        >>> names
        ['_filmstrip', 'step_000000', 'step_000010', 'step_000020', 'step_000024']
    """

    @renamed(to="out", top="predictions", options="preprocessing")
    @explain_arguments
    def __init__(
        self,
        model: Network,
        images: Inputs,
        *,
        out: str | Path | SummaryWriter,
        name: str | None = None,
        every: Every = 500,
        layers: str | Sequence[str] = (),
        views: str | Sequence[str] = RunConfig.views,
        style: Style = Style(),
        budget: float = 0.05,
        strict: bool = False,
        on_event: Callable[[Notice], None] | None = None,
        **options: Any,  # fields of RunConfig
    ) -> None:
        self.directory: Path | None = None
        self._from = self._until = 0  # steps between these need not be asked about
        self._step: int | None = None  # the last one
        self._drawn: int | None = None  # the last one that was drawn
        self._schedule = StepSchedule(every)
        self._budget = check_type("budget", budget, float | int, hint="such as 0.05")
        if not self._budget >= 0:
            raise RequestError(f"budget must be 0 or more, not {budget}", hint="a part of the time: budget=0.05 is 5 %")
        if on_event is not None and not callable(on_event):
            raise RequestError(f"no function: {quote(type(on_event).__name__)}", hint="on_event=print, for example")
        self._strict = check_type("strict", strict, bool, hint="True or False")
        self._on_event = on_event
        self._begun = self._spent = 0.0
        self._reported: set[str] = set()
        self._closed = False
        self._is_first = not _is_other_process()
        if not self._is_first:
            return
        record = partial(Recorder, model, images, out, layers=layers, views=views, style=style, **options)
        self._recorder, other = _open_recorder(record, out, name)
        _OPEN.add(self._recorder)
        self._set_directory()
        if other:
            self._tell("name", _RENAMED.format(other))

    def __call__(self, step: int, *, epoch: int | None = None) -> None:
        """Draw the images if this step is due.

        Args:
            step: Number of optimiser steps so far; a step that is repeated is drawn once.
            epoch: Of the step, which `every="epoch"` needs.

        Raises:
            RequestError: The step is no number, or the epoch is missing.
            FmapvizError: With `strict`, drawing failed.
        """
        try:
            if self._from <= step < self._until:  # the usual case: nothing else takes time
                self._step = step
                return
        except (TypeError, ValueError, RuntimeError):
            raise RequestError(f"no step: {quote(step)}", hint="watch(step), a whole number") from None
        self._visit(step, epoch)

    def __repr__(self) -> str:
        """Return one line: number of images, where they go, the last step."""
        if not self._is_first:
            return "<fmapviz.Watch: another process draws>"
        number, folder = self._recorder.images, self._recorder.target.folder
        where = f", into {str(folder)!r}" if folder else ""
        state = "not begun" if self._step is None else f"step {self._step}"
        return f"<fmapviz.Watch: images: {number}{where}; {state}{', closed' if self._closed else ''}>"

    def close(self) -> None:
        """Draw the last step if necessary, write the filmstrips and the report, and end drawing.

        A `SummaryWriter` that was given stays open.
        """
        if self._closed:
            return
        self._closed = True
        self._from, self._until = -sys.maxsize, sys.maxsize
        if not self._is_first:
            return
        _OPEN.discard(self._recorder)
        if self._step is None:
            return
        _DRAWING.discard(self._recorder)
        if self._step != self._drawn:
            self._try(self._record, self._step)
        self._try(self._recorder.write_strips, self._step)

    def __enter__(self) -> Self:
        """Return the watch itself, which is closed at the end of the block."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close it."""
        self.close()

    def _set_directory(self) -> None:
        target = self._recorder.target
        self.directory = target.folder if isinstance(target, RunTarget) else None

    def _separate(self) -> None:
        """Choose another name if an open watch draws under the same one.

        Raises:
            OutputError: It cannot be written.
        """
        own, name = self._recorder, ""
        for number in count(2):
            if all(each.target.place != own.target.place for each in _DRAWING):
                break
            with suppress(RefusedError):  # a run of other settings has that name
                name = own.use_name(number)
        _DRAWING.add(own)
        if name:
            self._set_directory()
            self._tell("name", _RENAMED.format(name))

    def _visit(self, step: int, epoch: int | None) -> None:
        """Draw a step if it is due."""
        try:
            number = index(step)
        except (TypeError, ValueError, RuntimeError):
            raise RequestError(f"no step: {quote(step)}", hint="watch(step), a whole number") from None
        self._step = number
        if not self._is_first or self._closed:
            self._from, self._until = -sys.maxsize, sys.maxsize
            return
        if self._drawn == number:
            return
        if self._drawn is not None and number < self._drawn:
            self._tell("back", f"step {number} comes after step {self._drawn}: the filmstrips continue from there")
            self._from = self._until = number
        is_due = self._try(partial(self._schedule.is_due, next_step=self._until), number, epoch)
        if not is_due and self._drawn is not None:
            self._set_next(number)
            return
        if self._drawn is None:
            tell = self._on_event or bool
            for notice in self._recorder.notices:
                tell(Notice(notice))
            self._try(self._separate)
            if assumption := self._recorder.assumption:
                self._tell(assumption, assumption)
            self._tell("begin", _describe(self._recorder))
            last = max(self._recorder.steps_before, default=number)
            if last > number:
                self._tell(
                    "later",
                    f"an earlier training drew up to step {last}: filmstrips continue from step {number}, and pictures of "
                    "later steps stay until they are drawn again",
                )
            self._try(self._recorder.record, number)
            for remark in self._recorder.remarks:
                self._tell(remark, remark)
            self._begun = time.perf_counter()  # the first time takes longer than all others
        else:
            self._keep_within_budget()
            self._try(self._record, number)
        self._drawn = number
        self._set_next(number)

    def _set_next(self, step: int) -> None:
        self._from = step
        after = self._schedule.next_after(step)
        self._until = step if after == NEVER else after

    def _record(self, step: int) -> None:
        begun = time.perf_counter()
        try:
            self._recorder.record(step)
        finally:
            self._spent += time.perf_counter() - begun

    def _try(self, do: Callable[..., T], *args: object) -> T | None:
        """Call a function; turn a failure into one warning for each kind of error, unless the watch is strict."""
        try:
            return do(*args)
        except Exception as error:
            if self._strict or isinstance(error, ArgumentError):
                raise
            if isinstance(error, torch.OutOfMemoryError):
                torch.cuda.empty_cache()
            kind = type(error).__name__
            if kind not in self._reported:
                self._reported.add(kind)
                shown = str(error) if isinstance(error, FmapvizError) else f"{kind}: {error}"
                hint = f" ({error.hint})" if isinstance(error, FmapvizError) and error.hint else ""
                warnings.warn(f"feature maps were not drawn, the training continues: {shown}{hint}", stacklevel=4)
            return None

    def _keep_within_budget(self) -> None:
        """Double the number of steps if drawing has taken too large a part of the time."""
        allowed = self._budget * (time.perf_counter() - self._begun)
        if self._spent > allowed and (interval := self._schedule.double()):
            self._tell(
                "budget", f"drawing takes over {self._budget:.0%} of the time: it is done every {interval} steps from now on"
            )

    def _tell(self, key: str, message: str) -> None:
        """Report something, once for each key."""
        if key not in self._reported:
            self._reported.add(key)
            if self._on_event:
                self._on_event(Notice(message))
            else:
                sys.stderr.write(f"fmapviz: {message}\n")


def _open_recorder(
    record: Callable[..., Recorder], out: str | Path | SummaryWriter, name: str | None
) -> tuple[Recorder, str]:
    """Return a recorder, and its name if an open watch draws a run with other settings under the requested one.

    Raises:
        RefusedError: The run of this name is of no open watch.
    """
    try:
        return record(name=name), ""
    except RefusedError:
        if not isinstance(out, str | os.PathLike) or all(each.target.place != place_of(out, name) for each in _OPEN):
            raise
    for number in count(2):
        other = f"{name or RUN}-{number}"
        with suppress(RefusedError):
            return record(name=other), other
    raise AssertionError("one of all numbers is free")


def check_options(options: Mapping[str, Any]) -> None:
    """Check the options of a watch before it is constructed.

    Raises:
        RequestError: One is wrong, or there is none of that name.
    """
    own = {"every", "budget", "strict", "on_event", "name"}
    StepSchedule(options.get("every", 500))
    check_name(options.get("name"))
    configure({name: value for name, value in options.items() if name not in own})


def _describe(recorder: Recorder) -> str:
    """Return the target of the pictures, and the command that opens TensorBoard."""
    shown = "an image" if recorder.images == 1 else f"{recorder.images} images"
    folder = recorder.target.folder
    forms = registry.formats().values() if folder else ()
    opened = filter(None, (form.open_command(str(folder), has_steps=True) for form in forms))
    return f"drawing {shown} during the training{''.join(f'; all steps: {command}' for command in opened)}"


def _is_other_process() -> bool:
    """Return True in a process of a distributed training whose rank is not 0."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return bool(distributed.get_rank() != 0)
    # Launched by torchrun, and `init_process_group` is called later.
    return _number(os.environ.get("WORLD_SIZE")) > 1 and _number(os.environ.get("RANK")) > 0


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0
