"""The network that comes with the package, used as any other."""

from __future__ import annotations

import json

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from fmapviz.config import InputOptions
from fmapviz.errors import WeightsError
from fmapviz.models.load import load_model, model_names, outline_model
from fmapviz.models.shapesnet.network import CLASSES, WEIGHTS
from fmapviz.run.layer_list import list_layers

SHAPES = ("circle", "cross", "ring", "square", "star", "triangle")


def test_the_bundled_model_is_found_by_name():
    assert model_names("shapesnet") == ["shapesnet"]
    assert sorted(CLASSES) == sorted(SHAPES)


def test_the_command_predicts_each_sample(fmapviz, samples, tmp_path):
    done = fmapviz("shapesnet", samples / "shapes", "--to", "png,tensorboard", "--json", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    images = [event for event in events if event["event"] == "image"]
    seen = {event["path"].rpartition("/")[2].partition(".")[0]: event["predictions"] for event in images}
    assert sorted(seen) == sorted(SHAPES)
    for shape, predictions in seen.items():
        assert predictions[0]["class"] == shape
        assert predictions[0]["score"] > 0.95
        assert CLASSES[predictions[0]["index"]] == shape
        unit = next((tmp_path / "out" / "shapesnet").glob(f"{shape}.*"))
        assert json.loads((unit / "unit.json").read_bytes())["predictions"] == predictions
        with Image.open(unit / "input.png") as picture:
            assert picture.text["Predicted"].startswith(f"{shape} ")
            assert picture.text["Model"] == "shapesnet (trained)"
        assert f"| Predicted | {shape} ".encode() in next(unit.glob("events.*")).read_bytes()
        assert any(line.partition(": ")[2].startswith(f"{shape} ") for line in done.stderr.decode().splitlines())


def test_layers_of_the_bundled_model_are_chosen_by_name():
    rows = list_layers("shapesnet", types=["Conv2d", "BatchNorm2d", "ReLU"])
    assert [row.name for row in rows[:4]] == ["features.0.conv", "features.0.norm", "features.0.relu", "features.1.conv"]
    assert rows[-1].shape == (96, 12, 12)
    assert all(values.is_meta for values in outline_model("shapesnet").module.parameters())


def test_weights_of_the_bundled_model_may_be_random_or_of_a_file(tmp_path):
    state = load_file(WEIGHTS)
    save_file({f"module.{key}": value for key, value in state.items()}, tmp_path / "own.safetensors")
    own, trained, random, other = (
        load_model("shapesnet", weights=weights)
        for weights in (str(tmp_path / "own.safetensors"), "default", "random", "random:5")
    )
    for key, value in trained.module.state_dict().items():
        assert torch.equal(value, own.module.state_dict()[key])
        assert torch.equal(value, state[key].to(value.dtype))
    assert (own.weights, own.classes) == ("own.safetensors", CLASSES)
    assert trained.weights == "trained"
    assert (random.weights, random.classes) == ("random weights, seed 0", ())
    assert not torch.equal(random.module.classifier.weight, other.module.classifier.weight)
    with pytest.raises(WeightsError, match="no such weights or file"):
        load_model("shapesnet", weights="IMAGENET1K_V1")


def test_options_change_the_preprocessing_of_the_bundled_model(samples):
    with Image.open(samples / "shapes.png") as picture:
        model = load_model("shapesnet", preprocessing=InputOptions(size=(64, 80)))
        assert model.preparation.apply(picture.convert("RGB")).shape == (3, 64, 80)
        assert load_model("shapesnet").preparation.apply(picture.convert("RGB")).shape == (3, 96, 96)
