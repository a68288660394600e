"""Make a `Model` of a network that somebody built: what it takes, how its input is prepared, what its outputs mean."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.parameter import is_lazy

from fmapviz.channels import input_channels
from fmapviz.contents import in_order
from fmapviz.digests import digest_of_network
from fmapviz.errors import RequestError
from fmapviz.options import InputOptions
from fmapviz.preparation import by_callable, standard
from fmapviz.values import Model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from fmapviz.values import Preparation

_PREPARING = ("preprocess", "transforms")
_NAMING = ("classes", "class_names", "categories", "class_to_idx", "idx_to_class", "id2label")


def describe_network(
    network: nn.Module,
    *,
    name: str,
    weights: str,
    options: InputOptions,
    code: Iterable[Path] | None = (),
    home: object = None,
    classes: Sequence[str] = (),
    notices: tuple[str, ...] = (),
) -> Model:
    """Make a `Model` of a network.

    Args:
        network: Takes one batch of images `(N, C, H, W)`.
        name: As the user calls it.
        weights: Where its weights come from.
        options: What the user wants in the preparation of pictures; if there is anything, all is prepared by these options.
        code: Files that make the network what it is, beside those of its classes; None: it need not be told from others.
        home: Where else a preparation or class names may be: the Python module that builds the network.
        classes: The classes' names, if the weights tell them.
        notices: For the person to know.

    Raises:
        RequestError: The network takes several inputs, or has layers that are not initialised.
    """
    check_network(network)
    channels = input_channels(network)
    preprocess = _preprocess_in((network, home))
    if preprocess is not None and options != InputOptions():
        notices = (
            *notices,
            "the input is prepared as the options say, not by the preprocessing that comes with the network",
        )
        preprocess = None
    return Model(
        name=name,
        module=network,
        weights=weights,
        sha256=None if code is None else digest_of_network(network, files=code),
        preparation=_preparation(preprocess, options, channels),
        forward=nn.Module.__call__,
        classes=tuple(classes) or _class_names((network, home)),
        own=True,
        notices=notices,
    )


def check_network(network: nn.Module) -> None:
    """Make sure that a network can be called with one batch of images and nothing else, and is ready for it.

    Raises:
        RequestError: It needs more, takes nothing, or has layers that are not initialised.
    """
    if any(is_lazy(values) for values in (*network.parameters(), *network.buffers())):
        raise RequestError(
            "the network has lazy layers, whose shapes its first input decides",
            hint="give it one where it is built: net(torch.zeros(1, 3, 224, 224))",
        )
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


def _preparation(preprocess: Callable[..., Any] | None, options: InputOptions, channels: int) -> Preparation:
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
    found = (in_order(getattr(place, name, None)) for place in places for name in _NAMING)
    return next(filter(None, found), ())
