"""`FeatureMap.show` draws what a style asks for, and `capture` takes what `load_model` returns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fmapviz
from fmapviz.core.config import Style
from fmapviz.core.errors import RequestError


@pytest.fixture(scope="module")
def maps():
    model = fmapviz.load_model("shapesnet")
    with fmapviz.capture(model, layers=["features.0.conv", "classifier"], types="Module") as captured:
        model.module(torch.rand(1, 3, 96, 96, generator=torch.Generator().manual_seed(0)))
    return captured


def test_a_style_chooses_channels(maps):
    shown = maps["features.0.conv"]
    some = np.asarray(shown.show(Style(channels="3,1", padding=0, columns=1)))
    every = np.asarray(shown.show(Style(padding=0, columns=1)))
    side = shown.shape[2]
    tiles = [every[side * number : side * (number + 1)] for number in (3, 1)]
    assert np.array_equal(some, np.concatenate(tiles))


@pytest.mark.parametrize("more", [{"labels": True}, {"colorbar": True}, {"channels": "top:4"}], ids=str)
def test_labels_and_colour_bars_are_drawn(maps, more):
    plain, framed = (np.asarray(maps["features.0.conv"].show(style)) for style in (Style(), Style(**more)))
    assert plain.shape != framed.shape
    assert np.array_equal(plain, fmapviz.tile(maps["features.0.conv"].values[0]).numpy())


def test_channels_that_do_not_exist_are_refused(maps):
    with pytest.raises(RequestError, match="none of those chosen"):
        maps["features.0.conv"].show(Style(channels="999"))
