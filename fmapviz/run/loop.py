"""Run a configuration: list the inputs, load the model, draw every image, write the run-level results."""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Sequence, Sized
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from inspect import cleandoc, signature
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from fmapviz.config import RunConfig, describe, explain_arguments, renamed
from fmapviz.core import registry
from fmapviz.core.files import writing_to
from fmapviz.core.members import load
from fmapviz.core.notebook import make_bar
from fmapviz.core.urls import is_url
from fmapviz.core.words import counted
from fmapviz.data import Failure, ImageFile
from fmapviz.errors import NothingToDoError, OutputError, RequestError, first_few, quote, suggest_file
from fmapviz.events import MOST_SHOWN, Counted, Notice, Outcome, RunSummary, Started, by_frequency, describe_left_out
from fmapviz.images.films import check_readable, close_films, list_frames, without_unreadable
from fmapviz.images.find import find_images, is_candidate, is_input
from fmapviz.images.frames import may_be_film
from fmapviz.images.memory.image import MemoryImage
from fmapviz.images.memory.inputs import is_all_prepared, only_files, resolve_inputs
from fmapviz.images.notices import NONFINITE
from fmapviz.models.load import is_model
from fmapviz.models.network import takes_volumes
from fmapviz.run import forks
from fmapviz.run.disk_space import RunWatch
from fmapviz.run.layer_list import remember_model
from fmapviz.run.load import find_device, frame_choice, load_session, moved
from fmapviz.run.model_views import draw_model, has_model
from fmapviz.run.pipeline.progress import Progress
from fmapviz.run.pipeline.work import UntilFailure, group, work
from fmapviz.run.publish import Publisher
from fmapviz.run.recorded import request_of
from fmapviz.store.failures import append_failure
from fmapviz.store.presence import Presence
from fmapviz.store.remote.destination import open_destination
from fmapviz.store.run import (
    check_name,
    describe_contents,
    is_series,
    marked,
    names_of,
    remedy_of,
    removed_if_refused,
)
from fmapviz.store.run_files import find_units, has_more_units
from fmapviz.store.shards.shard import remove_damaged_shards
from fmapviz.store.staleness import describe_stale
from fmapviz.store.unfinished import unfinished

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from fmapviz.core.notebook import Bar
    from fmapviz.events import Event
    from fmapviz.run.session import Session
    from fmapviz.store.remote.destination import Destination

    Load = Callable[[RunConfig], tuple[Session, list[str]]]
    Items = Iterable[ImageFile | Failure]
    Rounds = Callable[[Session, Items, Callable[[Event], None]], Iterator[tuple[Session, Items]]]

P = ParamSpec("P")
MOST_MISSING = 10_000  # inputs that do not exist; with more of them, a run begins and records them


