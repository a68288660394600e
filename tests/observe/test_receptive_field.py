"""Receptive fields, compared with what changes when a row or column of the input does."""

import numpy as np
import pytest
import torch
from cases import thorough
from perturbation import check, measure, smooth
from torch import nn
from torch.nn import functional as F  # noqa: N812  as PyTorch's documentation does
from torchvision import models

from fmapviz.observe.layers import find_layers
from fmapviz.observe.receptive_field import trace_fields

SIZE = (13, 18)


def trace(network, size=SIZE, *, channels=3):
    pixels = torch.zeros(1, channels, *size, dtype=torch.float64, device=next(network.parameters()).device)
    return trace_fields(network, find_layers(network), pixels, forward=lambda net, x: net(x))


def differences(network, size=SIZE):
    """Compare the field of each part with a measured one; return the number of exact ones, and the differences."""
    network = smooth(network)
    fields = {name: field for name, field in trace(network, size).items() if "." not in name}
    measured = measure(network, [layer for layer in find_layers(network) if "." not in layer.name], size)
    exact = {name: field for name, field in fields.items() if not field.reason}
    return len(exact), [line for name, field in exact.items() for line in check(field, measured[name])]


class Apply(nn.Module):
    """A module of one function, whose result is then that of a layer."""

    def __init__(self, function, *modules):
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(modules)

    def forward(self, *values):
        return self.function(*values, *self.parts)


def between(function, *modules, out=4):
    """A network with an operator after a convolution of stride 2, and before one that pads."""
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), Apply(function, *modules), nn.Conv2d(out, 2, 3, padding=1))


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
    **{
        f"{mode}, antialias": lambda mode=mode: between(lambda x: F.interpolate(x, size=(4, 11), mode=mode, antialias=True))
        for mode in ("bilinear", "bicubic")  # in single precision, Lanczos has weights of 1e-8 instead of 0
    },
    "bilinear, corners, antialias": lambda: between(
        lambda x: F.interpolate(x, size=(4, 11), mode="bilinear", align_corners=True, antialias=True)
    ),
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
    "written into a part": lambda: between(write),
    "transposed and back": lambda: between(lambda x: F.avg_pool2d(x.transpose(2, 3), (1, 2)).transpose(2, 3)),
    # channels
    "one half of joined channels": lambda: between(
        lambda x, c: torch.cat([x, c(x)], 1).chunk(2, 1)[0], conv(kernel=5, padding=2)
    ),
    "one joined channel, pooled": lambda: between(
        lambda x, c, n: F.avg_pool2d(n(torch.cat([c(x), x], 1).mul_(2)), 2)[:, 5:6],
        conv(kernel=5, padding=2),
        nn.BatchNorm2d(8),
        out=1,
    ),
    "some of joined channels": lambda: between(
        lambda x, c: torch.cat([x[:, :2], c(x), x[:, 2:].roll(1, 3)], 1)[:, 6:], conv(kernel=5, padding=2), out=2
    ),
    "one of a stack": lambda: between(lambda x, c: torch.stack([x, c(x)], 1)[:, 0], conv(kernel=5, padding=2)),
    "joined last": lambda: between(
        lambda x, c: torch.cat([x, c(x)], 1).permute(0, 2, 3, 1)[..., :4].permute(0, 3, 1, 2), conv(kernel=5, padding=2)
    ),
    "joined gates": lambda: between(lambda x: torch.cat([x, x * x.mean((2, 3), keepdim=True)], 1).split([4, 4], 1)[0]),
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
    "unit length": lambda: between(F.normalize),
    "root mean square": lambda: between(lambda x: F.rms_norm(x.permute(0, 2, 3, 1), (4,)).permute(0, 3, 1, 2)),
    "maximum of channels": lambda: between(lambda x: torch.cat([x.logsumexp(1, keepdim=True), x.mean(1, True)], 1), out=2),
    # functions without modules
    "functions": lambda: between(lambda x: F.avg_pool2d(F.softplus(F.conv2d(x, weights(4, 4, 3, 3))), 2)),
    "in place": lambda: between(lambda x: F.silu(x, inplace=True).mul_(2)),
    "sums in place": lambda: between(lambda x, c: x.add_(c(x)), conv(padding=1)),
    "in place through a view": lambda: between(lambda x: x.view(-1, *x.shape[2:]).tanh_().view(x.shape)),
    "misaligned paths": lambda: between(lambda x: x[..., 1:, 1:] + x[..., :-1, :-1]),
    "padding around one position": lambda: between(lambda x: F.pad(F.adaptive_avg_pool2d(x, 1), (2, 2, 3, 3))),
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
def test_the_field_of_an_operator_is_exact(name):
    exact, wrong = differences(OPERATORS[name]())
    assert wrong == []
    assert exact == 3


