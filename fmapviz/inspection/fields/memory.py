"""The fields of tensors, also of those that share memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from fmapviz.inspection.fields.regions import write_part

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.inspection.fields.intervals import Field


class FieldMemory:
    """The fields of tensors, which are not kept alive."""

    def __init__(self) -> None:
        self._fields: Any = WeakTensorKeyDictionary()  # Any: it has no types
        # By the address of the memory: a reference that keeps the address from being used again, and the tensors in it.
        self._aliases: dict[int, tuple[Any, list[TensorWeakRef]]] = {}
        self._most = 1  # addresses, so that most of them live
        self._reasons: dict[int, str] = {}  # by the address: the operator that has overwritten a part of it

    def get(self, tensor: Tensor) -> Field | str | None:
        """Return a tensor's field, None if it does not depend on the picture, or why it is the whole picture."""
        field: Field | None = self._fields.get(tensor)
        if field is not None:
            return field
        aliases = self._aliases_of(tensor)
        for alias in aliases:
            if _geometry(alias) == _geometry(tensor):
                return cast("Field", self._fields[alias])
        return self._reasons.get(_address(tensor), "aten.alias") if aliases else None

    def set(self, tensor: Tensor, field: Field) -> None:
        """Record the field of a tensor."""
        self._fields[tensor] = field
        if tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._aliases:
                self._forget_freed()
                self._aliases[storage._cdata] = (StorageWeakRef(storage), [])  # type: ignore[no-untyped-call]  # PyTorch's
            self._aliases[storage._cdata][1].append(TensorWeakRef(tensor))

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
        self._reasons[_address(tensor)] = other.reason
        for alias in self._aliases_of(tensor):
            self._fields[alias] = field if _geometry(alias) == _geometry(tensor) else other
        if base is not None and not isinstance(base_before, str) and _geometry(base) != _geometry(tensor):
            self.set(base, write_part(base, tensor, before=base_before, written=field) or other)

    def _forget_freed(self) -> None:
        """Give up addresses whose memory is freed, or the allocator would hardly find room between them."""
        if len(self._aliases) < self._most:
            return
        for address in [address for address, (storage, _) in self._aliases.items() if storage.expired()]:
            del self._aliases[address]
            self._reasons.pop(address, None)
        self._most = len(self._aliases) * 5 // 4 + 1

    def _aliases_of(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors in the same memory that depend on the picture."""
        if tensor.layout is not torch.strided or not (found := self._aliases.get(_address(tensor))):
            return []
        return [alias for reference in found[1] if (alias := reference()) is not None]


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


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
