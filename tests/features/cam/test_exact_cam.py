"""`cam` is drawn where averages of its map are the class scores, and nowhere else."""

from __future__ import annotations

import pytest
import torch
from cases import often
from image_files import save_picture
from tiny_models import images
from torch import nn
from torch.nn import functional
from torchvision import models

import fmapviz
from fmapviz.config import InputOptions
from fmapviz.errors import RequestError
from fmapviz.features.cam.exact_cam import find_classifier, pooled_maps, weights_of
from fmapviz.types import FeatureMap, Layer

WIDE = torch.randn(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))


def make(name, **options):
    torch.manual_seed(0)
    network = models.get_model(name, weights=None, **options).eval()
    for module in network.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.normal_(module.bias)  # zero in many
    return network


def small(pool, *, width=6, seed=0):
    """Two convolutions, the last one's maps made to a vector, and a linear layer."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 6, 3), pool, nn.Flatten(), nn.Linear(width, 5)
    )


# --- networks that average their last maps

POOLED = {
    "resnet18": "layer4",
    "mobilenet_v2": "features",
    "swin_t": "permute",
    "densenet121": "features",
    "googlenet": "inception5b",
    "regnet_y_400mf": "trunk_output",
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", often(["resnet18", "googlenet"], of=POOLED))
def test_the_maps_of_networks_with_global_average_pooling_add_up_to_the_logit(name):
    options = {"googlenet": {"init_weights": False, "aux_logits": False}}
    network = make(name, **options.get(name, {}))
    linear = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
    with torch.no_grad():
        expected = network(WIDE)[:, 3] - linear.bias[3]
    found = fmapviz.cam(network, WIDE, target=3, method="cam")
    assert found.layer == POOLED[name]
    assert torch.allclose(found.raw.mean((1, 2)), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(fmapviz.cam(network, WIDE, target=3, method="cam", layer=POOLED[name]).raw, found.raw)


class Functional(nn.Module):
    """Has a ReLU that is no module, and a 1 x 1 convolution for a linear layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Conv2d(4, 5, 1, bias=False)

    def forward(self, x):
        maps = functional.relu(self.conv(x))
        return self.head(functional.adaptive_avg_pool2d(maps, 1)).flatten(1)


def test_the_averaged_maps_may_follow_a_relu():
    network = Functional()
    found = fmapviz.cam(network, images(), target=[1, 2], method="cam")
    with torch.no_grad():
        weights = network.head.weight[[1, 2], :, 0, 0]
        expected = (network.conv(images()).relu() * weights[:, :, None, None]).sum(1)
    assert found.layer == "conv"
    assert torch.allclose(found.raw, expected, atol=1e-6)


def test_each_image_has_the_weights_of_its_own_class():
    network = small(nn.AdaptiveAvgPool2d(1))
    together = fmapviz.cam(network, images(), target=[4, 0], method="cam")
    for image, target in enumerate((4, 0)):
        alone = fmapviz.cam(network, images()[image : image + 1], target=target, method="cam")
        assert torch.allclose(together.raw[image], alone.raw[0], atol=1e-6)


# --- networks that do not


@pytest.mark.parametrize("name", ["alexnet", "mobilenet_v3_small", "squeezenet1_1", "convnext_tiny"])
@pytest.mark.thorough
def test_networks_without_global_average_pooling_are_refused(name):
    with pytest.raises(RequestError, match=r"^cam ") as caught:
        fmapviz.cam(make(name), WIDE, method="cam")
    assert "gradcam works" in caught.value.hint


NOT_POOLED = {
    "the largest value": (nn.AdaptiveMaxPool2d(1), 6, "2"),
    "all values": (nn.Identity(), 6 * 12 * 12, "3"),
    "four averages": (nn.AdaptiveAvgPool2d(2), 24, "3"),
    "a norm of averages": (nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(6)), 6, "2"),
    "averages above zero": (nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.ReLU()), 6, "2"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("pool", "width", "last"), NOT_POOLED.values(), ids=NOT_POOLED)
def test_other_inputs_of_the_linear_layer_are_refused_by_name(pool, width, last):
    with pytest.raises(RequestError, match=f"of the maps of '{last}'"):
        fmapviz.cam(small(pool, width=width), images(), method="cam")
    with pytest.raises(RequestError, match="of the maps of '0'"):
        fmapviz.cam(small(nn.AdaptiveAvgPool2d(1)), images(), method="cam", layer="0")


