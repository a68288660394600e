from __future__ import annotations

import warnings
from io import BytesIO
from math import ceil, isqrt

import numpy as np
import pytest
import torch
from allpairspy import AllPairs
from cases import each_once
from extras import needs
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from results import as_given, pixels_of, random_maps
from torch import nn
from torchvision.utils import make_grid, save_image

import fmapviz
from fmapviz.config import Style
from fmapviz.draw.channel_choice import choose_channels
from fmapviz.draw.grid import as_floats, is_rounded, measure, scale, scale_limits, take_channels
from fmapviz.run.tile import tile
from fmapviz.types import FeatureMap, Layer
from fmapviz.views import maps as maps_view

NAN, INF = torch.nan, torch.inf
CHANNELS = [*range(1, 18), 64, 96, 255, 2048]
SHAPES = [(1, 1), (1, 7), (6, 1), (5, 9), (13, 13)]


def reference(maps, *, columns=None, padding=2, **norm):
    """Return torchvision's grid of the channels of one image, in one grey channel."""
    norm = norm or {"scale_each": True}
    grid = make_grid(maps[:, None].clone(), normalize=True, nrow=columns or isqrt(len(maps)), padding=padding, **norm)
    assert torch.equal(grid[0], grid[1])
    return grid[0].mul(255).add_(0.5).clamp_(0, 255).to(torch.uint8)


def upscaled(maps, factor):
    return torch.nn.functional.interpolate(maps[None], scale_factor=factor, mode="nearest")[0]


def checkerboard(shape):
    rows, columns = np.indices(shape[-2:])
    return torch.from_numpy(((rows + columns) % 2 * 255).astype(np.uint8)).expand(shape)


def exact_levels(maps):
    """Return the levels by matplotlib's centred norm of each channel of `(C, H, W)`, 0..255."""
    from extras import colors

    norms = []
    for channel in maps.double().numpy():
        finite = channel[np.isfinite(channel)]
        # Of a channel that is all zero every range will do.
        norms.append(colors.CenteredNorm(0, abs(finite).max(initial=0) or 1)(channel).filled(np.nan))
    return np.stack(norms) * 255


def coloured(levels, name):
    """Return matplotlib's colours, rounded."""
    from extras import matplotlib as mpl

    return np.rint(mpl.colormaps[name](levels.numpy())[..., :3] * 255).astype(np.uint8)


def laid_out(tiles, *, columns=None, padding=2, scale=1):
    """Return make_grid's layout of tiles uint8 `(C, H, W)` or `(C, H, W, 3)`."""
    tiles = torch.as_tensor(tiles)
    in_colour = tiles.ndim == 4
    tiles = tiles.movedim(-1, 1) if in_colour else tiles[:, None].expand(-1, 3, -1, -1)
    tiles = tiles.repeat_interleave(scale, -1).repeat_interleave(scale, -2)
    grid = make_grid(tiles, nrow=columns or isqrt(len(tiles)), padding=padding)
    return grid.movedim(0, -1) if in_colour else grid[0]


def tiles_of(grid, count, shape, *, padding=2):
    """Yield the tiles of a grid."""
    columns = isqrt(count)
    for number in range(count):
        top, left = (place * (side + padding) + padding for place, side in zip(divmod(number, columns), shape, strict=True))
        yield grid[top : top + shape[0], left : left + shape[1]]


# --- bit-equal with make_grid and save_image


@pytest.mark.parametrize(("count", "shape"), each_once(CHANNELS, SHAPES))
def test_a_grid_equals_that_of_make_grid(count, shape):
    maps = random_maps(count, *shape)
    assert torch.equal(tile(maps), reference(maps))


@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_a_grid_equals_the_file_of_save_image(count):
    maps, file = random_maps(count, 9, 11), BytesIO()
    save_image(make_grid(maps[:, None], normalize=True, scale_each=True, nrow=isqrt(count), padding=2), file, format="png")
    written = np.asarray(Image.open(file))
    assert written.shape[2] == 3
    for channel in range(3):
        assert np.array_equal(tile(maps).numpy(), written[:, :, channel])


@pytest.mark.parametrize(
    ("count", "columns", "padding"), [*AllPairs([[1, 2, 7, 10, 64], [None, 1, 3, 5, 10000], [0, 1, 2, 7]])]
)
def test_padding_and_columns_equal_those_of_make_grid(count, columns, padding):
    maps = random_maps(count, 5, 4)
    grid = tile(maps, Style(padding=padding, columns=columns))
    assert torch.equal(grid, reference(maps, padding=padding, columns=columns))


