"""Findings about a network are reused until it changes."""

from __future__ import annotations

import gc
import weakref
from copy import deepcopy

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import fmapviz
from fmapviz.observe.layouts import find
from fmapviz.run import places as fields

SIZE = 12


class Turned(nn.Module):
    """Returns maps in one of two orders of axes, by a flag."""

    def __init__(self, *, last):
        super().__init__()
        self.convolution, self.act, self.last = nn.Conv2d(3, SIZE, 3, padding=1), nn.ReLU(), last
        self.head = nn.Linear(SIZE, 3)

    def forward(self, images):
        maps = self.convolution(images)
        maps = self.act(maps.permute(0, 2, 3, 1) if self.last else maps)
        return self.head(maps.mean((1, 2) if self.last else (2, 3)))


@pytest.fixture
def followed(monkeypatch):
    """How often axes were followed, and how often the places of maps."""
    calls = {"axes": 0, "places": 0}

    def count(key, function):
        def counted(*args, **kwargs):
            calls[key] += 1
            return function(*args, **kwargs)

        return counted

    monkeypatch.setattr(find, "AxisTracking", count("axes", find.AxisTracking))
    monkeypatch.setattr(fields, "trace_fields", count("places", fields.trace_fields))
    return calls


def draw_maps(network, out):
    return fmapviz.visualize(network, image(), out=out, types="ReLU", to="png").directory


def image():
    return torch.rand(1, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))


def draw_class_maps(network, out):
    return fmapviz.visualize(network, image(), out=out, views=["gradcam"], layers=["act"], targets=[1], to="png").directory


def draw_cam(network, _out):
    return fmapviz.cam(network, image(), target=1, layer="act")


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("draw", [draw_maps, draw_class_maps, draw_cam])
def test_a_second_call_reuses_followed_axes(draw, followed, tmp_path):
    network = Turned(last=False).eval()
    draw(network, tmp_path / "a")
    once = dict(followed)
    assert once["axes"] == 1
    assert once["places"] == (0 if draw is draw_maps else 1)
    draw(network, tmp_path / "b")
    assert followed == once


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("draw", [draw_class_maps, draw_cam])
def test_a_run_and_a_call_share_positions_of_maps(draw, followed, tmp_path):
    network = Turned(last=False).eval()
    draw(network, tmp_path / "a")
    (draw_class_maps if draw is draw_cam else draw_cam)(network, tmp_path / "b")
    assert followed["places"] == 1


def turn(network):
    network.last = True


def replace_layer(network):
    network.act = nn.Sequential(nn.ReLU())


def add_hook(network):
    network.act.register_forward_hook(lambda _layer, _inputs, maps: maps.transpose(1, 2).transpose(1, 2))


def replace_forward(network):
    network.forward = lambda images: type(network).forward(network, images.flip(3))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", [turn, replace_layer, add_hook, replace_forward])
def test_a_changed_network_is_followed_again(change, followed, tmp_path):
    network = Turned(last=False).eval()
    draw_cam(network, tmp_path)
    change(network)
    draw_cam(network, tmp_path)
    assert followed["axes"] == 2


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_axes_that_depend_on_a_flag_are_those_of_the_call(tmp_path):
    network, pictures = Turned(last=False).eval(), []
    for number, last in enumerate((False, True, False)):
        network.last = last
        for each in (network, deepcopy(network)):
            directory = draw_maps(each, tmp_path / f"{number}{each is network}")
            (path,) = directory.rglob("*act.maps.png")
            pictures.append(np.asarray(Image.open(path)))
    assert all(np.array_equal(each, pictures[0]) for each in pictures)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("draw", [draw_maps, draw_class_maps, draw_cam])
def test_findings_do_not_keep_a_network_alive(draw, tmp_path):
    network = Turned(last=False).eval()
    draw(network, tmp_path)
    kept = weakref.ref(network)
    del network
    gc.collect()
    assert kept() is None
