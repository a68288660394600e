"""Whole runs with gradients and heat maps: their files and cost, and that they do not change the network."""

from __future__ import annotations

import gc
import io
import json
import random
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from image_files import save_picture
from PIL import Image
from results import heats_of
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.image.metadata import parse_plugin_metadata
from tiny_models import Tokens, Training, as_model, images, state_of
from torch import nn
from torchvision import models

import fmapviz
from fmapviz.config import InputOptions, Style
from fmapviz.errors import RequestError
from fmapviz.events import Notice, Outcome
from fmapviz.observe.captured import capture
from fmapviz.observe.gradients import BackwardError
from fmapviz.observe.layers import find_layers, select_layers
from fmapviz.run.forward_pass import Drawer
from fmapviz.run.plan import make_plan
from fmapviz.store.verify import verify

SMALL = InputOptions(size=(16, 24))
GRADIENTS = ("maps", "inputs", "grads", "grad-inputs", "gradcam", "layercam", "saliency", "sheet")


def small():
    """Two convolutions, averages and a linear layer."""
    torch.manual_seed(0)
    maps = nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 6, 3)
    return nn.Sequential(*maps, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))


class Says(nn.Module):
    """A network of two convolutions that applies a given function to its logits."""

    def __init__(self, make=lambda logits: logits):
        super().__init__()
        self.network = small()
        self.make = make

    def forward(self, x):
        return self.make(self.network(x))


@pytest.fixture
def look(picture, tmp_path):
    """Run over a picture; return the summary and the events."""

    def run(model, *, inputs=picture, **options):
        events = []
        common = {"out": tmp_path / "out", "to": ["png"], "preprocessing": SMALL, "workers": 1, "on_event": events.append}
        summary = fmapviz.visualize(model, inputs, **{**common, **options})
        return summary, events

    return run


def names_of(directory):
    return sorted(path.name for path in directory.rglob("*") if path.is_file())


def pictures_of(summary):
    """Return the pictures of a run but those of the input, by name."""
    return {path.name: path for path in summary.directory.rglob("*.png") if path.is_file() and path.name != "input.png"}


def unit_of(summary, name="picture.png"):
    return json.loads((summary.directory / name / "unit.json").read_bytes())


def messages(events):
    return [event.message for event in events if isinstance(event, Notice)]


def notices(events):
    own = [notice for event in events if isinstance(event, Outcome) for notice in event.notices]
    return own + [event.message for event in events if isinstance(event, Notice)]


def read(path):
    with Image.open(path) as image:
        image.load()
        return image


# --- what lies on disk


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """All views of the bundled network, whose classes have names, in both formats."""
    folder = tmp_path_factory.mktemp("everything")
    save_picture(folder / "picture.png")
    events = []
    summary = fmapviz.visualize(
        "shapesnet",
        folder / "picture.png",
        out=folder / "out",
        views=("cam", "eigencam", *GRADIENTS),
        layers=["features.7", "features.0.conv"],
        targets=["top1", "star"],
        to=["png", "tensorboard"],
        on_event=events.append,
    )
    return summary, events


@pytest.mark.thorough
def test_every_picture_has_the_name_of_its_layer_class_and_view(everything):
    summary, _ = everything
    expected = {"sheet.png"}
    for place in ("00_features.0.conv", "01_features.7"):
        expected |= {f"{place}.{view}.png" for view in ("maps", "inputs", "eigencam")}
        for label in ("top1", "star"):
            expected |= {f"{place}.{label}.{view}.png" for view in ("grads", "grad-inputs", "gradcam", "layercam")}
            expected |= {f"00_input.{label}.saliency.png", f"01_features.7.{label}.cam.png"}
    assert pictures_of(summary).keys() == expected
    assert summary.pictures == len(expected) + 1
    assert [problem.path for place in verify(summary.directory.parent) for problem in place.problems] == []


def test_the_record_lists_each_heat_map(everything):
    summary, _ = everything
    record = unit_of(summary)
    top1, star = (
        (heat["target"], heat["class"], heat["class_name"]) for heat in record["heat_maps"] if heat["view"] == "saliency"
    )
    assert top1[0] == "top1"
    assert top1[2] == record["predictions"][0]["class"]
    assert star == ("star", 3, star[2])
    assert star[2] == "star"
    heats = Counter((heat["view"], heat["layer"], heat.get("target")) for heat in record["heat_maps"])
    layers = ("features.0.conv", "features.7")
    assert heats == {
        **{
            (view, layer, label): 1
            for view in ("gradcam", "layercam", "sheet")
            for layer in layers
            for label in ("top1", "star")
        },
        **{("cam", "features.7", label): 1 for label in ("top1", "star")},
        **{("saliency", None, label): 1 for label in ("top1", "star")},
        **{("eigencam", layer, None): 1 for layer in layers},
    }
    assert not any(heat["automatic"] for heat in record["heat_maps"])
    for heat in record["heat_maps"]:
        assert heat["shape"] == {"features.0.conv": [16, 48, 48], "features.7": [96, 12, 12], None: [96, 96]}[heat["layer"]]
        assert heat["min"] <= heat["max"]
        assert ("score" in heat) == (heat["view"] != "eigencam")
    drawn = Counter((layer["name"], layer.get("of"), layer.get("target")) for layer in record["layers"])
    assert drawn == {
        (layer, of, label): 1
        for layer in layers
        for of, label in [(None, None), ("input", None)]
        + [(of, label) for of in ("gradient", "input gradient") for label in ("top1", "star")]
    }
    assert record["undrawn"] == {"cam of features.0.conv": "the class scores are not averages of its maps"}


def test_each_picture_describes_its_content(everything):
    summary, _ = everything
    record, pictures = unit_of(summary), pictures_of(summary)
    for name, path in pictures.items():
        text = read(path).text
        assert (text["Model"], text["Image"]) == (record["model"], "picture.png"), name
        assert text["Predicted"].startswith(record["predictions"][0]["class"])
    heat = next(
        heat
        for heat in record["heat_maps"]
        if (heat["view"], heat["layer"], heat.get("target")) == ("gradcam", "features.7", "star")
    )
    text = read(pictures["01_features.7.star.gradcam.png"]).text
    assert (text["Layer"], text["Type"], text["Shape"]) == ("features.7", "Sequential", "96 x 12 x 12")
    assert heat["logit"] == heat["score"]
    assert text["Class"] == f"star (number 3), probability {heat['probability']:.1%}, logit {heat['logit']:.4g}".replace(
        "%", " %"
    )
    assert text["Range"] == f"{heat['min']:.4g} to {heat['max']:.4g}"
    assert "turbo, 0.5 over the grey input" in text["Scaling"]
    gradient = read(pictures["00_features.0.conv.star.grads.png"]).text
    assert gradient["Shows"] == "the gradient of the class's score at the layer's output"
    assert gradient["Class"] == text["Class"]
    assert read(pictures["00_features.0.conv.inputs.png"]).text["Shows"] == "what goes into the layer"
    sheet = read(pictures["sheet.png"]).text
    assert sheet["Rows"] == "features.0.conv, features.7"
    assert "star (number 3), probability" in sheet["Columns"]


