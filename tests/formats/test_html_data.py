"""The data of an image in its report.js, against hooks and NumPy."""

from __future__ import annotations

import json
import os
from base64 import b64decode
from urllib.parse import unquote_to_bytes

import numpy as np
import pytest
import torch
from image_files import paint
from PIL import Image
from report_runs import cut_tiles, report_of
from tiny_models import outputs_of
from tiny_runs import AS_IT_IS, runner, styled
from torch import nn

from fmapviz.run.loop import visualize

MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
SIZE = (24, 30)


class Net(nn.Module):
    """Two convolutions with zeros, a dead channel and values that are not finite between them, and a vector."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first = nn.Conv2d(3, 6, 3, stride=2)
            self.relu = nn.ReLU()
            self.odd = nn.Identity()
            self.second = nn.Conv2d(6, 5, 3)
            self.head = nn.Linear(5, 11)

    def forward(self, x):
        x = self.relu(self.first(x))
        odd = x.clone()
        odd[:, 2] = 0
        odd[:, 3, 0] = torch.nan
        odd[:, 3, 1, :2] = torch.inf
        odd[:, 4] = -torch.inf
        self.odd(odd)
        return self.head(self.second(x).mean((2, 3)))


LAYERS = ("first", "relu", "odd", "second", "head")
TYPES = ["Conv2d", "ReLU", "Identity", "Linear"]


@pytest.fixture
def picture(tmp_path):
    return paint(tmp_path / "in/a b%.png", size=SIZE)


@pytest.fixture
def look(tmp_path, picture):
    draw = styled(runner(Net, out=tmp_path / "out", preprocessing=AS_IT_IS, workers=1, to=["html"], types=TYPES))

    def run(model=None, inputs=None, **options):
        summary = draw(inputs or [picture], model, **options)
        assert not summary.failures
        return summary.directory / picture.name

    return run


def shown(unit, view="maps"):
    """Return the pictures of layers of one view, by the layer's name."""
    return {each["layer"]["name"]: each for each in report_of(unit)["pictures"] if each["view"] == view}


def pixels_of(unit, record):
    with Image.open(unit / os.fsdecode(unquote_to_bytes(record["href"]))) as image:
        return np.asarray(image)


def hooked(path, layers=LAYERS):
    with Image.open(path) as image:
        pixels = (np.asarray(image, np.float32) / 255 - MEAN) / STD
    returned = outputs_of(Net(), torch.from_numpy(pixels).permute(2, 0, 1)[None], layers)
    return {name: maps.numpy() for name, maps in returned.items()}


def reference(maps):
    """Describe each channel: minimum, maximum, mean, deviation, shares of zeros and of values that are not finite."""
    rows = []
    for channel in maps.astype(np.float64).reshape(len(maps), -1):
        finite = channel[np.isfinite(channel)]
        own = (finite.min(), finite.max(), finite.mean(), finite.std()) if len(finite) else (np.nan, np.nan, np.nan, 0)
        rows.append((*own, (channel == 0).mean(), 1 - len(finite) / len(channel)))
    return np.array(rows).T


def numbers(record):
    return np.frombuffer(b64decode(record["statistics"]["data"]), "<f4").reshape(6, -1)


def tiles(unit, record):
    return cut_tiles(pixels_of(unit, record), record["tiles"])


LOOKS = [
    {},
    {"padding": 0},
    {"columns": 1, "padding": 7},
    {"columns": 99, "scale": 3},
    {"labels": True, "colorbar": True},
    {"labels": True, "padding": 0, "scale": 2, "columns": 4},
    {"colormap": "viridis", "labels": True},
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("style", LOOKS)
def test_the_recorded_position_of_each_tile_is_right(look, picture, style):
    unit = look(**style)
    scale = style.get("scale", 1)
    maps = hooked(picture)
    for layer, record in shown(unit).items():
        found = tiles(unit, record)
        assert len(found) == len(maps[layer])
        if layer in {"odd", "head"}:
            continue
        for tile, channel in zip(found, maps[layer], strict=True):
            small = tile[::scale, ::scale]
            assert np.array_equal(small.repeat(scale, 0).repeat(scale, 1), tile)
            span = max(float(channel.max() - channel.min()), 1e-5)
            levels = ((channel - channel.min()) / span * 255 + 0.5).astype(int)
            if small.ndim == 2:
                assert abs(small.astype(int) - levels).max() <= 1
            else:  # equal values have equal colours, and others others
                order = levels.ravel().argsort(kind="stable")
                colours = small.reshape(-1, 3)[order].astype(int)
                assert abs(np.diff(colours, axis=0)[np.diff(levels.ravel()[order]) == 0]).max(initial=0) <= 8


def test_the_numbers_of_each_channel_equal_numpys(look, picture):
    maps = hooked(picture)
    records = shown(look())
    assert list(records) == list(LAYERS)
    for layer, record in records.items():
        assert record["statistics"]["values"] == maps[layer][0].size
        np.testing.assert_allclose(numbers(record), reference(maps[layer]), rtol=2e-5, atol=1e-6)
        assert record["layer"]["shape"] == list(maps[layer].shape)
        assert record["layer"]["type"] == type(Net().get_submodule(layer)).__name__
        assert record["layer"]["index"] == LAYERS.index(layer)


@pytest.mark.thorough
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "channels",
    ["0,2-3,77", "5,0", "top:3", "top:3:mean", "top:99:std"],
)
def test_chosen_channels_are_recorded_with_their_numbers(look, picture, channels):
    maps = hooked(picture)
    for layer, record in shown(look(channels=channels)).items():
        count = len(maps[layer])
        chosen = record["channels"]
        if "top" in channels:
            _, high, mean, deviation, *_ = reference(maps[layer])
            rank = {"top:3": high, "top:3:mean": mean, "top:99:std": deviation}[channels]
            order = np.argsort(-np.nan_to_num(rank, nan=-np.inf), kind="stable")[: int(channels.split(":")[1])].tolist()
            if layer not in {"odd", "head"}:
                assert chosen == order
            assert sorted(chosen) == sorted(set(chosen))
        else:
            wanted = [0, 2, 3, 77] if channels.startswith("0") else [0, 5]
            assert sorted(chosen) == [number for number in wanted if number < count]
        assert record["tiles"]["count"] == len(chosen)
        np.testing.assert_allclose(numbers(record), reference(maps[layer])[:, chosen], rtol=2e-5, atol=1e-6)


