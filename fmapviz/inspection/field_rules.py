"""The rules by which receptive fields pass through operators of PyTorch's `aten`: one line of a table each.

A rule returns, for each operand, how an image axis that it has is found in the result. An operator that is not in the table is
never guessed at.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fmapviz.inspection import field_indices as indices
from fmapviz.inspection.field import Axis, InseparableError, Place, move

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Change = Callable[[Axis], Axis]
    Changes = list[tuple[Tensor, Change]]
    Rule = Callable[["Call"], Changes]


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


def rule_for(operator: Any) -> Rule | None:  # Any: torch._ops.OpOverload has no public name
    """Return the rule of an operator, None if there is none."""
    name: str = operator.overloadpacket.__name__
    name = name.removesuffix("_") if operator._schema.is_mutable else name
    if rule := _RULES.get(name):
        return rule
    return pointwise if is_pointwise(operator) else None


def is_pointwise(operator: Any) -> bool:  # Any: as above
    """Return True if an operator computes each element of one element of each operand."""
    name = operator.overloadpacket.__name__.removesuffix("_")
    return operator.namespace == "aten" and (torch.Tag.pointwise in operator.tags or name in _POINTWISE)


def pointwise(call: Call) -> Changes:
    """Align dimensions at the last one, and broadcast those of length 1."""
    return [(tensor, _broadcast(tensor, call.result)) for tensor in tensors_of(call.given.values())]


def tensors_of(values: Iterable[Any]) -> list[Tensor]:  # Any: as above
    """Return the tensors among arguments and in their lists."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += (each for each in value if isinstance(each, Tensor))
    return found


def _by_dims(tensor: Tensor, places: Sequence[Place | None]) -> Change:
    return partial(move, places=places, shape=tensor.shape)


def _kept(tensor: Tensor, changed: Mapping[int, Place | None] | None = None) -> list[Place | None]:
    """Return the places of dimensions that are the same in the result, but for some."""
    changed = changed or {}
    return [changed.get(dim % tensor.ndim, Place(dim)) for dim in range(tensor.ndim)]


def _one(call: Call, changed: Mapping[int, Place | None]) -> Changes:
    return [(call.operand, _by_dims(call.operand, _kept(call.operand, changed)))]


def _broadcast(tensor: Tensor, result: Tensor) -> Change:
    more = result.ndim - tensor.ndim
    places = [
        None if length == 1 and result.shape[dim + more] != 1 else Place(dim + more) for dim, length in enumerate(tensor.shape)
    ]
    return _by_dims(tensor, places)


def _copied(call: Call) -> Changes:
    source = call.given["src"]
    return [(source, _broadcast(source, call.result)), (call.operand, _nothing)]


def _nothing(axis: Axis) -> Axis:
    return axis.nowhere()


def _spatial(call: Call, count: int) -> list[tuple[int, int, int]]:
    """Return the last dimensions of the operand with their lengths in the operand and the result."""
    lengths = zip(call.operand.shape[-count:], call.result.shape[-count:], strict=True)
    first = call.operand.ndim - count
    return [(first + number, before, after) for number, (before, after) in enumerate(lengths)]


def _convolution(call: Call) -> Changes:
    given, kernel = call.given, call.given["weight"].shape[2:]
    settings = [_repeat(given[name], len(kernel)) for name in ("stride", "padding", "dilation")]
    changed: dict[int, Place | None] = {1: None}
    for (dim, before, after), length, stride, padding, dilation in zip(
        _spatial(call, len(kernel)), kernel, *settings, strict=True
    ):
        if given["transposed"]:
            index = indices.inverse_windows(after, length, stride=stride, padding=padding, dilation=dilation)
            changed[dim] = Place(dim, index, Fraction(1, stride))
        elif (length, stride, padding) != (1, 1, 0) or before != after:
            index = indices.windows(after, length, stride=stride, padding=padding, dilation=dilation)
            changed[dim] = Place(dim, index, Fraction(stride))
    return _one(call, changed)


def _repeat(value: Any, count: int) -> list[int]:  # Any: a number or a list of them
    values = list(value) if isinstance(value, list | tuple) else [value]
    return values * count if len(values) == 1 else values


