"""PyTorch's random numbers: leave their generators as they were, from several threads at once.

While PyTorch makes a Python object of a generator's state it keeps the generator locked. Should that start the garbage
collector, and this free a tensor, another thread goes on in the meantime; if that asks for the state as well, it waits for
the generator with the interpreter locked, and everything stands still for ever. So one thread at a time asks.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

_asking = Lock()
_CPU = torch.device("cpu")


@dataclass
class Numbers:
    """Random numbers.

    Attributes:
        drawn: Whether any were drawn, known at the end.
    """

    drawn: bool = False


@contextmanager
def undisturbed(device: torch.device = _CPU) -> Iterator[Numbers]:
    """Put the generators of the CPU and of a device back to where they were.

    Example:
        >>> with undisturbed() as numbers:
        ...     first = torch.rand(1)
        >>> numbers.drawn, torch.equal(first, torch.rand(1))
        (True, True)
    """
    numbers = Numbers()
    before = _states(device)
    try:
        yield numbers
    finally:
        numbers.drawn = not all(map(torch.equal, before, _states(device)))
        if numbers.drawn:
            _restore(device, *before)


def _states(device: torch.device) -> list[Tensor]:
    with _asking:
        states = [torch.get_rng_state()]
        if device.type == "cuda":
            states.append(torch.cuda.get_rng_state(device))
        return states


def _restore(device: torch.device, of_cpu: Tensor, of_device: Tensor | None = None) -> None:
    with _asking:
        torch.set_rng_state(of_cpu)
        if of_device is not None:
            torch.cuda.set_rng_state(of_device, device)
