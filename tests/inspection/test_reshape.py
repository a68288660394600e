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
from torchvision.models.convnext import CNBlock, CNBlockConfig
from torchvision.models.detection.image_list import ImageList
from torchvision.models.maxvit import MaxVit
from torchvision.models.swin_transformer import SwinTransformer, SwinTransformerBlock
from torchvision.models.video.swin_transformer import SwinTransformer3d

from fmapviz.core.types import FeatureMap, Layer
from fmapviz.inspection.hooks import tensors
from fmapviz.inspection.reshape import NotAMapError, frames_of, is_channels_last, is_unrolled

A, B, C = torch.zeros(1), torch.ones(2), torch.full((3,), 2.0)


@dataclass
class Detections:
    boxes: torch.Tensor
    masks: list[torch.Tensor]
    note: str = "none"
    extra: object = field(default=None, repr=False)


class Opaque:
    """Neither a tensor nor a container of any."""


def outputs_of(model, kind, *inputs):
    """Run a model and keep what its modules of some class returned, with the modules."""
    kept = []

    def keep(module, _args, output):
        kept.append((module, output.clone()))

    hooks = [module.register_forward_hook(keep) for module in model.modules() if isinstance(module, kind)]
    with torch.no_grad():
        model.eval()(*inputs)
    for hook in hooks:
        hook.remove()
    assert kept
    return kept


def as_maps(values, module, *, picture=None, portions=False, ordered=True, name=""):
    """Reshape values of a module; of a picture of this height and width, or of several for each picture."""
    images = len(values) if values.ndim and not values.is_nested else 1
    pixels = torch.empty(images + portions, *((3, *picture) if picture else ()))
    return frames_of(FeatureMap(Layer(name, "", module), name, 1, 0, values), values, pixels, ordered=ordered)


def shape_of(values, module):
    (maps,) = as_maps(values, module).values()
    return tuple(maps.shape)


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
def test_tensors_are_found_with_the_path_to_each_in_order(output, expected):
    found = list(tensors(output))
    assert [part for part, _ in found] == list(expected)
    for part, values in found:
        assert values is expected[part] or values.data_ptr() == expected[part].data_ptr()


@pytest.mark.parametrize("output", [None, 3, 1.5, "text", b"bytes", (), {}, [None, ()], Opaque(), {1, 2}])
def test_where_there_is_no_tensor_none_is_found(output):
    assert list(tensors(output)) == []


# --- maps as convolutions return them


@pytest.mark.parametrize("module", [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Identity(), nn.Sequential()])
@pytest.mark.parametrize("size", [(8, 5, 5), (8, 5, 7), (7, 7, 7), (1, 4, 4), (8, 1, 9)])
def test_channels_first_maps_are_given_back_as_they_are(module, size):
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
def test_nine_channels_nine_pixels_high_are_not_taken_for_channels_last(module):
    values = torch.randn(2, 9, 9, 4)
    assert as_maps(values, module)[""] is values


def test_memory_format_is_no_matter():
    values = torch.randn(2, 8, 5, 6).contiguous(memory_format=torch.channels_last)
    assert as_maps(values, nn.Conv2d(3, 8, 3))[""] is values


# --- channels last


@pytest.mark.parametrize("module", [nn.Linear(4, 6), nn.LayerNorm(6)])
@pytest.mark.parametrize("size", [(5, 5), (5, 7), (6, 6), (1, 1)])
def test_linear_and_layer_norm_work_on_the_last_axis(module, size):
    values = torch.randn(2, *size, 6)
    maps = as_maps(values, module)[""]
    assert maps.shape == (2, 6, *size)
    for channel in range(6):
        assert torch.equal(maps[:, channel], values[..., channel])


def test_a_layer_norm_over_all_axes_says_nothing_about_their_order():
    values = torch.randn(2, 8, 5, 5)
    assert as_maps(values, nn.LayerNorm([8, 5, 5]))[""] is values


