"""The rules of operators that unite or mix positions: reductions, normalization."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmapviz.observe.operators.call import Call, Operand, Place, Rule, kept, one, without

if TYPE_CHECKING:
    from collections.abc import Iterable


def _reduce(call: Call) -> list[Operand]:
    dims = call.dims("dim")
    if call.given.get("keepdim"):
        return one(call, {dim: Place(dim, united=True) for dim in dims})
    return without(call, {dim: Place(None, united=True) for dim in dims})


def _along(call: Call) -> list[Operand]:
    """Return the operand of an operator in which the elements of one dimension influence each other."""
    return one(call, {dim: Place(dim, mixed=True) for dim in call.dims("dim")})


def _layer_norm(call: Call) -> list[Operand]:
    count = call.operand.ndim
    return _normalize(call, range(count - len(call.given["normalized_shape"]), count))


def _group_norm(call: Call) -> list[Operand]:
    return _normalize(call, range(1, call.operand.ndim))


def _batch_norm(call: Call) -> list[Operand]:
    given = call.given
    of_batch = given.get("training", given.get("use_input_stats", False)) or "running_mean" not in given
    return _batch_norm_of_batch(call) if of_batch else one(call, {})


def _batch_norm_of_batch(call: Call) -> list[Operand]:
    return _normalize(call, (dim for dim in range(call.operand.ndim) if dim != 1))


def _normalize(call: Call, dims: Iterable[int]) -> list[Operand]:
    """Return the operand, and its mean and deviation over some dimensions."""
    return [*one(call, {}), Operand(call.operand, kept(call.operand, dict.fromkeys(dims)), pooled=True)]


def _channel_shuffle(call: Call) -> list[Operand]:
    return one(call, {1: Place(1, mixed=True)})


_REDUCTIONS = (
    "mean sum amax amin max min prod var std var_mean std_mean argmax argmin logsumexp any all linalg_vector_norm norm "
    "nansum median"
)
_BATCH_NORMS = (
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm miopen_batch_norm "
    "_batch_norm_no_update"
)
_ALONG = "_softmax _log_softmax _safe_softmax glu cumsum cumprod logcumsumexp index_select"

RULES: dict[str, Rule] = {
    **dict.fromkeys(_REDUCTIONS.split(), _reduce),
    **dict.fromkeys(_BATCH_NORMS.split(), _batch_norm),
    **dict.fromkeys(_ALONG.split(), _along),
    **dict.fromkeys(("channel_shuffle", "native_channel_shuffle"), _channel_shuffle),
    "_batch_norm_with_update": _batch_norm_of_batch,
    "native_layer_norm": _layer_norm,
    "native_group_norm": _group_norm,
}