def test_heat_maps_lie_over_the_preprocessed_input(everything):
    summary, _ = everything
    for name, path in pictures_of(summary).items():
        if name.endswith(("cam.png", "saliency.png")):
            drawn = read(path)
            assert drawn.size[0] == 96, name
            assert drawn.size[1] == 96 if name.endswith("eigencam.png") else drawn.size[1] > 96, name  # a caption below
            assert drawn.mode == ("L" if name.endswith("saliency.png") else "RGB")


@pytest.mark.thorough
def test_tensorboard_shows_the_same_pictures_under_titles_with_the_class(everything):
    summary, _ = everything
    (path,) = summary.directory.rglob("events.out.tfevents.*")
    values = [value for data in RawEventFileLoader(str(path)).Load() for value in Event.FromString(data).summary.value]
    found = {value.tag: value for value in values}
    for value in values:
        parse_plugin_metadata(value.metadata.plugin_data.content)  # what TensorBoard's image plugin reads
    star = found["gradcam/01 features.7.star"]
    assert star.metadata.display_name == "01 features.7: star"
    assert bytes(star.tensor.string_val[2]) == pictures_of(summary)["01_features.7.star.gradcam.png"].read_bytes()
    top1 = unit_of(summary)["predictions"][0]["class"]
    assert found["grads/00 features.0.conv.top1"].metadata.display_name == f"00 features.0.conv: {top1}"
    assert found["saliency/00 input.top1"].metadata.display_name == f"00 input: {top1}"
    assert found["sheet/sheet"].metadata.display_name == "sheet"
    assert "&#124;" not in star.metadata.summary_description
    assert "| Class | star (number 3), probability" in star.metadata.summary_description
    assert len(found) == summary.pictures


def test_the_class_and_its_probability_are_below_each_heat_map_by_default(look):
    pictures = {}
    for labels in (None, False, True):
        summary, _ = look(small(), views=["gradcam", "eigencam"], layers=["2"], targets=[4], style=Style(labels=labels))
        pictures[labels] = {name: read(path) for name, path in pictures_of(summary).items()}
    plain, captioned = (np.asarray(pictures[labels]["00_2.class4.gradcam.png"].convert("RGB")) for labels in (False, None))
    assert captioned.shape[0] > plain.shape[0] == 16
    assert np.array_equal(captioned[: plain.shape[0], : plain.shape[1]], plain)
    assert captioned[plain.shape[0] :].any()
    assert pictures[None]["00_2.eigencam.png"].size == pictures[False]["00_2.eigencam.png"].size
    (heat,) = (heat for heat in unit_of(summary)["heat_maps"] if heat["view"] == "gradcam")
    assert (
        f"probability {heat['probability']:.1%}".replace("%", " %")
        in pictures[True]["00_2.class4.gradcam.png"].text["Class"]
    )


def test_an_automatic_choice_is_reported_once_and_in_every_picture(look, folder):
    summary, events = look(small(), inputs=folder, views=["gradcam", "sheet", "saliency"])
    pictures = ["00_2.top1.gradcam.png", "00_input.top1.saliency.png", "input.png", "sheet.png"]
    assert names_of(summary.directory / "img2.png") == [*pictures, "unit.json"]
    (told,) = (message for message in messages(events) if message.startswith("chosen"))
    assert sum("(softmax)" in message for message in messages(events)) == 1
    assert told.startswith("chosen automatically: gradcam of '2'; sheet of ")
    assert "layers=" in told
    assert "saliency" not in told
    heats = [heat for heat in unit_of(summary, "img2.png")["heat_maps"] if heat["view"] == "gradcam"]
    assert [(heat["layer"], heat["automatic"]) for heat in heats] == [("2", True)]
    text = read(summary.directory / "img2.png/00_2.top1.gradcam.png").text
    assert text["Layer"] == "2 (chosen automatically)"
    assert unit_of(summary, "img2.png")["layers"] == []


def test_each_class_has_a_picture(look):
    summary, _ = look(small(), views=["gradcam", "grads"], layers=["2"], targets=["top2", 4, 0])
    labels = ["top1", "top2", "class4", "class0"]
    assert pictures_of(summary).keys() == {f"00_2.{label}.{view}.png" for label in labels for view in ("gradcam", "grads")}
    heats = unit_of(summary)["heat_maps"]
    assert [heat["target"] for heat in heats] == labels
    assert [heat["class"] for heat in heats[2:]] == [4, 0]
    assert heats[0]["score"] >= heats[1]["score"]
    assert {heat["class_name"] for heat in heats} == {None}


def test_a_class_may_have_any_name(look):
    model = replace(as_model(small()), classes=("../a", "tench, Tinca tinca", "ü", "top1", "class3"))
    summary, _ = look(model, views=["saliency"], targets=["tench, tinca Tinca", "../a", 2, 4])
    stems = {"tench%2C%20Tinca%20tinca": 1, "..%2Fa": 0, "class2": 2, "class4": 4}
    assert pictures_of(summary).keys() == {f"00_input.{stem}.saliency.png" for stem in stems}
    for stem, number in stems.items():
        shown = read(pictures_of(summary)[f"00_input.{stem}.saliency.png"]).text["Class"]
        assert shown.startswith(f"{model.classes[number]} (number {number}), ")


@pytest.mark.thorough
def test_finished_images_are_skipped(look):
    options = {"views": GRADIENTS, "layers": ["0", "2"], "targets": "top2"}
    first, _ = look(small(), **options)
    before = {name: path.stat().st_mtime_ns for name, path in pictures_of(first).items()}
    again, _ = look(small(), **options)
    assert ((first.done, first.skipped), (again.done, again.skipped)) == ((1, 0), (0, 1))
    assert {name: path.stat().st_mtime_ns for name, path in pictures_of(again).items()} == before
    other, _ = look(small(), **{**options, "targets": "top1"})
    assert (other.done, other.directory != first.directory) == (1, True)


