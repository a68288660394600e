"""Kernels are drawn as torchvision's `make_grid` draws pictures, and are those that a convolution computes with."""

from __future__ import annotations

import warnings
from math import isqrt

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torchvision.ops import DeformConv2d
from torchvision.utils import make_grid

from fmapviz.config import COLORMAPS, Style
from fmapviz.draw.layout import draw as draw_page
from fmapviz.draw.picture import Rendered, frame
from fmapviz.observe.reshape import NotAMapError
from fmapviz.views.kernels import choose, draw, positions_of, read, tile_kernels, weight_of

NAN, INF = torch.nan, torch.inf


def random_kernels(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.1 + 0.03


def drawn(kernels, style):
    return torch.from_numpy(draw(kernels, style).pixels)


def enlarged(kernels, zoom):
    return kernels.repeat_interleave(zoom, -1).repeat_interleave(zoom, -2)


def as_bytes(grid):
    """What `save_image` makes of a grid."""
    return grid.mul(255).add_(0.5).clamp_(0, 255).to(torch.uint8)


def grid_of(kernels, *, columns=None, padding=2, zoom=1, **norm):
    """What make_grid makes of one picture per filter, in three colours or in one."""
    norm = norm or {"scale_each": True}
    columns = columns or isqrt(len(kernels))
    grid = as_bytes(make_grid(enlarged(kernels, zoom), normalize=True, nrow=columns, padding=padding, **norm))
    return grid.movedim(0, -1) if kernels.shape[1] == 3 else grid[0]


def grids_of_rows(kernels, *, padding=2, zoom=1, **norm):
    """What make_grid makes of each filter, a row of tiles scaled together, one row under the other."""
    rows = [
        as_bytes(make_grid(enlarged(own[:, None], zoom), normalize=True, nrow=len(own), padding=padding, **norm))[0]
        for own in kernels
    ]
    return torch.cat([rows[0][:padding], *(row[padding:] for row in rows)])


def zoom_of(pixels, *, tiles, side, padding=2):
    """Find out how often a picture so many tiles wide was magnified."""
    zoom, rest = divmod(pixels.shape[1] - padding * (tiles + 1), tiles * side)
    assert rest == 0
    return zoom


# --- pictures


@pytest.mark.sampled
@pytest.mark.parametrize("count", [2, 3, 16, 64, 96])
@pytest.mark.parametrize("side", [3, 7, 11])
def test_kernels_over_three_colours_equal_make_grid(count, side):
    kernels = random_kernels(count, 3, side, side)
    pixels = tile_kernels(kernels, Style())
    zoom = zoom_of(pixels, tiles=isqrt(count), side=side)
    assert torch.equal(pixels, grid_of(kernels, zoom=zoom))


def test_a_single_tile_has_no_padding():
    kernels = random_kernels(1, 3, 5, 5)
    assert torch.equal(tile_kernels(kernels, Style()), grid_of(kernels, zoom=16))


@pytest.mark.sampled
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("style", [{"columns": 5}, {"columns": 1000}, {"padding": 0}, {"padding": 7}, {"scale": 2}], ids=str)
def test_tiles_follow_columns_padding_and_scale(channels, style):
    kernels = random_kernels(20, channels, 5, 4)
    pixels = tile_kernels(kernels, Style(**style))
    columns, padding = min(style.get("columns", 4), 20), style.get("padding", 2)
    zoom = zoom_of(pixels, tiles=columns, side=4, padding=padding)
    assert zoom == style.get("scale", zoom)
    assert torch.equal(pixels, grid_of(kernels, columns=columns, padding=padding, zoom=zoom))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("style", "norm"),
    [("layer", {"scale_each": False}), ("run", {"scale_each": False}), ("fixed:-0.1,0.2", {"value_range": (-0.1, 0.2)})],
)
def test_norms_of_kernels_equal_those_of_make_grid(channels, style, norm):
    kernels = random_kernels(9, channels, 5, 5)
    pixels = tile_kernels(kernels, Style(norm=style))
    assert torch.equal(pixels, grid_of(kernels, zoom=zoom_of(pixels, tiles=3, side=5), **norm))


