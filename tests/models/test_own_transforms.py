"""Networks that resize or normalise their images themselves get the values of the file, 0..1."""

import numpy as np
import pytest
import torch
import torchvision
from image_files import paint
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from torchvision.models.detection import FasterRCNN, ssdlite320_mobilenet_v3_large
from torchvision.models.detection.rpn import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign
from torchvision.transforms import Compose, Normalize, Resize, v2
from torchvision.transforms._presets import ImageClassification
from torchvision.transforms.functional import to_tensor

import fmapviz
from fmapviz.models.network import input_channels
from fmapviz.run.batch import describe_given

HALVES = ((0.5,) * 3, (0.25,) * 3)
PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (70, 90, 3), np.uint8))


class Network(nn.Module):
    """A network that calls its transform before its first layer, after it, or never."""

    def __init__(self, transform, *, when="before"):
        super().__init__()
        self.transform, self.when, self.layer = transform, when, nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, images):
        if self.when == "before":
            images = self.transform(images)
        maps = self.layer(images)
        return self.transform(maps) if self.when == "after" else maps


class Halves(Normalize):
    """A transform of the user's own."""

    def __init__(self):
        super().__init__(*HALVES)


class Detector(nn.Module):
    """A detector as the tutorials of torchvision build it, with a backbone of one's own, inside another module."""

    def __init__(self, channels=3):
        super().__init__()
        backbone = nn.Sequential(nn.Conv2d(channels, 8, 3, stride=8), nn.ReLU())
        backbone.out_channels = 8
        self.inner = FasterRCNN(
            backbone, num_classes=2, image_mean=(0.5,) * channels, image_std=(0.5,) * channels, min_size=64, max_size=128,
            rpn_anchor_generator=AnchorGenerator(((16,),), ((1.0,),)),
            box_roi_pool=MultiScaleRoIAlign(["0"], 3, 2), box_head=nn.Sequential(nn.Flatten(), nn.Linear(72, 1024)),
        )  # fmt: skip

    def forward(self, images):
        return self.inner(images)


def reaching(network, images):
    """Return what the first layer of a network gets."""
    first, seen = next(each for each in network.modules() if isinstance(each, nn.Conv2d)), []

    def end(_layer, inputs):
        seen.append(inputs[0])
        raise KeyError

    with first.register_forward_pre_hook(end), pytest.raises(KeyError):
        network(images)
    return seen[0]


def assert_given_as_stored(network):
    """Check that a network, alone and in a file, gets what the user would give it: the values of the file, 0..1."""
    model = describe_given(network)
    expected = reaching(network, to_tensor(PICTURE)[None])
    assert torch.equal(reaching(network, model.preparation.apply(PICTURE)[None]), expected)
    assert model.assumption == ""


@pytest.mark.parametrize(
    "transform",
    [
        ImageClassification(crop_size=56),
        Compose([Resize(40), Normalize(*HALVES)]),
        Compose([Compose([Resize((40, 50))]), Halves()]),
        v2.Compose([v2.Resize(40), v2.CenterCrop(32), v2.Normalize(*HALVES)]),
        nn.Sequential(Resize((40, 40)), Halves()),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_a_network_resizes_and_normalises_is_given_as_stored(transform):
    assert_given_as_stored(Network(transform))
    for when in ("after", "never"):
        preparation = describe_given(Network(transform, when=when)).preparation
        assert preparation.apply(PICTURE).shape == (3, 224, 224)
        assert preparation.mean == pytest.approx((0.485, 0.456, 0.406))


@pytest.mark.parametrize("transform", [Halves(), v2.Normalize(*HALVES)], ids=["v1", "v2"])
def test_what_a_network_normalises_is_normalised_once(transform):
    model = describe_given(Network(transform))
    assert (model.preparation.mean, model.preparation.std) == ((0, 0, 0), (1, 1, 1))
    assert model.preparation.apply(PICTURE).shape == (3, 224, 224)
    assert "cropped to 224, which is an assumption" in model.assumption


def test_what_a_network_resizes_alone_is_normalised_by_an_assumption():
    model = describe_given(Network(v2.Resize(40)))
    assert model.preparation.apply(PICTURE).shape == (3, 70, 90)
    assert "images are normalised with ImageNet's mean and deviation, which is an assumption" in model.assumption


@pytest.mark.parametrize("key", ["preprocess", "transforms"])
@pytest.mark.parametrize(
    "transform",
    [
        ImageClassification(crop_size=56),
        Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), Resize((56, 56)), Halves()]),
    ],
    ids=["preset", "Compose"],
)
def test_a_transform_that_a_network_calls_is_not_its_preprocessing_as_well(key, transform):
    called, beside = Network(transform), Network(None, when="never")
    setattr(called, key, transform)
    setattr(beside, key, transform)
    assert_given_as_stored(called)
    assert describe_given(beside).preparation.apply(PICTURE).shape == (3, 56, 56)


def test_options_replace_what_is_found():
    options = fmapviz.InputOptions(size=(32, 48), mean=(0.1,) * 3, std=(0.2,) * 3)
    prepared = describe_given(Network(Compose([Resize(40), Halves()])), preprocessing=options).preparation
    assert prepared.apply(PICTURE).shape == (3, 32, 48)
    assert (prepared.mean, prepared.std) == ((0.1,) * 3, (0.2,) * 3)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "build",
    [
        Detector,
        lambda: ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None),
        lambda: torchvision.models.get_model("ssd300_vgg16", weights=None, weights_backbone=None, num_classes=3),
    ],
    ids=["own backbone", "ssdlite", "own classes"],
)
def test_a_detector_is_given_as_stored(build):
    assert_given_as_stored(build().eval())


def test_a_detector_in_a_file_draws_as_its_own_call(tmp_path):
    network, path = Detector().eval(), paint(tmp_path / "a.png", size=(70, 90))
    with fmapviz.capture(network) as expected, Image.open(path) as picture:
        network([to_tensor(picture)])
    summary = fmapviz.visualize(network, path, to="raw", out=tmp_path / "out", progress=False)
    drawn = load_file(summary.directory / "a.png" / "raw.safetensors")
    assert summary.failed == 0
    assert expected.keys() == drawn.keys()
    for name, maps in expected.items():
        assert torch.equal(drawn[name], maps.values[0]), name


def test_trying_a_network_leaves_no_meta_tensors_in_it():
    network = Detector(channels=4).eval()
    images = torch.rand(1, 4, 70, 90)
    assert input_channels(network) == 4
    network(images)  # its anchors are kept from the last pass
    before = network.inner.rpn.anchor_generator.cell_anchors
    assert input_channels(network) == 4
    assert network.inner.rpn.anchor_generator.cell_anchors is before
    network(images)
