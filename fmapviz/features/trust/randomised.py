"""Replace the weights of a network by random ones, so that it knows nothing, and put them back."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    import numpy as np


@contextmanager
def randomised(network: nn.Module, numbers: np.random.Generator, *, only: Collection[str] = ()) -> Iterator[None]:
    """Replace the parameters of a network within the block.

    Each new one is normal, with the mean and the standard deviation of the old one, so that the network computes values of
    the usual size; one whose values are all equal stays. The old parameters are not written to: modules refer to others
    meanwhile, also to the same in two places, and get their own back, also after an exception. So copies of the network in
    other threads, which share them, are not disturbed.

    Args:
        network: The network, in one thread.
        numbers: Random numbers.
        only: Names of the modules whose own parameters are replaced; empty: all.

    Example:
        >>> import numpy as np
        >>> network, image = nn.Linear(8, 1), torch.ones(8)
        >>> before = network(image).item()
        >>> with randomised(network, np.random.default_rng(0)):
        ...     drawn = network(image).item()
        >>> drawn == before, network(image).item() == before
        (False, True)
    """
    with replaced(network, lambda parameter: _draw(parameter, numbers), only=only):
        yield


@contextmanager
def replaced(
    network: nn.Module, make: Callable[[nn.Parameter], nn.Parameter], *, only: Collection[str] = ()
) -> Iterator[None]:
    """Replace the parameters of floating point within the block, each by what `make` returns for it; see `randomised`."""
    old: list[tuple[nn.Module, str, nn.Parameter]] = []
    new: dict[int, nn.Parameter] = {}
    try:
        for name, module in network.named_modules():
            if only and name not in only:
                continue
            for key, parameter in list(module._parameters.items()):
                if parameter is None or not parameter.is_floating_point():
                    continue
                if id(parameter) not in new:
                    new[id(parameter)] = make(parameter)
                old.append((module, key, parameter))
                setattr(module, key, new[id(parameter)])
        yield
    finally:
        for module, key, parameter in reversed(old):
            setattr(module, key, parameter)


def _draw(parameter: nn.Parameter, numbers: np.random.Generator) -> nn.Parameter:
    values = parameter.detach()
    if not values.numel():
        return parameter
    deviation, mean = (float(each) for each in torch.std_mean(values.double(), correction=0))
    if not deviation:
        return parameter
    normal = torch.from_numpy(numbers.standard_normal(tuple(values.shape), dtype="float32"))
    return nn.Parameter((mean + deviation * normal).to(values), requires_grad=False)
