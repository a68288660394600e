"""Make a `Model` of a network that somebody built: what it takes, how its input is prepared, what its outputs mean."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from torch import nn

from fmapviz.channels import input_channels
from fmapviz.errors import RequestError
from fmapviz.options import InputOptions
from fmapviz.preparation import by_callable, standard
from fmapviz.values import Model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fmapviz.values import Preparation

_PREPARING = ("preprocess", "transforms")
_NAMING = ("classes", "class_names", "categories")


def describe_network(
    network: nn.Module,
    *,
    name: str,
    weights: str,
    sha256: str | None,
    options: InputOptions,
    home: object = None,
    classes: Sequence[str] = (),
    notices: tuple[str, ...] = (),
) -> Model:
    """Make a `Model` of a network.

    Args:
        network: Takes one batch of images `(N, C, H, W)`.
        name: As the user calls it.
        weights: Where its weights come from.
        sha256: What tells it from others.
        options: What the user wants in the preparation of pictures; if a size or fit is among it, all is prepared by these
            options.
        home: Where else a preparation or class names may be: the Python module that builds the network.
        classes: The classes' names, if the weights tell them.
        notices: For the person to know.

    Raises:
        RequestError: The network takes several inputs.
    """
    check_signature(network)
    channels = input_channels(network)
    return Model(
        name=name,
        module=network,
        weights=weights,
        sha256=sha256,
        preparation=_preparation((network, home), options, channels),
        forward=nn.Module.__call__,
        classes=tuple(classes) or _class_names((network, home)),
        own=True,
        notices=notices,
    )


def check_signature(network: nn.Module) -> None:
    """Make sure that a network can be called with one batch of images and nothing else.

    Raises:
        RequestError: It needs more, or takes nothing.
    """
    try:
        signature = inspect.signature(network.forward)
    except (TypeError, ValueError):  # C code
        return
    try:
        signature.bind(object())
    except TypeError as error:
        raise RequestError(
            f"the network does not take one batch of images: its forward is {_written(signature)}",
            hint="a module of your own around it can give it the rest: forward(self, images)",
        ) from error


def _written(signature: inspect.Signature) -> str:
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    return f"forward{signature.replace(parameters=plain, return_annotation=inspect.Signature.empty)}"


def _preparation(places: Sequence[object], options: InputOptions, channels: int) -> Preparation:
    preprocess = None if options != InputOptions() else _preprocess_in(places)
    if preprocess is None:
        return standard(options, channels=channels)
    return by_callable(preprocess, description=_description(preprocess), channels=channels)


def _preprocess_in(places: Sequence[object]) -> Callable[..., Any] | None:
    """Find a callable under one of the usual names; a part of the network, called so, works on its features."""
    found = (getattr(place, name, None) for place in places for name in _PREPARING)
    return next((each for each in found if callable(each) and not _is_part(each)), None)


def _is_part(each: object) -> bool:
    return isinstance(each, nn.Module) and not type(each).__module__.startswith("torchvision.transforms")


def _description(preprocess: Callable[..., Any]) -> str:
    name = getattr(preprocess, "__qualname__", None)
    words = f"{preprocess.__module__}.{name}" if name else repr(preprocess)
    return re.sub(r" at 0x[0-9a-f]+", "", " ".join(words.split()))


def _class_names(places: Sequence[object]) -> tuple[str, ...]:
    found = (getattr(place, name, None) for place in places for name in _NAMING)
    return next((tuple(each) for each in found if isinstance(each, list | tuple) and _are_words(each)), ())


def _are_words(names: Sequence[object]) -> bool:
    return bool(names) and all(isinstance(name, str) for name in names)
