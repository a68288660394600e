"""Layouts are those that a network was built with, at every size: also where the numbers of several axes coincide."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import extras
import pytest
import torch
from cases import thorough
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import as_model
from torch import nn
from torch.nn import functional
from torchvision import models
from torchvision.ops import roi_align

import fmapviz
from fmapviz.config import Style
from fmapviz.models.onednn import with_onednn
from fmapviz.observe.layers import find_layers, select_layers
from fmapviz.observe.layouts import tracking as tracking_module
from fmapviz.observe.layouts.axes import Axes, axis, unnamed, whole
from fmapviz.observe.layouts.derive import describe
from fmapviz.observe.layouts.find import LayoutCache
from fmapviz.observe.layouts.rules import UnknownError
from fmapviz.observe.layouts.tokens import grid_of
from fmapviz.observe.layouts.tracking import AxisTracking
from fmapviz.observe.reshape import NotAMapError, frames_of
from fmapviz.run.forward_pass import Drawer
from fmapviz.run.plan import Plan
from fmapviz.views import maps as maps_view


class Network(nn.Module):
    """Embeds patches, arranges them in some way, and passes them through the layer `out`.

    Attributes:
        expected: The maps that `out` returned, `(N, C, H, W)`, by construction.
    """

    def __init__(self, arrange, channels):
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, channels, 2, 2)
        self.cls_token = nn.Parameter(torch.randn(1, 1, channels))
        self.others = nn.Parameter(torch.randn(1, 7, channels))
        self.linear = nn.Linear(channels, channels)
        self.query = nn.Parameter(torch.randn(1, 9, channels))
        self.arrange = arrange
        self.out = nn.Identity()

    def forward(self, x):
        values, self.expected = self.arrange(self, self.patches(x))
        return self.out(values)


def tokens_of(maps):
    return maps.flatten(2).mT


def maps_of(tokens, like):
    return tokens.mT.reshape(like.shape)


def prefix(net, maps, first, last):
    """Put class tokens and others before and behind the patches."""
    count = len(maps)
    own = torch.cat([net.cls_token, net.others], 1).expand(count, -1, -1)
    return torch.cat([own[:, :first], tokens_of(maps), own[:, :last]], 1)


def in_the_middle(net, maps):
    tokens = tokens_of(maps)
    half = tokens.shape[1] // 2
    return torch.cat([tokens[:, :half], net.cls_token.expand(len(maps), -1, -1), tokens[:, half:]], 1)


def windows(maps, *, shift=0, pad=0):
    """Cut windows of 2 x 2 as Swin does, `(N * windows, 4, C)`."""
    x = functional.pad(maps.permute(0, 2, 3, 1), (0, 0, 0, pad, 0, pad)).roll((-shift, -shift), (1, 2))
    count, height, width, channels = x.shape
    return x.view(count, height // 2, 2, width // 2, 2, channels).transpose(2, 3).reshape(-1, 4, channels)


def attention(net, maps):
    tokens = net.linear(tokens_of(maps))
    found = functional.scaled_dot_product_attention(*[tokens[:, None]] * 3)[:, 0]
    return found, maps_of(found, maps)


def explicit_attention(net, maps):
    tokens = torch.cat([net.cls_token.expand(len(maps), -1, -1), net.linear(tokens_of(maps))], 1)
    found = (tokens @ tokens.mT).softmax(-1) @ tokens + tokens
    return found, maps_of(found[:, 1:], maps)


def attention_by_einsum(net, maps):
    tokens = tokens_of(maps)
    heads = tokens.unflatten(-1, (2, -1))
    weights = torch.einsum("blhd,bmhd->bhlm", heads, heads).softmax(-1)
    found = net.linear(tokens + torch.einsum("bhlm,bmhd->blhd", weights, heads).flatten(2))
    return found, maps_of(found, maps)


def channel_attention(net, maps):
    tokens = tokens_of(maps)
    found = tokens + tokens @ (tokens.mT @ tokens).softmax(-1)
    return net.linear(found), maps_of(net.linear(found), maps)


def mixer(net, maps):
    length = maps[0, 0].numel()
    mixed = tokens_of(maps) + (maps.flatten(2) @ torch.ones(length, length)).mT
    return net.linear(mixed), maps_of(net.linear(mixed), maps)


def unrolled(maps):
    """Order patches as Hiera does."""
    count, channels, height, width = maps.shape
    x = maps.permute(0, 2, 3, 1).view(count, height // 2, 2, width // 2, 2, channels)
    return x.permute(0, 2, 4, 1, 3, 5).reshape(count, -1, channels)


def grid(maps):
    """Positions that are equally far apart, as MaxViT's."""
    count, channels, height, width = maps.shape
    return maps.view(count, channels, 2, height // 2, 2, width // 2).permute(0, 3, 5, 2, 4, 1).flatten(0, 2)


FAMILIES = {
    "channels first": lambda _, maps: (maps.relu(), maps.relu()),
    "channels last": lambda _, maps: (maps.permute(0, 2, 3, 1), maps),
    "channels last, linear": lambda net, maps: (
        net.linear(maps.permute(0, 2, 3, 1)).relu(),
        net.linear(maps.permute(0, 2, 3, 1)).relu().permute(0, 3, 1, 2),
    ),
    "norm over the last axis": lambda _, maps: (
        functional.layer_norm(maps.permute(0, 2, 3, 1), maps.shape[1:2]),
        functional.layer_norm(maps.permute(0, 2, 3, 1), maps.shape[1:2]).permute(0, 3, 1, 2),
    ),
    "columns before rows": lambda _, maps: (maps.permute(0, 3, 2, 1), maps),
    "images last": lambda _, maps: (maps.permute(1, 2, 3, 0), maps),
    "memory format": lambda _, maps: (maps.contiguous(memory_format=torch.channels_last), maps),
    "tokens": lambda _, maps: (tokens_of(maps), maps),
    "channels, then tokens": lambda _, maps: (maps.flatten(2), maps),
    "class token first": lambda net, maps: (prefix(net, maps, 1, 0), maps),
    "class token last": lambda net, maps: (prefix(net, maps, 0, 1), maps),
    "class token in the middle": lambda net, maps: (in_the_middle(net, maps), maps),
    "class and distillation token": lambda net, maps: (prefix(net, maps, 2, 0), maps),
    "registers": lambda net, maps: (prefix(net, maps, 5, 0), maps),
    "detection tokens": lambda net, maps: (prefix(net, maps, 1, 7), maps),
    "sequence first": lambda net, maps: (prefix(net, maps, 1, 0).transpose(0, 1), maps),
    "heads": lambda _, maps: (tokens_of(maps).unflatten(-1, (2, -1)).transpose(1, 2), maps),
    "heads among the images": lambda _, maps: (
        tokens_of(maps).unflatten(-1, (2, -1)).transpose(1, 2).flatten(0, 1),
        maps,
    ),
    "patches among the images": lambda _, maps: (tokens_of(maps).flatten(0, 1), maps),
    "channels among the images": lambda _, maps: (maps.flatten(0, 1)[:, None], maps),
    "windows": lambda _, maps: (windows(maps), maps),
    "shifted windows": lambda _, maps: (windows(maps, shift=1), maps),
    "padded windows": lambda _, maps: (windows(maps, pad=2), maps),
    "shifted padded windows": lambda _, maps: (windows(maps, shift=1, pad=2), maps),
    "grid": lambda _, maps: (grid(maps), maps),
    "unrolled": lambda _, maps: (unrolled(maps), maps),
    "rolled and flipped": lambda _, maps: (maps.roll(1, 2).roll(-1, 2).flip(3).flip(3), maps),
    "turned there and back": lambda _, maps: (maps.rot90(1, (2, 3)).rot90(-1, (2, 3)), maps),
    "channels mixed by einsum": lambda _, maps: (
        torch.einsum("nchw,dc->ndhw", maps, torch.eye(maps.shape[1]).flip(0)),
        maps.flip(1),
    ),
    "weights times channels": lambda _, maps: (torch.eye(maps.shape[1]).flip(0) @ maps.flatten(2), maps.flip(1)),
    "one hot": lambda _, maps: (
        functional.one_hot(maps.argmax(1), maps.shape[1]).float(),
        functional.one_hot(maps.argmax(1), maps.shape[1]).float().permute(0, 3, 1, 2),
    ),
    "attention": attention,
    "explicit attention": explicit_attention,
    "attention by einsum": attention_by_einsum,
    "attention of channels": channel_attention,
    "mixed tokens beside a residual": mixer,
    "there and back": lambda net, maps: (maps_of(prefix(net, maps, 1, 0)[:, 1:], maps).relu(), maps.relu()),
    "neighbours as channels": lambda _, maps: (
        functional.pixel_unshuffle(maps, 2),
        functional.pixel_unshuffle(maps, 2),
    ),
    "enlarged": lambda _, maps: (functional.interpolate(maps, scale_factor=2),) * 2,
    "pooled tokens": lambda _, maps: (tokens_of(functional.avg_pool2d(maps, 2)), functional.avg_pool2d(maps, 2)),
    "in half": lambda _, maps: (maps.half().permute(0, 2, 3, 1), maps.half()),
    "one map": lambda _, maps: (maps.mean(1), maps.mean(1, keepdim=True)),
    "tuples": lambda _, maps: ((maps.permute(0, 2, 3, 1), 3), maps),
    "dicts": lambda _, maps: ({"a": tokens_of(maps)}, maps),
}
SIZES = st.tuples(st.sampled_from([1, 2, 4]), *[st.sampled_from([2, 4, 6, 8])] * 3)


def captured(net, x):
    with torch.no_grad(), fmapviz.capture(net, layers="out") as found:
        net.eval()(x)
    return next(iter(found.values()))


def check(family, count, channels, height, width):
    net = Network(FAMILIES[family], channels)
    found = captured(net, torch.randn(count, 3, 2 * height, 2 * width))
    assert not found.layout.assumed
    (maps,) = frames_of(found, found.values).values()
    assert torch.equal(maps, net.expected.reshape(maps.shape) if maps.ndim == 2 else net.expected), found.layout.text


@pytest.mark.sampled
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [(2, 4, 4, 4), (1, 4, 6, 4)], ids=["all alike", "oblong"])
def test_the_layouts_of_each_family_are_right(family, size):
    check(family, *size)