@pytest.mark.thorough
def test_a_class_in_upper_or_lower_case_is_the_same_run(look):
    model = replace(as_model(small()), classes=("star", "tench, Tinca", "Ring", "ring", "x"))
    first, _ = look(model, views=["gradcam"], targets=["star,top2", "tench, Tinca", "Ring"])
    again, _ = look(model, views=["gradcam"], targets=["STAR, Top2", "Tench, TINCA", "Ring"])
    assert (again.directory, again.skipped) == (first.directory, 1)
    recorded = json.loads((first.directory / "run.json").read_bytes())["settings"]["targets"]
    assert recorded == ["star,top2", "tench, Tinca", "Ring"]
    other, _ = look(model, views=["gradcam"], targets=["star,top2", "tench, Tinca", "ring"])
    assert other.directory != first.directory


@pytest.mark.thorough
@pytest.mark.parametrize("views", [["maps"], ["eigencam", "mean"]])
def test_a_class_that_no_view_needs_is_ignored_with_a_notice(look, views):
    first, _ = look(small(), views=views)
    again, events = look(small(), views=views, targets=[2])
    (notice,) = [event.message for event in events if isinstance(event, Notice)][:1]
    shown = ", ".join(views)
    where = "the page layers-and-views of the guide lists views that do"
    assert notice == f"targets= has no effect: {shown} shows no class; {where}"
    assert (again.directory, again.skipped) == (first.directory, 1)
    _, events = look(small(), views=["maps", "grads"], targets=[2])
    assert not any("targets=" in event.message for event in events if isinstance(event, Notice))


@pytest.mark.thorough
@pytest.mark.parametrize("layers", [(), ("0", "2")])
def test_workers_and_other_pictures_do_not_change_the_result(layers, folder, look, tmp_path):
    found = []
    for number, options in enumerate(({"workers": 1}, {"workers": 2}, {"inputs": folder / "img2.png"}, {"batch_size": 1})):
        views = [view for view in GRADIENTS if layers or view in {"gradcam", "layercam", "saliency", "sheet"}]
        summary, _ = look(
            small(), **{"inputs": folder, "views": views, "layers": layers, "out": tmp_path / str(number), **options}
        )
        unit = summary.directory / "img2.png"
        record = json.loads((unit / "unit.json").read_bytes())
        found.append(({path.name: path.read_bytes() for path in unit.glob("*.png")}, record["heat_maps"], record["layers"]))
    assert len(found[0][0]) == (15 if layers else 5)
    assert found.count(found[0]) == 4


# --- what the network is like afterwards


def everything_of(network):
    """Return the state that a run must not change."""
    named = dict(network.named_parameters())
    return {
        **state_of(network),
        "same gradients": {name: id(values.grad) for name, values in named.items()},
        "numpy": np.random.get_state()[1].tobytes(),  # noqa: NPY002  the generator that anything might use
        "python": random.getstate(),
        "inference": torch.is_inference_mode_enabled(),
        "threads": torch.get_num_threads(),
    }


class FailingBackward(torch.autograd.Function):
    """Returns its input, and fails when it is differentiated."""

    @staticmethod
    def forward(_ctx, x):
        return x.clone()

    @staticmethod
    def backward(_ctx, _gradient):
        raise RuntimeError("no way back")


class Tuned(nn.Module):
    """A network in the middle of fine-tuning: flags, gradients and frozen parts all mixed; it draws random numbers."""

    def __init__(self, make=lambda logits: logits):
        super().__init__()
        torch.manual_seed(0)
        self.training_part = Training()
        self.fc = nn.Linear(2, 5)
        self.make = make
        self.training_part.head[3].weight.grad = torch.ones_like(self.training_part.head[3].weight)
        self.fc.bias.grad = torch.full((5,), 2.0)
        self.fc.weight.requires_grad_(False)

    def forward(self, x):
        maps = self.training_part(x)
        return self.make(self.fc((maps + 1e-3 * torch.rand_like(maps)).mean((2, 3))))


def fail(_logits):
    raise ValueError("no way on")


MIXED = {"success": lambda logits: logits, "forward fails": fail, "backward fails": FailingBackward.apply}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("layers", [(), ("*",)])
@pytest.mark.parametrize("ending", [*MIXED, "refused"])
def test_a_run_leaves_everything_as_it_was(ending, layers, workers, look):
    network = Tuned(MIXED.get(ending, MIXED["success"]))
    targets = [9] if ending == "refused" else ["top2"]
    views = GRADIENTS if layers else ("gradcam", "saliency", "sheet")
    before = everything_of(network)
    if ending == "refused":
        with pytest.raises(RequestError, match="no class 9: the network has 5 outputs"):
            look(network, views=views, layers=layers, targets=targets, workers=workers)
    else:
        summary, _ = look(network, views=views, layers=layers, targets=targets, workers=workers)
        assert (summary.done, summary.failed) == ((1, 0) if ending == "success" else (0, 1))
    assert everything_of(network) == before


UNKNOWN_CLASS = (RequestError, "no class 9")
NOT_EXACT = (RequestError, "cam needs a network that averages its last maps")  # the network draws random numbers
ENDINGS = {"forward fails": (ValueError, "no way on"), "backward fails": (BackwardError, "no way back")}
ENDINGS_OF_METHODS = {
    "gradcam": {**ENDINGS, "refused": UNKNOWN_CLASS},
    "saliency": {**ENDINGS, "refused": UNKNOWN_CLASS},
    "eigencam": ENDINGS,  # of no class
    "cam": {**ENDINGS, "success": NOT_EXACT, "backward fails": NOT_EXACT, "refused": UNKNOWN_CLASS},
}


@pytest.mark.sampled
@pytest.mark.parametrize("method", ENDINGS_OF_METHODS)
@pytest.mark.parametrize("ending", [*MIXED, "refused"])
@pytest.mark.parametrize("frozen", [False, True])
def test_cam_leaves_everything_as_it_was(ending, method, frozen):
    network, x = Tuned(MIXED.get(ending, MIXED["success"])), images()
    if frozen:
        network.requires_grad_(False)
    before = everything_of(network)
    kept = x.clone()
    error, message = ENDINGS_OF_METHODS[method].get(ending, (None, ""))
    with nullcontext() if error is None else pytest.raises(error, match=message):
        fmapviz.cam(network, x, method=method, target=9 if ending == "refused" else 1)
    assert everything_of(network) == before
    assert torch.equal(x, kept)
    assert (x.requires_grad, x.grad, x._version) == (False, None, 0)


@pytest.mark.parametrize("ending", MIXED)
def test_capture_leaves_everything_as_it_was(ending):
    network, x = Tuned(MIXED[ending]), images()
    before = everything_of(network)
    error, message = ENDINGS.get(ending, (None, ""))
    expected = nullcontext() if error is None else pytest.raises(error, match=message)
    with torch.random.fork_rng(), expected, capture(network, gradients=True) as maps:
        maps.backward(network(x)[:, 0])
        assert maps
        assert all(feature_map.gradient.any() for feature_map in maps.values())
    assert everything_of(network) == before
    assert (x.requires_grad, x.grad) == (False, None)


