"""Find a model by its specification, whatever source it comes from."""

from __future__ import annotations

from fnmatch import fnmatchcase
from importlib.resources import files
from typing import TYPE_CHECKING

from fmapviz import registry
from fmapviz.errors import RequestError, quote, suggest
from fmapviz.options import InputOptions
from fmapviz.registry import SOURCES

if TYPE_CHECKING:
    from fmapviz.values import Model


def known_names(pattern: str = "") -> list[str]:
    """List the model names that can be given, without importing torch.

    Args:
        pattern: Only names that contain it, or match it as a glob.

    Example:
        >>> known_names("vgg1*_bn")
        ['vgg11_bn', 'vgg13_bn', 'vgg16_bn', 'vgg19_bn']
    """
    names = sorted(name for source in registry.names(SOURCES) for name in _listed(source))
    return [name for name in names if pattern in name or fnmatchcase(name, pattern)]


def check_name(spec: str) -> None:
    """Make sure that a model specification can be meant, without importing torch.

    Raises:
        RequestError: No source knows the name; the nearest ones are in the hint.
    """
    _resolve(spec)


def load_model(spec: str, *, weights: str = "default", options: InputOptions | None = None) -> Model:
    """Load a model with its weights and the preparation of its input.

    Args:
        spec: A torchvision name such as `alexnet`.
        weights: `default`, the name of a published entry, `random`, `random:SEED`, or a file or URL of a state dict.
        options: What is wanted otherwise in the preparation of pictures.

    Raises:
        RequestError: No such model.
        WeightsError: The weights cannot be had, read or fitted in; never are other weights taken instead.

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
    """Give the source that knows a model, and its name there."""
    prefix, colon, name = spec.partition(":")
    if colon and prefix in registry.names(SOURCES) and name in _listed(prefix):
        return prefix, name
    for source in registry.names(SOURCES):
        if spec in _listed(source):
            return source, spec
    raise RequestError(
        f"no such model: {quote(spec)}", hint=suggest(spec, known_names()) or "`fmapviz models` lists what there is"
    )


def _listed(source: str) -> list[str]:
    """Read the names a source keeps beside its module."""
    listing = files(SOURCES).joinpath(f"{source}.txt")
    return listing.read_text(encoding="utf-8").split() if listing.is_file() else []
