"""The models of torchvision: `alexnet`, `resnet50`, `fasterrcnn_resnet50_fpn`, ..."""

from __future__ import annotations

import re
import warnings
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import isqrt
from operator import call
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fmapviz.config import sides_of
from fmapviz.core import registry
from fmapviz.core.lazy_torchvision import models
from fmapviz.core.user_code import split_call
from fmapviz.core.words import counted
from fmapviz.errors import RequestError, WeightsError, quote, suggest
from fmapviz.images import preprocess
from fmapviz.models.initialization import NoInitialization, read_seed
from fmapviz.models.network import input_channels
from fmapviz.models.sources.base import refused
from fmapviz.models.weights.download import fetch
from fmapviz.models.weights.file import DAMAGED, digesting, weights_only
from fmapviz.models.weights.fit import LoadedWeights, load_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from enum import Enum

    from fmapviz.config import InputOptions
    from fmapviz.data import Model, Preparation
    from fmapviz.models.weights.fit import Build
    from fmapviz.models.weights.state_dict import StateDict


_OWN_ARGUMENTS = ("weights", "weights_backbone", "pretrained", "progress")
CLIP_FRAMES = 16  # what torchvision's video models were trained with; MViT accepts no other number

# The last two numbers of a layer's key were one name in DenseNet's published files.
_OLD_DENSENET_KEY = re.compile(r"(.*denselayer\d+\.(?:norm|relu|conv))\.([12]\.(?:weight|bias|running_mean|running_var))")


def load(name: str, *, weights: str | Mapping[str, Any] | None, preprocessing: InputOptions) -> Model:
    """Build a model and fill it with weights, which may be the name of a published entry; see `ModelSource`.

    Arguments for torchvision's builder may follow the name, as in `inception_v3(transform_input=False)`.
    """
    spec, (name, arguments) = name, split_call(name)
    if refused := [key for key in arguments if key in _OWN_ARGUMENTS]:
        raise RequestError(
            f"{name} takes no argument of this name: {quote(refused[0])}", hint="weights= chooses its weights"
        )
    build = partial(_build, name, arguments)
    if isinstance(weights, str) and (member := _member(weights)):
        weights = entry_name(name, member)
    if isinstance(weights, str) and re.fullmatch(r"default|[A-Z0-9_]+", weights):
        entry = _entry(name, weights)
        if arguments:
            with torch.device("meta"):
                build()  # fails before the download
        loaded = _load_published(name, build, entry, preprocessing)
    else:
        loaded = _load_others(name, build, weights, preprocessing)
        entry = _entry_with_digest(name, loaded.sha256) if loaded.sha256 else None
        side: Any = getattr(loaded.module, "image_size", None)  # of a Vision Transformer
        if side and preprocessing.size is None and side != _trained_side(_best_entry(name)):
            preprocessing = replace(preprocessing, size=(side, side))
    is_plain = takes_batches(name)
    preparation, forward, notices = feeding(name, entry or _best_entry(name), preprocessing, loaded.module)
    is_assumed = loaded.sha256 and not entry and "transform_input" not in arguments  # see `_heads_in`
    if is_assumed and getattr(loaded.module, "transform_input", False):
        other = f"if trained without it: the model {quote(f'{name}(transform_input=False)')}"
        notices = (*notices, f"transform_input=True is assumed, as for torchvision's weights; {other}")
    return replace(
        loaded.as_model(spec, preparation),
        forward=forward,
        batches=is_plain,
        straight=is_plain,
        classes=loaded.classes or tuple(entry.meta.get("categories", ()) if entry else ()),
        scores="softmax" if is_plain and (entry or loaded.sha256 is None) else "",
        notices=(*loaded.notices, *notices),
    )


def entry_name(name: str, member: Enum) -> str:
    """Return the word for a member of torchvision's enumerations, such as `ResNet18_Weights.IMAGENET1K_V1`.

    Raises:
        WeightsError: It is of another model.
    """
    name = split_call(name)[0]
    entries = _entries(name)
    known: Any = member
    plain = known.meta.get("unquantized", member) if isinstance(member, models.WeightsEnum) else member
    found = next((word for word, entry in entries.items() if entry is plain), None)
    if found is None:
        shown = f"{type(member).__name__}.{member.name}"
        theirs = f"{type(_best_entry(name)).__name__}.{next(iter(entries))}"
        raise WeightsError(f"weights of another model than {name}: {quote(shown)}", hint=f"weights={theirs}, for example")
    return found