def run(
    config: RunConfig,
    *,
    open_session: Load = load_session,
    images: Sequence[ImageFile] | None = None,
    rounds: Rounds | None = None,
) -> RunSummary:
    """Draw the views of a configuration for all its images.

    Args:
        config: The configuration.
        open_session: Loads the network, or two.
        images: The images; None: they are listed from the inputs of the configuration.
        rounds: Yields the session and the images of each round in which all images are drawn; None: one round.

    Returns:
        What was done; its `exit_code` is the command's.

    Raises:
        RequestError: An unknown model, layer, view, format or device, or unavailable weights. Nothing was written.
        NothingToDoError: There was no image among the inputs, or none of them exists. Nothing was written.
        OutputError: The output could not be written; what is finished stays, and the same call continues.
        RefusedError: `name` belongs to a run with other settings, or to files that fmapviz did not make.
    """
    of_inputs, no_inputs = list[Notice](), Counter[str]()
    inputs = _read_inputs(config, of_inputs)
    is_remote = config.engine is not None and config.device.partition(":")[0] in {"cuda", "mps"}
    if not is_remote:
        find_device(config)  # before a model is loaded
    with open_destination(config.out) as destination:
        destination.check()
        check_name(config.name)
        found: Iterator[ImageFile | Failure] = iter(images or ())
        if config.needs_images and images is None:
            found = _find(inputs, destination, of_inputs, no_inputs)
        session, notices = open_session(replace(config, device="auto") if is_remote else config)
        is_new = not os.path.exists(destination.directory)
        info = replace(session.info, request=request_of(session, config, inputs))
        session = replace(
            session,
            request=config,  # workers may have packages that this process lacks
            info=info,
            inputs=inputs,  # those in memory stay there as long as the run
            images=images,
            output=destination,
            directory=destination.open_run(info, name=config.name, sync=config.fsync),
            several=not _is_one_file(inputs),
        )
        found = list_frames(found, frame_choice(session), of_inputs.append)
        messages: list[str] = []
        bar = make_bar("images") if config.progress and session.plan.of_images else None

        def on_event(event: Event) -> None:
            if isinstance(event, Notice):
                if event.message in messages:  # of two passes over the images
                    return
                messages.append(event.message)
            if bar:
                _advance(bar, event)
            if config.on_event:
                config.on_event(event)

        on_event(Started(destination.address_of(session.directory), session.info))
        if not isinstance(inputs, list):  # they are checked when they arrive
            found = _saying(session.model.assumption, found, of_inputs)
        if not isinstance(inputs, list) or is_all_prepared(inputs):
            notices = [each for each in notices if each != session.model.assumption]
        for message in notices:
            on_event(Notice(message))
        of_number = [*map(Notice, _explain_number(session))]
        watch = RunWatch(session, _once_written(of_number, on_event))
        with ExitStack() as stack:
            stack.callback(close_films)
            stack.callback(destination.discard_run, session.directory)
            stack.enter_context(moved(session.model.module, session.device))
            stack.enter_context(removed_if_refused(session.directory, out_too=is_new))
            stack.enter_context(advising())
            summary = _draw_recorded(session, found, watch, rounds)
            remember_model(config.model, session.model)
        if bar:
            bar.total = summary.found
            bar.show()
        for notice in (*of_number, *of_inputs):
            on_event(notice)
        for message in _crowds(session, summary):
            on_event(Notice(message))
        if not session.plan.of_images and inputs:
            on_event(Notice(f"{', '.join(config.views)} needs no image: the inputs were ignored"))
        return replace(summary, notices=tuple(messages), no_inputs=by_frequency(no_inputs))


def _draw_recorded(
    session: Session, found: Iterator[ImageFile | Failure], watch: RunWatch, rounds: Rounds | None
) -> RunSummary:
    """Draw all images; a local run is marked as being written, and has a record until all inputs are accounted for."""
    presence = Presence(session.directory, session.output.address_of(session.directory))

    def watched(event: Event) -> None:
        if isinstance(event, Outcome) and event.unit:
            presence.note(event.unit)
        watch.note(event)

    if not session.output.is_local:
        summary = draw_all(session, found, watched, rounds)
        session.output.refresh(session.directory)
        presence.check()
        return summary
    config, listed = session.request, isinstance(session.inputs, Sequence)
    given = [each.name if isinstance(each, MemoryImage) else str(each) for each in (session.inputs if listed else ())]
    with suppress(OSError):  # the working directory was removed
        given = [each if is_url(each) else os.path.abspath(each) for each in given]  # noqa: PTH100  not resolved
    given += [repr((listed, config.every, config.frames))]
    part = f"{config.part.number}/{config.part.count}" if config.part else ""
    with marked(session.directory), unfinished(session.directory, given, watch.count, part=part) as command:

        def note(event: Event) -> None:
            watched(event)
            command.note(event)

        summary = draw_all(session, found, note, rounds)
        presence.check()
        if summary.stopped:
            command.end("failed", "stopped at the first failure")
        return summary


def _advance(bar: Bar, event: Event) -> None:
    """Show an event in the progress bar of a notebook."""
    if isinstance(event, Outcome):
        bar.advance()
    elif isinstance(event, Counted):
        bar.total = event.images


def _read_inputs(config: RunConfig, notices: list[Notice]) -> Iterable[str | Path | MemoryImage]:
    """Return the inputs, as a list if they can be listed twice; append remarks on them to `notices`."""

    def remark(text: str) -> None:
        notices.append(Notice(text))

    inputs = resolve_inputs(config.inputs, remark, volumes=takes_volumes(config.model))
    return inputs if config.engine is None else only_files(inputs)


