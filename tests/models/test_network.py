"""Networks of the user: their inputs, and awkward ones of each kind."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from image_files import paint
from PIL import Image
from tiny_models import Backwards, Recursive, Training, Twins, state_of
from torch import nn
from torchvision.models import resnet18

import fmapviz
import fmapviz.models.sources.torchvision as torchvision_source
from fmapviz.errors import RequestError
from fmapviz.models.network import input_channels
from fmapviz.run.tile import tile


def small(channels, *, width=4):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(channels, width, 3), nn.ReLU(inplace=True), nn.Conv2d(width, 3, 3)).eval()


def run(network, inputs, tmp_path, **options):
    return fmapviz.visualize(network, inputs, out=tmp_path / "out", to="png", **options)


@pytest.fixture
def picture(tmp_path):
    return paint(tmp_path / "picture.png", size=(40, 50))


def layers_of(summary, name="picture.png"):
    return {layer["name"]: layer for layer in json.loads((summary.directory / name / "unit.json").read_text())["layers"]}


# --- channels


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6])
def test_the_first_convolution_determines_the_channels(channels):
    assert input_channels(small(channels)) == channels


def test_a_convolution_that_runs_last_does_not_determine_the_channels():
    network = Backwards()
    before = state_of(network)
    assert network.last.in_channels == 5
    assert input_channels(network) == 3
    assert state_of(network) == before
    assert input_channels(nn.Sequential(nn.Linear(3, 3))) == 3


@pytest.mark.sampled(1)
@pytest.mark.parametrize("channels", [1, 2, 4, 6])
def test_arrays_and_tiff_files_of_many_channels_are_drawn(channels, tmp_path):
    values = np.random.default_rng(channels).random((48, 56, channels), np.float32)
    np.save(tmp_path / "last.npy", values)
    np.save(tmp_path / "first.npy", values.transpose(2, 0, 1))
    names = ["first.npy", "last.npy"]
    if channels > 1:
        tifffile.imwrite(
            tmp_path / "planes.tif", values.transpose(2, 0, 1), photometric="minisblack", planarconfig="separate"
        )
        names.append("planes.tif")
    network = small(channels)
    options = fmapviz.InputOptions(fit="none", mean=(0.25,), std=(0.5,))
    summary = run(network, [tmp_path / name for name in names], tmp_path, preprocessing=options)
    assert (summary.done, summary.failures) == (len(names), ())
    with torch.no_grad():
        batch = (torch.from_numpy(values).permute(2, 0, 1)[None] - 0.25) / 0.5
        expected = tile(nn.functional.conv2d(batch, network[0].weight, network[0].bias)[0])
    for name in names:
        with Image.open(summary.directory / name / "00_0.maps.png") as drawn:
            assert np.array_equal(np.asarray(drawn), expected.numpy())
        with Image.open(summary.directory / name / "input.png") as seen:
            assert (seen.mode, seen.size) == ("L" if channels < 3 else "RGB", (56, 48))
            shown = np.asarray(seen).reshape(48, 56, -1)
            assert np.abs(shown - values[..., : shown.shape[2]] * 255).max() <= 0.51


def test_a_grey_network_takes_pictures_as_grey(tmp_path, picture):
    network = small(1)
    summary = run(network, picture, tmp_path, preprocessing=fmapviz.InputOptions(fit="none", mean=(0.0,), std=(1.0,)))
    with Image.open(picture) as image:
        grey = np.asarray(image.convert("L"))
    with torch.no_grad():
        values = torch.from_numpy(grey.astype(np.float32) / 255)[None, None]
        expected = tile(nn.functional.conv2d(values, network[0].weight, network[0].bias)[0])
    with Image.open(summary.directory / "picture.png" / "00_0.maps.png") as drawn:
        assert np.array_equal(np.asarray(drawn), expected.numpy())
    with Image.open(summary.directory / "picture.png" / "input.png") as seen:
        assert np.array_equal(np.asarray(seen), grey)


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("channels", [1, 4])
def test_torchvisions_networks_take_other_channels_with_weights_for_them(channels, tmp_path, picture):
    torch.manual_seed(0)
    network = resnet18(num_classes=3)
    network.conv1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
    torch.save({"model": network.state_dict(), "classes": ["cat", "dog", "cow"]}, tmp_path / "own.pth")
    model = fmapviz.load_model("resnet18", weights=str(tmp_path / "own.pth"))
    assert (model.preparation.channels, model.classes) == (channels, ("cat", "dog", "cow"))
    assert [word in " ".join(model.notices) for word in (f"{channels} channel", "3 classes")] == [True, True]
    np.save(tmp_path / "picture.npy", np.random.default_rng(0).random((channels, 40, 50), np.float32))
    events = []
    summary = run(model, tmp_path / "picture.npy", tmp_path, on_event=events.append)
    assert (summary.done, summary.layers) == (1, 20)
    (outcome,) = (event for event in events if isinstance(event, fmapviz.events.Outcome))
    assert sum(each.score for each in outcome.predictions) == pytest.approx(1)
    if channels == 1:
        assert run(model, picture, tmp_path, name="grey").done == 1


def test_a_published_file_is_recognised_by_its_digest():
    entry = torchvision_source._entry_with_digest("resnet50", "11ad3fa6" + "0" * 56)
    assert (entry.name, entry.meta["categories"][1]) == ("IMAGENET1K_V2", "goldfish")
    assert torchvision_source._entry_with_digest("resnet50", "11ad3fa7" + "0" * 56) is None


def test_a_picture_for_a_network_of_other_channels_is_refused_with_the_number(tmp_path, picture):
    np.save(tmp_path / "five.npy", np.zeros((5, 40, 50), np.float32))
    summary = run(small(4), [picture, tmp_path / "five.npy"], tmp_path)
    first, second = sorted(summary.failures, key=lambda failure: failure.path, reverse=True)
    assert (first.code, second.code) == ("E_CHANNELS", "E_CHANNELS")
    assert "4 channels" in first.message + (first.hint or "")
    assert ".npy" in first.message + (first.hint or "")
    assert "5 x 40 x 50" in second.message


def test_layers_of_networks_of_other_channels_are_listed():
    for channels in (1, 2, 4, 6):
        assert fmapviz.list_layers(small(channels))[0].shape == (4, 222, 222)


# --- awkward ones


class DictOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        x = self.conv(x)
        return {"features": x, "more": [x * 2, (x * 3, "text")]}


@dataclass
class Result:
    maps: torch.Tensor
    vector: torch.Tensor
    note: str = ""


class DataclassOutput(DictOutput):
    def forward(self, x):
        x = self.conv(x)
        return Result(x, x.mean((2, 3)))


class Holder(nn.Module):
    """Holds a network as its only part, so that the network is a layer."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return self.part(x)