def _member(weights: str) -> Enum | None:
    """Return the member of an enumeration by its full name, `ResNet18_Weights.IMAGENET1K_V1`."""
    if not re.fullmatch(r"\w+_Weights\.[A-Z0-9_]+", weights):
        return None
    with suppress(ValueError, AttributeError, KeyError):
        found: Enum = models.get_weight(weights)
        return found
    return None


def _load_published(name: str, build: Build, entry: Any, preprocessing: InputOptions) -> LoadedWeights:
    if _family(name) == "vision_transformer":
        trained = _trained_side(entry)
        if preprocessing.size not in {None, (trained, trained)}:
            raise RequestError(
                f"{name} with {entry.name} takes {trained} x {trained} pixels only", hint="leave out InputOptions(size=)"
            )
    path = fetch(entry.url)
    with digesting(path) as digest, weights_only(), NoInitialization():
        try:
            module = build(weights=entry)  # torchvision's own code: old keys, auxiliary heads, input transforms
        except RequestError:  # wrong arguments
            raise
        except Exception as error:  # a damaged file leads to any exception
            _load_others(name, build, str(path), preprocessing)  # reports its errors
            reason = " ".join(str(error).split())[:300]
            raise WeightsError(f"torchvision cannot load {quote(path)}: {reason}", hint=DAMAGED) from error
    return LoadedWeights(module, entry.name, digest.result())


def _load_others(
    name: str, build: Build, weights: str | Mapping[str, Any] | None, preprocessing: InputOptions
) -> LoadedWeights:
    """Build a model with random weights, those of a file, or none."""
    is_file = weights is not None and read_seed(weights) is None
    size = {} if is_file else _image_size(name, preprocessing)  # a file determines the size itself
    return load_weights(
        weights,
        partial(build, **size),
        entries=list(_entries(name)),
        update_keys=lambda state: {_OLD_DENSENET_KEY.sub(r"\1\2", key): values for key, values in state.items()},
        adapt=partial(_adapted, name),
    )


def _adapted(name: str, build: Build, plain: nn.Module, state: StateDict) -> tuple[nn.Module, tuple[str, ...]]:
    """Build a model with the heads, classes and input channels of its weights.

    Classes and channels are changed only if nothing else differs.
    """
    heads = _heads_in(name, state)
    module = build(**heads) if heads else plain
    built, notices = module, []
    resized = _resized(module, state)
    first = (
        _first_convolution(module, state, resized) if _family(name) not in {"detection", "optical_flow", "video"} else None
    )
    usual = len(_best_entry(name).meta.get("categories", ()))
    if classes := _classes_in(module, state, resized - {first}, usual=usual):
        built = build(**heads, num_classes=classes)
        notices.append(f"the weights are for {counted(classes, 'class')}, not {usual}: the head was built for {classes}")
    if first and _resized(built, state) == {first}:
        layer: Any = built.get_submodule(first.removesuffix(".weight"))
        layer.weight = nn.Parameter(torch.empty(state[first].shape))
        layer.in_channels = channels = state[first].shape[1]
        if getattr(built, "transform_input", False):
            built.transform_input = False  # type: ignore[assignment]  # not a submodule; it needs red, green and blue
        plural = "" if channels == 1 else "s"
        notices.append(
            f"the weights are for images with {channels} channel{plural}, not 3: the first convolution was built for that"
        )
    return (module, ()) if _resized(built, state) else (built, tuple(notices))


def _resized(module: nn.Module, state: StateDict) -> set[str | None]:
    """Return the keys under which a network and weights have tensors of different shapes."""
    return {key for key, values in module.state_dict().items() if key in state and state[key].shape != values.shape}


