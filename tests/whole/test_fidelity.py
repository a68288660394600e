"""Drawn values are those that the network computed, against an oracle that shares no code with the package.

The oracle copies each layer's input before the layer runs, and computes the layer's output from the copy when the network is
done, so that nothing the network overwrites can reach it. torchvision's own `make_grid` and `save_image` then draw it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from cases import thorough
from PIL import Image
from results import as_grids, drawings_of
from tiny_models import draw
from torch import Tensor, nn
from torch.nn import functional
from torchvision.utils import make_grid, save_image

from fmapviz.config import InputOptions, Style
from fmapviz.models.load import load_model
from fmapviz.observe.captured import capture
from fmapviz.observe.layers import find_layers, select_layers
from fmapviz.run.loop import visualize
from fmapviz.views import maps as maps_view

if TYPE_CHECKING:
    from fmapviz.types import Layer, Model

SAMPLES = Path(__file__).parents[2] / "sample_images"
SIDE = 64
# How many convolutions' outputs a later layer overwrites: what a hook that keeps `output.detach()` shows of them is wrong.
OVERWRITTEN = {
    "alexnet": (5, 5),
    "squeezenet1_0": (26, 26),
    "efficientnet_b0": (16, 81),
    "resnet18": (0, 20),
    "googlenet": (0, 57),
    "swin_t": (0, 1),
}


@dataclass(frozen=True)
class Case:
    name: str
    model: Model
    layers: list[Layer]

    def draw(self, batch, **views):
        return draw(self.model, self.layers, {"maps": maps_view.draw, **views}, Style(), batch)


def load(name, *, side=SIDE, types=()):
    model = load_model(name, weights="random", preprocessing=InputOptions(size=(side, side)))
    return Case(name, model, select_layers(find_layers(model.module), types=types))


@pytest.fixture(
    scope="module", params=["alexnet", "resnet18", "swin_t", *thorough("efficientnet_b0", "squeezenet1_0", "googlenet")]
)
def case(request):
    return load(request.param, types=("Conv2d",))  # blocks of a transformer have no grid of their own here


def pictures(count, side=SIDE):
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(count))


def computed(module, x):
    """What a layer makes of its input, without the layer."""
    if isinstance(module, nn.Conv2d):
        assert module.padding_mode == "zeros"
        return functional.conv2d(
            x, module.weight, module.bias, module.stride, module.padding, module.dilation, module.groups
        )
    if isinstance(module, nn.Linear):
        return functional.linear(x, module.weight, module.bias)
    assert type(module) is nn.LayerNorm
    return functional.layer_norm(x, module.normalized_shape, module.weight, module.bias, module.eps)


@torch.no_grad()
def oracle(network, x, kinds=nn.Conv2d):
    """What each layer computed, in the order of execution, and what a hook that keeps the output itself has of it."""
    inputs, kept, handles = {}, {}, []
    for name, module in network.named_modules():
        if isinstance(module, kinds):

            def before(_module, args, name=name):
                inputs[name] = args[0].clone()

            def after(_module, _args, output, name=name):
                kept[name] = output.detach()

            handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    network.eval()(x)
    for handle in handles:
        handle.remove()
    return {name: computed(network.get_submodule(name), values) for name, values in inputs.items()}, kept


def as_drawn_by_torchvision(maps):
    """One image's channels as `save_image(make_grid(...))` writes them, in one grey channel."""
    grid = make_grid(maps[:, None], normalize=True, scale_each=True, nrow=isqrt(len(maps)), padding=2)
    return grid[0].mul(255).add_(0.5).clamp_(0, 255).to(torch.uint8).numpy()


def as_saved_by_torchvision(maps, path):
    """The same by way of a real file."""
    save_image(make_grid(maps[:, None], normalize=True, scale_each=True, nrow=isqrt(len(maps)), padding=2), path)
    with Image.open(path) as picture:
        red, green, blue = picture.split()
    assert red.tobytes() == green.tobytes() == blue.tobytes()
    return np.asarray(red)


# --- grids


