"""Compute pointwise convolutions in a single thread as PyTorch does in several: with oneDNN."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

_FEW = 20480  # values of a single image for which PyTorch never takes oneDNN


@contextmanager
def with_onednn(network: nn.Module) -> Iterator[None]:
    """Make a network's pointwise convolutions independent of the number of threads.

    In a single thread PyTorch does not use oneDNN for convolutions of 1 x 1 pixel (`use_mkldnn` in
    `aten/src/ATen/native/Convolution.cpp`). The other library rounds otherwise, so that the feature maps would not be those
    of the user's own forward pass; and on an AMD EPYC ResNet-50 takes 1.4 times as long with it. (Of a padded one, oneDNN
    itself rounds by the number of threads on processors without AVX-512.)

    Modules with a method of their own in place of `nn.Conv2d`'s are left alone. At the end the network is as before.
    """
    pointwise = [module for module in network.modules() if isinstance(module, nn.Conv2d) and _is_pointwise(module)]
    changed = pointwise if torch.backends.mkldnn.is_available() else []  # type: ignore[no-untyped-call]
    try:
        for module in changed:
            vars(module)["_conv_forward"] = _convolve_with(module)
        yield
    finally:
        for module in changed:
            vars(module).pop("_conv_forward", None)


def _is_pointwise(module: nn.Conv2d) -> bool:
    own = type(module)
    return (
        (own.forward, own._conv_forward) == (nn.Conv2d.forward, nn.Conv2d._conv_forward)
        and not vars(module).keys() & {"forward", "_conv_forward"}
        and (module.kernel_size, module.stride, module.padding_mode) == ((1, 1), (1, 1), "zeros")
    )


def _convolve_with(module: nn.Conv2d) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    # Both `padding="same"` and `padding="valid"` are no padding for a kernel of one pixel.
    padding = (0, 0) if isinstance(module.padding, str) else module.padding

    def convolve(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        convolved: Tensor
        if (
            values.dtype is weight.dtype is torch.float32
            and values.is_cpu
            and values.ndim == 4
            and values.numel() > _FEW * len(values)
            and torch.get_num_threads() == 1
            and not torch.is_autocast_enabled("cpu")
        ):
            convolved = torch.mkldnn_convolution(
                values, weight, bias, padding, module.stride, module.dilation, module.groups
            )
        else:
            convolved = nn.Conv2d._conv_forward(module, values, weight, bias)
        return convolved

    return convolve
