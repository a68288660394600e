from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
import pytest
import torch
from cases import thorough
from image_files import paint
from PIL import Image
from results import drawn_layer, result_of
from torch import nn

import fmapviz
from fmapviz.config import InputOptions
from fmapviz.core.drawings import Grid
from fmapviz.events import Notice
from fmapviz.run.loop import visualize
from fmapviz.run.pipeline.batching import is_mixed
from fmapviz.types import CustomContent, Measures, Statistics

# Of less than 20,480 values torch computes a batch otherwise than one image.
SMALL = InputOptions(size=(96, 96), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


class Log(list):
    """Is no state of the network, which would be set back: its copies share it."""

    def __deepcopy__(self, _memo):
        return self


class Ticks:
    """Counts, likewise; how far, does not make another network."""

    def __init__(self):
        self.numbers = count()

    def __deepcopy__(self, _memo):
        return self


class Net(nn.Module):
    """Notes how many images each forward pass has."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3)
        self.passes = Log()

    def forward(self, x):
        self.passes.append(len(x))
        return self.conv(x)


class Otherwise(Net):
    """Computes a batch otherwise than one image: by as little as a rounding."""

    def forward(self, x):
        return super().forward(x * (1 + 1e-6) if len(x) > 1 else x)


class Mixing(Net):
    """Compares every image with the mean of all."""

    def forward(self, x):
        return super().forward(x - x.mean())


class Brightest(Net):
    """Compares every image with the brightest value of all."""

    def forward(self, x):
        return super().forward(x / x.amax())


class Darkest(Net):
    """Compares every image with the darkest value of all."""

    def forward(self, x):
        return super().forward(x / x.amin())


class Alone(Net):
    """Takes one image only."""

    def forward(self, x):
        return super().forward(x.reshape(1, 3, 96, 96))


class Noisy(Net):
    """Draws random numbers."""

    def forward(self, x):
        return super().forward(x + torch.rand_like(x))


class Counting(Net):
    """Counts its passes in a buffer, and depends on the count."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        return super().forward(x * self.count)


class Averaging(Net):
    """Keeps a mean of its inputs."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        self.mean.lerp_(x.mean(), 0.1)
        return super().forward(x - self.mean)


class Remembering(Net):
    """Keeps the image before."""

    before = 0

    def forward(self, x):
        result = super().forward(x - self.before)
        self.before = x
        return result


class Picky(Net):
    """Fails at white images."""

    def forward(self, x):
        if (x.amin((1, 2, 3)) > 2).any():
            self.passes.append(-len(x))
            raise ValueError("white")
        return super().forward(x)


class Short(Net):
    """Runs out of memory at the fifth pass."""

    def __init__(self):
        super().__init__()
        self.ticks = Ticks()

    def forward(self, x):
        if next(self.ticks.numbers) == 4:
            self.passes.append(-len(x))
            raise torch.OutOfMemoryError
        return super().forward(x)


def paint_many(folder, count, size=(96, 96)):
    for seed in range(count):
        paint(folder / f"{size[0]}-{seed}.png", seed, size)
    return folder


def look(inputs, model, out, **options):
    summary = visualize(model, inputs, out=out, to="png", **{"preprocessing": SMALL, "workers": 1, **options})
    assert summary.exit_code == 0
    return {
        str(path.relative_to(summary.directory)): path.read_bytes()
        for path in summary.directory.rglob("*")
        if path.is_file() and path.name != "run.json"
    }


# --- in a run


def test_each_image_has_its_own_pass_by_default(tmp_path):
    model = Net()
    look(paint_many(tmp_path / "pictures", 6), model, tmp_path / "out")
    assert model.passes == [1] * 6


@pytest.mark.thorough
def test_images_of_a_random_network_share_no_pass(tmp_path):
    model, events = Noisy(), []
    pictures = paint_many(tmp_path / "pictures", 5)
    tree = look(pictures, model, tmp_path / "a", on_event=events.append)
    assert model.passes == [1] * (1 + 5)  # the first shows that numbers are drawn; then each has the seed of its name
    assert [event.message for event in events if isinstance(event, Notice)] == [
        "the network draws random numbers when it runs: they are seeded for each image by its name"
    ]
    for name, options in (("b", {"workers": 2}), ("c", {"batch_size": 4})):
        assert look(pictures, Noisy(), tmp_path / name, **options) == tree


def test_a_requested_batch_size_is_used(tmp_path):
    model = Otherwise()
    look(paint_many(tmp_path / "pictures", 9), model, tmp_path / "out", batch_size=3)
    assert model.passes == [3, 3, 3, 3]  # the second is the first image beside noise


def test_one_image_is_drawn_once(tmp_path):
    model = Net()
    look(paint_many(tmp_path / "pictures", 1) / "96-0.png", model, tmp_path / "out")
    assert model.passes == [1]


def test_an_image_that_fails_in_a_shared_pass_fails_alone(tmp_path):
    pictures = paint_many(tmp_path / "pictures", 10)
    Image.new("RGB", (96, 96), "white").save(pictures / "96-4.png")
    model, trees = Picky(), []
    for name, size in (("a", 4), ("b", 1)):
        summary = visualize(model, pictures, out=tmp_path / name, to="png", preprocessing=SMALL, workers=1, batch_size=size)
        assert (summary.done, summary.failed) == (9, 1)
        trees.append({path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.png/*")})
    assert model.passes[:2] == [4, 4]  # the second is the first image beside noise
    assert {-4, -1} <= {*model.passes}
    assert trees[0] == trees[1]


@pytest.mark.thorough
def test_fewer_images_share_a_pass_if_memory_is_short(tmp_path):
    pictures, model, alone, events = paint_many(tmp_path / "pictures", 18), Short(), Short(), []
    list(islice(alone.ticks.numbers, 5))  # has what it needs
    tree = look(pictures, model, tmp_path / "a", batch_size=4, on_event=events.append)
    assert [event.message for event in events if isinstance(event, Notice)] == [
        "out of memory with 4 images at once: continuing with 2"
    ]
    assert model.passes == [4, 4, 4, 4, -4, 2, 2, 2]  # the second is the first image beside noise
    assert tree == look(pictures, alone, tmp_path / "b", batch_size=1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [Counting, Averaging, Remembering])
def test_a_network_that_a_pass_changes_is_not_run_more_often(kind, tmp_path):
    tried, alone = kind(), kind()
    pictures = paint_many(tmp_path / "pictures", 6)
    assert look(pictures, tried, tmp_path / "a") == look(pictures, alone, tmp_path / "b", batch_size=1)
    assert tried.passes == [1] * 6


@pytest.mark.thorough
def test_an_image_has_the_same_files_alone_and_in_a_folder(tmp_path):
    model = fmapviz.load_model("squeezenet1_1", weights="random", preprocessing=InputOptions(size=(64, 64)))
    pictures = paint_many(tmp_path / "pictures", 5, (64, 64))
    folder = look(pictures, model, tmp_path / "a", workers=2)
    for name in ("64-0.png", "64-4.png"):
        alone = look(pictures / name, model, tmp_path / f"b{name}", workers=2)
        assert alone.items() <= folder.items()


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("workers", [2, 4])
def test_several_threads_write_the_same_files(workers, tmp_path):
    pictures = paint_many(tmp_path / "pictures", 21)
    many = look(pictures, Net(), tmp_path / "a", workers=workers)
    assert many == look(pictures, Net(), tmp_path / "b", batch_size=1)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mobilenet_v3_small", "squeezenet1_1", *thorough("regnet_y_400mf", "googlenet")])
def test_outputs_of_networks_do_not_depend_on_other_images(name, tmp_path):
    model = fmapviz.load_model(name, weights="random", preprocessing=InputOptions(size=(64, 64)))
    pictures = paint_many(tmp_path / "pictures", 7, (64, 64))
    trees = [look(pictures, model, tmp_path / f"{size}", batch_size=size) for size in (None, 1)]
    assert trees[0].keys() == trees[1].keys()
    for path, data in trees[0].items():
        assert data == trees[1][path], path
    assert json.loads(trees[0]["64-5.png/unit.json"])["layers"]


# --- with a size of batches that is asked for


class Normalising(Net):
    """Normalises by the batch, in an early branch."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3, track_running_stats=False)

    def forward(self, x):
        return super().forward(self.norm(x))


class Attending(Net):
    """Attends from each image to all others."""

    def forward(self, x):
        tokens = x.flatten(1)
        return super().forward(((tokens @ tokens.T / 1e4).softmax(1) @ tokens).reshape(x.shape))


class Contrasting(Net):
    """Scales each image by how it resembles the others."""

    def forward(self, x):
        near = nn.functional.normalize(x.flatten(1))
        return super().forward(x * (near @ near.T).sum(1)[:, None, None, None])


MIXES = "the network mixes the images of a batch: each image is passed through it alone"


def notices_of(events):
    return [event.message for event in events if isinstance(event, Notice)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [Mixing, Brightest, Darkest, Normalising, Attending, Contrasting])
@pytest.mark.parametrize("workers", [1, 3])
def test_images_of_a_network_that_mixes_a_batch_are_passed_alone_with_a_notice(kind, workers, tmp_path):
    pictures, events = paint_many(tmp_path / "pictures", 7), []
    tree = look(pictures, kind(), tmp_path / "a", batch_size=3, workers=workers, on_event=events.append)
    assert tree == look(pictures, kind(), tmp_path / "b", batch_size=1, workers=workers)
    assert notices_of(events) == [MIXES]


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [Counting, Averaging, Remembering])
def test_images_of_a_stateful_network_are_passed_alone_with_a_notice(kind, tmp_path):
    pictures, events = paint_many(tmp_path / "pictures", 7), []
    tree = look(pictures, kind(), tmp_path / "a", batch_size=3, on_event=events.append)
    assert tree == look(pictures, kind(), tmp_path / "b", batch_size=1)
    (notice,) = notices_of(events)
    assert notice.endswith("from one image to the next: each image is drawn alone, from the state of the start")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [Net, Otherwise])