@pytest.mark.thorough
@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(FAMILIES)), SIZES)
def test_the_layouts_of_each_family_are_right_at_any_size(family, size):
    check(family, *size)


@pytest.mark.thorough
@settings(max_examples=1500, deadline=None)
@given(st.sampled_from(sorted(FAMILIES)), SIZES)
def test_the_layouts_of_many_families_are_right_at_many_sizes(family, size):
    check(family, *size)


# --- outputs that are no maps


def dropped(_, maps):
    tokens = tokens_of(maps)
    best = tokens.norm(dim=2).topk(tokens.shape[1] // 4, 1).indices
    return tokens.gather(1, best[..., None].expand(-1, -1, tokens.shape[2])), None


def dropped_by_index(_, maps):
    tokens = tokens_of(maps)
    best = tokens.norm(dim=2).argsort(1)[:, :4]
    return tokens[torch.arange(len(tokens))[:, None], best], None


def merged(_, maps):
    """Merge tokens into others, as ToMe does; a square number is left."""
    tokens = tokens_of(maps)
    kept, gone = tokens[:, ::2], tokens[:, 1::2]
    target = (gone @ kept.mT).argmax(-1)
    return kept.scatter_reduce(1, target[..., None].expand_as(gone), gone, "mean"), None


def queries(net, maps):
    tokens = tokens_of(maps)
    query = net.query.expand(len(maps), -1, -1)
    return functional.scaled_dot_product_attention(query[:, None], tokens[:, None], tokens[:, None])[:, 0], None


REFUSED = {
    "tokens that are dropped": (dropped, "chooses by their values"),
    "tokens that are dropped by an index": (dropped_by_index, "chooses by their values"),
    "tokens that are merged": (merged, "merges"),
    "sorted tokens": (lambda _, maps: (tokens_of(maps).sort(1).values, None), "chooses by their values"),
    "nine queries": (queries, "neither channels nor positions"),
    "mixed tokens": (lambda _, maps: (tokens_of(maps).mT @ torch.ones(maps[0, 0].numel(), 16), None), "mixed"),
    "a part of the patches": (lambda _, maps: (tokens_of(maps)[:, :9], None), "not a whole grid"),
    "two scales": (
        lambda _, maps: (torch.cat([tokens_of(maps), tokens_of(maps[..., ::2, ::2])], 1), None),
        "several values for each",
    ),
    "weights of attention": (lambda _, maps: ((tokens_of(maps) @ maps.flatten(2)).softmax(-1), None), "attention weights"),
    "nothing of the picture": (lambda net, _: (net.others[:, :4].clone(), None), "not computed from the picture"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_outputs_that_are_no_maps_are_refused_though_their_sizes_fit(name):
    arrange, words = REFUSED[name]
    found = captured(Network(arrange, 4), torch.randn(1, 3, 16, 16))
    with pytest.raises(NotAMapError, match=words) as caught:
        frames_of(found, found.values)
    assert str(tuple(found.shape)) in str(caught.value)


# --- clips


@pytest.mark.parametrize("order", ["N C T H W", "N T C H W"])
@pytest.mark.parametrize(("channels", "frames"), [(8, 5), (5, 8), (4, 4)])
def test_frames_are_those_of_a_clip_in_either_order(order, channels, frames):
    conv = nn.Conv3d(3, channels, 1)

    class Video(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.out = conv, nn.ReLU()

        def forward(self, x):
            x = self.conv(x)
            return self.out(x if order == "N C T H W" else x.transpose(1, 2))

    x = torch.randn(2, 3, frames, 6, 4)
    found = captured(Video(), x)
    assert found.layout.text == order
    clip = frames_of(found, found.values)
    assert len(clip) == frames
    for time, maps in enumerate(clip.values()):
        assert torch.equal(maps, conv(x)[:, :, time].relu())


def test_a_clip_with_time_first_is_recognised_by_its_convolution():
    class Frames(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.out = nn.Conv2d(3, 8, 1), nn.ReLU()

        def forward(self, x):  # (N, T, C, H, W)
            return self.out(self.conv(x.flatten(0, 1)).unflatten(0, x.shape[:2]))

    net, x = Frames(), torch.randn(2, 5, 3, 6, 4)
    found = captured(net, x)
    assert found.layout.text == "N T C H W"
    for time, maps in enumerate(frames_of(found, found.values).values()):
        assert torch.equal(maps, net.conv(x[:, time]).relu())


@contextmanager
def followed_in_one_thread(net, pixels):
    """Follow axes where pointwise convolutions are oneDNN's, whose operator has other arguments."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad(), with_onednn(net), AxisTracking(pixels, net) as following:
            yield following
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("channels", [24, 32])
def test_axes_are_followed_through_convolutions_of_one_pixel_in_a_single_thread(channels):
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.qkv = nn.Conv2d(3, channels, 2, stride=2), nn.Conv2d(channels, 3 * channels, 1)
            self.out = nn.Identity()

        def forward(self, x):
            query, key, value = self.qkv(self.embed(x)).flatten(2).mT.chunk(3, -1)
            return self.out(functional.scaled_dot_product_attention(query[:, None], key[:, None], value[:, None])[:, 0])

    net, pixels = Attends(), torch.randn(1, 3, 60, 64)
    with followed_in_one_thread(net, pixels) as tracking:  # more than 20,480 values: with fewer, oneDNN is not taken
        assert describe(tracking.axes(net(pixels))) == "N H*W C"


def test_tokens_that_cannot_be_followed_are_not_reported_as_other_than_patches():
    unknown = grid_of(Axes((unnamed(1), unnamed(2), unnamed(9), unnamed(4))), images=1)
    assert "not known" in unknown.refused
    learnt = grid_of(Axes((whole(axis("N", 1)), unnamed(2), unnamed(9), unnamed(4))), images=1)
    assert not learnt.refused
    assert learnt.others == (*range(9),)


# --- how it is found


def draw(net, batch, layouts, given=None):
    layers = select_layers(find_layers(net), include=["*"], types=["Module"])
    model = replace(as_model(net), layout=given)
    with Drawer(model, layers, Plan({"output": {"maps": maps_view.draw}}), Style(), layouts=layouts) as drawer:
        return drawer.draw(batch)


def test_axes_are_followed_once_for_each_shape_and_the_values_are_not_changed():
    net = Network(FAMILIES["shifted windows"], 4)
    cache, batch = LayoutCache(), torch.randn(2, 3, 16, 16)
    expected = net(batch)
    first = draw(net, batch, cache)
    assert len(cache.known) == 1
    found = next(iter(cache.known.values()))
    second = draw(net, batch, cache)
    assert next(iter(cache.known.values())) is found
    for one, two in zip(first, second, strict=True):
        assert [each.statistics for each in one.layers] == [each.statistics for each in two.layers]
    draw(net, torch.randn(2, 3, 16, 24), cache)
    assert len(cache.known) == 2
    assert torch.equal(net(batch), expected)


class Windows(nn.Module):
    """Convolutions see windows as samples, which are cut out of the picture in some way, and put back."""

    def __init__(self, cut):
        super().__init__()
        torch.manual_seed(0)
        self.cut = cut
        self.stem = nn.Conv2d(3, 4, 3, 2, 1)
        self.inner = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.MaxPool2d(2))

    def forward(self, x):
        x, side = self.stem(x), 4
        n, c, h, w = x.shape
        if self.cut == "unfold":
            x = x.unfold(2, side, side).unfold(3, side, side).permute(0, 2, 3, 1, 4, 5).reshape(-1, c, side, side)
        elif self.cut == "channels last":
            x = x.permute(0, 2, 3, 1).reshape(n, h // side, side, w // side, side, c).transpose(2, 3)
            x = x.reshape(-1, side, side, c).permute(0, 3, 1, 2)
        elif self.cut == "stack":  # the windows first, the images inside
            x = torch.stack([each for row in x.split(side, 2) for each in row.split(side, 3)]).flatten(0, 1)
        elif self.cut == "grid":  # a dilated window of every fourth row and column
            x = x.view(n, c, side, h // side, side, w // side).permute(0, 3, 5, 1, 2, 4).reshape(-1, c, side, side)
        return self.inner(x).mean((1, 2, 3)).view(n, -1) if self.cut != "stack" else self.inner(x).mean((2, 3))


@pytest.mark.sampled
@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("size", [(16, 16), (16, 24)])
@pytest.mark.parametrize("cut", ["unfold", "channels last", "stack", "grid"])
def test_windows_in_the_batch_are_reassembled(cut, size, images):
    net, pixels = Windows(cut).eval(), torch.randn(images, 3, *size, generator=torch.Generator().manual_seed(1))
    found = {}
    with fmapviz.capture(net, types="Module") as maps:
        net(pixels)
        for name in ("inner.0", "inner.1", "inner.2"):
            found[name] = next(iter(frames_of(maps[name], maps[name].values).values()))
    stem = net.stem(pixels)
    h, w = (side // 4 for side in stem.shape[2:])
    for length in range(1, 4):
        expected = torch.zeros_like(found[f"inner.{length - 1}"])
        for row in range(h):
            for column in range(w):
                rows = slice(row, None, h) if cut == "grid" else slice(4 * row, 4 * row + 4)
                columns = slice(column, None, w) if cut == "grid" else slice(4 * column, 4 * column + 4)
                part = net.inner[:length](stem[:, :, rows, columns])
                side = part.shape[-1]
                rows = slice(row, None, h) if cut == "grid" else slice(side * row, side * row + side)
                columns = slice(column, None, w) if cut == "grid" else slice(side * column, side * column + side)
                expected[:, :, rows, columns] = part
        assert torch.allclose(found[f"inner.{length - 1}"], expected, atol=1e-6), length


class Padded(nn.Module):
    """Pads its input, as networks do that take multiples of a size."""

    def __init__(self, mode, kind):
        super().__init__()
        torch.manual_seed(0)
        self.mode = mode
        self.pad = nn.ReflectionPad2d((1, 2, 1, 2)) if mode == "module" else nn.Identity()
        self.conv, self.act = nn.Conv2d(3, 4, 3, 2, 1 if mode == "none" else 0), nn.GELU()
        self.norm = {"group": nn.GroupNorm(2, 4), "layer": nn.LayerNorm(4)}.get(kind, nn.Identity())
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())
        self.kind = kind

    def forward(self, x):
        x = self.pad(x)
        if self.mode not in {"module", "none"}:
            x = functional.pad(x, (5, 3, 4, 6), mode=self.mode)
        x = self.act(self.conv(x))
        if self.kind == "inner":
            x = functional.pad(x, (0, 3, 0, 1))
        x = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) if self.kind == "layer" else self.norm(x)
        x = self.block(x)
        return x.flatten(2).mT if self.kind == "tokens" else x


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["plain", "group", "layer", "inner", "tokens"])
@pytest.mark.parametrize("mode", ["none", "module", "constant", "reflect", "replicate", "circular"])
def test_maps_of_padded_pictures_are_whole(mode, kind):
    net, pixels = Padded(mode, kind).eval(), torch.randn(2, 3, 18, 26)
    with fmapviz.capture(net, types="Module") as maps:
        net(pixels)
    for name in ("pad", "conv", "act", "norm", "block", "block.0", "block.1"):
        found = maps[name]
        values = found.values.permute(0, 3, 1, 2) if (name, kind) == ("norm", "layer") else found.values
        assert torch.equal(next(iter(frames_of(found, found.values).values())), values), name


class Beside(nn.Module):
    """A convolution over other axes than rows and columns of the picture."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.stem = kind, nn.Conv2d(3, 4, 4, 4)
        self.conv = nn.Conv2d({"channels": 4, "rows": 4, "weights": 1, "tokens": 1}[kind], 2, 1)

    def forward(self, x):
        x = self.stem(x)
        if self.kind == "channels":  # (N, W, C, H)
            x = x.permute(0, 3, 1, 2)
        elif self.kind == "weights":
            tokens = x.flatten(2).mT
            x = (tokens @ tokens.mT).softmax(-1)[:, None]
        elif self.kind == "tokens":  # (N, 1, C, L)
            x = x.flatten(2)[:, None]
        return self.conv(x)


@pytest.mark.parametrize("kind", ["channels", "rows", "weights", "tokens"])
def test_a_convolution_over_other_axes_is_reported_as_no_map(kind):
    results = draw(Beside(kind), torch.randn(2, 3, 16, 16), LayoutCache())
    said = [remark for result in results for remark in result.remarks if "not rows and columns of the picture" in remark]
    assert len(said) == (0 if kind == "rows" else 2)
    assert all(remark.endswith("of conv") for remark in said)


@pytest.mark.parametrize("kind", ["queries", "warped", "chosen"])
def test_a_convolution_whose_axes_cannot_be_followed_is_reported(kind):
    class Unfollowed(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.conv, self.queries = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 2, 1), nn.Parameter(torch.randn(12, 8))

        def forward(self, x):
            x = self.stem(x)
            if kind == "queries":
                tokens = x.flatten(2).mT
                x = ((self.queries @ tokens.mT).softmax(-1) @ tokens).mT.unflatten(2, (3, 4))
            elif kind == "warped":
                x = functional.grid_sample(x, torch.rand(len(x), 3, 4, 2), align_corners=False)
            else:
                x = x.flatten(2).sort(-1).values[..., :12].unflatten(2, (3, 4))
            return self.conv(x)

    (result,) = draw(Unfollowed(), torch.randn(1, 3, 16, 32), LayoutCache())
    (said,) = [remark for remark in result.remarks if "rows and columns" in remark]
    assert said.endswith("of conv")
    assert kind == "queries" or "could not be followed" in said


def test_samples_of_unknown_position_are_reported():
    class Regions(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.conv, self.relu = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1), nn.ReLU()

        def forward(self, x):
            boxes = [torch.tensor([[0.0, 0, 4, 4], [2, 2, 8, 8], [1, 3, 6, 6]]) for _ in x]
            return self.relu(self.conv(roi_align(self.stem(x), boxes, 4)))

    (result,) = draw(Regions(), torch.randn(1, 3, 8, 8), LayoutCache())
    (said,) = [remark for remark in result.remarks if "several samples" in remark]
    assert said.endswith(": conv")
    assert {layer.layer: layer.samples for layer in result.layers}["conv"] == 3


def test_a_layer_that_runs_for_the_second_image_only_is_followed_too():
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.relu = nn.Conv2d(3, 4, 1), nn.ReLU()

        def forward(self, x):
            x = self.conv(x).permute(0, 2, 3, 1)
            return self.relu(x) if x.mean() > 0 else x

    net, cache = Sometimes(), LayoutCache()
    nn.init.ones_(net.conv.weight)
    (none,), (some,) = (draw(net, torch.full((1, 3, 4, 4), sign), cache) for sign in (-9.0, 9.0))
    assert [each.layer for each in none.layers] == ["conv"]
    assert [each.layer for each in some.layers] == ["conv", "relu"]
    assert some.layers[1].drawings[0].content.tiles.count == 4


def test_a_convolution_whose_size_depends_on_the_image_is_drawn_at_each_size():
    class Cuts(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.conv = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)

        def forward(self, x):
            return self.conv(self.stem(x)[..., : 4 if x.mean() > 0 else 7])

    cache = LayoutCache()
    for sign, width in ((1.0, 4), (-1.0, 7), (1.0, 4)):
        (result,) = draw(Cuts(), torch.full((1, 3, 8, 8), sign), cache)
        assert {layer.layer: layer.shape for layer in result.layers}["conv"] == (2, 8, width)
        assert not result.undrawn


def test_layouts_that_cannot_be_followed_are_assumed_with_a_notice_or_set_by_the_user():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.relu = nn.Conv2d(3, 4, 1), nn.ReLU()

        def forward(self, x):
            return self.relu(torch.fft.fft2(self.conv(x).permute(0, 2, 3, 1), dim=(1, 2)).real)

    net, batch = Odd(), torch.randn(2, 3, 5, 6)
    (drawn, _) = draw(net, batch, LayoutCache())
    assert "'N C H W' of 'relu'" in drawn.remarks[0] or "'N C H W' of relu" in drawn.remarks[0]
    (drawn, _) = draw(net, batch, LayoutCache(), {"relu": "N H W C"})
    assert not drawn.remarks
    assert drawn.layers[1].drawings[0].content.tiles.count == 4


def test_queries_and_keys_of_each_block_have_separate_channels():
    batch, projections, blocks = torch.randn(2, 3, 8, 12), torch.randn(2, 6, 6), []
    with AxisTracking(batch) as tracking:
        tokens = functional.conv2d(batch, torch.randn(6, 3, 4, 4), stride=4).flatten(2).mT.contiguous()
        for _ in range(40):  # so that the memory of earlier ones is used again
            query, key = (functional.linear(tokens, weight) for weight in projections)
            blocks.append([tracking.axes(each) for each in (query, key)])
            tokens = tokens + query @ key.mT @ key
    for query, key in blocks:
        assert query.dims[-1] != key.dims[-1]
        assert describe(query) == describe(key) == "N H*W C"


def test_indexed_values_and_class_tokens_of_equal_shapes_are_distinguished():
    net = Network(None, 6)
    batch = torch.randn(2, 3, 8, 12)
    with AxisTracking(batch, net) as tracking, torch.no_grad():
        tokens = tokens_of(functional.conv2d(batch, torch.randn(6, 3, 4, 4), stride=4))
        chosen = [tokens[:, torch.tensor(numbers)] for numbers in ([0, 1], [4, 5])]
        joined = [torch.cat([each.expand(2, -1, -1), tokens], 1) for each in (net.cls_token, net.others[:, :1])]
    rows = [tracking.axes(each).dims[1][0].base.coords["H"].tolist() for each in chosen]
    assert rows == [[1.5, 1.5], [5.5, 5.5]]
    assert [describe(tracking.axes(each)) for each in joined] == ["N 1+H*W C"] * 2
    assert ["class" in tracking.axes(each).dims[1][0].base.coords for each in joined] == [True, False]


TABLE = {
    ("vit_tiny_patch16_224", (64, 96), "blocks.1.mlp.fc1"): "N 1+H*W C",
    ("deit_tiny_distilled_patch16_224", (64, 64), "blocks.0"): "N 2+H*W C",
    ("swin_tiny_patch4_window7_224", (224, 224), "layers.0.blocks.1.attn.qkv"): "N*H/7*W/7 H%7*W%7 C",
    ("vit_small_patch14_reg4_dinov2", (56, 84), "blocks.0"): "N 5+H*W C",
    ("hiera_tiny_224", (224, 224), "blocks.0"): "N H%2*W%2*H%4/2*W%4/2*H%8/4*W%8/4*H/8*W/8 C",
    ("efficientformer_l1", (224, 224), "stages.3.blocks.4"): "N H*W C",
    ("convnext_tiny", (64, 96), "stages.0.blocks.0.mlp.fc1"): "N H W C",
    ("levit_128s", (224, 224), "stages.0.blocks.0.attn.qkv.bn"): "N*H*W C",
    ("mixer_s32_224", (224, 224), "blocks.0"): "N H*W C",
    ("maxvit_rmlp_pico_rw_256", (256, 256), "stages.0.blocks.0.attn_grid.attn.qkv"): "N*H%8*W%8 H/8 W/8 C",
}


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "size", "layer"), TABLE)
def test_layouts_of_real_networks_are_right(name, size, layer):
    kind = {"img_size": size} if name.startswith(("vit", "deit")) else {}
    net = extras.timm.create_model(name, **kind).eval()
    with torch.no_grad(), fmapviz.capture(net, layers=layer, types="Module") as found:
        net(torch.randn(2, 3, *size))
    assert found[layer].layout.text == TABLE[name, size, layer]


@pytest.mark.parametrize("count", [1, 2])
def test_repeated_and_shuffled_channels_keep_their_numbers(count):
    class Shuffled(nn.Module):
        def forward(self, x):
            images, channels, height, width = x.shape
            return x.view(images, 2, channels // 2, height, width).transpose(1, 2).reshape(x.shape).relu()

    class Repeated(nn.Module):
        def forward(self, x):
            return x.repeat(1, 2, 1, 1)

    class Picked(nn.Module):
        def forward(self, x):
            return x[:, :, 1, 2]

    network = nn.Sequential(nn.Conv2d(3, 6, 1), Shuffled(), Repeated(), Picked()).eval()
    seen = {}
    for number, layer in enumerate(network):
        layer.register_forward_hook(
            lambda _layer, _args, output, name=str(number): seen.update({name: output.detach().clone()})
        )
    with fmapviz.capture(network, types="Module") as maps:
        network(torch.rand(count, 3, 4, 6))
    for name in ("1", "2", "3"):
        (drawn,) = frames_of(maps[name], maps[name].values).values()
        assert torch.equal(drawn, seen[name]), name


class Encoder(nn.Module):
    """A transformer of PyTorch with a class token, and its tokens first or second."""

    def __init__(self, *, batch_first, norm_first):
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, 16, 8, 8)
        self.class_token = nn.Parameter(torch.randn(1, 1, 16))
        block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=batch_first, norm_first=norm_first)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.batch_first = batch_first

    def forward(self, x):
        tokens = self.patches(x).flatten(2).mT
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), tokens], 1)
        return self.blocks(tokens if self.batch_first else tokens.transpose(0, 1))


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("images", [1, 2])
def test_all_layers_of_a_transformer_are_the_same_maps_with_the_images_first_or_second(norm_first, images):
    pixels = torch.rand(images, 3, 32, 48, generator=torch.Generator().manual_seed(1))
    found = []
    for batch_first in (True, False):
        network = Encoder(batch_first=batch_first, norm_first=norm_first).eval()
        kinds = ["Linear", "LayerNorm", "MultiheadAttention", "TransformerEncoderLayer"]
        with fmapviz.capture(network, types=kinds) as maps, torch.no_grad():
            network(pixels)
        found.append({name: frames_of(maps[name], maps[name].values)[""] for name in maps})
    assert len(found[0]) == 12
    for name, values in found[1].items():
        assert values.shape[:1] + values.shape[2:] == (images, 4, 6)
        torch.testing.assert_close(values, found[0][name])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "shufflenet_v2_x0_5",
        *thorough("mobilenet_v3_small", "densenet121", "swin_t", "swin_v2_t", "convnext_tiny", "maxvit_t", "vit_b_32"),
    ],
)
def test_rules_for_operators_never_fail(name, monkeypatch):
    @contextmanager
    def only_what_is_unknown(*kinds):
        try:
            yield
        except UnknownError:
            pass
        except kinds:
            if kinds == (Exception,):  # which hides what a rule raises from the network
                raise

    monkeypatch.setattr(tracking_module, "suppress", only_what_is_unknown)
    net, pixels = models.get_model(name).eval(), torch.rand(1, 3, 224, 224)
    with followed_in_one_thread(net, pixels) as following:
        assert describe(following.axes(net(pixels))) == "N C"


