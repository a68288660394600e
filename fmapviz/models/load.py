"""Find a model by its name, whichever source provides it."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, cast

from fmapviz.core import registry
from fmapviz.core.config import InputOptions, check_type
from fmapviz.core.errors import RequestError, quote, suggest
from fmapviz.core.registry import SOURCES
from fmapviz.models.user_code import check_reference

if TYPE_CHECKING:
    from fmapviz.core.types import Model
    from fmapviz.models.sources.base import ModelSource


def known_names(pattern: str = "") -> list[str]:
    """List model names. Those that need no prefix are listed without importing torch.

    Args:
        pattern: List only names that contain it or match it as a glob; `timm:*resnet*` lists those of one source.

    Raises:
        RequestError: The pattern names a source whose package is not installed.

    Example:
        >>> known_names("vgg1*_bn")
        ['vgg11_bn', 'vgg13_bn', 'vgg16_bn', 'vgg19_bn']
    """
    check_type("pattern", pattern, str, hint="part of a name, or a glob such as 'resnet*'")
    source, colon, glob = pattern.partition(":")
    if colon and source in registry.names(SOURCES) and not _fixed_names(source):
        names: list[str] = getattr(_fetch(source), "known_names", list)()
        return [f"{source}:{name}" for name in names if glob in name or fnmatchcase(name, glob)]
    names = sorted(name for source in registry.names(SOURCES) for name in _fixed_names(source))
    return [name for name in names if pattern in name or fnmatchcase(name, pattern)]


def check_name(spec: str) -> None:
    """Check, without importing torch, that a model's name is valid.

    Raises:
        RequestError: No source accepts the name, or the code that it refers to does not exist.
    """
    source, name = _resolve(spec)
    if registry.constant(SOURCES, source, "IS_CODE"):
        check_reference(name)


def load_model(spec: str, *, weights: str = "default", options: InputOptions | None = None) -> Model:
    """Load a model with its weights and its preprocessing.

    Args:
        spec: A torchvision name such as `alexnet`; `shapesnet`; `timm:NAME`; or user code, which is run:
            `my_net.py:build`, `my.package:Net`, `my_net.py:build(num_classes=5)`.
        weights: `default`, the name of a published entry, `random`, `random:SEED`, or a file or URL of a checkpoint.
        options: How inputs are preprocessed; what is not set is as the weights were trained.

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
    check_type("weights", weights, str, hint="'default', 'random', the name of a published entry, or a file")
    check_type("options", options, InputOptions | None, hint="such as InputOptions(size=(96, 96))")
    source, name = _resolve(spec)
    return _fetch(source).load(name, weights=weights, options=options or InputOptions())


def outline_model(spec: str, *, options: InputOptions | None = None) -> Model:
    """Build a model's modules and shapes on the meta device, without weights.

    Raises:
        RequestError: There is no such model.
        UserCodeError: The user's code failed.
    """
    source, name = _resolve(spec)
    return _fetch(source).load(name, weights=None, options=options or InputOptions())


def _resolve(spec: str) -> tuple[str, str]:
    """Return the source that accepts a name, and the name without the source's prefix."""
    sources = registry.names(SOURCES)
    for source in sources:
        if (name := spec.removeprefix(f"{source}:")) in _fixed_names(source):
            return source, name
    prefix = spec.partition(":")[0]
    for source in [prefix] if prefix in sources else sources:
        spelling = registry.constant(SOURCES, source, "SPELLING")
        if spelling and re.fullmatch(spelling, spec, re.DOTALL):
            registry.check(SOURCES, source)
            return source, spec.removeprefix(f"{source}:")
    name = spec.partition("(")[0]
    builders = [registry.constant(SOURCES, source, "BUILDERS") for source in sources if name in _fixed_names(source)]
    if builders and builders[0]:
        raise RequestError(
            f"no such model: {quote(spec)}: {name} takes no arguments by this name",
            hint=f"its builder does: {quote(f'{builders[0]}:{spec}')}",
        )
    raise RequestError(
        f"no such model: {quote(spec)}", hint=suggest(spec, known_names()) or "fmapviz.known_names() lists all names"
    )


def _fixed_names(source: str) -> list[str]:
    return (registry.constant(SOURCES, source, "NAMES") or "").split()


def _fetch(source: str) -> ModelSource:
    return cast("ModelSource", registry.fetch(SOURCES, source))