@pytest.mark.parametrize("count", [1, 2, 7, 96])
@pytest.mark.parametrize("shape", [(1, 1), (5, 9)], ids=str)
def test_layer_norm_is_make_grid_without_scale_each(count, shape):
    maps = random_maps(count, *shape)
    assert torch.equal(tile(maps, Style(norm="layer")), reference(maps, scale_each=False))


@pytest.mark.parametrize(
    ("limits", "count"),
    each_once([(-1, 1), (0, 1), (-2.5, 7.25), (0.1, 0.3), (2.13, 2.36), (1.071, 1.131), (0, 1e-7), (-100, 100)], [1, 7, 96]),
)
def test_fixed_norm_is_make_grids_value_range(limits, count):
    maps = random_maps(count, 40, 40)
    low, high = limits
    maps[::2] = torch.rand(maps[::2].shape, generator=torch.Generator().manual_seed(1)) * (high - low) + low
    style = Style(norm=f"fixed:{low},{high}")
    assert style.limits == limits
    assert torch.equal(tile(maps, style), reference(maps, value_range=limits))


@pytest.mark.sampled
@pytest.mark.parametrize("count", [1, 2, 7, 64])
@pytest.mark.parametrize("scale", [2, 3, 8])
def test_scale_is_make_grid_of_tiles_enlarged_without_smoothing(count, scale):
    maps = random_maps(count, 5, 4)
    for padding in (0, 2, 5):
        style = Style(scale=scale, padding=padding)
        assert torch.equal(tile(maps, style), reference(upscaled(maps, scale), padding=padding))


@pytest.mark.sampled
@pytest.mark.parametrize("factor", [1e-30, 1e-7, 1e-5, 1e-3, 1e5, 1e30])
@pytest.mark.parametrize("norm", ["channel", "layer"])
def test_large_and_small_values_equal_make_grids(factor, norm):
    maps = random_maps(10, 6, 6) * factor
    assert torch.equal(tile(maps, Style(norm=norm)), reference(maps, scale_each=norm == "channel"))


@pytest.mark.parametrize("value", [0.0, -0.0, 7.0, -1e30, 1e-30])
def test_constant_channels_are_black_as_in_make_grid(value):
    maps = random_maps(7, 6, 6)
    maps[2] = maps[6] = value
    assert torch.equal(tile(maps), reference(maps))
    assert not tile(maps[2:3]).any()


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("norm", ["channel", "layer", "fixed:-1,2.5"])
def test_other_floats_are_scaled_in_float32(dtype, norm):
    maps = random_maps(10, 30, 30).to(dtype)
    assert torch.equal(tile(maps, Style(norm=norm)), tile(maps.float(), Style(norm=norm)))
    if norm == "channel":
        assert torch.equal(tile(maps), reference(maps.float()))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.bool, torch.int16, torch.int64])
def test_integers_and_booleans_are_drawn(dtype):
    maps = (random_maps(10, 6, 6) * 20).abs().to(dtype)
    assert torch.equal(tile(maps), reference(maps.float()))


@pytest.mark.filterwarnings("ignore:float32")
def test_values_beyond_float32_are_drawn_as_infinite():
    maps = torch.tensor([[[1e300, 1.0], [2.0, 3.0]]], dtype=torch.float64)
    assert tile(maps).tolist() == [[0, 0], [128, 255]]  # the first is black as part of a checkerboard
    assert measure(as_floats(maps[None])).bad.tolist() == [[1]]


def strided(maps):
    """Return the same values in every memory layout that a network may produce."""
    images, channels, height, width = maps.shape
    padded = torch.full((images, channels + 2, height + 3, width + 4), NAN)
    padded[:, 1:-1, 1:-2, 2:-2] = maps
    return {
        "contiguous": maps.contiguous(),
        "channels last": maps.contiguous(memory_format=torch.channels_last),
        "moved": maps.movedim(1, -1).contiguous().movedim(-1, 1),
        "transposed": maps.mT.contiguous().mT,
        "cut out": padded[:, 1:-1, 1:-2, 2:-2],
        "batch inside": maps.movedim(0, -1).contiguous().movedim(-1, 0),
    }


