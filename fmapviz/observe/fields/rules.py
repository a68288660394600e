"""The operators of PyTorch's `aten` through which receptive fields are followed. Others are never guessed at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fmapviz.observe.fields import layouts, mixtures, windows
from fmapviz.observe.fields.call import Operand, by_dims, kept, pointwise, tensors_of
from fmapviz.observe.fields.intervals import Axis

if TYPE_CHECKING:
    from fmapviz.observe.fields.call import Call, Rule

_RULES = {**windows.RULES, **layouts.RULES, **mixtures.RULES}

# Those whose operand still has its shape when they have written into it.
_IN_PLACE = {"copy", "as_strided"}

# Those that PyTorch does not tag.
_POINTWISE = {
    "hardswish", "_prelu_kernel", "_to_copy", "to", "detach", "alias", "lift_fresh", "native_dropout", "log_sigmoid_forward",
    "rrelu_with_noise", "rsub", "masked_fill", "clamp_max", "floor_divide",
}  # fmt: skip


def rule_for(operator: Any) -> Rule | None:  # Any: torch._ops.OpOverload has no public name
    """Return the rule of an operator, None if there is none.

    Example:
        >>> rule_for(torch.ops.aten.relu.default).__name__, rule_for(torch.ops.aten.sort.default)
        ('pointwise', None)
    """
    name = _name(operator)
    if operator.namespace != "aten" or (_is_in_place(operator) and name in _RULES and name not in _IN_PLACE):
        return None
    return _RULES.get(name) or (pointwise if is_pointwise(operator) else None)


# Of queries and keys, and of weights and values: the positions of a product are those of the first operand.
PRODUCTS = {f"aten.{name}" for name in ("mm", "bmm", "addmm", "baddbmm")}


def placing_rule(operator: Any) -> Rule | None:  # Any: as above
    """Return the rule of an operator where the positions of queries are followed through attention."""
    if operator.namespace == "aten" and _name(operator).startswith("_scaled_dot_product"):
        return _queries
    return rule_for(operator)


def _queries(call: Call) -> list[Operand]:
    others = [Operand(each, Axis.everywhere) for each in tensors_of(call.given.values()) if each is not call.operand]
    return [Operand(call.operand, by_dims(call.operand, kept(call.operand, {-1: None}))), *others]


def is_pointwise(operator: Any) -> bool:  # Any: as above
    """Return True if each element of the result is computed of one element of each operand."""
    return operator.namespace == "aten" and (torch.Tag.pointwise in operator.tags or _name(operator) in _POINTWISE)


def _name(operator: Any) -> str:  # Any: as above
    """Return the name of an operator, without the underscore of those that write into their operand."""
    name: str = operator.overloadpacket.__name__
    return name.removesuffix("_") if _is_in_place(operator) else name


def _is_in_place(operator: Any) -> bool:  # Any: as above
    name: str = operator.overloadpacket.__name__
    return name.endswith("_") and bool(operator._schema.is_mutable)