@pytest.mark.sampled(1)
def test_each_grid_equals_the_reference_pixel_for_pixel(case):
    batch = pictures(2)
    truth, _ = oracle(case.model.module, batch)
    for image, drawn in enumerate(case.draw(batch)):
        assert [drawing.layer for drawing in drawings_of(drawn)] == list(truth)
        for drawing in drawings_of(drawn):
            maps = truth[drawing.layer][image]
            assert drawing.shape == tuple(maps.shape)
            assert np.array_equal(drawing.pixels, as_drawn_by_torchvision(maps)), drawing.layer
            assert drawing.statistics.minimum == maps.min().item()
            assert drawing.statistics.maximum == maps.max().item()
            assert drawing.statistics.nonfinite == 0


@pytest.mark.thorough
def test_a_hook_without_a_copy_differs_from_the_reference(case):
    """Without this the test above could not fail."""
    batch = pictures(1)
    truth, kept = oracle(case.model.module, batch)
    assert list(truth) == list(kept)
    wrong = [name for name, values in truth.items() if not torch.equal(values, kept[name])]
    assert (len(wrong), len(truth)) == OVERWRITTEN[case.name]
    (drawn,) = case.draw(batch)
    statistics = {drawing.layer: drawing.statistics for drawing in drawings_of(drawn)}
    negative = [name for name in wrong if truth[name].min() < 0]
    assert bool(negative) == bool(wrong)
    assert negative == wrong or case.name == "efficientnet_b0"  # some of its layers have four channels of one pixel
    for name in negative:
        assert kept[name].min() > truth[name].min()
        assert statistics[name].minimum == truth[name].min().item()


