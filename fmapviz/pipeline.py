"""The story of a run: load a model, read images, capture feature maps, draw views, write pictures."""

from __future__ import annotations

import errno
import os
import platform
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import chain
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from fmapviz import __version__, registry, rehearsal
from fmapviz.errors import NothingToDoError, OutputError, RequestError, quote
from fmapviz.forecast import Counting, Room, count_to_draw
from fmapviz.foresight import Foresight
from fmapviz.formats import check_shards
from fmapviz.inputs import find_images
from fmapviz.layers import absent_types, default_types, find_layers, scripted_parts, select_layers, several, unwrap
from fmapviz.model_pictures import draw_model, has_model
from fmapviz.models import load_model
from fmapviz.options import InputOptions, Style
from fmapviz.own_networks import describe_network
from fmapviz.plan import make_plan
from fmapviz.predictions import TOP
from fmapviz.publishing import Publisher
from fmapviz.registry import VIEWS, WRITERS
from fmapviz.runs import check_name, check_output, forgetting_refused, is_surveyed, note_failure, open_run, writing_to
from fmapviz.shards import discard_wrecks
from fmapviz.statistics import read_dead
from fmapviz.values import Counted, Model, Notice, Outcome, RunInfo, RunSummary, Started
from fmapviz.vision import torchvision
from fmapviz.work import Job, work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fmapviz.options import Part
    from fmapviz.plan import Plan
    from fmapviz.values import Event, Failure, ImageFile, Layer

_AS_TRAINED, _PLAIN = InputOptions(), Style()

