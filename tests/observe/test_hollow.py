"""Convolutions and products that return zeros at once return the shapes of PyTorch's own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fmapviz.observe.fields.hollow import without_numbers
from fmapviz.observe.fields.tracking import FieldTracking


class Comparing(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        names = [argument.name for argument in func._schema.arguments]
        defaults = {argument.name: argument.default_value for argument in func._schema.arguments}
        hollow = without_numbers(func, {**defaults, **dict(zip(names, args, strict=False)), **(kwargs or {})})
        if hollow is not None:
            assert (hollow.shape, hollow.dtype, hollow.device) == (result.shape, result.dtype, result.device)
            assert not hollow.any()
            self.names.append(func.overloadpacket.__name__)
        return result


@settings(deadline=None)
@given(st.data())
def test_a_convolution_has_the_shape_of_pytorchs(data):
    dims, groups = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))

    def sides(low, high):
        return tuple(data.draw(st.lists(st.integers(low, high), min_size=dims, max_size=dims)))

    stride, dilation, kernel = sides(1, 3), sides(1, 3), sides(1, 4)
    options = {"stride": stride, "dilation": dilation, "padding": sides(0, 3), "groups": groups}
    kind = "ConvTranspose" if data.draw(st.booleans()) else "Conv"
    if kind == "ConvTranspose":
        most = [max(pair) - 1 for pair in zip(stride, dilation, strict=True)]
        options["output_padding"] = tuple(data.draw(st.integers(0, each)) for each in most)
    shape = (data.draw(st.integers(1, 3)), 2 * groups, *(side + 9 for side in sides(1, 5)))
    layer = getattr(nn, f"{kind}{dims}d")(2 * groups, 3 * groups, kernel, **options)
    pixels = torch.rand(shape, dtype=data.draw(st.sampled_from([torch.float32, torch.float64])))
    with Comparing() as comparing, torch.no_grad():
        layer.to(pixels.dtype)(pixels)
    assert "convolution" in comparing.names


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (5, 2, 3, 4)], ids=str)
def test_a_product_has_the_shape_of_pytorchs(shape):
    with Comparing() as comparing, torch.no_grad():
        nn.Linear(4, 6)(torch.rand(shape))
        nn.Linear(4, 6, bias=False)(torch.rand(shape))
        torch.rand(shape) @ torch.rand(4, 7)
        torch.baddbmm(torch.rand(2, 3, 5), torch.rand(2, 3, 4), torch.rand(2, 4, 5))
    assert "baddbmm" in comparing.names
    assert {"mm", "addmm", "bmm"} & {*comparing.names}


@pytest.mark.parametrize("layer", [nn.Linear(3, 2), nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(3, 4, 3), nn.Conv2d(5, 4, 9)])
def test_shapes_that_do_not_fit_fail_as_in_the_network(layer):
    with FieldTracking(pixels := torch.rand(1, 5, 6, 6), weights=()), torch.no_grad(), pytest.raises(RuntimeError):
        layer(pixels)


def test_meta_tensors_and_other_operators_are_left_to_pytorch():
    given = {"self": torch.ones(4, 3, device="meta"), "mat2": torch.ones(3, 2, device="meta")}
    assert without_numbers(torch.ops.aten.mm.default, given) is None
    assert without_numbers(torch.ops.aten.relu.default, {"self": torch.ones(3)}) is None
