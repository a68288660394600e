"""Load the model, layers, views and formats of a configuration."""

from __future__ import annotations

import platform
import warnings
from contextlib import contextmanager
from dataclasses import asdict, replace
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import nn

from fmapviz.config import RunInfo
from fmapviz.config.changes import changes_of, unused_changes
from fmapviz.config.looks import effective_style
from fmapviz.core import registry
from fmapviz.core.lazy_torchvision import torchvision, uncompiled
from fmapviz.core.members import load
from fmapviz.core.own import OwnName, code_of
from fmapviz.core.urls import is_url
from fmapviz.core.version import __version__
from fmapviz.data import Model
from fmapviz.errors import RequestError, quote
from fmapviz.images.films import FrameChoice
from fmapviz.images.preprocess import grey_input
from fmapviz.models.identity import digest_of_code
from fmapviz.models.load import load_model
from fmapviz.models.network import input_type
from fmapviz.observe.detectors import HEAD, find_detector, with_feeds
from fmapviz.observe.early_stop import EarlyStop
from fmapviz.observe.hooks import observe
from fmapviz.observe.layers import (
    absent_types,
    default_types,
    find_layers,
    notice_blocks,
    notice_left_out,
    scripted_parts,
    select_layers,
    select_modules,
    unwrap,
)
from fmapviz.observe.meta_copy import copy_to_meta
from fmapviz.observe.outputs import part_of, scores_in
from fmapviz.observe.predictions import DEFAULT_COUNT
from fmapviz.observe.randomness import all_undisturbed
from fmapviz.observe.targets import INDEX, RANK, canonical
from fmapviz.run.batch import describe_given
from fmapviz.run.findings import findings_of
from fmapviz.run.off_images import OffImages, read_off_images
from fmapviz.run.plan import make_plan
from fmapviz.run.session import Session
from fmapviz.run.without_effect import without_effect

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fmapviz.config import InputOptions, RunConfig
    from fmapviz.core.members import Need
    from fmapviz.data import Layer, Weights
    from fmapviz.formats.base import OpenWriter
    from fmapviz.run.plan import Plan

# What other tools call the devices of torch.
_DEVICES = {"gpu": "cuda", "nvidia": "cuda", "rocm": "cuda", "metal": "mps"}


