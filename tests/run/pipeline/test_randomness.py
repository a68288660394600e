"""Random numbers are seeded for each image by name: runs are equal in any order and with any number of workers."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from cases import thorough
from PIL import Image
from torch import nn

import fmapviz

DRAWS = {
    "torch": lambda: float(torch.rand(())),
    "numpy": lambda: float(np.random.rand()),  # noqa: NPY002  as users do
    "python": random.random,
    "none": lambda: 0.5,
}


class Net(nn.Module):
    def __init__(self, of_network, of_preparation):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        nn.init.constant_(self.conv.weight, 0.1)
        self.of_network, self.of_preparation = of_network, of_preparation

    def forward(self, images):
        return self.conv(nn.functional.dropout(images, 0.5, training=True) * 0 + DRAWS[self.of_network]()).mean((2, 3))

    def preprocess(self, picture):
        return torch.full((3, 16, 16), DRAWS[self.of_preparation]() + picture.size[0])


class Quiet(Net):
    def forward(self, images):
        return self.conv(images + DRAWS[self.of_network]()).mean((2, 3))


def values_of(network, pictures, out, workers):
    summary = fmapviz.visualize(network, pictures, out=out, name="run", to=["npz"], workers=workers)
    found = {path.parent.name: np.load(path) for path in sorted((out / "run").rglob("*.npz"))}
    return {name: {key: held[key] for key in held} for name, held in found.items()}, summary.notices


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("of_network", "of_preparation"),
    [("torch", "none"), ("none", "python"), *thorough(("numpy", "none"), ("python", "torch"), ("none", "numpy"))],
)
def test_two_runs_are_equal_in_any_order_and_with_any_workers(of_network, of_preparation, tmp_path):
    pictures = []
    for number in range(6):
        pictures.append(tmp_path / f"{number}.png")
        Image.new("RGB", (16, 16), "orange").save(pictures[-1])
    network = (Quiet if of_network == "none" else Net)(of_network, of_preparation)
    first, notices = values_of(network, pictures, tmp_path / "a", 1)
    torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002
    second, _ = values_of(network, pictures[::-1], tmp_path / "b", 4)
    assert len(first) == len(second) == 6
    for name, values in first.items():
        for key in values:
            np.testing.assert_array_equal(values[key], second[name][key])
    several = {str(values) for values in first.values()}
    assert len(several) == 6
    words = "the network draws random numbers" if of_network != "none" else "the preprocessing draws random numbers"
    assert any(notice.startswith(words) for notice in notices)


def test_a_network_without_random_numbers_is_not_reported(tmp_path):
    Image.new("RGB", (16, 16), "orange").save(tmp_path / "a.png")
    _, notices = values_of(Quiet("none", "none"), [tmp_path / "a.png"], tmp_path / "a", 1)
    assert not any("random" in notice for notice in notices)


def test_a_preprocessing_that_cannot_be_seeded_is_named(tmp_path):
    Image.new("RGB", (16, 16), "orange").save(tmp_path / "a.png")
    network = Quiet("none", "none")
    network.preprocess = lambda _picture: torch.full((3, 16, 16), float(np.random.default_rng().random()))
    _, notices = values_of(network, [tmp_path / "a.png"], tmp_path / "a", 1)
    assert any("two runs will differ" in notice for notice in notices)


class StaysOn(nn.Dropout):
    def train(self, _mode=True):
        return super().train()


def test_dropout_that_a_networks_train_leaves_on_is_drawn_and_reported(tmp_path):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), StaysOn())
    image = torch.rand(3, 16, 16)
    summary = fmapviz.visualize(network, [image], out=tmp_path, name="run", to="npz", layers="1")
    (path,) = (tmp_path / "run").rglob("*.npz")
    with np.load(path) as held:
        assert any((held[name] == 0).mean() > 0.3 for name in held if name != "__metadata__")
    said = "the network's own eval() leaves in training mode, and so it is drawn: 1 (StaysOn)"
    assert said in summary.notices
    assert "the network draws random numbers when it runs: they are seeded for each image by its name" in summary.notices
    classifier = nn.Sequential(*network, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    assert said in fmapviz.cam(classifier, image, target=1, layer="1").notices
