"""Restore the attributes and buffers that a network changes when it runs.

A network may count its passes, keep a running mean, or compare each image with the one before. The maps of an image would
then depend on its position in the list and on the thread. So each pass begins in the state of the start. An attribute that
was empty at the start and is the same after all images of a size counts as a cache, which is not reported.
"""

from __future__ import annotations

import copy
import itertools
import random
from array import array
from collections import deque
from contextlib import contextmanager
from itertools import chain
from pathlib import PurePath
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_OF_TORCH = frozenset(vars(nn.Module()))
_MISSING = object()

_CONSTANT = (int, float, complex, str, bytes, type(None), type, FunctionType, ModuleType, torch.dtype, torch.device)

Key = tuple[str, str]  # the name of a module, and that of its attribute or buffer


class LastingState:
    """The state of a network at the start, to which it returns before each pass if it changes when it runs.

    Args:
        network: Before its first pass.

    Attributes:
        changes: Names of the attributes and buffers that the network changes.
        remembers: Whether they are more than a cache.
        of_buffers: Whether a buffer is among them, which copies of the network share.

    Example:
        >>> class Counting(nn.Module):
        ...     passes = 0
        ...     def forward(self, images):
        ...         self.passes += 1
        ...         return images * self.passes
        >>> network, images = Counting(), torch.ones(1, 3, 2, 2)
        >>> state = LastingState(network)
        >>> for _ in range(3):
        ...     with state.one_pass(images):
        ...         network(images).mean().item()
        1.0
        1.0
        1.0
        >>> state.changes
        ('passes',)
    """

    def __init__(self, network: nn.Module) -> None:
        self._modules = dict(network.named_modules())
        modules = self._modules.values()
        self._memo = {id(each): each for module in modules for each in (module, *module._parameters.values())}
        self._start = dict(self._read())
        self._copies = self._copy(self._start)
        self._is_settled = False
        self._installed: list[tuple[dict[int, Any], int]] = []  # hooks by their keys
        self._first: tuple[torch.Size, dict[Key, Any]] | None = None  # Any: whatever a user's module holds
        self.changes: tuple[str, ...] = ()
        self.remembers = self.of_buffers = False

    def __enter__(self) -> Self:
        """Return the state; nothing needs to be set up."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Restore the values that the network has changed."""
        self.restore()

    @contextmanager
    def one_pass(self, images: Tensor) -> Iterator[None]:
        """Surround one run of the network, which begins in the state of the start."""
        if self._is_settled:
            yield
            return
        self.restore()
        before = {id(hooks): set(hooks) for hooks in self._hooks()}
        try:
            yield
        finally:
            self._installed = [(hooks, each) for hooks in self._hooks() for each in hooks.keys() - before[id(hooks)]]
            self._learn(images)

    def restore(self) -> None:
        """Restore the values that the network has changed, and remove the hooks that it has given itself."""
        for hooks, number in self._installed:  # as transformers does in the first pass, which it notes in an attribute
            hooks.pop(number, None)
        self._installed = []
        if not self.changes:
            return
        memo = dict(self._memo)
        for (name, key), value in self._changed().items():
            module = self._modules[name]
            start = self._copies.get((name, key), self._start.get((name, key), _MISSING))
            if start is _MISSING:
                delattr(module, key)
            elif value is self._start.get((name, key)) and isinstance(value, Tensor):
                with torch.no_grad():
                    value.copy_(start)
            else:
                copied = _copied(start, memo)
                setattr(module, key, start if copied is _MISSING else copied)

    def _learn(self, images: Tensor) -> None:
        changed = self._changed()
        if not (changed or self.changes or self._installed):
            self._is_settled = True
            return
        self.changes = tuple(sorted(".".join(filter(None, key)) for key in changed)) or self.changes
        self.of_buffers |= any(key in self._modules[name]._buffers for name, key in changed)
        if self._first is None:
            self._first = images.shape, self._copy(changed)
        former = self._first[1] if self._first[0] == images.shape else None
        self.remembers |= any(not _is_nothing(self._copies.get(key, self._start.get(key))) for key in changed)
        self.remembers |= former is not None and not _same(self._copy(changed), former, set())

    def _hooks(self) -> Iterator[dict[int, Any]]:
        for module in self._modules.values():
            yield from (module._forward_hooks, module._forward_pre_hooks)

    def _read(self) -> Iterator[tuple[Key, Any]]:
        for name, module in self._modules.items():
            for key, value in chain(vars(module).items(), module._buffers.items()):
                if key not in _OF_TORCH and not isinstance(value, nn.Module):
                    yield (name, key), value

    def _changed(self) -> dict[Key, Any]:
        """Return the values that differ from those of the start; for deleted attributes, the former values."""
        now = dict(self._read())
        seen = set[tuple[int, int]]()
        changed = {key: value for key, value in now.items() if not self._is_as_at_start(key, value, seen)}
        return changed | {key: value for key, value in self._start.items() if key not in now}

    def _is_as_at_start(self, key: Key, value: object, seen: set[tuple[int, int]]) -> bool:
        start = self._start.get(key, _MISSING)
        if key not in self._copies:  # it cannot change, or cannot be copied
            return value is start or (start is not _MISSING and _same(value, start, seen))
        return _same(value, self._copies[key], seen)

    def _copy(self, values: dict[Key, Any]) -> dict[Key, Any]:
        memo = dict(self._memo)
        copies = {key: _copied(value, memo) for key, value in values.items() if not _is_constant(value)}
        return {key: value for key, value in copies.items() if value is not _MISSING}


