"""The digest of a network changes if and only if its computation changes."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import fmapviz
from fmapviz.models.identity import digest_of_network, running_codes, written_names


class Net(nn.Module):
    """Has room for an attribute of any kind."""

    def __init__(self, held=None):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.last, self.held = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), held

    def forward(self, images):
        return self.last(self.body(images))


class Settings:
    """An object of the user's, without a repr of its own."""

    def __init__(self, **values):
        self.__dict__.update(values)


class Slots:
    __slots__ = ("scale",)

    def __init__(self, scale):
        self.scale = scale


def scaled(by):
    return lambda images: images * by


VALUES = {
    "a number": (3.0, 4.0),
    "a string": ("relu", "tanh"),
    "nothing": (None, 1),
    "a dict": ({"k": 4}, {"k": 5}),
    "a list in a dict": ({"k": [1, {"a": 2}]}, {"k": [1, {"a": 3}]}),
    "a set": ({"a", "b"}, {"a", "c"}),
    "a tensor": (torch.ones(3), torch.ones(3) * 2),
    "a sparse tensor": (torch.ones(3).to_sparse(), torch.ones(4).to_sparse()),
    "an array": (torch.ones(3).numpy(), torch.zeros(3).numpy()),
    "a function in C": (torch.tanh, torch.relu),
    "a function of torch": (nn.functional.gelu, nn.functional.softplus),
    "a closure": (scaled(2), scaled(3)),
    "a partial": (partial(torch.mul, other=2), partial(torch.mul, other=3)),
    "an object": (Settings(scale=2), Settings(scale=3)),
    "an object in an object": (Settings(inner=Settings(scale=2)), Settings(inner=Settings(scale=3))),
    "an object with slots": (Slots(2), Slots(3)),
    "a namespace": (Namespace(scale=2), Namespace(scale=3)),
    "a simple namespace": (SimpleNamespace(scale=2), SimpleNamespace(scale=3)),
    "a method": (Settings(scale=2).__getattribute__, partial(Settings.__init__, scale=3)),
    "a type": (nn.ReLU, nn.GELU),
    "a dtype": (torch.float16, torch.bfloat16),
    "modules in a list": ([nn.ReLU()], [nn.Linear(2, 2)]),
}


@pytest.mark.parametrize("kind", VALUES)
def test_an_attribute_makes_another_network(kind):
    first, second = VALUES[kind]
    digests = [digest_of_network(Net(held)) for held in (first, deepcopy(first), second)]
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def hook(_layer, _inputs, maps):
    return maps * 5


