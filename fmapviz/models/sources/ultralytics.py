"""Networks that were trained with ultralytics, `best.pt`, and its architectures: `ultralytics:yolo11n.yaml`, ..."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections import OrderedDict
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch._tensor_str import PRINT_OPTS

from fmapviz.config import sides_of
from fmapviz.core.user_code import split_call
from fmapviz.errors import RequestError, WeightsError, printable, quote, suggest
from fmapviz.images.preprocess import standard
from fmapviz.models.initialization import read_seed
from fmapviz.models.network import input_channels
from fmapviz.models.sources.base import refused
from fmapviz.models.sources.ultralytics_file import read_names, read_network, read_size
from fmapviz.models.weights.file import DAMAGED, digesting
from fmapviz.models.weights.fit import LoadedWeights, load_weights
from fmapviz.models.weights.stand_ins import Inert

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fmapviz.config import InputOptions
    from fmapviz.data import Model, Preparation
    from fmapviz.models.sources.ultralytics_file import SavedNetwork


@contextmanager
def unpatched() -> Iterator[None]:
    """Undo what importing ultralytics, and building a network, changes for the whole process.

    It replaces functions that read images and save tensors, sets variables of the environment, which a worker would inherit,
    prints arrays and tensors otherwise, and disables NNPACK, so that convolutions round differently.
    """
    replaced = [(owner, name, getattr(owner, name)) for owner, name in ((Image, "open"), (torch, "load"), (torch, "save"))]
    environment, printed = dict(os.environ), vars(PRINT_OPTS).copy()
    try:
        with np.printoptions(), torch.backends.nnpack.flags(enabled=True):  # restore the former settings
            yield
    finally:
        for owner, name, function in replaced:
            setattr(owner, name, function)
        vars(PRINT_OPTS).update(printed)
        os.environ.clear()
        os.environ.update(environment)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Make objects without garbage collection, which a file of YOLO11n, 52,000 pickle operations, would cause 25 times."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# Without these variables its import looks for a network and may install packages.
os.environ.setdefault("YOLO_OFFLINE", "true")
os.environ.setdefault("YOLO_AUTOINSTALL", "false")
os.environ.setdefault("YOLO_VERBOSE", "false")
with unpatched():
    import ultralytics
    from ultralytics.nn import tasks as _tasks


_SIDE, _CLASSIFIED = 640, 224  # pixels
_STRIDE, _LARGEST = 32, 1024  # of a network that has none, as of RT-DETR; the largest that is accepted, pixels
_GREY = 114  # of the bars beside a picture, of 255
_LEFT_OUT = object()
_CONTAINERS = {dict, OrderedDict, list, tuple}
_PLAIN = {str, int, float, bool, type(None)}
_CACHES = {"anchors", "strides", "shape", "shapes", "valid_mask"}  # of a head, for the size of the last input
_NETWORK_PART = re.compile(r"(?:torch\.nn\.modules|ultralytics\.nn\.(?:tasks|modules))\b")
_FORMER = {  # names in files of earlier versions
    "ultralytics.nn.modules.block.Silence": "torch.nn.modules.linear.Identity",
    "ultralytics.nn.tasks.YOLOv10DetectionModel": "ultralytics.nn.tasks.DetectionModel",
}
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
        return _load_file(name, weights=weights, preprocessing=preprocessing)
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
        notices = ("random weights: weights=FILE loads others, and a trained best.pt is a model itself", *notices)
    classifies = "-cls" in full
    preparation = _preparation(loaded.module, preprocessing, size=None, classifies=classifies)
    model = replace(loaded.as_model(f"ultralytics:{name}", preparation), notices=notices)
    return replace(model, forward=_call_classifier) if classifies else model


def _load_file(name: str, *, weights: str | Mapping[str, Any] | None, preprocessing: InputOptions) -> Model:
    """Load the network in a file, with its weights unless others are given."""
    path = Path(name)
    with digesting(path) as digest, _uncollected():
        saved = read_network(path)
        network = _restore(saved, path)
    if weights == "default":
        loaded = LoadedWeights(network, path.name, digest.result())
    else:
        loaded = load_weights(weights, lambda: network if read_seed(weights) is None else _reset(network))
    said = _read_said(network, saved.names, saved.arguments, preprocessing)
    preparation = _preparation(network, preprocessing, size=said.size, classifies=saved.classifies, path=path)
    model = loaded.as_model(name, preparation)
    notices = (*model.notices, *(f"{quote(path)}: {notice}" for notice in said.notices))
    model = replace(model, classes=said.classes or model.classes, notices=notices)
    return replace(model, forward=_call_classifier) if saved.classifies else model


class Live(NamedTuple):
    """A network that ultralytics has made in this process.

    Attributes:
        preparation: Its preprocessing.
        classes: Their names, by index; empty if they are unknown.
        forward: Calls it with a batch; None: it takes the batch itself.
        notices: What of it is not used.
    """

    preparation: Preparation
    classes: tuple[str, ...]
    forward: Callable[[nn.Module, torch.Tensor], object] | None
    notices: tuple[str, ...]


def describe(network: nn.Module, preprocessing: InputOptions) -> Live:
    """Describe a network in this process as a file of it."""
    arguments = getattr(network, "args", None)
    arguments = arguments if isinstance(arguments, dict) else getattr(arguments, "__dict__", None)
    said = _read_said(network, getattr(network, "names", None), arguments, preprocessing)
    classifies = isinstance(network, _tasks.ClassificationModel)
    preparation = _preparation(network, preprocessing, size=said.size, classifies=classifies)
    return Live(preparation, said.classes, _call_classifier if classifies else None, said.notices)


class _Said(NamedTuple):
    classes: tuple[str, ...]
    size: tuple[int, int] | None
    notices: tuple[str, ...]


def _read_said(network: nn.Module, names: object, arguments: object, preprocessing: InputOptions) -> _Said:
    """Return what is saved about a network, with notices about what of it is not used."""
    last = getattr(network, "model", [None])[-1]
    outputs = getattr(last, "nc", getattr(getattr(last, "linear", None), "out_features", None))
    classes, unnamed = read_names(names, outputs=outputs if isinstance(outputs, int) else None)
    size, unsized = read_size(arguments)
    return _Said(classes, size, tuple(filter(None, (unnamed, "" if preprocessing.size else unsized))))


def _call_classifier(network: nn.Module, batch: torch.Tensor) -> object:
    """Return the logits `(N, K)`, which a classifier returns behind its probabilities."""
    output = network(batch)
    return output[1] if isinstance(output, tuple) else output


def _preparation(
    network: nn.Module,
    preprocessing: InputOptions,
    *,
    size: tuple[int, int] | None,
    classifies: bool,
    path: Path | None = None,
) -> Preparation:
    """Preprocess as ultralytics predicts: a classifier sees the middle of the picture, others all of it, with grey bars.

    The sides are multiples of the largest stride.

    Raises:
        WeightsError: The strides of the network are no numbers of pixels; `path` names the file.
    """
    height, width = sides_of(preprocessing) or size or ((_CLASSIFIED,) * 2 if classifies else (_SIDE,) * 2)
    if not classifies:
        step = _largest_stride(network, path)
        height, width = (step * ceil(side / step) for side in (height, width))
        preprocessing = replace(preprocessing, fit=preprocessing.fit or "pad", size=(height, width))
    return standard(
        preprocessing,
        size=(height, width),
        mean=(0.0,),
        std=(1.0,),
        channels=preprocessing.channels_in or input_channels(network),
        bars=_GREY / 255,
    )


def _largest_stride(network: nn.Module, path: Path | None) -> int:
    """Return the largest stride of a network, of which the head's count where the network's are missing; pixels.

    Raises:
        WeightsError: They are no whole numbers of pixels.
    """
    head = getattr(network, "model", [None])[-1]
    given = next((found for owner in (network, head) if (found := getattr(owner, "stride", None)) is not None), _STRIDE)
    with suppress(TypeError, ValueError, RuntimeError):
        strides = torch.as_tensor(given, dtype=torch.float64).flatten().tolist()
        if strides and all(1 <= stride <= _LARGEST and stride == int(stride) for stride in strides):
            return int(max(strides))
    of = "the network" if path is None else quote(path)
    raise WeightsError(f"the strides of {of} are no numbers of pixels: {quote(given)}", hint="such as 8, 16 and 32")


def _restore(saved: SavedNetwork, path: Path) -> nn.Module:
    """Make the modules of a file, in single precision, from the classes of the package and of torch that it names.

    Only these classes are looked up, among the modules that are imported. Objects of other classes, such as losses and
    settings, are left out, and so are hooks.

    Raises:
        WeightsError: The package has no such class, or a tensor would be larger than its values in the file.
    """
    made: dict[int, nn.Module] = {}
    tensors: dict[int, torch.Tensor] = {}
    containers: dict[int, Any] = {}  # a file of a few lists that contain the next twice has millions of items

    def restore(module: Inert) -> nn.Module:
        if id(module) in made:
            return made[id(module)]
        kind = _layer(module.spelling)
        if kind is None:
            raise WeightsError(
                f"ultralytics {ultralytics.__version__} has no {printable(module.spelling)}, of which {quote(path)} has one",
                hint="a newer or an older ultralytics may have it",
            )
        made[id(module)] = restored = kind.__new__(kind)
        nn.Module.__init__(restored)
        state = {name: value for name, value in module.state.items() if "_hooks" not in name}
        state = {name: value for name, value in state.items() if name not in _CACHES or not hasattr(kind, name)}
        restored.__setstate__(filled(state))  # type: ignore[no-untyped-call]  # of torch
        if _is_fused(module):
            restored.forward = restored.forward_fuse  # type: ignore[assignment]  # as `fuse()` of ultralytics
        return restored

    def precise(values: torch.Tensor) -> torch.Tensor:
        """Return values in single precision; a tensor that is in two places stays one."""
        if values.numel() * values.itemsize > values.untyped_storage().nbytes():  # repeated, to fill the memory
            raise WeightsError(f"cannot read {quote(path)}: a tensor has more values than the file", hint=DAMAGED)
        if not values.is_floating_point() or values.dtype == torch.float32:
            return values
        if id(values) not in tensors:
            single = values.detach().float()
            is_parameter = isinstance(values, nn.Parameter)
            tensors[id(values)] = nn.Parameter(single, values.requires_grad) if is_parameter else single
        return tensors[id(values)]

    def convert(value: object) -> Any:
        """Return a value with modules in place of stand-ins, and its tensors in single precision."""
        if type(value) in _PLAIN:
            return value
        if isinstance(value, torch.Tensor):
            return precise(value)
        if isinstance(value, Inert):
            return restore(value) if _NETWORK_PART.match(value.spelling) and value.state else _LEFT_OUT
        if type(value) not in _CONTAINERS or not value:
            return value
        if id(value) not in containers:
            containers[id(value)] = filled(value)
        return containers[id(value)]

    def filled(value: Any) -> Any:
        """Return a container with converted items; one that contains itself is nested too deeply."""
        if isinstance(value, dict):
            kept = {key: each for key, old in value.items() if (each := convert(old)) is not _LEFT_OUT}
            return type(value)(kept)
        return type(value)(each for old in value if (each := convert(old)) is not _LEFT_OUT)

    try:
        with unpatched():
            return restore(saved.network)
    except RecursionError as error:
        raise WeightsError(f"cannot read {quote(path)}: its modules are nested too deeply", hint=DAMAGED) from error


def _reset(network: nn.Module) -> nn.Module:
    """Initialize a network at random, but for the positions that the distances of boxes are averaged over."""
    for name, module in network.named_modules():
        if hasattr(module, "reset_parameters") and ".dfl" not in name:
            module.reset_parameters()
    return network


def _layer(spelling: str) -> type[nn.Module] | None:
    """Return the class of a module in a file; None if there is none."""
    spelling = _FORMER.get(spelling, spelling)
    home, _, name = spelling.rpartition(".")
    found = getattr(sys.modules.get(home), name, None) if _NETWORK_PART.match(spelling) else None
    return found if isinstance(found, type) and issubclass(found, nn.Module) else None


def _is_fused(module: Inert) -> bool:
    """Return True if `fuse()` has replaced the method that runs a module."""
    method = module.state.get("forward")
    return isinstance(method, Inert) and method.arguments == (module, "forward_fuse")


def _build(file: Path, arguments: dict[str, Any]) -> nn.Module:
    """Build an architecture from a file of the package: a file of the same name may be in the working directory."""
    # Any: literals.
    try:
        with unpatched():
            facade = ultralytics.RTDETR if "rtdetr" in file.name else ultralytics.YOLO
            network: nn.Module = facade(str(file)).model
            built: Any = type(network)
            module: nn.Module = built(network.yaml, verbose=False, **arguments) if arguments else network
    except Exception as error:
        hint = "its models take nc=, the number of classes, and ch=, the number of channels"
        raise refused("ultralytics", file.name, arguments, error, hint=hint) from error
    return module
