from __future__ import annotations

import re
import warnings
from collections import OrderedDict
from dataclasses import dataclass, field

import pytest
import torch
import torchvision
from tiny_models import Pair
from torch import nn
from torchvision.models.detection.image_list import ImageList

from fmapviz.core.layout import LayoutError, check_layout, layout_from
from fmapviz.errors import RequestError
from fmapviz.observe.outputs import tensors
from fmapviz.observe.reshape import NotAMapError, frames_of
from fmapviz.types import FeatureMap, Layer

A, B, C = torch.zeros(1), torch.ones(2), torch.full((3,), 2.0)


@dataclass
class Detections:
    boxes: torch.Tensor
    masks: list[torch.Tensor]
    note: str = "none"
    extra: object = field(default=None, repr=False)


class Opaque:
    """Neither a tensor nor a container of any."""


def as_maps(values, module, text=None, *, images=None, picture=(224, 224)):
    """Reshape values of a module by its type or its axes."""
    layout = text and layout_from(text, values.shape, images=images or len(values), picture=picture)
    return frames_of(FeatureMap(Layer("layer", "", module), "layer", 1, 0, values, layout=layout), values)


def reason(values, module=None):
    with pytest.raises(NotAMapError) as caught:
        as_maps(values, module or nn.Identity())
    return str(caught.value)


# --- finding the tensors in an output


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (A, {"": A}),
        (nn.Parameter(A), {"": A}),
        ((A, B), {"[0]": A, "[1]": B}),
        ([A, None, B], {"[0]": A, "[2]": B}),
        ({"out": A, "aux": B}, {"['out']": A, "['aux']": B}),
        ({0: A, "pool": B}, {"[0]": A, "['pool']": B}),
        (OrderedDict(b=A, a=B), {"['b']": A, "['a']": B}),
        (Pair(large=A, small=B), {"[0]": A, "[1]": B}),
        (Detections(A, [B, C]), {".boxes": A, ".masks[0]": B, ".masks[1]": C}),
        ((A, (B, [C])), {"[0]": A, "[1][0]": B, "[1][1][0]": C}),
        ({"levels": [{"x": A}, Detections(B, [])]}, {"['levels'][0]['x']": A, "['levels'][1].boxes": B}),
        (([A], {}), {"[0][0]": A}),
        (ImageList(A, [(1, 1)]), {".tensors": A}),
    ],
)
def test_tensors_are_listed_in_order_with_their_paths(output, expected):
    found = list(tensors(output))
    assert [part for part, _ in found] == list(expected)
    for part, values in found:
        assert values is expected[part] or values.data_ptr() == expected[part].data_ptr()


@pytest.mark.parametrize("output", [None, 3, 1.5, "text", b"bytes", (), {}, [None, ()], Opaque(), {1, 2}])
def test_outputs_without_tensors_have_none(output):
    assert list(tensors(output)) == []


# --- maps as convolutions return them


@pytest.mark.sampled
@pytest.mark.parametrize("module", [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Identity(), nn.Sequential()])
@pytest.mark.parametrize("size", [(8, 5, 5), (8, 5, 7), (7, 7, 7), (1, 4, 4), (8, 1, 9)])
def test_channels_first_maps_are_returned_unchanged(module, size):
    values = torch.randn(2, *size)
    assert as_maps(values, module)[""] is values


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(3, 9, 3),
        nn.ConvTranspose2d(3, 9, 3),
        nn.BatchNorm2d(9),
        nn.InstanceNorm2d(9),
        nn.GroupNorm(3, 9),
        nn.MaxPool2d(2),
        nn.AvgPool2d(2),
        nn.AdaptiveAvgPool2d(9),
        nn.AdaptiveMaxPool2d(9),
        nn.Upsample(9),
        nn.Sequential(nn.Conv2d(3, 9, 3), nn.ReLU()),
        torchvision.models.resnet.BasicBlock(9, 9),
    ],
    ids=lambda module: type(module).__name__,
)
def test_nine_channels_of_nine_rows_are_not_read_as_channels_last(module):
    values = torch.randn(2, 9, 9, 4)
    assert as_maps(values, module)[""] is values