def _find(
    inputs: Iterable[str | Path | MemoryImage], destination: Destination, notices: list[Notice], no_inputs: Counter[str]
) -> Iterator[ImageFile | Failure]:
    """List the images, at least one; append remarks to `notices`, and count other files in `no_inputs`."""
    check_readable(inputs)
    every = find_images(inputs, avoid=destination.address, left_out=no_inputs)
    try:
        return require_one(without_unreadable(every, notices.append), inputs, no_inputs)
    except NothingToDoError as error:
        raise NothingToDoError(str(error), hint=notices[0].message if notices else error.hint) from None


def _saying(assumption: str, found: Iterator[ImageFile | Failure], notices: list[Notice]) -> Iterator[ImageFile | Failure]:
    """Yield images; at the first that is preprocessed, append the assumption about the preprocessing to `notices`."""
    for each in found:
        if assumption and isinstance(each, ImageFile) and not is_all_prepared([each.content]):
            notices.append(Notice(assumption))
            assumption = ""
        yield each


def _once_written(notices: list[Notice], on_event: Callable[[Event], None]) -> Callable[[Event], None]:
    """Return a function that reports events, and before the first finished image the notices, which it removes."""

    def report(event: Event) -> None:
        while notices and isinstance(event, Outcome) and event.status != "failed":
            on_event(notices.pop(0))
        on_event(event)

    return report


def _explain_number(session: Session) -> Iterator[str]:
    """Yield the reason for a number in the name of a run."""
    directory, address_of = session.directory, session.output.address_of
    plain = directory.with_name(next(names_of(session.info, session.request.name)))
    if plain != directory and os.path.exists(plain):
        found = describe_contents(plain, session.info)
        yield f"{address_of(plain)} holds {found}; this run is {address_of(directory)}"