def test_rounding_of_a_batch_is_no_mixing(kind, tmp_path):
    model, events = kind(), []
    look(paint_many(tmp_path / "pictures", 7), model, tmp_path / "a", batch_size=3, on_event=events.append)
    assert notices_of(events) == []
    assert sorted(model.passes) == [1, 3, 3, 3]


def test_a_network_of_one_image_receives_one(tmp_path):
    pictures = paint_many(tmp_path / "pictures", 4)
    assert look(pictures, Alone(), tmp_path / "a", batch_size=3) == look(pictures, Alone(), tmp_path / "b", batch_size=1)


@pytest.mark.parametrize("mixes", [False, True])
def test_random_differences_are_distinguished_from_mixing_by_size(mixes):
    """As gradients on a GPU do."""
    times = itertools.count()

    def draw(images):
        values = images[:1].numpy() + (images.numpy().mean(0) if mixes else 0) + 1e-6 * next(times)
        return [drawn(pixels=values[0])] * len(images)

    images = torch.rand(3, 3, 4, 4)
    assert is_mixed(images, draw(images)[0], draw) == mixes


# --- comparison


def drawn(**changes):
    pixels = changes.pop("pixels", np.zeros((2, 2), np.uint8))
    grid = Grid(pixels, channels=changes.pop("channels", None))
    return result_of(drawn_layer(changes.pop("layer", "a"), grid, **changes))


