"""Find a model by its specification, whatever source it comes from."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import TYPE_CHECKING

from fmapviz import registry
from fmapviz.errors import RequestError, quote, suggest
from fmapviz.options import InputOptions
from fmapviz.references import check_place
from fmapviz.registry import SOURCES

if TYPE_CHECKING:
    from fmapviz.values import Model


def known_names(pattern: str = "") -> list[str]:
    """List the model names that can be given, without importing torch for those that fmapviz knows by itself.

    Args:
        pattern: Only names that contain it, or match it as a glob; `timm:*resnet*` for those of timm.

    Raises:
        RequestError: The pattern is one of timm, and timm is not installed.

    Example:
        >>> known_names("vgg1*_bn")
        ['vgg11_bn', 'vgg13_bn', 'vgg16_bn', 'vgg19_bn']
    """
    source, colon, glob = pattern.partition(":")
    if colon and source in registry.names(SOURCES) and not _listed(source):
        known: list[str] = registry.fetch(SOURCES, source).known_names()
        return [f"{source}:{name}" for name in known if glob in name or fnmatchcase(name, glob)]
    names = sorted(name for source in registry.names(SOURCES) for name in _listed(source))
    return [name for name in names if pattern in name or fnmatchcase(name, pattern)]


def check_name(spec: str) -> None:
    """Make sure that a model specification can be meant, without importing torch.

    Raises:
        RequestError: No source knows the name, the nearest ones are in the hint; or there is no such code.
    """
    source, name = _resolve(spec)
    if source == "python":
        check_place(name)


def load_model(spec: str, *, weights: str = "default", options: InputOptions | None = None) -> Model:
    """Load a model with its weights and the preparation of its input.

    Args:
        spec: A torchvision name such as `alexnet`; `shapesnet`; `timm:NAME`; or code of one's own, which is run:
            `my_net.py:build`, `my.package:Net`, `my_net.py:build(num_classes=5)`.
        weights: `default`, the name of a published entry, `random`, `random:SEED`, or a file or URL of a checkpoint.
        options: What is wanted otherwise in the preparation of pictures.

    Raises:
        RequestError: No such model.
        WeightsError: The weights cannot be had, read or fitted in; never are other weights taken instead.
        UserCodeError: The user's own code failed.

    Example:
        >>> load_model("squeezenet1_1", weights="random").label
        'squeezenet1_1 (random weights, seed 0)'
    """
    source, name = _resolve(spec)
    model: Model = registry.fetch(SOURCES, source).load(name, weights=weights, options=options or InputOptions())
    return model


def outline_model(spec: str, *, options: InputOptions | None = None) -> Model:
    """Build a model's modules and shapes on the meta device, without weights.

    Raises:
        RequestError: No such model.
    """
    source, name = _resolve(spec)
    model: Model = registry.fetch(SOURCES, source).outline(name, options=options or InputOptions())
    return model


def _resolve(spec: str) -> tuple[str, str]:
    """Give the source that knows a model, and its name there: in the source's list, or spelt as its `SPELLING` says."""
    sources = registry.names(SOURCES)
    for source in sources:
        if spec.removeprefix(f"{source}:") in _listed(source):
            return source, spec.removeprefix(f"{source}:")
    prefix = spec.partition(":")[0]
    for source in [prefix] if prefix in sources else sources:
        spelling = registry.constant(SOURCES, source, "SPELLING")
        if spelling and re.fullmatch(spelling, spec, re.DOTALL):
            registry.check(SOURCES, source)
            return source, spec.removeprefix(f"{source}:")
    name, bracket, _ = spec.partition("(")
    if bracket and name in _listed("torchvision"):
        raise RequestError(
            f"no such model: {quote(spec)}: torchvision's names take no arguments",
            hint=f"its builders do: {quote(f'torchvision.models:{spec}')}",
        )
    raise RequestError(
        f"no such model: {quote(spec)}", hint=suggest(spec, known_names()) or "`fmapviz models` lists what there is"
    )


def _listed(source: str) -> list[str]:
    """Read the names a source keeps beside its module."""
    listing = files(SOURCES).joinpath(f"{source}.txt")
    return listing.read_text(encoding="utf-8").split() if listing.is_file() else []
