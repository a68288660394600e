"""A network that changes state outside of it is detected, and that state is not restored."""

from __future__ import annotations

import itertools
import random
import sys
from collections import Counter, defaultdict, deque
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

import fmapviz
from fmapviz.observe.outside_state import OutsideState

KINDS = {
    "number": (0, "global STATE; STATE += 1; return STATE"),
    "text": ("", "global STATE; STATE += 'a'; return len(STATE)"),
    "list": ([], "STATE.append(1); return len(STATE)"),
    "full deque": (deque([0], maxlen=1), "STATE.append(STATE[0] + 1); return STATE[0]"),
    "count": (itertools.count(1), "return next(STATE)"),
    "Counter": (Counter(), "STATE['a'] += 1; return STATE['a']"),
    "defaultdict": (defaultdict(list), "STATE['a'].append(1); return len(STATE['a'])"),
    "dict of dicts": ({"a": {"b": 0}}, "STATE['a']['b'] += 1; return STATE['a']['b']"),
    "tensor": (torch.zeros(2), "STATE.add_(1); return STATE[0]"),
    "list of tensors": ([torch.zeros(1)], "STATE[0] = STATE[0] + 1; return STATE[0]"),
    "array": (np.zeros(2), "STATE[0] += 1; return STATE[0]"),
    "NumPy's generator": (np.random.default_rng(0), "return STATE.random()"),
    "Python's generator": (random.Random(0), "return STATE.random()"),
    "torch's generator": (torch.Generator().manual_seed(0), "return torch.rand(1, generator=STATE)"),
    "helper": (0, "return helper()"),
    "helper in a comprehension": (0, "return [helper() for _ in range(1)][0]"),
    "decorated helper": (0, "return decorated()"),
    "class": (0, "Holder.held += 1; return Holder.held"),
    "own class attribute": (0, "type(self).held += 1; return self.held"),
    "own list of the class": ([], "self.seen.append(1); return len(self.seen)"),
    "object": (0, "HOLDER.held += 1; return HOLDER.held"),
    "other module": (0, "other.COUNT += 1; return other.COUNT"),
    "closure": (0, "return closed()"),
}
SOURCE = """
import functools
import torch
from torch import nn
import other

class Holder:
    held = 0

HOLDER = Holder()
HOLDER.held = 0

def helper():
    global STATE
    STATE += 1
    return STATE

@functools.cache
def _unused():
    return 0

def wrap(function):
    @functools.wraps(function)
    def wrapped():
        return function()
    return wrapped

decorated = wrap(helper)

def make():
    held = 0
    def closed():
        nonlocal held
        held += 1
        return held
    return closed

closed = make()

class Net(nn.Module):
    held, seen = 0, []

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 3)

    def factor(self):
        BODY

    def forward(self, images):
        return self.conv(images * self.factor())
"""


@pytest.fixture
def make(monkeypatch):
    def build(state, body):
        other = ModuleType("other")
        other.COUNT = 0
        monkeypatch.setitem(sys.modules, "other", other)
        net = ModuleType("net")
        net.STATE = state
        exec(SOURCE.replace("BODY", body), vars(net))
        return net.Net()

    return build


def drawn(network, images, out, **options):
    # With more threads, the networks of two of them would read the same value before either changes it.
    run = fmapviz.visualize(network, images, out=out, to="npz", workers=1, progress=False, **options)
    values = []
    for path in sorted(run.directory.rglob("*.npz")):
        with np.load(path) as held:
            values.append(next(held[name] for name in held.files if name != "__metadata__"))
    return values, [notice for notice in run.notices if "code changes" in notice]


def changes_of(network):
    images, outside = torch.rand(1, 3, 8, 8), OutsideState(network)
    with torch.no_grad():
        for _ in range(3):
            network(images)
            outside.learn(images.shape)
    return outside.changes


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_outside_state_is_detected(kind, make):
    assert len(changes_of(make(*KINDS[kind]))) >= 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"batch_size": 2}])