CHANGES = {
    "a hook": lambda network: network.body.register_forward_hook(hook),
    "a hook before a layer": lambda network: network.last.register_forward_pre_hook(lambda _layer, inputs: inputs[0] * 2),
    "a replaced forward": lambda network: setattr(network, "forward", lambda images: network.body(images) * 2),
    "a weight": lambda network: nn.init.zeros_(network.body.bias),
    "a buffer": lambda network: network.register_buffer("scale", torch.ones(1)),
    "a stride": lambda network: setattr(network.body, "stride", (2, 2)),
    "an attribute of a part": lambda network: setattr(network.body, "gain", 2.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_makes_another_network_and_undoing_it_the_same(change):
    network, before = Net(), Net()
    CHANGES[change](network)
    assert digest_of_network(network) != digest_of_network(before)
    again = Net()
    CHANGES[change](again)
    assert digest_of_network(again) == digest_of_network(network)


def test_a_removed_hook_does_not_change_the_digest():
    network = Net()
    network.body.register_forward_hook(hook).remove()
    assert digest_of_network(network) == digest_of_network(Net())


def test_recursive_objects_have_a_digest():
    network = Net({})
    network.held["network"], network.held["itself"] = [network], network.held
    assert digest_of_network(network) != digest_of_network(Net({}))
    other = Net()
    network.held["other"], other.held = [other], [network]
    assert len(digest_of_network(network)) == 64


def test_a_pass_and_an_evaluation_do_not_change_the_digest(tmp_path):
    network = Net()
    before = digest_of_network(network)
    network.train()
    fmapviz.visualize(network, torch.ones(1, 3, 16, 16), out=tmp_path, to="png")
    fmapviz.cam(network, torch.ones(1, 3, 16, 16), target=1, layer="body")
    assert digest_of_network(network) == before


CELL = """
import torch
from torch import nn
GAIN = {gain}
def helper(x):
    return x {operation} 3
class N(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.names = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), {{"b", "a", "c"}}
    def forward(self, x):
        return self.b(helper(self.a(x))) * GAIN
network = N()
"""


def typed(**parts):
    """Run code that no file holds, as a notebook does."""
    names = {"__name__": "cells"}
    exec(compile(CELL.format(**{"gain": 1, "operation": "*"} | parts), "<cell>", "exec"), names)
    return names["network"]


def test_interactive_code_is_part_of_the_digest():
    first = digest_of_network(typed())
    assert digest_of_network(typed()) == first
    assert digest_of_network(typed(gain=2)) != first
    assert digest_of_network(typed(operation="+")) != first


@pytest.mark.thorough
def test_another_process_has_the_same_digest():
    code = CELL.format(gain=1, operation="*") + (
        "\nfrom fmapviz.models.identity import digest_of_network\nprint(digest_of_network(network))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        for seed in ("1", "2")
    ]
    assert len({each.stdout for each in runs}) == 1


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["a number", "a closure", "an object"])
def test_a_run_of_another_preprocessing_is_another_run(kind, tmp_path):
    calls = {
        "a number": lambda by: partial(prepared, by=by),
        "a closure": lambda by: lambda picture: prepared(picture, by=by),
        "an object": Scaled,
    }
    for number, by in enumerate((1.0, 0.5)):
        network = Net()
        network.preprocess = calls[kind](by)
        summary = fmapviz.visualize(network, "sample_images/shapes/star.jpg", out=tmp_path, to="png")
        assert (summary.done, summary.skipped) == (1, 0)
        again = fmapviz.visualize(network, "sample_images/shapes/star.jpg", out=tmp_path, to="png")
        assert (again.done, again.skipped) == (0, 1)
        assert len(list(tmp_path.iterdir())) == number + 1


def prepared(picture, by=1.0):
    return torch.full((3, 16, 16), picture.size[0] * by)


class Scaled:
    def __init__(self, by):
        self.by = by

    def __call__(self, picture):
        return prepared(picture, self.by)


BUILT = """
import json, pathlib, torch
from torch import nn
class N(nn.Module):
    def __init__(self, k):
        super().__init__()
        torch.manual_seed(0)
        self.c, self.k = nn.Conv2d(3, 4, 3), k
    def forward(self, x):
        return self.c(x) * self.k
def build():
    return N(json.loads(pathlib.Path("settings.json").read_text())["k"])
"""


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_a_file_that_the_network_is_built_from_makes_another_run(tmp_path, monkeypatch):
    star = Path("sample_images/shapes/star.jpg").absolute()
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(BUILT)
    for k in (1, 4):
        Path("settings.json").write_text(json.dumps({"k": k}))
        assert [fmapviz.visualize("net.py:build", star, to="png").skipped for _ in range(2)] == [0, 1]


SEEN, COUNTS, LOSSES = [], {"passes": 0}, []


class Recorder:
    def __init__(self):
        self.maps = []

    def record(self, values):
        self.maps.append(values)


RECORDER = Recorder()


class Writing(Net):
    """Keeps its inputs in many ways."""

    total = 0

    def __init__(self, by=1):
        super().__init__()
        self.former, self.sizes, self.by = None, [], by
        self.table = {}

    def forward(self, images):
        Writing.total += 1
        self.former = images
        self.sizes.append(tuple(images.shape))
        self.table["last"], self.table[len(images), "n"] = images, 1
        SEEN.append(images)
        COUNTS["passes"] += 1
        RECORDER.record(images)
        images[:, 0] = images[:, 0] * self.by
        return super().forward(images)

    def train_a_step(self, images):
        LOSSES.append(self(images).mean().item())


def collecting(network):
    """Register a hook that collects what a layer returns, as many tutorials do."""
    features = {}

    def hook(_layer, _inputs, maps):
        features["body"] = maps.detach()

    network.body.register_forward_hook(hook)
    return network


def test_attributes_that_a_pass_writes_are_not_part_of_the_digest():
    network = collecting(Writing())
    before = digest_of_network(network)
    network.train_a_step(torch.rand(2, 3, 8, 8))
    assert digest_of_network(network) == before
    assert digest_of_network(collecting(Writing())) == before
    assert digest_of_network(collecting(Writing(by=2))) != before
    assert written_names(running_codes(network)) == (
        {"total", "former"},
        {"sizes", "table", "SEEN", "COUNTS", "maps", "features"},
    )


class Reading(Net):
    """Reads attributes that it writes, or seems to write."""

    def __init__(self, kind, value):
        super().__init__()
        self.kind, self.value = kind, value

    def forward(self, images):
        if self.kind == "moved":
            self.value = self.value.to(images.device)
        elif self.kind == "converted" and isinstance(self.value, str):
            self.value = float(self.value)
        elif self.kind == "taken":
            taken = self.value.pop()
            self.value.append(taken)
            return super().forward(images) * taken
        elif self.kind == "added":
            return super().forward(images) + self.value.add(1)
        elif self.kind == "underlined":
            return super().forward(images) * self.value.lambda_
        elif self.kind == "by name":
            self.value = getattr(self, "value")  # noqa: B009
        return super().forward(images) * float(self.value)


class Size(nn.Module):
    def forward(self, images):
        self.size = images.shape[2:]
        return images


class Resized(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, images):
        return nn.functional.interpolate(images, size=self.size)


READ = {
    "moved": lambda kind, by: Reading(kind, torch.tensor(by)),
    "converted": lambda kind, by: Reading(kind, str(by)),
    "taken": lambda kind, by: Reading(kind, [by]),
    "added": lambda kind, by: Reading(kind, torch.tensor(by)),
    "underlined": lambda kind, by: Reading(kind, SimpleNamespace(lambda_=by)),
    "by name": Reading,
    "written in another class": lambda _, by: nn.Sequential(Size(), Resized(int(by))),
}


@pytest.mark.parametrize("kind", READ)
def test_attributes_that_a_pass_reads_and_writes_are_part_of_the_digest(kind):
    first, same, other = (digest_of_network(READ[kind](kind, by)) for by in (2.0, 2.0, 5.0))
    assert first == same != other


def first_function(values, by=1):
    return values * by


def second_function(values, by=1):
    return values + by


class Methods(Net):
    def __init__(self, name):
        super().__init__()
        self.act = getattr(self, name)

    def first(self, values):
        return values.relu()

    def second(self, values):
        return values.tanh()


FUNCTIONS = {
    "functions": (first_function, second_function),
    "lambdas": (lambda values: values.relu(), lambda values: values.tanh()),
    "a dict of lambdas": ({"act": lambda values: values.relu()}, {"act": lambda values: values.tanh()}),
    "hooks": (lambda _layer, _inputs, maps: maps * 2, lambda _layer, _inputs, maps: maps * 3),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_two_functions_of_one_file_have_different_digests(kind):
    def network(function):
        made = Net(None if kind == "hooks" else function)
        if kind == "hooks":
            made.body.register_forward_hook(function)
        return made

    first, second = FUNCTIONS[kind]
    assert digest_of_network(network(first)) == digest_of_network(network(first)) != digest_of_network(network(second))
    assert digest_of_network(Methods("first")) == digest_of_network(Methods("first")) != digest_of_network(Methods("second"))
    with_forward = [Net(), Net()]
    for own, forward in zip(with_forward, (first_function, second_function), strict=True):
        own.forward = forward
    assert len({*map(digest_of_network, with_forward)}) == 2


@pytest.mark.filterwarnings("ignore")
def test_a_scripted_part_is_part_of_the_digest(tmp_path):
    class Scripted(Net):
        def __init__(self, act):
            super().__init__()
            self.act = torch.jit.script(act)

        def forward(self, images):
            return self.act(super().forward(images))

    assert digest_of_network(Scripted(nn.ReLU())) == digest_of_network(Scripted(nn.ReLU()))
    assert digest_of_network(Scripted(nn.ReLU())) != digest_of_network(Scripted(nn.Tanh()))
    summary = fmapviz.visualize(Scripted(nn.ReLU()), torch.ones(2, 3, 16, 16), out=tmp_path, to="png")
    assert summary.done == 2
