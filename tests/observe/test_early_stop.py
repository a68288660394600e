from __future__ import annotations

import json
import random
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
import torch
from cases import thorough
from image_files import save_picture
from PIL import Image
from results import drawings_of
from tiny_models import Calls, as_model, images
from torch import nn
from torch.nn import functional

from fmapviz.config import InputOptions, Style
from fmapviz.core.lazy_torchvision import torchvision
from fmapviz.models.load import load_model
from fmapviz.observe.early_stop import EarlyStop, ReadDetector, state_of
from fmapviz.observe.layers import find_layers, select_layers
from fmapviz.run.forward_pass import Drawer
from fmapviz.run.loop import visualize
from fmapviz.run.plan import Plan
from fmapviz.views import maps

X = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
MASK = X > 0
TWO = torch.tensor(2)
NUMBERS = torch.tensor([0.5, 2.0, 1.0, 3.0])
BOXES = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 2.1], [1.0, 1.0, 4.0, 4.0]])

MODULES = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)).eval()

LOOKS = {
    "bool": lambda: bool(X.sum() > 0),
    "not": lambda: not TWO,
    "float": lambda: float(X.sum()),
    "int": lambda: int(X.sum()),
    "complex": lambda: complex(X.sum()),
    "item": lambda: X.sum().item(),
    "tolist": X.tolist,
    "numpy": X.numpy,
    "array": lambda: np.asarray(X),
    "a number in a string": lambda: f"{X.sum():.2f}",
    "an index of a list": lambda: ["a", "b", "c"][TWO],
    "range": lambda: range(TWO),
    "if": lambda: "positive" if X.sum() > 0 else "negative",
    "in": lambda: 1.0 in X,
    "max": lambda: max(NUMBERS),
    "any": lambda: any(value > 2 for value in NUMBERS),
    "nonzero": lambda: torch.nonzero(X),
    "nonzero, a method": X.nonzero,
    "nonzero, a tuple": lambda: torch.nonzero(X, as_tuple=True),
    "argwhere": lambda: torch.argwhere(X),
    "a mask": lambda: X[MASK],
    "a mask among other indices": lambda: X[0, ..., MASK[0, 0]],
    "a mask of bytes": lambda: X[MASK.to(torch.int8).to(torch.bool)],
    "masked_select": lambda: torch.masked_select(X, MASK),
    "unique": lambda: torch.unique(X),
    "unique rows": lambda: torch.unique(X, dim=0),
    "unique, a method": X.unique,
    "unique with counts": lambda: torch.unique(X, return_counts=True),
    "unique_consecutive": lambda: torch.unique_consecutive(X),
    "repeat_interleave": lambda: torch.repeat_interleave(NUMBERS, torch.tensor([1, 0, 2, 1])),
    "bincount": lambda: torch.bincount(torch.tensor([1, 5])),
    "equal": lambda: torch.equal(X, X),
    "allclose": lambda: torch.allclose(X, X),
    "is_nonzero": lambda: torch.is_nonzero(TWO),
    "nms": lambda: torchvision.ops.nms(BOXES, NUMBERS[:3], 0.5),
    "batched_nms": lambda: torchvision.ops.batched_nms(BOXES, NUMBERS[:3], torch.zeros(3), 0.5),
}

# Calls whose result has a shape that depends on values, without any of the words above.
HIDDEN_LOOKS = {
    "where with one argument": lambda: torch.where(MASK),
    "where, and its length": lambda: len(torch.where(MASK)[0]),
    "boxes of some size": lambda: torchvision.ops.remove_small_boxes(BOXES, 2.5),
    "a slice up to a value": lambda: X[:, :TWO],
    "a slice up to a value in a list": lambda: NUMBERS[:TWO],
    "arange": lambda: torch.arange(TWO),
    "zeros": lambda: torch.zeros(TWO),
    "zeros of a shape": lambda: torch.zeros((TWO, 3)),
    "new_zeros": lambda: X.new_zeros(TWO),
    "narrow": lambda: X.narrow(1, 0, TWO),
    "view": lambda: NUMBERS.view(TWO, -1),
    "expand": lambda: torch.zeros(1).expand(TWO),
    "repeat": lambda: NUMBERS.repeat(TWO),
    "split": lambda: torch.split(NUMBERS, TWO),
    "tensor_split": lambda: torch.tensor_split(NUMBERS, torch.tensor([1])),
    "topk": lambda: NUMBERS.topk(TWO),
    "pad": lambda: functional.pad(NUMBERS, (0, TWO)),
    "one_hot": lambda: functional.one_hot(torch.tensor([0, 3])),
}

