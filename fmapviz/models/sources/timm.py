"""The models of timm: `timm:resnet18`, `timm:vit_base_patch16_224.dino`, `timm:resnet18(in_chans=1)`, ..."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fmapviz import vision as vision  # first: timm imports torchvision with everything that can be imported
from fmapviz.channels import input_channels
from fmapviz.checkpoints import building_for, digesting, find_weights, label, read_checkpoint
from fmapviz.downloads import fetch, refusal, unreachable
from fmapviz.errors import RequestError, WeightsError, quote, suggest
from fmapviz.fitting import fit_keys, load_state_dict
from fmapviz.initialization import NoInitialization, read_seed
from fmapviz.preparation import by_callable, standard
from fmapviz.references import parse_arguments
from fmapviz.tracebacks import sentence_of
from fmapviz.values import Model, Preparation

# isort: split
import huggingface_hub
import timm
from timm import data

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fmapviz.contents import StateDict
    from fmapviz.options import InputOptions

REQUIRES = "timm"
SPELLING = r"timm:.+"


def load(name: str, *, weights: str, options: InputOptions) -> Model:
    """Build a model and fill in its weights.

    Args:
        name: A name of timm's, with or without the tag of its published weights; arguments for its builder may follow in
            parentheses, such as `resnet18(in_chans=1)`.
        weights: `default`, `random`, `random:SEED`, or a file or URL.
        options: What the user wants otherwise in the preparation of pictures.

    Raises:
        RequestError: timm knows no such model, or cannot build it so.
        WeightsError: The weights cannot be had, read or fitted in.
    """
    seed = read_seed(weights)
    if seed is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = _build(name, options)
        return _model(name, module, options, weights=f"random weights, seed {seed}")
    return _published(name, options) if weights == "default" else _own(name, weights, options)


def outline(name: str, *, options: InputOptions) -> Model:
    """Build a model on the meta device: its modules and shapes without one number."""
    with NoInitialization():
        module = _build(name, options).to("meta")
    return _model(name, module, options, weights="no weights")


def known_names() -> list[str]:
    """List the names that timm knows, with and without tags."""
    return sorted({*timm.list_models(), *timm.list_pretrained()})


def _published(name: str, options: InputOptions) -> Model:
    full, arguments = _parse(name)
    config = timm.get_pretrained_cfg(full)
    path = _fetch(full, config)
    with digesting(path) as digest:
        state = read_checkpoint(path).state
        # timm's own code renames the keys of other projects, and adapts the first and the last layer to the arguments.
        overlay = {"state_dict": state, "custom_load": False}
        try:
            module = _build(name, options, pretrained=True, pretrained_cfg_overlay=overlay)
        except RequestError:
            raise
        except Exception as error:  # whatever a damaged file leads to
            raise WeightsError(f"timm cannot load {quote(path)}: {sentence_of(error)}") from error
    classes = () if "num_classes" in arguments else _class_names(module)
    model = _model(name, module, options, weights=config.tag or "default")
    return replace(model, sha256=digest.result(), classes=classes)


def _own(name: str, weights: str, options: InputOptions) -> Model:
    path, entry = find_weights(weights, known=("default", "random", "random:SEED"))
    with digesting(path) as digest:
        checkpoint = read_checkpoint(path, entry)
        with NoInitialization():
            module = _build(name, options)
            state, remarks = fit_keys(checkpoint.state, module.state_dict(), path)
            sizes = _sizes_in(state, module)
            if sizes:
                with building_for(path):
                    module = _build(name, options, **sizes)
        load_state_dict(module, state, path)
    notices = [*checkpoint.notices, *remarks]
    if sizes:
        words = ", ".join(f"{key}={value}" for key, value in sizes.items())
        notices.append(f"built as {quote(path)} needs it: {words}")
    model = _model(name, module, options, weights=label(path, entry))
    return replace(model, sha256=digest.result(), classes=checkpoint.classes, notices=tuple(notices))


def _sizes_in(state: StateDict, module: nn.Module) -> dict[str, int]:
    """Tell how many classes and input channels a file is for, where timm's own number is another."""
    own: StateDict = module.state_dict()
    config: dict[str, Any] = getattr(module, "pretrained_cfg", {})
    found = {}
    for option, layers, axis in (("num_classes", config.get("classifier"), 0), ("in_chans", config.get("first_conv"), 1)):
        layer = layers if isinstance(layers, str) else (layers or [""])[0]
        key = f"{layer}.weight"
        there, here = (list(tensors[key].shape) if key in tensors else [] for tensors in (state, own))
        if len(there) == len(here) > axis and there[axis] != here[axis]:
            found[option] = there[axis]
    return found


