"""Copy a network to the meta device, where it has shapes but no numbers."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn


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
    held = [value for module in network.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    tensors = [*network.parameters(), *network.buffers(), *held]
    known: dict[int, object] = {id(tensor): _outline(tensor) for tensor in tensors}
    if not hooks:  # what they refer to may be large
        named = [each for module in network.modules() for each in vars(module).items()]
        known |= {id(held): type(held)() for name, held in named if "hooks" in name and isinstance(held, dict)}
    return deepcopy(network, known)


def _outline(tensor: Tensor) -> Tensor:
    values = torch.empty_like(tensor, device="meta", requires_grad=False)
    return nn.Parameter(values, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else values