def _first_convolution(module: nn.Module, state: StateDict, resized: set[str | None]) -> str | None:
    """Return the key of the convolution with three input channels in a network, but another number in its weights."""
    for name, layer in module.named_modules():
        key = f"{name}.weight"
        if key in resized and isinstance(layer, nn.Conv2d) and layer.in_channels == 3:
            rows, _, *kernel = layer.weight.shape
            alike = [rows, *kernel] == [*state[key].shape[:1], *state[key].shape[2:]]
            return key if alike and layer.groups == 1 else None
    return None


def _classes_in(module: nn.Module, state: StateDict, resized: set[str | None], *, usual: int) -> int | None:
    """Return the number of classes of weights, None if it is the usual one or cannot be determined.

    All resized tensors must differ in their rows only, in proportion to the number of classes: a detector's head has several
    rows per class and anchor.
    """
    numbers = set()
    for key, values in module.state_dict().items():
        if key in resized:
            if state[key].ndim != values.ndim or state[key].shape[1:] != values.shape[1:]:
                return None
            classes, remainder = divmod(len(state[key]) * usual, len(values))
            numbers.add(None if remainder else classes)
    return numbers.pop() if len(numbers) == 1 else None


def _build(name: str, arguments: Mapping[str, Any], /, **kwargs: Any) -> nn.Module:
    """Build a model; the user's arguments take precedence.

    Raises:
        RequestError: The builder does not accept them.
    """
    kwargs |= arguments
    if _family(name) in {"detection", "segmentation"}:
        kwargs.setdefault("weights_backbone", None)  # its default is a download
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):  # some draw numbers for later parameters
        warnings.simplefilter("ignore")  # GoogLeNet and Inception warn that their initialization is slow and may change
        try:
            module: nn.Module = models.get_model(name, **kwargs)
        except Exception as error:
            if not arguments or (kwargs.get("weights") and not isinstance(error, TypeError | ValueError)):  # a damaged file
                raise
            hint = f"torchvision.models.{name} takes the same arguments"
            if kwargs.get("weights"):
                hint = "the published weights allow no others: choose weights='random' or weights=FILE"
            raise refused("torchvision", name, arguments, error, hint=hint) from error
    return module


def _heads_in(name: str, state: dict[str, Tensor]) -> dict[str, Any]:
    """Return the builder's arguments for the heads and the image size of weights.

    torchvision's weights of GoogLeNet and Inception expect inputs that the network transforms. A file is assumed to be like
    them, as it is for the preprocessing; a notice reports it.
    """
    kwargs: dict[str, Any] = {}
    positions, projection = (state.get(key, torch.empty(0)) for key in ("encoder.pos_embedding", "conv_proj.weight"))
    if _family(name) == "vision_transformer" and positions.ndim == 3 and projection.ndim == 4 and positions.shape[1] > 1:
        patches = positions.shape[1] - 1  # all but the class token
        kwargs = {"image_size": isqrt(patches) * projection.shape[-1]}
    if "googlenet" in name or "inception" in name:
        kwargs = {"transform_input": True, "aux_logits": any(key.lower().startswith("aux") for key in state)}
    if _family(name) == "segmentation" and any(key.startswith("aux_") for key in state):
        kwargs = {"aux_loss": True}
    return kwargs


def _image_size(name: str, preprocessing: InputOptions) -> dict[str, int]:
    """Return a Vision Transformer's argument for its only input size."""
    if _family(name) != "vision_transformer":
        return {}
    trained = _trained_side(_best_entry(name))
    height, width = sides_of(preprocessing) or (trained, trained)
    patch = int(name.rpartition("_")[2])
    if height != width or height % patch:
        raise RequestError(
            f"{name} takes square images whose side is a multiple of {patch} pixels: '{height}x{width}'",
            hint=f"such as {max(1, round(height / patch)) * patch}",
        )
    return {"image_size": height}


def _trained_side(entry: Any) -> int:
    side: int = entry.transforms().crop_size[0]
    return side


def _entries(name: str) -> dict[str, Any]:
    """Return the published entries by name; of a quantized model those of the same model before quantization."""
    entries = (entry.meta.get("unquantized", entry) for entry in models.get_model_weights(name))
    return {entry.name: entry for entry in entries}


