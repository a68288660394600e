"""Where in the picture the tokens of an attention are."""

import extras
import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional

import fmapviz
from fmapviz.features.attention.capture.observe import AttentionMode
from fmapviz.features.attention.capture.placement import Query, TokenInput, has_class_token, map_of
from fmapviz.features.attention.observer import with_grids
from fmapviz.observe.layouts.find import LayoutFinder
from fmapviz.observe.reshape import NotAMapError


def placed(network, x, query=None):
    """Return the map of every attention, or why there is none, by name."""
    picture, found = TokenInput.of(x, has_class=has_class_token(network)), {}
    finder = LayoutFinder(network, [], tokens=True)

    def receive(attention):
        with finder.paused():
            try:
                found[attention.name] = map_of(with_grids(attention, finder), picture, query or Query())
            except NotAMapError as reason:
                found[attention.name] = str(reason)

    observer = AttentionMode(receive)
    network.eval()
    with torch.no_grad(), observer.attached(network), observer.watching(), finder.following(x):
        network(x)
    return found


def weights_of(network, x):
    with torch.no_grad(), fmapviz.capture_attention(network) as attention:
        network(x)
    return attention


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "options", "prefix", "shown"),
    [
        ("vit_tiny_patch16_224", {}, 1, "the class token"),
        ("vit_tiny_patch16_224", {"class_token": False, "global_pool": "avg"}, 0, "mean of 196 patches, there is no class"),
        ("vit_tiny_patch16_224", {"reg_tokens": 4}, 5, "the class token"),
        ("vit_tiny_patch16_224", {"reg_tokens": 1, "class_token": False, "global_pool": "avg"}, 1, "mean of 196 patches"),
        ("deit_tiny_distilled_patch16_224", {}, 2, "the class token"),
        ("eva02_tiny_patch14_224", {}, 1, "the class token"),
    ],
)
def test_attention_of_the_class_token_omits_other_tokens(name, options, prefix, shown):
    network, x = extras.timm.create_model(name, **options), torch.randn(2, 3, 224, 224)
    weights, found = weights_of(network, x), placed(network, x)
    assert found.keys() == weights.keys() != set()
    for layer, (maps, query) in found.items():
        assert shown in query
        rows = weights[layer][:, :, 0] if query == "the class token" else weights[layer][:, :, prefix:].mean(2)
        side = maps.shape[-1]
        assert (maps - rows[:, :, prefix:].view(2, -1, side, side)).abs().max() < 1e-6


def test_a_position_is_the_patch_at_that_pixel():
    network, x = extras.timm.create_model("vit_tiny_patch16_224", img_size=(96, 160)), torch.randn(1, 3, 96, 160)
    weights, found = weights_of(network, x), placed(network, x, Query((95, 16)))
    for layer, (maps, query) in found.items():
        assert query == "the patch at row 95, column 16 (patch 5, 1 of 6 x 10)"
        assert (maps - weights[layer][:, :, 1 + 5 * 10 + 1, 1:].view(1, 3, 6, 10)).abs().max() < 1e-6


def test_a_position_outside_of_the_picture_is_refused():
    picture = TokenInput(1, (96, 160))
    picture.check(Query((95, 159)))
    with pytest.raises(fmapviz.errors.RequestError, match="row 96, column 0 is outside the picture"):
        picture.check(Query((96, 0)))
    with pytest.raises(fmapviz.errors.RequestError, match="outside"):
        picture.check(Query((0, 160)))


class Windowed(nn.Module):
    """Cuts shifted windows out as Swin does; each patch looks at the patches whose vectors are alike."""

    def __init__(self, window_size, shift_size):
        super().__init__()
        self.window_size, self.shift_size = window_size, shift_size
        self.inner = Inner()

    def forward(self, x):
        x = x.movedim(1, -1)  # (N, H, W, C)
        down, across = self.window_size
        x = functional.pad(x, (0, 0, 0, -x.shape[2] % across, 0, -x.shape[1] % down))
        x = x.roll((-self.shift_size[0], -self.shift_size[1]), (1, 2))
        windows = x.unfold(1, down, down).unfold(2, across, across)  # (N, nH, nW, C, h, w)
        return self.inner(windows.flatten(0, 2).flatten(2).mT)


