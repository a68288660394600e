"""Find in which order the weights of a network are used in a pass."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import nn


@contextmanager
def noting_weights(network: nn.Module, order: dict[str, None]) -> Iterator[None]:
    """Note the names of modules with weights of their own, in the order in which these are used last.

    The end of a module's forward is that order only if it has no modules in it: a vision transformer whose class token and
    position embedding are its own parameters ends after its head.

    Args:
        network: The network, which runs in eager mode within the block.
        order: The names are its keys.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> network, order = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), {}
        >>> with noting_weights(network, order):
        ...     _ = network(torch.zeros(1, 2))
        >>> list(order)
        ['0', '1']
    """
    weighted = {name: module for name, module in network.named_modules() if _weights_of(module)}
    owners = {id(weight): name for name, module in weighted.items() for weight in _weights_of(module)}

    def note(name: str) -> None:
        order.pop(name, None)
        order[name] = None

    def hook_for(name: str) -> Callable[..., None]:  # knows which of two modules uses a weight that they share
        return lambda *_of_hook: note(name)

    leaves = {name: module for name, module in weighted.items() if not any(True for _ in module.children())}
    handles = [module.register_forward_hook(hook_for(name)) for name, module in leaves.items()]
    try:
        with _Uses(owners, note):
            yield
    finally:
        for handle in handles:
            handle.remove()


def _weights_of(module: nn.Module) -> list[nn.Parameter]:
    own = module._parameters.values()
    return [each for each in own if each is not None and each.ndim > 1 and each.is_floating_point()]


class _Uses(TorchFunctionMode):
    """Notes which parameters functions of torch are called with."""

    def __init__(self, owners: Mapping[int, str], note: Callable[[str], None]) -> None:
        super().__init__()
        self._owners, self._note = owners, note

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        for each in (*args, *named.values()):
            for one in each if isinstance(each, list | tuple) else (each,):
                if (name := self._owners.get(id(one))) is not None:  # the network itself is ""
                    self._note(name)
        return func(*args, **named)
