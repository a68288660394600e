"""Follow receptive fields through a forward pass, operator by operator."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fmapviz.observe.fields.hollow import without_numbers
from fmapviz.observe.fields.intervals import Field, InseparableError, field_of_picture, moved, unite, whole_picture
from fmapviz.observe.fields.memory import FieldMemory
from fmapviz.observe.fields.parts import parts_of_result, taken_field
from fmapviz.observe.fields.rules import PRODUCTS, field_rule
from fmapviz.observe.memory_table import address_of
from fmapviz.observe.operators.call import Call, operator_of, tensors_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

    from fmapviz.observe.fields.intervals import Axis
    from fmapviz.observe.fields.parts import Fields
    from fmapviz.observe.operators.call import Operand, Operator

_CONVERSIONS = {"numpy", "tolist", "__array__", "__dlpack__"}
_READERS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class FieldTracking(TorchDispatchMode):
    """Follow the receptive field of every tensor that depends on a picture, within a `with` block.

    Args:
        pixels: The picture, `(..., H, W)`.
        placing: Whether to follow where positions lie, not all that they depend on: of several operands only those count
            that have positions of the picture, and of an attention those of the queries.
        weights: Of a network: convolutions and products of matrices return zeros at once, so that a pass costs what it costs
            to follow it, and to write into the weights is an error. None: operators run as they are.

    Example:
        >>> pixels = torch.zeros(1, 3, 8, 8, device="meta")
        >>> with FieldTracking(pixels) as tracking:
        ...     pooled = torch.nn.functional.avg_pool2d(pixels, 2)
        >>> tracking.field(pooled).rows.ends[0].tolist()
        [[0, 2, 4, 6], [1, 3, 5, 7]]
    """

    def __init__(self, pixels: Tensor, *, placing: bool = False, weights: Iterable[Tensor] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch's
        self._weights = None if weights is None else {address_of(each) for each in weights if not each.is_meta}
        self._height, self._width = pixels.shape[-2:]
        self._placing = placing
        self._memory = FieldMemory()
        self._reader = ""  # the first operator that has read values: what runs later may depend on them
        dims = pixels.ndim - 2, pixels.ndim - 1
        self._memory.set(pixels, field_of_picture(self._height, self._width, dims=dims))

    def read(self, name: str) -> None:
        """Take all later tensors to depend on the whole picture, because an operator has read values."""
        self._reader = "" if self._placing else self._reader or name

    def field(self, tensor: Tensor) -> Field | None:
        """Return the field of a tensor, None if it does not depend on the picture."""
        found = self._memory.get(tensor)
        return self.whole(found) if isinstance(found, str) else found

    def whole(self, reason: str) -> Field:
        """Return the whole picture."""
        return whole_picture(self._height, self._width, reason=reason)

    def __torch_dispatch__(
        self,
        func: Any,  # torch._ops.OpOverload has no public name
        _types: Sequence[type],
        args: tuple[Any, ...] = (),  # Any: an operator takes and returns anything
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator, and record the fields of its results."""
        operator = operator_of(func)
        given = operator.bind(args, kwargs or {})
        known = {id(tensor): field for tensor in tensors_of(given.values()) if (field := self.field(tensor))}
        result = None if self._weights is None else without_numbers(func, given)
        written = tensors_of(given[each] for each in operator.outputs)
        if self._weights and not self._weights.isdisjoint(map(address_of, written)):
            raise RuntimeError("the network writes into its weights")  # which the network itself has too
        result = func(*args, **(kwargs or {})) if result is None else result
        if known or self._reader:
            results = tensors_of([result])
            if _READERS & set(func.tags) or not (results or written or result is None):
                self.read(operator.label)
            if self._reader or not operator.is_factory:
                self._record(operator, given, known, results, written=written)
        return result

    def _record(
        self,
        operator: Operator,
        given: Mapping[str, Any],
        known: Fields,
        results: Sequence[Tensor],
        *,
        written: Sequence[Tensor],
    ) -> None:
        """Record the fields of an operator's results, and of the tensors that it has written into."""
        name = operator.label
        for position, tensor in enumerate(results):
            try:
                field = self._infer(operator, Call(given, tensor, position), known)
            except Exception:  # noqa: BLE001  a rule may not support some arguments; the forward pass continues
                field = self.whole(name)
            if any(tensor is each for each in written):
                if self._placing and self._is_placed(tensor):
                    continue  # a write into a part of it does not move it
                self._memory.overwrite(tensor, field, other=self.whole(name))
                continue
            try:
                self._memory.set(tensor, field)
            except (RuntimeError, NotImplementedError):  # a sparse tensor, which cannot be recognised
                self.read(name)
        for tensor in written:
            if not any(tensor is each for each in results):
                self._memory.overwrite(tensor, self.whole(name), other=self.whole(name))

    def _is_placed(self, tensor: Tensor) -> bool:
        """Return True if the positions of a tensor are known."""
        field = self._memory.get(tensor)
        return isinstance(field, Field) and not field.reason

    def _infer(self, operator: Operator, call: Call, known: Fields) -> Field:
        """Return the field of a result, with and without gates."""
        name, rule = operator.label, field_rule(operator, placing=self._placing)
        operands = rule(call) if rule and not self._reader else []
        if not known.keys() <= {id(each.tensor) for each in operands}:
            return self.whole(self._reader or next((field.reason for field in known.values() if field.reason), name))
        operands = [each for each in operands if id(each.tensor) in known]
        if not operands:
            return self.whole(self._reader)
        known = {**known} | {id(each.tensor): taken_field(each, known[id(each.tensor)]) for each in operands}
        field = self._unite(operands, known, name=name)
        if not field.reason:
            field = replace(field, parts=parts_of_result(call, operands, known))
        gates = _gates(operands, known, call.result, broadcast=operator.is_pointwise) if len(operands) > 1 else []
        if not any(gates) and all(each.ungated is None for each in known.values()):
            return field
        others = [each for each, is_gate in zip(operands, gates, strict=True) if not is_gate] if gates else operands
        ungated = self._unite(others, {key: each.without_gates for key, each in known.items()}, name=name)
        return replace(field, ungated=ungated)

    def _unite(self, operands: Sequence[Operand], known: Fields, *, name: str) -> Field:
        """Return the union of the operands' fields, moved to their places in the result."""
        fields = [known[id(each.tensor)] for each in operands]
        if self._placing:
            return self._place(operands, fields, name=name)
        if reason := next((field.reason for field in fields if field.reason), ""):
            return self.whole(reason)
        try:
            found = [[moved(axis, each) for axis in field.axes] for each, field in zip(operands, fields, strict=True)]
            rows, columns = (unite(axes) for axes in zip(*found, strict=True))
        except InseparableError:
            return self.whole(name)
        return Field(rows, columns)

    def _place(self, operands: Sequence[Operand], fields: Sequence[Field], *, name: str) -> Field:
        """Return where the positions of the result lie: as those of the operands that have positions."""
        found: tuple[list[Axis], list[Axis]] = [], []
        for each, field in zip(operands, fields, strict=True):
            for axes, axis in zip(found, () if field.reason else field.axes, strict=False):
                with suppress(InseparableError):
                    axes.append(moved(axis, each))
        if not all(found):
            return self.whole(next((field.reason for field in fields if field.reason), name))
        placed = [[axis for axis in axes if axis.is_spread] or axes for axes in found]
        try:
            rows, columns = (unite(axes[:1] if name in PRODUCTS else axes) for axes in placed)
        except InseparableError:
            return self.whole(name)
        return Field(rows, columns)


