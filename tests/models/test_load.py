"""Models by name: lists, loading and outlines."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from PIL import Image
from torchvision import models
from waiting import PATIENCE

from fmapviz.config import InputOptions
from fmapviz.errors import RequestError
from fmapviz.models.load import check_name, load_model, model_names, outline_model

SMALL = InputOptions(size=(64, 64))


def test_the_stored_list_of_models_equals_torchvisions():
    assert model_names() == sorted([*models.list_models(), "shapesnet"])


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("alexnet", ["alexnet"]),
        ("vgg1*_bn", ["vgg11_bn", "vgg13_bn", "vgg16_bn", "vgg19_bn"]),
        ("vgg11", ["vgg11", "vgg11_bn"]),
        ("raft", ["raft_large", "raft_small"]),
        ("raft_?????", ["raft_large", "raft_small"]),
        ("resnet[15]*", ["resnet101", "resnet152", "resnet18", "resnet50"]),
        ("ALEXNET", []),
        ("python:net", []),
        ("alexnet ", []),
        ("[", []),
    ],
)
def test_names_are_found_by_a_part_or_a_glob(pattern, names):
    assert model_names(pattern) == names


def test_patterns_that_match_everything_list_all_models():
    assert model_names("*") == model_names("") == model_names()


@pytest.mark.parametrize(
    ("spec", "nearest"),
    [
        ("alexnt", "did you mean 'alexnet'"),
        ("resnet999", "resnet"),
        ("ResNet50", "'resnet50'"),
        ("vit-b-16", "'vit_b_16'"),
        ("torchvision:alexnt", "fmapviz.model_names()"),
        ("", "fmapviz.model_names() lists all names"),
        ("../alexnet", "'alexnet'"),
        ("shapesnet(width=2)", "'shapesnet'"),
        ("zzzzzz\x1b[31m", "fmapviz.model_names() lists all names"),
    ],
)
def test_an_unknown_model_is_an_error_with_the_nearest_ones(spec, nearest):
    for look_up in (check_name, load_model, outline_model):
        with pytest.raises(RequestError) as caught:
            look_up(spec)
        assert str(caught.value).startswith("no such model: '")
        assert str(caught.value).isprintable()
        assert nearest in caught.value.hint


def test_names_are_checked_without_torch():
    code = """
import sys
from fmapviz import errors, types
from fmapviz.core import registry
from fmapviz.models import load
assert len(load.model_names("vgg1*")) == 8
load.check_name("alexnet")
try:
    load.check_name("alexnt")
except errors.RequestError:
    assert not {"torch", "torchvision", "numpy", "PIL"} & sys.modules.keys()
    raise SystemExit(0)
raise SystemExit(1)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)


def test_a_name_may_have_the_prefix_of_its_source():
    check_name("torchvision:squeezenet1_1")
    model = load_model("torchvision:squeezenet1_1", weights="random", preprocessing=SMALL)
    assert model.name == "squeezenet1_1"
    assert model.label == "squeezenet1_1 (random weights, seed 0)"


def test_loading_and_outlining_keep_the_random_state():
    before = torch.get_rng_state()
    for name in ("squeezenet1_1", "vit_b_32", "raft_small"):
        outline_model(name)
    load_model("squeezenet1_1", weights="random:5")
    assert torch.equal(torch.get_rng_state(), before)


# One of each kind, with its arguments and its message.
KINDS = {
    "squeezenet1_1": ((1, 3, 64, 64), True, ""),
    "quantized_shufflenet_v2_x0_5": ((2, 3, 64, 64), True, ""),
    "lraspp_mobilenet_v3_large": ((2, 3, 64, 64), True, ""),
    "ssdlite320_mobilenet_v3_large": ((2, 3, 64, 64), False, ""),
    "raft_small": ((1, 3, 128, 128), False, "an optical flow model takes two frames: the image is used for both"),
    "r3d_18": ((1, 3, 16, 64, 64), True, "a video model takes clips: 16 frames of a film"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_model_receives_its_form_of_input(name):
    shape, batches, notice = KINDS[name]
    noise = Image.effect_noise((90, 70), 80).convert("RGB")
    model = load_model(name, weights="random", preprocessing=InputOptions(size=shape[-2:]))
    prepared = model.preparation.apply(noise)
    assert prepared.shape == shape[1:]
    assert prepared.dtype == torch.float32
    with torch.no_grad():
        output = model.forward(model.module, torch.stack([prepared] * shape[0]))
    assert output is not None
    assert model.batches == batches
    assert model.notices == ((notice,) if notice else ())
    assert not any(module.training for module in model.module.modules())


def test_an_outline_has_shapes_and_no_values():
    outline = outline_model("squeezenet1_1")
    whole = models.get_model("squeezenet1_1", weights=None)
    assert {key: values.shape for key, values in outline.module.state_dict().items()} == {
        key: values.shape for key, values in whole.state_dict().items()
    }
    assert all(values.is_meta for values in outline.module.state_dict().values())
    assert (outline.weights, outline.sha256) == ("no weights", None)


@pytest.mark.parametrize(
    "load", [outline_model, lambda name, preprocessing: load_model(name, weights="random", preprocessing=preprocessing)]
)
@pytest.mark.thorough
def test_a_vision_transformer_is_built_for_the_size_of_its_input(load):
    model = load("vit_b_32", preprocessing=SMALL)
    assert model.module.image_size == 64
    assert model.module.encoder.pos_embedding.shape[1] == 1 + (64 // 32) ** 2
    assert load("vit_b_32", preprocessing=InputOptions()).module.image_size == 224
    for size in ((64, 96), (70, 70), (31, 31)):
        with pytest.raises(
            RequestError, match=f"vit_b_32 takes square images whose side is a multiple of 32 pixels: '{size[0]}x"
        ):
            load("vit_b_32", preprocessing=InputOptions(size=size))


def test_the_largest_vision_transformer_is_built_for_its_best_weights():
    assert outline_model("vit_h_14").module.image_size == models.ViT_H_14_Weights.DEFAULT.transforms().crop_size[0]
