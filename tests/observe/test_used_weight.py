"""The kernels that are drawn are those that the network convolves with."""

from __future__ import annotations

import threading

import pytest
import torch
from cases import thorough
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

import fmapviz
from fmapviz.observe.reshape import NotAMapError
from fmapviz.views.kernels import weight_of


def stale_weight_norm(layer):
    with pytest.warns(FutureWarning):
        weight_norm(layer)
    layer.weight_g.data.mul_(3)  # as load_state_dict does
    return layer


def stale_pruning(layer):
    prune.l1_unstructured(layer, "weight", amount=0.5)
    layer.weight_orig.data.neg_()
    return layer


def run_once(layer):
    layer(torch.rand(1, 3, 8, 8))
    return layer


class Standardized(nn.Conv2d):
    def forward(self, images):
        weight = (self.weight - self.weight.mean()) / self.weight.std()
        return functional.conv2d(images, weight, self.bias, self.stride, self.padding)


class Locked(Standardized):
    def __init__(self, *args):
        super().__init__(*args)
        self.lock = threading.Lock()

    def forward(self, images):
        with self.lock:
            return super().forward(images)


class Masked(nn.Conv2d):
    def forward(self, images):
        self.weight.data[..., 1:] = 0
        return super().forward(images)


class EqualRate(nn.Conv2d):
    def __init__(self, *args):
        super().__init__(*args)
        self.register_forward_pre_hook(lambda module, _: setattr(module, "scale", 0.25))

    def _conv_forward(self, images, weight, bias):
        return super()._conv_forward(images, weight * self.scale, bias)


BUILDERS = {
    "weight_norm": lambda: stale_weight_norm(nn.Conv2d(3, 4, 3)),
    "spectral_norm": lambda: spectral_norm(nn.Conv2d(3, 4, 3)),
    "pruned": lambda: stale_pruning(nn.Conv2d(3, 4, 3)),
    "standardized": lambda: Standardized(3, 4, 3),
    "locked": lambda: Locked(3, 4, 3),
    "plain": lambda: nn.Conv2d(3, 4, 3),
    "parametrized": lambda: parametrizations.weight_norm(nn.Conv2d(3, 4, 3)),
    "parametrized spectrum": lambda: parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Conv2d(3, 4, 3)),
    "masked": lambda: Masked(3, 4, 3),
    "equal rate": lambda: EqualRate(3, 4, 3),
    "run": lambda: run_once(stale_weight_norm(nn.Conv2d(3, 4, 3))),
    "groups": lambda: stale_pruning(nn.Conv2d(6, 4, 3, groups=2, dilation=2, padding=1)),
}


def kernels_in_use(layer):
    """Return the response to a single lit pixel of each channel, turned around: the kernels."""
    shared = layer.in_channels // layer.groups
    found = []
    for channel in range(shared):
        images = torch.zeros(1, layer.in_channels, 13, 13)
        images[:, channel::shared, 6, 6] = 1
        with torch.no_grad():
            response = layer(images) - layer(torch.zeros_like(images))
        step, middle = layer.dilation[0], 6 + layer.padding[0]
        rows = [middle - side * step for side in range(3)]
        found.append(response[0][:, rows][:, :, rows])
    return torch.stack(found, 1)


@pytest.mark.parametrize("kind", [*list(BUILDERS)[:5], *thorough(*list(BUILDERS)[5:])])
def test_kernels_are_those_that_the_layer_responds_with(kind):
    torch.manual_seed(0)
    layer = BUILDERS[kind]().eval()
    before = {name: values.clone() for name, values in layer.state_dict().items()}
    drawn = weight_of(layer)
    assert all(torch.equal(values, before[name]) for name, values in layer.state_dict().items())
    torch.testing.assert_close(drawn, kernels_in_use(layer), rtol=1e-4, atol=1e-5)


class Dynamic(nn.Conv2d):
    def forward(self, images):
        return functional.conv2d(images, self.weight * images.mean(), self.bias)


class Noisy(nn.Conv2d):
    def forward(self, images):
        return functional.conv2d(images, self.weight + torch.randn_like(self.weight), self.bias)


@pytest.mark.parametrize("kind", [Dynamic, *thorough(Noisy)])
def test_kernels_that_differ_from_call_to_call_are_not_drawn(kind):
    layer, state = kind(3, 4, 3), torch.get_rng_state()
    with pytest.raises(NotAMapError, match="depend on the input or on random numbers"):
        weight_of(layer)
    assert torch.equal(torch.get_rng_state(), state)


def test_kernels_of_a_convolution_that_cannot_be_copied_are_reported(tmp_path):
    layer = parametrizations.weight_norm(nn.Conv2d(3, 4, 3))
    layer.steps = (number for number in (1, 2))
    layer.register_forward_pre_hook(lambda *_: None)
    summary = fmapviz.visualize(nn.Sequential(layer, nn.Conv2d(4, 4, 3)), views="kernels", out=tmp_path, to="png")
    assert summary.pictures == 1
    assert summary.undrawn["0"].startswith("its kernels are computed when it runs, and running a copy failed: TypeError")
