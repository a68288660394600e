"""Values that are NaN or infinite are reported once in a run, with the first layer that has them."""

from __future__ import annotations

import pytest
import torch
from cases import thorough
from PIL import Image
from torch import nn

import fmapviz
from fmapviz.formats.html.page import read_script


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.first = nn.Conv2d(3, 4, 3)
        self.second = nn.Conv2d(4, 4, 3)
        self.third = nn.Conv2d(4, 4, 3)
        if kind == "weights":
            nn.init.constant_(self.second.weight, torch.nan)

    def forward(self, images):
        values = self.first(images)
        if self.kind == "all":
            values = values * torch.nan
        if self.kind == "some":
            values = values.clone()
            values[..., 0, 0] = torch.inf
        return self.third(self.second(values)).mean((2, 3))

    def preprocess(self, picture):
        values = torch.full((3, 16, 16), float(picture.size[0]))
        return values * torch.nan if self.kind == "input" else values


WORDS = {
    "all": "values that are NaN or infinite in 2 images, first in the layer 'second', of which no value is finite",
    "weights": "values that are NaN or infinite in 2 images, first in the layer 'second', of which no value is finite; "
    "the weights of the network hold some: 'second.weight'",
    "none": None,
    "some": "values that are NaN or infinite in 2 images, first in the layer 'second'",
    "input": "values that are NaN or infinite in 2 images, first in the layer 'first', of which no value is finite; "
    "the preprocessed input holds some already",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["all", "weights", "none", *thorough("some", "input")])
def test_the_first_layer_without_finite_values_is_named_once(kind, tmp_path):
    for name in ("a.png", "b.png"):
        Image.new("RGB", (20, 20), "orange").save(tmp_path / name)
    summary = fmapviz.visualize(Net(kind), [tmp_path / "a.png", tmp_path / "b.png"], out=tmp_path, name="run", to=["html"])
    assert (summary.done, summary.exit_code) == (2, 0)
    assert [notice for notice in summary.notices if "NaN" in notice] == [WORDS[kind]] * (WORDS[kind] is not None)
    for name in ("a.png", "b.png"):
        (page,) = (summary.directory / name).glob("report.js")
        shown = [notice for notice in read_script(page.read_bytes())["notices"] if "NaN" in notice]
        assert shown == ([WORDS[kind].replace(" in 2 images", "")] if WORDS[kind] else [])