@pytest.mark.sampled
@pytest.mark.parametrize("colormap", COLORMAPS)
@pytest.mark.parametrize("norm", ["channel", "layer", "signed"])
def test_kernels_over_three_colours_ignore_the_colormap(colormap, norm):
    kernels = random_kernels(9, 3, 5, 4)
    pixels = tile_kernels(kernels, Style(colormap=colormap, norm=norm))
    assert torch.equal(pixels, tile_kernels(kernels, Style(norm=norm)))
    if norm == "channel":
        assert torch.equal(pixels, grid_of(kernels, zoom=zoom_of(pixels, tiles=3, side=4)))


@pytest.mark.parametrize("coloured", [False, True])
@pytest.mark.parametrize("shape", [(6, 4, 3, 3), (3, 2, 5, 4), (40, 2, 1, 7)], ids=str)
def test_other_kernels_are_a_row_for_each_filter(shape, coloured):
    kernels = random_kernels(*shape)
    pixels = tile_kernels(kernels, Style(colormap="viridis" if coloured else None, columns=2))
    zoom = zoom_of(pixels, tiles=shape[1], side=shape[3])
    expected = grids_of_rows(kernels, zoom=zoom)
    if coloured:
        from extras import matplotlib as mpl

        colours = torch.from_numpy(np.rint(mpl.colormaps["viridis"](expected.numpy())[..., :3] * 255).astype(np.uint8))
        inside = grids_of_rows(torch.ones(shape), zoom=zoom, value_range=(0, 1)) > 0
        assert (pixels.int() - colours.int()).abs()[inside].max() <= 1
        assert not pixels[~inside].any()
    else:
        assert torch.equal(pixels, expected)


def test_rows_are_scaled_together_with_norm_layer():
    kernels = random_kernels(6, 4, 3, 3) * torch.arange(1, 7).view(6, 1, 1, 1)
    pixels = tile_kernels(kernels, Style(norm="layer", padding=1))
    extremes = kernels.min().item(), kernels.max().item()
    zoom = zoom_of(pixels, tiles=4, side=3, padding=1)
    assert torch.equal(pixels, grids_of_rows(kernels, padding=1, zoom=zoom, value_range=extremes))


def test_kernels_of_one_value_are_the_matrix():
    kernels = random_kernels(40, 30, 1, 1)
    pixels = tile_kernels(kernels, Style())
    low, high = kernels.amin(1, keepdim=True), kernels.amax(1, keepdim=True)
    exact = ((kernels - low) / (high - low) * 255)[:, :, 0, 0]
    assert pixels.shape == (40 * 13, 30 * 13)
    assert (pixels - enlarged(exact, 13)).abs().max() <= 0.5 + 1e-3


@pytest.mark.parametrize("shape", [(16, 3, 5, 5), (16, 1, 5, 5), (5, 7, 3, 3)], ids=str)
@pytest.mark.parametrize("factor", [1, 1e-12])
def test_signed_puts_zero_in_the_middle(shape, factor):
    from extras import colors

    kernels = random_kernels(*shape) * factor
    kernels[0, 0, 1, 1] = 0
    pixels = tile_kernels(kernels, Style(norm="signed", padding=0, colormap=None if shape[1] == 3 else "gray"))
    exact = torch.stack([torch.from_numpy(colors.CenteredNorm(0)(own.double().numpy()).filled()) for own in kernels]) * 255
    tile = exact if shape[1] == 3 else exact.flatten(0, 1)[:, None]
    columns = isqrt(len(tile)) if shape[1] in {1, 3} else shape[1]
    whole = make_grid(tile, nrow=columns, padding=0)
    whole = enlarged(whole, pixels.shape[0] // whole.shape[1])
    whole = whole.movedim(0, -1) if shape[1] == 3 else whole[0]
    assert (pixels - whole).abs().max() <= 0.5 + 1e-3
    assert (pixels[whole == 127.5] == 128).all()
    assert (whole == 127.5).any()


def test_signed_kernels_over_other_channels_are_blue_and_red():
    kernels = torch.tensor([-1.0, 0.0, 1.0]).view(1, 1, 1, 3)
    pixels = tile_kernels(kernels, Style(norm="signed"))
    assert pixels[0, [0, 24, 47]].tolist() == [[59, 76, 192], [221, 219, 220], [180, 4, 38]]  # matplotlib's coolwarm


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_frames_lie_side_by_side(channels):
    kernels = random_kernels(6, channels, 4, 3, 3)
    pixels = tile_kernels(kernels, Style())
    if channels == 3:
        low, high = (getattr(kernels.flatten(1), name)(1).view(-1, 1, 1, 1, 1) for name in ("amin", "amax"))
        tiles = ((kernels - low) / (high - low)).movedim(1, 2).flatten(0, 1)
        zoom = zoom_of(pixels, tiles=8, side=3)
        expected = as_bytes(make_grid(enlarged(tiles, zoom), nrow=8)).movedim(0, -1)
    elif channels == 1:
        zoom = zoom_of(pixels, tiles=8, side=3)
        rows = grids_of_rows(kernels[:, 0], zoom=zoom)  # of one filter, two of which are in a row
        step = 3 * zoom + 2
        above, first, second = rows[:2], rows[2:].view(3, 2, step, -1)[:, 0], rows[2:].view(3, 2, step, -1)[:, 1]
        expected = torch.cat([above, first.flatten(0, 1)])
        expected = torch.cat([expected, torch.cat([above, second.flatten(0, 1)])[:, 2:]], 1)
    else:
        expected = grids_of_rows(kernels.flatten(1, 2), zoom=zoom_of(pixels, tiles=8, side=3))
    assert torch.equal(pixels, expected)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((64, 3, 11, 11), (546, 546)),  # six times
        ((64, 3, 7, 7), (522, 522)),  # nine times
        ((16, 3, 3, 3), (202, 202)),  # no more than sixteen times
        ((512, 256, 3, 3), (2562, 1282)),  # as they are
        ((2048, 512, 1, 1), (2048, 512)),
    ],
    ids=str,
)
def test_small_pictures_are_magnified(shape, size):
    assert tile_kernels(torch.zeros(shape), Style()).shape[:2] == size