def _is_constant(value: object) -> bool:
    """Return True for what nothing can change, such as the size of a kernel."""
    return isinstance(value, _CONSTANT) or (type(value) is tuple and all(isinstance(each, _CONSTANT) for each in value))


def _is_nothing(value: object) -> bool:
    """Return True for an empty cache: None, an empty tensor or container."""
    return value is None or (hasattr(value, "__len__") and not (value.numel() if isinstance(value, Tensor) else len(value)))


def _copied(value: Any, memo: dict[int, Any]) -> Any:  # Any: whatever a user's module holds
    """Return a copy, in which modules and parameters are those of the original; `_MISSING` if there cannot be one."""
    if isinstance(value, Tensor):
        return value if id(value) in memo else value.detach().clone()
    known = len(memo)
    try:
        return value.clone_state() if isinstance(value, torch.Generator) else copy.deepcopy(value, memo)
    except Exception:  # noqa: BLE001  a lock, an open file, a tensor with a history
        for key in list(memo)[known:]:  # copies that are not whole
            del memo[key]
        return _copied_in_part(value, memo)


def _copied_in_part(value: Any, memo: dict[int, Any]) -> Any:  # Any: whatever a user's module holds
    """Return a copy that shares only what cannot be copied, such as a lock; `_MISSING` if there cannot be one."""
    if not hasattr(value, "__dict__") or hasattr(value, "__del__"):  # to delete the copy might close a file
        return _MISSING
    try:
        copied = copy.copy(value)
    except Exception:  # noqa: BLE001  as above
        return _MISSING
    memo[id(value)] = copied
    for key, held in vars(value).items():
        part = _copied(held, memo)
        vars(copied)[key] = held if part is _MISSING else part
    return copied


def _same(one: Any, other: Any, seen: set[tuple[int, int]]) -> bool:  # Any: whatever a user's module holds
    """Return True if two values are equal, or cannot be compared."""
    if one is other or (id(one), id(other)) in seen:
        return True
    if type(one) is not type(other):
        return False
    seen.add((id(one), id(other)))
    for kind, equal in _EQUAL.items():
        if isinstance(one, kind):
            return equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[key], other[key], seen) for key in one)
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(_same(mine, theirs, seen) for mine, theirs in zip(one, other, strict=True))
    mine, theirs = _attributes_of(one), _attributes_of(other)
    return mine.keys() == theirs.keys() and all(_same(mine[key], theirs[key], seen) for key in mine)


def _attributes_of(value: Any) -> dict[str, Any]:  # Any: whatever a user's module holds
    slots = [slot for kind in type(value).__mro__ for slot in vars(kind).get("__slots__", ()) if hasattr(value, slot)]
    return {slot: getattr(value, slot) for slot in slots} | getattr(value, "__dict__", {})


def _are_equal(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors are equal, where NaN is NaN, or if they cannot be compared."""
    try:
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        return torch.equal(one, other) or bool(torch.isclose(one, other, rtol=0, atol=0, equal_nan=True).all())
    except RuntimeError:  # sparse, quantized or nested
        return True


_EQUAL: dict[Any, Callable[[Any, Any], bool]] = {
    Tensor: _are_equal,
    np.ndarray: lambda one, other: (one.shape, one.tobytes()) == (other.shape, other.tobytes()),
    torch.Generator: lambda one, other: torch.equal(one.get_state(), other.get_state()),
    np.random.Generator: lambda one, other: repr(one.bit_generator.state) == repr(other.bit_generator.state),
    np.random.RandomState: lambda one, other: repr(one.get_state()) == repr(other.get_state()),
    random.Random: lambda one, other: one.getstate() == other.getstate(),
    _CONSTANT: lambda one, other: repr(one) == repr(other),  # NaN is NaN
    itertools.count: lambda one, other: repr(one) == repr(other),
    (set, frozenset, bytearray, array, PurePath): lambda one, other: one == other,
}
