"""Layers that return other than plain tensors are named, and the rest is drawn."""

from __future__ import annotations

import warnings

import pytest
import torch
from cases import thorough
from PIL import Image
from torch import nn

import fmapviz
from fmapviz.errors import LayerKeyError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of torch's own
    import torch._subclasses.fake_tensor as fake
    from torch.masked import masked_tensor


class Wrapper(torch.Tensor):
    """As DTensor and the tensors of torchao: operators are dispatched in Python, and no values are its own."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        def unwrap(value):
            return value.inner if isinstance(value, cls) else value

        out = function(*map(unwrap, args), **{key: unwrap(value) for key, value in (kwargs or {}).items()})
        return cls(out) if isinstance(out, torch.Tensor) else out


class Plain(torch.Tensor):
    """As torchvision's and MONAI's: it has values, and functions are overridden."""


class Failing(dict):
    def items(self):
        raise ValueError("no items")


def circular(values):
    held = [values]
    held.append(held)
    return held


def fake_of(values):
    with fake.FakeTensorMode():
        return torch.empty(values.shape)


def in_a_vmap(layer, values):
    torch.vmap(layer)(values[:, None])


def in_a_gradient(layer, values):
    torch.func.grad(lambda x: layer(x).sum())(values)


def functionalized(layer, values):
    torch.func.functionalize(layer)(values)


def of(change):
    return lambda layer, values: layer(change(values))


# How the layer in the middle is called, and why it is not drawn; with None it is.
CALLS = {
    "vmap": (in_a_vmap, "it runs inside a transform of torch.func, such as torch.vmap"),
    "sparse": (of(torch.Tensor.to_sparse), "a sparse tensor"),
    "wrapper": (of(Wrapper), "a tensor of type Wrapper, which has no plain values"),
    "failing": (
        of(lambda values: Failing(x=values)),
        "tensors cannot be found in what it returns, Failing: ValueError: no items",
    ),
    "subclass": (of(lambda values: values.as_subclass(Plain)), None),
    "grad": (in_a_gradient, "it runs inside a transform of torch.func, such as torch.vmap"),
    "functionalize": (functionalized, "it runs inside a transform of torch.func, such as torch.vmap"),
    "sparse rows": (of(lambda values: values[0, 0].to_sparse_csr()), "a sparse tensor"),
    "mkldnn": (of(torch.Tensor.to_mkldnn), "a tensor of the layout torch._mkldnn"),
    "nested": (of(lambda values: torch.nested.nested_tensor([values[0], values[0, :, :3]])), "a nested tensor"),
    "jagged": (
        of(lambda values: torch.nested.nested_tensor([values[0, 0], values[0, 0, :3]], layout=torch.jagged)),
        "a nested tensor",
    ),
    "masked": (
        of(lambda values: masked_tensor(values, values > 0)),
        "a tensor of type MaskedTensor, which has no plain values",
    ),
    "fake": (of(fake_of), "a tensor of type FakeTensor, which has no plain values"),
    "meta": (of(lambda values: values.to("meta")), "on the meta device, which has no values"),
    "circular": (of(circular), "tensors cannot be found in what it returns, list: RecursionError"),
    "quantised": (of(lambda values: torch.quantize_per_tensor(values, 0.1, 0, torch.quint8)), None),
    "eight bits": (of(lambda values: values.to(torch.float8_e4m3fn)), None),
}


class Between(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.middle = nn.Identity()
        self.last = nn.Conv2d(4, 5, 3)
        self.call = call

    def forward(self, images):
        values = self.first(images)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # prototypes of torch
            self.call(self.middle, values.detach())
        return self.last(values).mean((2, 3))


@pytest.fixture
def pictures(tmp_path):
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    for path in paths:
        Image.new("RGB", (40, 32), "orange").save(path)
    return paths


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["vmap", "sparse", "wrapper", "failing", "subclass", *thorough(*list(CALLS)[5:])])
def test_a_layer_whose_values_cannot_be_read_is_named_and_the_rest_is_drawn(kind, pictures, tmp_path):
    call, reason = CALLS[kind]
    network = Between(call)
    rows = fmapviz.list_layers(network, types=["Module"])
    assert [row.name for row in rows] == ["first", "middle", "last"]
    summary = fmapviz.visualize(
        network, pictures, out=tmp_path, name="run", to=["png", "raw"], views=["maps", "inputs"], types=["Module"]
    )
    assert (summary.done, summary.exit_code, summary.not_executed) == (2, 0, ())
    drawn = {path.name for path in (tmp_path / "run").rglob("*.png")}
    assert {"00_first.maps.png", "02_last.maps.png"} <= drawn
    assert summary.undrawn.get("middle", "").startswith(reason or "")
    assert any("middle.maps" in name for name in drawn) == (reason is None)


def test_a_vmap_does_not_change_heat_maps_of_other_layers():
    torch.manual_seed(0)
    network, images = Between(in_a_vmap), torch.rand(1, 3, 32, 40)
    found = fmapviz.cam(network, images, target=1, layer="first")
    network.call = lambda _layer, _values: None
    assert torch.equal(found.raw, fmapviz.cam(network, images, target=1, layer="first").raw)


def test_a_layer_inside_a_vmap_is_not_captured_and_the_error_has_the_reason():
    network, images = Between(in_a_vmap), torch.rand(1, 3, 32, 40)
    with fmapviz.capture(network, types=["Module"]) as maps:
        network(images)
    assert [*maps] == ["first", "last"]
    with pytest.raises(LayerKeyError, match=r"no feature map of 'middle' was captured: it runs inside a transform"):
        maps["middle"]


def test_a_sparse_tensor_is_captured_unchanged():
    network, images = Between(of(torch.Tensor.to_sparse)), torch.rand(1, 3, 32, 40)
    with fmapviz.capture(network, types=["Module"]) as maps:
        network(images)
    assert torch.equal(maps["middle"].values.to_dense(), maps["first"].values)


def test_a_network_without_values_is_refused_with_the_part_that_has_none(tmp_path):
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def build():\n    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, device='meta'))\n"
    )
    with pytest.raises(fmapviz.FmapvizError, match=r"a part of the network, '1\.weight', is on the device 'meta'"):
        fmapviz.load_model(f"{tmp_path / 'net.py'}:build")