def _pool(call: Call, *, count: int) -> Changes:
    given = call.given
    kernel = _repeat(given["kernel_size"], count)
    stride = _repeat(given["stride"] or kernel, count)
    padding, dilation = _repeat(given["padding"], count), _repeat(given.get("dilation", 1), count)
    changed: dict[int, Place | None] = {}
    for number, (dim, _, after) in enumerate(_spatial(call, count)):
        index = indices.windows(
            after, kernel[number], stride=stride[number], padding=padding[number], dilation=dilation[number]
        )
        changed[dim] = Place(dim, index, Fraction(stride[number]))
    return _one(call, changed)


def _adaptive_pool(call: Call, *, count: int) -> Changes:
    return _one(
        call,
        {
            dim: Place(dim, indices.bins(before, after), Fraction(before, max(after, 1)))
            for dim, before, after in _spatial(call, count)
        },
    )


def _interpolation(call: Call, *, count: int, kind: Callable[..., indices.Indices], **settings: bool) -> Changes:
    given = call.given
    if kind is not indices.nearest:
        settings["align_corners"] = given["align_corners"]
    scales = given.get("scale_factors") or [given.get(f"scales{end}") for end in {1: [""], 2: ["_h", "_w"]}.get(count, ["_d", "_h", "_w"])]
    changed: dict[int, Place | None] = {}
    for (dim, before, after), scale in zip(_spatial(call, count), scales, strict=True):
        changed[dim] = Place(dim, kind(before, after, scale=scale, **settings), Fraction(before, max(after, 1)))
    return _one(call, changed)


def _padding(call: Call, *, kind: Callable[[int, int, int], indices.Indices]) -> Changes:
    amounts = call.given["pad"] if "pad" in call.given else call.given["padding"]
    pairs = list(zip(amounts[::2], amounts[1::2], strict=True))
    last = call.operand.ndim - 1
    return _one(
        call,
        {
            last - number: Place(last - number, kind(call.operand.shape[last - number], *pair))
            for number, pair in enumerate(pairs)
            if pair != (0, 0)
        },
    )


def _constant(inputs: int, before: int, after: int) -> indices.Indices:
    return indices.stretch(inputs + before + after, start=-before)


def _slice(call: Call) -> Changes:
    dim, step = call.dims("dim")[0], call.given["step"]
    length = call.operand.shape[dim]
    start = slice(call.given["start"], call.given["end"], step).indices(length)[0]
    if call.result.shape[dim] == length:
        return _one(call, {})
    return _one(call, {dim: Place(dim, indices.stretch(call.result.shape[dim], start=start, step=step), Fraction(step))})


def _split(call: Call) -> Changes:
    dim, sizes = call.dims("dim")[0], call.given.get("split_sizes", call.given.get("split_size"))
    start = sum(sizes[: call.position]) if isinstance(sizes, list | tuple) else sizes * call.position
    return _one(call, {dim: Place(dim, indices.stretch(call.result.shape[dim], start=start))})


def _select(call: Call) -> Changes:
    index = call.given["index"] if "index" in call.given else call.position
    (dim,) = call.dims("dim")
    return _without(call, {dim: Place(None, indices.stretch(1, start=index % call.operand.shape[dim]))})


def _without(call: Call, gone: Mapping[int, Place | None]) -> Changes:
    """Return the changes of an operator that removes dimensions."""
    places: list[Place | None] = []
    for dim in range(call.operand.ndim):
        places.append(gone[dim] if dim in gone else Place(dim - sum(other < dim for other in gone)))
    return [(call.operand, _by_dims(call.operand, places))]


def _squeeze(call: Call) -> Changes:
    dims = [dim for dim in call.dims("dim") if call.operand.shape[dim] == 1]
    return _without(call, dict.fromkeys(dims))


def _unsqueeze(call: Call) -> Changes:
    new = call.given["dim"] % call.result.ndim
    return [(call.operand, _by_dims(call.operand, [Place(dim + (dim >= new)) for dim in range(call.operand.ndim)]))]


def _permute(call: Call) -> Changes:
    order = call.dims("dims")
    return [(call.operand, _by_dims(call.operand, [Place(order.index(dim)) for dim in range(len(order))]))]


def _transpose(call: Call) -> Changes:
    first, second = (call.given.get(name, default) % max(call.operand.ndim, 1) for name, default in (("dim0", 0), ("dim1", -1)))
    return _one(call, {first: Place(second), second: Place(first)})


