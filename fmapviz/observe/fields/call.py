"""A call of an operator, and how the axes of its operands are found in its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from fmapviz.observe.fields.intervals import Axis, Place, move

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Change = Callable[[Axis], Axis]


class Operand(NamedTuple):
    """An operand, and how its axes are found in the result.

    Attributes:
        change: Converts an axis of the operand to one of the result.
        pooled: Whether it is a statistic of the operand, the same at all positions.
    """

    tensor: Tensor
    change: Change
    pooled: bool = False


Rule = Callable[["Call"], list[Operand]]


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of an operator.

    Attributes:
        given: Its arguments by name, with the defaults.
        result: The tensor that it returned, or one of several.
        position: Of that tensor among those returned.
    """

    given: Mapping[str, Any]  # Any: numbers, tensors and lists of both
    result: Tensor
    position: int = 0

    @property
    def operand(self) -> Tensor:
        """The first argument."""
        first: Tensor = next(iter(self.given.values()))
        return first

    def dims(self, name: str) -> list[int]:
        """Return the dimensions of the operand that an argument names, all if it names none."""
        named, count = self.given.get(name), self.operand.ndim
        if named is None or named == []:
            return list(range(count))
        return [dim % max(count, 1) for dim in (named if isinstance(named, list | tuple) else [named])]


def tensors_of(values: Iterable[Any]) -> list[Tensor]:  # Any: as above
    """Return the tensors among arguments and in their lists."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += (each for each in value if isinstance(each, Tensor))
    return found


def by_dims(tensor: Tensor, places: Sequence[Place | None]) -> Change:
    """Return the change of an operand whose dimensions are at these places in the result."""
    return partial(move, places=places, shape=tensor.shape)


def kept(tensor: Tensor, changed: Mapping[int, Place | None] | None = None) -> list[Place | None]:
    """Return the places of dimensions that are the same in the result, but for some."""
    changed = changed or {}
    return [changed.get(dim % tensor.ndim, Place(dim)) for dim in range(tensor.ndim)]


def one(call: Call, changed: Mapping[int, Place | None]) -> list[Operand]:
    """Return what an operator does with its first operand: all dimensions but some stay as they are."""
    return [Operand(call.operand, by_dims(call.operand, kept(call.operand, changed)))]


def without(call: Call, gone: Mapping[int, Place | None]) -> list[Operand]:
    """Return the changes of an operator that removes dimensions."""
    places = [
        gone[dim] if dim in gone else Place(dim - sum(other < dim for other in gone)) for dim in range(call.operand.ndim)
    ]
    return [Operand(call.operand, by_dims(call.operand, places))]


def broadcast(tensor: Tensor, result: Tensor) -> Change:
    """Return the change of an operand that is aligned at its last dimension, and repeated where its length is 1."""
    more = result.ndim - tensor.ndim
    lengths = zip(tensor.shape, result.shape[more:], strict=True)
    places = [None if before == 1 != after else Place(dim + more) for dim, (before, after) in enumerate(lengths)]
    return by_dims(tensor, places)


def pointwise(call: Call) -> list[Operand]:
    """Align dimensions at the last one, and broadcast those of length 1."""
    return [Operand(tensor, broadcast(tensor, call.result)) for tensor in tensors_of(call.given.values())]
