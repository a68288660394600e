"""Record by which operation a network ends: a softmax, a sigmoid, a linear layer."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

# By the name of the operation in ATen.
_ENDS = {
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "sigmoid": "sigmoid",
    "log_sigmoid_forward": "log_sigmoid",
    "hardsigmoid": "hardsigmoid",
    "tanh": "tanh",
    "hardtanh": "hardtanh",
    "relu": "relu",
    "softplus": "softplus",
    "elu": "elu",
    "addmm": "linear",
    "mm": "linear",
    "bmm": "linear",
    "baddbmm": "linear",
    "convolution": "linear",
    "mkldnn_convolution": "linear",
}
_LOGARITHM = {"softmax": "log_softmax", "sigmoid": "log_sigmoid"}
_EXPONENTIAL = {after: before for before, after in _LOGARITHM.items()}
# These change neither a value nor its meaning; the same is done to the logits.
_MOVES = {
    *("view", "_unsafe_view", "_reshape_alias", "reshape", "squeeze", "unsqueeze", "flatten", "alias", "t", "transpose"),
    *("permute", "select", "slice", "expand", "clone", "_to_copy", "detach", "lift_fresh", "split", "unbind", "movedim"),
}
_LIMITS = {"clamp", "clamp_min", "clamp_max", "nan_to_num"}  # keep probabilities away from 0 and 1
_STEPS = 16  # of a graph, at most, from the scores to the product that they come from
SOFT = frozenset({"softmax", "log_softmax", "sigmoid", "log_sigmoid"})
_HELD = 32  # small tensors that may be logits, or lead to them
_SMALL = 2**18  # values; those of the last one are kept for any size


@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """The operation that a tensor comes from.

    Attributes:
        kind: A value of `_ENDS`; empty for any other operation, or if it is not known.
        logits: The input of a softmax or sigmoid, of the tensor's shape and part of the graph; None if it is not kept.
    """

    kind: str = ""
    logits: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One operation: its result, its first argument, and how to repeat it on another tensor."""

    result: weakref.ref[Tensor]
    name: str
    source: weakref.ref[Tensor] | None = None
    move: Callable[[Tensor], Tensor] | None = None


def _in_graph(names: Iterable[str]) -> frozenset[str]:
    """Return the names that operations have in a graph, without their number: `ViewBackward` for `view`."""
    return frozenset("".join(part.capitalize() for part in name.split("_")) + "Backward" for name in names)


_PRODUCTS = _in_graph(name for name, kind in _ENDS.items() if kind == "linear")
_MOVED = _in_graph(_MOVES)


def is_product(values: Tensor) -> bool:
    """Return True if the graph shows that a tensor comes from a linear layer, which takes no recording."""
    node = values.grad_fn
    for _ in range(_STEPS):
        name = node.name().rstrip("0123456789") if node else ""
        if node is None or name not in _MOVED:
            return name in _PRODUCTS
        node = node.next_functions[0][0]
    return False


class Endings(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's class has untyped hooks
    """Record the last operations of a forward pass, also those that are no module.

    It sees the operations below autograd, with and without a graph. Of most tensors only a weak reference is kept.

    Example:
        >>> with Endings() as endings:
        ...     output = torch.zeros(2, 3).softmax(1).squeeze()
        >>> endings.of(output).kind, endings.of(output).logits.shape
        ('softmax', torch.Size([2, 3]))
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self._steps: dict[int, _Step] = {}
        self._held: deque[Tensor] = deque(maxlen=_HELD)
        self._tail: list[Tensor] = []  # input and output of the last softmax or sigmoid, and results computed from them

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch would otherwise import its compiler, which takes a second, to keep this out of compiled code.

        Nothing is compiled while a network runs under hooks.
        """
        return False

    # Any: operations take and return anything.
    def __torch_dispatch__(
        self, func: Any, _types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Pass every operation on."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__ if isinstance(func, torch._ops.OpOverload) else ""
        plain = name.removesuffix("_")
        if name != plain:  # in place: the argument is the result, and its former values are lost
            self._forget(result)
            if plain in _ENDS and isinstance(result, Tensor):
                self._steps[id(result)] = _Step(weakref.ref(result), plain)
            return result
        if name in _ENDS or name in _MOVES or name in _LIMITS or name in {"log", "exp"}:
            self._record(name, result, args, lambda values: func(values, *args[1:], **kwargs))
        return result

    def of(self, values: Tensor) -> Ending:
        """Return the operation that a tensor comes from, seen through those that only move or copy values."""
        moves: list[Callable[[Tensor], Tensor]] = []
        turns: list[str] = []
        current: Tensor | None = values
        for _ in range(len(self._steps) + 1):
            step = None if current is None else self._steps.get(id(current))
            if step is None or step.result() is not current:
                return Ending()
            if step.name in _ENDS:
                break
            if step.name in {"log", "exp"}:
                turns.append(step.name)
            elif step.move:
                moves.append(step.move)
            current = step.source() if step.source else None
        else:
            return Ending()
        kind = _ENDS[step.name]
        for turn in reversed(turns):
            kind = (_LOGARITHM if turn == "log" else _EXPONENTIAL).get(kind, "")
        logits = step.source() if step.source and kind in SOFT else None
        for move in reversed(moves):
            logits = None if logits is None else move(logits)
        return Ending(kind, logits)

    def _record(self, name: str, result: Any, args: tuple[Any, ...], again: Callable[[Tensor], Any]) -> None:
        source = args[0] if args and isinstance(args[0], Tensor) else None
        results = result if isinstance(result, tuple | list) else [result]
        for position, each in enumerate(results):
            if not isinstance(each, Tensor):
                continue
            move: Callable[[Tensor], Tensor] | None = None
            if name in _MOVES and isinstance(result, Tensor):
                move = again
            elif name in _MOVES:
                move = lambda values, position=position: again(values)[position]  # noqa: E731
            known = None if source is None or _ENDS.get(name) == "linear" else weakref.ref(source)
            self._steps[id(each)] = _Step(weakref.ref(each), name, known, move)
            if name == "log_sigmoid_forward":
                break  # the second result is a buffer
        if source is None:
            return
        if source.numel() <= _SMALL and _ENDS.get(name) != "linear":
            self._held.append(source)
        if _ENDS.get(name) in SOFT:
            self._tail = [source, results[0]]
        elif self._tail and source is self._tail[-1] and isinstance(result, Tensor):
            self._tail.append(result)

    def _forget(self, result: Any) -> None:
        for each in result if isinstance(result, tuple | list) else [result]:
            self._steps.pop(id(each), None)
