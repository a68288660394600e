"""Know when a forward pass has given all that is wanted of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# Whatever tells Python a tensor's values, or makes a shape of them.
_LOOKS = {
    *("__bool__", "__int__", "__float__", "__complex__", "__index__", "__contains__", "__array__", "__format__"),
    *("item", "tolist", "numpy", "equal", "allclose", "is_nonzero", "nonzero", "argwhere", "masked_select", "unique"),
    *("unique_consecutive", "repeat_interleave", "bincount", "histc"),
}


class Foresight:
    """How many outputs the chosen layers give in one forward pass, as far as that is certain.

    Args:
        always: Of an input of any shape, where it is known beforehand.
    """

    def __init__(self, always: int | None = None) -> None:
        self._always = always
        self._learnt: dict[torch.Size, int] = {}

    def outputs(self, shape: torch.Size) -> int | None:
        """Give the number for inputs of a shape, None if it is not known."""
        return self._always or self._learnt.get(shape)

    def learn(self, shape: torch.Size, outputs: int) -> None:
        """Take the number from a forward pass that is like all others of its shape."""
        self._learnt[shape] = outputs


class Watch(TorchFunctionMode):
    """Notice whether code looks at the values of tensors, as it must to decide by them what it does next.

    A forward pass that does not will call the same layers for every input of the same shape.

    Attributes:
        looked: Whether it has; also after calls of which that is not known.
        paused: While this is true nothing is noticed.

    Example:
        >>> with Watch() as watch:
        ...     positive = torch.ones(2) > 0
        >>> watch.looked
        False
        >>> with watch:
        ...     _ = bool(positive.all())
        >>> watch.looked
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
        if not self.paused and not self.looked:
            name = getattr(func, "__name__", "")
            self.looked = name in _LOOKS or _is_foreign(func) or (name == "__getitem__" and _has_mask(args[1]))
        return func(*args, **(kwargs or {}))


def _is_foreign(func: Callable[..., Any]) -> bool:
    """Tell operators that others have registered, such as torchvision's non-maximum suppression."""
    return isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket)


def _has_mask(index: object) -> bool:
    parts = index if isinstance(index, tuple | list) else (index,)
    return any(isinstance(part, torch.Tensor) and part.dtype in {torch.bool, torch.uint8} for part in parts)