def rows(maps):
    return maps.flatten(2)


def columns(maps):
    return maps.transpose(2, 3).flatten(2)


def written_in_halves(first, second):
    filled = torch.zeros(len(first), 2 * first.shape[1], *first.shape[2:])
    filled[:, : first.shape[1]] = first
    filled[:, first.shape[1] :] = second
    return filled


SCANS = {
    "written in halves, one transposed": lambda maps: written_in_halves(maps, maps.transpose(2, 3)),
    "written in halves, one turned": lambda maps: written_in_halves(maps, maps.flip(2)),
    "stacked scans": lambda maps: torch.stack([rows(maps), columns(maps)], 1),
    "stacked scans there and back": lambda maps: torch.stack([rows(maps), rows(maps).flip(-1)], 1),
    "scans side by side": lambda maps: torch.cat([rows(maps), columns(maps)], 1),
    "scans among the images": lambda maps: torch.cat([rows(maps), columns(maps)], 0)[: len(maps)],
    "added scans": lambda maps: rows(maps) + columns(maps),
    "stacked maps, one transposed": lambda maps: torch.stack([maps, maps.transpose(2, 3)], 1),
    "maps side by side, one transposed": lambda maps: torch.cat([maps, maps.transpose(2, 3)], 1),
    "maps side by side, one turned": lambda maps: torch.cat([maps, maps.flip(2)], 1),
    "added maps, one turned": lambda maps: maps + maps.flip(3),
    "halves side by side": lambda maps: torch.cat([maps[..., :4], maps[..., 4:]], 1),
}


