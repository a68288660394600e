"""Architectures of ultralytics, without its published weights: `ultralytics:yolo11n.yaml`, ..."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

from fmapviz.core.user_code import split_call
from fmapviz.errors import RequestError, quote, suggest
from fmapviz.images.preprocess import standard
from fmapviz.models.network import input_channels
from fmapviz.models.sources.base import refused
from fmapviz.models.weights.fit import load_weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

    from fmapviz.config import InputOptions
    from fmapviz.data import Model


@contextmanager
def unpatched() -> Iterator[None]:
    """Undo what importing ultralytics, and building a network, changes for the whole process.

    It replaces functions that read images and save tensors, sets variables of the environment, which a worker would inherit,
    and disables NNPACK, so that convolutions round differently.
    """
    replaced = [(owner, name, getattr(owner, name)) for owner, name in ((Image, "open"), (torch, "load"), (torch, "save"))]
    environment = dict(os.environ)
    try:
        with torch.backends.nnpack.flags(enabled=True):  # restores the former settings
            yield
    finally:
        for owner, name, function in replaced:
            setattr(owner, name, function)
        os.environ.clear()
        os.environ.update(environment)


# Without these variables its import looks for a network and may install packages.
os.environ.setdefault("YOLO_OFFLINE", "true")
os.environ.setdefault("YOLO_AUTOINSTALL", "false")
os.environ.setdefault("YOLO_VERBOSE", "false")
with unpatched():
    import ultralytics


_SIDE, _CLASSIFIED = 640, 224  # pixels
_FOLDER = Path(ultralytics.__file__).parent / "cfg" / "models"


def model_names() -> list[str]:
    """List the architectures in the package, of each family the smallest size."""
    names = {path.name for path in _FOLDER.rglob("*.yaml")}
    return sorted(re.sub(r"^(yolov?(?:5|6|8|11|12|26))(?=[-.])", r"\1n", name) for name in names)


def load(name: str, *, weights: str | Mapping[str, Any] | None, preprocessing: InputOptions) -> Model:
    """Build an architecture with random weights, or those of a state dict; see `ModelSource`.

    Arguments may follow the name: `yolo11n.yaml(nc=5)` has five classes. With `default` the weights are random, with seed 0.
    """
    full, arguments = split_call(name)
    if full.endswith(".pt"):
        raise RequestError(
            f"{quote(full)} is a pickled network, whose code would be run: it is not read",
            hint="save its state dict where you trust it, torch.save(YOLO(FILE).model.state_dict(), 'own.pth'), "
            "and pass weights='own.pth' with its architecture, such as ultralytics:yolo11n.yaml",
        )
    plain = re.sub(r"(?<=\d)[nslmx](?=[-.])", "", full)  # the size is no part of the file's name
    file = next((path for path in _FOLDER.rglob("*.yaml") if path.name in {full, plain}), None)
    if "/" in full or file is None:
        known = model_names()
        raise RequestError(
            f"no such architecture in ultralytics: {quote(full)}",
            hint=suggest(full, known) or "fmapviz.model_names('ultralytics:*') lists them",
        )
    loaded = load_weights("random" if weights == "default" else weights, partial(_build, file.with_name(full), arguments))
    notices = loaded.notices
    if weights == "default":
        notices = ("random weights: those of ultralytics are pickled networks; weights=FILE takes a state dict", *notices)
    side = _CLASSIFIED if "-cls" in full else _SIDE
    if side == _SIDE and preprocessing.fit is None:  # detectors see the whole picture
        preprocessing = replace(preprocessing, fit="pad")
    preparation = standard(
        preprocessing,
        size=(side, side),
        mean=(0.0,),
        std=(1.0,),
        channels=preprocessing.channels_in or input_channels(loaded.module),
    )
    return replace(loaded.as_model(f"ultralytics:{name}", preparation), notices=notices)


def _build(file: Path, arguments: dict[str, Any]) -> nn.Module:
    """Build an architecture from a file of the package: a file of the same name may be in the working directory."""
    # Any: literals.
    try:
        with unpatched():
            facade = ultralytics.RTDETR if file.name.startswith("rtdetr") else ultralytics.YOLO
            network: nn.Module = facade(str(file)).model
            built: Any = type(network)
            module: nn.Module = built(network.yaml, verbose=False, **arguments) if arguments else network
    except Exception as error:
        hint = "its models take nc=, the number of classes, and ch=, the number of channels"
        raise refused("ultralytics", file.name, arguments, error, hint=hint) from error
    return module
