"""Own views are drawn like views of the catalogue; errors are named and affect nothing else."""

from __future__ import annotations

import json
import pickle
import re
import sys
from copy import deepcopy
from threading import Lock

import numpy as np
import pytest
import torch
from image_files import paint
from PIL import Image
from safetensors.numpy import load_file
from tiny_runs import SAID, runner
from torch import nn

from fmapviz.cli.options import _complete
from fmapviz.config import Engine, RunConfig, options_of
from fmapviz.core import registry
from fmapviz.core.own import OwnName
from fmapviz.errors import RefusedError, RequestError, UserCodeError
from fmapviz.run.finished_run import open_finished_run
from fmapviz.run.load import load_session
from fmapviz.store.verify import verify


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2), nn.ReLU())


run = runner(network, preprocessing=SAID, to="png")
LAYERS = {"00 0": (16, 16), "01 2": (7, 7)}  # name and map of each layer
VIEWS = """
import torch

def average(maps):
    return maps.mean(1)

def first(maps):
    return maps.numpy()[:, 0]

first.over = False
first.colormap = "viridis"

def whole(maps):
    return maps[:, 1] > 0

class Signs:
    def draw(self, maps, style):
        return (maps[:, :3] > 0).permute(0, 2, 3, 1).to(torch.uint8) * 255

class Grey:
    captures = "input"

    def draw(self, maps, style):
        assert style.columns is None
        return (maps[:, 0].numpy() > 0).astype("uint8") * 200

grey = Grey()
"""
# A view's result for maps `(1, C, h, w)`, and the message. The line is that of its `raise`, or of its `def`.
BAD = {
    "value": ("raise ValueError('of mine')", r"ValueError: of mine \(bad.py, line {raised}\)"),
    "exits": ("raise SystemExit(3)", r"SystemExit: 3 \(bad.py, line {raised}\)"),
    "index": ("return maps[:, 99]", r"IndexError: .* \(bad.py, line {raised}\)"),
    "deep": ("return helper(maps)", r"ZeroDivisionError: .* \(bad.py, line 4\)"),
    "nothing": ("maps.mean(1)", r"it must return numbers \(N, h, w\) .*, not None \(bad.py, line {defined}\)"),
    "text": ("return 'maps'", r"not a value of type str \(bad.py, line {defined}\)"),
    "ragged": ("return [[[1.0], [1.0, 2.0]]]", r"not a value of type list"),
    "vector": ("return maps.mean((2, 3))", r"not float32 \(N, C\)"),
    "scalar": ("return maps.mean()", r"not float32 \(\)"),
    "kept": ("return maps.mean(1, keepdim=True)", r"not float32 \(N, 1, h, w\)"),
    "same": ("return maps", r"not float32 \(N, C, h, w\)"),
    "smaller": ("return maps.mean(1)[:, 1:]", r"not float32 \(N, \d+, w\)"),
    "complex": ("return maps.mean(1) * 1j", r"not complex64 \(N, h, w\)"),
    "sparse": ("return maps.mean(1).to_sparse()", r"not sparse float32 \(N, h, w\)"),
    "meta": ("return maps.mean(1).to('meta')", r"not float32 \(N, h, w\) on the meta device"),
    "objects": ("return np.full((1, *maps.shape[2:]), None)", r"not object \(N, h, w\)"),
}
BAD_PICTURES = {
    "Key": ("raise KeyError('k')", r"KeyError: 'k' \(bad.py, line {raised}\)"),
    "Floats": ("return maps.mean(1)", r"it must return uint8 \(N, H, W\) or \(N, H, W, 3\) .*, not float32 \(N, h, w\)"),
    "ChannelsFirst": ("return maps[:, :3].to(torch.uint8)", r"not uint8 \(N, 3, h, w\) \(bad.py, line {defined}\)"),
    "Alpha": ("return torch.zeros(1, 5, 5, 4, dtype=torch.uint8)", r"not uint8 \("),
    "NoRows": ("return np.zeros((1, 0, 5), np.uint8)", r"not uint8 \(N, 0, 5\)"),
    "TooMany": ("return np.zeros((2, 5, 5), np.uint8)", r"not uint8 \(2, 5, 5\)"),
    "Huge": ("return np.zeros((1, 1, 65536), np.uint8)", r"not uint8 \("),
    "Pillow": ("return Image.new('L', (5, 5))", r"not a value of type Image"),
}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "views.py").write_text(VIEWS)
    for number in range(2):
        paint(tmp_path / f"{number}.png", number, (16, 16))
    yield tmp_path
    sys.modules.pop("parts", None)  # other tests have a module of that name in other folders


