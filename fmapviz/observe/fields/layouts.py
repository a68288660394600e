"""The rules of operators that move positions: views, slices, concatenation."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.observe.fields import indices
from fmapviz.observe.fields.call import Call, Operand, Rule, broadcast, by_dims, kept, one, without
from fmapviz.observe.fields.intervals import Axis, InseparableError, Place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fmapviz.observe.fields.call import Change
    from fmapviz.observe.fields.intervals import Indices


def _slice(call: Call) -> list[Operand]:
    dim, step = call.dims("dim")[0], call.given["step"]
    length = call.operand.shape[dim]
    start = slice(call.given["start"], call.given["end"], step).indices(length)[0]
    if call.result.shape[dim] == length:
        return one(call, {})
    return one(call, {dim: Place(dim, indices.stretch(call.result.shape[dim], start=start, step=step), Fraction(step))})


def _split(call: Call) -> list[Operand]:
    dim, sizes = call.dims("dim")[0], call.given.get("split_sizes", call.given.get("split_size"))
    start = sum(sizes[: call.position]) if isinstance(sizes, list | tuple) else sizes * call.position
    return one(call, {dim: Place(dim, indices.stretch(call.result.shape[dim], start=start))})


def _select(call: Call) -> list[Operand]:
    index = call.given.get("index", call.position)
    (dim,) = call.dims("dim")
    return without(call, {dim: Place(None, indices.stretch(1, start=index % call.operand.shape[dim]))})


def _squeeze(call: Call) -> list[Operand]:
    dims = [dim for dim in call.dims("dim") if call.operand.shape[dim] == 1]
    return without(call, dict.fromkeys(dims))


def _unsqueeze(call: Call) -> list[Operand]:
    new = call.given["dim"] % call.result.ndim
    return [Operand(call.operand, by_dims(call.operand, [Place(dim + (dim >= new)) for dim in range(call.operand.ndim)]))]


def _permute(call: Call) -> list[Operand]:
    order = call.dims("dims")
    return [Operand(call.operand, by_dims(call.operand, [Place(order.index(dim)) for dim in range(len(order))]))]


def _transpose(call: Call) -> list[Operand]:
    given, count = call.given, max(call.operand.ndim, 1)
    first, second = given.get("dim0", 0) % count, given.get("dim1", -1) % count
    return one(call, {first: Place(second), second: Place(first)})


def _view(call: Call) -> list[Operand]:
    return [Operand(call.operand, partial(_regroup, before=call.operand.shape, after=call.result.shape))]


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


def _concatenate(call: Call) -> list[Operand]:
    tensors = [tensor for tensor in call.given["tensors"] if tensor.ndim == call.result.ndim]
    dim, start, changes = call.given["dim"] % call.result.ndim, 0, []
    for tensor in tensors:
        length = tensor.shape[dim]
        index = indices.within(indices.stretch(call.result.shape[dim], start=-start), length)
        change = by_dims(tensor, kept(tensor, {dim: Place(dim, index)}))
        changes.append(Operand(tensor, _placed(change, index, dim) if _is_space(call.result, dim) else change))
        start += length
    return changes


def _stack(call: Call) -> list[Operand]:
    new, changes = call.given["dim"] % call.result.ndim, []
    for number, tensor in enumerate(call.given["tensors"]):
        index = indices.within(indices.stretch(call.result.shape[new], start=-number), 1)
        change = by_dims(tensor, [Place(dim + (dim >= new)) for dim in range(tensor.ndim)])
        changes.append(Operand(tensor, _placed(change, index, new) if _is_space(call.result, new) else change))
    return changes


def _is_space(result: Tensor, dim: int) -> bool:
    """Return True for a dimension that may be rows or columns of a map, not its channels."""
    return result.ndim > 2 and dim >= result.ndim - 2


def _placed(change: Change, index: Indices, dim: int) -> Change:
    """Return a change that gives an operand that is the same at all positions those that are its own."""

    def changed(axis: Axis) -> Axis:
        return change(axis) if axis.is_spread else axis.everywhere().take(np.minimum(index, 0), dim, Fraction(1))

    return changed


def _roll(call: Call) -> list[Operand]:
    changed: dict[int, Place | None] = {}
    if not call.given["dims"]:
        return one(call, {dim: Place(dim, mixed=True) for dim in range(call.operand.ndim)})
    for dim, shift in zip(call.dims("dims"), call.given["shifts"], strict=True):
        length = call.operand.shape[dim]
        changed[dim] = Place(dim, indices.stretch(length, start=-shift) % length)
    return one(call, changed)


def _flip(call: Call) -> list[Operand]:
    changed: dict[int, Place | None] = {}
    for dim in call.dims("dims") if call.given["dims"] else ():
        length = call.operand.shape[dim]
        changed[dim] = Place(dim, indices.stretch(length, start=length - 1, step=-1), Fraction(-1))
    return one(call, changed)


def _rotate(call: Call) -> list[Operand]:
    first, second = call.dims("dims")
    last = {dim: call.operand.shape[dim] - 1 for dim in (first, second)}
    mirrored = {1: (second,), 2: (first, second), 3: (first,)}.get(call.given["k"] % 4, ())
    turned = {first: second, second: first} if call.given["k"] % 2 else {}
    changed: dict[int, Place | None] = {}
    for dim, end in last.items():
        to = turned.get(dim, dim)
        if dim in mirrored:
            changed[dim] = Place(to, indices.stretch(end + 1, start=end, step=-1), Fraction(-1))
        else:
            changed[dim] = Place(to)
    return one(call, changed)


def _repeated(call: Call) -> list[Operand]:
    operand, more = call.operand, call.result.ndim - call.operand.ndim
    places: list[Place | None] = []
    for dim, length in enumerate(operand.shape):
        same = call.result.shape[dim + more] == length
        places.append(
            Place(dim + more) if same else Place(dim + more, indices.stretch(call.result.shape[dim + more]) % length)
        )
    return [Operand(operand, by_dims(operand, places))]


def _expand(call: Call) -> list[Operand]:
    return [Operand(call.operand, broadcast(call.operand, call.result))]


def _copy(call: Call) -> list[Operand]:
    source = call.given["src"]
    return [Operand(source, broadcast(source, call.result)), Operand(call.operand, Axis.nowhere)]


def _restride(call: Call) -> list[Operand]:
    """Return the changes of an operator that may put any element anywhere."""
    return one(call, {dim: Place(dim, mixed=True) for dim in range(call.operand.ndim)})


RULES: dict[str, Rule] = {
    "slice": _slice,
    "split": _split,
    "split_with_sizes": _split,
    "unsafe_split": _split,
    "unsafe_split_with_sizes": _split,
    "select": _select,
    "unbind": _select,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "permute": _permute,
    "transpose": _transpose,
    "t": _transpose,
    "view": _view,
    "_unsafe_view": _view,
    "reshape": _view,
    "_reshape_alias": _view,
    "as_strided": _restride,
    "expand": _expand,
    "repeat": _repeated,
    "copy": _copy,
    "cat": _concatenate,
    "stack": _stack,
    "roll": _roll,
    "flip": _flip,
    "rot90": _rotate,
}
