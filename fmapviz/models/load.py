"""Find a model by its name in all sources."""

from __future__ import annotations

import os
import re
import zipfile
from contextlib import suppress
from enum import Enum
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, cast

from fmapviz.config import InputOptions, check_glob, check_type, check_weights, explain_arguments, renamed
from fmapviz.core import registry
from fmapviz.core.synonyms import meant_model
from fmapviz.core.user_code import check_reference, split_call
from fmapviz.errors import RequestError, WeightsError, nearest, quote, suggest, suggest_file

if TYPE_CHECKING:
    from fmapviz.data import Model, Weights
    from fmapviz.models.sources.base import ModelSource

# Suffixes of files that users pass in place of a model.
_WEIGHTS = {".pth", ".pt", ".ckpt", ".bin", ".safetensors", ".tar"}
_FOREIGN = {".onnx": "an ONNX", ".h5": "a Keras", ".keras": "a Keras", ".tflite": "a TensorFlow Lite", ".pb": "a TensorFlow"}
_FOREIGN |= {".torchscript": "a TorchScript", ".engine": "a TensorRT", ".mlmodel": "a Core ML", ".mnn": "an MNN"}


@explain_arguments
def model_names(pattern: str = "") -> list[str]:
    """List model names. Those that need no prefix are listed without importing torch.

    Args:
        pattern: List only names that contain it or match it as a glob; `timm:*resnet*` lists those of one source.

    Raises:
        RequestError: The pattern names a source whose package is not installed, or is too long a glob.

    Example:
        >>> model_names("vgg1*_bn")
        ['vgg11_bn', 'vgg13_bn', 'vgg16_bn', 'vgg19_bn']
    """
    check_type("pattern", pattern, str, hint="part of a name, or a glob such as 'resnet*'")
    check_glob(pattern)
    source, colon, glob = pattern.partition(":")
    if colon and source in registry.sources() and not registry.sources()[source].names:
        names: list[str] = getattr(_fetch(source), "model_names", list)()
        return [f"{source}:{name}" for name in names if glob in name or fnmatchcase(name, glob)]
    names = sorted(name for member in registry.sources().values() for name in member.names)
    return [name for name in names if pattern in name or fnmatchcase(name, pattern)]


def check_name(spec: str) -> None:
    """Check, without importing torch, that a model's name is valid.

    Raises:
        RequestError: No source accepts the name, or the code that it refers to does not exist.
    """
    source, name = _resolve(spec)
    if is_code(spec):
        check_reference(name)
    elif registry.sources()[source].takes_arguments:
        split_call(name)


def is_model(spec: object) -> bool:
    """Return True for a model's name, see `check_name`."""
    if not isinstance(spec, str):
        return False
    with suppress(RequestError):
        check_name(spec)
        return True
    return False


def is_code(spec: str) -> bool:
    """Return True if a model's name refers to user code, which is run.

    Raises:
        RequestError: No source accepts the name.
    """
    return registry.source(_resolve(spec)[0]).is_code


@renamed(options="preprocessing")
@explain_arguments
def load_model(spec: str, *, weights: Weights = "default", preprocessing: InputOptions | None = None) -> Model:
    """Load a model with its weights and its preprocessing.

    Args:
        spec: A torchvision name such as `alexnet` or `resnet18(num_classes=5)`; `shapesnet`; a name with its source, such as
            `timm:NAME` or `hf:NAME`; or user code, which is run: `my_net.py:build`, `my_net.py:build(num_classes=5)`.
        weights: `default`, the name of a published entry, `random`, `random:SEED`, or a file or URL of a checkpoint. Or a
            member of torchvision's enumerations, such as `ResNet18_Weights.IMAGENET1K_V1`, or a state dict, which is copied.
        preprocessing: Preprocessing of inputs; options that are not set are those of the weights' training.

    Raises:
        RequestError: There is no such model.
        WeightsError: The weights cannot be found, downloaded, read or fitted. Other weights are never used instead.
        UserCodeError: The user's code failed.

    Example:
        >>> load_model("squeezenet1_1", weights="random").label
        'squeezenet1_1 (random weights, seed 0)'

        With `load_image` and `cam`, from a photo to the map of a class:

        >>> from fmapviz import cam, load_image
        >>> model = load_model("shapesnet")
        >>> cam(model, load_image("sample_images/shapes/star.jpg", model), target="star").map.shape
        torch.Size([1, 96, 96])
    """
    check_type("spec", spec, str, hint="a name such as 'resnet18', or your code: 'my_net.py:build'")
    check_weights(weights)
    check_type("preprocessing", preprocessing, InputOptions | None, hint="such as InputOptions(fit='pad')")
    source, name = _resolve(spec)
    if isinstance(weights, Enum):
        weights = _entry_name(source, name, weights)
    return _fetch(source).load(name, weights=weights, preprocessing=preprocessing or InputOptions())


def outline_model(spec: str, *, preprocessing: InputOptions | None = None) -> Model:
    """Build a model's modules and shapes on the meta device, without weights.

    Raises:
        RequestError: There is no such model.
        UserCodeError: The user's code failed.
    """
    source, name = _resolve(spec)
    return _fetch(source).load(name, weights=None, preprocessing=preprocessing or InputOptions())


