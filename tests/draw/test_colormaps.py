"""Colour maps are matplotlib's; overlays are weighted means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from fmapviz.config import COLORMAPS, Style, canonical_colormap
from fmapviz.draw.colormaps import colorize, table
from fmapviz.draw.heatmap import overlay
from fmapviz.errors import RequestError


def reference(name):
    """Return matplotlib's 256 colours as signed integers."""
    from extras import matplotlib as mpl

    return np.rint(mpl.colormaps[name](np.arange(256))[:, :3] * 255).astype(int)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", COLORMAPS)
def test_colours_are_within_two_levels_of_matplotlibs(name):
    colours = table(name)
    assert (colours.shape, colours.dtype) == ((256, 3), np.uint8)
    assert abs(colours.astype(int) - reference(name)).max() <= (0 if name == "gray" else 2)


def test_tables_are_read_only():
    with pytest.raises(ValueError, match="read-only"):
        table("turbo")[0, 0] = 9


def test_grey_is_an_alias_of_gray():
    assert canonical_colormap("grey") == "gray"
    assert np.array_equal(table("grey"), table("gray"))
    assert colorize(torch.tensor([7], dtype=torch.uint8), "grey").tolist() == [[7, 7, 7]]
    assert Style(colormap="grey") == Style(colormap="gray")
    assert Style(colormap="grey").colormap == "gray"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("viridris", "did you mean 'viridis'?"),
        ("Jet", "did you mean 'jet'?"),
        ("", "one of gray, viridis, magma, turbo, coolwarm, jet"),
        ("hsv\x1b[31m", "one of gray, viridis, magma, turbo, coolwarm, jet"),
    ],
)
@pytest.mark.parametrize("ask", [canonical_colormap, table, lambda name: Style(colormap=name)])
def test_unknown_colormaps_are_refused(name, hint, ask):
    with pytest.raises(RequestError) as caught:
        ask(name)
    assert str(caught.value) == f"no such colormap: '{name}'".replace("\x1b", r"\x1b")
    assert caught.value.hint == hint


@pytest.mark.parametrize("alpha", [-0.01, 1.01, float("nan"), float("inf"), -float("inf")])
def test_alpha_must_be_0_to_1(alpha):
    with pytest.raises(RequestError, match=rf"^alpha must be 0 to 1: '{alpha}'\nhint: "):
        Style(alpha=alpha)


@pytest.mark.parametrize(
    ("style", "palette"),
    [
        ({}, None),
        ({"norm": "layer"}, None),
        ({"norm": "signed"}, "coolwarm"),
        ({"norm": "signed", "colormap": "grey"}, None),
        ({"norm": "signed", "colormap": "jet"}, "jet"),
        ({"norm": "fixed:0,1", "colormap": "viridis"}, "viridis"),
        ({"colormap": "gray"}, None),
    ],
)
def test_the_palette_of_grids_equals_the_colormap(style, palette):
    assert Style(**style).palette == palette


@pytest.mark.sampled
@pytest.mark.parametrize("shape", [(), (0,), (256,), (3, 5), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("name", COLORMAPS)
def test_colorize_looks_levels_up_in_the_table(name, shape):
    levels = torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    colours = colorize(levels, name)
    assert colours.dtype == torch.uint8
    assert np.array_equal(colours.numpy(), table(name)[levels.numpy()])
    assert abs(colours.numpy().astype(int) - reference(name)[levels.numpy()]).max(initial=0) <= 2


def test_colorize_accepts_noncontiguous_levels():
    levels = torch.arange(240, dtype=torch.uint8).view(2, 10, 12).movedim(0, -1)[::2, 1:]
    assert np.array_equal(colorize(levels, "turbo").numpy(), table("turbo")[levels.numpy()])


def random_bytes(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


@pytest.mark.sampled
@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.25, 1 / 3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("shape", [(40, 30), (40, 30, 3)], ids=str)
def test_an_overlay_is_the_weighted_mean(shape, alpha):
    seen, heat = random_bytes(*shape), random_bytes(40, 30, seed=1)
    laid = overlay(seen, heat, colormap="turbo", alpha=alpha)
    assert (laid.shape, laid.dtype) == ((40, 30, 3), np.uint8)
    below = Image.fromarray(seen).convert("RGB")
    exact = np.asarray(below).astype(float) * (1 - alpha) + alpha * table("turbo")[heat]
    assert abs(laid - exact).max() <= 0.5 + 1e-4
    blended = np.asarray(Image.blend(below, Image.fromarray(table("turbo")[heat]), alpha)).astype(
        int
    )  # Pillow's rounds down
    assert set(np.unique(laid - blended)) <= {0, 1}


def test_alpha_0_is_the_picture_and_alpha_1_the_heat_map():
    seen, heat = random_bytes(9, 8, 3), random_bytes(9, 8, seed=1)
    assert np.array_equal(overlay(seen, heat, colormap="jet", alpha=0.0), seen)
    assert np.array_equal(overlay(seen, heat, colormap="jet", alpha=1.0), table("jet")[heat])


def test_overlay_does_not_change_its_arguments():
    seen, heat = random_bytes(9, 8, 3), random_bytes(9, 8, seed=1)
    seen.flags.writeable = heat.flags.writeable = False
    first = overlay(seen, heat, colormap="magma", alpha=0.5)
    assert np.array_equal(overlay(seen, heat, colormap="magma", alpha=0.5), first)
