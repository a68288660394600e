"""Leave a training as it was: random generators, buffers, autocast, threads."""

from __future__ import annotations

import random
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn


@contextmanager
def training_undisturbed(network: nn.Module) -> Iterator[None]:
    """Restore buffers and the random generators of Python, NumPy and PyTorch at the end.

    Autocast and inference mode are off meanwhile. Training flags, gradients and hooks are restored by what draws, see
    `fmapviz.observe.hooks.observe`.

    Example:
        >>> with training_undisturbed(torch.nn.Identity()):
        ...     first = random.random(), torch.rand(1)
        >>> first == (random.random(), torch.rand(1))
        True
    """
    states = random.getstate(), np.random.get_state()  # noqa: NPY002  the generator that others use
    torch_state = torch.get_rng_state()
    used = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda_states = torch.cuda.get_rng_state_all() if used else []
    buffers = [(values, _version_of(values), values.detach().clone()) for values in network.buffers()]
    kinds = {values.device.type for values in (*network.parameters(), *network.buffers())} | {"cpu"}
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(mode=False))  # in which there are no gradients
        for kind in sorted(kinds - {"meta"}):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002
            torch.set_rng_state(torch_state)
            if cuda_states:
                torch.cuda.set_rng_state_all(cuda_states)
            with torch.no_grad():
                for values, version, before in buffers:
                    if _version_of(values) != version:
                        values.copy_(before)


def _version_of(values: Tensor) -> int:
    """Return the number of changes to a tensor; of one made in inference mode, which does not count them, 0."""
    return 0 if values.is_inference() else values._version