def test_the_memory_format_does_not_matter():
    values = torch.randn(2, 8, 5, 6).contiguous(memory_format=torch.channels_last)
    assert as_maps(values, nn.Conv2d(3, 8, 3))[""] is values


# --- by the names of axes


@pytest.mark.parametrize("module", [nn.Linear(4, 6), nn.LayerNorm(6)])
@pytest.mark.parametrize("size", [(5, 5), (5, 7), (6, 6), (1, 2)])
def test_linear_and_layer_norm_work_on_the_last_axis(module, size):
    values = torch.randn(2, *size, 6)
    maps = as_maps(values, module)[""]
    assert maps.shape == (2, 6, *size)
    for channel in range(6):
        assert torch.equal(maps[:, channel], values[..., channel])


@pytest.mark.sampled
@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize("suffix", [0, 1, 100])
@pytest.mark.parametrize("picture", [(224, 224), (240, 320), (224, 448), (512, 96)])
def test_tokens_are_laid_out_in_the_aspect_ratio_of_the_picture(picture, prefix, suffix):
    rows, columns = picture[0] // 16, picture[1] // 16
    patches = torch.randn(2, rows, columns, 8)
    tokens = torch.cat([torch.randn(2, prefix, 8), patches.flatten(1, 2), torch.randn(2, suffix, 8)], 1)
    text = f"N {f'{prefix}+' if prefix else ''}H*W{f'+{suffix}' if suffix else ''} C"
    maps = as_maps(tokens, nn.Linear(4, 8), text, picture=picture)[""]
    assert torch.equal(maps, patches.permute(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("N H W C", (0, 3, 1, 2)),
        ("N C W H", (0, 1, 3, 2)),
        ("H W N C", (2, 3, 0, 1)),
        ("W C H N", (3, 1, 2, 0)),
    ],
)
def test_named_axes_are_read_by_name(text, order):
    values = torch.randn(3, 3, 3, 3)
    assert torch.equal(as_maps(values, nn.ReLU(), text, images=3)[""], values.permute(order))


def test_sequence_first_tokens_and_given_lengths_are_read():
    tokens = torch.randn(1 + 24, 2, 5)
    maps = as_maps(tokens, nn.ReLU(), "1+H=4*W=6 N C", images=2)[""]
    assert torch.equal(maps, tokens[1:].reshape(4, 6, 2, 5).permute(2, 3, 0, 1))
    folded = torch.randn(2 * 24, 5)
    assert torch.equal(as_maps(folded, nn.ReLU(), "N*H=4*W C", images=2)[""], folded.reshape(2, 4, 6, 5).permute(0, 3, 1, 2))


@pytest.mark.parametrize("text", ["", "N", "N K C", "N H W C C", "N 1+C H W", "N H*", "N 1+ C", 3, None])
def test_a_text_that_is_no_layout_is_refused_with_an_example(text):
    if text in {"N", "N 1+C H W"}:
        with pytest.raises(LayoutError):
            layout_from(text, (2, 3, 4, 5), images=2, picture=None)
        return
    with pytest.raises(RequestError, match="no such layout") as caught:
        check_layout(text)
    assert "'N 1+H*W C'" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "shape"),
    [("N H W C", (2, 3, 4)), ("N 1+H*W C", (2, 1 + 7 * 13, 8)), ("N 5+H*W C", (2, 4, 8)), ("N T*H*W C", (2, 64, 8))],
)
def test_a_layout_that_does_not_fit_is_refused_with_the_shape(text, shape):
    with pytest.raises(LayoutError, match=re.escape(f"the layout {text!r} does not fit ({', '.join(map(str, shape))})")):
        layout_from(text, shape, images=2, picture=(224, 224))


@pytest.mark.parametrize("length", [1, 2, 3, 15, 60, 196, 197])
def test_tokens_of_unknown_layout_are_refused_with_the_shape(length):
    message = reason(torch.zeros(2, length, 8), nn.Linear(4, 8))
    assert message.startswith(f"(2, {length}, 8): which of its axes are channels, rows and columns is not known")


@pytest.mark.parametrize("module", [nn.Conv1d(3, 64, 3), nn.BatchNorm1d(64), nn.MaxPool1d(2)])
def test_a_signal_is_a_row_of_pixels_for_each_channel(module):
    values = torch.randn(2, 64, 100)
    assert torch.equal(as_maps(values, module)[""], values[:, :, None])