@pytest.mark.sampled
@pytest.mark.parametrize("layout", strided(torch.zeros(1, 1, 1, 1)))
@pytest.mark.parametrize("count", [1, 7, 64])
def test_memory_layout_does_not_matter(layout, count):
    plain = random_maps(3, count, 5, 6)
    maps = strided(plain)[layout]
    assert torch.equal(maps, plain)
    assert torch.equal(tile(maps), torch.stack([reference(each) for each in plain]))


def test_expanded_maps_are_drawn():
    maps = random_maps(1, 1, 6).expand(7, 5, 6)
    assert torch.equal(tile(maps), reference(maps))


@pytest.mark.sampled
@pytest.mark.parametrize("norm", ["channel", "layer", "fixed:0,1"])
@pytest.mark.parametrize("count", [1, 2, 10])
def test_a_batch_equals_its_images_drawn_alone(norm, count):
    maps = random_maps(4, count, 6, 5) * torch.tensor([1.0, 10, 1e-3, 0])[:, None, None, None]
    style = Style(norm=norm, scale=2)
    grids = tile(maps, style)
    assert torch.equal(grids, torch.stack([tile(image, style) for image in maps]))
    assert torch.equal(grids, pixels_of(maps_view.draw(as_given(maps), style)))


@pytest.mark.sampled
@pytest.mark.parametrize("style", [Style(), Style(norm="layer"), Style(norm="fixed:0,1"), Style(scale=3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8, torch.float64])
def test_maps_are_not_changed(style, dtype):
    maps = (random_maps(2, 7, 6, 5) * 10).abs().to(dtype)
    if maps.is_floating_point():
        maps[0, 0, 0, 0] = NAN
    before, version = maps.clone(), maps._version
    tile(maps, style).fill_(9)
    assert torch.equal(maps.nan_to_num(), before.nan_to_num())
    assert maps._version == version


def test_maps_that_need_gradients_are_drawn():
    maps = random_maps(7, 6, 5).requires_grad_()
    assert torch.equal(tile(maps), reference(maps.detach()))


@pytest.mark.thorough
@settings(deadline=None, max_examples=50)
@given(
    maps=st.tuples(st.integers(1, 12), st.integers(1, 4), st.integers(1, 4)).flatmap(
        lambda shape: arrays(np.float32, shape, elements=st.floats(-(2.0**120), 2.0**120, width=32))
    ),
    columns=st.none() | st.integers(1, 14),
    padding=st.integers(0, 4),
    norm=st.sampled_from(["channel", "layer"]),
)
@example(maps=np.float32([[[0, 1e-5]], [[0, 9.9e-6]]]), columns=None, padding=2, norm="channel")
@example(maps=np.float32([[[16777216, 16777217]], [[-1e36, 1e-45]]]), columns=1, padding=0, norm="channel")
def test_grids_of_random_values_equal_make_grids(maps, columns, padding, norm):
    maps = torch.from_numpy(maps)
    grid = tile(maps, Style(norm=norm, columns=columns, padding=padding))
    assert torch.equal(grid, reference(maps, columns=columns, padding=padding, scale_each=norm == "channel"))


# --- one channel


def test_a_single_channel_has_no_padding():
    maps = random_maps(1, 5, 9)
    assert tile(maps).shape == (5, 9)
    assert tile(maps, Style(padding=7, columns=3, scale=2)).shape == (10, 18)
    assert tile(maps[None].expand(3, -1, -1, -1)).shape == (3, 5, 9)


@pytest.mark.parametrize(("count", "columns", "rows"), [(2, 1, 2), (3, 1, 3), (64, 8, 8), (65, 8, 9), (80, 8, 10)])
def test_the_size_of_a_grid_follows_columns_padding_and_scale(count, columns, rows):
    assert tile(torch.zeros(count, 5, 9)).shape == (rows * 7 + 2, columns * 11 + 2)
    assert rows == ceil(count / columns)


# --- values that are not finite


@pytest.mark.parametrize(
    ("bad", "dtype", "norm"),
    [
        *AllPairs(
            [
                [[NAN], [INF], [-INF], [NAN, INF, -INF]],
                [torch.float32, torch.float16, torch.bfloat16, torch.float64],
                ["channel", "layer", "fixed:-1,1"],
            ]
        )
    ],
)
def test_nonfinite_values_are_marked_and_do_not_affect_the_scaling(bad, dtype, norm):
    clean = random_maps(7, 6, 5).to(dtype)
    maps, marked, stand_in = clean.clone(), torch.zeros(7, 6, 5, dtype=torch.bool), clean.clone()
    for number, value in enumerate(bad):
        for channel, row, column in [(1, number, 0), (1, number, 1), (4, 3, number)]:
            maps[channel, row, column] = value
            marked[channel, row, column] = True
    for channel in (1, 4):  # any finite value that is no new extreme
        stand_in[channel][marked[channel]] = clean[channel][~marked[channel]].min()
    grid = tile(maps, Style(norm=norm))
    expected, board = tile(stand_in, Style(norm=norm)), checkerboard((6, 5))
    pairs = zip(tiles_of(grid, 7, (6, 5)), tiles_of(expected, 7, (6, 5)), marked, strict=True)
    for found, wanted, mark in pairs:
        assert torch.equal(found[~mark], wanted[~mark])
        assert torch.equal(found[mark], board[mark])


def test_a_nonfinite_channel_does_not_affect_its_neighbours():
    maps = random_maps(9, 6, 5)
    poisoned = maps.clone()
    poisoned[4] = NAN
    for number, (before, after) in enumerate(
        zip(tiles_of(tile(maps), 9, (6, 5)), tiles_of(tile(poisoned), 9, (6, 5)), strict=True)
    ):
        if number != 4:
            assert torch.equal(before, after)


@pytest.mark.parametrize("norm", ["channel", "layer", "fixed:0,1"])
def test_a_channel_without_a_finite_value_is_a_checkerboard_and_ignored(norm):
    maps = random_maps(4, 6, 5)
    maps[1], maps[2] = NAN, INF
    found = list(tiles_of(tile(maps, Style(norm=norm)), 4, (6, 5)))
    wanted = list(tiles_of(tile(maps[[0, 0, 3, 3]], Style(norm=norm)), 4, (6, 5)))
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[3], wanted[3])
    assert torch.equal(found[1], checkerboard((6, 5)))
    assert torch.equal(found[2], checkerboard((6, 5)))


