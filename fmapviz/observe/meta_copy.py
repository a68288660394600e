"""Copy a network: to the meta device, where it has shapes but no numbers, or with tensors of its own."""

from __future__ import annotations

from copy import deepcopy
from threading import Lock, RLock
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable


_LOCKS = (type(Lock()), type(RLock()))


def copy_to_meta(network: nn.Module, *, hooks: bool = True) -> nn.Module:
    """Copy a network's modules; its parameters and other tensors have no values and take no memory.

    Args:
        network: Not changed.
        hooks: Whether the copy has the network's hooks.

    Raises:
        Exception: The network has an attribute that cannot be copied.

    Example:
        >>> net = nn.Linear(3, 2)
        >>> copy_to_meta(net).weight.device.type, net.weight.device.type
        ('meta', 'cpu')
    """
    return copy_with(network, lambda values: torch.empty_like(values, device="meta"), left_out="" if hooks else "hooks")


def copy_with(network: nn.Module, convert: Callable[[Tensor], Tensor], *, left_out: str = "") -> nn.Module:
    """Copy a network's modules, also parametrized ones, with other tensors.

    Args:
        network: Not changed.
        convert: Returns the tensor that the copy has, from one outside the graph.
        left_out: Hooks whose name contains this are not copied: what they refer to may be large. Empty: all are. An
            attribute of such a name that is True, as transformers sets when it has added its own, is False in the copy.

    Raises:
        Exception: The network has an attribute that cannot be copied.
    """
    held = [each for module in network.modules() for each in vars(module).items()]
    tensors = [*network.parameters(), *network.buffers(), *(value for _, value in held if isinstance(value, Tensor))]
    known: dict[int, object] = {id(values): _converted(values, convert) for values in tensors}
    known |= {id(value): value for _, value in held if isinstance(value, _LOCKS)}  # shared: `deepcopy` refuses them
    if left_out:
        known |= {id(hooks): type(hooks)() for name, hooks in held if left_out in name and isinstance(hooks, dict)}
    copied = deepcopy(network, known)
    for module in copied.modules() if left_out else ():
        vars(module).update({name: False for name, value in vars(module).items() if left_out in name and value is True})
    return copied


def _converted(tensor: Tensor, convert: Callable[[Tensor], Tensor]) -> Tensor:
    values = convert(tensor.detach())
    return nn.Parameter(values, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else values
