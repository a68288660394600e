"""The models of torchvision: `alexnet`, `resnet50`, `fasterrcnn_resnet50_fpn`, ..."""

from __future__ import annotations

import os
import re
import warnings
from contextlib import contextmanager
from dataclasses import replace
from math import isqrt
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fmapviz import preparation
from fmapviz.adaptation import classes_in, take_channels
from fmapviz.channels import input_channels
from fmapviz.checkpoints import building_for, digesting, find_weights, label, read_checkpoint
from fmapviz.downloads import fetch
from fmapviz.errors import RequestError, WeightsError, quote, suggest
from fmapviz.fitting import fit_keys, load_state_dict
from fmapviz.initialization import NoInitialization, read_seed
from fmapviz.values import Model, Preparation
from fmapviz.vision import models

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmapviz.options import InputOptions

CLIP_FRAMES = 16  # what torchvision's video models were trained with; MViT takes no other number


def load(name: str, *, weights: str, options: InputOptions) -> Model:
    """Build a model and fill in its weights.

    Args:
        name: One of `torchvision.models.list_models()`.
        weights: `default`, the name of a published entry, `random`, `random:SEED`, or a file or URL.
        options: What the user wants otherwise in the preparation of pictures.

    Raises:
        WeightsError: The weights cannot be had, read or fitted in.
    """
    seed = read_seed(weights)
    if seed is not None:
        return _random(name, seed, options)
    if weights == "default" or re.fullmatch(r"[A-Z0-9_]+", weights):
        return _published(name, weights, options)
    return _own(name, weights, options)


def outline(name: str, *, options: InputOptions) -> Model:
    """Build a model on the meta device: its modules and shapes without one number."""
    with NoInitialization():
        module = _build(name, **_image_size(name, options)).to("meta")
    return _model(name, module, _best_entry(name), options, weights="no weights")


def _random(name: str, seed: int, options: InputOptions) -> Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = _build(name, **_image_size(name, options))
    return _model(name, module, _best_entry(name), options, weights=f"random weights, seed {seed}")


def _published(name: str, weights: str, options: InputOptions) -> Model:
    entry = _entry(name, weights)
    if _is_vit(name) and options.size not in {None, (entry.transforms().crop_size[0],) * 2}:
        trained = entry.transforms().crop_size[0]
        raise RequestError(f"{name} with {entry.name} takes {trained} x {trained} pixels only", hint="leave out --size")
    path = fetch(entry.url)
    with digesting(path) as digest, _weights_only(), NoInitialization():
        try:
            module = _build(name, weights=entry)  # torchvision's own code: key changes, auxiliary heads, input transforms
        except Exception as error:  # whatever a damaged file leads to
            _own(name, str(path), options)  # says what is wrong with it
            raise WeightsError(f"torchvision cannot load {quote(path)}: {' '.join(str(error).split())[:300]}") from error
    classes = tuple(entry.meta.get("categories", ()))
    return _model(name, module, entry, options, weights=entry.name, sha256=digest.result(), classes=classes)


def _own(name: str, weights: str, options: InputOptions) -> Model:
    known = [*(entry.name for entry in _entries(name)), "default", "random", "random:SEED"]
    path, entry = find_weights(weights, known=known)
    with digesting(path) as digest:
        checkpoint = read_checkpoint(path, entry)
        plain = _without_numbers(name)
        state, stripped = fit_keys(_modern_keys(checkpoint.state), plain.state_dict(), path)
        with building_for(path):
            kwargs = _heads_in(name, state)
            module, adapted = _adapted(name, state, _without_numbers(name, **kwargs) if kwargs else plain, kwargs)
        load_state_dict(module, state, path)
    if options.size is None and "image_size" in kwargs and kwargs["image_size"] not in _trained_size(name):
        options = replace(options, size=(kwargs["image_size"],) * 2)
    published = _published_as(name, digest.result())
    return _model(
        name,
        module,
        published or _best_entry(name),
        options,
        weights=label(path, entry),
        sha256=digest.result(),
        classes=checkpoint.classes or tuple(published.meta.get("categories", ()) if published else ()),
        notices=(*checkpoint.notices, *stripped, *adapted),
    )


