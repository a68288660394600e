"""The fields of parts of a tensor's channels, for a concatenation that is taken apart again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fmapviz.observe.fields.intervals import ChannelPart, Field, moved, unite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fmapviz.observe.operators.call import Call, Operand, Place

    Fields = Mapping[int, Field]  # by the identity of the operand


def taken_field(operand: Operand, field: Field) -> Field:
    """Return the field of those channels of an operand that are in the result."""
    place = _place(operand, field)
    if place is None or place.index is None:
        return field
    chosen = [part.field for part in field.parts if ((place.index >= part.start) & (place.index < part.stop)).any()]
    return _unite_fields(chosen) if chosen else field


def parts_of_result(call: Call, operands: Sequence[Operand], known: Fields) -> tuple[ChannelPart, ...]:
    """Return the parts of a result: those of its only operand, or the concatenated ones."""
    if "tensors" in call.given and "dim" in call.given:
        return _concatenated(call, operands, known)
    if len(operands) != 1:
        return ()
    field = known[id(operands[0].tensor)]
    place = _place(operands[0], field)
    if place is None or place.index is not None or place.mixed or place.united or place.dim is None:
        return ()
    return tuple(replace(part, dim=place.dim, field=_moved(part.field, operands[0])) for part in field.parts)


def _concatenated(call: Call, operands: Sequence[Operand], known: Fields) -> tuple[ChannelPart, ...]:
    tensors: Sequence[Any] = call.given["tensors"]  # Any: tensors, but the type of arguments is not known
    dim, start, parts = call.given["dim"] % call.result.ndim, 0, []
    by_tensor = {id(each.tensor): each for each in operands}
    for tensor in tensors:
        stop = start + (tensor.shape[dim] if tensor.ndim == call.result.ndim else 1)
        if field := known.get(id(tensor)):
            parts.append(ChannelPart(dim, start, stop, _moved(replace(field, parts=()), by_tensor[id(tensor)])))
        start = stop
    on_axis = any(axis.dim == dim for part in parts for axis in part.field.axes)
    return () if on_axis or any(part.field.reason for part in parts) else tuple(parts)


def _place(operand: Operand, field: Field) -> Place | None:
    """Return where the dimension of the parts is in the result; None if it is mixed with others, or there are no parts."""
    return operand.places[field.parts[0].dim] if field.parts and operand.places and not operand.change else None


def _moved(field: Field, operand: Operand) -> Field:
    ungated = _moved(field.ungated, operand) if field.ungated else None
    return Field(moved(field.rows, operand), moved(field.columns, operand), field.reason, ungated)


def _unite_fields(fields: Sequence[Field]) -> Field:
    ungated = _unite_fields([field.without_gates for field in fields]) if any(field.ungated for field in fields) else None
    rows, columns = (unite(axes) for axes in zip(*(field.axes for field in fields), strict=True))
    return Field(rows, columns, next((field.reason for field in fields if field.reason), ""), ungated)
