"""Images of a network that keeps state between passes have the same maps as alone."""

from __future__ import annotations

import itertools
import queue
import threading
from array import array
from collections import Counter as Tally
from collections import defaultdict, deque
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import fmapviz
from fmapviz.observe.lasting_state import LastingState


class Network(nn.Module):
    """A convolution whose output is multiplied by a factor that depends on its state."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.conv = nn.Conv2d(4, 4, 3)
        self.head = nn.Linear(4, 2)
        self.start()

    def start(self):
        pass

    def factor(self, _values):
        return 1.0

    def forward(self, images):
        values = self.first(images)
        return self.head(self.conv(values * self.factor(values)).mean((2, 3)))


class Counter(Network):
    def start(self):
        self.passes = 0

    def factor(self, _values):
        self.passes += 1
        return self.passes


class Mean(Network):
    def start(self):
        self.register_buffer("mean", torch.zeros(1))

    def factor(self, values):
        self.mean.mul_(0.9).add_(values.detach().mean() * 0.1)
        return 1 + self.mean


class Rebound(Mean):
    def factor(self, values):
        self.mean = self.mean * 0.9 + values.detach().mean() * 0.1
        return 1 + self.mean


class Before(Network):
    def start(self):
        self.before = None

    def factor(self, values):
        before, self.before = self.before, values.detach()
        return values if before is None else values - before


class Template(Before):
    def factor(self, values):
        self.before = values.detach() if self.before is None else self.before
        return self.before


class Late(Network):
    """The attribute does not exist at the start."""

    def factor(self, _values):
        self.late = getattr(self, "late", 0) + 1
        return self.late


class Queue(Network):
    def start(self):
        self.queue, self.lock = deque(maxlen=3), threading.Lock()

    def factor(self, values):
        self.queue.append(values.detach().mean())
        return sum(self.queue)


class Nested(Network):
    def start(self):
        self.cache = {"states": [SimpleNamespace(seen=np.zeros(()))]}

    def factor(self, _values):
        self.cache["states"][0].seen += 1
        return float(self.cache["states"][0].seen)


class Generator(Network):
    def start(self):
        self.generator = np.random.default_rng(0)

    def factor(self, _values):
        return float(self.generator.random())


class TorchGenerator(Generator):
    def start(self):
        self.generator = torch.Generator().manual_seed(3)

    def factor(self, _values):
        return torch.rand(1, generator=self.generator)


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.passes = 0

    def forward(self, values):
        self.passes += 1
        return values * self.passes


class InPart(Network):
    def start(self):
        self.part = Part()

    def factor(self, values):
        return self.part(values)


class Positions(Network):
    """A cache, which is the same for all images of a size."""

    def start(self):
        self.positions, self.tables = None, {}

    def factor(self, values):
        if self.positions is None or self.positions.shape != values.shape[2:]:
            self.positions = torch.ones(values.shape[2:])
        self.tables.setdefault(tuple(values.shape), torch.ones(1))
        return self.positions * self.tables[tuple(values.shape)]


KEEPING = [
    Counter, Mean, Rebound, Before, Template, Late, Queue, Nested, Generator, TorchGenerator, InPart,
]  # fmt: skip
IMAGES = torch.rand(4, 3, 12, 12, generator=torch.Generator().manual_seed(5))


def drawn(network, indices, out):
    """Return the maps of images by their index, and the notices of what the network keeps."""
    images = [IMAGES[index] for index in indices]
    run = fmapviz.visualize(network, images, out=out, to="npz", layers="conv", progress=False)
    files = sorted(run.directory.rglob("*.npz"))
    maps = {}
    for index, file in zip(indices, files, strict=True):
        with np.load(file) as arrays:
            maps[index] = {name: arrays[name].tobytes() for name in arrays.files if name != "__metadata__"}
    return maps, [notice for notice in run.notices if "keeps" in notice]


@pytest.fixture(params=KEEPING, ids=lambda each: each.__name__)
def keeping(request):
    torch.manual_seed(0)
    return request.param().eval()


@pytest.mark.sampled(1)
def test_images_of_a_stateful_network_have_the_same_maps_as_alone(keeping, tmp_path):
    alone = {}
    for index in range(4):
        alone |= drawn(keeping, [index], tmp_path / f"alone{index}")[0]
    together, notices = drawn(keeping, range(4), tmp_path / "together")
    assert together == alone
    backwards, _ = drawn(keeping, [3, 2, 1, 0], tmp_path / "backwards")
    assert backwards == alone
    assert len(notices) == (type(keeping) is not Late)  # it might be a cache


@pytest.mark.sampled(1)
def test_a_stateful_network_is_restored(keeping, tmp_path):
    network = LastingState(keeping)
    drawn(keeping, range(3), tmp_path)
    assert not network._changed()


@pytest.mark.sampled(4)
def test_a_class_activation_map_is_that_of_the_restored_network(keeping):
    expected = fmapviz.cam(keeping, IMAGES[:1], target=1, layer="conv")
    fmapviz.cam(keeping, IMAGES[1:2], target=1, layer="conv")
    again = fmapviz.cam(keeping, IMAGES[:1], target=1, layer="conv")
    assert torch.equal(expected.raw, again.raw)


@pytest.mark.parametrize("network", [Positions, Network])
def test_a_cache_is_kept_and_not_reported(network, tmp_path):
    module = network().eval()
    _, notices = drawn(module, range(4), tmp_path)
    assert not notices


@dataclass
class Seen:
    passes: int = 0


@dataclass(slots=True)
class Slotted:
    passes: int = 0


class Guarded:
    """Cannot be copied as a whole."""

    def __init__(self):
        self.seen, self.lock, self.itself = [0], threading.Lock(), self


def queue_of_one():
    held = queue.Queue()
    held.put(0)
    return held


KINDS = {
    "Counter": (lambda: Tally("a"), lambda held: held.update("a") or held["a"]),
    "deque": (lambda: deque([1], maxlen=1), lambda held: held.append(held[0] + 1) or held[0]),
    "defaultdict": (lambda: defaultdict(list, a=[1]), lambda held: held["a"].append(1) or len(held["a"])),
    "dataclass": (Seen, lambda held: setattr(held, "passes", held.passes + 1) or held.passes),
    "slots": (Slotted, lambda held: setattr(held, "passes", held.passes + 1) or held.passes),
    "NumPy's array": (lambda: np.ones(2), lambda held: float(np.add(held, 1, out=held)[0])),
    "array": (lambda: array("d", [1]), lambda held: held.append(1) or len(held)),
    "bytes": (lambda: bytearray(b"a"), lambda held: held.append(1) or len(held)),
    "count": (lambda: itertools.count(1), next),
    "with a lock": (Guarded, lambda held: held.seen.append(1) or len(held.seen)),
    "queue": (queue_of_one, lambda held: held.put(1) or held.qsize()),
}


class Held(Network):
    kind = ""

    def start(self):
        self.held = KINDS[self.kind][0]()

    def factor(self, _values):
        return KINDS[self.kind][1](self.held)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_attribute_is_restored(kind):
    network = type("Held", (Held,), {"kind": kind})().eval()
    state, maps = LastingState(network), []
    with torch.no_grad():
        for _ in range(3):
            with state.one_pass(IMAGES[:1]):
                maps.append(network(IMAGES[:1]))
    assert torch.equal(maps[0], maps[1])
    assert torch.equal(maps[0], maps[2])
    assert "held" in state.changes


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", KINDS)
def test_attributes_of_any_content_are_restored(kind, tmp_path):
    network = type("Held", (Held,), {"kind": kind})().eval()
    images = [IMAGES[0]] * 3
    run = fmapviz.visualize(network, images, out=tmp_path, to="npz", layers="conv", progress=False)
    values = []
    for file in sorted(run.directory.rglob("*.npz")):
        with np.load(file) as arrays:
            values.append([arrays[name].tobytes() for name in arrays.files if name != "__metadata__"])
    assert values[0] == values[1] == values[2]
    assert any("keeps held" in notice for notice in run.notices)


class Opened:
    """Is closed where it is no longer used."""

    closed = 0

    def __init__(self):
        self.lock = threading.Lock()

    def __del__(self):
        Opened.closed += hasattr(self, "lock")


def test_objects_that_close_on_deletion_are_not_copied():
    network = nn.Identity()
    network.opened = Opened()
    with LastingState(network) as state, state.one_pass(IMAGES):
        pass
    assert Opened.closed == 0


def test_a_path_that_is_read_is_no_state(tmp_path):
    class Looks(Network):
        def start(self):
            self.file = tmp_path / "a" / "b.txt"

        def factor(self, _values):
            return 1 + self.file.exists() + (hash(self.file) == 0) + (self.file.parts == ())

    run = fmapviz.visualize(Looks().eval(), [IMAGES[0]] * 3, out=tmp_path, to="npz", layers="conv", progress=False)
    assert not [notice for notice in run.notices if "keeps" in notice]


def test_the_modules_of_a_network_are_listed_once():
    class Listed(Network):
        lists = 0

        def named_modules(self, *args, **kwargs):
            type(self).lists += 1
            return super().named_modules(*args, **kwargs)

    LastingState(Listed())
    assert Listed.lists == 1


class Hooking(nn.Module):
    """Adds hooks to its own modules in its first pass, notes that, and needs what they record, as transformers does."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
        self.found = None

    def forward(self, images):
        if not getattr(self, "_hooks_installed", False):
            for each in (self.first, self.second):
                each.register_forward_hook(lambda _module, _given, returned: self.found.append(returned))
            self._hooks_installed = True
        self.found = []
        self.second(self.first(images))
        (first, second) = self.found
        self.found = None
        return first.mean((2, 3)) + second.mean((2, 3))


@pytest.mark.parametrize("is_used", [False, True])
def test_hooks_that_a_network_gives_itself_stay_as_they_were(tmp_path, is_used):
    network, images = Hooking().eval(), torch.rand(3, 3, 12, 16)
    copied = Hooking().eval()
    copied.load_state_dict(network.state_dict())
    expected = copied(images)
    if is_used:
        network(images)
    hooks = [len(each._forward_hooks) for each in network.modules()]
    drawn = [fmapviz.cam(network, images[number : number + 1], target=1).raw for number in range(3)]
    run = fmapviz.visualize(network, list(images), out=tmp_path, views=["maps", "gradcam"], targets=1, to="npz")
    assert (run.done, run.failed) == (3, 0)
    assert [len(each._forward_hooks) for each in network.modules()] == hooks
    assert torch.equal(network(images), expected)
    stored = [np.load(path)["gradcam/second.class1"] for path in sorted(run.directory.rglob("raw.npz"))]
    for one, other in zip(drawn, stored, strict=True):
        torch.testing.assert_close(one[0], torch.from_numpy(other))
