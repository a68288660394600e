"""Find out whether a tensor holds values that can be read where a layer returns it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_PLAIN = {Tensor, nn.Parameter}
_plain_dispatch = Tensor.__torch_dispatch__  # of a subclass with its own values


def why_unreadable(values: Tensor) -> str:
    """Return why the values of a tensor cannot be read as an array; empty if they can.

    Example:
        >>> why_unreadable(torch.ones(2)), why_unreadable(torch.ones(2).to_sparse())
        ('', 'a sparse tensor')
    """
    kind = type(values)
    if kind not in _PLAIN and kind.__torch_dispatch__ is not _plain_dispatch:  # FakeTensor, DTensor, NestedTensor, ...
        return "a nested tensor" if values.is_nested else f"a tensor of type {kind.__name__}, which has no plain values"
    if is_transformed(values):
        return "it runs inside a transform of torch.func, such as torch.vmap"
    if values.is_nested:
        return "a nested tensor"
    if values.layout is not torch.strided:
        return "a sparse tensor" if "sparse" in str(values.layout) else f"a tensor of the layout {values.layout}"
    return ""


def is_transformed(values: Tensor) -> bool:
    """Return True within `torch.vmap`, `torch.func.grad` and the like: the tensor stands for others, and ends with them."""
    wrapped: bool = torch._C._functorch.is_functorch_wrapped_tensor(values)
    return wrapped
