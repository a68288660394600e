"""Import torchvision without torch's compiler.

`torchvision.ops.roi_align` imports a function of `torch._dynamo.utils` that it calls only for deterministic algorithms on a
GPU. That import loads torch._dynamo, torch._inductor and sympy: 1.1 of the 1.2 seconds that `import torchvision` takes after
`import torch`. A stand-in replaces the module during the import; its functions load the real one when they are called.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

import torch as torch  # first: it may need the real module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HEAVY = "torch._dynamo.utils"


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Callable[..., object]:
        if name.startswith("__"):  # `inspect` looks these up in every module
            raise AttributeError(name)

        def call(*args: object, **kwargs: object) -> object:
            return getattr(import_module(_HEAVY), name)(*args, **kwargs)

        return call


def never_compile() -> None:
    """Disable torch's compiler in this process, for example to list layers.

    Some operations on the meta device import torch._dynamo in order not to be compiled, which takes 1.1 seconds.
    """
    if "torch._dynamo" not in sys.modules:
        nothing = ModuleType("torch._dynamo")
        nothing.disable = lambda function, *_args, **_kwargs: function  # type: ignore[attr-defined]  # a module takes any
        sys.modules["torch._dynamo"] = nothing


class _Uncompiled(ModuleType):
    """Stands in for torch._dynamo: returns what it is asked not to compile, and loads the real one for all else."""

    def __init__(self) -> None:
        super().__init__("torch._dynamo")
        self.left: list[Callable[..., object]] = []

    def disable(self, function: Callable[..., object], *_args: object, **_kwargs: object) -> Callable[..., object]:
        self.left.append(function)
        return function

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name != "__path__":  # which the import of a module inside it asks for
            raise AttributeError(name)
        self.remove()
        return getattr(import_module("torch._dynamo"), name)

    def remove(self) -> None:
        if sys.modules.get("torch._dynamo") is self:
            del sys.modules["torch._dynamo"]
        for function in self.left:  # the operators ask again
            vars(function).pop("__dynamo_disable", None)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Use the meta device within a block without loading torch's compiler, see `never_compile`; nothing changes after it."""
    stand_in = sys.modules.setdefault("torch._dynamo", _Uncompiled())
    try:
        yield
    finally:
        if isinstance(stand_in, _Uncompiled):
            stand_in.remove()


_utils = sys.modules.setdefault(_HEAVY, _StandIn(_HEAVY))
try:
    import torchvision
    from torchvision import models
    from torchvision.transforms import functional
finally:
    if isinstance(_utils, _StandIn):
        del sys.modules[_HEAVY]

__all__ = ["functional", "models", "never_compile", "torchvision", "uncompiled"]
