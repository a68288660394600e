"""The models of timm: `timm:resnet18`, `timm:vit_base_patch16_224.dino`, `timm:resnet18(in_chans=1)`, ..."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from PIL import Image as PillowImage

from fmapviz.config import sides_of
from fmapviz.core.user_code import one_line, split_call
from fmapviz.errors import RequestError, WeightsError, quote, suggest
from fmapviz.images.preprocess import GREY_MEAN, GREY_STD, by_callable, standard
from fmapviz.models.network import input_channels
from fmapviz.models.sources.base import refused
from fmapviz.models.weights.download import fetch
from fmapviz.models.weights.file import DAMAGED, digesting
from fmapviz.models.weights.fit import LoadedWeights, load_weights
from fmapviz.models.weights.hub_file import find_on_hub
from fmapviz.models.weights.read import read_checkpoint

# isort: split
import timm
from timm import data

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import nn

    from fmapviz.config import InputOptions
    from fmapviz.data import Model, Preparation
    from fmapviz.models.weights.fit import Build
    from fmapviz.models.weights.state_dict import StateDict


def model_names() -> list[str]:
    """List the names of timm, with and without the tags of published weights."""
    return sorted({*timm.list_models(), *timm.list_pretrained()})


def load(name: str, *, weights: str | Mapping[str, Any] | None, preprocessing: InputOptions) -> Model:
    """Build a model and fill it with weights; see `ModelSource`.

    Arguments for the builder may follow the name, as in `resnet18(in_chans=1)`.
    """
    if weights == "default":
        loaded = _load_published(name, preprocessing)
    else:
        loaded = load_weights(weights, partial(_build, name, preprocessing), adapt=_adapted)
    headless = getattr(loaded.module, "num_classes", None) == 0
    no_classes = f"{name} has no classification head (num_classes=0), and so no classes: its outputs are features"
    return replace(
        loaded.as_model(f"timm:{name}", prepare(loaded.module, preprocessing)),
        classes=() if headless else loaded.classes,
        scores="value" if headless else "softmax" if weights == "default" or loaded.sha256 is None else "",
        notices=(*loaded.notices, *([no_classes] if headless else [])),
    )


def _load_published(name: str, preprocessing: InputOptions) -> LoadedWeights:
    full, arguments = _parse(name)
    config = timm.get_pretrained_cfg(full)
    path = _fetch(full, config)
    with digesting(path) as digest:
        state = read_checkpoint(path).state
        # timm's own code renames the keys of other projects, and adapts the first and the last layer to the arguments.
        overlay = {"state_dict": state, "custom_load": False}
        try:
            module = _build(name, preprocessing, pretrained=True, pretrained_cfg_overlay=overlay)
        except RequestError:
            raise
        except Exception as error:  # a damaged file leads to any exception
            raise WeightsError(f"timm cannot load {quote(path)}: {one_line(error)}", hint=DAMAGED) from error
    classes: tuple[str, ...] = ()
    if "num_classes" not in arguments and (subset := data.infer_imagenet_subset(module)):
        info = data.ImageNetInfo(subset)
        classes = tuple(info.index_to_description(index).partition(",")[0] for index in range(info.num_classes()))
    return LoadedWeights(module, config.tag or "default", digest.result(), classes)


def _adapted(build: Build, module: nn.Module, state: StateDict) -> tuple[nn.Module, tuple[str, ...]]:
    """Build a model with the number of classes and input channels of its weights."""
    own: StateDict = module.state_dict()
    config: dict[str, Any] = getattr(module, "pretrained_cfg", {})
    sizes = {}
    for option, layers, axis in (("num_classes", config.get("classifier"), 0), ("in_chans", config.get("first_conv"), 1)):
        layer = layers if isinstance(layers, str) else (layers or [""])[0]
        key = f"{layer}.weight"
        theirs, ours = (list(tensors[key].shape) if key in tensors else [] for tensors in (state, own))
        if len(theirs) == len(ours) > axis and theirs[axis] != ours[axis]:
            sizes[option] = theirs[axis]
    if not sizes:
        return module, ()
    shown = ", ".join(f"{option}={size}" for option, size in sizes.items())
    return build(**sizes), (f"the model was built for the weights: {shown}",)


def prepare(module: nn.Module, preprocessing: InputOptions) -> Preparation:
    """Preprocess by the model's data configuration; the user's options take precedence."""
    config: dict[str, Any] = data.resolve_model_data_config(module)
    channels, trained = preprocessing.channels_in or input_channels(module), config["input_size"]
    size = sides_of(preprocessing) or (trained[1], trained[2])
    usual = (tuple(config["mean"]), tuple(config["std"])) if channels == 3 else (GREY_MEAN, GREY_STD)
    mean, std = preprocessing.mean or usual[0], preprocessing.std or usual[1]
    if preprocessing.fit:
        resampling = getattr(PillowImage.Resampling, str(config["interpolation"]).upper(), PillowImage.Resampling.BILINEAR)
        return standard(preprocessing, size=size, mean=mean, std=std, channels=channels, resampling=resampling)
    if channels == 3:
        mean, std = (numbers * 3 if len(numbers) == 1 else numbers for numbers in (mean, std))
    config |= {"input_size": (channels, *size), "mean": mean, "std": std}
    crop = f"{config['crop_mode']} crop of {config['crop_pct']:g}"
    # Every setting that changes the result is in the description.
    words = f"{size[0]}x{size[1]}, {crop}, {config['interpolation']}, mean {config['mean']}, std {config['std']}"
    words = words if channels == 3 else f"{channels} channel{'' if channels == 1 else 's'}, {words}"
    return by_callable(data.create_transform(**config, is_training=False), description=words, channels=channels)


def _build(name: str, preprocessing: InputOptions, **more: Any) -> nn.Module:
    full, arguments = _parse(name)
    arguments |= more
    config = timm.get_pretrained_cfg(full, allow_unregistered=True)
    if preprocessing.size and config is not None and getattr(config, "fixed_input_size", False):
        arguments.setdefault("img_size", preprocessing.size)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old names
            module: nn.Module = timm.create_model(full, **arguments)
    except Exception as error:
        if more:
            raise
        hint = f"timm.create_model({full!r}) takes the same arguments"
        raise refused("timm", full, arguments, error, hint=hint) from error
    return module


def _parse(name: str) -> tuple[str, dict[str, Any]]:
    """Split a name from its arguments.

    Raises:
        RequestError: timm does not know the name.
    """
    full, arguments = split_call(name)
    architecture, _, tag = full.partition(".")
    if not timm.is_model(architecture) or (tag and full not in _published_names()):
        known = _published_names() if timm.is_model(architecture) else tuple(timm.list_models())
        raise RequestError(
            f"no such model in timm: {quote(full)}",
            hint=suggest(full, known) or f"fmapviz.model_names('timm:*{architecture}*') lists similar names",
        )
    return full, arguments


@cache
def _published_names() -> tuple[str, ...]:
    return tuple(timm.list_pretrained())


def _fetch(name: str, config: Any) -> Path:
    """Return the file of published weights, from the Hugging Face hub's cache or downloaded.

    Raises:
        WeightsError: There are none, or the download fails.
    """
    # Any: timm's configurations are untyped.
    if not config.hf_hub_id:
        if not config.url:
            raise WeightsError(f"no published weights for {quote(name)}", hint="pass weights=FILE or weights='random'")
        return fetch(config.url)
    files = [config.hf_hub_filename] if config.hf_hub_filename else ["model.safetensors", "pytorch_model.bin"]
    path = find_on_hub(config.hf_hub_id, files)
    if path is None:
        message = f"no weights of {quote(name)} in {quote(config.hf_hub_id)}"
        raise WeightsError(message, hint="pass weights=FILE or weights='random'")
    return path
