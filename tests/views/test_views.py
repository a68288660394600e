"""Views declare their needs; inputs of layers are drawn as they were before the layer ran."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from results import as_grids, drawings_of
from tiny_models import Calls, Tokens, as_model, images, overwritten
from torch import nn
from torchvision import models

import fmapviz
from fmapviz.config import Style, options_of
from fmapviz.core import registry
from fmapviz.core.members import load
from fmapviz.draw.grid import measure
from fmapviz.events import Notice
from fmapviz.observe.layers import find_layers, select_layers
from fmapviz.run.forward_pass import Drawer
from fmapviz.run.plan import Plan, make_plan
from fmapviz.run.tile import tile
from fmapviz.views import CONTRIBUTION
from fmapviz.views import maps as maps_view
from fmapviz.views.base import LayerMaps

VIEWS = registry.views()
OF_OTHERS = {"attention", "rollout", "boxes"}  # networks than a classifier of convolutions
OF_ANY = [name for name, view in VIEWS.items() if view.networks == 1 and name not in OF_OTHERS]
DRAWN = {"maps": "output", "inputs": "input", "grads": "gradient", "grad-inputs": "input gradient", "histogram": "output"}
REDUCED = {"mean", "max", "contact"}

# --- the family


CHANGES = {"norm": "signed", "columns": 3, "padding": 7, "channels": "0,1", "scale": 2, "colormap": "magma", "alpha": 0.9}
CHANGES |= {"gray_input": False, "labels": True, "colorbar": True, "pca": "shared", "smooth": True, "query": "0,0"}
CHANGES |= {"anchor": "ring.jpg:20,70", "clusters": 3, "foreground": True, "with_input": True}
CHANGES_OF_LABELLED = {"background": "white", "text_size": 20}
ANCHORED = {"anchor": "star.jpg:40,40"}


def drawn_by_view(inputs, out, **style):
    """Return the pixels of each picture by view and name, in a run of all views."""
    run = fmapviz.visualize(
        "shapesnet",
        inputs,
        out=out,
        to="png",
        views=OF_ANY,
        layers=["features.[01].conv", "features"],
        style=Style(**ANCHORED | style),
        steps=4,
        samples=8,
    ).directory
    pictures = {name: [] for name in OF_ANY}
    for path in sorted(run.rglob("*.*.png")) + sorted(run.rglob("contact.png")) + sorted(run.rglob("sheet.png")):
        if path.is_file() and not path.name.startswith("input"):
            view = next(part for part in reversed(path.stem.split(".")) if not part.isdecimal())  # behind it the page
            pictures[view].append(Image.open(path).tobytes())
    return pictures


@pytest.fixture(scope="module")
def plain(samples, tmp_path_factory):
    """The inputs, and their pictures without labels and with them."""
    inputs = [samples / "shapes" / f"{name}.jpg" for name in ("star", "ring")]
    runs = [drawn_by_view(inputs, tmp_path_factory.mktemp("plain"), **common) for common in ({}, {"labels": True})]
    assert all(map(all, (run.values() for run in runs)))
    return inputs, *runs


@pytest.mark.thorough
@pytest.mark.parametrize("option", [*CHANGES, *CHANGES_OF_LABELLED])
def test_an_option_of_style_changes_only_pictures_of_views_that_declare_it(option, plain, tmp_path):
    inputs, without, labelled = plain
    if option in CHANGES:
        before, changed = without, drawn_by_view(inputs, tmp_path, **{option: CHANGES[option]})
    else:
        before, changed = labelled, drawn_by_view(inputs, tmp_path, labels=True, **{option: CHANGES_OF_LABELLED[option]})
    found = {view for view in OF_ANY if changed[view] != before[view]}
    assert found == {view for view in OF_ANY if option in VIEWS[view].looks}


def test_each_option_of_style_is_changed():
    assert CHANGES.keys() | CHANGES_OF_LABELLED.keys() == options_of(Style).keys()


@pytest.mark.thorough
def test_an_option_of_style_without_effect_is_reported_and_makes_no_other_run(samples, tmp_path):
    events = []

    def draw(views, **style):
        return fmapviz.visualize(
            "shapesnet", samples / "shapes" / "star.jpg", out=tmp_path, to="png", views=views, layers=["features"],
            style=Style(**style), on_event=events.append,
        )  # fmt: skip

    first = draw(["mean", "max"])
    assert not [event for event in events if isinstance(event, Notice)]
    again = draw(["mean", "max"], columns=4, padding=0)
    assert (again.directory, again.skipped) == (first.directory, 1)
    (notice,) = (event.message for event in events if isinstance(event, Notice))
    assert notice.startswith("columns=, padding= have no effect on mean, max; ")
    assert draw(["mean", "max"], alpha=0.7).directory != first.directory
    events.clear()
    draw(["maps", "mean"], columns=4, alpha=0.7)
    assert not [event for event in events if isinstance(event, Notice) and "no effect" in event.message]


def test_a_plan_sorts_views_by_their_needs():
    names = [view.name for view in CONTRIBUTION.views]
    assert {*names} >= {"kernels", *DRAWN, *REDUCED}
    plan = make_plan(names, targets=["top2", "star"], classes=("circle", "star"), output="out", automatic=True)
    for need in set(DRAWN.values()):
        drawn = {name: plan.draws[need].get(name) for name, needed in DRAWN.items() if needed == need}
        assert drawn == {name: load(VIEWS[name].draw) for name in drawn}
    assert plan.draws["output"].keys() >= REDUCED
    assert plan.reductions == REDUCED
    assert (plan.unscaled, plan.sheets.keys()) == ({"histogram"}, {"contact"})
    assert not plan.second_pass
    assert plan.networks == 1
    assert plan.of_model.keys() == {"kernels"}
    assert not plan.observations
    assert [each.label for each in plan.targets] == ["top1", "top2", "star"]
    assert (plan.output, plan.automatic) == ("out", True)


# --- what goes into a layer


def inputs_of(network, batch, *, types, layers=(), forward=nn.Module.__call__):
    """Return what the view of inputs is handed to draw, by name, and the drawings."""
    given = []

    def draw(maps, style):
        given.append(maps.values.clone())
        return maps_view.draw(maps, style)

    chosen = select_layers(find_layers(network), types=types, include=layers)
    with Drawer(as_model(network, forward=forward), chosen, Plan({"input": {"inputs": draw}}), Style()) as drawer:
        drawn = drawer.draw(batch)
    drawings = drawings_of(drawn[0])
    assert all(drawing.of == "input" for drawing in drawings)
    return dict(zip([drawing.layer for drawing in drawings], given, strict=True)), drawings


def test_the_input_of_a_layer_that_overwrites_it_is_drawn_as_it_was():
    torch.manual_seed(0)
    network = models.alexnet(weights=None).eval()
    batch = images(1, 64)
    found, drawings = inputs_of(network, batch, types=["ReLU"], layers=["features.*"])
    assert list(found) == ["features.1", "features.4", "features.7", "features.9", "features.11"]
    x = batch
    with torch.no_grad():
        for number, module in enumerate(network.features):
            name = f"features.{number}"
            if name in found:
                assert torch.equal(found[name], x), name
                assert found[name].min() < 0  # not what the ReLU has left
                drawing = next(drawing for drawing in drawings if drawing.layer == name)
                assert np.array_equal(drawing.pixels, tile(x[0]).numpy())
                assert (drawing.shape, drawing.statistics.minimum) == (tuple(x.shape[1:]), x.min().item())
            x = module(x.clone())


def test_the_input_of_the_first_layer_is_the_picture():
    found, (first, second) = inputs_of(overwritten(), images(), types=["Conv2d"])
    assert torch.equal(found["0"], images())
    assert [(drawing.index, drawing.call) for drawing in (first, second)] == [(0, 1), (1, 1)]


def test_every_call_has_its_own_input():
    network, batch = Calls().eval(), images()
    found, drawings = inputs_of(network, batch, types=["Conv2d", "ReLU"])
    names = ["relu", "conv", "relu#2", "conv#2", "relu#3"]
    assert list(found) == names
    assert [(drawing.index, drawing.call) for drawing in drawings] == [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3)]
    with torch.no_grad():
        x = batch - 1
        for name in names:
            assert torch.equal(found[name], x), name
            x = x.relu() if name.startswith("relu") else network.conv(x)


def test_the_index_of_a_block_is_that_of_its_entry():
    """Its output comes after those of its parts, its input before theirs."""
    network = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()))
    _, drawings = inputs_of(network, images(), types=["Sequential", "Conv2d", "ReLU"])
    assert [(drawing.index, drawing.layer) for drawing in drawings] == [(0, "0"), (1, "0.0"), (2, "0.1")]


@pytest.mark.thorough
def test_a_list_of_tensors_is_drawn_one_by_one():
    torch.manual_seed(0)
    network = models.densenet121(weights=None).eval()
    found, _ = inputs_of(network, images(1, 32), types=["_DenseLayer"], layers=["features.denseblock1.denselayer[13]"])
    block = "features.denseblock1.denselayer"
    assert list(found) == [f"{block}1[0]", f"{block}3[0]", f"{block}3[1]", f"{block}3[2]"]
    assert [values.shape[1] for values in found.values()] == [64, 64, 32, 32]
    assert torch.equal(found[f"{block}1[0]"], found[f"{block}3[0]"])
    norms, _ = inputs_of(network, images(1, 32), types=["BatchNorm2d"], layers=[f"{block}3.norm1"])
    assert torch.equal(norms[f"{block}3.norm1"], torch.cat([found[f"{block}3[{part}]"] for part in range(3)], 1))


class Scaled(NamedTuple):
    maps: torch.Tensor
    factor: float


class Takes(nn.Module):
    """Is called with keyword arguments, a named tuple and things that are no tensors."""

    def forward(self, scaled, *, offset, more=None, flag=True):
        assert isinstance(scaled, Scaled)
        assert flag
        return scaled.maps * scaled.factor + offset + more["last"][0]


class Gives(nn.Module):
    def __init__(self):
        super().__init__()
        self.takes = Takes()

    def forward(self, x):
        return self.takes(Scaled(x, 2.0), offset=x + 1, more={"last": (x + 2,)}, flag=True)


@pytest.mark.parametrize("gradients", [False, True])
def test_inputs_in_keyword_arguments_and_containers_are_drawn(gradients):
    network, batch, given = Gives(), images(), {}

    def draw(maps, _style):
        given[len(given)] = maps.values
        return as_grids(maps.values.new_zeros(len(maps.values), 1, 1).byte())

    views = {"kept": draw}
    plan = Plan({"input gradient" if gradients else "input": views})
    layers = select_layers(find_layers(network), types=["Takes"])
    outputs = []

    def forward(module, x):
        outputs.append(module(x))
        return outputs[0].mean((2, 3))

    with Drawer(as_model(network, forward=forward), layers, plan, Style()) as drawer:
        (drawn, _) = drawer.draw(batch)
    assert [drawing.layer for drawing in drawings_of(drawn)] == [
        "takes[0][0]",
        "takes['offset']",
        "takes['more']['last'][0]",
    ]
    assert torch.allclose(outputs[0], batch * 4 + 3)
    if not gradients:
        assert [torch.equal(given[number], batch + number) for number in range(3)] == [True] * 3
        return
    for number, factor in enumerate((2, 1, 1)):
        share = torch.zeros(2, 3)
        share[range(2), outputs[0].mean((2, 3)).argmax(1)] = factor / 256
        assert torch.allclose(given[number], share[:, :, None, None].expand(2, 3, 16, 16))


def test_input_tokens_and_vectors_are_drawn_like_outputs():
    network = Tokens().eval()
    found, drawings = inputs_of(network, images(), types=["LayerNorm", "Linear"], layers=["encoder.layers.0.*"])
    first = next(drawing for drawing in drawings if drawing.layer == "encoder.layers.0.norm1")
    assert found["encoder.layers.0.norm1"].shape == (2, 16, 8, 8)
    assert first.shape == (65, 16)
    head = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    found, (drawing,) = inputs_of(head, images(2, 2), types=["Linear"])
    assert torch.equal(found["1"].flatten(1), images(2, 2).flatten(1))
    assert drawing.shape == (12,)


def test_drawing_inputs_does_not_change_the_pictures_of_outputs():
    network = overwritten()
    layers = select_layers(find_layers(network), types=["Conv2d", "ReLU"])
    (maps, both, more) = (
        make_plan(views, targets=(), classes=(), output=None, automatic=False)
        for views in (["maps"], ["maps", "inputs"], ["maps", "inputs", "grads", "grad-inputs"])
    )
    found = []
    for plan in (maps, both, more):
        with Drawer(as_model(network, forward=lambda module, x: module(x).mean((2, 3))), layers, plan, Style()) as drawer:
            (drawn, _) = drawer.draw(images())
        found.append([drawing for drawing in drawings_of(drawn) if drawing.of == "output"])
    for one, two, three in zip(*found, strict=True):
        assert one.statistics == two.statistics == three.statistics
        assert np.array_equal(one.pixels, two.pixels)
        assert np.array_equal(one.pixels, three.pixels)


def test_a_dictionary_that_creates_entries_is_passed_on():
    """Inputs of layers may be objects that cannot be built from their entries."""

    class Sums(nn.Module):
        def forward(self, parts):
            return parts["maps"] + parts.missing

    class Parts(dict):
        def __init__(self, missing, maps):
            super().__init__(maps=maps)
            self.missing = missing

    class Gives(nn.Module):
        def __init__(self):
            super().__init__()
            self.sums = Sums()

        def forward(self, x):
            return self.sums(Parts(1, x)).mean((2, 3))

    network = Gives()
    plan = make_plan(["grad-inputs"], targets=["0"], classes=(), output=None, automatic=False)
    with Drawer(as_model(network), select_layers(find_layers(network), types=["Sums"]), plan, Style()) as drawer:
        (drawn, _) = drawer.draw(images())
    assert [drawing.layer for drawing in drawings_of(drawn)] in ([], ["sums['maps']"])


class Ignores(nn.Module):
    """Goes on with the tensor that a layer has overwritten, not with what it returned."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        x = self.conv(x)
        self.relu(x)
        return x.mean((2, 3))


def test_a_layer_in_place_whose_result_is_ignored_still_runs():
    network = Ignores()
    plan = make_plan(["grad-inputs"], targets=["0"], classes=(), output=None, automatic=False)
    returned = []

    def forward(module, x):
        returned.append(module(x))
        return returned[0]

    layers = select_layers(find_layers(network), types=["ReLU"])
    with Drawer(as_model(network, forward=forward), layers, plan, Style()) as drawer:
        drawer.draw(images())
    assert torch.equal(returned[0], network(images()))


def test_all_channels_are_drawn_by_default():
    values = torch.tensor([[[[1.0]], [[2.0]]]])
    content = maps_view.draw(LayerMaps(values, measure(values)), Style())
    assert "channels" not in content.tensors
    assert torch.equal(content.tensors["pixels"], tile(values))
