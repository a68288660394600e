"""Look up the rule of an operator by its name; other operators have none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmapviz.observe.operators import mixtures, moves, windows
from fmapviz.observe.operators.call import pointwise

if TYPE_CHECKING:
    from fmapviz.observe.operators.call import Operator, Rule

_RULES = {**windows.RULES, **moves.RULES, **mixtures.RULES}


def rule_of(operator: Operator) -> Rule | None:
    """Return the rule of an operator, None if there is none.

    Example:
        >>> import torch
        >>> from fmapviz.observe.operators.call import operator_of
        >>> rule_of(operator_of(torch.ops.aten.relu.default)).__name__, rule_of(operator_of(torch.ops.aten.sort.default))
        ('pointwise', None)
    """
    return _RULES.get(operator.name) or (pointwise if operator.is_pointwise else None)
