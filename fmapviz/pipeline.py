"""The story of a run: load a model, read images, capture feature maps, draw views, write pictures."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from fmapviz import rehearsal
from fmapviz.errors import NothingToDoError, OutputError, quote
from fmapviz.forecast import Counting, Room, count_to_draw
from fmapviz.inputs import find_images, is_candidate
from fmapviz.jobs import Asked, make_job, moved, needs_of
from fmapviz.layers import several
from fmapviz.model_pictures import draw_model, has_model
from fmapviz.options import InputOptions, Style
from fmapviz.outputs import opened
from fmapviz.publishing import Publisher
from fmapviz.runs import (
    check_name,
    forgetting_refused,
    is_surveyed,
    note_failure,
    remedy_of,
    writing_to,
)
from fmapviz.shards import discard_wrecks
from fmapviz.statistics import read_dead
from fmapviz.urls import is_url
from fmapviz.values import Counted, Notice, Outcome, RunSummary, Started
from fmapviz.work import sort_out, work

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from torch import nn

    from fmapviz.grouping import Item
    from fmapviz.options import Engine, Part
    from fmapviz.outputs import Output
    from fmapviz.values import Event, Failure, ImageFile, Model
    from fmapviz.work import Job

    Work = Callable[[Job, Iterable[Item]], Generator[Event]]

_AS_TRAINED, _PLAIN = InputOptions(), Style()


def visualize(
    model: str | nn.Module | Model,
    inputs: str | Path | Iterable[str | Path] = (),
    *,
    out: str | Path = "runs",
    name: str | None = None,
    weights: str = "default",
    layers: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    types: str | Sequence[str] = (),
    views: str | Sequence[str] = ("maps",),
    to: str | Sequence[str] = ("tensorboard",),
    style: Style = _PLAIN,
    dtype: str = "float32",
    options: InputOptions = _AS_TRAINED,
    device: str = "auto",
    top: int | None = None,
    targets: str | int | Sequence[str | int] = (),
    output: str | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    strict: bool = False,
    force: bool = False,
    repair: bool = False,
    fsync: bool = False,
    shard: int | None = None,
    part: Part | None = None,
    engine: Engine | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> RunSummary:
    """Draw the feature maps of a model for some images: the whole run.

    Args:
        model: A name such as `alexnet`, any `nn.Module` that takes a batch `(N, 3, H, W)`, or what `load_model` returns.
        inputs: Files and folders, or addresses of such. An iterator is consumed as it yields; with the norm `run` or the
            `pca` `shared`, which need all images before the first is drawn, at once. For views of the model itself there
            need be none.
        out: The directory of all runs, or its address elsewhere, `s3://...`.
        name: The run's directory in `out`; None: the model's name, with a number if that belongs to other settings.
        weights: See `load_model`; only for a model given by name.
        layers: Globs over dotted names; none means all of the types.
        exclude: Globs of names to leave out again.
        types: Class names, matched through base classes; none means Conv2d, or Conv3d where there is no Conv2d.
        views: What to draw. Where heat maps are among them, and neither `layers`, `exclude` nor `types` says of which
            layers, these are chosen automatically; without `types`, a glob that fits none of the usual layers may name any.
        to: Where to: `tensorboard`, `png`, `html`, `raw`, `npz`, `stats`, `tar`.
        style: How the grids look.
        dtype: What `raw` and `npz` keep values as: `float32` or `float16`.
        options: What is wanted otherwise than the weights' own preparation has it.
        device: `auto`, `cpu`, `cuda`, `cuda:1`, `mps`; `auto` leaves a given module where it is.
        top: How many of the classes that the model predicts are told per image; 0: none, and a forward pass ends with the
            last chosen layer. None: 3 if the classes have names, but 0 with `layers` or `exclude`.
        targets: The classes that gradients and heat maps are asked of: `top1`, `top3` (the three likeliest), an index, a
            name; none means `top1`, and the likeliest three for a sheet.
        output: Which part of what the model returns holds the class scores, a key or an index.
        batch_size: Images per forward pass; None: 16 on a GPU; on the CPU 4 if the network's layers are small and each image
            comes out of such a batch as it does alone, bit for bit, 1 otherwise.
        workers: Images in work at once, each in a thread of its own; None: one per core, at most 8. On the CPU a model given
            as a module is copied for them, all but its numbers, unless somebody has hung hooks into it.
        strict: End at the first input that fails.
        force: Draw finished images again.
        repair: Look through finished images, and draw those again of which a file is missing or changed.
        fsync: Wait until an image's files would survive a power failure before it is called done.
        shard: How many images share a directory, 1 to 100,000; None: each has its own. Needs the extra `scale`.
        part: Which of the images, or shards, are wanted; the others are left to other calls with the same inputs.
        engine: Where the work is done; None: in this process. Needs the extra `ray`. `workers` is then what `engine` says.
        on_event: Called in this thread with each `Started`, `Outcome`, `Notice` and, of images in shards, `Staged`.

    Returns:
        What was done; its `exit_code` is the command's.

    Raises:
        RequestError: An unknown model, layer, view, format or device, or weights that cannot be had. Nothing was written.
        NothingToDoError: There was no image among the inputs.
        OutputError: The output could not be written; what is finished stays, and the same call continues.
        RefusedError: `name` belongs to a run with other settings, or to something that fmapviz did not make.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as out:
        ...     summary = visualize("alexnet", "sample_images/shapes.png", weights="random", out=out)
        >>> summary.done, summary.pictures  # five convolutions and the input
        (1, 6)
    """
    asked = Asked(
        model=model,
        weights=weights,
        layers=several(layers),
        exclude=several(exclude),
        types=several(types),
        views=several(views),
        to=several(to),
        style=style,
        dtype=dtype,
        options=options,
        device=device,
        top=top,
        targets=tuple(map(str, [targets] if isinstance(targets, str | int) else targets)),
        output=output,
        batch_size=batch_size,
        workers=workers or min(8, os.cpu_count() or 1),
        shard=shard,
    )
    if engine and device.partition(":")[0] in {"cuda", "mps"}:
        asked = replace(asked, device="auto")  # what they have, this process need not
    asked.check()
    with opened(out) as destination:
        destination.check()
        check_name(name)
        typed = [inputs] if isinstance(inputs, str | Path) else inputs
        images = find_images((os.fspath(path) for path in typed), avoid=destination.address) if asked.needs_images else None
        found = iter(()) if images is None else _first_first(images)
        job, remarks = make_job(asked)
        is_new = not destination.place.exists()
        job.output, job.directory = destination, destination.open_run(job.info, name=name, sync=fsync)
        job.force, job.repair, job.sync, job.part = force, repair, fsync, part
        job.several = not _is_one_file(typed)
        tell = _addressed(destination, on_event or _ignore)
        tell(Started(job.directory, job.info))
        for message in remarks:
            tell(Notice(message))
        again = (
            (lambda: find_images(map(os.fspath, typed), avoid=destination.address)) if isinstance(typed, Sequence) else None
        )
        watch = _Watch(job, again if job.plan.of_images else None, tell)
        with ExitStack() as stack:
            stack.callback(destination.forget, job.directory)
            stack.enter_context(moved(job.model.module, job.device))
            stack.enter_context(forgetting_refused(job.directory, out_too=is_new))
            stack.enter_context(_advised())
            summary = _go_through(job, found, watch.tell, _worker(replace(asked, device=device), engine), strict=strict)
        if not job.plan.of_images and typed:
            tell(Notice(f"{', '.join(asked.views)} needs no image: none was looked at"))
        return replace(
            summary, directory=destination.told(summary.directory), left_out=tuple(map(destination.told, summary.left_out))
        )


class _Watch:
    """Tells what happens and, once it is known, how many inputs there are; ends a run that will not fit on the disk."""

    def __init__(
        self, job: Job, again: Callable[[], Iterable[ImageFile | Failure]] | None, tell: Callable[[Event], None]
    ) -> None:
        self._tell = tell
        self._counting = Counting(again)
        self._told = False
        self._parts = job.part.count if job.part else 1
        shards = job.info.shard is not None

        def remaining() -> int:
            assert again
            return count_to_draw(again(), job.directory, job.info.fingerprint, shards=shards)[1]

        # What is replaced makes room as it goes.
        anew = job.force or job.repair or not job.output.limited
        self._room = None if anew else Room(job.directory, remaining, part=job.part)

    def tell(self, event: Event) -> None:
        """Pass an event on.

        Raises:
            RefusedError: What is still to be written will not fit.
        """
        self._tell(event)
        total = self._counting.total
        if total is not None and not self._told:
            self._told = True
            self._tell(Counted(-(-total // self._parts)))
        if self._room:
            self._room.look(event, total)


def _draw_model(job: Job) -> tuple[int, dict[str, str]]:
    """Draw the views that see no image, and give the number of pictures and what could not be drawn."""
    if not job.plan.kernels:
        return 0, {}
    writers = {form: writer for form, writer in job.writers.items() if "pictures" in needs_of(form)}
    return draw_model(
        job.layers,
        job.plan.kernels,
        writers,
        job.info,
        job.directory,
        output=job.output,
        force=job.force,
        repair=job.repair,
        sync=job.sync,
    )


def _worker(asked: Asked, engine: Engine | None) -> Work:
    """Give what does the work."""
    if engine is None:
        return work
    # Only here: it needs a package that nothing else does.
    return partial(import_module("fmapviz.ray_engine").work, asked=asked, engine=engine)


def _go_through(
    job: Job, found: Iterable[ImageFile | Failure], tell: Callable[[Event], None], do: Work, *, strict: bool
) -> RunSummary:
    """Draw every image, then what sees none, and make what is made of all of them."""
    begun = time.monotonic()
    if job.plan.of_images and job.plan.drawn and is_surveyed(job.info.settings):
        found = list(found)
        job.plan = replace(job.plan, shared=rehearsal.rehearse(job, found, tell))
    publisher = Publisher(job.directory, job.info, job.output, sync=job.sync)
    summary = _account(job, do(job, sort_out(job, found)), tell, publisher, strict=strict)
    if job.info.shard and (job.repair or job.force) and not summary.stopped:
        with writing_to(job.directory):
            discard_wrecks(job.directory, job.part)
    of_model, undrawn = _draw_model(job)
    left_out = publisher.publish()
    if left_out:
        named = f"{quote(job.output.told(left_out[0]))}{' and others' if left_out[1:] else ''}"
        tell(Notice(f"left out of the statistics: {named}, damaged or of another run: fmapviz verify says what helps"))
    return replace(
        summary,
        pictures=summary.pictures + of_model,
        undrawn={**undrawn, **summary.undrawn},
        seconds=time.monotonic() - begun,
        complete=not job.plan.of_images and has_model(job.directory),
        dead=read_dead(job.directory) if "stats" in job.info.formats else {},
        left_out=tuple(left_out),
    )


def _account(
    job: Job, doing: Generator[Event], tell: Callable[[Event], None], publisher: Publisher, *, strict: bool
) -> RunSummary:
    """Do the work, pass on what happens, and count: every input is done, skipped or failed."""
    begun = time.monotonic()
    counts: Counter[str] = Counter()
    failures: list[Failure] = []
    with closing(doing) as events:
        try:
            for event in events:
                tell(event)
                publisher.look()
                if not isinstance(event, Outcome):
                    continue
                counts[event.status] += 1
                counts["pictures"] += event.pictures
                if event.failure:
                    failures.append(event.failure)
                    note_failure(job.directory, event.failure, sync=job.sync)
                    job.output.note(job.directory)
                    if strict:
                        break
            job.output.note(job.directory, now=True)
        except OutputError as error:
            done = counts["done"] + counts["skipped"]
            listed = f"{done} of the {job.found} images listed so far are done"
            error.hint = f"{listed}; {error.hint or remedy_of(error)}"
            raise
    accounted = counts["done"] + counts["skipped"] + counts["failed"]
    assert strict or accounted == job.found
    return RunSummary(
        directory=job.directory,
        found=accounted,
        done=counts["done"],
        skipped=counts["skipped"],
        failed=counts["failed"],
        pictures=counts["pictures"],
        layers=job.last_drawn,
        not_executed=tuple(sorted(job.not_executed)),
        undrawn=dict(job.undrawn),
        failures=tuple(failures),
        seconds=time.monotonic() - begun,
        stopped=strict and bool(failures) and job.several,
    )


@contextmanager
def _advised() -> Iterator[None]:
    """Say what helps against a failure to write, where nothing has been said yet."""
    try:
        yield
    except OutputError as error:
        error.hint = error.hint or remedy_of(error)
        raise


def _first_first(found: Iterator[ImageFile | Failure]) -> Iterator[ImageFile | Failure]:
    """Make sure that there is an input at all, before a model is loaded."""
    first = next(found, None)
    if first is None:
        raise NothingToDoError("no image among the inputs", hint="folders are searched for files such as .jpg, .png, .webp")
    return chain([first], found)


def _is_one_file(inputs: Iterable[str | Path]) -> bool:
    if not isinstance(inputs, Sequence) or len(inputs) != 1:
        return False
    return is_candidate(str(inputs[0])) if is_url(inputs[0]) else Path(inputs[0]).is_file()


def _addressed(output: Output, tell: Callable[[Event], None]) -> Callable[[Event], None]:
    """Tell of directories as others call them."""

    def tell_addressed(event: Event) -> None:
        if isinstance(event, Started):
            event = replace(event, directory=output.told(event.directory))
        elif isinstance(event, Outcome) and event.unit:
            event = replace(event, unit=output.told(event.unit))
        tell(event)

    return tell_addressed


def _ignore(_event: Event) -> None:
    """Tell nobody."""
