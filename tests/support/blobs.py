"""Networks that keep the order of positions, and pictures of a blob whose place a map must show."""

import numpy as np
import torch
from torch import nn

from fmapviz.config import InputOptions

AS_IT_IS = InputOptions(fit="none", mean=(0.0,), std=(1.0,))
SIZE = (90, 110)
CHANNELS = 2


class Crop(nn.Module):
    def __init__(self, top, bottom, left, right):
        super().__init__()
        self.sides = slice(top, -bottom or None), slice(left, -right or None)

    def forward(self, x):
        return x[..., self.sides[0], self.sides[1]]


class Flip(nn.Module):
    def forward(self, x):
        return x.flip(-1)


class Turn(nn.Module):
    """Turns by quarters; 5 exchanges rows and columns."""

    def __init__(self, quarters):
        super().__init__()
        self.quarters = quarters

    def forward(self, x):
        return x.transpose(2, 3) if self.quarters == 5 else torch.rot90(x, self.quarters, (2, 3))


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


class Gate(nn.Module):
    """Weighs all positions by their mean, as squeeze-and-excitation does."""

    def forward(self, x):
        return x * torch.sigmoid(x.mean((2, 3), keepdim=True))


class Mixer(nn.Module):
    """Global attention of each position to all others, beside itself."""

    def forward(self, x):
        tokens = x.flatten(2).mT
        weights = (tokens @ tokens.mT / 8).softmax(-1)
        return x + 0.01 * (weights @ tokens).mT.reshape(x.shape)


def peaked(module):
    """Give a convolution kernels that are largest in the middle, the same for all channels."""
    sides = [torch.from_numpy(np.minimum(np.arange(1, k + 1), np.arange(k, 0, -1))).float() for k in module.kernel_size]
    kernel = sides[0][:, None] * sides[1][None, :]
    with torch.no_grad():
        module.weight.copy_((kernel / kernel.sum() / module.in_channels).expand_as(module.weight))
        module.bias.zero_()
    return module


class Classifier(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.features = features
        self.head = nn.Linear(CHANNELS, 3)
        with torch.no_grad():
            self.head.weight.fill_(1)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


def blob(place, size=SIZE):
    rows, columns = np.indices(size)
    return np.exp(-((rows - place[0]) ** 2 + (columns - place[1]) ** 2) / (2 * 2.0**2)).astype(np.float32)


def peak_of(heat, seen=None):
    """Return the middle of where a map is largest; at the border of what is seen its edge: outermost values are repeated."""
    there = np.argwhere(heat >= heat.max() - 1e-4 * (heat.max() - heat.min()))
    low, high = there.min(0).astype(float), there.max(0).astype(float)
    begin, end = np.array(seen or [(0, side - 1) for side in heat.shape]).T
    return np.where(low == begin, high, np.where(high == end, low, (low + high) / 2))


NETWORKS = {
    "without padding": lambda: nn.Sequential(*(peaked(nn.Conv2d(c, CHANNELS, 5, 2)) for c in (3, CHANNELS, CHANNELS))),
    "padded as in TensorFlow": lambda: nn.Sequential(
        *(
            each
            for c in (3, CHANNELS, CHANNELS)
            for each in (nn.ZeroPad2d((0, 1, 0, 1)), peaked(nn.Conv2d(c, CHANNELS, 3, 2)))
        )
    ),
    "padded at one side": lambda: nn.Sequential(nn.ZeroPad2d((24, 0, 0, 16)), peaked(nn.Conv2d(3, CHANNELS, 5, 4))),
    "cropped": lambda: nn.Sequential(Crop(20, 0, 0, 30), peaked(nn.Conv2d(3, CHANNELS, 4, 4))),
    "mirrored": lambda: nn.Sequential(Flip(), peaked(nn.Conv2d(3, CHANNELS, 5, 4))),
    "transposed": lambda: nn.Sequential(Turn(5), peaked(nn.Conv2d(3, CHANNELS, 5, 4))),
    "transposed between": lambda: nn.Sequential(
        peaked(nn.Conv2d(3, CHANNELS, 5, 2)), Turn(5), Crop(0, 8, 0, 0), peaked(nn.Conv2d(CHANNELS, CHANNELS, 3, 2))
    ),
    "turned": lambda: nn.Sequential(Turn(1), peaked(nn.Conv2d(3, CHANNELS, 5, 4)), Turn(2)),
    "patches that do not cover the picture": lambda: peaked(nn.Conv2d(3, CHANNELS, 16, 16)),
    "pooled beyond the border": lambda: nn.Sequential(peaked(nn.Conv2d(3, CHANNELS, 3)), nn.MaxPool2d(7, 7, ceil_mode=True)),
    "attention": lambda: nn.Sequential(peaked(nn.Conv2d(3, CHANNELS, 7, 5)), Mixer()),
    "dilated": lambda: nn.Sequential(
        peaked(nn.Conv2d(3, CHANNELS, 3, 2, dilation=4)), peaked(nn.Conv2d(CHANNELS, CHANNELS, 3, 2))
    ),
}
PLACES = [(28, 28), (40, 70), (61, 33)]
