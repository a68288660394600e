"""The fields of tensors, also of those that share memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fmapviz.observe.fields.intervals import Field
from fmapviz.observe.fields.regions import write_part
from fmapviz.observe.memory_table import MemoryTable

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True, eq=False)
class _Shared:
    """The fields of the tensors in one memory.

    Attributes:
        fields: Of those that depend on the picture, by geometry.
        reason: The operator that has overwritten a part of it: other tensors are the whole picture.
    """

    fields: dict[object, Field] = field(default_factory=dict)
    reason: str = "aten.alias"


class FieldMemory:
    """The fields of tensors, which are not kept alive."""

    def __init__(self) -> None:
        self._known = MemoryTable[_Shared]()

    def get(self, tensor: Tensor) -> Field | str | None:
        """Return a tensor's field, None if it does not depend on the picture, or why it is the whole picture."""
        shared = self._known.get(tensor)
        return shared.fields.get(_geometry(tensor), shared.reason) if shared else None

    def set(self, tensor: Tensor, field: Field) -> _Shared:
        """Record the field of a tensor, and return the fields in its memory.

        Raises:
            RuntimeError: The tensor has no storage, such as a sparse one; or a `NotImplementedError`.
        """
        shared = self._known.setdefault(tensor, _Shared)
        shared.fields[_geometry(tensor)] = field
        return shared

    def overwrite(self, tensor: Tensor, field: Field, *, other: Field) -> None:
        """Record a write into a tensor, whose memory others may share.

        Args:
            other: The field of these if their new fields are unknown.
        """
        before, base = self.get(tensor), tensor._base
        if isinstance(before, Field) and _is_equal(before, field):
            return
        base_before = None if base is None else self.get(base)
        shared = self.set(tensor, field)
        shared.reason = other.reason
        shared.fields = dict.fromkeys(shared.fields, other) | {_geometry(tensor): field}
        if base is not None and not isinstance(base_before, str) and _geometry(base) != _geometry(tensor):
            self.set(base, write_part(base, tensor, before=base_before, written=field) or other)


def _geometry(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype


def _is_equal(first: Field, second: Field) -> bool:
    if (first.reason, first.ungated is None) != (second.reason, second.ungated is None):
        return False
    same = all(
        one.place == other.place and np.array_equal(one.ends, other.ends)
        for one, other in zip(first.axes, second.axes, strict=True)
    )
    return same and (first.ungated is None or second.ungated is None or _is_equal(first.ungated, second.ungated))