# What no longer has rows and columns: the whole picture, with the operator


def overwrite(x):
    """Write into a corner, so that rows and columns no longer say what a position depends on."""
    copied = x.clone()
    copied[..., :3, :3] = x[..., 3:6, 3:6]
    return copied


def put(x):
    copied = x.clone()
    copied[:, :, torch.tensor([0, 1])] = x[:, :, :2]
    return copied


def roi_align(x):
    boxes = torch.tensor([[0.0, 0.0, 0.0, 4.0, 4.0]], dtype=x.dtype)
    return torch.ops.torchvision.roi_align(x, boxes, 1.0, 5, 5, 2, False)


UNKNOWN = {
    "aten.bmm": lambda x: (x.flatten(2).mT @ x.flatten(2)).unsqueeze(1).expand(-1, 4, -1, -1),
    "aten._softmax": lambda x: x.flatten(2).softmax(2).view(x.shape),
    "aten.sort": lambda x: x.sort(2)[0],
    "aten._fft_r2c": lambda x: torch.fft.rfft2(x).abs(),
    "aten.index": lambda x: x[:, :, torch.tensor([2, 0, 1])],
    "aten.index_select": lambda x: x.index_select(3, torch.tensor([2, 0, 1])),
    "aten.gather": lambda x: x.gather(2, torch.zeros(1, 4, 3, 9, dtype=torch.int64)),
    "aten.cumsum": lambda x: x.cumsum(3),
    "aten.unfold": lambda x: x.unfold(2, 3, 1)[..., 0],
    "aten.im2col": lambda x: F.unfold(x, 3).view(1, 36, 5, 7)[:, :4],
    "aten.view": lambda x: x.reshape(-1, 4, 9, 7),
    "aten.grid_sampler_2d": lambda x: F.grid_sample(x, torch.zeros(len(x), 5, 5, 2, dtype=x.dtype), align_corners=False),
    "aten.add": lambda x: x[..., :7] + x[..., :7].transpose(2, 3),
    "aten.copy_": overwrite,
    "aten.convolution": lambda x: F.conv2d(torch.ones(1, 4, 9, 9, dtype=x.dtype), x[:1].repeat(4, 1, 1, 1)[..., :3, :3]),
    "aten.index_put_": put,
    "torchvision.roi_align": roi_align,
}


@pytest.mark.parametrize("reason", UNKNOWN)
def test_an_unknown_operator_has_the_whole_picture_and_is_named(reason):
    network = between(UNKNOWN[reason]).double()
    fields = trace(network)
    assert fields["0"].reason == ""
    for name in ("1", "2"):  # also of what follows
        assert (fields[name].reason, fields[name].box(1, 1), fields[name].stride) == (reason, (0, 0, 18, 13), None)


READS = {
    "aten._local_scalar_dense": lambda x: x * x.abs().max().item(),
    "Tensor.numpy": lambda x: x + torch.from_numpy(x.numpy().mean((2, 3), keepdims=True)),
    "Tensor.tolist": lambda x: x + x[0, 0, 0].tolist()[0],
    "aten.equal": lambda x: x if torch.equal(x, x + 1) else 2 * x,
}


@pytest.mark.parametrize("reason", READS)
def test_layers_after_a_read_of_values_have_the_whole_picture(reason):
    fields = trace(between(READS[reason]).double())
    assert [fields[name].reason for name in "012"] == ["", reason, reason] or [fields[name].reason for name in "02"] == [
        "",
        reason,
    ]


def test_outputs_that_do_not_depend_on_the_picture_are_reported():
    network = nn.Sequential(Apply(torch.ones_like), nn.Conv2d(3, 2, 3)).double()
    assert {field.reason for field in trace(network).values()} == {"not computed from the picture"}


