"""Receptive fields, compared with what changes when a row or column of the input does."""

import numpy as np
import pytest
import torch
from cases import thorough
from perturbation import check, measure, smooth
from torch import nn
from torch.nn import functional as F
from torchvision import models

from fmapviz.inspection.layers import find_layers
from fmapviz.inspection.receptive_field import trace_fields

SIZE = (13, 18)


def trace(network, size=SIZE, *, channels=3):
    pixels = torch.zeros(1, channels, *size, dtype=torch.float64, device=next(network.parameters()).device)
    return trace_fields(network, find_layers(network), pixels, forward=lambda net, x: net(x))


def differences(network, size=SIZE):
    """Compare the field of each of a network's own parts with what is measured; return how many are exact, and what differs."""
    network = smooth(network)
    fields = {name: field for name, field in trace(network, size).items() if "." not in name}
    measured = measure(network, [layer for layer in find_layers(network) if "." not in layer.name], size)
    exact = {name: field for name, field in fields.items() if not field.reason}
    return len(exact), [line for name, field in exact.items() for line in check(field, measured[name])]


class Apply(nn.Module):
    """A module of one function, so that what it returns is a layer."""

    def __init__(self, function, *modules):
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(modules)

    def forward(self, *values):
        return self.function(*values, *self.parts)