def merged(maps):
    """Put neighbours on top of each other, as Swin does between its stages."""
    return torch.cat([maps[:, :, row::2, column::2] for column in (0, 1) for row in (0, 1)], 1)


AT_ONE_PLACE = {
    "merged": merged,
    "merged until four are left": lambda maps: merged(maps)[..., :2, :2],
    "merged twice": lambda maps: merged(merged(maps)),
    "written in halves": lambda maps: written_in_halves(maps, maps.relu()),
    "two branches": lambda maps: torch.cat([maps, functional.max_pool2d(maps, 3, 1, 1)], 1),
    "two resolutions": lambda maps: torch.cat(
        [maps, functional.interpolate(functional.avg_pool2d(maps, 2), scale_factor=2)], 1
    ),
    "neighbours": lambda maps: torch.stack([maps, maps.roll(1, 3)], 1).flatten(1, 2),
    "added neighbours": lambda maps: maps + functional.pad(maps, (1, 0, 0, 0))[..., :-1],
    "turned there and back": lambda maps: maps + maps.flip(3).relu().flip(3),
}


class Made(nn.Module):
    def __init__(self, make):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.out, self.make = nn.Conv2d(3, 6, 2, stride=2), nn.Identity(), make

    def forward(self, x):
        return self.out(self.make(self.conv(x)))