@pytest.mark.sampled(1)
def test_a_grid_equals_a_file_of_torchvision(case, tmp_path):
    batch = pictures(1)
    truth, _ = oracle(case.model.module, batch)
    (drawn,) = case.draw(batch)
    for drawing in drawings_of(drawn)[:: max(1, len(drawings_of(drawn)) // 5)]:
        saved = as_saved_by_torchvision(truth[drawing.layer][0], tmp_path / "grid.png")
        assert np.array_equal(drawing.pixels, saved)


@pytest.fixture
def two_threads():
    """A run draws what a forward pass in several threads computes, although each of its images has a thread of its own."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", ["alexnet", *thorough("squeezenet1_0", "resnet18")])
def test_files_of_a_run_hold_the_reference_pixels(name, tmp_path):
    network = load(name, side=128).model
    noise = np.random.default_rng(0).integers(0, 256, (140, 190, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    paths = [SAMPLES / "shapes.png", tmp_path / "noise.png"]
    # As many threads as the oracle has: on some processors oneDNN rounds by their number.
    summary = visualize(network, paths, out=tmp_path / "runs", to=["png"], batch_size=1, workers=1)
    assert summary.done == 2
    for path in paths:
        with Image.open(path) as picture:
            prepared = network.preparation.apply(picture.convert("RGB"))
        truth, _ = oracle(network.module, prepared[None])
        written = sorted((summary.directory / path.name).glob("*.maps.png"))
        assert [file.name for file in written] == [f"{number:02d}_{layer}.maps.png" for number, layer in enumerate(truth)]
        for file, values in zip(written, truth.values(), strict=True):
            with Image.open(file) as picture:
                assert picture.mode == "L"
                assert np.array_equal(np.asarray(picture), as_saved_by_torchvision(values[0], tmp_path / "grid.png"))


@pytest.mark.thorough
def test_captum_captures_the_same_values():
    from extras import captum

    network, batch = load("alexnet").model.module, pictures(2)
    with torch.no_grad(), capture(network) as maps:
        network(batch)
    assert len(maps) == 5
    for name, feature_map in maps.items():
        activation = captum.LayerActivation(network, network.get_submodule(name)).attribute(batch)
        assert isinstance(activation, Tensor)
        assert torch.equal(feature_map.values, activation)
        assert activation.min() < 0


@pytest.mark.thorough
def test_layers_of_a_swin_transformer_equal_the_reference_with_moved_axes():
    swin, batch = load("swin_t", types=("Conv2d", "Linear", "LayerNorm")), pictures(2)
    truth, _ = oracle(swin.model.module, batch, (nn.Conv2d, nn.Linear, nn.LayerNorm))
    for image, drawn in enumerate(swin.draw(batch)):
        assert not drawn.undrawn
        assert {name.rpartition(".")[2] for name in drawn.not_executed} == {
            "qkv",
            "proj",
        }  # attention takes their weights only
        *maps_of, logits = drawings_of(drawn)
        assert [drawing.layer for drawing in maps_of] == [name for name in truth if name != "head"]
        assert (logits.layer, logits.shape, logits.statistics.maximum) == (
            "head",
            (1000,),
            truth["head"][image].max().item(),
        )
        for drawing in maps_of:
            values = truth[drawing.layer][image]
            maps = values if drawing.type == "Conv2d" else values.permute(2, 0, 1)
            assert np.array_equal(drawing.pixels, as_drawn_by_torchvision(maps)), drawing.layer


@pytest.mark.thorough
def test_a_network_in_channels_last_memory_equals_the_reference():
    resnet = load("resnet18")
    resnet.model.module.to(memory_format=torch.channels_last)
    batch = pictures(2).contiguous(memory_format=torch.channels_last)
    truth, _ = oracle(resnet.model.module, batch)
    assert truth["layer1.0.conv1"].is_contiguous(memory_format=torch.channels_last)
    for image, drawn in enumerate(resnet.draw(batch)):
        for drawing in drawings_of(drawn):
            assert np.array_equal(drawing.pixels, as_drawn_by_torchvision(truth[drawing.layer][image].contiguous()))


# --- all layers


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "side", "shapes", "drawn", "idle"),
    [
        ("resnet50", 32, 20, 53, ()),
        ("googlenet", 64, None, 57, ("aux1.conv.conv", "aux2.conv.conv")),
        *thorough(
            ("vgg16", 32, 8, 13, ()),
            ("densenet121", 32, 34, 120, ()),
            ("inception_v3", 80, None, 94, ("AuxLogits.conv0.conv", "AuxLogits.conv1.conv")),
        ),
    ],
)
def test_every_convolution_that_runs_is_drawn_and_every_other_is_named(name, side, shapes, drawn, idle):
    network = load(name, side=side)
    convolutions = [path for path, module in network.model.module.named_modules() if isinstance(module, nn.Conv2d)]
    if shapes:  # as many pictures as there would be, were they kept by the shape of the weights
        assert len({network.model.module.get_submodule(path).weight.shape for path in convolutions}) == shapes
    (found,) = network.draw(pictures(1, side))
    assert len(drawings_of(found)) == drawn
    assert found.not_executed == idle
    assert found.undrawn == {}
    assert sorted([drawing.layer for drawing in drawings_of(found)] + list(idle)) == sorted(convolutions)
    assert [drawing.index for drawing in drawings_of(found)] == list(range(drawn))


# --- one by one or as a batch


def values_and_grids(case, batch):
    """From layer to the values `(N, C, H, W)` that were drawn and the grids `(N, H', W')`."""
    values = []

    def keep(maps, _style):
        values.append(maps.values.clone())
        return as_grids(torch.zeros(len(maps.values), 1, 1, dtype=torch.uint8))

    drawn = [[drawing for drawing in drawings_of(each) if drawing.view == "maps"] for each in case.draw(batch, values=keep)]
    grids = [
        np.stack(of_images) for of_images in zip(*([drawing.pixels for drawing in each] for each in drawn), strict=True)
    ]
    names = [drawing.layer for drawing in drawn[0]]
    return {name: (kept, grid) for name, kept, grid in zip(names, values, grids, strict=True)}


@pytest.mark.thorough
def test_eight_images_are_drawn_alone_as_in_a_batch(case):
    """As far as they can be: convolutions add up in another order for another number of images.

    Measured with torch 2.15 on an AVX-512 CPU, 64 x 64 pixels: values differ in most layers, by 1e-6 of the layer's range at
    most, and 3 of 100,000 pixels by one level of grey. Where values are equal, as in Swin-T and the first layers of
    AlexNet, ResNet, GoogLeNet and DenseNet, so is every pixel.
    """
    batch = pictures(8)
    together = values_and_grids(case, batch)
    alone = [values_and_grids(case, batch[image : image + 1]) for image in range(8)]
    pixels = differing = 0
    for name, (values, grids) in together.items():
        for image in range(8):
            (value,), (grid,) = alone[image][name]
            span = (values[image].max() - values[image].min()).item()
            assert (value - values[image]).abs().max() <= 1e-5 * span, name
            if torch.equal(value, values[image]):
                assert np.array_equal(grid, grids[image]), name
            steps = np.abs(grid.astype(int) - grids[image])
            assert steps.max() <= 1, name
            pixels += grid.size
            differing += np.count_nonzero(steps)
    assert differing <= 3e-4 * pixels
