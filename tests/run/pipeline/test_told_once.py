"""Notices about many images of a run are recorded with each, and reported once."""

from __future__ import annotations

import json

import pytest
import torch
from PIL import Image
from torch import nn

import fmapviz
from fmapviz.config import Style
from fmapviz.events import Notice, Outcome
from fmapviz.images.notices import TRANSPARENT, of_repeated

CLEAR = (250, 120, 30, 0)


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3))


class Clips(nn.Sequential):
    inputs = (3, 4, 16, 16)

    def __init__(self):
        super().__init__(nn.Conv3d(3, 4, 3))


def draw(network, inputs, out, **options):
    """Return the summary, the messages of the notices, and those of the outcomes."""
    events = []
    summary = fmapviz.visualize(network, inputs, out=out, name="run", to="png", on_event=events.append, **options)
    assert (summary.done, summary.failed) == (summary.found, 0)
    messages = [event.message for event in events if isinstance(event, Notice)]
    assert list(summary.notices) == messages
    return summary, messages, [notice for event in events if isinstance(event, Outcome) for notice in event.notices]


def recorded(summary, name):
    return json.loads((summary.directory / name / "unit.json").read_text())["notices"]


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("norm", ["channel", "run"])
def test_transparency_is_reported_once_and_recorded_with_each_image(norm, tmp_path):
    for name, colour in (("a.png", CLEAR), ("b.webp", CLEAR), ("c.tif", CLEAR), ("opaque.png", (*CLEAR[:3], 255))):
        Image.new("RGBA", (20, 20), colour).save(tmp_path / name)
    Image.new("P", (20, 20), 0).save(tmp_path / "d.gif", transparency=0)
    names = ["a.png", "b.webp", "c.tif", "d.gif"]
    summary, told, of_images = draw(
        Net(), [tmp_path / name for name in (*names, "opaque.png")], tmp_path, style=Style(norm=norm)
    )
    assert told.count(TRANSPARENT) == 1
    assert not of_images
    assert [recorded(summary, name) for name in (*names, "opaque.png")] == [[TRANSPARENT]] * 4 + [[]]


@pytest.mark.thorough
def test_transparent_frames_of_an_animation_are_reported_once(tmp_path):
    frames = [Image.new("RGBA", (20, 20), colour) for colour in (CLEAR, (1, 2, 3, 255))]
    frames[0].save(tmp_path / "a.webp", save_all=True, append_images=frames[1:], lossless=True)
    summary, told, _ = draw(Net(), tmp_path / "a.webp", tmp_path)
    assert told.count(TRANSPARENT) == 1
    assert [recorded(summary, f"a.webp/00000{number}") for number in (0, 1)] == [[TRANSPARENT], []]


def test_transparent_pixels_in_memory_are_reported_like_files(tmp_path):
    _, told, _ = draw(Net(), [Image.new("RGBA", (20, 20), CLEAR), Image.new("LA", (20, 20), (9, 0))], tmp_path)
    assert told.count(TRANSPARENT) == 1


def test_a_picture_that_is_repeated_to_a_clip_is_reported_once(tmp_path):
    Image.new("RGB", (16, 16), "orange").save(tmp_path / "a.png")
    inputs = [tmp_path / "a.png", Image.new("RGB", (16, 16), "green")]
    summary, told, of_images = draw(Clips(), inputs, tmp_path)
    assert told.count(of_repeated(4)) == 1
    assert not of_images
    assert recorded(summary, "a.png") == [of_repeated(4)]


def test_a_clip_is_not_repeated(tmp_path):
    frames = [Image.new("RGB", (16, 16), (level, 0, 0)) for level in (10, 90, 160, 250)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    _, told, of_images = draw(Clips(), [tmp_path / "a.gif", torch.zeros(1, 3, 4, 16, 16)], tmp_path)
    assert of_repeated(4) not in (*told, *of_images)
