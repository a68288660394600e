"""The rules of operators that only move positions."""

from __future__ import annotations

from fractions import Fraction

from fmapviz.observe.operators import indices
from fmapviz.observe.operators.call import Call, Operand, Place, Rule, broadcast, one, without


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
    return without(call, {dim: Place(None) for dim in call.dims("dim") if call.operand.shape[dim] == 1})


def _unsqueeze(call: Call) -> list[Operand]:
    new = call.given["dim"] % call.result.ndim
    return [Operand(call.operand, [Place(dim + (dim >= new)) for dim in range(call.operand.ndim)])]


def _permute(call: Call) -> list[Operand]:
    order = call.dims("dims")
    return [Operand(call.operand, [Place(order.index(dim)) for dim in range(len(order))])]


def _transpose(call: Call) -> list[Operand]:
    given, count = call.given, max(call.operand.ndim, 1)
    first, second = given.get("dim0", 0) % count, given.get("dim1", -1) % count
    return one(call, {first: Place(second), second: Place(first)})


def _expand(call: Call) -> list[Operand]:
    return [broadcast(call.operand, call.result)]


def _roll(call: Call) -> list[Operand]:
    if not call.given["dims"]:
        return one(call, {dim: Place(dim, mixed=True) for dim in range(call.operand.ndim)})
    changed: dict[int, Place | None] = {}
    for dim, shift in zip(call.dims("dims"), call.given["shifts"], strict=True):
        length = call.operand.shape[dim]
        changed[dim] = Place(dim, indices.stretch(length, start=-shift) % length)
    return one(call, changed)


def _flip(call: Call) -> list[Operand]:
    return one(call, {dim: _mirrored(call, dim, dim) for dim in (call.dims("dims") if call.given["dims"] else ())})


def _rotate(call: Call) -> list[Operand]:
    first, second = call.dims("dims")
    mirrored = {1: (second,), 2: (first, second), 3: (first,)}.get(call.given["k"] % 4, ())
    turned = {first: second, second: first} if call.given["k"] % 2 else {first: first, second: second}
    return one(call, {dim: _mirrored(call, dim, to) if dim in mirrored else Place(to) for dim, to in turned.items()})


def _mirrored(call: Call, dim: int, to: int) -> Place:
    length = call.operand.shape[dim]
    return Place(to, indices.stretch(length, start=length - 1, step=-1), Fraction(-1))


RULES: dict[str, Rule] = {
    **dict.fromkeys(("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes"), _split),
    **dict.fromkeys(("transpose", "t"), _transpose),
    **dict.fromkeys(("select", "unbind"), _select),
    "slice": _slice,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "permute": _permute,
    "expand": _expand,
    "roll": _roll,
    "flip": _flip,
    "rot90": _rotate,
}
