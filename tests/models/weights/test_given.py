"""Weights in Python: members of torchvision's enumerations, and state dicts."""

from types import MappingProxyType

import pytest
import torch
from checkpoint_files import build
from image_files import paint
from torchvision import models
from torchvision.models.quantization import ResNet18_QuantizedWeights

import fmapviz
from fmapviz.models.weights.read import read_given

SMALL = fmapviz.InputOptions(size=64)


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Put random weights where torch.hub keeps the published ones of SqueezeNet."""
    place = tmp_path / "hub" / "checkpoints"
    place.mkdir(parents=True)
    torch.save(build("squeezenet1_1").state_dict(), place / models.SqueezeNet1_1_Weights.DEFAULT.url.rpartition("/")[2])
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_a_member_of_an_enumeration_is_the_entry_of_its_name(published, tmp_path):
    member = models.SqueezeNet1_1_Weights.IMAGENET1K_V1
    loaded, named = (fmapviz.load_model("squeezenet1_1", weights=weights) for weights in (member, "IMAGENET1K_V1"))
    assert (loaded.label, loaded.sha256) == (named.label, named.sha256) == ("squeezenet1_1 (IMAGENET1K_V1)", named.sha256)
    assert loaded.classes == tuple(member.meta["categories"])
    assert equal(loaded.module.state_dict(), named.module.state_dict())
    options = {"out": tmp_path / "runs", "to": "stats", "preprocessing": SMALL, "layers": "features.0"}
    inputs = paint(tmp_path / "a.png")
    assert fmapviz.visualize("squeezenet1_1", inputs, weights=member, **options).done == 1
    assert fmapviz.visualize("squeezenet1_1", inputs, weights="IMAGENET1K_V1", **options).skipped == 1  # the same run
    whole = "SqueezeNet1_1_Weights.IMAGENET1K_V1"
    assert fmapviz.visualize("squeezenet1_1", inputs, weights=whole, **options).skipped == 1
    with pytest.raises(fmapviz.errors.WeightsError, match="no such weights file"):
        fmapviz.load_model("squeezenet1_1", weights="SqueezeNet1_1_Weights.IMAGENET1K_V9")
    with pytest.raises(fmapviz.errors.RequestError, match="the model has weights already"):
        fmapviz.visualize(loaded, inputs, weights=member, **options)


@pytest.mark.parametrize(
    ("spec", "member", "hint"),
    [
        ("alexnet", models.ResNet18_Weights.IMAGENET1K_V1, "weights=AlexNet_Weights.IMAGENET1K_V1, for example"),
        ("alexnet(num_classes=5)", models.VGG11_Weights.DEFAULT, "weights=AlexNet_Weights.IMAGENET1K_V1, for example"),
        ("quantized_resnet50", ResNet18_QuantizedWeights.DEFAULT, "weights=ResNet50_Weights.IMAGENET1K_V1, for example"),
        ("shapesnet", models.ResNet18_Weights.IMAGENET1K_V1, "weights='default', for example"),
    ],
)
def test_weights_of_another_model_are_refused_before_a_download(spec, member, hint):
    with pytest.raises(fmapviz.errors.WeightsError, match=f"'{type(member).__name__}.IMAGENET1K_") as caught:
        fmapviz.load_model(spec, weights=member)
    assert caught.value.hint == hint


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("wrap", [dict, MappingProxyType, lambda state: {"state_dict": state, "epoch": 3}])
def test_a_state_dict_fills_a_network_as_its_file(wrap, tmp_path):
    state = build("resnet18").state_dict()
    torch.save(state, path := tmp_path / "net.pth")
    given, read = (fmapviz.load_model("resnet18", weights=weights) for weights in (wrap(state), str(path)))
    assert equal(given.module.state_dict(), read.module.state_dict())
    assert equal(given.module.state_dict(), state)
    assert given.label == "resnet18 (state dict)"
    assert given.notices == read.notices


def test_a_state_dict_is_copied_and_not_changed():
    state = build("resnet18").state_dict()
    before = {key: values.clone() for key, values in state.items()}
    model = fmapviz.load_model("resnet18", weights=state)
    with torch.no_grad():
        model.module.conv1.weight.zero_()
    assert equal(state, before)
    parameters = dict(model.module.named_parameters())
    assert all(parameter.requires_grad for parameter in parameters.values())


@pytest.mark.thorough
def test_the_head_and_prefixes_of_a_state_dict_are_those_of_a_file():
    state = {f"module.{key}": values for key, values in models.resnet18(num_classes=7).state_dict().items()}
    model = fmapviz.load_model("resnet18", weights=state)
    assert model.module.fc.out_features == 7
    assert model.notices[0] == "stripped the prefix 'module.' from the keys of 'the state dict'"


def test_class_names_that_come_with_a_state_dict_are_used():
    state = models.resnet18(num_classes=2).state_dict()
    assert fmapviz.load_model("resnet18", weights={"state_dict": state, "classes": ["cat", "dog"]}).classes == ("cat", "dog")


@pytest.mark.thorough
def test_other_weights_make_another_run(tmp_path):
    own = fmapviz.load_model("shapesnet")
    state = own.module.state_dict()
    changed = {key: values + 0.01 if key.endswith("bias") else values for key, values in state.items()}
    inputs, options = paint(tmp_path / "a.png"), {"out": tmp_path / "runs", "to": "png"}
    first = fmapviz.visualize("shapesnet", inputs, weights=state, **options)
    again = fmapviz.visualize("shapesnet", inputs, weights=dict(state), **options)
    other = fmapviz.visualize("shapesnet", inputs, weights=changed, **options)
    assert (first.done, again.skipped, other.done) == (1, 1, 1)
    assert other.directory != first.directory == again.directory


@pytest.mark.thorough
def test_a_run_of_a_state_dict_needs_it_again_for_its_top_images(tmp_path):
    state = fmapviz.load_model("shapesnet").module.state_dict()
    stars = ["sample_images/shapes/star.jpg", "sample_images/shapes/ring.jpg"]
    summary = fmapviz.visualize("shapesnet", stars, weights=state, out=tmp_path, to="stats")
    with pytest.raises(fmapviz.errors.RequestError, match="does not record where its weights are from"):
        fmapviz.top_images(summary.directory)
    assert fmapviz.top_images(summary.directory, weights=state).images == 2
    with pytest.raises(fmapviz.errors.RefusedError, match="drawn with something else"):
        fmapviz.top_images(summary.directory, weights={key: values * 2 for key, values in state.items()})


def test_user_code_takes_a_state_dict(tmp_path, monkeypatch):
    (tmp_path / "own_given.py").write_text(
        "from torch import nn\ndef build():\n    return nn.Sequential(nn.Conv2d(3, 2, 3))\n"
    )
    monkeypatch.chdir(tmp_path)
    state = {"0.weight": torch.ones(2, 3, 3, 3), "0.bias": torch.zeros(2)}
    model = fmapviz.load_model("own_given.py:build", weights=state)
    assert equal(model.module.state_dict(), state)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "no state dict, which maps names to tensors, but a dict of nothing"),
        ({"a": 1}, "no state dict, which maps names to tensors, but a dict of 'a'"),
        ({"0.weight": torch.zeros(1)}, "the weights in 'the state dict' do not fit: missing conv1.weight"),
        ({"a": {"w": torch.zeros(1)}, "b": {"w": torch.zeros(1)}}, "several|2 state dicts"),
    ],
)
def test_values_that_are_no_state_dict_of_the_network_are_refused(weights, message):
    with pytest.raises(fmapviz.errors.WeightsError, match=message) as caught:
        fmapviz.load_model("resnet18", weights=weights)
    assert caught.value.hint
    assert "--" not in caught.value.hint
    assert "#" not in caught.value.hint


def test_tensors_of_a_state_dict_need_not_be_plain():
    state = torch.nn.Linear(2, 1).state_dict(keep_vars=True)
    read = read_given(state).state
    assert not any(values.requires_grad for values in read.values())
