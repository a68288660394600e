"""Follow receptive fields through a forward pass, operator by operator."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from fmapviz.inspection.field import (
    Field,
    InseparableError,
    field_of_picture,
    unite,
    whole_picture,
)
from fmapviz.inspection.field_rules import Call, is_pointwise, rule_for, tensors_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fmapviz.inspection.field_rules import Changes

# Operators whose results have no values of their operand, or none at all.
_FACTORIES = frozenset(
    "zeros_like ones_like empty_like full_like rand_like randn_like randint_like new_zeros new_ones new_empty new_full "
    "new_empty_strided".split()
)
_READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class FieldTracking(TorchDispatchMode):
    """Follow the receptive field of every tensor that depends on a picture, within a `with` block.

    Args:
        pixels: The picture, `(..., H, W)`.

    Example:
        >>> pixels = torch.zeros(1, 3, 8, 8, device="meta")
        >>> with FieldTracking(pixels) as tracking:
        ...     pooled = torch.nn.functional.avg_pool2d(pixels, 2)
        >>> tracking.field(pooled).rows.ends[0].tolist()
        [[0, 2, 4, 6], [1, 3, 5, 7]]
    """

    def __init__(self, pixels: Tensor) -> None:
        super().__init__()
        self._height, self._width = pixels.shape[-2:]
        self._fields = _Fields()
        self._read = ""
        self._fields.set(pixels, field_of_picture(*pixels.shape[-2:], dims=(pixels.ndim - 2, pixels.ndim - 1)))

    def field(self, tensor: Tensor) -> Field | None:
        """Return the field of a tensor, None if it does not depend on the picture."""
        found = self._fields.get(tensor)
        return self.whole(found) if isinstance(found, str) else found

    def whole(self, reason: str) -> Field:
        """Return the whole picture."""
        return whole_picture(self._height, self._width, reason=reason)

    def __torch_dispatch__(
        self,
        func: Any,  # torch._ops.OpOverload has no public name
        _types: Sequence[type],
        args: tuple[Any, ...] = (),  # Any: an operator takes anything
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator, and record the fields of what it returns."""
        given = _bind(func, args, kwargs or {})
        known = {id(tensor): field for tensor in tensors_of(given.values()) if (field := self.field(tensor))}
        result = func(*args, **(kwargs or {}))
        if known or self._read:
            self._record(func, given, known, result)
        return result

    def _record(self, func: Any, given: Mapping[str, Any], known: Mapping[int, Field], result: Any) -> None:
        """Record the fields of the results, and of what was written in place."""
        name = f"{func.namespace}.{func.overloadpacket.__name__}"
        results = tensors_of([result])
        if known and (_READS & set(func.tags) or not (results or func._schema.is_mutable or result is None)):
            self._read = self._read or name  # what follows may depend on the value
        written = _written(func, given)
        for position, tensor in enumerate(results or written):
            if func.overloadpacket.__name__ in _FACTORIES and not self._read:
                continue
            field = self._infer(func, Call(given, tensor, position), known, name=name)
            if any(tensor is each for each in written):
                self._fields.overwrite(tensor, field, whole=self.whole(name))
            else:
                self._fields.set(tensor, field)
        for tensor in written if results else ():
            if not any(tensor is each for each in results):
                self._fields.overwrite(tensor, self.whole(name), whole=self.whole(name))

    def _infer(self, func: Any, call: Call, known: Mapping[int, Field], *, name: str) -> Field:
        """Return the field of a result, with and without gates."""
        if self._read:
            return self.whole(self._read)
        rule = rule_for(func)
        changes = rule(call) if rule else []
        changed = {id(tensor) for tensor, _ in changes}
        if rule is None or not known.keys() <= changed:
            return self.whole(next((field.reason for field in known.values() if field.reason), name))
        changes = [(tensor, change) for tensor, change in changes if id(tensor) in known]
        gates = _gates(changes, known, call.result) if is_pointwise(func) else set()
        field = self._unite(changes, known, name=name)
        if not gates and not any(each.ungated for each in known.values()):
            return field
        open_changes = [(tensor, change) for tensor, change in changes if id(tensor) not in gates]
        ungated = self._unite(open_changes, {key: each.without_gates for key, each in known.items()}, name=name)
        return replace(field, ungated=ungated)

    def _unite(self, changes: Changes, known: Mapping[int, Field], *, name: str) -> Field:
        """Return the union of what the operands depend on, where they are in the result."""
        fields = [known[id(tensor)] for tensor, _ in changes]
        if reason := next((field.reason for field in fields if field.reason), ""):
            return self.whole(reason)
        try:
            moved = [
                [change(axis) for axis in field.axes] for field, (_, change) in zip(fields, changes, strict=True)
            ]
            rows, columns = (unite(axes) for axes in zip(*moved, strict=True))
        except InseparableError:
            return self.whole(name)
        return Field(rows, columns)


