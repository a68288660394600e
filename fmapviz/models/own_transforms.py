"""Find the transforms of torchvision that a network applies to its images itself."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HOMES = ("torchvision.transforms.", "torchvision.models.detection.transform")
_BOTH = {"GeneralizedRCNNTransform", "ImageClassification", "SemanticSegmentation"}
_RESIZING = _BOTH | {"Resize", "CenterCrop"}
_NORMALIZING = _BOTH | {"Normalize"}


@dataclass(frozen=True, slots=True)
class OwnTransforms:
    """What a network does to its images before they reach its first layer.

    Attributes:
        called: The transforms that its forward pass calls.
        resizes: Whether it resizes or crops them.
        normalizes: Whether it subtracts a mean and divides by a standard deviation.
    """

    called: tuple[nn.Module, ...] = ()
    resizes: bool = False
    normalizes: bool = False

    def include(self, value: object) -> bool:
        """Return True if the forward pass calls a transform, or a step of one."""
        return any(step is called for step in _steps_of(value) for called in self.called)


class _ReachedError(Exception):
    """The images have reached the first layer."""


def find_own_transforms(network: nn.Module, run: Callable[[], object]) -> OwnTransforms:
    """Return the transforms of torchvision that a network calls in its forward pass, before its first layer.

    Detectors of torchvision have one, `GeneralizedRCNNTransform`. That a network has a transform does not mean that it calls
    it, so it is run where one is found, until a module with parameters is called: a layer may keep what it has computed.

    Args:
        network: Any network.
        run: Runs it once, with images on the meta device, and catches all errors.
    """
    found = {id(each): each for each in _transforms_in(network)}
    if not found:
        return OwnTransforms()
    called: list[nn.Module] = []

    def note(module: nn.Module, _inputs: object) -> None:
        called.append(module)
        if _names_of(module) & _BOTH:
            raise _ReachedError

    def stop(_module: nn.Module, _inputs: object) -> None:
        raise _ReachedError

    layers = [
        each
        for each in network.modules()
        if [*each.parameters(recurse=False)] and not isinstance(each, torch.jit.ScriptModule)  # which takes no hooks
    ]
    with ExitStack() as hooks:
        for modules, hook in ((found.values(), note), (layers, stop)):
            for module in modules:
                hooks.callback(module.register_forward_pre_hook(hook).remove)
        run()
    names = {name for each in called for name in _names_of(each)}
    return OwnTransforms(tuple(called), bool(names & _RESIZING), bool(names & _NORMALIZING))


def _transforms_in(network: nn.Module) -> Iterator[nn.Module]:
    """Yield the transforms among the modules of a network and their attributes, and in those that are `Compose`."""
    for module in network.modules():
        for value in (module, *vars(module).values()):
            yield from _steps_of(value)


# Any: an object of the user.
def _steps_of(value: Any) -> Iterator[nn.Module]:
    if _is_transform(value):
        yield value
    elif type(value).__module__.startswith(_HOMES):
        for step in getattr(value, "transforms", ()):
            yield from _steps_of(step)


def _is_transform(value: object) -> bool:
    return isinstance(value, nn.Module) and bool(_names_of(value) & (_RESIZING | _NORMALIZING))


def _names_of(module: nn.Module) -> set[str]:
    """Return the names of those classes of a module that are torchvision's transforms."""
    return {kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith(_HOMES)}