def test_gradients_are_those_of_evaluation_mode_for_any_training_flags():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    found = [fmapviz.cam(network.train(training), images(), target=1, layer="0") for training in (True, False)]
    assert torch.equal(found[0].raw, found[1].raw)
    with torch.no_grad():
        assert torch.allclose(found[0].score, network(images())[:, 1])


def test_an_earlier_request_for_a_gradient_stays_in_effect():
    """A run in the middle of a training step takes nothing away from it."""
    network = small()
    loss = network(images()).square().mean()
    fmapviz.cam(network, images())
    loss.backward()
    expected = small()
    expected(images()).square().mean().backward()
    for one, other in zip(network.parameters(), expected.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("method", ["gradcam", "cam", "eigencam", "saliency"])
def test_cam_works_inside_no_grad_and_inference_mode(off, method):
    network, x = small().eval(), images()
    expected = fmapviz.cam(network, x, method=method)
    with off():
        inside = fmapviz.cam(network, x, method=method)
        made_there = fmapviz.cam(network, images(), method=method)
        assert torch.is_inference_mode_enabled() == (off is torch.inference_mode)
        assert not torch.is_grad_enabled()
        later = images()
    for found in (inside, made_there, fmapviz.cam(network, later, method=method)):
        assert torch.equal(found.raw, expected.raw)
        assert torch.equal(found.map, expected.map)
        assert np.array_equal(found.overlay, expected.overlay)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_a_run_works_inside_no_grad_and_inference_mode(off, look, tmp_path):
    network = small()
    outside, _ = look(network, views=["gradcam", "saliency"], out=tmp_path / "outside")
    with off():
        inside, _ = look(network, views=["gradcam", "saliency"], out=tmp_path / "inside")
    for name, path in pictures_of(outside).items():
        assert path.read_bytes() == pictures_of(inside)[name].read_bytes()


# --- cost


CALLS = Counter()


class Counts(torch.autograd.Function):
    """Returns its input, and counts how often it is differentiated."""

    @staticmethod
    def forward(_ctx, x):
        CALLS["forward"] += not x.is_meta
        return x.clone()

    @staticmethod
    def backward(_ctx, gradient):
        CALLS["backward"] += 1
        return gradient


class Counted(Says):
    def __init__(self):
        super().__init__(Counts.apply)


def counts():
    found = dict(CALLS)
    CALLS.clear()
    return found.get("forward", 0), found.get("backward", 0)


def drawer_of(network, views, *, layers=(), targets="top3", automatic=False):
    plan = make_plan(views, targets=[targets], classes=(), output=None, automatic=automatic)
    chosen = select_layers(find_layers(network), include=layers) if plan.of_layers or layers else []
    return Drawer(as_model(network), chosen, plan, Style())


def test_a_run_takes_one_forward_pass_and_one_backward_pass_per_class():
    counts()
    for views in (GRADIENTS, ["gradcam"], [*GRADIENTS, "cam", "eigencam", "gradcam++", "hirescam", "xgradcam"]):
        with drawer_of(Counted(), views, layers=["network.0", "network.2"]) as drawer:
            drawer.draw(images(2))
            assert counts() == (1, 3)
    with drawer_of(Counted(), ["maps", "inputs"], layers=["network.0"]) as drawer:
        drawer.draw(images(2))
        assert counts() == (1, 0)


def test_a_class_requested_in_two_ways_is_differentiated_once():
    counts()
    with drawer_of(Counted(), GRADIENTS, layers=["network.0"], targets="top3,0,1,2,3,4") as drawer:
        (drawn,) = drawer.draw(images(1))
    assert counts() == (1, 5)
    shown = {heat.target.label: heat for heat in heats_of(drawn) if heat.view == "gradcam"}
    assert len(shown) == 8
    same = shown[f"class{shown['top1'].target.index}"]
    assert np.array_equal(same.raw, shown["top1"].raw)


@pytest.mark.thorough
def test_layers_are_searched_for_once():
    counts()
    with drawer_of(Counted(), GRADIENTS, automatic=True) as drawer:
        drawer.draw(images(1))
        forward, backward = counts()
        assert forward == 1
        assert backward <= 4
        for _ in range(3):
            drawer.draw(images(1))
            assert counts() == (1, 3)


def test_cam_takes_one_forward_and_one_backward_pass():
    network = Counted()
    counts()
    fmapviz.cam(network, images(), layer="network.2")
    assert counts() == (2, 1)  # the other one, without numbers, finds out where the maps lie
    fmapviz.cam(network, images(), layer="network.2")
    assert counts() == (1, 1)
    fmapviz.cam(network, images())
    assert counts()[0] == 1
    fmapviz.cam(network, images(), layer="network.2", method="eigencam")
    assert counts() == (1, 0)


def alive():
    """Count the tensors and the nodes of graphs that are alive."""
    gc.collect()
    kinds = Counter()
    for thing in gc.get_objects():
        kind = type(thing)  # isinstance() would wake up what is lazy
        kinds["tensors"] += issubclass(kind, torch.Tensor)
        kinds["nodes"] += "Backward" in kind.__name__ and hasattr(kind, "next_functions")
    return kinds


@pytest.mark.thorough
@pytest.mark.parametrize("automatic", [False, True])
def test_memory_does_not_grow_with_the_images(automatic):
    network = small()
    found = {}
    layers = () if automatic else ("0", "2")
    views = ["gradcam", "sheet", "saliency"] if automatic else ["gradcam", "grads", "grad-inputs", "sheet", "saliency"]
    batch = images(1, 8)
    with drawer_of(network, views, layers=layers, automatic=automatic) as drawer:
        for number in range(1, 151):
            drawer.draw(batch)
            if number in {30, 150}:
                found[number] = alive()
    assert found[30] == found[150]


class Noted(nn.Module):
    """Notes when the graph behind it is gone."""

    def __init__(self, alive):
        super().__init__()
        self.alive = alive

    def forward(self, x):
        return Notes.apply(x, self.alive)


class Notes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alive):
        ctx.token = Token(alive)
        return x * 2

    @staticmethod
    def backward(_ctx, gradient):
        return gradient * 2, None


class Token:
    def __init__(self, alive):
        self._alive = alive
        alive.append(1)

    def __del__(self):
        self._alive.pop()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ending", ["success", "refused"])
