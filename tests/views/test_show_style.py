"""`FeatureMap.show` and `tile` draw what a style asks for, or refuse it, and `capture` takes what `load_model` returns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fmapviz
from fmapviz.config import Style, options_of
from fmapviz.errors import RequestError
from fmapviz.types import Layer


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


# A value of each option that changes the picture of a grid.
LOOKS = {
    "norm": "layer", "columns": 3, "padding": 5, "channels": "3,1", "scale": 2, "colormap": "viridis", "labels": True,
    "colorbar": True, "background": "white", "text_size": 30,
}  # fmt: skip
IDLE = {
    "alpha": 0.1, "gray_input": False, "pca": "shared", "smooth": True, "query": "mean", "anchor": "1,1", "clusters": 3,
    "foreground": True,
}  # fmt: skip
WAYS = {
    "show": lambda found, style: np.asarray(found.show(style)),
    "tile of a feature map": lambda found, style: fmapviz.tile(found, style).numpy(),
    "tile of an image": lambda found, style: fmapviz.tile(found.values[0], style).numpy(),
    "tile of an array": lambda found, style: fmapviz.tile(found.values.numpy(), style)[0].numpy(),
}


@pytest.mark.sampled
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("option", options_of(Style))
def test_each_option_of_a_style_is_drawn_or_reported(maps, way, option):
    found, more = maps["features.0.conv"], {"labels": True} if option == "text_size" else {}
    draw, plain = WAYS[way], Style(**more)
    if option == "with_input":
        with pytest.raises(RequestError, match="with_input"):
            draw(found, Style(with_input=True))
    elif option in LOOKS:
        assert not np.array_equal(draw(found, plain), draw(found, Style(**more, **{option: LOOKS[option]})))
    else:
        with pytest.warns(UserWarning, match=f"no effect on grids of feature maps: {option}"):
            assert np.array_equal(draw(found, plain), draw(found, Style(**{option: IDLE[option]})))


@pytest.mark.parametrize("option", LOOKS)
def test_tile_and_show_draw_the_same(maps, option):
    found, style = maps["features.0.conv"], Style(labels=True, **{option: LOOKS[option]} if option != "labels" else {})
    assert np.array_equal(np.asarray(found.show(style)), fmapviz.tile(found, style).numpy())
    without_header = fmapviz.tile(found.values[0], style).numpy()
    assert without_header.shape[0] < fmapviz.tile(found, style).shape[0]


def test_a_feature_map_has_one_grid_per_image():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3))
    for images in (1, 3):
        with fmapviz.capture(net) as captured:
            net(torch.rand(images, 3, 12, 10))
        grids = fmapviz.tile(captured["0"].values)
        expected = grids[0] if images == 1 else grids
        assert torch.equal(fmapviz.tile(captured["0"]), expected)
        assert fmapviz.tile([captured["0"]]).shape == grids.shape


def test_a_grid_has_the_size_of_make_grid():
    from torchvision.utils import make_grid

    net = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3))
    with fmapviz.capture(net) as captured:
        net(torch.rand(1, 3, 12, 10))
    (found,) = captured.values()
    for columns in (1, 2, 5):
        assert (
            fmapviz.tile(found, Style(columns=columns)).shape == make_grid(found.values[0][:, None], nrow=columns).shape[1:]
        )


def test_tokens_vectors_and_clips_are_put_in_order(maps):
    assert fmapviz.tile(maps["classifier"]).shape == maps["classifier"].show().size[::-1]
    with pytest.raises(RequestError, match="maps must be real"):
        fmapviz.tile([maps["classifier"]] * 2)
    clip = torch.nn.Sequential(torch.nn.Conv3d(3, 4, 3, padding=1))
    with fmapviz.capture(clip) as captured:
        clip(torch.rand(1, 3, 2, 8, 8))
    values = captured["0"].values
    assert torch.equal(fmapviz.tile(captured["0"]), fmapviz.tile(values[0].transpose(0, 1)))


def test_norm_run_is_the_range_of_all_given_maps():
    maps = torch.rand(2, 4, 6, 6, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0])[:, None, None, None]
    low, high = float(maps.min()), float(maps.max())
    for signed, fixed in (("run", f"fixed:{low},{high}"), ("signed-run", f"fixed:{-high},{high}")):
        shared, own = fmapviz.tile(maps, Style(norm=signed, colormap="gray")), Style(norm=fixed)
        assert (shared.int() - fmapviz.tile(maps, own).int()).abs().max() <= 1
    layer = torch.nn.Conv2d(1, 4, 1)
    found = fmapviz.types.FeatureMap(Layer("a", "Conv2d", layer), "a", 1, 0, maps)
    assert torch.equal(fmapviz.tile(found, Style(norm="run")), fmapviz.tile(maps, Style(norm="run")))
    nothing = maps * torch.nan
    assert torch.equal(fmapviz.tile(nothing, Style(norm="run")), fmapviz.tile(nothing))


def test_pictures_of_different_widths_are_padded_with_the_background():
    maps = torch.rand(2, 4, 6, 6) * torch.tensor([1.0, 1.23456e-20])[:, None, None, None]
    for background, pixel in (("white", 255), ("black", 0)):
        style = Style(colorbar=True, norm="layer", background=background)
        first, second = (fmapviz.tile(each, style) for each in maps)
        both = fmapviz.tile(maps, style)
        assert first.shape != second.shape
        assert both.shape[1:] == tuple(map(max, first.shape, second.shape))
        assert torch.equal(both[0, : first.shape[0], : first.shape[1]], first)
        assert (both[0, :, first.shape[1] :] == pixel).all()


def test_a_choice_with_channels_that_do_not_exist_is_drawn_with_a_warning(maps):
    found = maps["features.0.conv"]
    for draw in WAYS.values():
        with pytest.warns(UserWarning, match="names channels that do not exist: the layer has 16"):
            draw(found, Style(channels="0,999"))
        with pytest.raises(RequestError, match="none of those chosen"):
            draw(found, Style(channels="999"))
        with pytest.raises(RequestError, match="two networks"):
            draw(found, Style(channels="top:2:change"))
