"""Let several threads run one network at once: copies of its modules that share its numbers."""

from __future__ import annotations

import copy
import gc
from itertools import chain
from types import FunctionType, MethodType, ModuleType

import torch
from torch import nn


def replicate(network: nn.Module) -> nn.Module | None:
    """Copy a network's modules and whatever they keep from one call to the next, but not its parameters and buffers.

    Returns:
        None where a copy might not do what the original does, or somebody might see that it is a copy that runs: in scripted
        code; where others have hung hooks into a module or replaced one of its methods; where something in the copy still
        leads to a module of the original, as a function does that remembers one; where a module cannot be copied.

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
        copied = copy.deepcopy(network, dict[int, object](shared))
    except Exception:  # noqa: BLE001  a lock, an open file, a tensor with a history: whatever a module may hold
        return None
    return None if _leads_to(copied, {id(module) for module in network.modules()}) else copied


def _is_tampered_with(module: nn.Module) -> bool:
    return (
        isinstance(module, torch.jit.ScriptModule)
        or bool(module._forward_hooks or module._forward_pre_hooks)
        or any(_remembers(value) for value in vars(module).values())
    )


def _leads_to(start: object, forbidden: set[int]) -> bool:
    """Follow everything an object holds, but not what all of Python shares: classes, modules of code, global variables."""
    waiting, seen = [start], set[int]()
    while waiting:
        held = waiting.pop()
        if id(held) in seen or isinstance(held, type | ModuleType | torch.Tensor):
            continue
        if id(held) in forbidden:
            return True
        seen.add(id(held))
        if isinstance(held, FunctionType):
            waiting += [held.__closure__, held.__defaults__, held.__kwdefaults__, vars(held)]
        else:
            waiting += gc.get_referents(held)
    return False


def _remembers(value: object) -> bool:
    return isinstance(value, MethodType) or (isinstance(value, FunctionType) and bool(value.__closure__))