@pytest.mark.parametrize("layers", [(), ("0", "2")])
def test_nothing_of_the_graph_is_alive_after_an_image(layers, ending):
    tokens = []
    network = nn.Sequential(*small()[:3], Noted(tokens), *small()[3:])
    views = ["gradcam", "sheet", "saliency", *(["grads", "grad-inputs"] if layers else [])]
    targets = "top1" if ending == "success" else "9"
    with drawer_of(network, views, layers=layers, targets=targets, automatic=not layers) as drawer:
        if ending == "refused":
            with pytest.raises(RequestError, match="no class 9"):
                drawer.draw(images(1))
        else:
            kept = drawer.draw(images(1))
            assert heats_of(kept[0])
        gc.collect()
        assert tokens == []


# --- refusals and notices


@pytest.mark.parametrize("layers", [(), ("2",)])
def test_a_class_that_the_network_does_not_have_is_refused(layers, look, tmp_path):
    with pytest.raises(RequestError, match="no class 7: the network has 5 outputs") as caught:
        look(small(), views=["gradcam"], layers=layers, targets=[7])
    assert caught.value.exit_code == 2
    assert list((tmp_path / "out").rglob("*")) == []


@pytest.mark.parametrize("targets", [[7], ["0,99"], ["top1", 5]])
def test_a_class_beyond_the_outputs_is_refused_before_a_run_starts(targets, look, tmp_path):
    events = []
    with pytest.raises(RequestError, match="the network has 5 outputs"):
        look(small(), views=["gradcam"], targets=targets, on_event=events.append)
    assert events == []
    assert list((tmp_path / "out").rglob("*")) == []


@pytest.mark.thorough
def test_the_first_of_two_names_of_one_output_has_the_map_of_the_other_sign(look):
    torch.manual_seed(0)
    network = nn.Sequential(*small()[:5], nn.Linear(6, 1))
    twin = nn.Sequential(*network[:5], nn.Linear(6, 2))
    with torch.no_grad():
        twin[5].weight.copy_(torch.cat([-network[5].weight, network[5].weight]) / 2)
        twin[5].bias.copy_(torch.cat([-network[5].bias, network[5].bias]) / 2)
    found = []
    for each in (network, twin):
        model = replace(as_model(each), classes=("benign", "malignant"))
        summary, events = look(
            model, views=["gradcam", "saliency", "grads", "cam"], targets=["benign", "malignant"], to=["npz"]
        )
        (path,) = summary.directory.rglob("*.npz")
        with np.load(path) as stored:
            found.append(
                (
                    unit_of(summary)["heat_maps"],
                    {key: stored[key] for key in stored.files if stored[key].ndim},
                    notices(events),
                )
            )
    (one, ones, said), (two, twos, _) = found
    assert [heat["class_name"] for heat in one] == [heat["class_name"] for heat in two]
    for mine, theirs in zip(one, two, strict=True):
        assert mine["probability"] == pytest.approx(theirs["probability"], abs=1e-6)
        assert mine["scores"] == "sigmoid"
    for key, values in ones.items():
        assert np.corrcoef(values.ravel(), twos[key].ravel())[0, 1] > 0.999, key
    assert any("'malignant' (sigmoid)" in notice for notice in said)


def test_a_wrong_request_detected_with_the_first_image_writes_nothing(look, tmp_path):
    with pytest.raises(RequestError):
        look(small(), views=["gradcam"], targets=[7])
    assert not (tmp_path / "out").exists()


class Aside(nn.Module):
    """Has a branch that the class does not depend on."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.main = nn.Conv2d(3, 4, 3)
        self.aside = nn.Conv2d(4, 4, 3)
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        x = self.main(x)
        self.aside(x)
        return self.fc(x.mean((2, 3)))


def test_a_layer_that_the_class_does_not_depend_on_is_named_with_the_reason(look):
    reason = "the class score does not depend on it"
    summary, _ = look(Aside(), views=["gradcam", "grads"], layers=["main", "aside"])
    assert pictures_of(summary).keys() == {"00_main.top1.gradcam.png", "00_main.top1.grads.png"}
    assert unit_of(summary)["undrawn"] == summary.undrawn == {"gradcam of aside": reason, "grads of aside": reason}
    summary, _ = look(Aside(), views=["gradcam"], layers=["aside"])
    (failure,) = summary.failures
    assert failure.code == "E_NOTHING"
    assert f"'gradcam of aside': {reason}" in failure.message
    assert failure.hint.startswith("layers= and types= choose other layers")
    assert summary.exit_code == 4


class Rounded(nn.Module):
    """A part of it computes with integers."""

    def __init__(self, *, through):
        super().__init__()
        self.round = nn.Identity()
        self.round.forward = lambda x: (x * 4).int()
        self.network = small()
        self.through = through

    def forward(self, x):
        rounded = self.round(x).float()
        return self.network(rounded if self.through else x) + rounded.mean()


def test_a_layer_of_integers_is_named_with_the_reason(look):
    summary, _ = look(
        Rounded(through=False), views=["gradcam", "grads"], layers=["round", "network.2"], types=["Identity", "Conv2d"]
    )
    reason = "no gradient: its values are integers"
    assert summary.undrawn == {"gradcam of round": reason, "grads of round": reason}
    assert pictures_of(summary).keys() == {"01_network.2.top1.gradcam.png", "01_network.2.top1.grads.png"}


def test_layers_behind_integers_have_gradients(look):
    summary, _ = look(Rounded(through=True), views=["gradcam", "saliency"], layers=["network.2"])
    assert pictures_of(summary).keys() == {"00_network.2.top1.gradcam.png"}
    assert summary.undrawn["saliency"].startswith("the class score does not depend on the input")


class Quantized(nn.Module):
    """Its layers compute with quantized numbers."""

    def __init__(self):
        super().__init__()
        self.steps = nn.Identity()
        self.steps.forward = lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)

    def forward(self, x):
        return self.steps(x).dequantize().mean((2, 3))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*quantize.*")
def test_a_quantized_network_is_refused_or_named(look):
    summary, _ = look(Quantized(), views=["gradcam"])
    assert "no gradient flows through the network" in summary.failures[0].message
    assert "quantized" in summary.failures[0].message
    summary, _ = look(Quantized(), views=["gradcam"], layers=["steps"], types=["Identity"])
    assert "quantized" in summary.failures[0].message


@pytest.mark.thorough
def test_a_layer_may_be_chosen_in_a_network_without_convolutions(look):
    torch.manual_seed(0)
    network = nn.Sequential()
    network.add_module("pool", nn.AvgPool2d(2))
    network.add_module("act", nn.GELU())
    network.add_module("head", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 5)))
    automatic, _ = look(network, views=["gradcam"])
    assert pictures_of(automatic).keys() == {"00_act.top1.gradcam.png"}
    chosen, _ = look(network, views=["gradcam"], layers=["act"])
    assert pictures_of(chosen).keys() == {"00_act.top1.gradcam.png"}


class NoGrad(Says):
    def forward(self, x):
        with torch.no_grad():
            return super().forward(x)


def test_a_network_that_records_no_gradients_is_refused(look):
    summary, _ = look(NoGrad(), views=["gradcam"])
    assert "no gradient flows through the network" in summary.failures[0].message
    assert "no_grad" in summary.failures[0].message
    summary, _ = look(NoGrad(), views=["gradcam", "maps"])
    assert summary.done == 1
    assert "no gradient flows" in summary.undrawn["gradcam"]
    summary, _ = look(NoGrad(), views=["gradcam", "maps"], layers=["network.2"])
    assert pictures_of(summary).keys() == {"00_network.2.maps.png"}
    assert "torch.no_grad()" in summary.undrawn["gradcam of network.2"]
    summary, _ = look(NoGrad(), views=["eigencam"], layers=["network.2"])
    assert pictures_of(summary).keys() == {"00_network.2.eigencam.png"}


@pytest.mark.thorough
def test_the_last_block_of_a_vision_transformer_is_refused_with_a_layer_that_has_a_map(look):
    torch.manual_seed(0)
    network = models.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=5).eval()
    nn.init.normal_(network.heads.head.weight)
    options = {"preprocessing": InputOptions(size=(32, 32)), "views": ["gradcam"]}
    summary, _ = look(network, layers=["encoder.layers.encoder_layer_1"], **options)
    assert "choose 'encoder.layers.encoder_layer_1.ln_1'" in summary.failures[0].message
    summary, _ = look(network, layers=["encoder.layers.encoder_layer_1.ln_1"], **options)
    assert pictures_of(summary).keys() == {"00_encoder.layers.encoder_layer_1.ln_1.top1.gradcam.png"}


def test_which_part_of_the_output_holds_the_scores_can_be_chosen(look):
    network = Says(lambda logits: {"main": logits, "aux": (-logits, logits.sum())})
    with pytest.raises(RequestError, match="the network returns several tensors") as caught:
        look(network, views=["saliency"])
    assert "output=" in caught.value.hint
    with pytest.raises(RequestError, match="nothing under 'mian'") as caught:
        look(network, views=["saliency"], output="mian")
    assert caught.value.hint == "did you mean 'main'?"
    found = {}
    for key in ("main", "aux.0"):
        summary, _ = look(network, views=["saliency"], output=key)
        found[key] = unit_of(summary)["heat_maps"][0]
    logits = network.eval().network
    assert found["main"]["class"] != found["aux.0"]["class"]
    assert found["main"]["max"] > 0
    alone, _ = look(Says(lambda logits: (logits,)), views=["saliency"])
    assert unit_of(alone)["heat_maps"][0] == found["main"]
    assert logits is network.network


class Segments(nn.Module):
    """Classifies each pixel into three classes; no pixel is of the last."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.scores = nn.Conv2d(4, 3, 1)
        with torch.no_grad():
            self.scores.bias[2] = -1000

    def forward(self, x):
        return {"out": self.scores(self.conv(x)), "aux": self.conv(x)}


