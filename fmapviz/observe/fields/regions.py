"""The field of a tensor into a part of which something was written."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.observe.fields.intervals import Axis, Field, InseparableError, move, unite
from fmapviz.observe.operators import indices
from fmapviz.observe.operators.call import HOLE, Place

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.observe.operators.call import Indices


def write_part(whole: Tensor, part: Tensor, *, before: Field | None, written: Field) -> Field | None:
    """Return the field of a tensor after a write into a view of it, as `F.pad` does with `mode="circular"`.

    Args:
        whole: The tensor.
        part: A view of it that was made by slicing, selecting and permuting.
        before: The field of the tensor before; None if it did not depend on the picture.
        written: The field of the written values.

    Returns:
        None if the positions do not follow from rows and columns separately.
    """
    try:
        new = _place(whole, part, written)
        ungated = _place(whole, part, written.without_gates) if written.ungated else None
        if before is None:
            return replace(new, ungated=ungated)
        merged = _merge(before, new)
        if ungated is None and before.ungated is None:
            return merged
        return replace(merged, ungated=_merge(before.without_gates, ungated or new))
    except InseparableError:
        return None


def _place(whole: Tensor, part: Tensor, field: Field) -> Field:
    """Return the field of a tensor that holds only the part."""
    if field.reason or field.rows.dim is None or field.columns.dim is None:
        raise InseparableError
    places = _places(whole, part)
    rows, columns = (move(axis, places, part.shape) for axis in field.axes)
    return Field(rows, columns)


def _places(whole: Tensor, part: Tensor) -> list[Place | None]:
    """Return where the dimensions of a view are in the tensor.

    Raises:
        InseparableError: A dimension is not a slice of one of the tensor's.
    """
    strides = sorted(((stride, dim) for dim, stride in enumerate(whole.stride()) if whole.shape[dim] > 1), reverse=True)
    rest, starts = int(part.storage_offset() - whole.storage_offset()), {}
    for stride, dim in strides:
        if stride == 0:
            raise InseparableError
        starts[dim], rest = divmod(rest, stride)
    places: list[Place | None] = []
    for length, distance in zip(part.shape, part.stride(), strict=True):
        dim, stride = next(((dim, stride) for stride, dim in strides if stride <= distance), (-1, 1))
        step, beyond = divmod(distance, stride)
        if dim < 0 or beyond or starts[dim] + (length - 1) * step >= whole.shape[dim]:
            places.append(Place(-1, mixed=True))
        else:
            places.append(Place(dim, _inverse(whole.shape[dim], start=starts[dim], step=step)))
    return places


def _inverse(length: int, *, start: int, step: int) -> Indices:
    """Return the position in a slice of each position of the dimension."""
    before = indices.stretch(length, start=-start)
    return np.where(before % step == 0, before // step, HOLE)


def _merge(before: Field, new: Field) -> Field:
    """Return the field of a tensor that has one field in one part and another one in another part.

    Raises:
        InseparableError: The parts differ in both rows and columns, or overlap.
    """
    pairs = list(zip(before.axes, new.axes, strict=True))
    same, apart = [_is_same(*pair) for pair in pairs], [_is_apart(*pair) for pair in pairs]
    if before.reason or not (all(same) or (same[0] and apart[1]) or (same[1] and apart[0])):
        raise InseparableError
    rows, columns = (unite(map(_without_padding, pair)) for pair in pairs)
    return Field(rows, columns)


def _without_padding(axis: Axis) -> Axis:
    """Return an axis that is not extended to where it has no pixels: there are the other part's."""
    empty = axis.ends[0, 0] > axis.ends[0, 1]
    return replace(axis, ends=np.where(empty, axis.ends[0], axis.ends))


def _is_same(first: Axis, second: Axis) -> bool:
    return first.place == second.place and np.array_equal(first.ends[0], second.ends[0])


def _is_apart(first: Axis, second: Axis) -> bool:
    """Return True if no position has pixels of both."""
    if first.place != second.place:
        return False
    seen = [axis.ends[0, 0] <= axis.ends[0, 1] for axis in (first, second)]
    return not (seen[0] & seen[1]).any()