ORDINARY = {
    "conv": lambda: functional.conv2d(X, torch.ones(1, 3, 3, 3)),
    "modules": lambda: MODULES(X),
    "attention": lambda: nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval()(X[:, 0]),
    "relu": X.relu,
    "reshape": lambda: X.reshape(len(X), -1),
    "flatten and permute": lambda: X.flatten(2).permute(2, 0, 1),
    "ints": lambda: X[0, -1],
    "slices": lambda: X[:, 1:, None, ..., ::2],
    "indices": lambda: X[:, torch.tensor([2, 0])],
    "a list of indices": lambda: X[:, [2, 0]],
    "cat": lambda: torch.cat([X, X], 1),
    "chunk": lambda: X.chunk(2, 2),
    "where with three arguments": lambda: torch.where(MASK, X, 0.0),
    "masked_fill": lambda: X.masked_fill(MASK, 0),
    "writing to a mask": lambda: X.clone().__setitem__(MASK, 0.0),
    "comparing": lambda: (X > 0) & (X < 1),
    "argmax": lambda: X.argmax(1),
    "gather": lambda: X.gather(1, X.argsort(1)),
    "topk": lambda: X.topk(2),
    "interpolate": lambda: functional.interpolate(X, scale_factor=2),
    "adaptive pooling": lambda: functional.adaptive_avg_pool2d(X, 1),
    "dropout": lambda: functional.dropout(X),
    "arange": lambda: torch.arange(X.shape[1]),
    "zeros": lambda: torch.zeros(2, X.size(1)),
    "iterating": lambda: [part.relu() for part in X],
    "shapes": lambda: (len(X), X.shape, X.size(1), X.dim(), X.ndim, X.numel(), X.stride(), X.is_contiguous()),
    "kinds": lambda: (X.dtype, X.device, X.requires_grad, X.is_floating_point(), X.is_cuda),
    "if a size": lambda: "wide" if X.shape[-1] > 4 and X.shape[1] == 3 else "narrow",
    "is None": lambda: X is None,
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_code_that_reads_values_is_detected(look):
    with ReadDetector() as reads:
        look()
    assert reads.looked


@pytest.mark.parametrize("look", HIDDEN_LOOKS.values(), ids=HIDDEN_LOOKS)
def test_code_that_computes_shapes_from_values_is_detected(look):
    with ReadDetector() as reads:
        look()
    assert reads.looked


@pytest.mark.parametrize("work", ORDINARY.values(), ids=ORDINARY)
def test_ordinary_operations_are_not_detected(work):
    with ReadDetector() as reads:
        work()
    assert not reads.looked


def test_nothing_is_detected_during_a_pause():
    with ReadDetector() as reads:
        reads.paused = True
        X.tolist()
        bool(TWO)
        reads.paused = False
        X.relu()
        assert not reads.looked
        bool(TWO)
    assert reads.looked


def test_nothing_is_detected_outside_of_the_watch():
    reads = ReadDetector()
    X.tolist()
    with reads:
        X.relu()
    X.tolist()
    assert not reads.looked


def test_a_detection_is_kept():
    with ReadDetector() as reads:
        X.tolist()
        X.relu()
    assert reads.looked


def test_each_call_returns_the_same_as_without_the_watch():
    with ReadDetector() as reads:
        assert functional.conv2d(X, torch.ones(1, 3, 3, 3), padding=1).shape == (2, 1, 8, 8)
        assert torch.equal(torch.where(MASK, X, 0.0), X * MASK)
        assert X[MASK].tolist() == [value for value in X.flatten().tolist() if value > 0]
        with pytest.raises(RuntimeError):
            torch.cat([X, X[0]])
    assert reads.looked


def test_outputs_that_never_change_need_no_learning():
    always, learning = EarlyStop(4), EarlyStop()
    assert always.outputs(torch.Size((3, 8, 8))) == 4
    assert learning.outputs(torch.Size((3, 8, 8))) is None
    learning.learn(torch.Size((3, 8, 8)), 2)
    assert learning.outputs(torch.Size((3, 8, 8))) == 2
    assert learning.outputs(torch.Size((3, 8, 9))) is None


# --- a whole run


RAN = Counter()


class Noted(nn.Conv2d):
    """A convolution that notes, whichever copy of it runs, that it has run."""

    def __init__(self, name, *args):
        super().__init__(*args)
        self.name = name

    def forward(self, x):
        RAN[self.name] += 1
        return super().forward(x)


@pytest.fixture
def ran():
    RAN.clear()
    return RAN


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = Noted("a", 3, 4, 3), Noted("b", 4, 4, 3), Noted("c", 4, 4, 3)
        self.tail = nn.Identity()

    def forward(self, x):
        return self.tail(self.c(self.b(self.a(x))))


class Decides(nn.Module):
    """Calls its convolution a second time if an image is bright."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 4, 3)

    def forward(self, x):
        bright = x.mean() > 0
        x = self.a(x)
        return self.b(self.a(x) if bright else x)


class DecidesByPlaces(Decides):
    """Branches by the number of bright pixels, outside of torch."""

    def forward(self, x):
        (places, *_) = torch.where(x > 0)
        x = self.a(x)
        return self.b(self.a(x) if len(places) else x)


class DecidesByChance(Decides):
    def forward(self, x):
        for _ in range(1 + int(torch.randint(3, ()))):
            x = self.a(x)
        return self.b(functional.dropout(x))


class DecidesByPythonsChance(Decides):
    """Draws random numbers that are not torch's."""

    def __init__(self):
        super().__init__()
        self.dice = random.Random(1)

    def forward(self, x):
        for _ in range(self.dice.randint(1, 3)):
            x = self.a(x)
        return self.b(x)


class Alternates(Decides):
    """Calls its convolution a second time on every other image."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return self.b(self.a(x) if self.calls % 2 else self.a(self.a(x)))


class Noisy(Decides):
    """Draws random numbers and calls its convolution three times."""

    def forward(self, x):
        for _ in range(3):
            x = self.a(x + torch.randn_like(x))
        return self.b(x)


class Shrinks(Decides):
    """Calls its convolution as often as the size of an image wants it."""

    def forward(self, x):
        while x.shape[-1] > 8:
            x = functional.avg_pool2d(self.a(x), 2)
        return self.b(x)


SMALL = InputOptions(size=(16, 16))


@pytest.fixture
def look(tmp_path):
    """Run over some pictures; return for each the layers drawn."""

    def run(model, inputs, **options):
        summary = visualize(
            model, inputs, **{"out": tmp_path / "out", "preprocessing": SMALL, "workers": 2, "force": True, **options}
        )
        assert summary.failed == 0
        return {path.parent.name: names(path) for path in sorted(summary.directory.rglob("unit.json"))}

    return run


def names(record):
    return [layer["name"] for layer in json.loads(record.read_bytes())["layers"]]


def paint(path, brightness, size=(16, 16)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size[::-1], (brightness,) * 3).save(path)
    return path


@pytest.fixture
def pictures(tmp_path):
    for seed in range(8):
        save_picture(tmp_path / "pictures" / f"{seed}.png", seed)
    return tmp_path / "pictures"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch_size", [1, *thorough(3)])
@pytest.mark.parametrize("workers", [1, *thorough(2)])
def test_layers_behind_the_last_requested_one_run_in_the_first_pass_only(workers, batch_size, pictures, look, ran):
    drawn = look(Chain(), pictures, layers="b", workers=workers, batch_size=batch_size)
    assert drawn == {f"{seed}.png": ["b"] for seed in range(8)}
    assert ran["a"] == ran["b"] >= 8 / batch_size
    assert ran["c"] <= batch_size  # a batch of another size may have to be learnt too


@pytest.mark.parametrize("choice", [{"layers": "a"}, {"exclude": ["b", "c"]}])
def test_each_choice_of_layers_ends_a_pass_early(choice, pictures, look, ran):
    assert look(Chain(), pictures, batch_size=1, **choice) == {f"{seed}.png": ["a"] for seed in range(8)}
    assert (ran["a"], ran["b"], ran["c"]) == (8, 1, 1)


@pytest.mark.parametrize("workers", [1, *thorough(2)])
def test_passes_without_a_choice_of_layers_run_to_the_end(workers, pictures, look):
    ended = []

    class End(nn.Module):
        def forward(self, x):
            ended.append(len(x))
            return x

    model = Chain()
    model.tail = End()
    assert look(model, pictures, batch_size=1, workers=workers) == {f"{seed}.png": ["a", "b", "c"] for seed in range(8)}
    assert ended == [1] * 8


@pytest.mark.parametrize("workers", [1, *thorough(2)])
def test_a_module_called_three_times_has_three_outputs(workers, pictures, look):
    drawn = look(Calls(), pictures, layers="relu", types="ReLU", workers=workers)
    assert drawn == {f"{seed}.png": ["relu", "relu#2", "relu#3"] for seed in range(8)}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("model", [Decides, DecidesByPlaces])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("more", [1, *thorough(4)])
def test_a_network_that_branches_on_values_has_all_outputs_in_any_order(*, more, workers, model, tmp_path, look):
    brightness = {"dark": 0, "black": 1, "light": 250, "white": 255}
    paths = {name: paint(tmp_path / f"{name}.png", value) for name, value in brightness.items()}
    orders = list(permutations(paths))
    random.Random(0).shuffle(orders)
    orders = [("dark", "black", "light", "white"), ("white", "light", "black", "dark"), *orders[:more]]
    for order in orders:
        drawn = look(model(), [paths[name] for name in order], layers="a", workers=workers)
        assert drawn == {f"{name}.png": ["a", "a#2"] if brightness[name] > 200 else ["a"] for name in paths}, order


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("model", [DecidesByChance, Noisy])
@pytest.mark.parametrize("workers", [1, *thorough(2)])
def test_a_network_that_draws_random_numbers_has_all_outputs(workers, model, pictures, look, tmp_path):
    whole = look(model(), pictures, out=tmp_path / "whole", workers=workers)
    assert len(whole) == 8
    drawn = look(model(), pictures, layers="a", workers=workers)
    assert drawn == {name: [layer for layer in layers if layer != "b"] for name, layers in whole.items()}
    if model is Noisy:
        assert drawn["3.png"] == ["a", "a#2", "a#3"]


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("model", [DecidesByPythonsChance, Alternates])
def test_a_network_that_branches_outside_of_torch_has_all_outputs(model, pictures, look, tmp_path):
    whole = look(model(), pictures, out=tmp_path / "whole", workers=1)
    drawn = look(model(), pictures, layers="a", workers=1)
    assert drawn == {name: [layer for layer in layers if layer != "b"] for name, layers in whole.items()}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("workers", [1, *thorough(2)])
def test_pictures_of_different_sizes_have_all_outputs(workers, batch_size, tmp_path, look):
    sides = [12, 40, 12, 20, 40, 80, 20, 12, 80, 40]
    paths = [paint(tmp_path / "pictures" / f"{n}.png", 20 * n, (side, side)) for n, side in enumerate(sides)]
    drawn = look(
        Shrinks(), paths, layers="a", preprocessing=InputOptions(fit="none"), workers=workers, batch_size=batch_size
    )
    calls = {12: 1, 20: 2, 40: 3, 80: 4}
    assert drawn == {f"{n}.png": ["a", "a#2", "a#3", "a#4"][: calls[side]] for n, side in enumerate(sides)}


def test_a_failed_pass_does_not_end_later_ones_early(tmp_path, look):
    passes = []

    class Fails(Decides):
        def forward(self, x):
            x = self.a(x)
            passes.append(len(x))
            if len(passes) < 3:  # with axes followed, and without
                raise ValueError("not yet")
            return self.b(self.a(x))

    paths = [paint(tmp_path / f"{n}.png", 100 + n) for n in range(4)]
    summary = visualize(Fails(), paths, out=tmp_path / "out", preprocessing=SMALL, layers="a", workers=1)
    assert (summary.done, summary.failed) == (3, 1)
    records = sorted(summary.directory.rglob("unit.json"))
    assert [names(record) for record in records] == [["a", "a#2"]] * 3


@pytest.mark.parametrize("counts", [(1, 3), (3, 1), (2, 4)])
def test_batches_of_different_sizes_have_all_outputs(counts):
    class OneByOne(nn.Module):
        """Has a look at every image alone, between two convolutions of all."""

        def __init__(self):
            super().__init__()
            self.a, self.look, self.b = nn.Conv2d(3, 4, 3), nn.Flatten(0), nn.Conv2d(4, 4, 3)

        def forward(self, x):
            x = self.a(x)
            for image in x:
                self.look(image)
            return self.b(x)

    module, early_stop = OneByOne(), EarlyStop()
    layers = select_layers(find_layers(module), types=["Conv2d", "Flatten"])
    with Drawer(as_model(module), layers, Plan({"output": {"maps": maps.draw}}), Style(), early_stop=early_stop) as drawer:
        for number in counts:
            for drawn in drawer.draw(images(number)):
                assert [drawing.layer for drawing in drawings_of(drawn)] == ["a", "b"], number
                assert drawn.not_executed == ()


# --- a published network


@pytest.fixture(scope="module")
def resnet():
    return load_model("resnet18", weights="random", preprocessing=InputOptions(size=(32, 32)))


def pngs(directory):
    """Return every picture of every image, by the layer's name: the number before it depends on how many were chosen."""
    return {
        (path.parent.name, path.name.partition("_")[2] or path.name): path.read_bytes()
        for path in directory.rglob("*.png")
        if path.is_file()
    }


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [1, *thorough(2)])
def test_a_published_network_ends_after_the_last_requested_layer(workers, pictures, resnet, tmp_path):
    ran = Counter()
    parts = {name: resnet.module.get_submodule(name) for name in ("conv1", "layer1", "layer2", "layer3", "layer4", "fc")}
    hooks = [
        part.register_forward_pre_hook(lambda _module, _args, name=name: ran.update([name])) for name, part in parts.items()
    ]
    try:
        summary = visualize(resnet, pictures, out=tmp_path, layers="layer1.*", batch_size=1, workers=workers)
    finally:
        for hook in hooks:
            hook.remove()
    assert (summary.done, summary.layers, summary.not_executed) == (8, 4, ())
    assert ran == {"conv1": 8, "layer1": 8}


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("workers", [1, *thorough(2)])
def test_a_pass_that_ends_early_has_the_pictures_of_a_whole_one(workers, pictures, resnet, tmp_path):
    whole = visualize(resnet, pictures, out=tmp_path / "whole", to=["png"], workers=workers)
    ended = visualize(resnet, pictures, out=tmp_path / "ended", to=["png"], workers=workers, layers="layer1.*")
    assert (whole.done, ended.done) == (8, 8)
    expected = {key: png for key, png in pngs(whole.directory).items() if key[1].startswith(("layer1.", "input"))}
    assert len(expected) == 8 * (4 + 1)
    assert pngs(ended.directory) == expected


def test_print_options_of_numpy_are_not_reported_as_state():
    """NumPy's print options belong to a thread: that of a worker has others than a notebook that sets them."""
    states = []
    network = nn.Sequential(nn.Conv2d(3, 4, 3))
    with np.printoptions(precision=2, threshold=3):
        states.append(state_of(network))
    states.append(state_of(network))
    assert states[0] == states[1]
    np.random.rand(1)  # noqa: NPY002
    assert state_of(network) != states[0]