def test_a_class_of_no_pixel_is_reported_and_not_drawn(look):
    summary, events = look(Segments(), views=["gradcam", "grads"], layers=["conv"], targets=["top1", 2])
    assert pictures_of(summary).keys() == {"00_conv.top1.gradcam.png", "00_conv.top1.grads.png"}
    assert "nothing is drawn for class2: no pixel is predicted as that class" in notices(events)
    summary, _ = look(Segments(), views=["gradcam"], targets=[2])
    assert summary.failed == 1
    assert "no pixel is predicted as that class" in summary.failures[0].message


def test_an_empty_map_is_drawn_and_reported_with_its_range(look, picture):
    network = small()
    with torch.no_grad():
        network[5].weight.copy_(-network[5].weight.abs())
        network[2].weight.abs_()
        network[2].bias.fill_(1)
        network[0].bias.fill_(10)
    prepared = InputOptions(size=(16, 24), mean=(0.5,), std=(0.25,))
    summary, events = look(network, views=["gradcam"], targets=[1], preprocessing=prepared)
    (heat,) = unit_of(summary)["heat_maps"]
    assert heat["max"] < 0
    (notice,) = (notice for notice in notices(events) if "automatically" not in notice and "taken as" not in notice)
    assert notice.startswith("gradcam of 2 for class 1 is zero everywhere")
    assert f"{heat['min']:.4g} to {heat['max']:.4g}" in notice
    assert unit_of(summary)["notices"] == [notice]
    assert pictures_of(summary).keys() == {"00_2.class1.gradcam.png"}


