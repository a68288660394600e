"""Map memory to values: all tensors in the same memory share one."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from torch.multiprocessing.reductions import StorageWeakRef

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

T = TypeVar("T")


class MemoryTable(Generic[T]):
    """Keeps one value for each memory that lives; all tensors in it have the same.

    A weak reference keeps an address from being reused while it has a value. Those of freed memory are released soon, or the
    allocator would hardly find room between them.

    Example:
        >>> import torch
        >>> table, whole = MemoryTable[list[str]](), torch.zeros(4)
        >>> table.setdefault(whole, list).append("seen")
        >>> table.get(whole[1:]), table.get(torch.zeros(4))
        (['seen'], None)
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[StorageWeakRef, T]] = {}
        self._most = 1  # addresses, so that most of them live

    def get(self, tensor: Tensor) -> T | None:
        """Return the value of a tensor's memory; None if there is none, or no storage, as of a sparse tensor."""
        found = self._known.get(address_of(tensor))
        return found[1] if found else None

    def setdefault(self, tensor: Tensor, make: Callable[[], T]) -> T:
        """Return the value of a tensor's memory, which is created if it is missing.

        Raises:
            RuntimeError: The tensor has no storage; or a `NotImplementedError`.
        """
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:
            self._forget_freed()
            self._known[storage._cdata] = StorageWeakRef(storage), make()  # type: ignore[no-untyped-call]  # PyTorch's
        return self._known[storage._cdata][1]

    def _forget_freed(self) -> None:
        if len(self._known) >= self._most:
            self._known = {address: entry for address, entry in self._known.items() if not entry[0].expired()}  # type: ignore[no-untyped-call]
            self._most = len(self._known) * 5 // 4 + 1


def address_of(tensor: Tensor) -> int:
    """Return the address of a tensor's storage; 0 if it has none."""
    with suppress(RuntimeError, NotImplementedError):
        return int(tensor.untyped_storage()._cdata)
    return 0
