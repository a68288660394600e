"""Find out what a network takes: how many channels, and which type of numbers."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from fmapviz.hooks import observe

_SIDE = 224  # pixels; whatever most networks take


def input_channels(network: nn.Module) -> int:
    """Give the number of channels of a network's input: 3 unless its first convolution says otherwise.

    The first that is defined need not be the first that runs. So a number other than 3 is tried on the meta device, where
    nothing is computed; if the network only takes 3, it is 3.

    Example:
        >>> input_channels(nn.Sequential(nn.Conv2d(1, 8, 3)))
        1
    """
    kinds = (nn.Conv2d, nn.Conv3d)
    first = next((module.in_channels for module in network.modules() if isinstance(module, kinds)), 3)
    return 3 if first == 3 or (not _takes(network, first) and _takes(network, 3)) else first


def _takes(network: nn.Module, channels: int) -> bool:
    numbers = {name: values.to("meta") for name, values in (*network.named_parameters(), *network.named_buffers())}
    batch = torch.empty(1, channels, _SIDE, _SIDE, device="meta", dtype=input_type(network))
    with warnings.catch_warnings(), observe(network, [], lambda _: None), torch.no_grad():
        warnings.simplefilter("ignore")  # of meta kernels
        try:
            torch.func.functional_call(network, numbers, (batch,))
        except (Exception, SystemExit):  # noqa: BLE001  whatever a foreign forward pass raises
            return False
    return True


def input_type(network: nn.Module) -> torch.dtype:
    """Give the type of the numbers that a network computes with, and is given.

    Example:
        >>> input_type(nn.Conv2d(3, 4, 3).half())
        torch.float16
    """
    floating = (values.dtype for values in network.parameters() if values.is_floating_point())
    return next(floating, torch.float32)