class Finds(nn.Module):
    """A detector: one box where a picture is bright, none where it is dark."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        found = []
        for picture in x:
            scores = self.conv(picture[None]).mean().sigmoid()[None][: int(picture.mean() > 0)]
            found.append(
                {"boxes": picture.new_zeros(len(scores), 4), "labels": scores.detach().ceil().long(), "scores": scores}
            )
        return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dark_first", [False, True])
@pytest.mark.parametrize("layers", [(), ("conv",)])
def test_a_detector_without_detections_is_reported_and_the_run_continues(layers, dark_first, look, tmp_path):
    for name, value in (("a.png", 0 if dark_first else 255), ("b.png", 255 if dark_first else 0)):
        Image.new("RGB", (24, 16), (value,) * 3).save(tmp_path / name)
    summary, _ = look(Finds(), inputs=[tmp_path / "a.png", tmp_path / "b.png"], views=["gradcam"], layers=layers)
    dark, bright = ("a.png", "b.png") if dark_first else ("b.png", "a.png")
    assert (summary.done, summary.failed) == (1, 1)
    assert [path.name for path in summary.directory.glob(f"{bright}/*gradcam.png")] == ["00_conv.top1.gradcam.png"]
    (failure,) = summary.failures
    assert failure.path == str(tmp_path / dark)
    assert "the network finds no box" in failure.message


@pytest.mark.thorough
def test_torchvisions_detector_has_no_detections_with_random_weights(look):
    summary, _ = look(
        "fasterrcnn_mobilenet_v3_large_320_fpn",
        weights="random",
        views=["gradcam"],
        preprocessing=InputOptions(size=(64, 96)),
    )
    (failure,) = summary.failures
    assert "no box has a score above 0.05: the highest is" in failure.message


@pytest.mark.thorough
def test_a_network_of_optical_flow_is_refused_with_its_outputs(look):
    with pytest.raises(RequestError, match="the network returns several tensors") as caught:
        look("raft_small", weights="random", views=["gradcam"], preprocessing=InputOptions(size=(128, 128)))
    assert caught.value.hint.startswith("output=KEY")


def test_a_network_without_classes_is_refused(look):
    with pytest.raises(RequestError, match="no class scores in the network's output"):
        look(Tokens(), views=["gradcam"], preprocessing=InputOptions(size=(16, 16)))


@pytest.mark.thorough
def test_a_layer_chosen_automatically_is_numbered_among_the_drawn_ones(look):
    summary, _ = look("shapesnet", views=["gradcam", "maps"])
    names = sorted(pictures_of(summary))
    assert names[-2:] == ["07_features.7.conv.maps.png", "08_features.top1.gradcam.png"]
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)]
    summary, _ = look(
        nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)), views=["gradcam", "maps"]
    )
    assert sorted(pictures_of(summary)) == ["00_0.maps.png", "01_1.maps.png", "01_1.top1.gradcam.png"]


@pytest.mark.thorough
def test_a_network_of_clips_has_one_heat_map(look):
    summary, _ = look("r3d_18", weights="random", views=["gradcam", "saliency"], preprocessing=InputOptions(size=(32, 48)))
    heats = {heat["view"]: heat for heat in unit_of(summary)["heat_maps"]}
    assert pictures_of(summary).keys() == {"00_layer4.top1.gradcam.png", "00_input.top1.saliency.png"}
    assert heats["gradcam"]["shape"] == [512, 2, 2, 3]
    caption = read(pictures_of(summary)["00_layer4.top1.gradcam.png"]).crop((0, 0, 48, 32))
    assert caption.getcolors(9) is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
def test_a_failing_backward_pass_fails_its_image(kind, look):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, x):
            return x.clone()

        @staticmethod
        def backward(_ctx, _gradient):
            raise kind("no way back")

    summary, _ = look(Says(Fails.apply), views=["gradcam"])
    (failure,) = summary.failures
    assert failure.code == "E_MODEL"
    assert "backward pass failed" in failure.message
    assert "no way back" in failure.message


def test_scores_that_are_no_numbers_are_reported(look):
    network = small()
    with torch.no_grad():
        network[5].bias[:] = torch.nan
    summary, _ = look(network, views=["gradcam", "grads"], layers=["2"])
    assert summary.found == summary.done + summary.failed == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("order", [["dark.png", "picture.png"], ["picture.png", "dark.png"]])
def test_scores_that_are_no_numbers_affect_only_their_image(order, look, picture):
    dark = picture.with_name("dark.png")
    Image.new("RGB", (24, 16)).save(dark)

    class Divides(nn.Module):
        """The logits of an image that is black are NaN."""

        def __init__(self):
            super().__init__()
            self.network = small()

        def forward(self, x):
            return self.network(x) * (x.amax((1, 2, 3)) / x.amax((1, 2, 3)))[:, None]

    inputs = [picture.with_name(name) for name in order]
    options = InputOptions(size=(16, 24), mean=(0.0,), std=(1.0,))
    summary, _ = look(Divides(), inputs=inputs, views=["cam", "gradcam"], preprocessing=options)
    assert (summary.done, summary.failed) == (1, 1)
    drawn = {name.partition("_")[2] for name in names_of(summary.directory / "picture.png") if "cam" in name}
    assert drawn == {"network.2.top1.cam.png", "network.2.top1.gradcam.png"}
    assert "nothing is drawn for top1: the class scores are not finite" in summary.failures[0].message
    assert "views='maps'" in summary.failures[0].hint


# --- layers that run again in the backward pass


class Recomputes(nn.Module):
    """Frees the values between its convolutions, and computes them again for the backward pass."""

    def __init__(self):
        super().__init__()
        self.network = small()

    def forward(self, x):
        x = torch.utils.checkpoint.checkpoint(self.network[:3], x * 1, use_reentrant=False)
        return self.network[3:](x)


@pytest.mark.thorough
def test_layers_that_run_again_in_the_backward_pass_are_drawn_once(look, tmp_path):
    options = {"views": ["maps", "inputs", "grads", "grad-inputs"], "targets": "top2"}
    summary, _ = look(Recomputes(), **options)
    plain, _ = look(Says(), out=tmp_path / "plain", **options)
    assert pictures_of(summary).keys() == pictures_of(plain).keys()
    assert summary.undrawn == {}


@pytest.mark.thorough
def test_layers_that_run_again_in_the_backward_pass_are_captured_once():
    found = []
    for network in (Recomputes(), Says()):
        with capture(network, gradients=True) as maps:
            maps.backward(network(images())[:, 1])
        found.append({name: (each.values, each.gradient) for name, each in maps.items()})
    assert found[0].keys() == found[1].keys()
    for name, (values, gradient) in found[0].items():
        assert torch.equal(values, found[1][name][0])
        assert torch.equal(gradient, found[1][name][1])


class Inferring(Says):
    def forward(self, x):
        with torch.inference_mode():
            return super().forward(x)


@pytest.mark.thorough
def test_a_network_in_inference_mode_has_only_maps_without_gradients(look):
    summary, _ = look(Inferring(), views=["gradcam"], layers=["network.2"])
    assert "no gradient" in summary.failures[0].message
    summary, _ = look(Inferring(), views=["eigencam"], layers=["network.2"])
    assert pictures_of(summary).keys() == {"00_network.2.eigencam.png"}


def test_an_image_without_a_map_keeps_its_other_pictures(look, tmp_path):
    """After the layers of a picture of 4 x 4 pixels there is a single pixel left."""
    network = nn.Sequential(nn.Conv2d(3, 4, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    for name, side in (("a.png", 4), ("b.png", 16)):
        Image.new("RGB", (side, side), "red").save(tmp_path / name)
    inputs = [tmp_path / "a.png", tmp_path / "b.png"]
    summary, _ = look(network, inputs=inputs, views=["maps", "gradcam"], preprocessing=InputOptions(fit="none"))
    assert summary.done == 2
    assert {path.name for path in (summary.directory / "a.png").glob("0*.png")} == {"00_0.maps.png"}
    assert {path.name for path in (summary.directory / "b.png").glob("0*.png")} == {"00_0.maps.png", "00_0.top1.gradcam.png"}


def test_each_choice_of_layers_is_reported(look, tmp_path):
    """At the smaller size the second convolution leaves a single pixel."""
    network = nn.Sequential(nn.Conv2d(3, 4, 5), nn.Conv2d(4, 4, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    for name, side in (("a.png", 8), ("b.png", 16)):
        Image.new("RGB", (side, side), "red").save(tmp_path / name)
    inputs = [tmp_path / "a.png", tmp_path / "b.png"]
    _, events = look(network, inputs=inputs, views=["gradcam"], preprocessing=InputOptions(fit="none"))
    told = {event.message for event in events if isinstance(event, Notice) and "automatically" in event.message}
    assert {message.partition("'")[2][0] for message in told} == {"0", "1"}


class Ends(nn.Module):
    """Turns its logits into something else at the end."""

    def __init__(self, end):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.fc, self.end = nn.Conv2d(3, 4, 3), nn.Linear(4, 5), end

    def forward(self, x):
        return self.end(self.fc(self.conv(x).relu().mean((2, 3))) * 9)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("end", [nn.Softmax(1), nn.LogSoftmax(1), nn.Sigmoid(), lambda logits: logits.softmax(-1)])
def test_the_logit_before_a_softmax_is_differentiated(end, look):
    expected = fmapviz.cam(Ends(nn.Identity()), images(2), target=[1, 2])
    found = fmapviz.cam(Ends(end), images(2), target=[1, 2])
    assert found.layer == expected.layer
    assert torch.allclose(found.raw, expected.raw)
    logits = Ends(nn.Identity())(images(2)).detach()
    assert torch.equal(found.score, end(logits)[[0, 1], [1, 2]])
    assert torch.equal(found.logit, logits[[0, 1], [1, 2]])
    probabilities = logits.sigmoid() if isinstance(end, nn.Sigmoid) else logits.softmax(1)
    assert torch.allclose(found.probability, probabilities[[0, 1], [1, 2]])
    _, events = look(Ends(end), views=["gradcam"])
    assert any("ends with a softmax or sigmoid" in notice for notice in notices(events))
    _, events = look(Ends(nn.Identity()), views=["gradcam"])
    assert not any("ends with" in notice or "probabilities" in notice for notice in notices(events))


def test_other_probabilities_are_reported(look):
    network = Ends(lambda logits: logits.exp() / logits.exp().sum(1, keepdim=True))
    _, events = look(network, views=["gradcam"])
    assert any("returns probabilities" in notice for notice in notices(events))


def test_more_classes_than_exist_are_reported_in_one_notice(look):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    summary, events = look(network, views=["gradcam"], targets="top9")
    assert len(pictures_of(summary)) == 4
    assert "nothing is drawn for top5, top6, ... top9: the network has only 4 classes" in notices(events)


@pytest.mark.thorough
def test_names_of_feature_maps_choose_layers(look):
    torch.manual_seed(0)
    network = Twofold()
    for name in ("conv#2", "parts['low']"):
        summary, _ = look(network, views=["gradcam"], layers=[name])
        assert any(name.partition("#")[0].partition("[")[0] in file for file in pictures_of(summary))


class Twofold(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.parts, self.fc = nn.Conv2d(3, 3, 3, padding=1), Low(), nn.Linear(3, 4)

    def forward(self, x):
        return self.fc(self.parts(self.conv(self.conv(x)))["low"].mean((2, 3)))


class Low(nn.Module):
    def forward(self, x):
        return {"low": x * 2}


def test_a_target_may_be_of_torch_or_numpy_and_a_layer_the_module_itself():
    network, x = small(), images(2)
    expected = fmapviz.cam(network, x, target=[1, 2], layer="2")
    for target in (torch.tensor([1, 2]), np.array([1, 2]), [np.int64(1), torch.tensor(2)], (1, "2")):
        found = fmapviz.cam(network, x, target=target, layer=network[2])
        assert torch.equal(found.raw, expected.raw)
        assert found.layer == "2"
    assert fmapviz.cam(network, x, target=torch.tensor(1)).target == (1, 1)
    assert repr(expected).startswith("ClassActivation(layer='2', target=(1, 2), score=[")


@pytest.mark.parametrize(
    "wrong",
    [
        {"target": None}, {"target": 1.5}, {"target": [1]}, {"target": [1, None]}, {"target": True}, {"layer": nn.ReLU()},
        {"layer": None}, {"layer": ["0"]}, {"layer": "nosuch"}, {"method": "maps"}, {"method": "sheet"}, {"x": [1]},
        {"x": None},
        {"x": torch.zeros(2, 3, 8, 8, dtype=torch.int64)}, {"x": torch.zeros(3)},
    ],
)  # fmt: skip
def test_wrong_arguments_of_cam_are_refused_with_a_hint(wrong):
    with pytest.raises(RequestError) as caught:
        fmapviz.cam(small(), **{"x": images(2), **wrong})
    assert caught.value.hint


def test_a_score_that_depends_on_no_captured_layer_is_refused():
    network = small()
    with capture(network, gradients=True) as maps:
        old = network(images(1)).sum()
        network(images(1))
    for score in (old, 3.0):
        with pytest.raises(RequestError):
            maps.backward(score)


def test_a_second_backward_pass_needs_the_graph():
    network = small()
    with capture(network, gradients=True) as maps:
        score = network(images(1)).sum()
    maps.backward(score, retain_graph=True)
    maps.backward(score)
    with pytest.raises(BackwardError) as caught:
        maps.backward(score)
    assert "retain_graph=True" in caught.value.hint


def test_results_of_cam_are_shown_side_by_side_in_a_notebook():
    found = fmapviz.cam(small(), images(2), target=[1, 2], style=Style(colormap="viridis", alpha=0.25))
    assert found.overlay.shape == (2, 16, 16, 3)
    with Image.open(io.BytesIO(found._repr_png_())) as shown:
        assert np.array_equal(np.asarray(shown), np.concatenate(list(found.overlay), axis=1))
    plain = fmapviz.cam(small(), images(2), target=[1, 2], style=Style(alpha=0.0))
    assert not np.array_equal(found.overlay, plain.overlay)
    alone = fmapviz.cam(small(), images(2)[1], target=2, style=Style(alpha=0.0))
    assert np.array_equal(alone.overlay[0], plain.overlay[1])  # alpha 0 is the picture itself


def test_the_report_shows_a_quantity_with_its_unit_and_not_in_percent(look):
    model = replace(as_model(nn.Sequential(*small()[:5], nn.Linear(6, 1))), classes=("age",), scores="value:years", own=True)
    summary, _ = look(model, to=["html"], views=["gradcam"])
    (prediction,) = unit_of(summary)["predictions"]
    assert (prediction["class"], prediction["probability"], prediction["unit"]) == ("age", None, "years")
    page = (summary.directory / "index.html").read_text()
    assert f"age {prediction['score']:.4g}"[:9] in page
    assert " years" in page
    (heat,) = unit_of(summary)["heat_maps"]
    assert (heat["scores"], heat["logit"]) == ("value", None)
