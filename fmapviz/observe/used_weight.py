"""Find the kernels that a convolution really uses: hooks, parametrizations and the forward pass itself may change them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fmapviz.observe.hooks import evaluating, undisturbed
from fmapviz.observe.meta_copy import copy_with
from fmapviz.observe.reshape import NotAMapError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLAIN = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CONVOLUTIONS: set[object] = {
    *(functional.conv1d, functional.conv2d, functional.conv3d, torch.convolution, torch.mkldnn_convolution),
    *(functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d),
}


def used_weight(module: nn.Module, stored: Tensor) -> Tensor:
    """Return the weight that a module convolves with in evaluation mode.

    A plain convolution uses what is stored. Weight and spectral normalisation, pruning and the like compute it in hooks that
    run before the module, and other classes in their forward pass: a copy of the module is called with two small inputs, and
    the weight is taken from the convolution that it calls. Module, input and random numbers stay as they are.

    Args:
        module: Has a `kernel_size`.
        stored: Its attribute `weight`.

    Raises:
        NotAMapError: The weight depends on the input or on random numbers, or it cannot be seen.
    """
    if stored.is_quantized or (not module._forward_pre_hooks and _convolves_plainly(module)):
        return stored
    try:
        with undisturbed(stored.device):
            seen = [_weight_in_call(module, stored, value) for value in (0.5, 2.0)]
    except Exception as error:
        reason = f"its kernels are computed when it runs, and running a copy failed: {type(error).__name__}: {error}"
        raise NotAMapError(reason) from error
    first, second = seen
    if first.shape != second.shape or not torch.equal(first.nan_to_num(), second.nan_to_num()):
        raise NotAMapError("its kernels depend on the input or on random numbers")
    if first.shape != stored.shape:
        raise NotAMapError(f"it convolves with {tuple(first.shape)}, and its weight is {tuple(stored.shape)}")
    return first


def _convolves_plainly(module: nn.Module) -> bool:
    own = type(module)
    if own.__module__.startswith(("torch.ao.", "torchvision.ops.")):
        return True
    if vars(module).keys() & {"forward", "_conv_forward"}:
        return False
    return any(
        own.forward is kind.forward and getattr(own, "_conv_forward", None) is getattr(kind, "_conv_forward", None)
        for kind in _PLAIN
        if issubclass(own, kind)
    )


class _Weights(TorchFunctionMode):
    """Records the weight of each convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    # Any: a function of PyTorch.
    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _CONVOLUTIONS:
            self.seen.append((args[1] if len(args) > 1 else kwargs["weight"]).detach().clone())
        return func(*args, **kwargs)


def _weight_in_call(module: Any, stored: Tensor, value: float) -> Tensor:
    # Any: attributes of a convolution.
    copied = copy_with(module, Tensor.clone, left_out="_forward_hooks")
    sides = tuple(module.kernel_size)
    channels = getattr(module, "in_channels", None) or stored.shape[1] * module.groups
    steps = getattr(module, "dilation", 1)
    steps = steps if isinstance(steps, tuple) else (steps,) * len(sides)
    extent = [(side - 1) * step + 5 for side, step in zip(sides, steps, strict=True)]
    images = torch.full((1, channels, *extent), value, device=stored.device, dtype=stored.dtype)
    with torch.no_grad(), evaluating(copied), _Weights() as weights:
        copied(images)
    if len(weights.seen) != 1:
        raise ValueError(f"it calls {len(weights.seen)} convolutions")
    (used,) = weights.seen
    return cast("Tensor", used)
