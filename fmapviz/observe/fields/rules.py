"""Propagate receptive fields through operators that need more than the places of dimensions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.observe.fields.intervals import Axis, InseparableError, move
from fmapviz.observe.operators import indices
from fmapviz.observe.operators.call import Call, Operand, Place, Rule, broadcast, kept, one, tensors_of
from fmapviz.observe.operators.table import rule_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fmapviz.observe.operators.call import Indices, Operator


def _view(call: Call) -> list[Operand]:
    return [Operand(call.operand, change=partial(_regroup, before=call.operand.shape, after=call.result.shape))]


def _regroup(axis: Axis, *, before: Sequence[int], after: Sequence[int]) -> Axis:
    """Return an axis after a reshape, which keeps the order of all elements.

    Raises:
        InseparableError: Its positions are in several dimensions now.
    """
    if not axis.is_spread or axis.dim is None:
        return axis.everywhere()
    if prod(before) != prod(after):  # to a type of another size
        raise InseparableError
    if axis.before or axis.length:  # with other tokens before or behind them
        outer = prod(before[: axis.dim])
        dims = [dim for dim, length in enumerate(after) if length == before[axis.dim] and prod(after[:dim]) == outer]
        if not dims:
            raise InseparableError
        return replace(axis, dim=dims[-1])
    distance = prod(before[axis.dim + 1 :]) * axis.inner
    for dim, length in enumerate(after):
        unit = prod(after[dim + 1 :])
        if distance % unit == 0 and (unit * length) % (distance * axis.positions) == 0:
            return replace(axis, dim=dim, inner=distance // unit)
    raise InseparableError


def _repeat(call: Call) -> list[Operand]:
    operand, more = call.operand, call.result.ndim - call.operand.ndim
    lengths = zip(operand.shape, call.result.shape[more:], strict=True)
    return [
        Operand(
            operand,
            [
                Place(dim, None if before == after else indices.stretch(after) % before)
                for dim, (before, after) in enumerate(lengths, more)
            ],
        )
    ]


def _concatenate(call: Call) -> list[Operand]:
    tensors = [tensor for tensor in call.given["tensors"] if tensor.ndim == call.result.ndim]
    dim, start, operands = call.given["dim"] % call.result.ndim, 0, []
    for tensor in tensors:
        length = tensor.shape[dim]
        index = indices.within(indices.stretch(call.result.shape[dim], start=-start), length)
        operands.append(_joined(Operand(tensor, kept(tensor, {dim: Place(dim, index)})), index, dim, call.result))
        start += length
    return operands


def _stack(call: Call) -> list[Operand]:
    new, operands = call.given["dim"] % call.result.ndim, []
    for number, tensor in enumerate(call.given["tensors"]):
        index = indices.within(indices.stretch(call.result.shape[new], start=-number), 1)
        places = [Place(dim + (dim >= new)) for dim in range(tensor.ndim)]
        operands.append(_joined(Operand(tensor, places), index, new, call.result))
    return operands


def _joined(operand: Operand, index: Indices, dim: int, result: Tensor) -> Operand:
    """Place an operand that is the same at all positions, where it is joined along rows or columns."""
    if result.ndim < 3 or dim < result.ndim - 2:  # images or channels
        return operand

    def change(axis: Axis) -> Axis:
        if axis.is_spread:
            return move(axis, operand.places, operand.tensor.shape)
        return axis.everywhere().take(np.minimum(index, 0), dim)

    return operand._replace(change=change)


def _copy(call: Call) -> list[Operand]:
    return [broadcast(call.given["src"], call.result), Operand(call.operand, change=Axis.nowhere)]


def _restride(call: Call) -> list[Operand]:
    """Return the operand of an operator that may move any element anywhere."""
    return one(call, {dim: Place(dim, mixed=True) for dim in range(call.operand.ndim)})


def _matrix_product(call: Call) -> list[Operand]:
    *bias, left, right = tensors_of(call.given.values())
    last = call.result.ndim - 1
    return [
        *(broadcast(tensor, call.result) for tensor in bias),
        Operand(left, kept(left, {last: None})),
        Operand(right, kept(right, {last - 1: None})),
    ]


def _linear(call: Call) -> list[Operand]:
    return one(call, {call.operand.ndim - 1: None})


def _attention(call: Call) -> list[Operand]:
    """Return the queries, which have the positions of the result, and the field of all positions."""
    others = [Operand(each, [None] * each.ndim) for each in tensors_of(call.given.values()) if each is not call.operand]
    return [*one(call, {call.operand.ndim - 1: None}), *others]


# Of queries and keys, and of weights and values: the positions of a product are those of the first operand.
PRODUCTS = frozenset(f"aten.{name}" for name in ("mm", "bmm", "addmm", "baddbmm"))
_RULES: dict[str, Rule] = {
    **dict.fromkeys(PRODUCTS, _matrix_product),
    **dict.fromkeys(("aten.view", "aten._unsafe_view", "aten._reshape_alias"), _view),
    **dict.fromkeys(("aten.as_strided", "aten.as_strided_"), _restride),
    **dict.fromkeys(("aten.copy", "aten.copy_"), _copy),
    "aten.linear": _linear,
    "aten.repeat": _repeat,
    "aten.cat": _concatenate,
    "aten.stack": _stack,
}


def field_rule(operator: Operator, *, placing: bool) -> Rule | None:
    """Return the rule of an operator, None if there is none.

    Args:
        operator: The operator.
        placing: Whether positions are those of the queries of an attention.
    """
    if placing and operator.label.startswith("aten._scaled_dot_product"):
        return _attention
    if operator.label in _RULES:
        return _RULES[operator.label]
    # An operator that changes the shape of its operand does so before its rule is asked.
    follows = operator.label.startswith("aten.") and (operator.is_pointwise or not operator.in_place)
    return rule_of(operator) if follows else None
