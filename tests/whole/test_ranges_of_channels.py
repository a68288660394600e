"""Caption, colour bar, pixels and record have one range for all choices of range and channels."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from itertools import product

import numpy as np
import pytest
import torch
from cases import each_once, often, thorough
from image_files import paint, pixels_of, text_of
from tiny_models import TwoConvolutionsAndHead, outputs_of
from tiny_runs import AS_IT_IS, runner
from torch import nn

from fmapviz.config import Style
from fmapviz.core.drawings import Grid
from fmapviz.draw.grid import lay_out, measure
from fmapviz.draw.picture import render_grid
from fmapviz.events import Notice
from fmapviz.views import kernels, maps
from fmapviz.views.base import LayerMaps

NORMS = ["channel", "layer", "run", "signed", "signed-layer", "signed-run", "fixed:-1,1.5"]
CHANNELS = ["all", "0", "4,1", "1-3", "0-2,9", "top:2", "top:3:mean", "top:4:std", "top:99"]
NUMBER = r"-?\d[\d.e+-]*"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    return [paint(folder / f"{seed}.png", seed=seed, size=(16, 20 + 4 * seed)) for seed in range(3)]


@pytest.fixture(scope="module")
def net():
    return TwoConvolutionsAndHead(5, 6, 4, padding=1)


def known(net, images):
    """Return what the layers return for each image, by layer."""
    from PIL import Image
    from torchvision.transforms.functional import normalize, pil_to_tensor

    found = {"first": [], "second": []}
    for path in images:
        pixels = normalize(pil_to_tensor(Image.open(path)) / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        for name, values in outputs_of(deepcopy(net), pixels[None], tuple(found)).items():
            found[name].append(values)
    return found


def expected(norm, every, image, channel):
    """Return the values that are black and white: of a channel of an image, the layer in it, or in all images."""
    if norm.startswith("fixed"):
        return -1.0, 1.5
    values = {"channel": every[image][channel], "layer": every[image], "run": torch.cat([each.flatten() for each in every])}
    own = values["channel" if norm == "signed" else norm.removeprefix("signed-")]
    low, high = float(own.min()), float(own.max())
    largest = max(abs(low), abs(high))
    return (-largest, largest) if norm.startswith("signed") else (low, high)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("norm", "channels"),
    [pytest.param(*each, marks=[] if each[1] == "4,1" else [pytest.mark.thorough]) for each in product(NORMS, CHANNELS)],
)
def test_pixels_captions_and_records_have_one_range(tmp_path, net, images, norm, channels):
    style = Style(norm=norm, channels=channels, colormap="gray", labels=False)
    summary = runner(lambda: net, out=tmp_path, preprocessing=AS_IT_IS, to=["png"])(
        images, style=style, layers=["first", "second"]
    )
    assert not summary.failures
    values = known(net, images)
    for image, path in enumerate(images):
        unit = summary.directory / path.name
        records = {each["name"]: each for each in json.loads((unit / "unit.json").read_text())["layers"]}
        for index, layer in enumerate(("first", "second")):
            file = unit / f"{index:02}_{layer}.maps.png"
            pixels, facts, own = pixels_of(file), text_of(file), values[layer][image]
            shown = records[layer].get("channels", list(range(len(own))))
            assert facts.get("Channels", ", ".join(map(str, range(len(own))))) == ", ".join(map(str, shown))
            whose = ", of all channels" if "Channels" in facts else ""
            assert facts["Range"] == f"{own.min():.4g} to {own.max():.4g}{whose}"
            assert (records[layer]["min"], records[layer]["max"]) == pytest.approx(
                (float(own.min()), float(own.max())), rel=1e-5
            )
            tiles = lay_out(len(shown), *own.shape[1:], style)
            ends = set()
            for place, channel in enumerate(shown):
                left, top = tiles.corner(place)
                levels = pixels[top : top + tiles.height, left : left + tiles.width].astype(float)
                low, high = expected(norm, values[layer], image, channel)
                ends.add((low, high))
                middle = 0.5 if norm.startswith("signed") else 0
                there = ((own[channel].numpy().clip(low, high) - low) / (high - low)) * 255 + middle
                assert abs(levels - there).max() < 1.01, (layer, channel)
            told = [float(each) for each in re.findall(NUMBER, facts["Scaling"])][:2]
            if "channel" in facts["Scaling"]:
                assert norm in {"channel", "signed"}
            else:
                (one,) = ends
                assert "layer's minimum" in facts["Scaling"] or told == pytest.approx(one, rel=1e-3)


@pytest.mark.sampled
@pytest.mark.parametrize(("norm", "channels"), list(product(NORMS, CHANNELS)))
def test_the_colour_bar_has_the_range_of_the_caption(norm, channels):
    values = torch.randn(1, 6, 5, 7, generator=torch.Generator().manual_seed(2)) * torch.arange(1, 7)[:, None, None]
    style = Style(norm=norm, channels=channels)
    content = maps.draw(LayerMaps(values, measure(values, moments=True)), style)
    grid = content.make(
        **{name: (each[0].numpy() if each.ndim > 1 else each.item()) for name, each in content.tensors.items()}
    )
    assert isinstance(grid, Grid)
    marks = dict(render_grid(grid, style).marks)
    if norm in {"channel", "signed"}:
        assert (marks[0.0], marks[1.0]) == (("min", "max") if norm == "channel" else ("-max", "max"))
        return
    low, high = expected(norm, [values[0]], 0, 0)
    assert (float(marks[0.0]), float(marks[1.0])) == pytest.approx((low, high), rel=1e-3)
    assert (marks.get(0.5) == "0") == norm.startswith("signed")


@pytest.mark.sampled
@pytest.mark.parametrize("inputs", [1, 3, 4])
@pytest.mark.parametrize("norm", ["layer", "run", "signed-layer", "signed-run"])
@pytest.mark.parametrize("channels", ["all", "0-2", "top:2"])
def test_kernels_of_some_filters_have_the_range_of_all(inputs, norm, channels):
    module = nn.Conv2d(inputs, 8, 3)
    with torch.no_grad():
        module.weight[5] *= 10
        module.weight[5, 0, 0, 0] = -9.0
    weight = kernels.weight_of(module)
    grid = kernels.draw(weight, Style(norm=norm, channels=channels))
    low, high = float(weight.min()), float(weight.max())
    assert grid.limits == pytest.approx((-9.0, 9.0) if norm.startswith("signed") else (low, high))
    every, some = (
        kernels.draw(weight, Style(norm=norm, channels=each, colormap="gray", padding=0)) for each in ("all", "1")
    )
    step = every.tiles.width // (3 if inputs != 4 else 12)
    own = every.pixels[every.tiles.corner(1)[1] :, every.tiles.corner(1)[0] :][: every.tiles.height, : every.tiles.width]
    single = some.tiles.width // (3 if inputs != 4 else 12)
    assert np.array_equal(own[::step, ::step], some.pixels[: some.tiles.height : single, : some.tiles.width : single])


# --- channels that do not exist


MISSING = {
    "1-3,500": "names channels that do not exist: ",
    "0,2": "",
    "top:6": "asks for more channels than there are: ",
    "top:99:std": "asks for more channels than there are: ",
    "top:3:mean": "",
}
VIEWS_OF_CHANNELS = ["maps", "inputs", "grads", "kernels"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("view", "channels"),
    [
        *often(each_once(VIEWS_OF_CHANNELS, MISSING), of=product(VIEWS_OF_CHANNELS, MISSING)),
        ("top", "1-3,500"),  # it takes a list only
        *thorough(("top", "0,2")),
    ],
)
def test_chosen_channels_that_do_not_exist_are_reported(tmp_path, images, view, channels):
    told, events = MISSING[channels], []
    runner(lambda: TwoConvolutionsAndHead(5, 6, 4, padding=1), out=tmp_path, preprocessing=AS_IT_IS, to=["png"], workers=1)(
        images, views=view, style=Style(channels=channels), layers=["first", "second"], on_event=events.append
    )
    found = [each.message for each in events if isinstance(each, Notice) and each.message.startswith("channels=")]
    lacking = "first has 3" if view == "inputs" else "first has 5"
    assert len(found) == bool(told)
    if told:
        assert found[0].startswith(f"channels='{channels}' {told}{lacking}") or view == "top"
        assert ("second has 6" in found[0]) == (channels != "top:6" and view != "inputs")