@pytest.mark.sampled
@pytest.mark.parametrize(
    "other",
    [
        drawn(pixels=np.eye(2, dtype=np.uint8)),
        drawn(pixels=np.zeros((2, 3), np.uint8)),
        drawn(statistics=Statistics(0.0, 1.0, 0.5 + 2**-24, (), 0)),
        drawn(layer="b"),
        drawn(view="inputs"),
        drawn(shape=(1, 2, 3)),
        drawn(channels=(0,)),
        drawn(samples=2),
        result_of(),
        result_of(*drawn().layers * 2),
        result_of(*drawn().layers, not_executed=("b",)),
        result_of(*drawn().layers, undrawn={"b": "a vector"}),
    ],
)
def test_outputs_that_differ_in_structure_are_mixed(other):
    assert mixes(drawn(), other)
    assert not mixes(drawn(), drawn())


def mixes(first, beside):
    """Return whether an image is taken for mixed that has these results in its batch, and beside noise."""
    images = torch.ones(2, 3, 4, 4)
    return is_mixed(images, first, lambda given: [first if torch.equal(given, images) else beside] * 2)


NUMBERS = np.arange(3, dtype=np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Pair(CustomContent):
    grids: tuple


def of_pair(*grids):
    return Pair(grids)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ({"measures": Measures(9, *[NUMBERS] * 6)}, {"measures": Measures(9, *[NUMBERS] * 6, rest=NUMBERS)}, False),
        ({"measures": Measures(9, *[NUMBERS] * 6, rest=NUMBERS)}, {"measures": Measures(9, *[NUMBERS] * 7)}, True),
        ({"content": of_pair(NUMBERS, NUMBERS)}, {"content": of_pair(NUMBERS, NUMBERS + 0)}, True),
        ({"content": of_pair(NUMBERS, NUMBERS)}, {"content": of_pair(NUMBERS, NUMBERS + 1)}, False),
        ({"content": of_pair(NUMBERS, NUMBERS)}, {"content": of_pair(NUMBERS)}, False),
    ],
)
def test_nested_and_missing_arrays_are_compared(one, other, alike):
    alone, beside = (result_of(drawn_layer("a", each.pop("content", None), **each)) for each in (dict(one), dict(other)))
    assert mixes(alone, beside) == mixes(beside, alone) == (not alike)
