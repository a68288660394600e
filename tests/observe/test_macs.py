"""MACs are half of the FLOPs that torch counts, by module, and unknown where torch has no formula."""

from contextlib import nullcontext

import pytest
import torch
from cases import thorough
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula
from torchvision import models
from torchvision.ops import DeformConv2d

from fmapviz.config import InputOptions
from fmapviz.observe.layers import find_layers
from fmapviz.observe.macs import MacCounter
from fmapviz.run.layer_list import list_layers


class Attention(nn.Module):
    def forward(self, tokens):
        return functional.scaled_dot_product_attention(tokens, tokens[..., :5, :], tokens[..., :5, :3])


class Products(nn.Module):
    """Matrix products without a module of their own."""

    def forward(self, values):
        one = torch.einsum("nij,nkj->nik", values, values)
        return torch.baddbmm(one, one, one) + one @ one[0] + functional.linear(one, one[0])


class Conditional(nn.Module):
    """Runs a part of itself in inference mode, in which composite operators are not decomposed."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(3, 4, 3, groups=1), nn.Flatten(), nn.Linear(4 * 36, 2))

    def forward(self, values):
        with torch.inference_mode():
            return self.inner(values)


CASES = {
    "conv2d": (nn.Conv2d(6, 8, (3, 5), stride=2, padding=1, dilation=(1, 2)), (2, 6, 20, 30)),
    "grouped": (nn.Conv2d(6, 12, 3, groups=3), (1, 6, 9, 9)),
    "depthwise": (nn.Conv2d(6, 6, 3, groups=6), (1, 6, 9, 9)),
    "conv1d": (nn.Conv1d(3, 4, 5), (2, 3, 20)),
    "conv3d": (nn.Conv3d(3, 4, 3), (1, 3, 5, 6, 7)),
    "transposed": (nn.ConvTranspose2d(6, 4, 3, stride=2, output_padding=1), (1, 6, 9, 8)),
    "grouped transposed": (nn.ConvTranspose2d(6, 4, 3, stride=2, groups=2), (1, 6, 9, 8)),
    "transposed 1d": (nn.ConvTranspose1d(3, 4, 5, dilation=2), (1, 3, 20)),
    "single image": (nn.Conv2d(3, 4, 3), (3, 9, 9)),
    "linear": (nn.Linear(5, 7), (2, 3, 5)),
    "linear of a vector": (nn.Linear(5, 7, bias=False), (5,)),
    "attention": (Attention(), (2, 4, 9, 8)),
    "heads": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 9, 8)),
    "products": (Products(), (2, 4, 4)),
    "inference mode": (Conditional(), (1, 3, 8, 8)),
    "recurrent": (nn.GRU(4, 5, 2, bidirectional=True), (7, 3, 4)),
    "nothing to multiply": (nn.Sequential(nn.ReLU(), nn.BatchNorm2d(3), nn.MaxPool2d(2)), (1, 3, 8, 8)),
}


def counted(network, *batch):
    layers = find_layers(network)
    with torch.no_grad(), MacCounter.counting([layer.module for layer in layers]) as counter:
        output = network.eval()(*batch)
    return output, counter, {layer.name: counter.of(layer.module) for layer in layers}


def flops(network, *batch):
    """FLOPs of all, and by the names of modules."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network.eval()(*batch)
    found = {name.partition(".")[2]: sum(each.values()) for name, each in counter.get_flop_counts().items() if "." in name}
    return counter.get_total_flops(), found


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("case", CASES)
def test_macs_are_half_of_the_flops_of_torch(case, device, monkeypatch):
    monkeypatch.setattr(torch.backends.mha, "_is_fastpath_enabled", False)  # as while a network is observed
    network, shape = CASES[case]
    if case == "recurrent" and device == "cpu":  # one fused operator, of which torch counts nothing
        network, shape = nn.LSTM(4, 5, 2, bidirectional=True), (7, 3, 4)
        _, counter, _ = counted(network, torch.ones(shape))
        assert counter.total == 7 * 3 * (2 * 20 * (4 + 5) + 2 * 20 * (10 + 5))
        return
    network, batch = network.to(device), torch.ones(shape, device=device)
    # The fused operator of processors, which PyTorch 2.13 does not count.
    is_counted = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu in flop_registry
    with nullcontext() if is_counted else sdpa_kernel(SDPBackend.MATH):
        _, counter, found = counted(network, batch)
        total, by_name = flops(network, batch)
    assert (counter.total * 2, counter.uncounted) == (total, {})
    assert {name: macs * 2 for name, macs in found.items() if macs} == {name: each for name, each in by_name.items() if each}