def pictures(directory):
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*.png") if path.is_file()}


def pixels(path):
    with Image.open(path) as image:
        return np.array(image)


def read(path):
    return torch.from_numpy(pixels(path)).permute(2, 0, 1)[None] / 255


def settings(directory):
    return json.loads((directory / "run.json").read_bytes())["settings"]


def test_a_function_is_drawn_as_the_view_that_does_the_same():
    own = run("0.png", views="views.py:average", to="png,raw").directory / "0.png"
    theirs = run("0.png", views="mean", to="png,raw", name="theirs").directory / "0.png"
    for name in LAYERS:
        file = name.replace(" ", "_")
        assert np.array_equal(pixels(own / f"{file}.average.png"), pixels(theirs / f"{file}.mean.png"))
    values, others = (load_file(folder / "raw.safetensors") for folder in (own, theirs))
    assert {key.replace("average", "mean") for key in values} == others.keys()
    assert all(np.allclose(values[key], others[key.replace("average", "mean")]) for key in values)


def test_attributes_of_an_own_view_choose_how_it_is_drawn():
    own = run("0.png", views="views.py:first,views.py:whole").directory / "0.png"
    for name, size in LAYERS.items():
        file = name.replace(" ", "_")
        assert pixels(own / f"{file}.first.png").shape[:2] == size
        assert pixels(own / f"{file}.whole.png").shape[:2] == (16, 16)


def test_an_own_view_may_return_pictures():
    own = run("0.png", views="views.py:Signs,views.py:grey").directory / "0.png"
    net, batch = network(), read("0.png")
    inputs = {"00 0": batch, "01 2": net[:2](batch)}
    outputs = {"00 0": net[:1](batch), "01 2": net[:3](batch)}
    for name in LAYERS:
        file = name.replace(" ", "_")
        signs = pixels(own / f"{file}.Signs.png")
        assert np.array_equal(signs, (outputs[name][0, :3] > 0).permute(1, 2, 0).numpy() * np.uint8(255))
        grey = pixels(own / f"{file}.grey.png")
        assert np.array_equal(grey, (inputs[name][0, 0] > 0).numpy() * np.uint8(200))


def test_an_own_view_that_fails_is_named_with_file_and_line_and_the_rest_is_drawn(place):
    lines = ["import numpy as np, torch", "from PIL import Image", "def helper(maps):", "    return 1 / 0"]
    wanted = {}
    for name, (code, said) in BAD.items():
        wanted[name] = said.format(defined=len(lines) + 1, raised=len(lines) + 2)
        lines += [f"def {name}(maps):", f"    {code}"]
    for name, (code, said) in BAD_PICTURES.items():
        wanted[name] = said.format(defined=len(lines) + 2, raised=len(lines) + 3)
        lines += [f"class {name}:", "    def draw(self, maps, style):", f"        {code}"]
    (place / "bad.py").write_text("\n".join(lines))
    views = ["maps", *(f"bad.py:{name}" for name in wanted), "views.py:average"]
    summary = run(["0.png", "1.png"], views=views)
    assert summary.exit_code == 0
    names = {f"{layer.replace(' ', '_')}.{view}.png" for layer in LAYERS for view in ("maps", "average")}
    for image in ("0.png", "1.png"):
        assert {path.name for path in (summary.directory / image).glob("*.png")} == {"input.png", *names}
    assert summary.undrawn.keys() == {f"{view} of {layer}" for view in wanted for layer in "02"}
    for view, said in wanted.items():
        for layer in "02":
            assert re.search(said, summary.undrawn[f"{view} of {layer}"]), (said, summary.undrawn[f"{view} of {layer}"])