def test_state_outside_of_the_network_is_reported(kind, options, make, tmp_path):
    image = torch.rand(3, 8, 8)
    values, notices = drawn(make(*KINDS[kind]), [image] * 4, tmp_path, **options)
    assert not np.array_equal(values[0], values[2])
    (notice,) = notices
    assert notice.startswith("the network's code changes ")
    assert notice.endswith(" when it runs: an image may depend on those before it")


CONSTANT = [
    (0, "return 1"),
    ({}, "STATE.setdefault('table', 2); return STATE['table']"),
    (False, "global STATE; STATE = True; return 1"),  # a warning that is given once
    ([1, 2], "return STATE[0]"),
    (torch.full((2,), float("nan")), "return len(STATE)"),
    (nn.Conv2d(3, 3, 1), "return 1 if STATE else 2"),
]


@pytest.mark.parametrize(("state", "body"), CONSTANT)
def test_a_value_that_changes_once_or_never_is_no_state(state, body, make):
    assert changes_of(make(state, body)) == ()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("state", "body"), CONSTANT)
@pytest.mark.parametrize("options", [{}, {"batch_size": 2}])
def test_a_cache_and_a_constant_are_not_reported(state, body, options, make, tmp_path):
    image = torch.rand(3, 8, 8)
    values, notices = drawn(make(state, body), [image] * 5, tmp_path, **options)
    assert not notices
    assert all(np.allclose(values[0], each, atol=1e-6) for each in values)


def test_outside_state_is_not_restored(make, tmp_path):
    network = make(*KINDS["list"])
    drawn(network, [torch.rand(3, 8, 8)] * 3, tmp_path)
    assert len(network.factor.__globals__["STATE"]) >= 3


class Hebbian(nn.Module):
    """Adapts its weights when it runs."""

    def __init__(self, learn):
        super().__init__()
        self.conv, self.learn = nn.Conv2d(3, 2, 3), learn

    def forward(self, images):
        self.learn(self.conv)
        return self.conv(images)


def add(conv):
    with torch.no_grad():
        conv.weight.mul_(1.5)


def add_to_data(conv):
    conv.weight.data *= 1.5


def replace(conv):
    conv.weight = nn.Parameter(conv.weight.detach() * 1.5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("learn", [add, add_to_data, replace])
@pytest.mark.parametrize("options", [{}, {"batch_size": 2}])
@pytest.mark.parametrize("images", [1, 4])
def test_weights_that_a_network_changes_are_reported(learn, options, images, tmp_path):
    _, notices = drawn(Hebbian(learn), [torch.rand(3, 8, 8)] * images, tmp_path, **options)
    what = "the network's code changes the weight conv.weight when it runs: an image may depend on those before it"
    assert notices == [what]


@pytest.mark.thorough
def test_the_number_of_threads_changes_no_weight():
    """Sums of floats depend on it: a seventh of such tensors has another one with two threads."""
    network = type("Own", (nn.Module,), {"__module__": "own_network"})()
    network.weights = nn.ParameterList(
        torch.randn(250_000, generator=torch.Generator().manual_seed(seed)) for seed in range(50)
    )
    threads = torch.get_num_threads()
    outside = OutsideState(network)
    sums = {each.sum(dtype=torch.float64).item() for each in network.weights}
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        assert sums != {each.sum(dtype=torch.float64).item() for each in network.weights}
        outside.learn(torch.Size([1]))
    finally:
        torch.set_num_threads(threads)
    assert outside.changes == ()
    with torch.no_grad():
        network.weights[7][3] += 1e-6
    fresh = OutsideState(network)
    network.weights[7].data[3] *= -1  # which counts no version
    fresh.learn(torch.Size([1]))
    assert fresh.changes == ("the weight weights.7",)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64])
def test_changing_values_of_any_type_are_detected(kind):
    network = type("Own", (nn.Module,), {"__module__": "own_network"})()
    network.weight = nn.Parameter(torch.ones(3, 4).to(kind), requires_grad=False)
    outside = OutsideState(network)
    network.weight.data[1, 2] = 0
    outside.learn(torch.Size([1]))
    assert outside.changes == ("the weight weight",)
