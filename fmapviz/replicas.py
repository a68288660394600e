"""Let several threads run one network at once: copies of its modules that share its numbers."""

from __future__ import annotations

import copy
from itertools import chain
from types import FunctionType, MethodType

import torch
from torch import nn


def replicate(network: nn.Module) -> nn.Module | None:
    """Copy a network's modules and whatever they keep from one call to the next, but not its parameters and buffers.

    Returns:
        None where a copy might not do what the original does, or somebody might see that it is a copy that runs: in scripted
        code; where others have hung hooks into a module or replaced one of its methods, since a function that remembers a
        module goes on with that module and not with its copy; where a module holds what cannot be copied.

    Example:
        >>> network = nn.Linear(2, 3)
        >>> copied = replicate(network)
        >>> copied is not network, copied.weight is network.weight
        (True, True)
    """
    if any(_is_tampered_with(module) for module in network.modules()):
        return None
    shared = {id(values): values for values in chain(network.parameters(), network.buffers())}
    try:
        return copy.deepcopy(network, dict[int, object](shared))
    except Exception:  # noqa: BLE001  a lock, an open file, a tensor with a history: whatever a module may hold
        return None


def _is_tampered_with(module: nn.Module) -> bool:
    return (
        isinstance(module, torch.jit.ScriptModule)
        or bool(module._forward_hooks or module._forward_pre_hooks)
        or any(_remembers(value) for value in vars(module).values())
    )


def _remembers(value: object) -> bool:
    return isinstance(value, MethodType) or (isinstance(value, FunctionType) and bool(value.__closure__))