@pytest.mark.thorough
def test_a_view_that_draws_nothing_is_named(place):
    (place / "empty.py").write_text(
        "def boom(maps):\n    raise ValueError('no')\ndef nothing(maps):\n    return maps.mean(1) * float('nan')\n"
    )
    (failure,) = run("0.png", views="empty.py:boom").failures
    assert failure.hint == "correct the code of 'boom'"
    record = json.loads((run("0.png", views="empty.py:nothing").directory / "0.png" / "unit.json").read_bytes())
    assert [notice for notice in record["notices"] if "no finite value" in notice] == [
        f"nothing of {layer} has no finite value, and the layer has" for layer in "02"
    ]


def test_an_own_view_may_fail_for_one_layer_or_one_image_of_a_batch(place):
    (place / "some.py").write_text(
        "def layer(maps):\n    assert maps.shape[1] == 4\n    return maps.mean(1)\n"
        "def image(maps):\n    assert (maps[:, 0, 0, 0] < LIMIT).all(), 'too bright'\n    return maps.mean(1)\n"
    )
    values = [network()[0](read(f"{number}.png"))[0, 0, 0, 0].item() for number in range(2)]
    with (place / "some.py").open("a") as file:
        file.write(f"LIMIT = {sum(values) / 2}\n")
    summary = run(["0.png", "1.png"], views="some.py:layer,some.py:image", batch_size=2, workers=1, layers=["0", "2"])
    folders = {image: {path.name for path in (summary.directory / image).glob("*.png")} for image in ("0.png", "1.png")}
    for names in folders.values():
        assert "00_0.layer.png" in names
        assert "01_2.layer.png" not in names
    bright = f"{int(values[1] > values[0])}.png"
    assert {image for image, names in folders.items() if "00_0.image.png" not in names} == {bright}
    assert summary.undrawn["layer of 2"] == "AssertionError (some.py, line 2)"


REFUSED = {
    "views.py": "the name of a function or class is missing",
    "views.py:averag": "did you mean 'average'",
    "viws.py:average": "no such file",
    "no_such_module_of_mine:average": "no such module",
    "views.py:average()": "takes no arguments",
    "views.py:torch": "is no view",
    "wrong.py:number": "of type int",
    "wrong.py:Nothing": "is no view",
    "wrong.py:Attribute": "its draw is no method",
    "wrong.py:Arguments": "it is called as Arguments()",
    "wrong.py:two": "it is called as two(maps)",
    "wrong.py:One": "it is called as One(maps, style)",
    "wrong.py:captured": "captured.captures is 'weights'",
    "wrong.py:coloured": "no such colormap",
    "wrong.py:Failing": "Failing' failed: ZeroDivisionError",
    "broken.py:energy": "broken.py' failed: RuntimeError: at import",
    "wrong.py:mean": "there is a view of the name 'mean'",
    "wrong.py:PNG": "there is a format of the name 'PNG'",
    "wrong.py:input": "there is a picture of the name 'input'",
    "wrong.py:größe": "no name of a view",
    "wrong.py:_hidden": "no name of a view",
    "wrong.py:Over": "Over.over is 1",
    "views.py:average,wrong.py:average": "two views have the name 'average'",
}
WRONG = """
from functools import partial
number = 5
class Nothing: pass
class Attribute: draw = 5
class Arguments:
    def __init__(self, needed): pass
    def draw(self, maps, style): pass
def two(maps, more): pass
class One:
    def draw(self, maps): pass
def captured(maps): pass
captured.captures = "weights"
def coloured(maps): pass
coloured.colormap = "rainbow-of-mine"
class Failing:
    def __init__(self): 1 / 0
class Over:
    over = 1
    def __call__(self, maps): pass
def mean(maps): pass
PNG = input = größe = _hidden = average = mean
"""


