"""Seed random numbers for each image by its name, so that neither order nor threads change them."""

from __future__ import annotations

import random
import zlib
from contextlib import contextmanager
from threading import Condition
from typing import TYPE_CHECKING

import numpy as np
import torch

from fmapviz.observe.hooks import Numbers, undisturbed

if TYPE_CHECKING:
    from collections.abc import Iterator

_CPU = torch.device("cpu")


def python_states() -> object:
    """Return the states of the generators of Python and NumPy, which are equal until numbers are drawn."""
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002  not to draw from it
    return random.getstate(), (kind, np.asarray(keys).tobytes(), *rest)


@contextmanager
def all_undisturbed(device: torch.device = _CPU) -> Iterator[Numbers]:
    """Restore the generators of PyTorch, NumPy and Python at the end, if numbers were drawn.

    Example:
        >>> with all_undisturbed() as numbers:
        ...     first = random.random(), torch.rand(1)
        >>> first == (random.random(), torch.rand(1)), numbers.drawn
        (True, True)
    """
    numpy_state, python_state, before = np.random.get_state(), random.getstate(), python_states()  # noqa: NPY002
    numbers = Numbers()
    try:
        with undisturbed(device) as of_torch:
            yield numbers
    finally:
        moved = before != python_states()
        numbers.drawn = of_torch.drawn or moved
        if moved:  # other threads may compare the states: they change only if they have to
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


@contextmanager
def seeded_by(name: str, device: torch.device = _CPU) -> Iterator[Numbers]:
    """Seed the generators of PyTorch, NumPy and Python by a name, and restore them at the end.

    Example:
        >>> with seeded_by("photo.jpg"):
        ...     first = torch.rand(1)
        >>> with seeded_by("photo.jpg") as numbers:
        ...     second = torch.rand(1)
        >>> torch.equal(first, second), numbers.drawn
        (True, True)
    """
    seed = zlib.crc32(name.encode("utf-8", "surrogatepass"))
    with all_undisturbed(device):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        with all_undisturbed(device) as numbers:
            yield numbers


class Gate:
    """Lets any number of threads pass together, or one alone: the generators belong to the process."""

    def __init__(self) -> None:
        self._free = Condition()
        self._inside = 0
        self._is_alone = False

    @contextmanager
    def together(self) -> Iterator[None]:
        """Enter with others; wait while one is alone."""
        with self._free:
            self._free.wait_for(lambda: not self._is_alone)
            self._inside += 1
        try:
            yield
        finally:
            with self._free:
                self._inside -= 1
                self._free.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Enter alone; wait for those that are inside."""
        with self._free:
            self._free.wait_for(lambda: not self._is_alone)
            self._is_alone = True
            self._free.wait_for(lambda: not self._inside)
        try:
            yield
        finally:
            with self._free:
                self._is_alone = False
                self._free.notify_all()


gate = Gate()