@pytest.mark.thorough
def test_addresses_and_sizes_are_those_of_the_files(look):
    unit = look(views=["maps", "mean", "max", "contact", "histogram", "inputs", "grads"], labels=True)
    pictures = report_of(unit)["pictures"]
    files = {os.fsdecode(unquote_to_bytes(each["href"])) for each in pictures}
    assert files == {path.name for path in unit.glob("*.png")}
    assert len(files) == len(pictures)
    for each in pictures:
        assert pixels_of(unit, each).shape[1::-1] == (each["width"], each["height"])
        facts = dict(each["facts"])
        with Image.open(unit / os.fsdecode(unquote_to_bytes(each["href"]))) as image:
            assert image.text == facts
        assert (each["statistics"] is not None) is (each["tiles"] is not None)
        if each["view"] in {"input", "contact"}:
            assert (each["layer"], each["tiles"]) == (None, None)
        else:
            assert each["layer"]["name"] in LAYERS
    assert {each["view"] for each in pictures if each["tiles"]} == {"maps", "inputs", "grads"}
    assert pictures[0]["view"] == "input"


def test_inputs_and_gradients_have_their_own_numbers(look, picture):
    """What goes into the second convolution is what the ReLU returns; the gradient is autograd's."""
    unit = look(views=["inputs", "grads"], targets=[4], layers=["second"])
    maps = hooked(picture)
    np.testing.assert_allclose(numbers(shown(unit, "inputs")["second"]), reference(maps["relu"]), rtol=2e-5, atol=1e-6)
    model, kept = Net().eval(), []
    model.second.register_forward_hook(
        lambda _module, _given, result: (result.retain_grad(), kept.append(result))[2:] or None
    )
    with Image.open(picture) as image:
        pixels = (np.asarray(image, np.float32) / 255 - MEAN) / STD
    model(torch.from_numpy(pixels).permute(2, 0, 1)[None])[0, 4].backward()
    record = shown(unit, "grads")["second"]
    np.testing.assert_allclose(numbers(record), reference(kept[0].grad[0].numpy()), rtol=1e-4, atol=1e-7)


def test_the_counts_of_a_histogram_equal_numpys(look, picture):
    maps = hooked(picture)
    for layer, record in shown(look(views=["histogram"]), "histogram").items():
        values = maps[layer][np.isfinite(maps[layer])]
        found = record["histogram"]
        assert (found["low"], found["high"]) == pytest.approx((values.min(), values.max()))
        assert found["nonfinite"] == maps[layer].size - values.size
        assert abs(np.subtract(found["counts"], np.histogram(values, len(found["counts"]))[0])).sum() <= 4  # at the edges


def test_facts_of_the_image_are_text(tmp_path, look):
    odd = tmp_path / "in" / os.fsdecode(b"<b>\xff&'\".png")
    Image.new("RGB", SIZE).save(odd, format="PNG")
    unit = look(inputs=[odd]).parent
    (found,) = unit.glob("*/report.js")
    document = report_of(found.parent)
    document["source"].encode("ascii", "strict")
    assert json.loads((found.parent / "unit.json").read_bytes())["unit"]["name"].startswith(document["unit"])
    assert document["predictions"] == []


def test_predictions_and_notices_are_recorded(tmp_path, samples):
    options = {"to": "html", "out": tmp_path, "workers": 1, "layers": "*conv*", "predictions": 2}
    summary = visualize("shapesnet", [samples / "shapes/star.jpg"], **options)
    unit = summary.directory / "star.jpg"
    document, record = report_of(unit), json.loads((unit / "unit.json").read_bytes())
    assert [each.split()[0] for each in document["predictions"]] == [each["class"] for each in record["predictions"]]
    assert document["notices"] == record["notices"]
    assert document["source"] == str(samples / "shapes/star.jpg")


def test_kernels_are_recorded(look, tmp_path):
    look(views=["kernels"], types="Conv2d", labels=True)
    unit = tmp_path / "out/net/_model"
    records = shown(unit, "kernels")
    assert list(records) == ["first", "second"]
    # With three input channels a tile is a filter; otherwise a filter is a row of tiles without numbers.
    assert (records["first"]["tiles"]["count"], records["second"]["tiles"]) == (6, None)
    weight = Net().first.weight.detach().numpy()
    assert np.allclose(numbers(records["first"]), reference(weight), rtol=1e-4, atol=1e-6)
    for tile, kernel in zip(tiles(unit, records["first"]), weight, strict=True):
        scale = len(tile) // 3
        levels = (kernel - kernel.min()) / (kernel.max() - kernel.min()) * 255 + 0.5
        assert abs(tile[::scale, ::scale].astype(int) - levels.transpose(1, 2, 0).astype(int)).max() <= 1