def load_session(config: RunConfig, *, pair: bool = False) -> tuple[Session, list[str]]:
    """Load the model and select its layers.

    Args:
        config: The configuration.
        pair: Whether it is the first of two networks, which only views of two can draw.

    Returns:
        The session, without a directory, and notices about the model and its layers.

    Raises:
        RequestError: An unknown model, layer or device, or unavailable weights.
    """
    check_views(config, pair=pair)
    loaded = _load(config.model, config.weights, config.preprocessing)
    device = find_device(config, loaded.module if isinstance(config.model, nn.Module) else None)
    existing = find_layers(loaded.module)
    narrowed = bool(config.layers or config.exclude)
    include = with_feeds(config.layers, loaded.module)
    of_head = tuple(config.layers) == (HEAD,) != include and not config.exclude
    formats = formats_of(config)
    plan = make_plan(
        tuple(dict.fromkeys(config.views)),
        targets=config.target_names,
        classes=loaded.classes,
        output=config.output,
        automatic=not ((narrowed and not of_head) or config.types),
        scores=config.scores,
        outputs=_count_outputs(config, loaded),
    )
    types = tuple(sorted(config.types)) or default_types(existing, blocks=plan.of_layers)  # blocks have no kernels
    takes_class = bool(plan.wanted)
    plan = adapt(plan, formats, config.dtype, config.views)
    changes = replace(changes_of(config), **unused_changes(config.views))
    changes = read_off_images(changes, loaded.preparation)
    plan = replace(plan, confidence=config.confidence, changes=changes)
    style, idle = effective_style(config.style, config.views)
    chosen = []
    if plan.of_layers or plan.of_model or (plan.of_maps and not plan.automatic):
        any_type = plan.of_maps and not config.types
        chosen = select_layers(existing, types=types, include=include, exclude=config.exclude, any_type=any_type)
    if plan.of_modules and (narrowed or config.types):
        plan = replace(plan, modules=select_modules(existing, config.types, config.layers, config.exclude))
    resolved = replace(
        config,
        model=loaded.name,
        inputs=(),
        engine=None,
        on_event=None,
        types=types,
        views=tuple(dict.fromkeys(config.views)),
        to=formats,
        # An option without effect makes no other run.
        targets=canonical(config.target_names, loaded.classes) if takes_class else (),
        style=style,
        predictions=_count_predictions(config.predictions, loaded, narrowed=narrowed and not plan.of_classes),
        dtype=plan.kept or "float32",
        **unused_changes(config.views),
    )
    info = _identify(config, resolved, loaded)
    info = replace(info, images={"off": changes.sha256} if isinstance(changes, OffImages) else {})
    stops = bool(chosen) and not plan.of_modules
    session = Session(
        request=config,
        info=info,
        model=loaded,
        layers=chosen,
        plan=plan,
        writers=open_writers(formats),
        stages=[load(stage)() for stage in registry.stages()],
        device=device,
        batch_size=(config.batch_size or (1 if device.type == "cpu" else 16)) if loaded.batches else 1,
        workers=config.threads,
        layouts=findings_of(loaded).layouts,
        early_stop=_early_stop(loaded, chosen, narrowed=bool(narrowed or config.types)) if stops else None,
    )
    notices = [*_notices(existing, config.types, types)] if chosen else []
    if chosen and not config.types and (plan.of_layers or plan.of_maps):
        notices += filter(None, [notice_left_out(existing, chosen, include=include, exclude=config.exclude)])
    if plan.of_layers and not narrowed and not config.types and (notice := notice_blocks(loaded.name, existing)):
        notices.append(notice)
    notices += without_effect(config, plan, idle=idle, predicts=bool(resolved.predictions))
    if unused := [view for view in resolved.views if not plan.has(view)]:
        notices.append(f"nothing comes of {', '.join(unused)}: pictures need to='png', to='html' or to='tensorboard' too")
    notices += _unwritten(resolved.views, formats)
    notices += _ambiguous(config.target_names, loaded.classes) if takes_class else []
    notices += [*loaded.notices, *filter(None, [loaded.assumption])]
    return session, notices


def frame_choice(session: Session) -> FrameChoice:
    """Return the choice of film frames that are the images of a session."""
    start, stop = session.request.frame_range
    return FrameChoice(start, stop, session.request.every, session.model.preparation.frames)


def check_views(config: RunConfig, *, pair: bool) -> None:
    """Check that the views fit the number of networks, and that the requested scaling is possible.

    Raises:
        RequestError: They do not.
    """
    if pair and config.style.scope == "run":
        hint = "Style(norm='layer'), or Style(norm='fixed:LO,HI')"
        raise RequestError(f"no range over all images of a comparison: {quote(config.style.norm)}", hint=hint)
    if not pair and config.style.rank == "change":
        message = f"channels are ranked by change where two networks are compared: {quote(config.style.channels)}"
        raise RequestError(message, hint="channels='top:16:max'")
    for view in config.views:
        if pair and registry.view(view).networks == 1:
            of_two = ", ".join(name for name, each in registry.views().items() if each.networks == 2)
            raise RequestError(f"{view} draws one network", hint=f"of two there are: {of_two}")
        if not pair and registry.view(view).networks == 2:
            raise RequestError(f"{view} compares two networks", hint="fmapviz.diff(one, other, images) does")


