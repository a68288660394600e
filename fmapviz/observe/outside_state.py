"""Detect changes by a network that are not restored: of state outside of it, and of its weights.

Globals, attributes of classes and variables of closures belong to the user's program, which may count or collect on purpose.
Restoring weights would double their memory. So the changes are only reported, by name.
"""

from __future__ import annotations

import itertools
import random
import sys
from array import array
from collections import Counter, deque
from functools import partial
from itertools import islice
from threading import Lock
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CellType

_LIBRARIES = sys.stdlib_module_names | {"fmapviz", "numpy", "timm", "torch", "torchvision", "transformers", "ultralytics"}
_MOST_ITEMS = 1000
_MOST_BYTES = 2**20
_WEIGHT = "the weight "  # which no cache is
_DEPTH = 4  # of containers in containers
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


class OutsideState:
    """A network's weights, and the plain values that its code names: numbers, strings, tensors, containers, generators.

    A value that changes twice with inputs of one shape is a lasting change; one that changes once may be a cache.
    Methods may be called by several threads at once.

    Args:
        network: Before its first pass.

    Attributes:
        changes: Names of the lasting changes.

    Example:
        >>> class Counting(nn.Module):
        ...     __module__, passes = "net", 0
        ...     def forward(self, images):
        ...         Counting.passes += 1
        ...         return images * Counting.passes
        >>> network, images = Counting(), torch.ones(1, 3, 2, 2)
        >>> outside = OutsideState(network)
        >>> for _ in range(2):
        ...     _ = network(images)
        ...     outside.learn(images.shape)
        >>> outside.changes
        ('net.Counting.passes',)
    """

    def __init__(self, network: nn.Module) -> None:
        self.changes: tuple[str, ...] = ()
        self._readers = {**dict(_readers(network)), **dict(_readers_of_weights(network))}
        self._values = self._read()
        self._times: Counter[tuple[str, torch.Size]] = Counter()
        self._lock = Lock()

    def learn(self, shape: torch.Size) -> None:
        """Record the changes of a pass with inputs of a shape."""
        with self._lock:
            before, self._values = self._values, self._read()
            self._times.update((name, shape) for name, value in self._values.items() if value != before[name])
            lasting = {name for (name, _), times in self._times.items() if times > 1 or name.startswith(_WEIGHT)}
            self.changes = tuple(sorted(lasting))
            if not self._times:  # the first pass has changed nothing
                self._readers, self._values = {}, {}

    def _read(self) -> dict[str, object]:
        return {name: _fingerprint(read(), _DEPTH) for name, read in self._readers.items()}


def _readers(network: nn.Module) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the names of the values that the code of a network's classes refers to, and functions that read them."""
    functions = [held for module in network.modules() for held in vars(module).values() if isinstance(held, FunctionType)]
    for own in dict.fromkeys(each for module in network.modules() for each in type(module).__mro__ if _is_own(each)):
        for key, value in vars(own).items():
            functions += functions_in(value)
            if not key.startswith("__"):
                yield f"{own.__module__}.{own.__qualname__}.{key}", partial(vars(own).get, key)
    seen = set[CodeType]()
    while functions:
        function = functions.pop()
        code, known = function.__code__, function.__globals__
        if code in seen or not _is_own(function):
            continue
        seen.add(code)
        for key, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            yield f"{function.__qualname__}.{key}", partial(content_of, cell)
        names = set(names_in(code))
        for key in names & known.keys():
            yield f"{function.__module__}.{key}", partial(known.get, key)
            functions += functions_in(known[key])
            if isinstance(known[key], type | ModuleType) and _is_own(known[key]):
                held = vars(known[key])
                for inner in names & held.keys():
                    yield f"{function.__module__}.{key}.{inner}", partial(held.get, inner)
                    functions += functions_in(held[inner])


def _readers_of_weights(network: nn.Module) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the names of the weights of a network with user-defined classes, and functions that read them."""
    if not any(_is_own(type(module)) for module in network.modules()):
        return
    for name, module in network.named_modules():
        for key, values in module._parameters.items():
            if type(values) is nn.Parameter:  # one that is shared out would wait for other processes
                yield f"{_WEIGHT}{'.'.join(filter(None, (name, key)))}", partial(getattr, module, key, None)


def _is_own(code: Any) -> bool:  # Any: a class, a function, or a module
    name = code.__name__ if isinstance(code, ModuleType) else code.__module__
    return str(name).partition(".")[0] not in _LIBRARIES


def functions_in(value: Any) -> list[FunctionType]:  # Any: an attribute of a user's class or module
    """Return the Python functions that an attribute calls: itself, the decorated one, or the getter of a property."""
    parts = (value, getattr(value, "__wrapped__", None), getattr(value, "__func__", None), getattr(value, "fget", None))
    return [each for each in parts if isinstance(each, FunctionType)]


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in a function's code, and in that of functions inside it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from names_in(inner)


def content_of(cell: CellType) -> object:
    """Return the variable of a closure; None if it has no value yet."""
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _fingerprint(value: Any, depth: int) -> object:  # Any: whatever a user's code holds
    """Return a value that is equal while a plain value is unchanged, in bounded time; None for other values."""
    for kind, state in _STATES.items():
        if isinstance(value, kind):
            return state(value)
    if not depth or isinstance(value, nn.Module | type):
        return None
    if isinstance(value, dict):
        first = list(islice(value.items(), _MOST_ITEMS))
        return len(value), [(_fingerprint(key, 0), _fingerprint(each, depth - 1)) for key, each in first]
    if isinstance(value, list | tuple | set | frozenset | deque):
        return len(value), [_fingerprint(each, depth - 1) for each in islice(list(value), _MOST_ITEMS)]
    return _fingerprint(vars(value), depth - 1) if hasattr(value, "__dict__") and _is_own(type(value)) else None


def _sum_of(values: Tensor) -> object:
    """Return the sum of the bits as integers: that of floats depends on the number of threads."""
    try:
        bits = torch.view_as_real(values.detach()) if values.is_complex() else values.detach()
        bits = bits.view(_INTEGERS[bits.element_size()]) if bits.is_floating_point() else bits
        return values.shape, values._version, bits.sum(dtype=torch.int64).item()
    except (RuntimeError, NotImplementedError):  # quantized, without values, made in inference mode
        return id(values)


def _content_of_array(values: np.ndarray[Any, Any]) -> object:
    return values.shape, values.tobytes() if values.nbytes <= _MOST_BYTES and not values.dtype.hasobject else id(values)


_STATES: dict[Any, Callable[[Any], object]] = {
    bool | int | float | complex | str | bytes: lambda value: (type(value), repr(value)),  # NaN is NaN
    (itertools.count, bytearray, array): repr,
    Tensor: _sum_of,
    np.ndarray: _content_of_array,
    np.random.Generator: lambda value: repr(value.bit_generator.state),
    np.random.RandomState: lambda value: repr(value.get_state()),
    random.Random: lambda value: value.getstate(),
    torch.Generator: lambda value: value.get_state().numpy().tobytes(),
}
