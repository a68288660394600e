"""The rules of operators that unite positions or channels: reductions, normalization, products of matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmapviz.observe.fields.call import Call, Operand, Rule, broadcast, by_dims, kept, one, tensors_of, without
from fmapviz.observe.fields.intervals import Place

if TYPE_CHECKING:
    from collections.abc import Sequence


def _reduce(call: Call) -> list[Operand]:
    dims = call.dims("dim")
    if call.given.get("keepdim"):
        return one(call, {dim: Place(dim, united=True) for dim in dims})
    return without(call, dict.fromkeys(dims))


def _along(call: Call) -> list[Operand]:
    """Return the changes of an operator in which the elements of one dimension influence each other."""
    return one(call, {dim: Place(dim, mixed=True) for dim in call.dims("dim")})


def _layer_norm(call: Call) -> list[Operand]:
    count = call.operand.ndim
    return _normalize(call, range(count - len(call.given["normalized_shape"]), count))


def _group_norm(call: Call) -> list[Operand]:
    return _normalize(call, range(1, call.operand.ndim))


def _batch_norm(call: Call) -> list[Operand]:
    of_batch = call.given.get("training", call.given.get("use_input_stats", False)) or "running_mean" not in call.given
    return _normalize(call, [dim for dim in range(call.operand.ndim) if dim != 1] if of_batch else [])


def _normalize(call: Call, dims: Sequence[int]) -> list[Operand]:
    """Return the operand, and its mean and deviation over some dimensions."""
    if not dims:
        return one(call, {})
    statistic = by_dims(call.operand, kept(call.operand, dict.fromkeys(dims)))
    return [*one(call, {}), Operand(call.operand, statistic, pooled=True)]


def _matrix_product(call: Call) -> list[Operand]:
    *bias, left, right = tensors_of(call.given.values())
    last = call.result.ndim - 1
    return [
        *(Operand(tensor, broadcast(tensor, call.result)) for tensor in bias),
        Operand(left, by_dims(left, kept(left, {last: None}))),
        Operand(right, by_dims(right, kept(right, {last - 1: None}))),
    ]


def _linear(call: Call) -> list[Operand]:
    return one(call, {call.operand.ndim - 1: None})


def _channel_shuffle(call: Call) -> list[Operand]:
    return one(call, {1: Place(1, mixed=True)})


_REDUCTIONS = "mean sum amax amin max min prod var std var_mean argmax argmin logsumexp any all linalg_vector_norm"
_BATCH_NORMS = (
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm miopen_batch_norm "
    "_batch_norm_no_update"
)

RULES: dict[str, Rule] = {
    **dict.fromkeys(_REDUCTIONS.split(), _reduce),
    **dict.fromkeys(_BATCH_NORMS.split(), _batch_norm),
    **dict.fromkeys(("_softmax", "_log_softmax", "glu", "cumsum", "index_select"), _along),
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), _matrix_product),
    "native_layer_norm": _layer_norm,
    "native_group_norm": _group_norm,
    "linear": _linear,
    "channel_shuffle": _channel_shuffle,
    "native_channel_shuffle": _channel_shuffle,
}
