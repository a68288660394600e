"""A notice names exactly the options whose absence leads to the same files."""

from __future__ import annotations

import json

import pytest
from cases import thorough
from PIL import Image

import fmapviz
from fmapviz.config import InputOptions, Style, options_of

IMAGE = "shapes/star.jpg"


def draw(samples, out, views, to, given):
    """Return the notices on options, and the contents of pictures and records."""
    options = {name: value for name, value in given.items() if name not in {*options_of(Style), "size"}}
    looks = {name: value for name, value in given.items() if name in options_of(Style)}
    prepared = InputOptions(size=given["size"]) if "size" in given else InputOptions()
    summary = fmapviz.visualize(
        "shapesnet",
        samples / IMAGE,
        out=out,
        views=views,
        to=to,
        preprocessing=prepared,
        style=Style(**{"anchor": "40,40"} if "similarity" in views else {}, **looks),
        **{"layers": ["features.0.conv"], **options} if views != "saliency" else options,
    )
    pixels = {path.name: Image.open(path).tobytes() for path in sorted(summary.directory.rglob("*.png"))}
    values = {path.name: path.read_bytes() for path in summary.directory.rglob("*.npz")}
    (unit, *_) = [*summary.directory.rglob("unit.json")]
    records = json.loads(unit.read_text())
    found = (pixels, {**values}, [records.get(key) for key in ("layers", "heat_maps", "predictions")])
    return [notice for notice in summary.notices if "no effect" in notice], found


CASES = [
    ("maps", "png", {}, {"text_size": 20}),
    ("mean", "png", {}, {"text_size": 20}),
    ("mean", "png", {}, {"background": "white"}),
    ("maps", "npz", {}, {"labels": True}),
    ("maps", "png", {}, {"dtype": "float16"}),
    ("maps", "png", {}, {"scores": "sigmoid"}),
    ("kernels", "png", {}, {"size": (64, 64)}),
    ("saliency", "png", {}, {"layers": ["features.1.conv"]}),
    *thorough(
        ("maps", "png", {"labels": True}, {"text_size": 20}),
        ("maps", "png", {}, {"background": "white"}),
        ("mean", "png", {"colorbar": True}, {"background": "white"}),
        ("maps", "png", {"colorbar": True}, {"text_size": 20}),
        ("maps", "png", {"channels": "top:3"}, {"text_size": 20}),
        ("maps", "png", {"channels": "top:3", "labels": False}, {"text_size": 20}),
        ("mean", "png", {"with_input": True}, {"background": "white"}),
        ("gradcam", "png", {}, {"text_size": 20}),
        ("gradcam", "png", {"labels": False}, {"text_size": 20}),
        ("gradcam", "png", {"labels": False}, {"background": "white"}),
        ("saliency", "png", {}, {"text_size": 20}),
        ("eigencam", "png", {}, {"text_size": 20}),
        ("similarity", "png", {}, {"background": "white"}),
        ("pca", "png", {}, {"text_size": 20}),
        ("kernels", "png", {}, {"text_size": 20}),
        ("kernels", "png", {}, {"predictions": 2}),
        ("maps", "npz", {}, {"dtype": "float16"}),
        ("maps", "npz", {}, {"colormap": "magma"}),
        ("maps", "png", {}, {"size": (64, 64)}),
        ("maps", "png", {"predictions": 3}, {"scores": "sigmoid"}),
        ("gradcam", "png", {}, {"scores": "sigmoid"}),
        ("maps", "png", {}, {"layers": ["features.1.conv"]}),
    ),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("views", "to", "common", "option"), CASES)
def test_an_option_is_reported_without_effect_if_and_only_if_it_has_none(views, to, common, option, *, samples, tmp_path):
    told, plain = draw(samples, tmp_path / "plain", views, to, common)
    assert not told
    told, changed = draw(samples, tmp_path / "changed", views, to, {**common, **option})
    assert bool(told) == (changed == plain)
    assert all(notice.startswith(f"{next(iter(option))}= has no effect ") for notice in told)