def between(function, *modules, out=4):
    """A network with an operator after a convolution of stride 2, and before one that pads."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1), Apply(function, *modules), nn.Conv2d(out, 2, 3, padding=1)
    )


def conv(inputs=4, outputs=4, kernel=3, **options):
    return nn.Conv2d(inputs, outputs, kernel, **options)


OPERATORS = {
    # convolution
    "dilated and padded": lambda: between(lambda x, c: c(x), conv(dilation=3, padding=3)),
    "one side": lambda: between(lambda x, c: c(x), conv(kernel=(1, 5), padding=(0, 2), stride=(2, 1))),
    "even kernel": lambda: between(lambda x, c: c(x), conv(kernel=4, padding=2)),
    "much padding": lambda: between(lambda x, c: c(x), conv(kernel=1, padding=3)),
    "same": lambda: between(lambda x, c: c(x), conv(kernel=5, padding="same")),
    "stride beyond kernel": lambda: between(lambda x, c: c(x), conv(kernel=1, stride=3)),
    "depthwise": lambda: between(lambda x, c: c(x), conv(groups=4)),
    "circular": lambda: between(lambda x, c: c(x), conv(padding=1, padding_mode="circular")),
    "reflect": lambda: between(lambda x, c: c(x), conv(padding=2, padding_mode="reflect")),
    "replicate": lambda: between(lambda x, c: c(x), conv(padding=2, padding_mode="replicate")),
    "transposed": lambda: between(lambda x, c: c(x), nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1, output_padding=1)),
    "transposed, dilated": lambda: between(lambda x, c: c(x), nn.ConvTranspose2d(4, 4, 3, stride=3, dilation=2)),
    "transposed, with gaps": lambda: between(lambda x, c: c(x), nn.ConvTranspose2d(4, 4, 1, stride=2)),
    "one dimension": lambda: between(lambda x, c: c(x.flatten(0, 1)).unflatten(0, (-1, 4)), nn.Conv1d(7, 7, 3, padding=1)),
    # pooling
    "ceil": lambda: between(lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True)),
    "floor": lambda: between(lambda x: F.avg_pool2d(x, 3, 3)),
    "average without padding": lambda: between(lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)),
    "power": lambda: between(lambda x: F.lp_pool2d(x.exp(), 2, 3, 1)),
    "adaptive": lambda: between(lambda x: F.adaptive_avg_pool2d(x, (3, 4))),
    "adaptive to more": lambda: between(lambda x: F.adaptive_avg_pool2d(x, (11, 9))),
    "adaptive to one": lambda: between(lambda x: F.adaptive_avg_pool2d(x, 1)),
    # interpolation
    "nearest": lambda: between(lambda x: F.interpolate(x, scale_factor=2)),
    "nearest to a size": lambda: between(lambda x: F.interpolate(x, size=(5, 17))),
    "nearest-exact": lambda: between(lambda x: F.interpolate(x, size=(5, 17), mode="nearest-exact")),
    "bilinear": lambda: between(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")),
    "bilinear to less": lambda: between(lambda x: F.interpolate(x, size=(3, 4), mode="bilinear")),
    "bilinear by a factor": lambda: between(lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear")),
    "bilinear, corners": lambda: between(lambda x: F.interpolate(x, size=(13, 10), mode="bilinear", align_corners=True)),
    "bicubic": lambda: between(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic")),
    "bicubic, corners": lambda: between(lambda x: F.interpolate(x, size=(9, 12), mode="bicubic", align_corners=True)),
    # padding, cutting and moving
    "constant": lambda: between(lambda x: F.pad(x, (1, 2, 0, 3), value=2)),
    "negative padding": lambda: between(lambda x: F.pad(x, (-1, 2, -2, 0))),
    "crop": lambda: between(lambda x: x[..., 2:6, 1:8]),
    "every other": lambda: between(lambda x: x[..., ::2, 1::3]),
    "narrow": lambda: between(lambda x: x.narrow(2, 3, 3)),
    "one row": lambda: between(lambda x: x[:, :, 3:4]),
    "chosen row": lambda: between(lambda x: x[:, :, 3].unsqueeze(2)),
    "roll": lambda: between(lambda x: x.roll((2, -3), (2, 3))),
    "flip": lambda: between(lambda x: x.flip(3)),
    "repeat": lambda: between(lambda x: x.repeat(1, 1, 2, 1)),
    "chunks": lambda: between(lambda x: torch.cat(x.chunk(3, dim=2)[::-1], dim=2)),
    "halves": lambda: between(lambda x: torch.cat([x[..., :4], x[..., 5:]], dim=3)),
    "parts of a size": lambda: between(lambda x: x.split([2, 5], dim=2)[1]),
    "rows one by one": lambda: between(lambda x: torch.stack(x.unbind(2)[::-1], 2)),
    "written into a part": lambda: between(lambda x: write(x)),
    "transposed and back": lambda: between(lambda x: F.avg_pool2d(x.transpose(2, 3), (1, 2)).transpose(2, 3)),
    # channels
    "channels last": lambda: between(lambda x, m: m(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), nn.Linear(4, 4)),
    "layer norm": lambda: between(lambda x, m: m(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), nn.LayerNorm(4)),
    "batch norm": lambda: between(lambda x, m: m(x), nn.BatchNorm2d(4)),
    "tokens": lambda: between(lambda x, m: m(x.flatten(2).mT).mT.unflatten(2, x.shape[2:]), nn.Linear(4, 4)),
    "product of channels": lambda: between(lambda x: torch.einsum("nchw,dc->ndhw", x, weights(4, 4))),
    "matrix product": lambda: between(lambda x: (weights(4, 4) @ x.flatten(2)).unflatten(2, x.shape[2:])),
    "shuffled channels": lambda: between(lambda x: F.channel_shuffle(x, 2)),
    "shuffled by hand": lambda: between(lambda x: x.view(-1, 2, 2, *x.shape[2:]).transpose(1, 2).flatten(1, 2)),
    "pixel shuffle": lambda: between(lambda x: F.pixel_shuffle(x, 2), out=1),
    "pixel unshuffle": lambda: between(lambda x: F.pixel_unshuffle(x[..., :6, :8], 2), out=16),
    "gated linear unit": lambda: between(lambda x: F.glu(x, 1), out=2),
    "local response": lambda: between(lambda x: F.local_response_norm(x, 3)),
    "unit length": lambda: between(lambda x: F.normalize(x)),
    "root mean square": lambda: between(lambda x: F.rms_norm(x.permute(0, 2, 3, 1), (4,)).permute(0, 3, 1, 2)),
    "maximum of channels": lambda: between(lambda x: torch.cat([x.logsumexp(1, keepdim=True), x.mean(1, True)], 1), out=2),
    # functions without modules
    "functions": lambda: between(lambda x: F.avg_pool2d(F.softplus(F.conv2d(x, weights(4, 4, 3, 3))), 2)),
    "in place": lambda: between(lambda x: F.silu(x, inplace=True).mul_(2)),
    "sums in place": lambda: between(lambda x, c: x.add_(c(x)), conv(padding=1)),
    "in place through a view": lambda: between(lambda x: x.view(-1, *x.shape[2:]).tanh_().view(x.shape)),
    "misaligned paths": lambda: between(lambda x: x[..., 1:, 1:] + x[..., :-1, :-1]),
    "rows to the mean": lambda: between(lambda x: x.mean(2, keepdim=True) + x),
    "an outer sum": lambda: between(lambda x: x.mean(2, keepdim=True) + x.mean(3, keepdim=True)),
    "expanded": lambda: between(lambda x: x.mean((2, 3), keepdim=True).expand_as(x) * x),
    "constants": lambda: between(lambda x: x + torch.zeros_like(x).fill_(3) * torch.arange(x.shape[3], device=x.device)),
    "where": lambda: between(lambda x: torch.where(x > 100, 2 * x, x)),
}


def weights(*shape):
    """Numbers that a network has without a parameter."""
    return torch.linspace(0.3, 1.7, int(np.prod(shape)), dtype=torch.float64).view(shape)


def write(x):
    canvas = x.new_zeros(x.shape[0], x.shape[1], x.shape[2] + 3, x.shape[3] + 2)
    canvas[:, :, 2:-1, :-2] = x
    return canvas


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_followed_exactly(name):
    exact, wrong = differences(OPERATORS[name]())
    assert wrong == []
    assert exact == 3