def _model(name: str, module: nn.Module, options: InputOptions, *, weights: str) -> Model:
    return Model(
        name=f"timm:{name}",
        module=module.eval(),
        weights=weights,
        sha256=None,
        preparation=_preparation(module, options),
        forward=nn.Module.__call__,
    )


def _preparation(module: nn.Module, options: InputOptions) -> Preparation:
    """Prepare as the model's own data configuration says, with what the user wants otherwise in its place."""
    config: dict[str, Any] = data.resolve_model_data_config(module)
    channels, trained = input_channels(module), config["input_size"]
    size = options.size or (trained[1], trained[2])
    mean, std = (options.mean or tuple(config["mean"])), (options.std or tuple(config["std"]))
    if options.fit:
        return standard(options, size=size, mean=mean, std=std, channels=channels)
    if channels != 3:
        return standard(options, size=size, channels=channels)
    config |= {"input_size": (channels, *size), "mean": _three(mean), "std": _three(std)}
    return by_callable(data.create_transform(**config, is_training=False), description=_words(config))


def _three(numbers: tuple[float, ...]) -> tuple[float, ...]:
    return numbers * 3 if len(numbers) == 1 else numbers


def _words(config: Mapping[str, Any]) -> str:
    """Describe the preparation; whatever of it changes the result is in the words."""
    height, width = config["input_size"][1:]
    crop = f"{config['crop_mode']} crop of {config['crop_pct']:g}"
    return f"{height}x{width}, {crop}, {config['interpolation']}, mean {config['mean']}, std {config['std']}"


def _build(name: str, options: InputOptions, **more: Any) -> nn.Module:
    full, arguments = _parse(name)
    arguments |= more
    config = timm.get_pretrained_cfg(full, allow_unregistered=True)
    if options.size and config is not None and getattr(config, "fixed_input_size", False):
        arguments.setdefault("img_size", options.size)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about names that have changed
            module: nn.Module = timm.create_model(full, **arguments)
    except Exception as error:
        if more:
            raise
        written = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise RequestError(
            f"timm cannot build {quote(full)} with {written or 'no arguments'}: {sentence_of(error)}"
        ) from error
    return module


def _parse(name: str) -> tuple[str, dict[str, Any]]:
    """Take a name and its arguments apart.

    Raises:
        RequestError: timm does not know the name.
    """
    match = re.fullmatch(r"([^(]*)(\(.*\))?", name, re.DOTALL)
    full = match[1].strip() if match else name
    architecture, _, tag = full.partition(".")
    if not timm.is_model(architecture) or (tag and full not in _published_names()):
        known = _published_names() if timm.is_model(architecture) else tuple(timm.list_models())
        raise RequestError(
            f"no such model in timm: {quote(full)}",
            hint=suggest(full, known) or f"`fmapviz models 'timm:*{architecture}*'` lists what there is",
        )
    return full, parse_arguments(match[2]) if match and match[2] else {}


@cache
def _published_names() -> tuple[str, ...]:
    return tuple(timm.list_pretrained())


def _fetch(name: str, config: Any) -> Path:
    """Give the file of the published weights, from the cache of the Hugging Face hub or downloaded.

    Raises:
        WeightsError: There are none, or they cannot be had.
    """
    # Any: timm's configurations have no types.
    if not config.hf_hub_id:
        if not config.url:
            raise WeightsError(f"no published weights of {quote(name)}", hint="--weights FILE, or --weights random")
        return fetch(config.url)
    files = [config.hf_hub_filename] if config.hf_hub_filename else ["model.safetensors", "pytorch_model.bin"]
    for file in files:
        cached = huggingface_hub.try_to_load_from_cache(config.hf_hub_id, file)
        if isinstance(cached, str):
            return Path(cached)
    url = huggingface_hub.hf_hub_url(config.hf_hub_id, files[0])
    reason = unreachable(url)
    if reason is None:
        try:
            return Path(huggingface_hub.hf_hub_download(config.hf_hub_id, files[0]))
        except Exception as error:  # noqa: BLE001  the hub's errors come from several libraries
            reason = sentence_of(error)
    raise refusal(url, reason, f"fill the cache of the Hugging Face hub, {quote(huggingface_hub.constants.HF_HUB_CACHE)}")


def _class_names(module: nn.Module) -> tuple[str, ...]:
    """Name ImageNet's classes, of whichever subset the model knows; none if it is trained on something else."""
    subset = data.infer_imagenet_subset(module)
    if not subset:
        return ()
    info = data.ImageNetInfo(subset)
    return tuple(info.index_to_description(index).partition(",")[0] for index in range(info.num_classes()))