@pytest.mark.parametrize("scan", SCANS)
def test_channels_of_different_positions_are_no_maps(scan):
    found = captured(Made(SCANS[scan]), torch.randn(2, 3, 16, 16))
    with pytest.raises(NotAMapError, match="mixed"):
        frames_of(found, found.values)


@pytest.mark.parametrize("make", AT_ONE_PLACE)
def test_channels_of_equal_positions_are_maps(make):
    found = captured(Made(AT_ONE_PLACE[make]), torch.randn(2, 3, 16, 16))
    (maps,) = frames_of(found, found.values).values()
    assert torch.equal(maps, found.values)
    assert not found.layout.assumed


LOST = {
    "by NumPy": lambda maps: torch.from_numpy(maps.numpy() * 2),
    "by a list": lambda maps: torch.tensor(maps.tolist()),
    "by a Fourier transform": lambda maps: torch.fft.fft2(maps).real,
}


@pytest.mark.parametrize("way", LOST)
def test_drawing_captured_maps_of_assumed_axes_warns(way):
    found = captured(Made(LOST[way]), torch.randn(1, 3, 16, 16))
    for use in (fmapviz.tile, lambda found: found.show(), lambda found: found.statistics()):
        with pytest.warns(UserWarning, match="axes of out .*: assumed to be N C H W"):
            use(found)