def test_rows_and_columns_that_change_places_are_not_exact():
    network = nn.Sequential(conv(3), Apply(lambda x: x.transpose(2, 3)), Apply(lambda x: x.transpose(2, 3))).double()
    fields = trace(network)
    assert fields["1"].reason == "rows and columns of the picture are exchanged"
    assert (fields["2"].reason, fields["2"].size) == ("", (3, 3))


def test_a_view_of_overwritten_memory_has_the_field_of_the_new_values():
    def function(x):
        part = x[..., :3, :3]
        x.copy_(x.flip(3))
        return part

    fields = trace(between(function).double())
    assert fields["1"].reason == "aten.copy_"


def test_constants_are_not_part_of_a_field_until_something_is_written_into_them():
    def function(x):
        canvas = torch.zeros(*x.shape, dtype=x.dtype)
        view = canvas[..., 2:, :]
        view.add_(x[..., :-2, :])
        return canvas

    exact, wrong = differences(between(function))
    assert (exact, wrong) == (3, [])


# Structures of networks


class Twice(nn.Module):
    """One convolution that runs twice, with a skip around both."""

    def __init__(self):
        super().__init__()
        self.conv, self.act, self.head = conv(3, 3, padding=1), nn.ReLU(inplace=True), conv(3, 2)

    def forward(self, x):
        first = self.act(self.conv(x))
        return self.head(self.conv(first) + x)


class UNet(nn.Module):
    """Down and up again, joined with the input."""

    def __init__(self):
        super().__init__()
        self.first, self.down = conv(3, 4, padding=1), conv(4, 6, stride=2, padding=1)
        self.deep, self.up = conv(6, 6, padding=2, dilation=2), nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.last = conv(8, 2, padding=1)

    def forward(self, x):
        skip = F.softplus(self.first(x))
        up = self.up(self.deep(F.silu(self.down(skip))))
        return self.last(torch.cat([skip, F.pad(up, (0, skip.shape[3] - up.shape[3], 0, skip.shape[2] - up.shape[2]))], 1))


class Pyramid(nn.Module):
    """The top-down path of a feature pyramid, with outputs in a dict and a tuple."""

    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([conv(3, 4, stride=2, padding=1), conv(4, 4, stride=2, padding=1)])
        self.top = Apply(lambda fine, coarse: {"out": fine + F.interpolate(coarse, size=fine.shape[2:]), "rest": (coarse,)})

    def forward(self, x):
        fine = self.stages[0](x)
        return self.top(fine, self.stages[1](F.silu(fine)))


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (Twice, {"conv", "act", "conv#2", "head"}),
        (UNet, {"first", "down", "deep", "up", "last"}),
        (Pyramid, {"stages.0", "stages.1", "top['out']", "top['rest'][0]"}),
    ],
)
def test_the_fields_of_a_network_are_exact(build, names):
    network = smooth(build())
    fields, measured = trace(network), measure(network, find_layers(network), SIZE)
    assert fields.keys() == measured.keys() == names
    assert [line for name, field in fields.items() for line in check(field, measured[name])] == []


def test_a_dead_unit_does_not_hide_a_field():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 1, 3)).double()
    nn.init.constant_(network[0].bias, -100.0)
    pixels = torch.rand(1, 3, 9, 9, dtype=torch.float64, requires_grad=True)
    network(pixels)[0, 0, 3, 3].backward()
    assert not pixels.grad.any()
    assert trace(network, (9, 9))["2"].box(3, 3) == (3, 3, 8, 8)


def test_an_operator_without_a_module_counts():
    """A formula over modules would return 5."""

    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = conv(3), conv()

        def forward(self, x):
            return self.second(F.max_pool2d(F.relu(self.first(x)), 2))

    assert trace(Functional().double(), (16, 16))["second"].size == (8, 8)


def test_the_check_finds_a_field_that_is_one_pixel_wrong():
    network = smooth(between(lambda x: F.avg_pool2d(x, 2)))
    field, measured = trace(network)["2"], measure(network, find_layers(network), SIZE)["2"]
    assert check(field, measured) == []
    for change in ((1, 0), (0, 1), (-1, 0), (0, -1)):
        field.rows[:] += np.array([change]).T
        assert check(field, measured)
        field.rows[:] -= np.array([change]).T


