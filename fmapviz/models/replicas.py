"""Copy a network for each thread; the copies share its parameters and buffers."""

from __future__ import annotations

import copy
import gc
from itertools import chain
from types import FunctionType, MethodType, ModuleType

import torch
from torch import nn


def replicate(network: nn.Module) -> nn.Module | None:
    """Copy a network's modules and their state, but not its parameters and buffers.

    Returns:
        None if the copy might behave differently, or a user could observe that a copy runs: the network is scripted; a
        module has hooks or a replaced method, or cannot be copied; or the copy still refers to a module of the original, for
        instance through a closure.

    Example:
        >>> network = nn.Linear(2, 3)
        >>> copied = replicate(network)
        >>> copied is not network, copied.weight is network.weight
        (True, True)
    """
    if is_modified(network):
        return None
    shared = {id(values): values for values in chain(network.parameters(), network.buffers())}
    try:
        copied = copy.deepcopy(network, dict[int, object](shared))
    except Exception:  # noqa: BLE001  a module may hold a lock, an open file, a tensor with a history
        return None
    return None if _leads_to(copied, {id(module) for module in network.modules()}) else copied


def is_modified(network: nn.Module) -> bool:
    """Return True if a network is scripted, or a module of it has hooks or a replaced method."""
    return any(
        isinstance(module, torch.jit.ScriptModule)
        or bool(module._forward_hooks or module._forward_pre_hooks)
        or any(map(_is_bound, vars(module).values()))
        for module in network.modules()
    )


def _is_bound(value: object) -> bool:
    """Return True for a method of an object or a function with variables of its own; class methods are shared by copies."""
    if isinstance(value, MethodType):
        return not isinstance(value.__self__, type)
    return isinstance(value, FunctionType) and bool(value.__closure__)


def _leads_to(start: object, forbidden: set[int]) -> bool:
    """Return True if an object refers to one of the ids, directly or not, other than by classes, modules and globals."""
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
