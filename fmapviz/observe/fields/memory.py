"""The fields of tensors, also of those that share memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from fmapviz.observe.fields.regions import write_part
from fmapviz.observe.memory_table import MemoryTable

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.observe.fields.intervals import Field


@dataclass(slots=True, eq=False)
class _Shared:
    """The tensors of a memory that depend on the picture, and the operator that has overwritten a part of it."""

    tensors: list[TensorWeakRef] = field(default_factory=list)
    reason: str = "aten.alias"


class FieldMemory:
    """The fields of tensors, which are not kept alive."""

    def __init__(self) -> None:
        self._fields: Any = WeakTensorKeyDictionary()  # Any: it has no types
        self._shared = MemoryTable[_Shared]()

    def get(self, tensor: Tensor) -> Field | str | None:
        """Return a tensor's field, None if it does not depend on the picture, or why it is the whole picture."""
        field: Field | None = self._fields.get(tensor)
        if field is not None:
            return field
        aliases = self._aliases_of(tensor)
        for alias in aliases:
            if _geometry(alias) == _geometry(tensor):
                return cast("Field", self._fields[alias])
        shared = self._shared.get(tensor)
        return shared.reason if aliases and shared else None

    def set(self, tensor: Tensor, field: Field) -> None:
        """Record the field of a tensor."""
        self._fields[tensor] = field
        if tensor.layout is torch.strided:
            self._shared.setdefault(tensor, _Shared).tensors.append(TensorWeakRef(tensor))

    def overwrite(self, tensor: Tensor, field: Field, *, other: Field) -> None:
        """Record what was written into a tensor, whose memory others may share.

        Args:
            other: What these get if their new fields are not known.
        """
        before = self.get(tensor)
        if before is not None and not isinstance(before, str) and _is_equal(before, field):
            return
        base = tensor._base
        base_before = None if base is None else self.get(base)
        self.set(tensor, field)
        if shared := self._shared.get(tensor):
            shared.reason = other.reason
        for alias in self._aliases_of(tensor):
            self._fields[alias] = field if _geometry(alias) == _geometry(tensor) else other
        if base is not None and not isinstance(base_before, str) and _geometry(base) != _geometry(tensor):
            self.set(base, write_part(base, tensor, before=base_before, written=field) or other)

    def _aliases_of(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors in the same memory that depend on the picture."""
        shared = self._shared.get(tensor)
        return [alias for reference in shared.tensors if (alias := reference()) is not None] if shared else []


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
