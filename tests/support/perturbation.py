"""Measure what every position of every feature map depends on: change one row or column of the input, and compare bits."""

import numpy as np
import torch
from torch import nn

from fmapviz.observe.hooks import observe

_TOGETHER = 16  # pictures a forward pass


def smooth(network):
    """Replace activations whose derivative is zero somewhere, and maxima, and initialize so that nothing vanishes.

    A field is what a position can depend on: with a dead ReLU, and where another value is the largest, it does not show.
    """
    for module in network.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.ReLU | nn.ReLU6 | nn.Hardswish | nn.Hardtanh | nn.SiLU | nn.GELU):
                setattr(module, name, nn.Softplus())
            elif isinstance(child, nn.Hardsigmoid):
                setattr(module, name, nn.Sigmoid())
            elif isinstance(child, nn.MaxPool2d):
                setattr(module, name, _average(child))
    return network.double().eval()


def _average(pool):
    """Return an average over the same windows; `AvgPool2d` has no dilation."""

    class Average(nn.MaxPool2d):
        def forward(self, x):
            if self.dilation != 1:
                return super().forward(x)
            return nn.functional.avg_pool2d(x, self.kernel_size, self.stride, self.padding, self.ceil_mode)

    return Average(pool.kernel_size, pool.stride, pool.padding, pool.dilation, ceil_mode=pool.ceil_mode)


def measure(network, layers, size, *, channels=3, seed=0):
    """Return for each feature map `(rows, columns)`: whether `(pixel, y, x)` depends on a row or column of the input."""
    generator = torch.Generator().manual_seed(seed)
    picture = torch.rand(channels, *size, dtype=torch.float64, generator=generator)
    base, found = {}, {}

    def run(batch, receive):
        with torch.no_grad(), observe(network, layers, receive):
            network(batch)

    def keep(feature_map):
        base[feature_map.name] = feature_map.values.clone()

    run(picture.expand(_TOGETHER, -1, -1, -1).contiguous(), keep)
    for axis, pixels in enumerate(size):
        changed = {name: [] for name in base}

        def compare(feature_map):
            different = feature_map.values != base[feature_map.name]
            changed[feature_map.name].append(_over_channels(different))  # noqa: B023

        for first in range(0, pixels, _TOGETHER):
            batch = picture.repeat(_TOGETHER, 1, 1, 1)
            for number, line in enumerate(range(first, min(first + _TOGETHER, pixels))):
                noise = 8 * torch.randn(channels, size[1 - axis], dtype=torch.float64, generator=generator)
                batch[number].select(axis + 1, line).add_(noise)
            run(batch, compare)
        for name, parts in changed.items():
            found.setdefault(name, []).append(torch.cat(parts)[:pixels].numpy())
    return found


def _over_channels(different):
    """Return `(N, h, w)`; a vector has one position."""
    return different.any(dim=1) if different.ndim == 4 else different.flatten(1).any(dim=1)[:, None, None]


def check(field, measured):
    """Return where a field differs from what was measured, as text; empty if nowhere."""
    wrong = []
    for what, ends, other, pixels, changed in zip(
        ("rows", "columns"), (field.rows, field.columns), (field.columns, field.rows), field.picture, measured, strict=True
    ):
        axis = what == "columns"
        _, height, width = changed.shape
        positions = width if axis else height
        low, high = (np.broadcast_to(end, positions) for end in (ends[0].clip(0), ends[1].clip(None, pixels - 1)))
        sides = field.picture[1 - axis]
        seen = (other[1] >= 0) & (other[0] < sides) & (other[0] <= other[1])
        seen = np.broadcast_to(seen, height if axis else width)
        for position in range(positions):
            for across in range(height if axis else width):
                column = changed[:, across, position] if axis else changed[:, position, across]
                got = np.flatnonzero(column)
                expected = low[position] <= high[position] and seen[across]
                bounds = (int(low[position]), int(high[position])) if expected else None
                real = (int(got[0]), int(got[-1])) if len(got) else None
                if bounds != real:
                    wrong.append(f"{field.name} {what} {position} (at {across}): {bounds}, but measured {real}")
    return wrong