def test_a_weight_is_as_large_as_a_style_asks_for():
    assert tile_kernels(random_kernels(16, 1, 3, 3), Style(padding=0, scale=3)).shape == (36, 36)
    assert tile_kernels(random_kernels(64, 3, 11, 11), Style(padding=0, scale=4)).shape == (352, 352, 3)
    assert tile_kernels(random_kernels(16, 1, 3, 3), Style(padding=0, scale=64)).shape == (768, 768)


# --- values that are not finite


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_values_that_are_not_finite_are_a_checkerboard(bad):
    kernels = random_kernels(9, 3, 5, 5)
    broken = kernels.clone()
    broken[4, 1, 2, 2:4] = bad
    pixels = tile_kernels(broken, Style(padding=0, norm="fixed:-0.2,0.2")).view(15, 16, 15, 16, 3)[:, 0, :, 0]
    expected = tile_kernels(kernels, Style(padding=0, norm="fixed:-0.2,0.2")).view(15, 16, 15, 16, 3)[:, 0, :, 0]
    assert sorted(pixels[7, 7:9].tolist()) == [[0, 0, 0], [255, 255, 255]]
    expected[7, 7:9] = pixels[7, 7:9]
    assert torch.equal(pixels, expected)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_values_that_are_not_finite_do_not_affect_the_scaling(channels):
    kernels = random_kernels(4, channels, 3, 3)
    broken = kernels.clone()
    kernels[1, :, 0, 0] = kernels[1, :, 1:].mean()
    broken[1, :, 0, 0] = INF
    one, other = (tile_kernels(each, Style(padding=0)) for each in (kernels, broken))
    differs = (one != other).view(*one.shape[:2], -1).any(-1)
    assert differs.sum() <= channels * 16 * 16


# --- filters


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_chosen_filters_are_drawn_alone(channels):
    kernels = random_kernels(10, channels, 3, 3)
    style = Style(channels="7,2,40")
    assert choose(kernels, style).tolist() == [7, 2]
    assert draw(kernels, style).channels == (7, 2)
    assert torch.equal(drawn(kernels, style), tile_kernels(kernels[[7, 2]], Style()))


def test_the_largest_filters_come_first():
    kernels = random_kernels(30, 4, 3, 3) * torch.linspace(2, 0.1, 30).view(-1, 1, 1, 1)
    kernels[5] = -kernels[4]
    kernels[9, 0, 0, 0] = NAN
    norms = np.linalg.norm(np.nan_to_num(kernels.flatten(1).double().numpy()), axis=1)
    chosen = choose(kernels, Style(channels="top:7"))
    assert chosen.tolist() == np.argsort(-norms, kind="stable")[:7].tolist()
    assert torch.equal(drawn(kernels, Style(channels="top:7")), tile_kernels(kernels[chosen], Style()))
    assert choose(kernels, Style(channels="top:99")).tolist() == np.argsort(-norms, kind="stable").tolist()
    assert choose(kernels, Style()) is None