def _adapted(
    name: str, state: dict[str, Tensor], module: nn.Module, kwargs: dict[str, Any]
) -> tuple[nn.Module, tuple[str, ...]]:
    """Build a model for the classes and the input channels of its weights, if these are all that is otherwise.

    Returns:
        The model as it was given, if more is otherwise; and notices.
    """
    usual = len(_best_entry(name).meta.get("categories", ()))
    built, notices = module, []
    if classes := classes_in(module.state_dict(), state, usual=usual):
        built = _without_numbers(name, **kwargs, num_classes=classes)
        notices.append(f"the weights are for {classes} classes, not {usual}: the head was built for {classes}")
    if _kind(name) == "image" and (channels := take_channels(built, state)):
        if getattr(built, "transform_input", False):
            built.transform_input = False  # type: ignore[assignment]  # no submodule; it is for red, green and blue
        notices.append(
            f"the weights are for pictures of {channels} channel{'s' if channels > 1 else ''}, not 3: "
            "so the first convolution was built"
        )
    own = built.state_dict()
    if any(state[key].shape != values.shape for key, values in own.items() if key in state):
        return module, ()
    return built, tuple(notices)


def _model(
    name: str,
    module: nn.Module,
    entry: Any,
    options: InputOptions,
    *,
    weights: str,
    sha256: str | None = None,
    classes: tuple[str, ...] = (),
    notices: tuple[str, ...] = (),
) -> Model:
    kind = _kind(name)
    return Model(
        name=name,
        module=module.eval(),
        weights=weights,
        sha256=sha256,
        preparation=_prepare(kind, module, entry, options),
        forward=_FORWARDS[kind],
        batches=kind in {"image", "video"},
        straight=kind in {"image", "video"},  # detectors and RAFT call some convolutions for each scale or step
        classes=classes,
        notices=(*notices, *_NOTICES.get(kind, ())),
    )


def _build(name: str, **kwargs: Any) -> nn.Module:
    if _kind(name) == "detection" or ".segmentation." in models.get_model_builder(name).__module__:
        kwargs.setdefault("weights_backbone", None)  # its default is a download
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):  # some draw numbers for what is no parameter yet
        # GoogLeNet and Inception say that their initialisation is slow, and that it may change.
        warnings.simplefilter("ignore")
        module: nn.Module = models.get_model(name, **kwargs)
    return module


def _without_numbers(name: str, **kwargs: Any) -> nn.Module:
    with NoInitialization():
        return _build(name, **kwargs)


def _heads_in(name: str, state: dict[str, Tensor]) -> dict[str, Any]:
    """Choose the builder's arguments that make the network the weights are of.

    torchvision's own weights for GoogLeNet and Inception expect inputs transformed in the network; a file is taken to be of
    their kind, as it is with the preparation of the input.
    """
    kwargs: dict[str, Any] = {}
    positions, projection = (state.get(key, torch.empty(0)) for key in ("encoder.pos_embedding", "conv_proj.weight"))
    if _is_vit(name) and positions.ndim == 3 and projection.ndim == 4 and positions.shape[1] > 1:
        patches = positions.shape[1] - 1  # all but the class token
        kwargs = {"image_size": isqrt(patches) * projection.shape[-1]}
    if "googlenet" in name or "inception" in name:
        kwargs = {"transform_input": True, "aux_logits": any(key.lower().startswith("aux") for key in state)}
    if ".segmentation." in models.get_model_builder(name).__module__ and any(key.startswith("aux_") for key in state):
        kwargs = {"aux_loss": True}
    return kwargs


def _image_size(name: str, options: InputOptions) -> dict[str, int]:
    """Build a Vision Transformer, whose input has one size only, for the size it will be given."""
    if not _is_vit(name):
        return {}
    height, width = options.size or _trained_size(name)
    patch = int(name.rpartition("_")[2])
    if height != width or height % patch:
        raise RequestError(f"{name} takes squares with a multiple of {patch} pixels a side: '{height}x{width}'")
    return {"image_size": height}