# --- what a network turns, before or between layers whose type tells their axes

TURNS = {
    "columns mirrored": (lambda x: x.flip(3), lambda maps: maps.flip(3)),
    "rows mirrored": (lambda x: x.flip(2), lambda maps: maps.flip(2)),
    "turned by a quarter": (lambda x: x.rot90(1, (2, 3)), lambda maps: maps.rot90(-1, (2, 3))),
    "turned by a half": (lambda x: x.rot90(2, (2, 3)), lambda maps: maps.rot90(2, (2, 3))),
    "exchanged": (lambda x: x.transpose(2, 3), lambda maps: maps.transpose(2, 3)),
    "rolled": (lambda x: x.roll((-4, 8), (2, 3)), None),
}
BEHIND = {
    "convolution": lambda: nn.Conv2d(3, 4, 3, padding=1),
    "of one pixel": lambda: nn.Conv2d(3, 4, 1),
    "strided": lambda: nn.Conv2d(3, 4, 2, 2),
    "norm": lambda: nn.BatchNorm2d(3),
    "pooling": lambda: nn.MaxPool2d(2),
    "activation": nn.ReLU,
    "two": lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 1)),
}


class Turned(nn.Module):
    """A layer behind something that turns the picture."""

    def __init__(self, turn, layer):
        super().__init__()
        self.turn, self.out = turn, layer

    def forward(self, x):
        return self.out(self.turn(x))