# --- clips


def test_a_clip_becomes_one_map_per_frame_named_in_order():
    values = torch.randn(2, 4, 11, 5, 6)
    maps = as_maps(values, nn.Conv3d(3, 4, 3))
    assert list(maps) == [f".t{time:02d}" for time in range(11)]
    for time, frame in enumerate(maps.values()):
        assert torch.equal(frame, values[:, :, time])


def test_a_clip_of_one_frame_and_a_clip_of_nine_are_named_briefly():
    assert list(as_maps(torch.zeros(1, 4, 1, 5, 5), nn.Conv3d(3, 4, 3))) == [".t0"]
    assert list(as_maps(torch.zeros(1, 4, 9, 5, 5), nn.ReLU()))[-1] == ".t8"


# --- reasons of layers that are not drawn


@pytest.mark.parametrize("size", [(7,), ()])
def test_tensors_without_a_batch_are_refused(size):
    shown = str(tuple(size)).replace(",)", ")")
    assert reason(torch.zeros(size)) == f"shape {shown} has no batch axis: not a map of the image"


# --- vectors


@pytest.mark.parametrize("module", [nn.Linear(4, 9), nn.Flatten(), nn.BatchNorm1d(9), nn.Softmax(1)])
def test_a_vector_is_returned_unchanged(module):
    values = torch.randn(2, 9)
    assert as_maps(values, module)[""] is values


def test_a_map_of_one_pixel_is_a_vector_but_a_convolutions_is_a_map():
    values = torch.randn(2, 9, 1, 1)
    assert torch.equal(as_maps(values, nn.AdaptiveAvgPool2d(1))[""], values[:, :, 0, 0])
    assert as_maps(values, nn.Conv2d(3, 9, 1))[""] is values


def test_six_dimensions_are_refused_with_the_shape():
    assert reason(torch.zeros(1, 2, 3, 4, 5, 6)).startswith("(1, 2, 3, 4, 5, 6): which of its axes")


def test_an_empty_map_is_refused_with_the_reason():
    assert reason(torch.zeros(0, 8, 7, 7), nn.Conv2d(3, 8, 3)) == "empty: (0, 8, 7, 7)"


def test_complex_values_are_refused_with_the_reason():
    assert reason(torch.zeros(1, 2, 4, 4, dtype=torch.complex64)) == "complex values (1, 2, 4, 4)"


def test_a_sparse_tensor_is_refused_with_the_reason():
    assert reason(torch.eye(4)[None, None].to_sparse()) == "a sparse tensor (1, 1, 4, 4)"


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_is_refused_with_the_reason(layout):
    with warnings.catch_warnings(action="ignore"):  # a prototype
        nested = torch.nested.nested_tensor([torch.zeros(4, 5), torch.zeros(9, 5)], layout=layout)
    assert "nested tensor" in reason(nested)


def test_quantized_values_are_dequantized():
    values = torch.randn(1, 3, 4, 5)
    with warnings.catch_warnings(action="ignore"):  # announces its own end
        quantized = torch.quantize_per_tensor(values, 0.1, 3, torch.quint8)
        maps = as_maps(quantized, nn.Conv2d(3, 3, 3))[""]
        assert torch.equal(maps, quantized.dequantize())
    assert (maps - values.clamp(-0.3, 25)).abs().max() <= 0.0501


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64])
def test_values_of_other_number_types_are_not_converted(dtype):
    values = torch.ones(1, 3, 4, 5, dtype=dtype)
    assert as_maps(values, nn.Identity())[""] is values


def test_arguments_are_never_changed():
    for module, size, text in [
        (nn.Linear(3, 8), (2, 5, 5, 8), None),
        (nn.ReLU(), (2, 26, 8), "N 1+H*W C"),
        (nn.Conv3d(3, 4, 3), (2, 4, 3, 5, 5), None),
    ]:
        values = torch.randn(size)
        before = values.clone()
        for maps in as_maps(values, module, text).values():
            assert maps.untyped_storage().data_ptr() == values.untyped_storage().data_ptr()
        assert torch.equal(values, before)
        assert values.shape == before.shape
        assert values._version == 0