def _view(call: Call) -> Changes:
    return [(call.operand, partial(_regroup, before=call.operand.shape, after=call.result.shape))]


def _regroup(axis: Axis, *, before: Sequence[int], after: Sequence[int]) -> Axis:
    """Return an axis after a reshape, which keeps the order of all elements.

    Raises:
        InseparableError: Its positions are in several dimensions now.
    """
    if not axis.is_spread or axis.dim is None:
        return axis.everywhere()
    distance = prod(before[axis.dim + 1 :]) * axis.inner
    for dim, length in enumerate(after):
        unit = prod(after[dim + 1 :])
        if distance % unit == 0 and (unit * length) % (distance * axis.positions) == 0:
            return Axis(axis.ends, dim, distance // unit, axis.step)
    raise InseparableError


def _reduce(call: Call) -> Changes:
    dims = call.dims("dim")
    return _one(call, dict.fromkeys(dims)) if call.given.get("keepdim") else _without(call, dict.fromkeys(dims))


def _along(call: Call) -> Changes:
    """Return the changes of an operator in which the elements of one dimension influence each other."""
    return _one(call, {dim: Place(dim, mixed=True) for dim in call.dims("dim")})


def _layer_norm(call: Call) -> Changes:
    count = call.operand.ndim
    return _one(call, {dim: Place(dim, mixed=True) for dim in range(count - len(call.given["normalized_shape"]), count)})


def _group_norm(call: Call) -> Changes:
    return _one(call, {dim: Place(dim, mixed=True) for dim in range(1, call.operand.ndim)})


def _batch_norm(call: Call) -> Changes:
    of_batch = call.given.get("training", call.given.get("use_input_stats", False)) or "running_mean" not in call.given
    return _one(call, {dim: Place(dim, mixed=True) for dim in range(call.operand.ndim) if dim != 1} if of_batch else {})


def _matrix_product(call: Call) -> Changes:
    *bias, left, right = tensors_of(call.given.values())
    last = call.result.ndim - 1
    return [
        *((tensor, _broadcast(tensor, call.result)) for tensor in bias),
        (left, _by_dims(left, _kept(left, {last: None}))),
        (right, _by_dims(right, _kept(right, {last - 1: None}))),
    ]


def _linear(call: Call) -> Changes:
    return _one(call, {call.operand.ndim - 1: None})


def _concatenate(call: Call) -> Changes:
    tensors = [tensor for tensor in call.given["tensors"] if tensor.ndim == call.result.ndim]
    dim, start, changes = call.given["dim"] % call.result.ndim, 0, []
    for tensor in tensors:
        length = tensor.shape[dim]
        index = indices.within(indices.stretch(call.result.shape[dim], start=-start), length)
        changes.append((tensor, _by_dims(tensor, _kept(tensor, {dim: Place(dim, index)}))))
        start += length
    return changes


def _stack(call: Call) -> Changes:
    new = call.given["dim"] % call.result.ndim
    return [
        (tensor, _by_dims(tensor, [Place(dim + (dim >= new)) for dim in range(tensor.ndim)]))
        for tensor in call.given["tensors"]
    ]


def _roll(call: Call) -> Changes:
    changed: dict[int, Place | None] = {}
    if not call.given["dims"]:
        return _one(call, {dim: Place(dim, mixed=True) for dim in range(call.operand.ndim)})
    for dim, shift in zip(call.dims("dims"), call.given["shifts"], strict=True):
        length = call.operand.shape[dim]
        changed[dim] = Place(dim, indices.stretch(length, start=-shift) % length)
    return _one(call, changed)


def _flip(call: Call) -> Changes:
    changed: dict[int, Place | None] = {}
    for dim in call.dims("dims") if call.given["dims"] else ():
        length = call.operand.shape[dim]
        changed[dim] = Place(dim, indices.stretch(length, start=length - 1, step=-1), Fraction(-1))
    return _one(call, changed)


def _repeated(call: Call) -> Changes:
    operand, more = call.operand, call.result.ndim - call.operand.ndim
    places: list[Place | None] = []
    for dim, length in enumerate(operand.shape):
        same = call.result.shape[dim + more] == length
        places.append(
            Place(dim + more) if same else Place(dim + more, indices.stretch(call.result.shape[dim + more]) % length)
        )
    return [(operand, _by_dims(operand, places))]


def _pixel_shuffle(call: Call) -> Changes:
    factor, first = call.given["upscale_factor"], call.operand.ndim - 3
    changed: dict[int, Place | None] = {first: Place(first, mixed=True)}
    for dim, _, after in _spatial(call, 2):
        changed[dim] = Place(dim, indices.stretch(after) // factor, Fraction(1, factor))
    return _one(call, changed)


def _pixel_unshuffle(call: Call) -> Changes:
    factor, first = call.given["downscale_factor"], call.operand.ndim - 3
    changed: dict[int, Place | None] = {first: Place(first, mixed=True)}
    for dim, _, after in _spatial(call, 2):
        changed[dim] = Place(dim, indices.windows(after, factor, stride=factor, padding=0), Fraction(factor))
    return _one(call, changed)


def _channel_shuffle(call: Call) -> Changes:
    return _one(call, {1: Place(1, mixed=True)})


# Those that PyTorch does not tag.
_POINTWISE = frozenset(
    "hardswish _prelu_kernel _to_copy to detach alias lift_fresh native_dropout log_sigmoid_forward rrelu_with_noise where rsub "
    "masked_fill clamp_max floor_divide dropout selu add mul".split()
)

_RULES: dict[str, Rule] = {
    "copy": _copied,
    "convolution": _convolution,
    "constant_pad_nd": partial(_padding, kind=_constant),
    **{f"reflection_pad{count}d": partial(_padding, kind=indices.reflected) for count in (1, 2, 3)},
    **{f"replication_pad{count}d": partial(_padding, kind=indices.replicated) for count in (1, 2, 3)},
    **{f"{kind}_pool{count}d": partial(_pool, count=count) for kind in ("avg", "max") for count in (1, 2, 3)},
    **{f"max_pool{count}d_with_indices": partial(_pool, count=count) for count in (2, 3)},
    **{f"{prefix}adaptive_avg_pool{count}d": partial(_adaptive_pool, count=count) for prefix in ("", "_") for count in (1, 2, 3)},
    **{f"adaptive_max_pool{count}d": partial(_adaptive_pool, count=count) for count in (1, 2, 3)},
    **{
        f"upsample_nearest{count}d": partial(_interpolation, count=count, kind=indices.nearest, middle=False)
        for count in (1, 2, 3)
    },
    **{
        f"_upsample_nearest_exact{count}d": partial(_interpolation, count=count, kind=indices.nearest, middle=True)
        for count in (1, 2, 3)
    },
    "upsample_linear1d": partial(_interpolation, count=1, kind=indices.linear),
    "upsample_bilinear2d": partial(_interpolation, count=2, kind=indices.linear),
    "upsample_trilinear3d": partial(_interpolation, count=3, kind=indices.linear),
    "upsample_bicubic2d": partial(_interpolation, count=2, kind=indices.cubic),
    "slice": _slice,
    "select": _select,
    "unbind": _select,
    **dict.fromkeys(("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes"), _split),
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "permute": _permute,
    **dict.fromkeys(("transpose", "t"), _transpose),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias"), _view),
    "expand": lambda call: [(call.operand, _broadcast(call.operand, call.result))],
    "repeat": _repeated,
    **dict.fromkeys(
        ("mean", "sum", "amax", "amin", "max", "min", "prod", "var", "std", "argmax", "argmin", "logsumexp", "any", "all",
         "linalg_vector_norm"),
        _reduce,
    ),
    **dict.fromkeys(("_softmax", "_log_softmax", "softmax", "glu", "cumsum", "index_select"), _along),
    "native_layer_norm": _layer_norm,
    "native_group_norm": _group_norm,
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "cudnn_batch_norm",
         "_batch_norm_no_update", "miopen_batch_norm"),
        _batch_norm,
    ),
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), _matrix_product),
    "linear": _linear,
    "cat": _concatenate,
    "stack": _stack,
    "roll": _roll,
    "flip": _flip,
    "pixel_shuffle": _pixel_shuffle,
    "pixel_unshuffle": _pixel_unshuffle,
    "channel_shuffle": _channel_shuffle,
    "native_channel_shuffle": _channel_shuffle,
}  # fmt: skip