def _entry_name(source: str, name: str, member: Enum) -> str:
    """Return the name of published weights that an enumeration has.

    Raises:
        WeightsError: The source has no such weights for this model.
    """
    find = getattr(_fetch(source), "entry_name", None)
    if find is None:
        shown = f"{type(member).__name__}.{member.name}"
        raise WeightsError(f"no weights of {name}: {quote(shown)}", hint="weights='default', for example")
    return str(find(name, member))


def _resolve(spec: str) -> tuple[str, str]:
    """Return the source that accepts a name, and the name without the source's prefix."""
    sources = registry.sources()
    for source, member in sources.items():
        name = spec.removeprefix(f"{source}:")
        if (name.partition("(")[0].strip() if member.takes_arguments else name) in member.names:
            return source, name
    prefix = spec.partition(":")[0]
    for source in [prefix] if prefix in sources else sources:
        spelling = sources[source].spelling
        if spelling and re.fullmatch(spelling, spec, re.DOTALL):
            registry.source(source)
            return source, spec.removeprefix(f"{source}:")
    if PurePath(spec).suffix.lower() in _WEIGHTS:
        homes = modules_in_pickle(spec)
        for source, member in sources.items():
            if not homes.isdisjoint(member.pickled):
                registry.source(source)
                return source, spec
    raise _no_model(spec)


def modules_in_pickle(path: str) -> set[str]:
    """Return the modules of the classes that a file of `torch.save` names; empty if it is no such file."""
    with suppress(OSError, ValueError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        name = next((name for name in archive.namelist() if name.endswith("/data.pkl")), None)
        pickled = archive.read(name) if name else b""
        return {home.decode("ascii", "replace") for home in re.findall(rb"c([\w.]+)\n", pickled)}
    return set()


def _no_network(path: str) -> RequestError:
    """Return the error for a weights file in place of a model."""
    with suppress(OSError), Path(path).open("rb") as file:
        begin = file.read(4)
        if not begin or (begin == b"PK\3\4" and not zipfile.is_zipfile(path)):
            what = "damaged or incomplete" if begin else "it is empty"
            return WeightsError(f"cannot read {quote(path)}: {what}", hint="download or save it again")
        if re.match(rb"\s*<", begin):
            hint = "use the link to the file itself, not to a page about it"
            return WeightsError(f"cannot read {quote(path)}: it is a web page", hint=hint)
        if begin == b"vers":  # no format of weights begins so
            hint = "`git lfs pull` in its repository downloads it"
            return WeightsError(f"cannot read {quote(path)}: it is a Git LFS pointer", hint=hint)
    if not os.path.lexists(path):
        return RequestError(f"no such file: {quote(path)}", hint=suggest_file(path))
    return RequestError(
        f"not a model, but a weights file: {quote(path)}",
        hint=f"name its model, such as resnet18 or my_net.py:build, and pass weights={quote(path)}",
    )


def _no_model(spec: str) -> RequestError:
    """Return the error for a name that no source accepts, with its meaning and a correction."""
    suffix = PurePath(spec).suffix.lower()
    if suffix in _WEIGHTS:
        return _no_network(spec)
    if suffix in _FOREIGN:
        return RequestError(
            f"not a PyTorch model, but {_FOREIGN[suffix]} file: {quote(spec)}",
            hint="name the PyTorch model that it was exported from, such as best.pt or my_net.py:build",
        )
    if hub := re.fullmatch(r"(?:hf[-_]hub:)?((\w[\w.-]*)/(\w[\w.-]*))", spec):
        full, source, model = hub.groups()
        return RequestError(
            f"no such model: {quote(spec)} looks like a name of the Hugging Face hub",
            hint=f"type {source}:{model}" if source in registry.sources() else f"type hf:{full}",
        )
    module, _, name = spec.rpartition(".")
    if name in model_names() and module.partition(".")[0] in {"models", *registry.sources()}:
        return RequestError(f"no such model: {quote(spec)}", hint=f"type {name}")
    for file, attribute in ((f"{spec}.py", "build"), (f"{module}.py", name)):
        if os.path.isfile(file):
            return RequestError(
                f"no such model: {quote(spec)}", hint=f"code of yours is named with a function: {file}:{attribute}"
            )
    return RequestError(f"no such model: {quote(spec)}", hint=hint_for(spec) or "fmapviz.model_names() lists all names")


def hint_for(name: str) -> str | None:
    """Return a hint for an unknown name: a name of another source, a family, or a similar name."""
    is_misspelt = bool(nearest(name, model_names(), cutoff=0.8))
    for source in () if is_misspelt or name.count("_") < 2 else registry.sources():  # which import torch, for seconds
        with suppress(RequestError):  # its package is not installed
            if f"{source}:{name}" in model_names(f"{source}:{name}"):
                return f"type {source}:{name}"
    return meant_model(name) or suggest(name, model_names())


def _fetch(source: str) -> ModelSource:
    return cast("ModelSource", import_module(registry.source(source).module))
