"""Replace the slowest operators of a forward pass of which only the shapes matter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

_PRODUCTS = {"aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default"}


def without_numbers(func: Any, given: Mapping[str, Any]) -> Tensor | None:
    """Return zeros in the shape of the result of a convolution or a matrix product; None for other operators.

    Args:
        func: An operator of ATen, an `OpOverload`.
        given: Its arguments by name. Of tensors on the meta device, PyTorch finds the shape itself.

    Example:
        >>> given = {"self": torch.ones(4, 3), "mat2": torch.ones(3, 2)}
        >>> without_numbers(torch.ops.aten.mm.default, given)[0]
        tensor([0., 0.])
    """
    name = str(func)
    if name in _PRODUCTS:
        left = next(given[key] for key in ("mat1", "batch1", "self") if key in given)
        right = next(given[key] for key in ("mat2", "batch2") if key in given)
        fits, shape = left.shape[-1] == right.shape[-2], (*left.shape[:-1], right.shape[-1])
    elif name == "aten.convolution.default":
        left, taken = given["input"], given["weight"].shape[0 if given["transposed"] else 1]
        fits, shape = left.shape[1] == taken * (1 if given["transposed"] else given["groups"]), _convolved(given)
    else:
        return None
    fits = fits and min(shape) > 0  # else PyTorch raises the error
    return left.new_zeros(shape) if fits and left.layout is torch.strided and not left.is_meta else None


def _convolved(given: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of a convolution's result, by the formulas in PyTorch's documentation."""
    samples, _, *sides = given["input"].shape
    made, taken, *kernel = given["weight"].shape
    settings = (given[key] for key in ("stride", "padding", "dilation", "output_padding"))
    axes = zip(sides, kernel, *(each * len(sides) if len(each) == 1 else each for each in settings), strict=True)
    if given["transposed"]:
        grown = ((side - 1) * step - 2 * pad + gap * (size - 1) + more + 1 for side, size, step, pad, gap, more in axes)
        return (samples, taken * given["groups"], *grown)
    return (samples, made, *((side + 2 * pad - gap * (size - 1) - 1) // step + 1 for side, size, step, pad, gap, _ in axes))