@pytest.mark.parametrize("norm", ["channel", "layer", "fixed:0,1"])
def test_an_image_without_a_finite_value_does_not_affect_others(norm):
    maps = random_maps(2, 4, 6, 5)
    maps[1] = NAN
    grids = tile(maps, Style(norm=norm))
    assert torch.equal(grids[0], tile(maps[0], Style(norm=norm)))
    assert all(torch.equal(each, checkerboard((6, 5))) for each in tiles_of(grids[1], 4, (6, 5)))


def test_a_checkerboard_alternates_with_every_value():
    maps = torch.full((1, 4, 4), NAN)
    assert tile(maps)[:2, :2].tolist() == [[0, 255], [255, 0]]
    assert torch.equal(tile(maps, Style(scale=3)), tile(maps).repeat_interleave(3, 0).repeat_interleave(3, 1))


# --- zero in the middle


SIGNED, SIGNED_GREY = Style(norm="signed"), Style(norm="signed", colormap="gray")
SIGNED_SHAPES = [(1, 1, 1), (1, 6, 9), (2, 1, 1), (7, 5, 4), (10, 13, 8), (64, 3, 3)]


def levels_of(maps):
    """Return our levels of each channel of `(C, H, W)`, without a grid."""
    return np.stack([tile(channel[None], SIGNED_GREY).numpy() for channel in maps])


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("shape", "dtype", "factor"),
    [*AllPairs([SIGNED_SHAPES, [torch.float32, torch.float16, torch.bfloat16, torch.float64], [1.0, 1e-3, 1e3]])],
)
def test_signed_levels_equal_a_centred_norm(shape, dtype, factor):
    maps = (random_maps(*shape) * factor).to(dtype)
    levels = levels_of(maps)
    assert abs(levels - exact_levels(maps)).max() <= 0.5 + 1e-4
    assert torch.equal(tile(maps, SIGNED_GREY), laid_out(levels))


@pytest.mark.thorough
@settings(deadline=None, max_examples=50)
@given(
    arrays(
        np.float32,
        st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4)),
        elements=st.floats(-(2.0**127), 2.0**127, width=32, allow_subnormal=False)
        | st.sampled_from([0.0, -0.0, np.nan, np.inf, -np.inf]),
    )
)
@example(np.float32([[[3.4e38, -3.4e38]]]))
@example(np.float32([[[1e-30, -5e-31]]]))
@needs("matplotlib", "oracles")
def test_signed_levels_of_random_values_equal_a_centred_norm(maps):
    levels, finite = levels_of(torch.from_numpy(maps)), np.isfinite(maps)
    assert (abs(levels - exact_levels(torch.from_numpy(maps)))[finite] <= 0.5 + 1e-4).all()
    assert np.array_equal(levels[~finite], checkerboard(maps.shape).numpy()[~finite])