@pytest.mark.parametrize("size", [(64, 64), (64, 96)], ids=["square", "oblong"])
def test_every_part_of_a_swin_transformer_is_read_channels_last(size):
    torch.manual_seed(0)
    network = SwinTransformer([4, 4], 12, [1, 1], [2, 2], [4, 4])
    grids = {(size[0] // 4, size[1] // 4), (size[0] // 8, size[1] // 8)}
    for module, values in outputs_of(network.features, SwinTransformerBlock | nn.LayerNorm, torch.randn(1, 3, *size)):
        assert tuple(values.shape[1:3]) in grids
        assert torch.equal(as_maps(values, module)[""], values.permute(0, 3, 1, 2))


def test_swins_activations_are_told_by_their_square():
    torch.manual_seed(0)
    network = SwinTransformer([4, 4], 12, [1, 1], [2, 2], [4, 4])
    for module, values in outputs_of(network.features, nn.GELU | nn.Dropout, torch.randn(1, 3, 64, 64)):
        if values.ndim == 4:
            assert torch.equal(as_maps(values, module)[""], values.permute(0, 3, 1, 2))


@pytest.mark.parametrize("size", [(32, 32), (32, 48)], ids=["square", "oblong"])
def test_convnext_is_read_channels_first_outside_its_blocks(size):
    torch.manual_seed(0)
    network = torchvision.models.ConvNeXt([CNBlockConfig(24, None, 2)], num_classes=2).features
    norm = torchvision.models.convnext.LayerNorm2d
    for module, values in outputs_of(network, CNBlock | norm | nn.Conv2d, torch.randn(1, 3, *size)):
        assert values.shape[1] == 24
        assert as_maps(values, module)[""] is values
    for module, values in outputs_of(network, nn.Linear, torch.randn(1, 3, *size)):
        assert shape_of(values, module) == (1, values.shape[-1], size[0] // 4, size[1] // 4)


def test_attention_over_channels_first_maps_is_read_so_though_its_parts_work_on_the_last_axis():
    torch.manual_seed(0)
    network = MaxVit((32, 32), 8, 2, [12], [1], 4, 0.0)
    kind = torchvision.models.maxvit.PartitionAttentionLayer
    for module, values in outputs_of(network, kind, torch.randn(1, 3, 32, 32)):
        assert as_maps(values, module)[""] is values


# --- tokens


@pytest.mark.parametrize("prefix", range(6))
@pytest.mark.parametrize("side", [7, 14, 16])
def test_tokens_become_a_square_of_patches_without_their_prefix(prefix, side):
    values = torch.randn(2, prefix + side * side, 3)
    maps = as_maps(values, nn.LayerNorm(3))[""]
    assert maps.shape == (2, 3, side, side)
    for row, column in [(0, 0), (0, side - 1), (1, 0), (side - 1, side - 1)]:
        assert torch.equal(maps[:, :, row, column], values[:, prefix + row * side + column])


def test_a_vision_transformers_tokens_are_where_its_patches_were():
    torch.manual_seed(0)
    network = torchvision.models.VisionTransformer(32, 4, 1, 2, 16, 32, num_classes=2).eval()
    picture = torch.zeros(1, 3, 32, 32)
    picture[:, :, 8:12, 20:24] = 5  # row 2, column 5 of the patches
    network.encoder.pos_embedding.data.zero_()
    (_, values), *_ = outputs_of(network, nn.Dropout, picture)
    maps = as_maps(values, nn.Dropout())[""]
    differs = (maps - maps[:, :, :1, :1]).abs().sum(1)[0] > 1e-3
    assert differs.nonzero().tolist() == [[2, 5]]


@pytest.mark.parametrize("length", [1, 2, 3, 15, 60])
def test_tokens_that_are_no_square_are_refused_with_their_number(length):
    message = reason(torch.zeros(2, length, 8), nn.Linear(4, 8))
    assert message == f"{length} tokens (2, {length}, 8) do not form a grid of patches"


@pytest.mark.parametrize("prefix", range(6))
@pytest.mark.parametrize("picture", [(224, 224), (240, 320), (224, 448), (512, 96)])
def test_tokens_are_laid_out_in_the_proportions_of_the_picture(picture, prefix):
    rows, columns = picture[0] // 16, picture[1] // 16
    patches = torch.randn(2, rows, columns, 8)
    tokens = torch.cat([torch.randn(2, prefix, 8), patches.flatten(1, 2)], 1)
    maps = as_maps(tokens, nn.Linear(4, 8), picture=picture)[""]
    assert torch.equal(maps, patches.permute(0, 3, 1, 2))


def test_tokens_of_a_square_window_of_an_oblong_picture_are_laid_out_as_a_square():
    assert as_maps(torch.zeros(8, 49, 6), nn.Linear(4, 6))[""].shape == (8, 6, 7, 7)


def test_vit_b_16_is_read_as_a_reshape_by_hand_reads_it():
    torch.manual_seed(0)
    network = torchvision.models.vit_b_16()
    kind = torchvision.models.vision_transformer.EncoderBlock
    outputs = outputs_of(network, kind | nn.Linear, torch.randn(1, 3, 224, 224))
    blocks = [(module, values) for module, values in outputs if values.ndim == 3]
    assert len(blocks) == 12 * 3  # the block and the two layers of its perceptron
    for module, values in blocks:
        by_hand = values[:, 1:].reshape(1, 14, 14, -1).permute(0, 3, 1, 2)
        assert torch.equal(as_maps(values, module, picture=(224, 224))[""], by_hand)


def test_swin_t_is_read_as_a_permutation_by_hand_reads_it():
    torch.manual_seed(0)
    network = torchvision.models.swin_t()
    outputs = outputs_of(network, SwinTransformerBlock | nn.LayerNorm, torch.randn(1, 3, 224, 224))
    assert len(outputs) == 12 + 12 * 2 + 5
    for module, values in outputs:
        images, rows, columns, channels = values.shape
        assert rows == columns < channels
        by_hand = values.reshape(images, rows * columns, channels).transpose(1, 2).reshape(images, channels, rows, columns)
        assert torch.equal(as_maps(values, module, picture=(224, 224))[""], by_hand)


@pytest.mark.parametrize("module", [nn.Conv1d(3, 64, 3), nn.BatchNorm1d(64), nn.MaxPool1d(2), nn.Conv2d(3, 64, 3)])
def test_a_signal_of_64_channels_is_not_taken_for_64_tokens(module):
    assert "(2, 64, 100)" in reason(torch.zeros(2, 64, 100), module)


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


@pytest.mark.parametrize("size", [(8, 8), (8, 16)], ids=["square", "oblong"])
def test_a_swin_transformer_for_videos_is_read_channels_last_with_time_second(size):
    torch.manual_seed(0)
    network = SwinTransformer3d([2, 4, 4], 12, [2], [2], [4, 4, 4], num_classes=2)
    kind = torchvision.models.swin_transformer.SwinTransformerBlock | nn.LayerNorm
    for module, values in outputs_of(network.features, kind, torch.randn(1, 3, *size, 12)):
        maps = as_maps(values, module)
        assert list(maps) == [".t0", ".t1", ".t2"]
        for time, frame in enumerate(maps.values()):
            assert torch.equal(frame, values[:, time].permute(0, 3, 1, 2))


@pytest.mark.parametrize("size", [(8, 4, 4, 4), (8, 4, 4, 6), (4, 4, 4, 8)])
def test_a_container_of_3d_convolutions_is_read_channels_first(size):
    values = torch.randn(1, *size)
    assert not is_channels_last(values.shape, nn.Sequential(nn.Conv3d(3, 8, 3), nn.BatchNorm3d(8), nn.ReLU()))
    assert shape_of(values[:, :, :1], nn.Sequential(nn.Conv3d(3, 8, 3))) == (1, size[0], *size[2:])


# --- what cannot be drawn says why


@pytest.mark.parametrize("size", [(7,), ()])
def test_what_has_no_batch_is_refused(size):
    shown = str(tuple(size)).replace(",)", ")")
    assert reason(torch.zeros(size)) == f"shape {shown} has no batch axis: not a map of the image"


@pytest.mark.parametrize(
    ("module", "name"), [(nn.Softmax(-1), "sm"), (nn.Dropout(), "attn.drop"), (nn.Identity(), "a.attn_drop")]
)
@pytest.mark.parametrize("size", [(2, 3, 50, 50), (2, 50, 50)], ids=["heads", "mean"])
def test_the_weights_of_an_attention_are_refused_as_such(module, name, size):
    with pytest.raises(NotAMapError, match=re.escape(f"attention weights {size} between tokens")):
        as_maps(torch.zeros(size), module, name=name)


@pytest.mark.parametrize(
    ("module", "name"),
    [(nn.Softmax(1), "sm"), (nn.Dropout(), "drop"), (nn.Identity(), "stages.1.0.attn"), (nn.ReLU(), "attn.act")],
)
def test_square_maps_of_such_modules_are_drawn(module, name):
    values = torch.zeros(2, 3, 56, 56)
    assert as_maps(values, module, picture=(224, 224), name=name)[""] is values


@pytest.mark.parametrize(
    ("size", "module", "name"),
    [
        ((1, 196, 196, 4), nn.Linear(4, 4), "blocks.0.attn.proj_l"),  # CaiT: logits of attention by heads
        ((1, 3, 198, 64), nn.Identity(), "blocks.0.attn.q_norm"),  # heads, tokens, width
        ((1, 12, 197, 64), nn.LayerNorm(64), "blocks.0.attn.k_norm"),
        ((1, 64, 49, 96), nn.LayerNorm(96), "norm"),  # windows, tokens, width
    ],
)
def test_heads_and_windows_are_no_rows_and_columns(size, module, name):
    with pytest.raises(NotAMapError, match="split by window or head"):
        as_maps(torch.zeros(size), module, picture=(224, 224), name=name)


def test_rows_padded_to_whole_windows_are_drawn():
    assert as_maps(torch.zeros(1, 56, 84, 96), nn.LayerNorm(96), picture=(224, 320))[""].shape == (1, 96, 56, 84)


@pytest.mark.parametrize(
    ("size", "module"),
    [((64, 49, 288), nn.Linear(96, 288)), ((196, 256), nn.BatchNorm1d(256)), ((64, 8, 8, 192), nn.Linear(64, 192))],
)
def test_several_portions_of_a_picture_are_no_map_of_it(size, module):
    with pytest.raises(NotAMapError, match="one for each window or region"):
        as_maps(torch.zeros(size), module, picture=(224, 224), portions=True)


def test_regions_of_a_convolution_are_maps():
    values = torch.zeros(100, 8, 7, 7)
    assert as_maps(values, nn.Conv2d(3, 8, 3), picture=(224, 224), portions=True)[""] is values


def test_tokens_that_lie_by_the_units_of_a_mask_are_refused():
    from extras import timm  # takes a second and a half

    network = timm.create_model("hiera_tiny_224")
    assert is_unrolled(network.modules())
    assert not is_unrolled(timm.create_model("vit_tiny_patch16_224").modules())
    with pytest.raises(NotAMapError, match="grouped by the units of a mask"):
        as_maps(torch.zeros(1, 3136, 96), nn.LayerNorm(96), picture=(224, 224), ordered=False)
    with pytest.raises(NotAMapError, match="position biases"):
        as_maps(torch.zeros(1, 15, 15, 512), nn.Linear(2, 512), picture=(256, 256), name="layers.0.blocks.0.attn.cpb_mlp.0")


def test_what_an_attention_returns_is_drawn_and_its_weights_are_not():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    tokens = torch.randn(1, 17, 8)
    output = attention(tokens, tokens, tokens, need_weights=True)
    (part, values), (other, weights) = tensors(output)
    by_hand = values[:, 1:].reshape(1, 4, 4, 8).permute(0, 3, 1, 2)
    assert torch.equal(as_maps(values, attention, picture=(32, 32), name=f"attention{part}")[""], by_hand)
    with pytest.raises(NotAMapError, match="attention"):
        as_maps(weights, attention, picture=(32, 32), name=f"attention{other}")


def test_an_attention_over_a_picture_that_returns_maps_is_drawn():
    values = torch.randn(1, 8, 56, 56)
    assert as_maps(values, nn.Sequential(nn.Conv2d(8, 8, 1)), picture=(224, 224), name="layer1.attention")[""] is values


def test_tokens_in_windows_are_refused_and_tokens_in_rows_are_not():
    torch.manual_seed(0)
    network = MaxVit((64, 64), 8, 4, [8, 8], [1, 1], 4, 0.0, num_classes=2)
    seen = {True: 0, False: 0}
    for module, values in outputs_of(network, nn.Module, torch.randn(1, 3, 64, 64)):
        if not isinstance(values, torch.Tensor) or values.ndim != 4 or values.shape[2:] == (1, 1):
            continue
        windows = isinstance(module, nn.LayerNorm | nn.Linear) and values.shape[1] != values.shape[2]
        seen[windows] += 1
        if windows:
            with pytest.raises(NotAMapError, match="split by window or head"):
                as_maps(values, module, picture=(64, 64))
        elif isinstance(module, nn.Conv2d | torchvision.models.maxvit.MaxVitLayer):
            assert as_maps(values, module, picture=(64, 64))[""] is values
    assert min(seen.values()) > 10


# --- vectors


@pytest.mark.parametrize("module", [nn.Linear(4, 9), nn.Flatten(), nn.BatchNorm1d(9), nn.Softmax(1)])
def test_a_vector_is_given_back_as_it_is(module):
    values = torch.randn(2, 9)
    assert as_maps(values, module)[""] is values


def test_a_map_of_one_pixel_is_a_vector_but_a_convolutions_is_a_map():
    values = torch.randn(2, 9, 1, 1)
    assert torch.equal(as_maps(values, nn.AdaptiveAvgPool2d(1))[""], values[:, :, 0, 0])
    assert as_maps(values, nn.Conv2d(3, 9, 1))[""] is values


def test_six_dimensions_are_refused_with_their_number():
    assert reason(torch.zeros(1, 2, 3, 4, 5, 6)) == "6 dimensions (1, 2, 3, 4, 5, 6): not a map of the image"


def test_an_empty_map_is_refused_as_one():
    assert reason(torch.zeros(0, 8, 7, 7), nn.Conv2d(3, 8, 3)) == "empty: (0, 8, 7, 7)"


def test_complex_values_are_refused_as_such():
    assert reason(torch.zeros(1, 2, 4, 4, dtype=torch.complex64)) == "complex values (1, 2, 4, 4)"


def test_a_sparse_tensor_is_refused_as_such():
    assert reason(torch.eye(4)[None, None].to_sparse()) == "a sparse tensor (1, 1, 4, 4)"


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_is_refused_as_such(layout):
    with warnings.catch_warnings(action="ignore"):  # a prototype
        nested = torch.nested.nested_tensor([torch.zeros(4, 5), torch.zeros(9, 5)], layout=layout)
    assert "nested tensor" in reason(nested)


def test_quantized_values_are_drawn_as_the_numbers_they_stand_for():
    values = torch.randn(1, 3, 4, 5)
    with warnings.catch_warnings(action="ignore"):  # announces its own end
        quantized = torch.quantize_per_tensor(values, 0.1, 3, torch.quint8)
        maps = as_maps(quantized, nn.Conv2d(3, 3, 3))[""]
        assert torch.equal(maps, quantized.dequantize())
    assert (maps - values.clamp(-0.3, 25)).abs().max() <= 0.0501


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64])
def test_other_kinds_of_numbers_are_left_as_they_are(dtype):
    values = torch.ones(1, 3, 4, 5, dtype=dtype)
    assert as_maps(values, nn.Identity())[""] is values


def test_what_was_given_is_never_changed():
    for module, size in [(nn.Linear(3, 8), (2, 5, 5, 8)), (nn.ReLU(), (2, 26, 8)), (nn.Conv3d(3, 4, 3), (2, 4, 3, 5, 5))]:
        values = torch.randn(size)
        before = values.clone()
        for maps in as_maps(values, module).values():
            assert maps.untyped_storage().data_ptr() == values.untyped_storage().data_ptr()
        assert torch.equal(values, before)
        assert values.shape == before.shape
        assert values._version == 0