class ReadDetection(TorchFunctionMode):
    """Detect reads of values that are no operators, such as `numpy()`, within a `with` block."""

    def __init__(self, tracking: FieldTracking) -> None:
        super().__init__()
        self._tracking = tracking

    def __torch_function__(
        self,
        func: Any,  # Any: as in FieldTracking
        _types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Pass every call on."""
        name = getattr(func, "__name__", "")
        if name in _CONVERSIONS and any(self._tracking.field(tensor) for tensor in tensors_of(args)):
            self._tracking.read(f"Tensor.{name}")
        return func(*args, **(kwargs or {}))


def _gates(operands: Sequence[Operand], known: Fields, result: Tensor, *, broadcast: bool) -> list[bool]:
    """Return for each operand whether it is the same at all positions of another one.

    Args:
        broadcast: Whether operands are aligned at their last dimension, and may be broadcast.
    """
    if not broadcast and not any(each.pooled for each in operands):
        return [False] * len(operands)
    placed = [_dims(known[id(each.tensor)], each) for each in operands]
    most, spread = max(map(len, placed)), set().union(*placed)
    return [
        len(dims) < most and (each.pooled or any(_is_constant(each.tensor, dim - result.ndim) for dim in spread - dims))
        for each, dims in zip(operands, placed, strict=True)
    ]


def _dims(field: Field, operand: Operand) -> set[int]:
    """Return the dimensions of the result that have an operand's positions."""
    axes = [moved(axis, operand) for axis in field.axes]
    return {axis.dim for axis in axes if axis.dim is not None and axis.is_spread}


def _is_constant(tensor: Tensor, dim: int) -> bool:
    """Return True if a tensor is the same along a dimension, counted from the last one: of length 1, or expanded."""
    return -dim > tensor.ndim or tensor.shape[dim] == 1 or tensor.stride(dim) == 0