def test_a_channel_of_zeros_is_the_middle_level():
    maps = random_maps(7, 5, 4)
    maps[2] = 0.0
    maps[5] = -0.0
    assert set(levels_of(maps[[2, 5]]).flatten().tolist()) == {128}
    found = list(tiles_of(tile(maps, SIGNED), 7, (5, 4)))
    middle = coloured(torch.tensor([128]), "coolwarm")[0]
    for channel in (2, 5):
        assert len(found[channel].flatten(0, 1).unique(dim=0)) == 1
        assert abs(found[channel].numpy().astype(int) - middle).max() <= 2


def test_signed_levels_are_symmetric():
    maps = random_maps(7, 9, 9)
    levels, mirrored = levels_of(maps).astype(int), levels_of(-maps).astype(int)
    assert set(np.unique(levels + mirrored)) <= {255, 256}  # the middle is 127.5


@pytest.mark.parametrize(
    ("shape", "scaling", "layout"),
    [
        *AllPairs(
            [
                SIGNED_SHAPES,
                [("signed", None), ("signed", "jet"), ("channel", "viridis"), ("layer", "magma"), ("fixed:-1,1.5", "turbo")],
                [(None, 2, 1), (3, 0, 1), (5, 3, 2), (10000, 1, 3)],
            ]
        )
    ],
)
def test_a_coloured_grid_equals_make_grid_of_matplotlibs_colours(shape, scaling, layout):
    maps, (norm, colormap) = random_maps(*shape), scaling
    layout = dict(zip(("columns", "padding", "scale"), layout, strict=True))
    grid = tile(maps, Style(norm=norm, colormap=colormap, **layout))
    grey = tile(maps, Style(norm=norm, colormap="gray", columns=1, padding=0)).view(shape)  # bit-equal with others above
    wanted = laid_out(coloured(grey, colormap or "coolwarm"), **layout)
    inside = laid_out(np.ones((*shape, 3), np.uint8), **layout).bool()
    assert grid.dtype == torch.uint8
    assert grid.shape == wanted.shape
    assert (grid.int() - wanted.int()).abs().max() <= 2
    assert not grid[~inside].any()
    assert grid.is_contiguous()