def test_a_large_bias_does_not_hide_that_the_maps_are_not_averaged():
    network = small(nn.AdaptiveMaxPool2d(1))
    with torch.no_grad():
        network[5].weight.mul_(0.01)
        network[5].bias.fill_(100)
    with pytest.raises(RequestError, match="cam needs a network that averages its last maps"):
        fmapviz.cam(network, images(), target=0, method="cam")


def test_scores_that_come_from_no_linear_layer_are_refused():
    network = nn.Sequential(nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(RequestError, match="class scores come from one linear layer"):
        fmapviz.cam(network, images(), method="cam")


def test_the_maps_of_a_network_that_ends_with_a_softmax_are_those_before_it():
    network = small(nn.AdaptiveAvgPool2d(1))
    found = fmapviz.cam(nn.Sequential(network, nn.Softmax(1)), images(), target=1, method="cam")
    assert torch.allclose(found.raw, fmapviz.cam(network, images(), target=1, method="cam").raw)


def test_a_class_without_weights_is_refused():
    network = small(nn.AdaptiveAvgPool2d(1))
    with torch.no_grad():
        network[5].weight[3] = 0
    assert fmapviz.cam(network, images(), target=2, method="cam").raw.any()
    with pytest.raises(RequestError, match="weights of the class in '5' are all zero") as caught:
        fmapviz.cam(network, images(), target=3, method="cam")
    assert "gradcam works" in caught.value.hint


@pytest.mark.sampled(1)
@pytest.mark.parametrize("layers", [(), ("0", "2")])
def test_a_run_with_cam_that_is_refused_leaves_nothing(layers, tmp_path):
    save_picture(tmp_path / "picture.png")
    with pytest.raises(RequestError, match="averages its last maps") as caught:
        fmapviz.visualize(
            small(nn.AdaptiveMaxPool2d(1)),
            tmp_path / "picture.png",
            out=tmp_path / "out",
            views=["cam"],
            layers=layers,
            preprocessing=InputOptions(size=(16, 16)),
        )
    assert caught.value.exit_code == 2
    assert "gradcam works" in caught.value.hint
    assert list((tmp_path / "out").rglob("*")) == []


def test_chosen_layers_without_a_map_are_named(tmp_path):
    save_picture(tmp_path / "picture.png")
    summary = fmapviz.visualize(
        small(nn.AdaptiveAvgPool2d(1)),
        tmp_path / "picture.png",
        out=tmp_path / "out",
        views=["cam"],
        to=["png"],
        layers=["0", "2"],
        preprocessing=InputOptions(size=(16, 16)),
    )
    assert summary.undrawn == {"cam of 0": "the class scores are not averages of its maps"}
    pictures = [path.name for path in summary.directory.rglob("*.png") if path.is_file()]
    assert sorted(pictures) == ["01_2.top1.cam.png", "input.png"]


# --- its parts


def head(values, module, name="head"):
    return FeatureMap(Layer(name, type(module).__name__, module), name, 1, 0, values)


def test_the_classifier_is_the_last_layer_that_returned_the_logits():
    first, last = nn.Linear(4, 3), nn.Conv2d(4, 3, 1, bias=False)
    x = torch.randn(2, 4)
    logits = last(x[:, :, None, None])
    heads = [head(first(x), first, "first"), head(logits, last, "last"), head(torch.zeros(2, 3), first, "other")]
    found = find_classifier(heads, logits.flatten(1))
    assert found.name == "last"
    assert torch.equal(found.weight, last.weight.detach().flatten(1))
    assert found.bias.tolist() == [0, 0, 0]
    assert not found.weight.requires_grad
    found = find_classifier(heads, first(x))
    assert found.name == "first"
    assert torch.equal(found.bias, first.bias.detach())
    for none in ([], heads[2:]):
        with pytest.raises(RequestError):
            find_classifier(none, first(x))


def test_maps_match_with_or_without_their_negative_part():
    linear = nn.Linear(4, 3)
    maps = torch.randn(2, 4, 5, 6)
    for entering in (maps, maps.relu()):
        logits = linear(entering.mean((2, 3))).detach()
        classifier = find_classifier([head(logits, linear)], logits)
        assert torch.equal(pooled_maps(maps, classifier, logits), entering)
        assert pooled_maps(maps * 1.1, classifier, logits) is None
        assert pooled_maps(maps[:, :3], classifier, logits) is None
        assert torch.equal(weights_of(classifier, [2, 0]), linear.weight.detach()[[2, 0]])
    zero = torch.zeros(2, 4, 5, 6)
    logits = linear(zero.mean((2, 3))).detach()
    assert pooled_maps(zero, find_classifier([head(logits, linear)], logits), logits) is None  # says nothing
