"""The layer that is chosen automatically is the one that an expert would choose."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cases import thorough
from results import heats_of
from tiny_models import as_model, images
from torch import nn
from torch.nn import functional
from torchvision import models

import fmapviz
from fmapviz.config import Style
from fmapviz.errors import RequestError
from fmapviz.run.forward_pass import Drawer
from fmapviz.run.plan import make_plan

WIDE = torch.randn(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))


def make(name, **options):
    torch.manual_seed(0)
    return models.get_model(name, weights=None, **options).eval()


def vision_transformer(layers=2):
    torch.manual_seed(0)
    network = models.VisionTransformer(32, 8, layers, 2, 16, 32, num_classes=5).eval()
    nn.init.normal_(network.heads.head.weight)  # zero at first, and so would be every gradient
    return network


def rows_of(network, batch):
    """Return the layers on a sheet, from top to bottom."""
    plan = make_plan(["sheet"], targets=["top1"], classes=(), output=None, automatic=True)
    with Drawer(as_model(network), [], plan, Style()) as drawer:
        (drawn,) = drawer.draw(batch)
    assert all(heat.automatic for heat in heats_of(drawn))
    return [heat.layer for heat in heats_of(drawn)]


# --- families of networks

FAMILIES = {
    "resnet18": ("layer4", ["relu", "layer1", "layer2", "layer3", "layer4"]),
    "alexnet": ("avgpool", None),
    "googlenet": ("inception5b", None),
    "squeezenet1_1": ("classifier.2", None),
}
MORE = {"densenet121": ("features", None), "mobilenet_v3_small": ("features", None), "swin_t": ("permute", None)}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [*FAMILIES, *thorough(*MORE)])
def test_the_default_layer_is_the_last_map_that_the_class_depends_on(name):
    options = {"googlenet": {"init_weights": False, "aux_logits": False}}
    network = make(name, **options.get(name, {}))
    layer, rows = (FAMILIES | MORE)[name]
    assert fmapviz.cam(network, WIDE).layer == layer
    found = rows_of(network, WIDE)
    assert found == (rows or found)
    assert found[-1] == layer
    assert 4 <= len(found) <= 6
    assert len(set(found)) == len(found)


def test_the_default_layer_of_a_vision_transformer_is_the_first_of_the_last_block():
    """What comes after its attention has a gradient at the class token only."""
    network = vision_transformer()
    found = fmapviz.cam(network, images(1, 32))
    assert found.layer == "encoder.layers.encoder_layer_1.ln_1"
    assert found.raw.shape == (1, 4, 4)
    assert found.raw.any()
    with pytest.raises(RequestError, match="class token here, not on the patches") as caught:
        fmapviz.cam(network, images(1, 32), layer="encoder.layers.encoder_layer_1")
    assert "encoder.layers.encoder_layer_1.ln_1" in str(caught.value)


@pytest.mark.thorough
def test_the_default_layer_of_a_segmentation_is_the_input_of_the_class_scores():
    torch.manual_seed(0)
    network = models.segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None).eval()
    found = fmapviz.cam(network, WIDE)
    assert found.layer == "classifier.3"
    assert found.raw.shape == (1, 4, 6)


# --- awkward networks


class Head(nn.Module):
    """Averages what its parts make of the picture."""

    def __init__(self, **parts):
        super().__init__()
        torch.manual_seed(0)
        for name, part in parts.items():
            self.add_module(name, part)
        self.fc = nn.LazyLinear(5)
        self.eval()(images(1, 64))

    def maps(self, x):
        raise NotImplementedError

    def forward(self, x):
        return self.fc(self.maps(x).mean((2, 3)))


class FunctionalInPlace(Head):
    def maps(self, x):
        return functional.relu(self.norm(self.conv(x)), inplace=True)


def test_a_norm_that_a_function_overwrites_is_still_chosen():
    network = FunctionalInPlace(conv=nn.Conv2d(3, 4, 32, 32), norm=nn.BatchNorm2d(4))
    with torch.no_grad():
        activated = network.norm(network.conv(images(1, 64))).relu()
        weighted = (activated * network.fc.weight[2][:, None, None]).sum(1)
    found = fmapviz.cam(network, images(1, 64), target=2, method="hirescam")
    assert found.layer == "norm"
    assert torch.allclose(found.raw * activated[0, 0].numel(), weighted, atol=1e-6)


class OnlyFunctionalInPlace(Head):
    def maps(self, x):
        return functional.relu_(self.second(functional.relu_(self.first(x))))


def test_convolutions_that_a_function_overwrites_are_still_chosen():
    network = OnlyFunctionalInPlace(first=nn.Conv2d(3, 4, 3), second=nn.Conv2d(4, 6, 3))
    assert fmapviz.cam(network, images(1), layer="second").raw.shape == (1, 12, 12)
    assert fmapviz.cam(network, images(1)).layer == "second"


class Branches(Head):
    def maps(self, x):
        joined = torch.cat([self.left(x), self.right(x)], 1)
        return self.join(joined) if hasattr(self, "join") else joined


def test_the_default_layer_of_branches_is_where_they_meet_or_the_last_one():
    branches = {"left": nn.Conv2d(3, 4, 3), "right": nn.Conv2d(3, 6, 3)}
    assert fmapviz.cam(Branches(**branches), images(1)).layer == "right"
    assert fmapviz.cam(Branches(**branches, join=nn.ReLU()), images(1)).layer == "join"


class Aside(Head):
    def maps(self, x):
        x = self.main(x)
        self.aside(x)
        return x


def test_layers_that_the_class_does_not_depend_on_are_not_chosen():
    network = Aside(main=nn.Conv2d(3, 4, 3), aside=nn.Conv2d(4, 4, 3))
    assert fmapviz.cam(network, images(1)).layer == "main"
    with pytest.raises(RequestError, match="of 'aside': the class score does not depend on it"):
        fmapviz.cam(network, images(1), layer="aside")


def test_modules_that_return_the_same_tensor_are_named_by_the_outermost():
    torch.manual_seed(0)
    network = nn.Sequential()
    network.add_module("stem", nn.Conv2d(3, 4, 3))
    network.add_module("body", nn.Sequential(nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(inplace=True)), nn.Dropout()))
    network.add_module("head", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)))
    assert fmapviz.cam(network.eval(), images(1)).layer == "body"


def test_a_network_without_maps_is_refused():
    with pytest.raises(RequestError, match="no class activation map"):
        fmapviz.cam(nn.Sequential(nn.Flatten(), nn.Linear(768, 5)), images(1))


def test_an_image_without_gradients_chooses_no_layer():
    """All gradients are zero for a black picture; the layer is chosen with the next one."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(4, 5, bias=False)
    )
    plan = make_plan(["gradcam"], targets=["0"], classes=(), output=None, automatic=True)
    chosen = []
    with Drawer(as_model(network), [], plan, Style()) as drawer:
        for batch in (torch.zeros(1, 3, 16, 16), images(1), torch.zeros(1, 3, 16, 16)):
            (drawn,) = drawer.draw(batch)
            chosen.append((heats_of(drawn)[0].layer, heats_of(drawn)[0].empty))
    assert [layer for layer, _ in chosen] == ["1", "1", "1"]
    assert chosen[0][1]
    assert not chosen[1][1]