# What helps against a failure to write.
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room and run the same command again"),
    **dict.fromkeys(
        (errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO), "move that away, and the same command continues"
    ),
    errno.EFBIG: "allow larger files (ulimit -f), and the same command continues",
}


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
    on_event: Callable[[Event], None] | None = None,
) -> RunSummary:
    """Draw the feature maps of a model for some images: the whole run.

    Args:
        model: A name such as `alexnet`, any `nn.Module` that takes a batch `(N, 3, H, W)`, or what `load_model` returns.
        inputs: Files and folders. An iterator is consumed as it yields; with the norm `run` or the `pca` `shared`, which
            need all images before the first is drawn, at once. For views of the model itself there need be none.
        out: The directory of all runs.
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
    out = Path(out)
    layers, exclude, types, views, to = map(several, (layers, exclude, types, views, to))
    _check_members(VIEWS, views)
    _check_members(WRITERS, to)
    _check_number("top", top, least=0)
    _check_number("batch size", batch_size)
    _check_number("workers", workers, most=1024)
    check_shards(shard, to)
    if dtype not in {"float32", "float16"}:
        raise RequestError(f"no such dtype: {quote(dtype)}", hint="one of float32, float16")
    check_output(out)
    check_name(name)
    _device(device, None)
    typed = [inputs] if isinstance(inputs, str | Path) else inputs
    needs_images = any(registry.constant(VIEWS, view, "NEEDS") != "kernels" for view in views)
    found = _first_first(find_images((os.fspath(path) for path in typed), avoid=out)) if needs_images else iter(())
    loaded = _load(model, weights, options)
    target = _device(device, loaded.module if isinstance(model, nn.Module) else None)
    existing = find_layers(loaded.module)
    kinds = tuple(sorted(types)) or default_types(existing)
    narrowed = bool(layers or exclude)
    asked = tuple(map(str, [targets] if isinstance(targets, str | int) else targets))
    formats = _with_implied(to)
    plan = make_plan(
        tuple(dict.fromkeys(views)),
        targets=asked,
        classes=loaded.classes,
        output=output,
        automatic=not (narrowed or types),
    )
    plan = _adapt(plan, formats, dtype, views)
    chosen = []
    if plan.of_layers or plan.kernels or (plan.of_maps and not plan.automatic):
        any_type = plan.of_maps and not types
        chosen = select_layers(existing, types=kinds, include=layers, exclude=exclude, any_type=any_type)
    info = RunInfo(
        model=loaded.name,
        weights=loaded.weights,
        sha256=loaded.sha256,
        preparation=loaded.preparation.description,
        types=kinds,
        layers=tuple(layers),
        exclude=tuple(exclude),
        views=tuple(dict.fromkeys(views)),
        formats=formats,
        style=style if "pca" in views else replace(style, pca="image"),  # what changes nothing is no other run
        top=_how_many(top, loaded, narrowed=narrowed and not plan.of_classes),
        targets=asked,
        output=output,
        dtype=plan.kept or "float32",
        shard=shard,
        versions=_versions(),
    )
    is_new = not out.exists()
    directory = open_run(out, info, name=name, sync=fsync)
    tell = on_event or _ignore
    tell(Started(directory, info))
    remarks = _remarks(existing, types, kinds) if chosen else ()
    for message in (*remarks, *_fruitless(plan, info), *loaded.notices, *_unnamed(loaded, top)):
        tell(Notice(message))
    job = Job(
        model=loaded,
        layers=chosen,
        plan=plan,
        writers={form: registry.fetch(WRITERS, form).open_writer for form in info.formats},
        info=info,
        directory=directory,
        device=target,
        batch_size=(batch_size or (None if target.type == "cpu" else 16)) if loaded.batches else 1,
        workers=workers or min(8, os.cpu_count() or 1),
        force=force,
        repair=repair,
        sync=fsync,
        several=not _is_one_file(typed),
        part=part,
        foresight=_foresee(loaded, chosen, narrowed=bool(layers or exclude or types)) if chosen else None,
    )
    again = (lambda: find_images(map(os.fspath, typed), avoid=out)) if isinstance(typed, Sequence) else None
    watch = _Watch(job, again if plan.of_images else None, tell)
    with _moved(loaded.module, target), forgetting_refused(directory, out_too=is_new), _advised():
        summary = _go_through(job, found, watch.tell, strict=strict)
    if not plan.of_images and typed:
        tell(Notice(f"{', '.join(views)} needs no image: none was looked at"))
    return summary


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
        anew = job.force or job.repair
        self._room = None if anew else Room(job.directory, remaining, part=job.part, shards=shards)

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


def _adapt(plan: Plan, formats: Sequence[str], dtype: str, views: Sequence[str]) -> Plan:
    """Find out no more, and draw no more, than the formats need.

    Raises:
        RequestError: A format would be given nothing.
    """
    needs = {need for form in formats for need in _needs(form)}
    if not plan.of_images and "pictures" not in needs:
        raise RequestError(f"{', '.join(views)} gives pictures only", hint="--to png, html or tensorboard")
    if not plan.of_layers and any(_needs(form) == ["measures"] for form in formats):
        raise RequestError(f"{', '.join(views)} gives no statistics", hint="--view maps too, or inputs, grads, mean, ...")
    plan = replace(plan, moments="measures" in needs, kept=dtype if "values" in needs else None)
    if "pictures" in needs:
        return plan
    return replace(plan.without_pictures(), kernels={}, methods=plan.methods if "values" in needs else {})


def _needs(form: str) -> list[str]:
    return (registry.constant(WRITERS, form, "NEEDS") or "pictures").split()


def _with_implied(formats: Iterable[str]) -> tuple[str, ...]:
    """Add the formats that others are made of."""
    implied = (registry.constant(WRITERS, form, "WITH") for form in formats)
    return tuple(sorted({*formats, *filter(None, implied)}))


def _draw_model(job: Job) -> tuple[int, dict[str, str]]:
    """Draw the views that see no image, and give the number of pictures and what could not be drawn."""
    if not job.plan.kernels:
        return 0, {}
    writers = {form: writer for form, writer in job.writers.items() if "pictures" in _needs(form)}
    return draw_model(
        job.layers, job.plan.kernels, writers, job.info, job.directory, force=job.force, repair=job.repair, sync=job.sync
    )


def _go_through(
    job: Job, found: Iterable[ImageFile | Failure], tell: Callable[[Event], None], *, strict: bool
) -> RunSummary:
    """Draw every image, then what sees none, and make what is made of all of them."""
    begun = time.monotonic()
    if job.plan.of_images and job.plan.drawn and is_surveyed(job.info.settings):
        found = list(found)
        job.plan = replace(job.plan, shared=rehearsal.rehearse(job, found, tell))
    publisher = Publisher(job.directory, job.info, sync=job.sync)
    summary = _account(job, found, tell, publisher, strict=strict)
    if job.info.shard and (job.repair or job.force) and not summary.stopped:
        with writing_to(job.directory):
            discard_wrecks(job.directory, job.part)
    of_model, undrawn = _draw_model(job)
    left_out = publisher.publish()
    if left_out:
        named = f"{quote(left_out[0])}{' and others' if left_out[1:] else ''}"
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
    job: Job, found: Iterable[ImageFile | Failure], tell: Callable[[Event], None], publisher: Publisher, *, strict: bool
) -> RunSummary:
    """Do the work, pass on what happens, and count: every input is done, skipped or failed."""
    begun = time.monotonic()
    counts: Counter[str] = Counter()
    failures: list[Failure] = []
    with closing(work(job, found)) as events:
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
                    if strict:
                        break
        except OutputError as error:
            done = counts["done"] + counts["skipped"]
            listed = f"{done} of the {job.found} images listed so far are done"
            error.hint = f"{listed}; {_remedy(error)}"
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
        error.hint = error.hint or _remedy(error)
        raise


def _remedy(error: OutputError) -> str:
    return _REMEDIES.get(getattr(error.__cause__, "errno", None) or 0, "the same command continues")


def _check_members(package: str, members: Sequence[str]) -> None:
    for member in members:
        registry.check(package, member)
    if not members:
        raise RequestError(f"nothing chosen of {', '.join(registry.names(package))}")


def _check_number(option: str, number: int | None, *, least: int = 1, most: float = inf) -> None:
    if number is not None and number < least:
        raise RequestError(f"{option} must be at least {least}: '{number}'")
    if number is not None and number > most:
        raise RequestError(f"{option} must be at most {most}: '{number}'")


def _remarks(layers: Sequence[Layer], asked: Sequence[str], types: Sequence[str]) -> Iterator[str]:
    """Say what of a network is looked at otherwise than expected, or not at all."""
    if not asked and types == ("Conv3d",):
        yield "the model has no Conv2d layer: its Conv3d layers are drawn, frame by frame"
    if absent := absent_types(layers, asked):
        yield f"no layer of type {', '.join(map(quote, absent))} in the model"
    if parts := scripted_parts(layers):
        yield f"scripted, so that the layers inside cannot be seen: {', '.join(parts)}"


def _fruitless(plan: Plan, info: RunInfo) -> Iterator[str]:
    """Say which views no format takes anything of."""
    if views := [view for view in info.views if not plan.gives(view)]:
        yield f"nothing comes of {', '.join(views)}: pictures need --to png, html or tensorboard too"


def _how_many(top: int | None, model: Model, *, narrowed: bool) -> int:
    """Say how many classes to predict; where only some layers are wanted, nobody should wait for the others unasked."""
    if not model.classes:
        return 0
    return (0 if narrowed else TOP) if top is None else min(top, len(model.classes))


def _unnamed(model: Model, top: int | None) -> Iterator[str]:
    if top and not model.classes:
        yield f"no predictions: nobody knows what the outputs of {model.label} mean"


def _first_first(found: Iterator[ImageFile | Failure]) -> Iterator[ImageFile | Failure]:
    """Make sure that there is an input at all, before a model is loaded."""
    first = next(found, None)
    if first is None:
        raise NothingToDoError("no image among the inputs", hint="folders are searched for files such as .jpg, .png, .webp")
    return chain([first], found)


def _foresee(model: Model, layers: Sequence[Layer], *, narrowed: bool) -> Foresight | None:
    """Say when a forward pass may end; one whose output is wanted goes to its end all the same."""
    if model.straight and all(layer.type in {"Conv2d", "Conv3d"} for layer in layers):
        return Foresight(len(layers))
    return Foresight() if narrowed else None


def _is_one_file(inputs: Iterable[str | Path]) -> bool:
    return isinstance(inputs, Sequence) and len(inputs) == 1 and Path(inputs[0]).is_file()


def _load(model: str | nn.Module | Model, weights: str, options: InputOptions) -> Model:
    if isinstance(model, str):
        loaded = load_model(model, weights=weights, options=options)
        return replace(loaded, module=unwrap(loaded.module))
    if weights != "default":
        raise RequestError(
            f"the model has weights already: {quote(weights)}", hint="only a model given by name takes weights"
        )
    if isinstance(model, Model):
        return replace(model, module=unwrap(model.module))
    module = unwrap(model)
    return describe_network(
        module,
        name=type(module).__name__.lower(),
        weights="weights as given",
        options=options,
    )


def _device(name: str, given: nn.Module | None) -> torch.device:
    if name == "auto":
        home = _home(given) if given else None
        if home is not None:
            return home
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()  # the meta device gives nothing back
    except Exception as error:  # RuntimeError, AssertionError, ...: each backend has its own way to be absent
        raise RequestError(f"no such device here: {quote(name)}", hint="--device auto takes what there is") from error
    return device


@contextmanager
def _moved(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Have a module on another device for a while."""
    home = _home(module)
    if home is None or home == device:
        yield
        return
    try:
        module.to(device)
        yield
    finally:
        module.to(home)


def _home(module: nn.Module) -> torch.device | None:
    return next((values.device for values in chain(module.parameters(), module.buffers())), None)


def _versions() -> dict[str, str]:
    return {
        "fmapviz": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
    }


def _ignore(_event: Event) -> None:
    """Tell nobody."""