def test_filters_that_do_not_exist_have_no_picture():
    with pytest.raises(NotAMapError, match=r"^has 10 filters, none of those chosen$"):
        read(nn.Conv2d(3, 10, 3), Style(channels="10-20"))
    with pytest.raises(NotAMapError, match=r"^has no kernels$"):
        read(nn.ReLU(), Style())


def of_own_levels(shape, style):
    """Draw filters of a grey level of their own each, by which it is found again where they lie; return the tiles too."""
    levels = torch.linspace(1, 0.5, shape[0])
    kernels = levels.view(-1, *[1] * (len(shape) - 1)).expand(shape)
    chosen = choose(kernels, Style(**style))
    grid = draw(kernels, Style(**style, norm="fixed:0,1"))
    return grid, levels, range(shape[0]) if chosen is None else chosen.tolist()


@pytest.mark.sampled
@pytest.mark.parametrize(
    "shape", [(10, 3, 5, 4), (10, 1, 5, 4), (7, 3, 2, 5, 5), (1, 3, 6, 6), (1, 1, 3, 2, 2), (9, 3, 1, 1)], ids=str
)
@pytest.mark.parametrize("style", [{}, {"columns": 4, "padding": 5}, {"channels": "0,3-5"}, {"channels": "top:2"}], ids=str)
def test_the_recorded_position_of_each_filters_tile_is_right(shape, style):
    grid, levels, numbers = of_own_levels(shape, style)
    pixels, tiles = torch.from_numpy(grid.pixels), grid.tiles
    assert tiles.count == len(numbers)
    for position, number in enumerate(numbers):
        rows, columns = (pixels == as_bytes(levels[number].clone())).view(*pixels.shape[:2], -1).all(-1).nonzero().unbind(1)
        assert (columns.min(), rows.min()) == tiles.corner(position)
        assert (columns.max() - columns.min() + 1, rows.max() - rows.min() + 1) == (tiles.width, tiles.height)


def test_a_row_of_tiles_is_not_one_tile():
    grid = draw(random_kernels(10, 4, 3, 3), Style())
    assert (grid.tiles.count, grid.rows) == (10, True)
    for style in (Style(), Style(colormap="jet"), Style(norm="signed")):
        grid = draw(random_kernels(10, 3, 3, 3), style)
        assert (grid.tiles.count, grid.rows) == (10, False)


@pytest.mark.sampled
@pytest.mark.parametrize("shape", [(10, 4, 3, 3), (7, 2, 3, 5, 4), (12, 30, 1, 1), (1, 2, 3, 3)], ids=str)
@pytest.mark.parametrize("style", [{}, {"columns": 4, "padding": 5}, {"channels": "0,3-5"}, {"channels": "top:2"}], ids=str)
def test_the_recorded_position_of_each_filters_row_is_right(shape, style):
    grid, levels, numbers = of_own_levels(shape, style)
    pixels, rows = torch.from_numpy(grid.pixels), grid.tiles
    assert (rows.count, rows.columns) == (len(numbers), 1)
    for position, number in enumerate(numbers):
        down, across = (pixels == as_bytes(levels[number].clone())).nonzero().unbind(1)
        assert (across.min(), down.min()) == rows.corner(position)
        assert (across.max() - across.min() + 1, down.max() - down.min() + 1) == (rows.width, rows.height)


@pytest.mark.parametrize("shape", [(960, 1, 3, 3), (3000, 1, 3, 3), (900, 1, 2, 3, 3), (256, 64, 3, 3)], ids=str)
def test_filters_are_at_least_as_large_as_their_numbers(shape):
    """Numbers take no room between filters: the padding alone separates them."""
    plain, style = Style(labels=False), Style(labels=True)
    grid = draw(torch.zeros(shape), style)
    tiles, pixels = grid.tiles, grid.pixels
    smaller = positions_of(shape, plain)
    page, background, moved, _ = frame(Rendered(pixels), grid, style, [])
    framed = draw_page(page, background)
    if not grid.rows:
        assert (framed.shape[1], moved.across) == (pixels.shape[1], tiles.across)
        assert tiles.across >= 6 * len(str(shape[0] - 1)) + 4 > smaller.across
    else:
        assert moved is None
        assert (framed.shape[0], framed.shape[1]) == (pixels.shape[0], pixels.shape[1] + 3 * 6 + 8)
        assert tiles.height > smaller.height