# Gates


class Gated(nn.Module):
    """A squeeze-and-excitation block, with each way in which its factor is applied."""

    def __init__(self, way):
        super().__init__()
        self.before, self.squeeze, self.after = conv(3), conv(kernel=1), conv(padding=1)
        self.way, self.frozen = way, False

    def forward(self, x):
        x = self.before(x)
        gate = torch.sigmoid(self.squeeze(x.mean((2, 3), keepdim=True)))
        return self.after(self.way(x, torch.full_like(gate, 0.7) if self.frozen else gate))


WAYS = {
    "broadcast": lambda x, gate: x * gate,
    "expanded": lambda x, gate: x * gate.expand_as(x),
    "in place": lambda x, gate: x.mul_(gate),
    "last": lambda x, gate: (x.permute(0, 2, 3, 1) * gate.flatten(1)[:, None, None]).permute(0, 3, 1, 2),
    "added": lambda x, gate: x + gate,
    "residual": lambda x, gate: x + torch.relu(x * gate),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_gate_has_the_whole_picture_and_a_separate_field(way):
    network = smooth(Gated(WAYS[way]))
    fields, measured = trace(network), measure(network, find_layers(network), SIZE)
    assert [line for name, field in fields.items() for line in check(field, measured[name])] == []
    field = fields["after"]
    assert (field.size, field.start, field.stride, field.is_whole, field.reason) == (SIZE, (0, 0), None, True, "")
    assert (fields["before"].ungated, fields["squeeze"].ungated) == (None, None)
    network.frozen = True
    assert check(field.ungated, measure(network, find_layers(network), SIZE)["after"]) == []
    assert (field.ungated.size, field.ungated.stride, field.ungated.start) == ((5, 5), (1, 1), (-1, -1))


NORMS = {
    "instance": F.instance_norm,
    "group": lambda x: F.group_norm(x, 2),
    "layer, over all": lambda x: F.layer_norm(x, x.shape[1:]),
    "batch, of the picture": lambda x: F.batch_norm(x, None, None, training=True),
    "by hand": lambda x: (x - x.mean((2, 3), keepdim=True)) / x.std((2, 3), keepdim=True),
    "response": lambda x: x * x.norm(dim=(2, 3), keepdim=True),
}


@pytest.mark.parametrize("kind", NORMS)
def test_a_norm_over_positions_has_a_separate_field(kind):
    network = smooth(between(NORMS[kind]))
    fields = trace(network)
    measured = None if kind.startswith("batch") else measure(network, find_layers(network), SIZE)  # N pictures in a batch
    for name in "12" if measured else ():
        assert check(fields[name], measured[name]) == []
    assert (fields["1"].is_whole, fields["1"].reason, fields["2"].is_whole) == (True, "", True)
    plain = trace(between(lambda x: x).double())
    assert fields["2"].ungated.rows.tolist() == plain["2"].rows.tolist()
    assert fields["2"].ungated.columns.tolist() == plain["2"].columns.tolist()


def test_a_gate_by_attention_has_a_separate_field():
    def function(x):
        tokens = x.flatten(2)
        return x * (tokens @ (tokens.mT @ tokens).softmax(2)).mean(2)[..., None, None]

    field = trace(between(function).double())["2"]
    assert field.reason == "aten.bmm"
    assert (field.ungated.reason, field.ungated.size) == ("", (7, 7))


# Published networks

SIZES = {  # Araujo et al., Computing receptive fields of convolutional neural networks, Distill 2019; and by hand
    "alexnet": {"features.10": (163, 16), "features.12": (195, 32)},
    "vgg16": {"features.28": (196, 16), "features.30": (212, 32)},
    "resnet18": {"layer1": (43, 4), "layer2": (99, 8), "layer3": (211, 16), "layer4": (435, 32)},
    "resnet34": {"layer1": (59, 4), "layer2": (179, 8), "layer3": (547, 16), "layer4": (899, 32)},
    "resnet50": {"layer1": (35, 4), "layer2": (91, 8), "layer3": (267, 16), "layer4": (427, 32)},
    "resnet101": {"layer4": (971, 32)},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SIZES)
def test_sizes_of_fields_equal_published_ones(name):
    with torch.device("meta"):
        network = models.get_model(name, weights=None).double()
    fields = trace(network, (224, 224))
    for layer, (size, stride) in SIZES[name].items():
        assert (fields[layer].size, fields[layer].stride) == ((size, size), (stride, stride)), layer


CLASSIFIERS = {
    "alexnet": 64, "vgg11": 48, "resnet18": 64, "squeezenet1_1": 64, "densenet121": 48, "mobilenet_v3_small": 64,
    "googlenet": 64, "shufflenet_v2_x0_5": 64, "efficientnet_b0": 64, "regnet_y_400mf": 64, "mnasnet0_5": 64,
    "convnext_tiny": 64, "inception_v3": 97,
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        "squeezenet1_1",
        "shufflenet_v2_x0_5",
        *thorough(*sorted(CLASSIFIERS.keys() - {"squeezenet1_1", "shufflenet_v2_x0_5"})),
    ],
)
def test_each_position_of_each_convolution_of_a_classifier_has_its_field(name):
    torch.manual_seed(0)
    network = models.get_model(
        name, weights=None, **({"init_weights": True} if name in {"googlenet", "inception_v3"} else {})
    )
    for key, values in network.named_parameters():
        if key.endswith("layer_scale"):  # of 1e-6, behind which nothing shows
            nn.init.ones_(values)
    network, size = smooth(network), (CLASSIFIERS[name], CLASSIFIERS[name] + 5)
    layers = [layer for layer in find_layers(network) if isinstance(layer.module, nn.Conv2d)]
    fields = trace(network, size)
    measured = measure(network, layers, size)
    assert len(measured) > 4
    assert {fields[name].reason for name in measured} == {""}
    assert [line for name in measured for line in check(fields[name], measured[name])] == []


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mobilenet_v3_small", *thorough("efficientnet_b0", "regnet_y_400mf")])
def test_the_second_field_is_that_of_a_classifier_without_gates(name):
    torch.manual_seed(0)
    network, size = smooth(models.get_model(name, weights=None)), (64, 69)
    layers = [layer for layer in find_layers(network) if isinstance(layer.module, nn.Conv2d) and ".fc" not in layer.name]
    fields = trace(network, size)
    for module in network.modules():
        if type(module).__name__ == "SqueezeExcitation":
            module.forward = lambda x: 0.7 * x
    measured = measure(network, layers, size)
    open_fields = {name: fields[name].ungated or fields[name] for name in measured}
    assert sum(fields[name].ungated is not None for name in measured) > 20
    assert [line for name, field in open_fields.items() for line in check(field, measured[name])] == []