@pytest.mark.parametrize("view", REFUSED)
def test_a_value_that_is_no_view_is_refused_before_anything_is_written(view, place):
    (place / "wrong.py").write_text(WRONG, "utf-8")
    (place / "broken.py").write_text("raise RuntimeError('at import')\n")
    with pytest.raises(RequestError) as caught:
        run("0.png", views=f"maps,{view}")
    assert REFUSED[view] in f"{caught.value} {caught.value.hint}"
    assert caught.value.hint or isinstance(caught.value, UserCodeError)
    assert not (place / "runs").exists()


def test_an_own_view_changes_no_other_picture_and_no_state(place):
    (place / "vandal.py").write_text(
        "import os, torch\nos.chdir('/')\n"
        "def vandal(maps):\n    os.chdir('/')\n    maps.zero_()\n    torch.set_grad_enabled(False)\n    return maps[:, 0]\n"
        "class Buffer:\n    pixels = torch.zeros(1, 4, 4, dtype=torch.uint8)\n"
        "    def draw(self, maps, style):\n        self.pixels += 1\n        return self.pixels\n"
    )
    alone = run(["0.png", "1.png"], views="maps,inputs", out="alone").directory
    beside = run(
        ["0.png", "1.png"], views="maps,vandal.py:vandal,vandal.py:Buffer,inputs", out="beside", workers=1
    ).directory
    others = pictures(beside)
    assert {name: others[name] for name in pictures(alone)} == pictures(alone)
    drawn = sorted(int(pixels(path).max()) for path in beside.rglob("*.Buffer.png"))
    assert drawn == [1, 2, 3, 4]
    assert torch.is_grad_enabled()
    assert RunConfig(network(), views=["maps"]).views == ("maps",)


@pytest.mark.thorough
def test_changed_user_code_makes_another_run(place):
    (place / "parts.py").write_text("POWER = 2\n")
    code = "import parts\ndef energy(maps):\n    return maps.abs().pow(parts.POWER).mean(1)\n"
    (place / "energy.py").write_text(code)
    names, model = [], network()

    def draw():
        summary = run("0.png", model, views="energy.py:energy")
        names.append(summary.directory.name)
        return summary

    def change(file, text):
        (place / file).write_text(text)
        sys.modules.pop("parts", None)

    draw()
    assert draw().skipped == 1
    change("energy.py", code + "energy.over = False\n")
    draw()
    change("energy.py", code)
    assert draw().skipped == 1
    change("parts.py", "POWER = 1.5\n")  # of another size: Python reads its cache for a file of the same second and size
    draw()
    assert len(set(names)) == 3
    assert names[0] == names[1] == names[3]
    assert settings(place / "runs" / names[0])["views"] == ["energy"]


class Power:
    def __init__(self, exponent):
        self.exponent = exponent
        self.lock = Lock()  # an object that cannot be copied
        self.name = f"power{exponent}"

    def __call__(self, maps):
        return maps.pow(self.exponent).mean(1)


def square(maps):
    return maps.square().mean(1)


def test_in_python_views_are_functions_classes_and_objects(place):
    summary = run("0.png", views=["maps", square, Power(2), Power(3)])
    names = {path.name.split(".")[-2] for path in (summary.directory / "0.png").glob("*_*.png")}
    assert names == {"maps", "square", "power2", "power3"}
    assert pictures(summary.directory)["0.png/00_0.maps.png"]
    same = (pixels(summary.directory / "0.png" / f"00_0.{view}.png") for view in ("square", "power2"))
    assert np.array_equal(*same)
    assert run("0.png", views=["maps", square, Power(2), Power(3)]).skipped == 1
    config = RunConfig("alexnet", views=Power(2))
    assert deepcopy(config.views) == ("power2",)
    with pytest.raises(RequestError, match="no name of a view: '<lambda>'"):
        run("0.png", views=lambda maps: maps.mean(1))
    with pytest.raises(RequestError, match="two views have the name 'power2'"):
        run("0.png", views=[Power(2), Power(2)])
    with pytest.raises(RequestError, match="views must be"):
        run("0.png", views=[5])


