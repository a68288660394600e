"""Receptive fields of models by name, of modules and of loaded models."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torchvision import models

from fmapviz.config import InputOptions
from fmapviz.errors import FmapvizError
from fmapviz.features.fields.receptive_field import receptive_field
from fmapviz.models.load import load_model, outline_model
from fmapviz.run.layer_list import list_layers
from fmapviz.run.places import find_fields, input_shape

SMALL = InputOptions(size=64)


def numbers(fields):
    return {name: (field.rows.tolist(), field.columns.tolist(), field.reason) for name, field in fields.items()}


def network():
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 3))


@pytest.mark.thorough
def test_a_name_a_module_and_a_model_have_the_same_fields():
    by_name = receptive_field("squeezenet1_1", 64)
    assert [*by_name] == [row.name for row in list_layers("squeezenet1_1", preprocessing=SMALL)]
    assert {field.name for field in by_name.values()} == by_name.keys()
    module = models.squeezenet1_1(weights=None)
    for model in (
        module, module.double(), nn.DataParallel(module),
        load_model("squeezenet1_1", weights="random", preprocessing=SMALL),
        outline_model("squeezenet1_1", preprocessing=SMALL),
    ):  # fmt: skip
        assert numbers(receptive_field(model, 64)) == numbers(by_name)


@pytest.mark.thorough
def test_layers_are_chosen_by_name_glob_and_type():
    assert [*receptive_field("resnet18", 64, types="ReLU", layers="layer1.*")] == [
        "layer1.0.relu", "layer1.0.relu#2", "layer1.1.relu", "layer1.1.relu#2",
    ]  # fmt: skip
    assert [*receptive_field("alexnet", layers="features.*", exclude="features.?")] == ["features.10"]
    with pytest.raises(FmapvizError, match="no layer matches"):
        receptive_field("alexnet", layers="nothing.*")


@pytest.mark.parametrize(
    ("size", "options", "picture"),
    [(None, None, (224, 224)), (64, None, (64, 64)), ((64, 96), None, (64, 96)), (None, InputOptions(size=80), (80, 80)),
     (64, InputOptions(fit="pad"), (64, 64))],
)  # fmt: skip
def test_fields_depend_on_the_size_of_the_picture(size, options, picture):
    field = receptive_field("alexnet", size, preprocessing=options)["features.0"]
    assert field.picture == picture
    assert (field.size, field.stride, field.start) == ((11, 11), (4, 4), (-2, -2))
    assert field.rows.shape[1] == (picture[0] + 4 - 11) // 4 + 1


@pytest.mark.thorough
def test_the_size_of_a_loaded_model_can_be_another():
    model = load_model("squeezenet1_1", weights="random", preprocessing=SMALL)
    assert receptive_field(model)["features.0"].picture == (64, 64)
    assert receptive_field(model, (48, 72))["features.0"].picture == (48, 72)


@pytest.mark.parametrize("size", [0, -1, "64", (1, 2, 3), 3.5, (64, 0)])
def test_a_wrong_size_is_refused(size):
    with pytest.raises(FmapvizError):
        receptive_field("alexnet", size)


def test_boxes_are_in_pixels_of_the_input():
    field = receptive_field("alexnet", 64)["features.3"]
    assert field.box(0, 1) == (-10, -18, 41, 33)
    assert field.visible_box(0, 1) == (0, 0, 41, 33)
    assert field.box(6, 6) == (30, 30, 81, 81)
    assert field.visible_box(6, 6) == (30, 30, 64, 64)


def test_a_module_computes_nothing_and_is_left_as_it_was():
    class Caching(nn.Module):
        """It keeps what it computes, as positional encodings do."""

        def __init__(self):
            super().__init__()
            self.conv, self.grid, self.runs = nn.Conv2d(3, 4, 3), None, 0

        def forward(self, x):
            self.runs += x.device.type != "meta"
            if self.grid is None:
                self.grid = torch.zeros(x.shape[-1], device=x.device)
            return self.conv(x + self.grid)

    module = Caching().train()
    module.table = torch.ones(3)  # neither a parameter nor a buffer
    weight = module.conv.weight
    fields = find_fields(replace(outline_model("squeezenet1_1"), module=module), ["conv"], (3, 8, 8))
    assert fields["conv"].size == (3, 3)
    assert (module.runs, module.grid, module.training, module.conv.weight is weight) == (0, None, True, True)
    assert weight.device.type == "cpu"


def test_a_model_that_reads_values_runs_itself():
    class Reading(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)

        def forward(self, x):
            x = self.first(x)
            return self.second(x * float(x.std()))

    module = Reading()
    fields = receptive_field(module, 16)
    assert (fields["first"].size, fields["first"].reason) == ((3, 3), "")
    assert fields["second"].reason == "aten._local_scalar_dense"
    assert not any(each._forward_hooks for each in module.modules())


def test_a_module_that_cannot_be_copied_runs_itself():
    class Locked(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.generator = nn.Conv2d(3, 4, 3), (number for number in range(3))

        def forward(self, x):
            return self.conv(x)

    assert receptive_field(Locked(), 16)["conv"].size == (3, 3)


def test_a_model_that_fails_raises_or_is_unknown():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(5, 4, 3))
    with pytest.raises(FmapvizError, match="the model failed after layer '0'"):
        receptive_field(module, 16)
    fields = find_fields(replace(outline_model("squeezenet1_1"), module=module), ["0", "1"], (3, 16, 16))
    assert {name: field.reason for name, field in fields.items()} == dict.fromkeys("01", "the model failed: RuntimeError")
    assert fields["1"].box(3, 2) == (0, 0, 16, 16)


@pytest.mark.thorough
def test_a_clip_has_the_fields_of_its_pictures():
    fields = receptive_field("r3d_18", 32, layers="layer1.*")
    assert {field.size for field in fields.values()} == {(7 + 4, 7 + 4), (15, 15), (19, 19), (23, 23)}


@pytest.mark.thorough
def test_a_detector_is_followed_from_the_picture_that_it_resizes():
    fields = receptive_field("ssdlite320_mobilenet_v3_large", layers="backbone.features.0.0.*", types="Conv2d")
    field = fields["backbone.features.0.0.0"]
    assert field.picture == (480, 640)
    assert (field.size, field.stride, field.reason) == ((5, 6), (3, 4), "")


# These detectors cannot run without numbers, and take up to half a minute each with them.
SLOW = {*models.list_models(models.detection)} - {"ssdlite320_mobilenet_v3_large"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.zoo if name in SLOW else pytest.mark.thorough) for name in models.list_models()],
)
def test_every_layer_of_every_model_has_a_field_or_a_reason(name):
    rows = list_layers(name, types="Module")
    model = outline_model(name)
    fields = find_fields(model, [row.name for row in rows], input_shape(model))
    if any(field.reason.startswith("the model failed") for field in fields.values()):  # a detector
        model = load_model(name, weights="random")
        fields = find_fields(model, [row.name for row in rows], input_shape(model))
    named = {key.partition("#")[0].partition("[")[0] for key in fields}
    assert {row.name for row in rows if row.index is not None} - named == set()
    for field in fields.values():
        assert field.reason or (field.rows[0] <= field.rows[1]).all(), field
        assert not field.reason.startswith("the model failed"), field