@pytest.mark.parametrize(
    "name", ["resnet18", *thorough("vit_b_32", "swin_t", "mobilenet_v3_small", "r3d_18", "convnext_tiny")]
)
def test_a_network_has_the_macs_that_torch_counts(name):
    size = 64 if "vit" not in name else 224
    preprocessing = InputOptions(size=(size, size))
    rows = {row.name: row for row in list_layers(name, types="Module", preprocessing=preprocessing)}
    with torch.device("meta"):
        network = models.get_model(name, weights=None)
        frames = (16,) if "3d" in name else ()
        _, by_name = flops(network, torch.zeros(1, 3, *frames, size, size))
    assert {name: 2 * row.macs for name, row in rows.items() if row.macs} == {name: n for name, n in by_name.items() if n}


def test_the_pass_and_the_network_are_unchanged():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(), nn.Flatten(), nn.Linear(4 * 36, 2)).eval()
    batch = torch.rand(1, 3, 8, 8)
    with torch.no_grad():
        plain = network(batch)
    output, _, _ = counted(network, batch)
    assert torch.equal(output, plain)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


def test_all_calls_of_a_layer_count_and_a_layer_within_itself_counts_once():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared = nn.Linear(4, 4)
            self.again = nn.Sequential(self.shared, nn.ReLU())

        def forward(self, values, *, more=True):
            values = self.again(self.shared(values))
            return self(values, more=False) if more else values

    network = nn.Sequential(Twice())
    _, counter, found = counted(network, torch.ones(1, 4))
    assert (counter.total, found) == (64, {"0": 64, "0.shared": 64, "0.again": 32, "0.again.1": 0})


@torch.library.custom_op("fmapviz_tests::double", mutates_args=())
def double(values: torch.Tensor) -> torch.Tensor:
    return values * 2


@double.register_fake
def _(values):
    return torch.empty_like(values)


@torch.library.custom_op("fmapviz_tests::known", mutates_args=())
def known(values: torch.Tensor) -> torch.Tensor:
    return values * 2


@register_flop_formula(torch.ops.fmapviz_tests.known)
def _(shape, *, out_shape, **_):
    return 2 * shape[0]


class Calls(nn.Module):
    def __init__(self, operator):
        super().__init__()
        self.operator = operator

    def forward(self, values):
        return self.operator(values)


def test_macs_are_unknown_where_an_operator_has_no_formula():
    network = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Calls(double), nn.Linear(4, 4)), Calls(known))
    _, counter, found = counted(network, torch.ones(3, 4))
    assert found == {"0": 48, "1": None, "1.0": None, "1.1": 48, "2": 3}
    assert (counter.total, [*counter.uncounted]) == (None, ["fmapviz_tests.double"])


@pytest.mark.parametrize(
    ("layer", "shapes", "macs"),
    [
        (nn.Bilinear(3, 4, 5), [(2, 3), (2, 4)], None),
        (DeformConv2d(3, 4, 3), [(1, 3, 8, 8), (1, 18, 6, 6)], 4 * 36 * 27),
        (Calls(lambda values: values @ values[0]), [(3, 4)], 12),
        (Calls(lambda values: values[0] @ values[0]), [(3, 4)], 4),
        (Calls(lambda values: torch.addmv(values[:, 0], values, values[0])), [(3, 4)], 12),
    ],
)
def test_operators_without_a_formula_of_torch(layer, shapes, macs):
    assert counted(layer, *map(torch.ones, shapes))[1].total == macs


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_bytes_follow_the_type_of_the_values(dtype):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)).to(dtype)
    network[0].register_parameter("steps", nn.Parameter(torch.zeros(3, dtype=torch.int8), requires_grad=False))
    first, second = list_layers(network, preprocessing=InputOptions(size=(16, 16)))
    size = dtype.itemsize
    assert (first.parameters, first.parameter_bytes, first.output_bytes) == (115, 112 * size + 3, 4 * 14 * 14 * size)
    assert second.macs == 4 * 12 * 12 * 4 * 9


def test_a_part_that_fails_and_is_caught_leaves_no_layer_open():
    class Caught(nn.Module):
        def __init__(self):
            super().__init__()
            self.bad = nn.Sequential(nn.Linear(5, 5))
            self.good = nn.Linear(4, 2)

        def forward(self, values):
            try:
                self.bad(values)
            except RuntimeError:
                return self.good(values)

    _, counter, found = counted(nn.Sequential(Caught()), torch.ones(1, 4))
    assert found["0.bad"] == 0
    assert (found["0.good"], counter.total) == (8, 8)