class Inner(nn.Module):
    def forward(self, x):
        return (x @ x.mT * 100).softmax(-1)[:, None].clone(), (x @ x.mT * 100)[:, None].softmax(-1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("window", [(4, 4), (3, 5), (7, 2)])
@pytest.mark.parametrize("shift", [(0, 0), (2, 1), (1, 0)])
@pytest.mark.parametrize("grid", [(8, 12), (9, 11)])
def test_windows_are_reassembled_as_the_modules_declare(window, shift, grid):
    """Every patch has a vector of its own, so that it looks at itself only: its map is 1 at its position."""
    height, width = grid
    shift = tuple(by if side > size else 0 for by, side, size in zip(shift, grid, window, strict=True))
    x = torch.eye(height * width).view(1, height, width, -1).repeat(2, 1, 1, 1)
    for row, column in [(0, 0), (height - 1, width - 1), (3, 4), (1, width - 1)]:
        network = Windowed(window, shift)
        found = placed(network, x.movedim(-1, 1), Query((row, column)))
        for maps, shown in found.values():
            assert "sees its window" in shown
            assert maps.shape == (2, 1, height, width)
            assert maps[0, 0, row, column] > 0.99
            assert maps.sum() < 2.01


@pytest.mark.thorough
@pytest.mark.parametrize(
    "network", [torchvision.models.swin_t, torchvision.models.swin_v2_t, "swin_tiny_patch4_window7_224"]
)
@pytest.mark.parametrize("size", [(224, 224), (160, 288)])
def test_swin_windows_of_torchvision_and_timm_are_reassembled(network, size):
    built = extras.timm.create_model(network, img_size=size) if isinstance(network, str) else network()
    x = torch.randn(2, 3, *size)
    found, weights = placed(built, x), weights_of(built, x)
    assert len(found) == 12
    modules = dict(built.named_modules())
    for layer, (maps, shown) in found.items():
        height, width = maps.shape[-2:]
        assert ("sees its window" in shown) == (len(weights[layer]) > 2)
        assert size[0] / height == pytest.approx(size[1] / width, rel=0.12)
        has_shift = next(
            module for module in (modules[layer], modules[layer.removesuffix(".attn")]) if hasattr(module, "shift_size")
        )
        window, shift = has_shift.window_size, has_shift.shift_size
        padded = [-(-length // own) * own for length, own in zip((height, width), window, strict=True)]
        shift = [by if own < length else 0 for by, own, length in zip(shift, window, padded, strict=True)]
        # The number of each patch, cut into windows as the paper describes.
        numbers = torch.arange(height * width).view(height, width)
        padding = (0, padded[1] - width, 0, padded[0] - height)
        if isinstance(network, str):  # timm pads what is shifted, torchvision shifts what is padded
            numbers = functional.pad(numbers.roll((-shift[0], -shift[1]), (0, 1)), padding, value=-1)
        else:
            numbers = functional.pad(numbers, padding, value=-1).roll((-shift[0], -shift[1]), (0, 1))
        numbers = numbers.unfold(0, window[0], window[0]).unfold(1, window[1], window[1]).flatten(0, 1).flatten(1)
        of_windows = weights[layer].unflatten(0, (2, len(numbers)))
        expected = torch.empty(2, of_windows.shape[2], height * width)
        for number, patches in enumerate(numbers):
            real = patches >= 0
            expected[:, :, patches[real]] = of_windows[:, number][:, :, real][..., real].sum(2) / (height * width)
        expected = expected.view(2, -1, height, width)
        assert (maps - expected).abs().max() < 1e-6


@pytest.mark.thorough
def test_attention_between_channels_is_refused():
    found = placed(extras.timm.create_model("xcit_nano_12_p16_224"), torch.randn(1, 3, 224, 224))
    refused = [each for each in found.values() if isinstance(each, str)]
    assert len(refused) == 12  # it ends with a class attention over all patches
    assert all("between 32 channels, not between patches" in each for each in refused)


class Grids(nn.Module):
    """Attention of positions that are equally far apart, as MaxViT's, and within blocks of rows, as CSWin's."""

    def forward(self, x):
        images, channels, height, width = x.shape
        apart = x.view(images, channels, 2, height // 2, 2, width // 2).permute(0, 3, 5, 2, 4, 1).reshape(-1, 4, channels)
        rows = x.view(images, channels, height // 2, 2, width).permute(0, 2, 3, 4, 1).reshape(-1, 2 * width, channels)
        return [
            functional.scaled_dot_product_attention(each[:, None] * 9, each[:, None], each[:, None])
            for each in (apart, rows)
        ]


def test_attention_of_other_partitions_is_reassembled():
    x = torch.eye(6 * 4).view(1, 24, 6, 4).repeat(2, 1, 1, 1)
    found = placed(Grids(), x, Query((3, 1)))
    assert len(found) == 2
    for maps, shown in found.values():
        assert "patch 3, 1 of 6 x 4, which sees its window" in shown
        assert maps[0, 0].argmax() == 3 * 4 + 1
    apart, rows = (maps[0, 0] for maps, _ in found.values())
    assert apart.nonzero().tolist() == [[0, 1], [0, 3], [3, 1], [3, 3]]
    assert rows.nonzero()[:, 0].unique().tolist() == [2, 3]


def test_pooled_keys_have_a_separate_grid():
    network = extras.timm.create_model("pvt_v2_b0")
    found = placed(network, torch.randn(1, 3, 224, 224), Query((100, 100)))
    assert {tuple(maps.shape[2:]) for maps, _ in found.values()} == {(7, 7)}
    assert "patch 25, 25 of 56 x 56" in found["stages.0.blocks.0.attn"][1]


def test_a_class_attention_has_one_query():
    network = extras.timm.create_model("cait_xxs24_224", depth=2)
    found = placed(network, torch.randn(1, 3, 224, 224))
    maps, shown = found["blocks_token_only.0.attn"]
    assert maps.shape == (1, 4, 14, 14)
    assert shown == "its only query"
    found = placed(network, torch.randn(1, 3, 224, 224), Query((0, 0)))
    assert found["blocks_token_only.0.attn"] == "its only query is one token, not the patches"


def by_einsum(equation, turned=False):
    def products(queries, keys):
        given = [each.transpose(1, 2) if turned else each for each in (queries, keys)]
        return torch.einsum(equation, *given)

    return products


PRODUCTS = {
    "matmul": lambda queries, keys: queries @ keys.mT,
    "einsum": by_einsum("bhid,bhjd->bhij"),
    "einsum, keys first": lambda queries, keys: torch.einsum("bhjd,bhid->bhij", keys, queries),
    "einsum of tokens before heads": by_einsum("bihd,bjhd->bhij", turned=True),
    "einsum without an axis of images": lambda queries, keys: torch.einsum(
        "nid,njd->nij", queries.flatten(0, 1), keys.flatten(0, 1)
    ).unflatten(0, queries.shape[:2]),
}


class Products(nn.Module):
    """One block of attention, whose products are computed in one of several ways."""

    def __init__(self, products):
        super().__init__()
        torch.manual_seed(0)
        self.patches, self.mixed = nn.Conv2d(3, 12, 8, 8), nn.Linear(12, 36)
        self.head, self.products = nn.Linear(12, 5), products

    def forward(self, x):
        tokens = self.patches(x).flatten(2).mT
        queries, keys, values = self.mixed(tokens).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        weights = self.products(queries, keys).mul(0.5).softmax(-1)
        return self.head((weights @ values).transpose(1, 2).flatten(2).mean(1))


@pytest.mark.sampled
@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("size", [(32, 32), (24, 40), (8, 8)])
@pytest.mark.parametrize("way", PRODUCTS)
def test_products_are_followed_in_each_implementation(way, size, images):
    x = torch.randn(images, 3, *size, generator=torch.Generator().manual_seed(0))
    network, plain = Products(PRODUCTS[way]).eval(), Products(PRODUCTS["matmul"]).eval()
    (found,), (expected,) = placed(network, x).values(), placed(plain, x).values()
    if size == (8, 8):  # a single patch
        assert found == expected
    else:
        assert torch.allclose(found[0], expected[0], atol=1e-6)
