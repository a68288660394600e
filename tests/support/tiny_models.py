"""Small networks, each awkward in one way, and the whole state of a network."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from fmapviz.config import InputOptions
from fmapviz.images.preprocess import standard
from fmapviz.run.forward_pass import Drawer
from fmapviz.run.plan import Plan
from fmapviz.types import Model


def as_model(module, *, forward=nn.Module.__call__):
    """Wrap a module as `fmapviz.load_model` does."""
    return Model("tiny", module, "random", None, standard(InputOptions()), forward)


def draw(model, layers, views, style, batch):
    """Draw one batch."""
    with Drawer(model, layers, Plan({"output": views}), style) as drawer:
        return drawer.draw(batch)


def images(count=2, side=16):
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(count))


def overwritten():
    """Return a network in which in-place activations overwrite the convolutions' outputs, as in AlexNet."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.Conv2d(8, 5, 3), nn.ReLU(inplace=True)).eval()


class Calls(nn.Module):
    """Calls one activation three times, as ResNet's blocks do, and one convolution twice."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        x = self.relu(x - 1)
        x = self.relu(self.conv(x))
        return self.relu(self.conv(x))


class Backwards(nn.Module):
    """Runs its layers in another order than it defines them, and one not at all."""

    def __init__(self):
        super().__init__()
        self.last = nn.Conv2d(5, 6, 1)
        self.never = nn.Conv2d(3, 4, 1)
        self.middle = nn.Conv2d(4, 5, 1)
        self.first = nn.Conv2d(3, 4, 1)

    def forward(self, x):
        return self.last(self.middle(self.first(x)))


class Twins(nn.Module):
    """Has one encoder under two names, and a convolution of it under a third."""

    def __init__(self):
        super().__init__()
        self.query = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        self.key = self.query
        self.stem = self.query[0]

    def forward(self, x):
        return self.query(x) + self.key(x)


class Recursive(nn.Module):
    """Contains itself, and calls itself recursively."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.again = self
        self.child = nn.Module()
        self.child.parent = self

    def forward(self, x, depth=3):
        x = self.conv(x)
        return self.again(x, depth - 1) if depth > 1 else x


class Training(nn.Module):
    """Has everything that training mode changes, with flags as they are in the middle of fine-tuning."""

    def __init__(self):
        super().__init__()
        self.frozen = (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)).eval().requires_grad_(False)
        )
        self.head = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Conv2d(4, 2, 1))
        self.head[1].eval()

    def forward(self, x):
        return self.head(self.frozen(x))


class Fails(nn.Module):
    """Raises an exception after two of its three convolutions."""

    def __init__(self, error):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.second = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(inplace=True))
        self.third = nn.Conv2d(4, 4, 3)
        self.error = error

    def forward(self, x):
        x = self.second(self.first(x))
        if self.error is not None:
            raise self.error
        return self.third(x)


class TwoConvolutions(nn.Module):
    """Two convolutions with an activation between them."""

    def __init__(self, first=4, second=5):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.a, self.b = nn.Conv2d(3, first, 3), nn.Conv2d(first, second, 3)

    def forward(self, x):
        return self.b(self.a(x).relu())


class TwoConvolutionsAndHead(nn.Module):
    """Two convolutions, of which the first halves the image, and a linear layer on the averages."""

    def __init__(self, first, second, head, *, channels=3, seed=0, **of_second):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.first = nn.Conv2d(channels, first, 3, stride=2)
            self.second = nn.Conv2d(first, second, 3, **of_second)
            self.head = nn.Linear(second, head)

    def forward(self, x):
        return self.head(self.second(self.first(x).relu()).mean((2, 3)))


class Pair(NamedTuple):
    large: torch.Tensor
    small: torch.Tensor


class Returns(nn.Module):
    """Returns a given function of its input."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x)


class Passes(nn.Module):
    """Calls one part on its input, ignores the result and goes on with the input."""

    def __init__(self, part):
        super().__init__()
        self.part = part
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        self.part(x)
        return self.conv(x)


class Regions(nn.Module):
    """A detector: applies the same convolution to several regions of each image."""

    def __init__(self, regions):
        super().__init__()
        self.backbone = nn.Conv2d(3, 4, 3)
        self.head = nn.Conv2d(4, 2, 1)
        self.regions = regions

    def forward(self, x):
        x = self.backbone(x)
        return self.head(torch.cat([x * (number + 1) for number in range(self.regions)]))


class Tokens(nn.Module):
    """A Vision Transformer of two layers: 8 x 8 patches, a class token."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 2, 2)
        layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x, mask=None):
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return self.encoder(torch.cat([tokens.mean(1, keepdim=True), tokens], 1), src_key_padding_mask=mask)


def outputs_of(model, x, layers):
    """Return what layers return for a batch of one, without its first axis, by PyTorch's own hooks."""
    kept = {}
    for name in layers:
        model.get_submodule(name).register_forward_hook(
            lambda _module, _given, result, name=name: kept.__setitem__(name, result.detach().clone()[0])
        )
    with torch.no_grad():
        model.eval()(x)
    return kept


def state_of(model):
    """Return everything about a network and torch that a capture must not change."""
    return {
        "modules": {name: _module_state(module) for name, module in model.named_modules()},
        "numbers": {name: _bytes(values) for name, values in [*model.named_parameters(), *model.named_buffers()]},
        "gradients": {
            name: (values.requires_grad, None if values.grad is None else _bytes(values.grad))
            for name, values in model.named_parameters()
        },
        "random": _bytes(torch.get_rng_state()),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "grad mode": torch.is_grad_enabled(),
        "hooks of all modules": {name: list(hooks) for name, hooks in vars(torch_module).items() if "_hooks" in name},
    }


def _module_state(module):
    hooks = {name: list(value.items()) for name, value in vars(module).items() if "hooks" in name}
    return hooks, module.training, getattr(module, "inplace", None), sorted(vars(module)), type(module)


def _bytes(values):
    return values.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes(), values._version