class ReturnsInput(nn.Module):
    def forward(self, x):
        return x


class InPlace(nn.Module):
    """Every step works on the same memory."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5, inplace=True)

    def forward(self, x):
        x.add_(1)
        x = self.drop(self.relu(self.conv(x)))
        return x.mul_(2).zero_()


class Complex(DictOutput):
    def forward(self, x):
        return torch.fft.fft2(self.conv(x))


class Hooked(nn.Sequential):
    """Has hooks of its own, one of which changes what a layer returns."""

    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3), nn.ReLU())
        self.seen = []
        self[0].register_forward_hook(lambda _module, _args, output: output * 3)


def reference(network, batch, layer):
    """What a layer returns, as a plain hook that copies sees it."""
    kept = []
    hook = layer.register_forward_hook(lambda _module, _args, output: kept.append(output.clone()))
    try:
        with torch.no_grad():
            network(batch)
    finally:
        hook.remove()
    return kept


def test_dictionaries_and_dataclasses_are_flattened(tmp_path, picture):
    summary = run(Holder(DictOutput()), picture, tmp_path, types=["DictOutput"])
    assert list(layers_of(summary)) == ["part['features']", "part['more'][0]", "part['more'][1][0]"]
    summary = run(Holder(DataclassOutput()), picture, tmp_path, types=["DataclassOutput"])
    assert {name: layer["shape"] for name, layer in layers_of(summary).items()} == {
        "part.maps": [4, 222, 222],
        "part.vector": [4],
    }


def test_shared_and_recursive_layers_are_drawn_once_per_call(tmp_path, picture):
    torch.manual_seed(0)
    summary = run(Twins(), picture, tmp_path)
    assert list(layers_of(summary)) == ["query.0", "query.0#2"]
    summary = run(Recursive(), picture, tmp_path)
    assert list(layers_of(summary)) == ["conv", "conv#2", "conv#3"]


def test_outputs_are_drawn_despite_in_place_operations(tmp_path, picture):
    torch.manual_seed(0)
    network = InPlace().eval()
    before = state_of(network)
    summary = run(network, picture, tmp_path, types=["Conv2d", "ReLU", "Dropout"])
    assert state_of(network) == before
    with Image.open(summary.directory / "picture.png" / "input.png") as seen:
        batch = torch.from_numpy(np.asarray(seen).copy()).permute(2, 0, 1)[None] / 255
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    x = nn.functional.conv2d((batch - mean) / std + 1, network.conv.weight, network.conv.bias)
    layers = layers_of(summary)
    assert layers["conv"]["min"] == pytest.approx(x.min().item(), abs=0.02)
    assert layers["conv"]["max"] == pytest.approx(x.max().item(), abs=0.02)
    assert (layers["relu"]["min"], layers["drop"]["min"]) == (0, 0)
    assert layers["drop"]["max"] == layers["relu"]["max"] == layers["conv"]["max"]


def test_a_module_that_returns_its_input_is_drawn_as_it(tmp_path, picture):
    summary = run(nn.Sequential(ReturnsInput(), nn.Conv2d(3, 4, 3)), picture, tmp_path, types=["ReturnsInput", "Conv2d"])
    layers = layers_of(summary)
    assert layers["0"]["shape"] == [3, 224, 224]
    assert layers["1"]["shape"] == [4, 222, 222]


def test_hooks_of_the_network_work_and_stay(tmp_path, picture):
    torch.manual_seed(0)
    network = Hooked().eval()
    own = dict(network[0]._forward_hooks)
    summary = run(network, picture, tmp_path)
    assert dict(network[0]._forward_hooks) == own
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    plain.load_state_dict(network.state_dict())
    tripled, once = (layers_of(each)["0"]["max"] for each in (summary, run(plain, picture, tmp_path, name="plain")))
    assert tripled == pytest.approx(3 * once)


def test_complex_outputs_are_reported_and_the_others_are_drawn(tmp_path, picture):
    summary = run(Holder(Complex()), picture, tmp_path, types=["Complex", "Conv2d"])
    assert list(layers_of(summary)) == ["part.conv"]
    assert dict(summary.undrawn) == {"part": "complex values (1, 4, 222, 222)"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_half_and_double_precision_are_drawn_as_computed(tmp_path, picture, dtype):
    network = small(3).to(dtype)
    before = state_of(network)
    summary = run(network, picture, tmp_path)
    assert state_of(network) == before
    single = layers_of(run(small(3), picture, tmp_path, name="single"))
    for name, layer in layers_of(summary).items():
        assert layer["max"] == pytest.approx(single[name]["max"], rel=0.03, abs=0.03)


@pytest.mark.thorough
def test_wrappers_are_unwrapped(tmp_path, picture):
    wrapped = {
        "parallel": nn.DataParallel(small(3)),
        "compiled": torch.compile(small(3), backend="eager"),
        "both": torch.compile(nn.DataParallel(small(3)), backend="eager"),
    }
    expected = layers_of(run(small(3), picture, tmp_path))
    for name, network in wrapped.items():
        assert layers_of(run(network, picture, tmp_path, name=name)) == expected


def test_a_network_in_training_is_drawn_in_evaluation_and_left_in_training(tmp_path, picture):
    torch.manual_seed(0)
    network = Training().train()
    before = state_of(network)
    assert run(network, picture, tmp_path).done == 1
    assert state_of(network) == before


class TwoInputs(DictOutput):
    def forward(self, image, mask):
        return self.conv(image) * mask


class NoInput(DictOutput):
    def forward(self):
        return 1


class Optional(DictOutput):
    def forward(self, image, mask=None, *rest, scale=1.0, **more):
        assert (mask, rest, scale, more) == (None, (), 1.0, {})
        return self.conv(image)


def test_two_inputs_are_an_error_with_the_signature_and_optional_ones_are_not(tmp_path, picture):
    for network, signature in ((TwoInputs(), "forward(image, mask)"), (NoInput(), "forward()")):
        for look in (lambda: run(network, picture, tmp_path), lambda: fmapviz.list_layers(network)):  # noqa: B023
            with pytest.raises(RequestError) as caught:
                look()
            assert signature in str(caught.value)
        assert not (tmp_path / "out").exists()
    assert run(Optional(), picture, tmp_path).done == 1


class Raises(DictOutput):
    def forward(self, x):
        x = self.conv(x)
        raise ValueError(f"a picture of {x.shape[-1]} columns")


def test_a_forward_pass_that_raises_fails_the_image_with_layer_reason_and_traceback(tmp_path, picture):
    network = Raises()
    before = state_of(network)
    summary = run(network, picture, tmp_path)
    assert state_of(network) == before
    (failure,) = summary.failures
    assert (failure.code, summary.exit_code) == ("E_MODEL", 4)
    assert "after layer 'conv': ValueError: a picture of 222 columns" in failure.message
    assert failure.report.endswith("ValueError: a picture of 222 columns")
    assert Path(__file__).name in failure.report


@pytest.mark.thorough
def test_scripted_and_exported_programs_are_refused(tmp_path, picture):
    network = small(3)
    exported = torch.export.export(network, (torch.zeros(1, 3, 32, 32),))
    with warnings.catch_warnings(action="ignore"):  # announces its own end
        traced = torch.jit.trace(network, torch.zeros(1, 3, 32, 32))
    for program in (traced, exported):
        with pytest.raises(RequestError, match="cannot hook a"):
            run(program, picture, tmp_path)