@pytest.mark.parametrize(("name", "first"), [("vit_b_32", "conv_proj"), *thorough(("swin_t", "features.0.0"))])
def test_the_field_of_attention_is_the_whole_picture(name, first):
    with torch.device("meta"):
        network = models.get_model(name, weights=None).double()
    fields = trace(network, (224, 224))
    patch = fields[first].stride[0]
    assert (fields[first].size, fields[first].reason) == ((patch, patch), "")
    blocks = [field for key, field in fields.items() if key.endswith(("mlp", "attn", "self_attention[0]"))]
    assert len(blocks) >= 12
    assert all(field.reason.startswith("aten.") for field in blocks)


# The model is left as it was


def test_a_model_is_not_changed():
    network = nn.Sequential(conv(3), nn.BatchNorm2d(4), nn.Dropout(), nn.ReLU(inplace=True)).double().train()
    network[1].eval()
    before, random = {key: values.clone() for key, values in network.state_dict().items()}, torch.get_rng_state()
    trace(network)
    assert [module.training for module in network] == [True, False, True, True]
    assert all(torch.equal(values, before[key]) for key, values in network.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    assert torch.equal(torch.get_rng_state(), random)


def test_shapes_that_change_in_place_are_followed():
    def function(x):
        return x.clone().transpose_(2, 3).transpose(2, 3)

    fields = trace(between(function).double())
    assert fields["1"].reason == "aten.transpose_"


def test_an_empty_tensor_has_no_field_and_does_not_fail():
    fields = trace(between(lambda x: x + x[:0].flatten().view(0, 4, 7).sum()).double())
    assert [fields[name].reason for name in "02"] == ["", "aten.view"]