def test_an_own_view_may_need_gradients(place):
    (place / "signs.py").write_text(
        "def ups(maps):\n    return maps.mean(1)\nups.captures = 'gradient'\n"
        "def into(maps):\n    return maps.mean(1)\ninto.captures = 'input gradient'\n"
    )
    model = nn.Sequential(network(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
    own = run("0.png", model, views="signs.py:ups,signs.py:into", to="png,raw", targets="1").directory / "0.png"
    theirs = run("0.png", model, views="grads,grad-inputs", to="raw", targets="1", name="theirs").directory / "0.png"
    values, others = (load_file(folder / "raw.safetensors") for folder in (own, theirs))
    for view, view_of_all in (("ups", "grads"), ("into", "grad-inputs")):
        reduced = {key: value for key, value in values.items() if key.startswith(f"{view}/") and value.ndim == 2}
        assert reduced
        for key, value in reduced.items():
            gradient = others[key.replace(f"{view}/", f"{view_of_all}/")]
            assert np.allclose(value, gradient.mean(0), atol=1e-7)


@pytest.mark.thorough
def test_all_formats_and_readers_of_runs_accept_own_views(place):
    summary = run("0.png", "shapesnet", views="views.py:average,views.py:Signs", to="png,html,tensorboard,tar,stats,svg")
    assert not [problem for each in verify(summary.directory) for problem in each.problems]
    assert '"average"' in (summary.directory / "0.png" / "report.js").read_text()
    with open_finished_run(summary.directory) as session:
        assert [view.name for view in map(registry.view, session.config.views)] == ["average", "Signs"]
    (place / "views.py").write_text(VIEWS.replace("mean", "amax"))
    with (
        pytest.raises(RefusedError, match=r"was drawn with something else: views\.py has changed"),
        open_finished_run(summary.directory),
    ):
        pass


def test_a_comparison_of_two_networks_refuses_own_views():
    with pytest.raises(RequestError, match="average draws one network"):
        load_session(RunConfig("shapesnet", views="views.py:average"), pair=True)


def test_the_command_accepts_and_completes_own_views(fmapviz, place):
    result = fmapviz("shapesnet", "0.png", "--view", "views.py:average", "--to", "png", "--layers", "features.0.conv")
    assert result.returncode == 0, result.stderr
    assert (place / "runs" / "shapesnet" / "0.png" / "00_features.0.conv.average.png").is_file()
    option = options_of(RunConfig)["views"]
    words = [word for word, _ in _complete(option, ["maps"], "maps,vie")]
    assert words == [f"maps,views.py:{name}" for name in ("average", "first", "whole", "Signs", "Grey")]


def test_an_own_view_is_pickled_without_running_its_code(place):
    (name,) = RunConfig("alexnet", views="views.py:average").views
    sent = pickle.dumps(name)
    (place / "views.py").write_text(VIEWS.replace("def average", "def average(maps): return maps[:, 0]\ndef other"))
    received = pickle.loads(sent)
    assert isinstance(received, OwnName)
    assert received == name == "average"
    assert registry.view(received).own(torch.ones(1, 2, 3, 3)).shape == (1, 3, 3)
    assert registry.view(name).own is not registry.view(received).own


@pytest.mark.ray
@pytest.mark.thorough
def test_workers_of_ray_draw_own_views(place):
    pytest.importorskip("ray")
    local, far = (
        run(["0.png", "1.png"], "shapesnet", views="maps,views.py:average", out=name, engine=engine).directory
        for name, engine in (("local", None), ("far", Engine(workers=1)))
    )
    assert pictures(local) == pictures(far)
