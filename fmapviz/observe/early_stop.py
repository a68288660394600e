"""Stop the forward pass after the last requested layer."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from fmapviz.observe.randomness import python_states

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

# Everything that reads a tensor's values, or makes a shape of them.
_VALUE_READERS = {
    *("__bool__", "__int__", "__float__", "__complex__", "__index__", "__contains__", "__array__", "__format__"),
    *("__repr__", "__dlpack__", "item", "tolist", "numpy", "equal", "allclose", "is_nonzero", "nonzero", "argwhere"),
    *("masked_select", "unique", "unique_consecutive", "repeat_interleave", "bincount", "histc", "one_hot", "tensor_split"),
    *("to_sparse", "_pack_padded_sequence", "pack_padded_sequence", "save"),
}

# Generators of random numbers, which a network may keep.
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)


class EarlyStop:
    """Ends a forward pass after the last output of the chosen layers, if their number of outputs is certain.

    Args:
        always: Number of outputs for inputs of any shape, if it is known beforehand.
    """

    def __init__(self, always: int | None = None) -> None:
        self._always = always
        self._learnt: dict[torch.Size, int] = {}

    def outputs(self, shape: torch.Size) -> int | None:
        """Return the number for inputs of a shape, None if it is unknown."""
        return self._always or self._learnt.get(shape)

    def learn(self, shape: torch.Size, outputs: int) -> None:
        """Store the number of a forward pass that is like all others of its shape."""
        self._learnt[shape] = outputs


class ReadDetector(TorchFunctionMode):
    """Detects whether code reads the values of tensors, as it must before it can branch on them.

    A forward pass that does not, and that depends on no outside state, calls the same layers for every batch of the same
    shape. Unknown operations count as reads.

    Attributes:
        looked: Whether values have been read.
        paused: Ignore everything while this is true.

    Example:
        >>> with ReadDetector() as reads:
        ...     positive = torch.ones(2) > 0
        >>> reads.looked
        False
        >>> with reads:
        ...     _ = bool(positive.all())
        >>> reads.looked
        True
    """

    def __init__(self) -> None:
        super().__init__()
        self.looked = False
        self.paused = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        _types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Pass every call on."""
        kwargs = kwargs or {}
        if not self.paused and not self.looked:
            name = getattr(func, "__name__", "")
            # Operators of other packages, such as torchvision's non-maximum suppression.
            foreign = isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket)
            self.looked = name in _VALUE_READERS or foreign or _has_number((args, kwargs)) or _makes_a_shape(name, args)
        return func(*args, **kwargs)


def state_of(network: nn.Module) -> object:
    """Return the state that a network may depend on: attributes of modules, Python's and NumPy's generators.

    Returns:
        A value that is equal as long as none of these changes.
    """
    held = [(id(module), name, value) for module in network.modules() for name, value in vars(module).items()]
    kept = [(module, name, object() if isinstance(value, _GENERATORS) else id(value)) for module, name, value in held]
    return kept, python_states()


def _has_number(value: object) -> bool:
    """Return True if there is an integer scalar tensor: used as an index or a size, its value is read."""
    if isinstance(value, torch.Tensor):
        return value.ndim == 0 and not value.is_floating_point()
    if isinstance(value, slice):
        return _has_number((value.start, value.stop, value.step))
    if isinstance(value, dict):
        return any(map(_has_number, value.values()))
    return isinstance(value, tuple | list) and any(map(_has_number, value))


def _makes_a_shape(name: str, args: tuple[Any, ...]) -> bool:
    if name == "where":
        return len(args) < 2
    if name == "__getitem__":
        parts = args[1] if isinstance(args[1], tuple | list) else (args[1],)
        return any(isinstance(part, torch.Tensor) and part.dtype in {torch.bool, torch.uint8} for part in parts)
    return False