# --- weights


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(6, 10, (3, 5)),
        nn.Conv2d(6, 10, 3, groups=2, stride=2, dilation=2, padding=1),
        nn.Conv2d(6, 12, 3, groups=6, bias=False),
        nn.Conv3d(4, 6, (2, 3, 5), groups=2),
        DeformConv2d(6, 4, 3),
    ],
    ids=str,
)
def test_the_kernels_of_a_convolution_are_its_weight(module):
    weight = weight_of(module)
    assert torch.equal(weight, module.weight)
    assert not weight.requires_grad


def test_kernels_of_one_dimension_have_one_row():
    module = nn.Conv1d(4, 6, 5, groups=2)
    assert torch.equal(weight_of(module), module.weight[:, :, None])
    module = nn.ConvTranspose1d(4, 6, 5)
    assert torch.equal(weight_of(module), module.weight.transpose(0, 1)[:, :, None])


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("kind", [nn.ConvTranspose2d, nn.ConvTranspose3d])
def test_a_transposed_convolution_stamps_its_kernels(kind, groups):
    """The output for a single one in one input channel is the kernel from that channel."""
    torch.manual_seed(0)
    module = kind(6, 9, 3, groups=groups, bias=False)
    weight = weight_of(module)
    dimensions = len(module.kernel_size)
    assert weight.shape == (9, 6 // groups, *module.kernel_size)
    for channel in range(6):
        given = torch.zeros(1, 6, *[1] * dimensions)
        given[0, channel] = 1
        stamped = module(given)[0]
        group, within = divmod(channel, 6 // groups)
        outputs = range(group * 9 // groups, (group + 1) * 9 // groups)
        for output in range(9):
            kernel = weight[output, within] if output in outputs else torch.zeros(module.kernel_size)
            assert torch.equal(stamped[output], kernel)


def test_kernels_are_the_weight_that_the_layer_computes_with():
    torch.manual_seed(0)
    one = torch.zeros(1, 3, 3, 3)
    for module in (
        parametrizations.weight_norm(nn.Conv2d(3, 4, 3, bias=False)),
        parametrizations.spectral_norm(nn.Conv2d(3, 4, 3, bias=False)).eval(),
        nn.Conv2d(3, 4, 3, bias=False).to(torch.float64),
    ):
        weight = weight_of(module)
        assert weight.dtype == torch.float32
        for channel, row, column in np.ndindex(3, 3, 3):
            one.zero_()[0, channel, row, column] = 1
            given = module(one.to(next(module.parameters()).dtype))
            assert torch.allclose(given.flatten().float(), weight[:, channel, row, column], atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*quantize.*")
def test_a_quantized_weight_is_dequantized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.ao.nn import quantized

        for module, shape in (
            (quantized.Conv2d(6, 8, 3, groups=2), (8, 3, 3, 3)),
            (quantized.Conv1d(4, 6, 5), (6, 4, 1, 5)),
        ):
            numbers = torch.randint(-100, 100, module.weight().shape, dtype=torch.int8)
            module.set_weight_bias(torch._make_per_tensor_quantized_tensor(numbers, 0.5, 0), None)
            weight = weight_of(module)
            assert weight.shape == shape
            assert torch.equal(weight.flatten(), numbers.flatten() * 0.5)


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(3, 4),
        nn.MaxPool2d(2),
        nn.MaxPool2d((2, 2)),
        nn.BatchNorm2d(3),
        nn.Embedding(3, 4),
        nn.ReLU(),
        nn.Sequential(nn.Conv2d(3, 4, 3)),
        nn.Unfold((2, 2)),
        nn.Conv2d(3, 4, 3, dtype=torch.complex64),
    ],
    ids=str,
)
def test_layers_of_other_types_have_no_kernels(module):
    assert weight_of(module) is None


def test_a_lazy_convolution_has_no_kernels_yet():
    module = nn.LazyConv2d(4, 3)
    assert weight_of(module) is None
    module(torch.zeros(1, 2, 5, 5))
    assert weight_of(module).shape == (4, 2, 3, 3)


def test_the_weight_is_not_changed():
    module = nn.Conv2d(3, 4, 3)
    before = module.weight.detach().clone()
    draw(weight_of(module), Style(norm="signed", channels="top:2"))
    module.weight.data[0] = NAN
    tile_kernels(weight_of(module), Style())
    assert torch.equal(module.weight[1:], before[1:])