@pytest.mark.sampled
@pytest.mark.parametrize("style", [SIGNED, SIGNED_GREY, Style(colormap="jet"), Style(norm="fixed:-1,1", colormap="viridis")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_nonfinite_values_are_black_or_white_among_colours(style, dtype):
    clean = random_maps(7, 6, 5).to(dtype)
    maps, marked = clean.clone(), torch.zeros(7, 6, 5, dtype=torch.bool)
    for channel, row, column, value in [(1, 0, 0, NAN), (1, 0, 1, INF), (4, 3, 2, -INF), (4, 3, 3, NAN)]:
        maps[channel, row, column] = value
        marked[channel, row, column] = True
    maps[6], marked[6] = NAN, True
    stand_in = clean.clone()
    for channel in (1, 4):  # no new extreme, neither of the values nor of their magnitudes
        stand_in[channel][marked[channel]] = clean[channel][~marked[channel]].min()
    stand_in[6] = 0
    board = checkerboard((6, 5))
    tiles = (tiles_of(tile(each, style), 7, (6, 5)) for each in (maps, stand_in))
    for found, wanted, mark in zip(*tiles, marked, strict=True):
        assert torch.equal(found[~mark], wanted[~mark])
        levels = board[mark]
        assert torch.equal(found[mark], levels[:, None].expand(-1, 3) if style.palette else levels)


@pytest.mark.sampled
@pytest.mark.parametrize("style", [SIGNED, SIGNED_GREY, Style(norm="layer", colormap="jet", scale=2)], ids=str)
@pytest.mark.parametrize("count", [1, 2, 10])
def test_a_coloured_batch_equals_its_images_drawn_alone(style, count):
    maps = random_maps(4, count, 6, 5) * torch.tensor([1.0, 10, 1e-3, 0])[:, None, None, None]
    grids = tile(maps, style)
    assert torch.equal(grids, torch.stack([tile(image, style) for image in maps]))
    assert torch.equal(grids, pixels_of(maps_view.draw(as_given(maps), style)))


@pytest.mark.parametrize("layout", strided(torch.zeros(1, 1, 1, 1)))
def test_memory_layout_does_not_affect_colours(layout):
    plain = random_maps(3, 7, 5, 6)
    assert torch.equal(tile(strided(plain)[layout], SIGNED), tile(plain, SIGNED))


def test_signed_maps_are_not_changed():
    maps = random_maps(2, 7, 6, 5)
    before, version = maps.clone(), maps._version
    tile(maps, SIGNED).fill_(9)
    tile(maps, SIGNED_GREY).fill_(9)
    assert torch.equal(maps, before)
    assert maps._version == version


def test_gray_equals_the_default():
    maps = random_maps(7, 6, 5)
    for norm in ("channel", "layer", "fixed:-1,1"):
        assert torch.equal(tile(maps, Style(norm=norm, colormap="grey")), tile(maps, Style(norm=norm)))


# --- on another device than the CPU


@pytest.mark.sampled
@pytest.mark.parametrize(
    "style",
    [
        Style(),
        Style(norm="layer"),
        Style(norm="fixed:-1,1"),
        Style(scale=3, columns=5, padding=0),
        SIGNED,
        SIGNED_GREY,
        Style(colormap="jet", scale=2),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(2, 7, 5, 4), (1, 16, 8, 8), (3, 1, 6, 2)])
def test_code_for_gpus_has_the_result_of_the_cpu(style, shape, monkeypatch):
    maps = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    broken = maps.clone()
    broken[0, 0, 0, 0], broken[-1, -1] = float("nan"), float("inf")
    expected = [tile(each, style) for each in (maps, broken)]
    monkeypatch.setattr("fmapviz.draw.grid._NUMPY_DEVICE", "none")
    assert all(torch.equal(tile(each, style), grids) for each, grids in zip((maps, broken), expected, strict=True))
    ranges = measure(maps)
    assert ranges.bad.tolist() == [[0] * shape[1]] * shape[0]
    assert torch.equal(ranges.low, maps.amin((2, 3)))
    assert torch.allclose(ranges.mean, maps.mean((1, 2, 3)), atol=1e-6)


@pytest.mark.filterwarnings("ignore")  # of meta kernels
def test_drawing_on_a_device_never_waits_for_values():
    maps = torch.empty(2, 64, 16, 16, device="meta")  # there are none to wait for
    for style in (Style(), Style(norm="layer"), Style(norm="fixed:-1,1"), Style(scale=2)):
        grids = pixels_of(maps_view.draw(as_given(maps), style))
        assert grids.device.type == "meta"
        assert grids.shape == tile(torch.zeros(2, 64, 16, 16), style).shape
    chosen = choose_channels(measure(maps), Style(channels="top:3"))
    assert take_channels(maps, measure(maps), chosen)[0].shape == (2, 3, 16, 16)


@pytest.mark.thorough
@settings(deadline=None, max_examples=60)
@given(
    arrays(
        np.float32,
        st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)),
        elements=st.floats(-10, 10, width=32) | st.sampled_from([np.nan, np.inf, -np.inf]),
    )
)
def test_ranges_cover_the_finite_values(maps):
    ranges = measure(torch.from_numpy(maps))
    for image, channel in np.ndindex(maps.shape[:2]):
        values = maps[image, channel]
        finite = values[np.isfinite(values)]
        low, high = (finite.min(), finite.max()) if finite.size else (np.nan, np.nan)
        np.testing.assert_array_equal(ranges.low[image, channel], low)
        np.testing.assert_array_equal(ranges.high[image, channel], high)
        assert (0 if ranges.bad is None else ranges.bad[image, channel].item()) == values.size - finite.size
    assert (ranges.bad is None) == bool(np.isfinite(maps).all())
    assert ranges.low.dtype == ranges.high.dtype == torch.float32


