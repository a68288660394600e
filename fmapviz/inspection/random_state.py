"""Restore the state of PyTorch's random generators, from several threads at once.

While PyTorch turns a generator's state into a Python object, it holds the generator's lock. If that starts the garbage
collector, which frees a tensor, another thread may run; if it asks for the state too, it waits for the generator while it
holds the interpreter's lock: a deadlock. So only one thread at a time reads the state.
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
    """Use of random numbers.

    Attributes:
        drawn: Whether any were drawn; set at the end.
    """

    drawn: bool = False


@contextmanager
def undisturbed(device: torch.device = _CPU) -> Iterator[Numbers]:
    """Restore the generators of the CPU and of a device at the end.

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