# --- rows of a sheet


def strided(count):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3 if number == 0 else 4, 4, 3, 2, 1) for number in range(count)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))


def test_rows_of_a_sheet_are_the_last_of_each_resolution_and_at_most_six():
    assert rows_of(strided(4), images(1, 64)) == ["0", "1", "2", "3"]
    assert rows_of(strided(8), images(1, 512)) == ["2", "3", "4", "5", "6", "7"]


@pytest.mark.thorough
@pytest.mark.parametrize("layers", [12, *thorough(1, 3)])
def test_rows_of_a_network_of_one_resolution_are_its_blocks(layers):
    rows = rows_of(vision_transformer(layers), images(1, 32))
    last = f"encoder.layers.encoder_layer_{layers - 1}.ln_1"
    assert rows[-1] == last
    assert 2 <= len(rows) <= 6
    if layers == 12:
        assert len(rows) == 6
        blocks = [int(row.removeprefix("encoder.layers.encoder_layer_")) for row in rows[:-1]]
        assert blocks == sorted(set(blocks))
        assert blocks[0] <= 2
        assert blocks[-1] >= 9


def test_rows_of_a_plain_stack_are_spread_over_it():
    torch.manual_seed(0)
    stack = [nn.Conv2d(3 if number == 0 else 4, 4, 3, padding=1) for number in range(12)]
    rows = rows_of(nn.Sequential(*stack, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)), images(1))
    places = [int(row) for row in rows]
    assert len(places) == 6
    assert places[-1] == 11
    assert places == sorted(places)
    assert max(after - before for before, after in zip([0, *places], places, strict=False)) <= 3


class LongAside(nn.Module):
    """Ends with a long branch that does not affect the class scores."""

    def __init__(self, length):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)
        self.aside = nn.Sequential(*(nn.Conv2d(4, 4, 1) for _ in range(length)))

    def forward(self, x):
        maps = self.conv(x)
        self.last = self.aside(maps)
        return self.fc(maps.mean((2, 3)))


@pytest.mark.parametrize("length", [20, *thorough(1, 8, 100)])
def test_any_number_of_layers_without_influence_on_the_class_is_skipped(length):
    assert fmapviz.cam(LongAside(length), torch.randn(1, 3, 16, 16)).layer == "conv"


def test_outputs_that_are_unlikely_maps_are_chosen_last():
    """Parts of a picture of 24 x 24 positions, by their shape maps of 9 x 64 pixels."""

    class Windows(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.cut, self.fc = nn.Conv2d(3, 4, 4, 4), Cut(), nn.Linear(64, 5)

        def forward(self, x):
            return self.fc(self.cut(self.conv(x)).mean((1, 2)))

    class Cut(nn.Module):
        def forward(self, x):
            return x.flatten(2).view(len(x), 4, 9, 64)

    network, pictures = Windows(), torch.randn(2, 3, 96, 96)
    found = fmapviz.cam(network, pictures, target=1)
    assert found.layer == "cut"
    assert torch.equal(found.raw, fmapviz.cam(network, pictures, target=1, layer="conv").raw)


@pytest.mark.thorough
def test_the_default_layers_of_a_detector_are_those_that_its_head_reads():
    torch.manual_seed(0)
    network = models.detection.ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=3, score_thresh=0.0
    ).eval()
    model = as_model(network, forward=lambda module, batch: module(list(batch)))
    found = fmapviz.cam(replace(model, classes=()), torch.rand(1, 3, 320, 320), target="top1")
    assert found.layer == "fused"


@pytest.mark.thorough
def test_the_default_layer_of_a_vision_transformer_with_a_zero_head_is_the_same():
    network = vision_transformer()
    nn.init.zeros_(network.heads.head.weight)
    assert fmapviz.cam(network, torch.randn(1, 3, 32, 32)).layer.endswith("ln_1")


@pytest.mark.thorough
def test_the_default_layer_of_timms_vision_transformers_is_the_first_norm_of_the_last_block():
    from extras import timm

    torch.manual_seed(0)
    network = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=5).eval()
    nn.init.normal_(network.head.weight)
    assert fmapviz.cam(network, torch.randn(1, 3, 64, 64), target=1).layer == "blocks.11.norm1"