@pytest.mark.parametrize("poisoned", [False, True])
def test_chosen_channels_have_their_own_range_or_that_of_the_layer(poisoned):
    maps = random_maps(2, 9, 6, 5)
    if poisoned:
        maps[1, 3, 0, 0] = NAN
    ranges = measure(maps)
    chosen = torch.tensor([[5, 3, 0], [3, 8, 8]])
    taken, of_taken = take_channels(maps, ranges, chosen)
    assert taken.shape == (2, 3, 6, 5)
    for image, row in enumerate(chosen.tolist()):
        expected = maps[image][row]
        assert torch.equal(taken[image].nan_to_num(), expected.nan_to_num())
        for norm in ("channel", "signed", "layer", "signed-layer"):
            style = Style(norm=norm)
            levels = scale(taken.clone(), of_taken, scale_limits(of_taken, style), style)
            every = scale(maps.clone(), ranges, scale_limits(ranges, style), style)
            assert torch.equal(levels[image], every[image][row])


@pytest.mark.sampled
@pytest.mark.parametrize("device", ["CPU", "GPU"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@settings(max_examples=20, deadline=None)
@given(
    level=st.tuples(st.sampled_from([0.0, 1.0, -3e3, 1e4, 6e4, 1e30]), st.sampled_from([0.3, 2, 100, 1e5])),
    size=st.sampled_from([(1, 2), (3, 3), (17, 23), (160, 160)]),
    missing=st.booleans(),
    seed=st.integers(0, 99),
)
def test_moments_equal_those_of_numpy_in_float64(device, dtype, level, size, missing, seed):  # noqa: PLR0917
    """Deviations are counted in the last digits of the mean; a GPU computes in float32, which holds no large squares."""
    mean, digits = level
    if mean > 1e5 and (dtype == torch.float16 or device == "GPU"):
        mean = 1e4
    noise = np.random.default_rng(seed).normal(size=(1, 3, *size))
    maps = torch.from_numpy(mean + noise * digits * torch.finfo(dtype).eps * max(abs(mean), 1)).to(dtype)
    if missing:
        maps[0, 1, 0, 0], maps[0, 2] = NAN, INF
    with pytest.MonkeyPatch.context() as patch:
        if device == "GPU":
            patch.setattr("fmapviz.draw.grid._NUMPY_DEVICE", "none")
        moments = measure(maps, moments=True).moments
    rest = 0 if moments.rest is None else moments.rest.double().numpy()[0]
    found_mean, found_std = moments.mean.double().numpy()[0] + rest, moments.std.double().numpy()[0]
    values = maps.double().numpy()[0].reshape(3, -1)
    for channel, row in enumerate(values):
        finite = row[np.isfinite(row)]
        if not len(finite):
            assert np.isnan(found_std[channel])
            continue
        assert found_std[channel] == pytest.approx(finite.std(), rel=3e-5)
        assert found_mean[channel] == pytest.approx(
            finite.mean(), rel=2e-7, abs=2e-7 * np.abs(finite).max() + 1e-5 * finite.std()
        )
        if finite.std() < 1e-3 * abs(finite.mean()):
            assert abs(found_mean[channel] - finite.mean()) <= 1e-5 * finite.std()


WIDE = {
    "an offset": lambda maps: maps + 1e8,
    "a large scale": lambda maps: maps * 1e300,
    "a small scale": lambda maps: maps * 1e-300,
    "integers": lambda maps: (maps * 4).long() + 2**40,
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", WIDE)
def test_values_beyond_float32_are_reported(kind, tmp_path):
    maps = torch.randn(1, 4, 7, 9, generator=torch.Generator().manual_seed(0)).double()
    wide = WIDE[kind](maps)
    assert is_rounded(wide)
    with pytest.warns(UserWarning, match="float32"):
        fmapviz.tile(wide)
    with pytest.warns(UserWarning, match="float32, .* rounds the values of layer"):
        FeatureMap(Layer("layer", "Identity", nn.Identity()), "layer", 1, 0, wide).statistics()

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.values = nn.Identity(), wide

        def forward(self, _images):
            return self.layer(self.values.clone())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the same, and that the axes are assumed
        summary = fmapviz.visualize(Wide(), torch.rand(1, 3, 9, 9), types="Identity", out=tmp_path, to="png")
    assert any("rounds the values of layer" in notice for notice in summary.notices)


@pytest.mark.parametrize(
    "maps", [torch.randn(1, 4, 7, 9).double(), torch.full((1, 2, 3, 3), 0.1).double(), torch.ones(1, 1, 2, 2).long()]
)
def test_values_that_float32_holds_are_not_reported(maps):
    assert not is_rounded(maps)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fmapviz.tile(maps)