@pytest.mark.sampled
@pytest.mark.parametrize("layer", BEHIND)
@pytest.mark.parametrize("turn", TURNS)
def test_maps_of_transposed_pictures_are_transposed_back(turn, layer):
    there, back = TURNS[turn]
    net = Turned(there, BEHIND[layer]()).eval()
    with torch.no_grad(), fmapviz.capture(net, layers="out*", types=["Conv2d", "BatchNorm2d", "MaxPool2d", "ReLU"]) as found:
        net(torch.randn(2, 3, 12, 20))
    for each in found.values():
        (maps,) = frames_of(each, each.values).values()
        step = 12 // min(maps.shape[2], maps.shape[3])
        expected = each.values.roll((4 // step, -8 // step), (2, 3)) if back is None else back(each.values)
        assert torch.equal(maps, expected), each.name
        rows, columns = each.layout.lines
        assert (len(rows), len(columns)) == tuple(maps.shape[2:])


class Views(nn.Module):
    """Passes several views of a picture through its layers in one batch."""

    def __init__(self, views, stride):
        super().__init__()
        self.views = views
        self.first, self.second = nn.Conv2d(3, 4, 3, stride, 1), nn.Conv2d(4, 4, 3, stride, 1)

    def forward(self, x):
        return self.second(self.first(torch.cat(self.views(x))).relu()).mean((2, 3))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(
    "views",
    [
        lambda x: [x, x.flip(3)],
        lambda x: [x.flip(2), x],
        lambda x: [x, x.flip(2), x.flip(3), x.flip(2, 3)],
        lambda x: [x[..., :20, :20], x[..., 6:26, 6:26], x[..., -20:, -20:]],
    ],
    ids=["mirrored", "rows mirrored", "four", "crops"],
)
def test_the_first_of_several_crops_in_a_batch_is_drawn(views, stride, tmp_path):
    net, x = Views(views, stride).eval(), torch.rand(1, 3, 36, 48)
    with torch.no_grad(), fmapviz.capture(net) as found:
        net(x)
    for each in found.values():
        assert each.layout.grid == (0, *each.values.shape[2:])
    summary = fmapviz.visualize(net, x, to="png", out=tmp_path)
    assert [notice for notice in summary.notices if notice.startswith("several samples for an image")]
    assert not [notice for notice in summary.notices if "not rows and columns" in notice]


def quarters(x):
    height, width = x.shape[2] // 2, x.shape[3] // 2
    return [x[..., :height, :width], x[..., :height, width:], x[..., height:, :width], x[..., height:, width:]]


@pytest.mark.parametrize(
    ("join", "text"),
    [
        (torch.cat, "parts*N C H%6 W%10"),
        (lambda parts: torch.stack(parts, 1).flatten(0, 1), "N*parts C H%6 W%10"),
        (lambda parts: torch.stack(parts, 1), "N parts C H%6 W%10"),
    ],
    ids=["concatenated", "flattened", "stacked"],
)
@pytest.mark.parametrize("images", [1, 2])
def test_parts_of_a_picture_are_named_as_parts(join, text, images):
    net = Turned(lambda x: join(quarters(x)), nn.Identity())
    with torch.no_grad(), fmapviz.capture(net, layers="out", types=["Identity"]) as found:
        net(x := torch.randn(images, 3, 12, 20))
    (each,) = found.values()
    assert each.layout.text == text
    (maps,) = frames_of(each, each.values).values()
    assert torch.equal(maps, x)
