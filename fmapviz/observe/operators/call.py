"""A call of an operator, and where the dimensions of its operands are in its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    Indices = NDArray[np.int64]

HOLE = -(2**40)  # an index that stands for no position

# Operators that use only the shape of their operand.
_FACTORIES = {
    "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like", "new_zeros", "new_ones",
    "new_empty", "new_full", "new_empty_strided", "empty_strided", "_local_scalar_dense", "is_same_size", "equal",
    "_fused_sdp_choice", "sym_size", "sym_stride",
}  # fmt: skip
# Pointwise operators that PyTorch does not tag; those of quantized tensors have no tags at all.
_POINTWISE = {
    "hardswish", "_prelu_kernel", "log_sigmoid_forward", "rrelu_with_noise", "native_dropout", "rsub", "masked_fill",
    "clamp_max", "floor_divide", "add_relu", "where", "mul", "add", "sub", "div", "relu", "fill", "lerp", "addcmul",
    "addcdiv", "clone", "detach", "alias", "lift_fresh", "_to_copy", "_conj", "tril", "triu", "quantize_per_tensor",
    "quantize_per_channel", "dequantize", "int_repr",
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where the positions of one dimension of an operand are in the result.

    Attributes:
        dim: Dimension of the result; None if it has none of them.
        index: int64 `(n, k)`, the operand's positions that each of n positions of the result uses; those outside of the
            operand are padding, `HOLE` is none at all. None if the positions are the same.
        step: Their distance in positions of the operand.
        at: Where each of the result's positions lies between those of the operand, float64 `(n,)`; None: in the middle of
            those that it uses.
        united: Whether each element of the result depends on all positions of the dimension, of which one is left, or none.
        mixed: Whether each element depends on all positions, and the result has as many that are no positions.
        padded: Whether positions outside of the operand are not part of the picture.
    """

    dim: int | None
    index: Indices | None = None
    step: Fraction = Fraction(1)
    at: NDArray[np.float64] | None = None
    united: bool = False
    mixed: bool = False
    padded: bool = False


class Operand(NamedTuple):
    """An operand, and where its dimensions are in the result.

    Attributes:
        places: Of each dimension; None if each element of the result depends on all of it.
        pooled: Whether it is a statistic of the operand, the same at all positions.
        change: Converts a followed value, in place of `places`.
    """

    tensor: Tensor
    places: Sequence[Place | None] = ()
    pooled: bool = False
    change: Callable[[Any], Any] | None = None  # Any: an axis of a receptive field


Rule = Callable[["Call"], list[Operand]]


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """An operator of PyTorch.

    Attributes:
        name: Its name, without the `_` of one that writes into its operand.
        label: Its full name, such as `aten.add_`.
        in_place: Whether it writes into its operand.
        is_pointwise: Whether each element of the result is computed from one element of each operand.
        is_factory: Whether it uses only the shape of its operand.
        defaults: The defaults of its parameters by name, in their order.
        outputs: Names of the parameters that it writes into.
    """

    name: str
    label: str
    in_place: bool
    is_pointwise: bool
    is_factory: bool
    defaults: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, with the defaults."""
        return {**self.defaults, **dict(zip(self.defaults, args, strict=False)), **kwargs}


@cache
def operator_of(func: Any) -> Operator:  # Any: torch._ops.OpOverload has no public name
    """Describe an operator.

    Example:
        >>> found = operator_of(torch.ops.aten.relu_.default)
        >>> found.name, found.label, found.is_pointwise, found.outputs
        ('relu', 'aten.relu_', True, ('self',))
    """
    full: str = func.overloadpacket.__name__
    parameters = func._schema.arguments
    in_place = full.endswith("_") and bool(func._schema.is_mutable)
    name = full.removesuffix("_") if in_place else full
    return Operator(
        name,
        f"{func.namespace}.{full}",
        in_place,
        torch.Tag.pointwise in func.tags or name in _POINTWISE,
        name in _FACTORIES,
        {each.name: each.default_value for each in parameters},
        tuple(each.name for each in parameters if each.alias_info is not None and each.alias_info.is_write),
    )


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


def one(call: Call, changed: Mapping[int, Place | None]) -> list[Operand]:
    """Return the first operand, whose dimensions stay where they are, but for some."""
    return [Operand(call.operand, kept(call.operand, changed))]


def kept(tensor: Tensor, changed: Mapping[int, Place | None]) -> list[Place | None]:
    """Return the places of dimensions that are the same in the result, but for some."""
    return [changed.get(dim, Place(dim)) for dim in range(tensor.ndim)]


def without(call: Call, gone: Mapping[int, Place]) -> list[Operand]:
    """Return the first operand without some of its dimensions."""
    places = [
        gone[dim] if dim in gone else Place(dim - sum(other < dim for other in gone)) for dim in range(call.operand.ndim)
    ]
    return [Operand(call.operand, places)]


def broadcast(tensor: Tensor, result: Tensor) -> Operand:
    """Return an operand that is aligned at its last dimension, and repeated where its length is 1."""
    more = result.ndim - tensor.ndim
    lengths = zip(tensor.shape, result.shape[more:], strict=True)
    places = [None if before == 1 != after else Place(dim + more) for dim, (before, after) in enumerate(lengths)]
    return Operand(tensor, places)


def pointwise(call: Call) -> list[Operand]:
    """Align dimensions at the last one, and broadcast those of length 1."""
    return [broadcast(tensor, call.result) for tensor in tensors_of(call.given.values())]
