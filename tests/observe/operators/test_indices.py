"""Which inputs each output takes, compared with PyTorch's own operators on pictures of one lit pixel."""

import numpy as np
import pytest
import torch
from cases import thorough
from torch.nn import functional as F  # noqa: N812  as PyTorch's documentation does

from fmapviz.observe.operators import indices

LENGTHS = [(inputs, outputs) for inputs in (1, 2, 3, 5, 7, 8, 14, 16, 23) for outputs in (1, 2, 3, 4, 7, 9, 16, 21, 32, 37)]
MORE = [(inputs, outputs) for inputs in range(1, 40) for outputs in range(1, 60)]
SCALES = (0.3, 0.5, 0.75, 1.01, 1.3, 1.5, 1.7, 2, 2.5, 3.1, 4)


def taken(operator, inputs, dtype=torch.float64):
    """Return the first and last input of nonzero weight for each output of an operator along the last axis."""
    lit = torch.eye(inputs, dtype=dtype)[None, :, None].expand(1, inputs, 2, inputs).contiguous()
    shown = operator(lit)[0, :, 0].abs() > 1e-9
    return ends(np.flatnonzero(row) for row in shown.T.numpy())


def ends(index):
    return [(int(row.min()), int(row.max())) if len(row) else None for row in index]


def antialiased(*lengths, align_corners=False, **settings):
    """Return the inputs with a weight; PyTorch stores those of each output without a gap."""
    index = indices.antialiased(*lengths, align_corners=align_corners, **settings)
    return [row[row >= 0] for row in index]


KINDS = {
    "nearest": lambda *lengths, scale: indices.nearest(*lengths, scale=scale, middle=False),
    "nearest-exact": lambda *lengths, scale: indices.nearest(*lengths, scale=scale, middle=True),
    "bilinear": lambda *lengths, scale: indices.linear(*lengths, scale=scale, align_corners=False),
    "bilinear, corners": lambda *lengths, scale: indices.linear(*lengths, scale=scale, align_corners=True),
    "bicubic": lambda *lengths, scale: indices.cubic(*lengths, scale=scale, align_corners=False),
    "bicubic, corners": lambda *lengths, scale: indices.cubic(*lengths, scale=scale, align_corners=True),
    "bilinear, antialias": lambda *lengths, scale: antialiased(*lengths, scale=scale, radius=1),
    "bilinear, corners, antialias": lambda *lengths, scale: antialiased(*lengths, scale=scale, radius=1, align_corners=True),
    "bicubic, antialias": lambda *lengths, scale: antialiased(*lengths, scale=scale, radius=2),
    "bicubic, corners, antialias": lambda *lengths, scale: antialiased(*lengths, scale=scale, radius=2, align_corners=True),
    "lanczos, antialias": lambda *lengths, scale: antialiased(*lengths, scale=scale, radius=3),
}


def options(kind):
    mode = kind.partition(",")[0]
    corners = {} if "nearest" in mode else {"align_corners": "corners" in kind}
    return {"mode": mode, **corners, **({"antialias": True} if "antialias" in kind else {})}


def dtype_of(kind):
    """The nearest neighbour is found in single precision; small weights show in double precision only."""
    return torch.float32 if "nearest" in kind else torch.float64


@pytest.mark.sampled(5)
@pytest.mark.parametrize("lengths", [LENGTHS, *thorough(MORE)], ids=["some", "many"])
@pytest.mark.parametrize("kind", KINDS)
def test_interpolation_to_a_size_equals_torchs(kind, lengths):
    for inputs, outputs in lengths:
        real = taken(lambda lit: F.interpolate(lit, size=(2, outputs), **options(kind)), inputs, dtype_of(kind))  # noqa: B023
        assert ends(KINDS[kind](inputs, outputs, scale=None)) == real, (inputs, outputs)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", KINDS)
def test_interpolation_by_a_factor_equals_torchs(kind):
    for inputs in (4, 5, 7, 16, 23):
        for scale in SCALES:
            real = taken(lambda lit: F.interpolate(lit, scale_factor=(1, scale), **options(kind)), inputs, dtype_of(kind))  # noqa: B023
            assert ends(KINDS[kind](inputs, len(real), scale=scale)) == real, (inputs, scale)


def test_adaptive_pooling_equals_torchs():
    for inputs, outputs in LENGTHS:
        real = taken(lambda lit: F.adaptive_avg_pool2d(lit, (2, outputs)), inputs)  # noqa: B023
        assert ends(indices.bins(inputs, outputs)) == real, (inputs, outputs)


@pytest.mark.parametrize(("mode", "kind"), [("reflect", indices.reflected), ("replicate", indices.replicated)])
def test_padding_equals_torchs(mode, kind):
    for inputs in (3, 4, 9):
        for amounts in ((0, 0), (1, 0), (0, 2), (2, 1)):
            real = taken(lambda lit: F.pad(lit, (*amounts, 0, 0), mode=mode), inputs)  # noqa: B023
            assert ends(kind(inputs, *amounts)) == real, (inputs, amounts)


@pytest.mark.parametrize(
    ("inputs", "kernel", "stride", "padding", "dilation"), [(9, 3, 1, 1, 1), (9, 2, 2, 0, 1), (12, 3, 2, 1, 2)]
)
def test_windows_and_their_inverse_equal_torchs(inputs, kernel, stride, padding, dilation):
    weight, given = (
        torch.ones(1, 1, 1, kernel).double(),
        {"stride": (1, stride), "padding": (0, padding), "dilation": (1, dilation)},
    )
    for operator, index in ((F.conv2d, indices.windows), (F.conv_transpose2d, indices.inverse_windows)):
        real = taken(lambda lit: operator(lit.transpose(0, 1), weight, **given).transpose(0, 1), inputs)  # noqa: B023
        found = index(len(real), kernel, stride=stride, padding=padding, dilation=dilation)
        assert ends(row[(row >= 0) & (row < inputs)] for row in found) == real