def _best_entry(name: str) -> Any:
    default = models.get_model_weights(name).DEFAULT
    return default.meta.get("unquantized", default)


def _entry(name: str, weights: str) -> Any:
    if weights in {"default", "DEFAULT"}:
        return _best_entry(name)
    known = _entries(name)
    if weights not in known:
        raise WeightsError(
            f"no such weights for {name}: {quote(weights)}",
            hint=suggest(weights, known) or f"there are: {', '.join(known)}, default and random",
        )
    return known[weights]


def _entry_with_digest(name: str, sha256: str) -> Any:
    """Return the published entry of a file, None for other files: an entry's URL ends in the start of its SHA-256."""
    promised = {re.search(r"-([0-9a-f]{8,})\.", entry.url): entry for entry in _entries(name).values()}
    return next((entry for match, entry in promised.items() if match and sha256.startswith(match[1])), None)


def _family(name: str) -> str:
    """Return the folder or module of torchvision that defines a model."""
    return str(models.get_model_builder(name).__module__.split(".")[2])


def takes_batches(name: str) -> bool:
    """Return False for the models that call some convolutions once per scale or step, or take lists of images."""
    return _family(name) not in {"detection", "optical_flow"}


def find_entry(network: nn.Module) -> tuple[str, Any] | None:
    """Return the name that builds a network, and its best published entry; None if there is no such model.

    The shapes of all tensors are compared, except the number of classes and of input channels.
    """
    home, state = type(network).__module__, network.state_dict()
    own = {key: tuple(values.shape) for key, values in state.items() if isinstance(values, torch.Tensor)}  # not a type
    total = sum(values.numel() for values in network.parameters()) / 1e6
    names = [name for name in registry.sources()["torchvision"].names if models.get_model_builder(name).__module__ == home]
    names.sort(key=lambda name: abs(_best_entry(name).meta.get("num_params", 0) / 1e6 - total))
    for name in names:
        built = _shapes_of(name)
        extra = {key for key in {*own} ^ {*built} if not re.match(r"(?i)aux", key)}
        differing = [key for key in {*own} & {*built} if own[key] != built[key]]
        if not extra and len(differing) < 9 and all(_differs_at_the_ends(own[key], built[key]) for key in differing):
            return name, _best_entry(name)
    return None


def _shapes_of(name: str) -> dict[str, tuple[int, ...]]:
    try:
        with torch.device("meta"):
            built = _build(name, {})
    except NotImplementedError:  # some compute with numbers while they are built
        with NoInitialization():
            built = _build(name, {})
    return {key: tuple(values.shape) for key, values in built.state_dict().items()}


def _differs_at_the_ends(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return True for shapes that differ in the number of classes, or of input channels, alone."""
    return len(one) == len(other) and (
        one[1:] == other[1:] or (one[:1] + one[2:] == other[:1] + other[2:] and len(one) == 4)
    )


def feeding(
    name: str, entry: Any, preprocessing: InputOptions, module: nn.Module
) -> tuple[Preparation, Callable[[nn.Module, Tensor], object], tuple[str, ...]]:
    """Return the preprocessing of a model, its forward pass and the notices about it."""
    match _family(name):
        case "detection":
            return preprocess.unnormalized(preprocessing), lambda module, batch: module(list(batch)), ()
        case "optical_flow":
            # RAFT takes multiples of 8 from 128; it correlates all pairs of features, so the area is limited.
            preparation = preprocess.in_steps(preprocessing, step=8, least=128, box=(520, 960))
            notice = "an optical flow model takes two frames: the image is used for both"
            return preparation, lambda module, batch: module(batch, batch), (notice,)
        case "video":
            notice = f"a video model takes clips: {CLIP_FRAMES} frames of a film"
            return preprocess.clip(entry.transforms(), preprocessing, frames=CLIP_FRAMES), call, (notice,)
    return (
        preprocess.as_trained(
            entry.transforms(), preprocessing, channels=preprocessing.channels_in or input_channels(module)
        ),
        call,
        (),
    )
