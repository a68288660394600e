"""Adapt a network to the number of classes and input channels of its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


def classes_in(own: Mapping[str, Tensor], state: Mapping[str, Tensor], *, usual: int) -> int | None:
    """Return the number of classes of weights, if only that distinguishes them from a network.

    Every tensor whose shape differs must differ in its rows only, in proportion to the number of classes: a detector's head
    has several rows per class and anchor.

    Args:
        own: The state dict of a network that was built for `usual` classes.
        state: The weights, under the same keys.
        usual: The network's number of classes.

    Returns:
        None if the number is the same or cannot be determined.

    Example:
        >>> classes_in({"fc.bias": torch.zeros(1000)}, {"fc.bias": torch.zeros(5)}, usual=1000)
        5
    """
    numbers = set()
    for key, values in own.items():
        if key not in state or state[key].shape == values.shape or key == first_convolution(own, state):
            continue
        if state[key].ndim != values.ndim or state[key].shape[1:] != values.shape[1:]:
            return None
        classes, remainder = divmod(len(state[key]) * usual, len(values))
        numbers.add(None if remainder else classes)
    return numbers.pop() if len(numbers) == 1 else None


def first_convolution(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str | None:
    """Return the key of the convolution with three input channels in a network, but another number in its weights.

    Example:
        >>> first_convolution({"conv1.weight": torch.zeros(64, 3, 7, 7)}, {"conv1.weight": torch.zeros(64, 1, 7, 7)})
        'conv1.weight'
    """
    for key, values in own.items():
        if key in state and values.ndim == 4 and values.shape[1] == 3 and state[key].shape != values.shape:
            rows, _, *kernel = values.shape
            return key if [rows, *kernel] == [*state[key].shape[:1], *state[key].shape[2:]] else None
    return None


def take_channels(module: nn.Module, state: Mapping[str, Tensor]) -> int | None:
    """Give the first convolution as many input channels as its weights have, if no other shape differs.

    Returns:
        The number of channels, with an uninitialized convolution; None if the network is unchanged.
    """
    own = module.state_dict()
    resized = [key for key, values in own.items() if key in state and state[key].shape != values.shape]
    if resized != [first_convolution(own, state)]:
        return None
    layer = module.get_submodule(resized[0].rpartition(".")[0])
    if not isinstance(layer, nn.Conv2d) or layer.groups != 1:
        return None
    layer.in_channels = state[resized[0]].shape[1]
    layer.weight = nn.Parameter(torch.empty(state[resized[0]].shape))
    return layer.in_channels