def _trained_size(name: str) -> tuple[int, int]:
    """Give what a Vision Transformer's best published weights want."""
    side: int = _best_entry(name).transforms().crop_size[0]
    return side, side


def _is_vit(name: str) -> bool:
    return bool(models.get_model_builder(name).__module__.endswith(".vision_transformer"))


def _modern_keys(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename as torchvision does for DenseNet, whose published files are older than its layers' names."""
    old = re.compile(r"(.*denselayer\d+\.(?:norm|relu|conv))\.([12]\.(?:weight|bias|running_mean|running_var))")
    return {old.sub(r"\1\2", key): value for key, value in state.items()}


def _entries(name: str) -> list[Any]:
    """List the published entries that fit the model as it is built here, that is, not quantized."""
    entries = list(models.get_model_weights(name))
    return list(dict.fromkeys(entry.meta.get("unquantized", entry) for entry in entries))


def _best_entry(name: str) -> Any:
    default = models.get_model_weights(name).DEFAULT
    return default.meta.get("unquantized", default)


def _published_as(name: str, sha256: str) -> Any:
    """Give the published entry that a file is, wherever it lies: an entry's URL ends in the beginning of its SHA-256."""
    promised = {entry: re.search(r"-([0-9a-f]{8,})\.", entry.url) for entry in _entries(name)}
    return next((entry for entry, match in promised.items() if match and sha256.startswith(match[1])), None)


def _entry(name: str, weights: str) -> Any:
    if weights in {"default", "DEFAULT"}:
        return _best_entry(name)
    known = {entry.name: entry for entry in _entries(name)}
    if weights not in known:
        raise WeightsError(
            f"no such weights for {name}: {quote(weights)}",
            hint=suggest(weights, known) or f"there are: {', '.join(known)}, default and random",
        )
    return known[weights]


@contextmanager
def _weights_only() -> Iterator[None]:
    """Make torch.load refuse everything but tensors, also where torchvision asks for more."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def _kind(name: str) -> str:
    family = models.get_model_builder(name).__module__.split(".")[2]
    return {"detection": "detection", "optical_flow": "flow", "video": "video"}.get(family, "image")


def _prepare(kind: str, module: nn.Module, entry: Any, options: InputOptions) -> Preparation:
    """Prepare as the weights want it; nobody has published any for other pictures than those of three channels."""
    channels = input_channels(module) if kind == "image" else 3
    if channels != 3:
        return preparation.standard(options, channels=channels)
    return _PREPARATIONS[kind](entry, options)


def _prepare_image(entry: Any, options: InputOptions) -> Preparation:
    return preparation.as_trained(entry.transforms(), options)


def _prepare_detection(_entry: Any, options: InputOptions) -> Preparation:
    return preparation.unscaled(options)


def _prepare_flow(_entry: Any, options: InputOptions) -> Preparation:
    # RAFT wants multiples of 8 and at least 128; its features are compared all with all, so the area is limited.
    return preparation.in_steps(options, step=8, least=128, box=(520, 960))


def _prepare_video(entry: Any, options: InputOptions) -> Preparation:
    return preparation.clip(entry.transforms(), options, frames=CLIP_FRAMES)


_PREPARATIONS: dict[str, Callable[[Any, InputOptions], Preparation]] = {
    "image": _prepare_image,
    "detection": _prepare_detection,
    "flow": _prepare_flow,
    "video": _prepare_video,
}


def _forward_batch(module: nn.Module, batch: Tensor) -> object:
    return module(batch)


def _forward_list(module: nn.Module, batch: Tensor) -> object:
    return module(list(batch))


def _forward_pair(module: nn.Module, batch: Tensor) -> object:
    return module(batch, batch)


_FORWARDS: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "image": _forward_batch,
    "detection": _forward_list,
    "flow": _forward_pair,
    "video": _forward_batch,
}

_NOTICES = {
    "flow": ("an optical flow model takes two frames: the picture is given as both",),
    "video": (f"a video model takes a clip: the picture is repeated for {CLIP_FRAMES} frames",),
}