def _gates(changes: Changes, known: Mapping[int, Field], result: Tensor) -> set[int]:
    """Return the operands that are the same at all positions of another one.

    An operand is the same if its dimension has length 1, or is expanded from that.
    """
    placed = {id(tensor): [change(axis) for axis in known[id(tensor)].axes] for tensor, change in changes}
    spread = {axis.dim for axes in placed.values() for axis in axes if axis.is_spread}
    most = max((sum(axis.is_spread for axis in axes) for axes in placed.values()), default=0)
    return {
        id(tensor)
        for tensor, _ in changes
        if sum(axis.is_spread for axis in placed[id(tensor)]) < most
        and any(_is_constant(tensor, dim - result.ndim) for dim in spread - {axis.dim for axis in placed[id(tensor)]} if dim is not None)
    }


def _is_constant(tensor: Tensor, dim: int) -> bool:
    """Return True if a tensor, broadcast, is the same along a dimension, counted from the last one."""
    return -dim > tensor.ndim or tensor.shape[dim] == 1 or tensor.stride(dim) == 0


class _Fields:
    """The fields of tensors, also of those that share memory.

    Attributes:
        tensors: By tensor.
        storages: By the address of each storage: a reference that keeps the address from being used again, and the tensors.
        reasons: By the address of each storage: the operator that has overwritten a part of it.
    """

    def __init__(self) -> None:
        self.tensors: Any = WeakTensorKeyDictionary()  # Any: has no types
        self.storages: dict[int, tuple[StorageWeakRef, list[TensorWeakRef]]] = {}
        self.reasons: dict[int, str] = {}

    def get(self, tensor: Tensor) -> Field | str | None:
        """Return a tensor's field, None if it does not depend on the picture, or why it is the whole picture."""
        if (known := self.tensors.get(tensor)) is not None:
            field: Field = known
            return field
        aliases = self._aliases(tensor)
        for alias in aliases:
            if _geometry(alias) == _geometry(tensor):
                field = self.tensors[alias]
                return field
        return self.reasons.get(_address(tensor), "aten.alias") if aliases else None

    def set(self, tensor: Tensor, field: Field) -> None:
        """Record the field of a tensor."""
        self.tensors[tensor] = field
        if tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            _, tensors = self.storages.setdefault(storage._cdata, (StorageWeakRef(storage), []))
            tensors.append(TensorWeakRef(tensor))

    def overwrite(self, tensor: Tensor, field: Field, *, whole: Field) -> None:
        """Record what was written into a tensor, whose memory others may share."""
        before = self.get(tensor)
        self.set(tensor, field)
        if isinstance(before, Field) and _is_equal(before, field):
            return
        self.reasons[_address(tensor)] = whole.reason
        for alias in self._aliases(tensor):
            self.tensors[alias] = field if _geometry(alias) == _geometry(tensor) else whole

    def _aliases(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors in the same memory that depend on the picture."""
        if tensor.layout is not torch.strided or not (found := self.storages.get(_address(tensor))):
            return []
        return [alias for reference in found[1] if (alias := reference()) is not None]


def _address(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address


def _geometry(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype


def _is_equal(first: Field, second: Field) -> bool:
    if (first.reason, first.ungated is None) != (second.reason, second.ungated is None):
        return False
    same = all(
        (one.dim, one.inner) == (other.dim, other.inner) and np.array_equal(one.ends, other.ends)
        for one, other in zip(first.axes, second.axes, strict=True)
    )
    return same and (first.ungated is None or second.ungated is None or _is_equal(first.ungated, second.ungated))


def _bind(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an operator by name, with the defaults."""
    names, defaults = _parameters(operator)
    return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}


@cache
def _parameters(operator: Any) -> tuple[list[str], dict[str, Any]]:
    """Return the names of an operator's parameters in order, and all of them with their defaults."""
    arguments = operator._schema.arguments
    return [argument.name for argument in arguments], {argument.name: argument.default_value for argument in arguments}


@cache
def _outputs(operator: Any) -> list[str]:
    """Return the names of the parameters that an operator writes into."""
    return [each.name for each in operator._schema.arguments if each.alias_info is not None and each.alias_info.is_write]


def _written(operator: Any, given: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors that an operator has written into."""
    return tensors_of(given[name] for name in _outputs(operator))
