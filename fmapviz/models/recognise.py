"""Recognise a network of a library given in Python, and prepare images as the library does."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fmapviz.config import InputOptions
from fmapviz.core import registry
from fmapviz.images.preprocess import standard
from fmapviz.models.network import BY_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from fmapviz.data import Preparation


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """The inputs of a network, as its library describes them.

    Attributes:
        preparation: Its preprocessing.
        assumption: The remaining assumption, for the user.
        forward: Calls the network with a batch; None: the network takes the batch itself.
        batches: Whether one forward pass may take several images.
        classes: Names of the classes, where the network has some of its own.
    """

    preparation: Preparation
    assumption: str
    forward: Callable[[nn.Module, Tensor], object] | None = None
    batches: bool = True
    classes: tuple[str, ...] = ()


def recognise(network: nn.Module, preprocessing: InputOptions) -> Known | None:
    """Return the inputs of a network by its class; None if the class is of no such library."""
    match type(network).__module__.split(".")[0]:
        case "torchvision":
            return _of_torchvision(network, preprocessing)
        case "timm":
            return _of_timm(network, preprocessing)
        case "transformers":
            return _of_transformers(network, preprocessing)
        case "ultralytics":
            return _of_ultralytics(network, preprocessing)
    return None


def recognise_outputs(network: nn.Module) -> Known | None:
    """Return what a library says of the outputs of a network; None if it says nothing of them."""
    return _of_ultralytics(network, InputOptions())


def _of_torchvision(network: nn.Module, preprocessing: InputOptions) -> Known | None:
    source = import_module(registry.source("torchvision").module)
    found = source.find_entry(network)
    if found is None:
        return None
    name, entry = found
    preparation, forward, _ = source.feeding(name, entry, preprocessing, network)
    words = f"the network is taken for torchvision's {name}, prepared as for {entry.name}: {preparation.description}"
    is_plain = source.takes_batches(name)
    return Known(preparation, f"{words}; size=, fit=, mean= and std= replace it", forward, is_plain)


def _of_timm(network: nn.Module, preprocessing: InputOptions) -> Known | None:
    if not isinstance(getattr(network, "pretrained_cfg", None), dict):
        return None
    preparation = import_module(registry.source("timm").module).prepare(network, preprocessing)
    return Known(preparation, f"the preprocessing is that of timm's configuration of the network: {preparation.description}")


def _of_transformers(network: nn.Module, preprocessing: InputOptions) -> Known | None:
    configuration: Any = getattr(network, "config", None)
    size: Any = getattr(configuration, "image_size", None)
    sides = (size, size) if isinstance(size, int) else size
    if not (isinstance(sides, tuple | list) and len(sides) == 2 and all(isinstance(side, int) for side in sides)):
        return None
    own: Any = getattr(configuration, "num_channels", 3)
    channels = preprocessing.channels_in or int(own)
    preparation = standard(preprocessing, size=(sides[0], sides[1]), channels=channels)
    words = f"the image processor of the network is unknown: images are prepared by {preparation.description}"
    return Known(preparation, f"{words}; {BY_OPTIONS} replace it")


def _of_ultralytics(network: nn.Module, preprocessing: InputOptions) -> Known | None:
    if type(network).__module__ != "ultralytics.nn.tasks":  # a part of one
        return None
    live = import_module(registry.source("ultralytics").module).describe(network, preprocessing)
    return Known(live.preparation, "; ".join(live.notices), live.forward, classes=live.classes)
