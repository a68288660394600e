"""Layers are listed as they run, for any kind of model."""

from __future__ import annotations

import json
import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cases import thorough
from PIL import Image
from torch import nn
from torchvision import models

from fmapviz.config import InputOptions
from fmapviz.errors import FmapvizError, RequestError
from fmapviz.models.load import load_model, outline_model
from fmapviz.run.layer_list import list_layers
from fmapviz.run.loop import visualize
from fmapviz.types import LayerInfo

SIZE = (96, 96)
SMALL = InputOptions(size=SIZE)


def watch(network, kind, *batch):
    """Run a network under plain hooks: which layers of a kind ran when, how often and with which shape."""
    first, shapes, calls, position = {}, {}, Counter(), 0

    def hook(module, _args, output):
        nonlocal position
        name = names[module]
        first.setdefault(name, position)
        shapes.setdefault(name, tuple(output.shape[1:]))
        calls[name] += 1
        position += 1

    names = {module: name for name, module in network.named_modules() if isinstance(module, kind)}
    handles = [module.register_forward_hook(hook) for module in names]
    with torch.no_grad():
        network.eval()(*batch)
    for handle in handles:
        handle.remove()
    counts = {name: sum(values.numel() for values in module.parameters()) for module, name in names.items()}
    return {name: (first.get(name), shapes.get(name), calls[name], count) for name, count in counts.items()}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("resnet18", nn.ReLU),
        *thorough(
            ("googlenet", nn.Conv2d),
            ("swin_t", nn.LayerNorm),
            ("mobilenet_v3_small", nn.Hardswish),
            ("squeezenet1_1", nn.MaxPool2d),
            ("vit_b_32", nn.Linear),
            ("densenet121", nn.Conv2d),
            ("mobilenet_v3_small", nn.Conv2d),
            ("resnet18", nn.BatchNorm2d),
            ("shufflenet_v2_x0_5", nn.Conv2d),
        ),
    ],
)
def test_the_layer_list_equals_a_real_forward_pass(name, kind):
    real = watch(load_model(name, weights="random", preprocessing=SMALL).module, kind, torch.zeros(1, 3, *SIZE))
    rows = list_layers(name, types=[kind.__name__], preprocessing=SMALL)
    assert {row.name: (row.index, row.shape, row.calls, row.parameters) for row in rows} == real
    executed = [row.index for row in rows if row.index is not None]
    assert executed == sorted(executed)
    assert [row.index is None for row in rows] == sorted(row.index is None for row in rows)


@pytest.mark.thorough
def test_layers_that_do_not_run_are_listed_last():
    rows = list_layers("googlenet", preprocessing=SMALL)
    assert len(rows) == 59
    assert [(row.name, row.index, row.shape, row.calls) for row in rows[-2:]] == [
        ("aux1.conv.conv", None, None, 0),
        ("aux2.conv.conv", None, None, 0),
    ]
    assert all(row.calls == 1 for row in rows[:-2])
    assert rows[-1].parameters == 528 * 128


@pytest.mark.thorough
def test_a_detectors_heads_run_once_per_level_of_the_pyramid():
    """As a module of its own, for smaller pictures: its usual size takes seconds."""
    detector = models.get_model("retinanet_resnet50_fpn", weights=None, weights_backbone=None, min_size=64, max_size=64)
    model = replace(
        load_model("squeezenet1_1", weights="random", preprocessing=SMALL),
        module=detector,
        forward=lambda net, x: net(list(x)),
    )
    rows = list_layers(model)
    again = [row for row in rows if row.calls > 1]
    assert len(again) == 10
    assert {row.calls for row in again} == {5}
    assert all("head" in row.name for row in again)
    assert [row for row in rows if row.index is None] == []


@pytest.mark.thorough
def test_a_detector_by_name_runs_although_its_steps_depend_on_values():
    rows = list_layers("ssdlite320_mobilenet_v3_large", layers=["backbone.features.0.*", "head.*.0.1"])
    assert [(row.name, row.shape) for row in rows[:1]] == [("backbone.features.0.0.0", (16, 160, 160))]
    assert {row.name.split(".")[1] for row in rows if row.name.startswith("head")} == {
        "classification_head",
        "regression_head",
    }
    assert {row.calls for row in rows} == {1}


@pytest.mark.thorough
def test_repeated_calls_of_optical_flow_are_counted():
    rows = list_layers("raft_small", preprocessing=InputOptions(size=(128, 128)))
    calls = {row.name: row.calls for row in rows}
    assert calls["feature_encoder.convnormrelu.0"] == 1  # both frames as one batch
    assert calls["update_block.flow_head.conv1"] == 12


def test_a_model_of_videos_lists_its_own_kind_of_convolution():
    rows = list_layers("r3d_18", preprocessing=InputOptions(size=(32, 32)))
    assert {row.type for row in rows} == {"Conv3DSimple", "Conv3d"}
    assert rows[0] == LayerInfo(
        0, "stem.0", "Conv3d", (64, 16, 16, 16), 64 * 441, 1, layout="N C T H W",
        macs=64 * 16**3 * 441, parameter_bytes=4 * 64 * 441, output_bytes=4 * 64 * 16**3,
    )  # fmt: skip


def test_layers_are_chosen_by_type_and_glob():
    def names(**choice):
        return [row.name for row in list_layers("alexnet", **choice)]

    assert names() == [f"features.{number}" for number in (0, 3, 6, 8, 10)]
    assert names(layers=["features.1*", "features.3"]) == ["features.3", "features.10"]
    assert names(exclude=["features.?"]) == ["features.10"]
    assert names(types=["Linear"], layers=["classifier.*"]) == ["classifier.1", "classifier.4", "classifier.6"]
    assert names(types=["Linear", "MaxPool2d"])[:2] == ["features.2", "features.5"]
    assert len(names(types=["Module"])) == len(list(models.alexnet(weights=None).named_modules())) - 1
    for choice in ({"types": ["Conv9d"]}, {"layers": ["nothing.*"]}, {"exclude": ["*"]}):
        with pytest.raises(RequestError):
            names(**choice)
    with pytest.raises(RequestError, match="no such model: 'alexnt'"):
        list_layers("alexnt")


