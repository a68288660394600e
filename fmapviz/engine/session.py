"""Make of what was asked for what every step of a run needs to know."""

from __future__ import annotations

import platform
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from fmapviz import __version__, registry
from fmapviz.errors import RequestError, quote
from fmapviz.foresight import Foresight
from fmapviz.formats import check_shards
from fmapviz.layers import absent_types, default_types, find_layers, scripted_parts, select_layers, unwrap
from fmapviz.models import load_model
from fmapviz.own_networks import describe_network
from fmapviz.plan import make_plan
from fmapviz.predictions import TOP
from fmapviz.registry import VIEWS, WRITERS
from fmapviz.values import Model, RunInfo
from fmapviz.vision import torchvision
from fmapviz.work import Job

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fmapviz.options import InputOptions, Style
    from fmapviz.plan import Plan
    from fmapviz.values import Layer

# The run directory is known later.
NOWHERE = Path()


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What was asked for, as far as it decides what is drawn of an image; see `fmapviz.visualize`."""

    model: str | nn.Module | Model
    weights: str
    layers: tuple[str, ...]
    exclude: tuple[str, ...]
    types: tuple[str, ...]
    views: tuple[str, ...]
    to: tuple[str, ...]
    style: Style
    dtype: str
    options: InputOptions
    device: str
    top: int | None
    targets: tuple[str, ...]
    output: str | None
    batch_size: int | None
    workers: int
    shard: int | None

    @property
    def needs_images(self) -> bool:
        """Whether anything is to be seen of images, and not of the model alone."""
        return any(registry.constant(VIEWS, view, "NEEDS") != "kernels" for view in self.views)

    def check(self) -> None:
        """Make sure, before anything is loaded, that it can be.

        Raises:
            RequestError: It cannot.
        """
        _check_members(VIEWS, self.views)
        _check_members(WRITERS, self.to)
        _check_number("top", self.top, least=0)
        _check_number("batch size", self.batch_size)
        _check_number("workers", self.workers, most=1024)
        check_shards(self.shard, self.to)
        if self.dtype not in {"float32", "float16"}:
            raise RequestError(f"no such dtype: {quote(self.dtype)}", hint="one of float32, float16")
        _device(self.device, None)


def make_job(asked: Asked) -> tuple[Job, list[str]]:
    """Load the model and choose its layers.

    Returns:
        What every step needs to know, and what a person should.

    Raises:
        RequestError: An unknown model, layer or device, or weights that cannot be had.
    """
    loaded = _load(asked.model, asked.weights, asked.options)
    target = _device(asked.device, loaded.module if isinstance(asked.model, nn.Module) else None)
    existing = find_layers(loaded.module)
    kinds = tuple(sorted(asked.types)) or default_types(existing)
    narrowed = bool(asked.layers or asked.exclude)
    formats = _with_implied(asked.to)
    plan = make_plan(
        tuple(dict.fromkeys(asked.views)),
        targets=asked.targets,
        classes=loaded.classes,
        output=asked.output,
        automatic=not (narrowed or asked.types),
    )
    plan = _adapt(plan, formats, asked.dtype, asked.views)
    chosen = []
    if plan.of_layers or plan.kernels or (plan.of_maps and not plan.automatic):
        any_type = plan.of_maps and not asked.types
        chosen = select_layers(existing, types=kinds, include=asked.layers, exclude=asked.exclude, any_type=any_type)
    info = RunInfo(
        model=loaded.name,
        weights=loaded.weights,
        sha256=loaded.sha256,
        preparation=loaded.preparation.description,
        types=kinds,
        layers=asked.layers,
        exclude=asked.exclude,
        views=tuple(dict.fromkeys(asked.views)),
        formats=formats,
        # What changes nothing makes no other run.
        style=asked.style if "pca" in asked.views else replace(asked.style, pca="image"),
        top=_how_many(asked.top, loaded, narrowed=narrowed and not plan.of_classes),
        targets=asked.targets,
        output=asked.output,
        dtype=plan.kept or "float32",
        shard=asked.shard,
        versions=_versions(),
    )
    job = Job(
        model=loaded,
        layers=chosen,
        plan=plan,
        writers={form: registry.fetch(WRITERS, form).open_writer for form in info.formats},
        info=info,
        directory=NOWHERE,
        device=target,
        batch_size=(asked.batch_size or (None if target.type == "cpu" else 16)) if loaded.batches else 1,
        workers=asked.workers,
        foresight=_foresee(loaded, chosen, narrowed=bool(narrowed or asked.types)) if chosen else None,
    )
    remarks = _remarks(existing, asked.types, kinds) if chosen else ()
    return job, [*remarks, *_fruitless(plan, info), *loaded.notices, *_unnamed(loaded, asked.top)]


@contextmanager
def moved(module: nn.Module, device: torch.device) -> Iterator[None]:
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


def _adapt(plan: Plan, formats: Sequence[str], dtype: str, views: Sequence[str]) -> Plan:
    """Find out no more, and draw no more, than the formats need.

    Raises:
        RequestError: A format would be given nothing.
    """
    needs = {need for form in formats for need in needs_of(form)}
    if not plan.of_images and "pictures" not in needs:
        raise RequestError(f"{', '.join(views)} gives pictures only", hint="--to png, html or tensorboard")
    if not plan.of_layers and any(needs_of(form) == ["measures"] for form in formats):
        raise RequestError(f"{', '.join(views)} gives no statistics", hint="--view maps too, or inputs, grads, mean, ...")
    plan = replace(plan, moments="measures" in needs, kept=dtype if "values" in needs else None)
    if "pictures" in needs:
        return plan
    return replace(plan.without_pictures(), kernels={}, methods=plan.methods if "values" in needs else {})


def needs_of(form: str) -> list[str]:
    """Say what a format is made of: `pictures`, `measures`, `values`."""
    return (registry.constant(WRITERS, form, "NEEDS") or "pictures").split()


def _with_implied(formats: Iterable[str]) -> tuple[str, ...]:
    """Add the formats that others are made of."""
    implied = (registry.constant(WRITERS, form, "WITH") for form in formats)
    return tuple(sorted({*formats, *filter(None, implied)}))


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


def _foresee(model: Model, layers: Sequence[Layer], *, narrowed: bool) -> Foresight | None:
    """Say when a forward pass may end; one whose output is wanted goes to its end all the same."""
    if model.straight and all(layer.type in {"Conv2d", "Conv3d"} for layer in layers):
        return Foresight(len(layers))
    return Foresight() if narrowed else None


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


def _home(module: nn.Module) -> torch.device | None:
    return next((values.device for values in chain(module.parameters(), module.buffers())), None)


def _versions() -> dict[str, str]:
    return {
        "fmapviz": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
    }
