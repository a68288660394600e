"""Weights that are not finite, and images that cannot be prepared, in a comparison."""

import torch
from PIL import Image
from torch import nn

from fmapviz.config import RunConfig
from fmapviz.features.diff.run import run_diff


class Net(nn.Module):
    def __init__(self, weight=0.1):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
        nn.init.constant_(self.second.weight, weight)

    def forward(self, images):
        return self.second(self.first(images)).mean((2, 3))

    def preprocess(self, picture):
        return torch.full((3, 16, 16), float(picture.size[0]))


class Refusing(Net):
    def preprocess(self, picture):
        raise ValueError(f"{picture} is not good enough")


def compare(first, second, out):
    Image.new("RGB", (20, 20), "orange").save(out / "a.png")
    return run_diff(RunConfig(first, out / "a.png", views="diff", out=out, to="numbers"), against=second)


def test_the_second_network_with_weights_that_are_not_finite_is_named(tmp_path):
    summary = compare(Net(), Net(torch.nan), tmp_path)
    assert any(notice.endswith("; the weights of B hold some: 'second.weight'") for notice in summary.notices)


def test_a_comparison_without_an_image_reports_no_layers(tmp_path):
    summary = compare(Refusing(), Refusing(), tmp_path)
    assert (summary.done, summary.failed) == (0, 1)
    assert not [notice for notice in summary.notices if "no CKA" in notice or "both networks" in notice]