# Modules of one's own


class Twice(nn.Module):
    """One convolution under two names that runs three times, and one that does not run."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.never = nn.Conv2d(3, 5, 1)
        self.block = nn.Sequential(nn.ReLU(inplace=True), self.first)

    def forward(self, x):
        return self.block(self.block(self.first(x)))


def test_a_module_under_two_names_is_one_layer():
    assert list_layers(Twice(), preprocessing=SMALL) == [
        LayerInfo(0, "first", "Conv2d", (3, 96, 96), 81, 3, ("block.1",), "N C H W", 3 * 81 * 96**2, 324, 4 * 3 * 96**2),
        LayerInfo(None, "never", "Conv2d", None, 20, 0, parameter_bytes=80),
    ]
    assert [row.name for row in list_layers(Twice(), layers=["block.*"], preprocessing=SMALL)] == ["first"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_module_runs_in_its_own_precision_and_is_left_as_it_was(dtype):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Conv2d(4, 6, 3)).to(dtype).train()
    network[2].eval()
    before = {key: values.clone() for key, values in network.state_dict().items()}
    random = torch.get_rng_state()
    rows = list_layers(network, preprocessing=SMALL)
    assert [(row.name, row.shape) for row in rows] == [("0", (4, 94, 94)), ("3", (6, 92, 92))]
    assert [module.training for module in network] == [True, True, False, True]
    assert all(torch.equal(values, before[key]) for key, values in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


def test_outputs_of_layers_are_not_kept():
    """All layers of a detector together would be gigabytes."""

    class Chain(nn.Sequential):
        def forward(self, x):
            outputs = []
            for layer in self:
                x = layer(x)
                outputs.append(weakref.ref(x.untyped_storage()))
            self.alive = sum(output() is not None for output in outputs)
            return x

    chain = Chain(*(nn.Conv2d(3, 3, 1) for _ in range(5)))
    assert len(list_layers(chain, preprocessing=SMALL)) == 5
    assert chain.alive == 1


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda network: network.to("meta"), *thorough(torch.compile)])
def test_wrappers_are_unwrapped(wrap):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    plain = list_layers(network, preprocessing=SMALL)
    assert list_layers(wrap(network), preprocessing=SMALL) == plain


@pytest.mark.thorough
def test_a_loaded_model_and_an_outline_are_listed_as_by_name():
    by_name = list_layers("shufflenet_v2_x0_5", preprocessing=SMALL)
    assert list_layers(outline_model("shufflenet_v2_x0_5", preprocessing=SMALL)) == by_name
    assert list_layers(load_model("shufflenet_v2_x0_5", weights="random", preprocessing=SMALL)) == by_name


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("model", "options", "after"),
    [
        (nn.Sequential(nn.Linear(7, 3), nn.Conv2d(3, 4, 3)), SMALL, "before the first layer: RuntimeError"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(5, 4, 3)), SMALL, "after layer '0': RuntimeError"),
        ("inception_v3", InputOptions(size=(32, 32)), "after layer 'Mixed_5d.branch_pool.conv': RuntimeError"),
        ("vit_b_32", InputOptions(fit="none"), "before the first layer: AssertionError"),
    ],
)
def test_a_forward_pass_that_fails_names_the_last_layer_that_ran(model, options, after):
    with pytest.raises(FmapvizError) as caught:
        list_layers(model, preprocessing=options)
    assert str(caught.value).startswith(f"the model failed {after}: ")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_a_large_model_is_listed_without_its_weights(torch_alone):
    """ViT-H/14 has 2.5 GB of parameters."""
    code = """
from pathlib import Path
from fmapviz.run.layer_list import list_layers
rows = list_layers("vit_h_14", types=["Module"])
assert max(row.parameters for row in rows) > 600_000_000, rows
# Not getrusage: in a child it begins with what the parent had.
print(int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024)
"""
    done = torch_alone(code)
    assert done.returncode == 0, done.stderr.decode()
    assert float(done.stdout) < 1500


class Unbatched(nn.Module):
    """Calls a layer for each image alone, and another with the tokens in front of the images."""

    inputs = (3, 16, 16)

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.alone = nn.Conv2d(4, 6, 3, padding=1)
        self.tokens = nn.Linear(6, 5)

    def forward(self, images):
        maps = torch.stack([self.alone(one) for one in self.first(images)])
        return self.tokens(maps.flatten(2).permute(2, 0, 1)).mean(0)


def test_the_listed_size_omits_the_axis_of_images(tmp_path):
    rows = {row.name: row for row in list_layers(Unbatched(), types="Module")}
    assert [(row.layout, row.shape) for row in rows.values()] == [
        ("N C H W", (4, 16, 16)),
        ("C H W", (6, 16, 16)),
        ("H*W N C", (256, 5)),
    ]
    picture = Image.new("RGB", (16, 16), "orange")
    run = visualize(Unbatched(), [picture, picture.rotate(9)], out=tmp_path, types="Module", to="png", batch_size=2)
    for unit in run.directory.rglob("unit.json"):
        recorded = {layer["name"]: tuple(layer["shape"]) for layer in json.loads(unit.read_text())["layers"]}
        assert {"first", "alone"} <= recorded.keys()
        assert recorded.items() <= {(name, row.shape) for name, row in rows.items()}