def _crowds(session: Session, summary: RunSummary) -> Iterator[str]:
    """Yield advice on opening the results of a large number of images."""
    units = -(-(summary.done + summary.skipped) // (session.config.shard or 1))
    for form in session.config.to:
        if is_series(session.info.settings) and registry.form(form).write_series:
            continue  # it has all of them in one place
        known = registry.form(form)
        most = known.crowd
        if most and (units > most or has_more_units(session.output.directory, known.unit_files[0], most)):
            yield known.crowded


def _taking_options(make: Callable[P, RunConfig]) -> Callable[[Callable[..., RunSummary]], Callable[P, RunSummary]]:
    """Return a decorator that gives a function of `**options` the parameters of a configuration, and their help."""

    def decorate(function: Callable[..., RunSummary]) -> Callable[P, RunSummary]:
        function.__doc__ = cleandoc(function.__doc__ or "").format(options=describe(RunConfig).lstrip())
        function.__signature__ = signature(make).replace(return_annotation="RunSummary")  # type: ignore[attr-defined]  # for help()
        return function

    return decorate


@renamed(top="predictions", options="preprocessing")
@explain_arguments
@_taking_options(RunConfig)
def visualize(*args: Any, **options: Any) -> RunSummary:  # Any: the fields of RunConfig
    """Draw the feature maps of a model for images, into a run directory.

    Args:
        {options}

    Without `on_event`, a warning says how many inputs failed.

    Returns:
        What was done; its `exit_code` is the command's.

    Raises:
        RequestError: A model, layer, view, format or device is unknown, or
            weights cannot be loaded. Nothing was written.
        NothingToDoError: The inputs contain no image, or do not exist.
        OutputError: The output could not be written. Finished images are
            kept, and the same call continues.
        RefusedError: `name` belongs to a run with other settings, or to
            files that fmapviz did not make.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as out:
        ...     image = "sample_images/shapes.png"
        ...     summary = visualize("alexnet", image, weights="random", out=out)
        >>> summary.done, summary.pictures  # five convolutions and the input
        (1, 6)
    """
    given = signature(RunConfig).bind(*args, **options).arguments
    _check_order(given["model"], given.get("inputs"))
    config = RunConfig(*args, **options)
    summary = run(config)
    if summary.failures and config.on_event is None:
        first = summary.failures[0]
        failed = f"{summary.failed} of {counted(summary.found, 'input')} failed"
        message = f"{failed}, see the summary's failures; the first: {first.message}"
        warnings.warn(f"{message} [{first.code}]", stacklevel=4)
    return summary


def _check_order(model: object, inputs: object) -> None:
    """Check that the model is no file or folder of images.

    Raises:
        RequestError: It is one.
    """
    path = model[0] if isinstance(model, list | tuple) and model else model
    if isinstance(path, str | Path) and not is_model(path) and is_input(path):
        first = quote(inputs) if is_model(inputs) else "model"
        second = quote(path) if path is model else "inputs"
        raise RequestError(f"no such model: {quote(path)}", hint=f"the model comes first: visualize({first}, {second})")


def draw_all(session: Session, found: Items, on_event: Callable[[Event], None], rounds: Rounds | None = None) -> RunSummary:
    """Draw every image in each round, and write the run-level results.

    Args:
        session: The run.
        found: The images.
        on_event: Called with each event.
        rounds: See `run`.
    """
    begun, once, parts = time.monotonic(), 0, list[RunSummary]()
    failures, undrawn, stages = list[Failure](), dict[str, str](), session.stages

    def on_failure(event: Event) -> None:
        if isinstance(event, Outcome) and event.failure:
            failures.append(event.failure)
        on_event(event)

    for stage in stages:
        session, found = stage.before(session, found, on_event)
    publisher = Publisher(session, more=[name for stage in stages for name in stage.aggregates])
    for at, items in rounds(session, found, on_failure) if rounds else iter([(session, found)]):
        parts.append(draw_images(at, items, on_event, publisher))
        if session.config.shard and (session.config.repair or session.config.force) and not parts[-1].stopped:
            with writing_to(session.directory):
                remove_damaged_shards(session.directory, session.config.part)
        of_model, own = draw_model(at, on_event)
        undrawn |= own
        stages = at.stages
        once += of_model + sum(stage.after(at, on_event) for stage in stages)
        del at, items  # before another network is loaded
    if rounds:
        _write_series(session)
    left_out = publisher.publish()
    if left_out:
        named = f"{quote(session.output.address_of(left_out[0]))}{' and others' if left_out[1:] else ''}"
        on_event(
            Notice(f"left out of the results over all images: {named}: damaged, or of another run; see `fmapviz verify`")
        )
    if stale := describe_stale(session.directory, session.output.address_of(session.directory)):
        on_event(Notice(stale))
    results, highlights = publisher.report()
    summary = replace(
        _join(parts, failures),
        once=once,
        steps=len(parts) if rounds else 0,
        seconds=time.monotonic() - begun,
        model_pictures=not session.plan.of_images and has_model(session.directory),
        results=results,
        highlights=tuple(highlights),
        left_out=tuple(map(session.output.address_of, left_out)),
    )
    summary = replace(summary, pictures=summary.pictures + once, undrawn={**undrawn, **summary.undrawn})
    for stage in stages:
        summary = stage.report(session, summary, on_event)
    return summary


def _write_series(session: Session) -> None:
    """Write the files of formats that collect all rounds."""
    for form in map(registry.form, session.config.to):
        if form.write_series:
            with writing_to(session.directory):
                load(form.write_series)(session.directory, find_units(session.directory))


def _join(parts: Sequence[RunSummary], failures: Sequence[Failure]) -> RunSummary:
    """Return the summary of all rounds; a round that failed counts as an input that failed."""
    return replace(
        parts[-1],
        found=sum(part.found for part in parts) + len(failures),
        done=sum(part.done for part in parts),
        skipped=sum(part.skipped for part in parts),
        failed=sum(part.failed for part in parts) + len(failures),
        pictures=sum(part.pictures for part in parts),
        not_executed=tuple(sorted({name for part in parts for name in part.not_executed})),
        undrawn={name: reason for part in parts for name, reason in part.undrawn.items()},
        failures=(*failures, *(failure for part in parts for failure in part.failures)),
        stopped=any(part.stopped for part in parts),
    )


def draw_images(
    session: Session,
    found: Iterable[ImageFile | Failure],
    on_event: Callable[[Event], None],
    publisher: Publisher,
) -> RunSummary:
    """Draw every image, forward events, and count the inputs that are done, skipped or failed.

    With `strict`, the run ends when the inputs before the first failure are accounted for.
    """
    config, begun, progress = session.config, time.monotonic(), Progress()
    counts: Counter[str] = Counter()
    failures: list[Failure] = []
    units: list[Path] = []
    until_failure = UntilFailure() if config.strict else None
    items = until_failure.group(session, found) if until_failure else group(session, found)
    do: Callable[..., Generator[Event, None, None]] = work
    if session.request.engine:
        from fmapviz.run.ray import driver  # needs the extra `ray`

        do = driver.work
    elif forks.suit(session):
        do = forks.work
    with closing(do(session, items, progress=progress)) as events:
        try:
            for event in events:
                on_event(_addressed(event, session.output))
                publisher.publish_if_due(counts["done"] + counts["skipped"])
                if not isinstance(event, Outcome):
                    continue
                counts[event.status] += 1
                counts["pictures"] += event.pictures
                if event.unit:
                    units = sorted({*units, session.output.address_of(event.unit)})[:MOST_SHOWN]
                if event.failure:
                    failures.append(event.failure)
                    append_failure(session.directory, event.failure, sync=config.fsync)
                    session.output.upload_failures(session.directory)
                if until_failure and until_failure.is_over(event) and not config.shard:  # a shard is finished as a whole
                    break
            for where, images in sorted(progress.nonfinite.items()):
                on_event(Notice(f"{NONFINITE} in {counted(images, 'image')}, {where}"))
            session.output.upload_failures(session.directory, now=True)
        except OutputError as error:
            done = f"{counts['done'] + counts['skipped']} of the {counted(progress.found, 'image')} listed so far are done"
            error.advise(f"{done}; {error.hint or remedy_of(error)}")
            raise
    accounted = counts["done"] + counts["skipped"] + counts["failed"]
    assert config.strict or accounted == progress.found
    return RunSummary(
        directory=session.output.address_of(session.directory),
        found=accounted,
        done=counts["done"],
        skipped=counts["skipped"],
        failed=counts["failed"],
        pictures=counts["pictures"],
        layers=len(progress.layers),
        not_executed=progress.never_executed(),
        undrawn=progress.not_drawn(),
        failures=tuple(failures),
        seconds=time.monotonic() - begun,
        stopped=config.strict and bool(failures) and session.several,
        units=tuple(units),
    )


@contextmanager
def advising() -> Iterator[None]:
    """Add a hint to an `OutputError` without one."""
    try:
        yield
    except OutputError as error:
        error.advise(error.hint or remedy_of(error))
        raise


def require_one(
    found: Iterator[ImageFile | Failure], inputs: Iterable[object], left_out: Mapping[str, int] | None = None
) -> Iterator[ImageFile | Failure]:
    """Check that at least one input exists, before a model is loaded.

    A stream is read up to the first such input, but no more than `MOST_MISSING` others are kept in memory.

    Raises:
        NothingToDoError: There is none.
    """
    missing: list[Failure] = []
    for each in found:
        if not isinstance(each, Failure) or each.code != "E_MISSING" or os.path.lexists(each.path):
            return chain(missing, [each], found)
        if len(missing) == MOST_MISSING:
            return chain(missing, [each], found)
        missing.append(each)
    if not missing:
        raise no_image(inputs, left_out)
    missed = [each.path for each in missing]
    message = f"none of the {len(missed)} inputs exists: {first_few(missed)}" if len(missed) > 1 else missing[0].message
    if is_url(missed[0]):
        hint = missing[0].hint or "the store has no such object, and no folder of that name"
    else:
        hint = missing[0].hint or suggest_file(missed[0], is_candidate)
    raise NothingToDoError(message, hint=hint)


def no_image(inputs: Iterable[object], left_out: Mapping[str, int] | None = None) -> NothingToDoError:
    """Return the error for inputs among which there is no image."""
    message, hint = "no image among the inputs", "folders are searched for files such as .jpg, .png, .webp"
    if left_out:
        message = f"{message}; left out are {describe_left_out(left_out)}"
    if isinstance(inputs, Sized) and len(inputs) == 0:
        message, hint = f"{message}: the list is empty", "files or folders, such as 'photo.jpg'"
    return NothingToDoError(message, hint=hint)


def _is_one_file(inputs: Iterable[str | Path | MemoryImage]) -> bool:
    (only,) = inputs if isinstance(inputs, Sequence) and len(inputs) == 1 else (None,)
    if only is None or isinstance(only, MemoryImage):
        return only is not None
    return not may_be_film(str(only)) and (is_candidate(str(only)) if is_url(only) else os.path.isfile(only))


def _addressed(event: Event, output: Destination) -> Event:
    """Return an event with the address of a unit in place of its local copy."""
    if isinstance(event, Outcome) and event.unit:
        return replace(event, unit=output.address_of(event.unit))
    return event