@contextmanager
def moved(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Move a module to a device, and back at the end."""
    home = _home(module)
    if home is None or home == device:
        yield
        return
    try:
        module.to(device)
        yield
    finally:
        module.to(home)


def _identify(config: RunConfig, resolved: RunConfig, loaded: Model) -> RunInfo:
    """Return the identity of a run from the configuration as given and as resolved."""
    own = [name for name in (*resolved.views, *resolved.to) if isinstance(name, OwnName)]
    return RunInfo(
        model=loaded.name,
        weights=loaded.weights,
        sha256=loaded.sha256,
        preparation=loaded.preparation.description,
        config=resolved,
        code={str(name): digest_of_code(code_of(name.member))[:16] for name in own},
        versions={
            "fmapviz": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
        },
        request={
            "model": config.model if isinstance(config.model, str) else None,
            "weights": _weights_as_typed(config.weights),
            "types": list(config.types),
            "preprocessing": asdict(config.preprocessing),
            **({"own": {str(name): name.reference or None for name in own}} if own else {}),
        },
    )


def _weights_as_typed(weights: Weights) -> str | None:
    """Return the weights in a form that a later call accepts; None if they cannot or must not be recorded."""
    if isinstance(weights, Enum):
        return weights.name
    return weights if isinstance(weights, str) and not is_url(weights) else None  # an address may contain a password


def formats_of(config: RunConfig) -> tuple[str, ...]:
    """Return the requested formats and those that a requested format or view requires."""
    implied = (each.format for each in (*map(registry.form, config.to), *map(registry.view, config.views)))
    return tuple(sorted({*config.to, *filter(None, implied)}))


def open_writers(formats: Iterable[str]) -> dict[str, OpenWriter]:
    """Return the functions that open the writers of formats, by name."""
    members = {form: registry.form(form) for form in formats}
    return {form: member.load(member.open_writer) for form, member in members.items()}


def _unwritten(views: Sequence[str], formats: Sequence[str]) -> Iterator[str]:
    """Yield a notice for each format that writes nothing of some views, unless another format writes all views."""
    only = {form: registry.form(form).only_of for form in formats}
    every = any("pictures" in needs_of(form) and not only[form] for form in formats)
    for form, written in only.items():
        left = [view for view in views if written and view not in written]
        if left and (len(left) == len(views) or not every):
            some = ", ".join(written)
            yield f"to={form!r} writes nothing of {', '.join(left)}, only of {some}; to='png' or to='svg' writes every view"


def adapt(plan: Plan, formats: Sequence[str], dtype: str, views: Sequence[str]) -> Plan:
    """Reduce a plan to what the formats need.

    Raises:
        RequestError: A format would get nothing.
    """
    needs = {need for form in formats for need in needs_of(form)}
    for form in formats:
        if registry.form(form).networks == 2 and plan.networks == 1:
            raise RequestError(
                f"the format {quote(form)} compares two networks, and one is drawn",
                hint="fmapviz.diff(one, other, images) compares two",
            )
        if plan.networks == 2 and registry.form(form).networks == 1 and "pictures" not in needs_of(form):
            of_two = next(name for name, each in registry.formats().items() if each.networks == 2)
            raise RequestError(
                f"the format {quote(form)} describes one network, and two are compared", hint=f"to={of_two!r} describes two"
            )
    if plan.networks == 2:
        return plan if "pictures" in needs else plan.without_pictures()
    if not plan.of_images and "pictures" not in needs:
        raise RequestError(f"only pictures are drawn of {', '.join(views)}", hint="to='png', to='html' or to='tensorboard'")
    if not plan.of_channels and any(needs_of(form) == ("measures",) for form in formats):
        raise RequestError(f"no statistics of {', '.join(views)}", hint="views='maps' too, or inputs, grads, mean, ...")
    plan = replace(plan, moments="measures" in needs, kept=dtype if "values" in needs else None, fields="fields" in needs)
    if "pictures" in needs:
        return plan
    left = (each.without_pictures(values="values" in needs) for each in plan.observations)
    return replace(plan.without_pictures(), of_model={}, observations=tuple(filter(None, left)))


def needs_of(form: str) -> tuple[Need, ...]:
    """Return the inputs of a format: `pictures`, `measures`, `values`, `fields`."""
    return registry.form(form).needs


def _notices(layers: Sequence[Layer], asked: Sequence[str], types: Sequence[str]) -> Iterator[str]:
    if not asked and types == ("Conv3d",):
        yield "the model has no Conv2d layer: its Conv3d layers are drawn, frame by frame"
    if absent := absent_types(layers, asked):
        yield f"no layer of type {', '.join(map(quote, absent))} in the model"
    if parts := scripted_parts(layers):
        yield f"scripted modules, whose layers cannot be seen: {', '.join(parts)}"


def _ambiguous(targets: Sequence[str], classes: Sequence[str]) -> Iterator[str]:
    """Yield a notice for each target that is a number or a rank, and also the name of a class."""
    for text in dict.fromkeys(part.strip() for target in targets for part in target.split(",")):
        own = [index for index, name in enumerate(classes) if name == text]
        if INDEX.fullmatch(text) and own and own != [int(text)]:
            yield f"target {text} is the class with this index; the class of this name has the index {own[0]}"
        elif RANK.fullmatch(text) and own:
            yield f"target {text} is a rank; the class of this name has the index {own[0]}"


def _count_predictions(given: int | None, model: Model, *, narrowed: bool) -> int:
    """Return the number of classes, or of boxes, to predict; 0 by default for selected layers, whose pass can stop early."""
    if given is None:
        return 0 if narrowed or not model.classes else DEFAULT_COUNT
    return min(given, len(model.classes)) if model.classes and not find_detector(model.module) else given


def _count_outputs(config: RunConfig, model: Model) -> int | None:
    """Return the number of outputs of the network, if a requested class index exceeds the known class names.

    The network is run without numbers, on the meta device; None if it cannot be, as a detector.
    """
    asked = [int(part) for text in config.target_names for part in text.split(",") if INDEX.fullmatch(part.strip())]
    if max(asked, default=-1) < len(model.classes):
        return None
    try:
        module = copy_to_meta(model.module)
        batch = model.preparation.apply(grey_input(model.preparation))[None]
        running = observe(module, [], lambda _: None)
        with uncompiled(), torch.no_grad(), warnings.catch_warnings(), running, all_undisturbed(batch.device):
            warnings.simplefilter("ignore")  # of meta kernels
            output = model.forward(module, batch.to("meta", input_type(module)))
        part = output if config.output is None else part_of(output, config.output)
        shape = scores_in(part, classes=len(model.classes)).shape
    except (Exception, SystemExit):  # noqa: BLE001  a user's forward pass may raise anything
        return None
    outputs = 1 if len(shape) == 1 else shape[-1] if len(shape) == 3 and shape[1] == 1 else shape[1]
    word = config.scores or (model.scores if model.own else "")
    mirrored = outputs == 1 and len(model.classes) == 2 and not word.startswith("value")
    return outputs + (mirrored or word == "ordinal")


def _early_stop(model: Model, layers: Sequence[Layer], *, narrowed: bool) -> EarlyStop | None:
    """Return the early stop of forward passes that need no output of the model."""
    if model.straight and all(layer.type in {"Conv2d", "Conv3d"} for layer in layers):
        return EarlyStop(len(layers))
    return EarlyStop() if narrowed else None


def _load(model: str | nn.Module | Model, weights: Weights, preprocessing: InputOptions) -> Model:
    if isinstance(model, str):
        model = load_model(model, weights=weights, preprocessing=preprocessing)
    elif weights != "default":
        raise RequestError(
            f"the model has weights already: {quote(weights if isinstance(weights, str | Enum) else 'a state dict')}",
            hint="only a model given by name takes weights",
        )
    elif not isinstance(model, Model):
        model = describe_given(unwrap(model), preprocessing=preprocessing)
    return replace(model, module=unwrap(model.module))


def find_device(config: RunConfig, given: nn.Module | None = None) -> torch.device:
    """Return the requested device; by default that of the module.

    Raises:
        RequestError: It does not exist here.
    """
    name = config.device
    if name == "auto":
        home = _home(given) if given else None
        if home is not None:
            return home
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()  # the meta device holds no values
    except Exception as error:  # each backend raises its own kind
        kind, colon, number = (f"gpu:{name}" if name.isdigit() else name.lower()).partition(":")
        likely = f"did you mean device='{_DEVICES[kind]}{colon}{number}'? " if kind in _DEVICES else ""
        hint = f"{likely}device='auto' uses what is available; names are torch's, such as cpu, cuda, cuda:1 or mps"
        raise RequestError(f"no such device here: {quote(name)}", hint=hint) from error
    return device


def _home(module: nn.Module) -> torch.device | None:
    return next((values.device for values in chain(module.parameters(), module.buffers())), None)
