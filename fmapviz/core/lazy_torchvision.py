"""Import torchvision, and use the meta device, without loading torch's compiler.

`torchvision.ops.roi_align` imports a function of `torch._dynamo.utils` that it calls only for deterministic algorithms on a
GPU. That import loads torch._dynamo, torch._inductor and sympy: 1.1 of the 1.2 seconds that `import torchvision` takes after
`import torch`. During the import a stand-in answers that one question; every other module gets the real one.
One image with AlexNet takes 2.3 instead of 3.5 seconds of processor time, and 881 instead of 1,035 MB.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib import import_module
from types import CellType, FunctionType, ModuleType
from typing import TYPE_CHECKING

import torch as torch  # first: it may need the real module
import torch._decomp
import torch._refs
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAVY = "torch._dynamo.utils"
_MARK = "__dynamo_disable"  # of a function that `torch._compile` has already asked the compiler about
_EMPTY = CellType()


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # `inspect` looks these up in every module
            raise AttributeError(name)
        asking = sys._getframe(1).f_globals.get("__name__", "")
        if not asking.startswith("torchvision."):  # another thread
            _end_stand_in()
            return getattr(import_module(_HEAVY), name)

        def call(*args: object, **kwargs: object) -> object:
            return getattr(import_module(_HEAVY), name)(*args, **kwargs)

        return call


@contextmanager
def uncompiled() -> Iterator[None]:
    """Use the meta device within a block without loading torch's compiler, which takes as long as importing torch.

    Some operators of the meta device are written in Python. At its first call each imports torch._dynamo, in order not to be
    compiled. Within the block they are marked as if they had done so. Nothing else changes: code that imports the compiler
    gets it.
    """
    marked = [] if "torch._dynamo" in sys.modules else [each for each in _asking() if _MARK not in vars(each)]
    for function in marked:
        setattr(function, _MARK, function)
    try:
        yield
    finally:
        for function in marked:
            vars(function).pop(_MARK, None)


def _asking() -> Iterator[FunctionType]:
    """Yield the functions that `torch._compile` keeps from being compiled, which other functions enclose."""
    homes = (torch._refs, torch._refs.nn.functional, torch._refs.special, torch._refs.linalg, torch._refs.fft)
    waiting: list[object] = [value for home in homes for value in vars(home).values()]
    waiting += torch._decomp.global_decomposition_table["meta"].values()
    modes = [TorchDispatchMode]
    for mode in modes:
        modes += mode.__subclasses__()
        waiting.append(vars(mode).get("__torch_dispatch__"))
    seen = set[int]()
    while waiting:
        function = waiting.pop()
        if not isinstance(function, FunctionType) or id(function) in seen or not function.__closure__:
            continue
        seen.add(id(function))
        enclosed = [cell.cell_contents for cell in function.__closure__ if cell != _EMPTY]
        waiting += enclosed
        if function.__code__.co_filename == torch._compile.__file__:
            yield from (each for each in enclosed if isinstance(each, FunctionType))


def _end_stand_in() -> None:
    if isinstance(sys.modules.get(_HEAVY), _StandIn):
        del sys.modules[_HEAVY]


sys.modules.setdefault(_HEAVY, _StandIn(_HEAVY))
try:
    import torchvision
    from torchvision import models
    from torchvision.transforms import functional
finally:
    _end_stand_in()

__all__ = ["functional", "models", "torchvision", "uncompiled"]
