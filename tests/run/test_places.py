"""Maps over the input lie at the evidence: a planted blob is brightest at its own position."""

from __future__ import annotations

import csv
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from blobs import (
    AS_IT_IS,
    CHANNELS,
    NETWORKS,
    PLACES,
    SIZE,
    Classifier,
    Crop,
    Flip,
    Gate,
    Residual,
    Turn,
    blob,
    peak_of,
    peaked,
)
from image_files import pixels_of, save_pixels
from tiny_runs import runner
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torchvision.models import resnet18

import fmapviz
from fmapviz.config import Style
from fmapviz.observe.hooks import observe
from fmapviz.observe.layers import find_layers
from fmapviz.observe.layouts.find import LayoutFinder
from fmapviz.observe.receptive_field import trace_fields
from fmapviz.run.batch import describe_given
from fmapviz.run.places import PlaceCache


def random_network(seed):
    """Return layers of any kind that keep the order of positions, or mirror it."""
    rng = np.random.default_rng(seed)
    layers, channels, stride = [], 3, 1
    for _ in range(rng.integers(2, 6)):
        kind = rng.choice(
            ["conv", "conv", "conv", "pad", "pool", "average", "crop", "up", "transposed", "reflect", "others"]
        )
        some = [int(each) for each in rng.integers(0, 4, 4)]
        if kind == "conv":
            step = int(rng.integers(1, 4)) if stride < 8 else 1
            kernel = tuple(int(each) for each in rng.integers(max(1, step), 6, 2))
            padding = tuple(int(each) for each in rng.integers(0, 3, 2))
            dilation = int(rng.integers(1, 3)) if step == 1 else 1
            layers.append(peaked(nn.Conv2d(channels, CHANNELS, kernel, step, padding, dilation)))
            channels, stride = CHANNELS, stride * step
        elif kind == "pad":
            layers.append(nn.ZeroPad2d([4 * each for each in some]))
        elif kind == "pool" and stride < 8:
            layers.append(nn.MaxPool2d(int(rng.integers(2, 4)), 2, ceil_mode=bool(rng.integers(2))))
            stride *= 2
        elif kind == "average" and stride < 8:
            layers.append(nn.AvgPool2d(2, 2, ceil_mode=True, padding=int(rng.integers(2))))
            stride *= 2
        elif kind == "crop":
            layers.append(Crop(*some))
        elif kind == "up" and stride > 1:
            mode = str(rng.choice(["nearest", "bilinear"]))
            layers.append(nn.Upsample(scale_factor=2, mode=mode))
            stride /= 2
        elif kind == "transposed" and stride > 1:
            layers.append(peaked(nn.ConvTranspose2d(channels, CHANNELS, 4, 2, int(rng.integers(0, 2)))))
            channels, stride = CHANNELS, stride / 2
        elif kind == "reflect":
            layers.append(nn.ReflectionPad2d(some))
        elif kind == "others":
            layers.append([Flip(), Gate(), Residual(nn.Identity()), nn.ReLU()][int(rng.integers(4))])
    if seed % 4 == 3:
        layers.insert(int(rng.integers(len(layers) + 1)), Turn(int(rng.integers(1, 6))))
    layers.append(peaked(nn.Conv2d(channels, CHANNELS, 3)))
    return nn.Sequential(*layers)


def planted(seed, centres, size=SIZE):
    """Return a place at least half a step inside the outermost positions of a map, and the steps."""
    rng, place, steps = np.random.default_rng(seed), [], []
    for line, side in zip((centres.rows, centres.columns), size, strict=True):
        step = float(abs(np.diff(line)).max()) if len(line) > 1 else float(side)
        low, high = max(line.min() - step / 2, 12), min(line.max() + step / 2, side - 12)
        place.append(rng.uniform(low, high) - 0.5 if low < high else None)
        steps.append(step)
    return place, steps


def fields_of(network, layers, size):
    pixels = torch.zeros(1, 3, *size)
    return trace_fields(network, layers, pixels, forward=lambda net, batch: net(batch), placing=True)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", [*range(24), *(pytest.param(each, marks=pytest.mark.thorough) for each in range(24, 400))])
def test_a_blob_is_brightest_at_its_own_position_in_any_network(seed):
    network = Classifier(random_network(seed)).eval()
    (field,) = fields_of(network, [each for each in find_layers(network) if each.name == "features"], SIZE).values()
    assert field.centres is not None
    place, steps = planted(seed, field.centres)
    if None in place:
        return  # the map sees too little of the picture
    x = torch.from_numpy(blob(place)).expand(1, 3, *SIZE)
    found = fmapviz.cam(network, x, layer="features", target=0, method="gradcam")
    assert found.map.shape == (1, *SIZE)
    off = abs(peak_of(found.map[0].numpy(), field.centres.seen) - place)
    assert (off <= np.array(steps) / 2 + 1).all(), (off, steps)


@pytest.fixture(params=NETWORKS)
def network(request):
    return Classifier(NETWORKS[request.param]()).eval()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("method", ["gradcam", "gradcam++", "layercam", "hirescam", "xgradcam", "eigencam", "cam"])
def test_class_activation_maps_lie_at_the_evidence(request, network, method):
    if method == "cam" and "one side" in request.node.name:
        return  # positions in the padding take part in the average, but not in the map
    for place in PLACES:
        x = torch.from_numpy(blob(place)).expand(1, 3, *SIZE)
        found = fmapviz.cam(network, x, target=0, method=method, layer="features")
        assert (abs(peak_of(found.map[0].numpy()) - place) <= 8).all()
        levels = np.abs(found.overlay[0].astype(int)[..., 0] - found.overlay[0].astype(int)[..., 2])
        assert levels.any()


@pytest.mark.sampled(1)
def test_each_view_over_the_input_lies_at_the_evidence(tmp_path, network):
    for number, place in enumerate(PLACES):
        pixels = (blob(place)[..., None].repeat(3, 2) * 255).astype(np.uint8)
        save_pixels(tmp_path / "in" / f"{number}.png", pixels)
    style = Style(alpha=1.0, colormap="gray", anchor=f"1.png:{PLACES[1][0]},{PLACES[1][1]}", norm="layer")
    run = runner(
        lambda: network, out=tmp_path / "out", preprocessing=AS_IT_IS, to=["png", "npz"], layers=["features"], style=style
    )
    views = ["mean", "max", "gradcam", "similarity", "clusters", "pca"]
    summary = run([tmp_path / "in"], views=views)
    assert not summary.failures
    for number, place in enumerate(PLACES):
        unit = summary.directory / f"{number}.png"
        for view in ("mean", "max"):
            heat = pixels_of(next(unit.glob(f"*.{view}.png")))
            heat = heat[..., 0] if heat.ndim == 3 else heat
            assert (abs(peak_of(heat.astype(float)) - place) <= 8).all(), view
        heat = pixels_of(next(unit.glob("*.gradcam.png")))
        assert (abs(peak_of(heat[..., 0].astype(float)) - place) <= 8).all()
        colours = pixels_of(next(unit.glob("*.pca.png"))).astype(int)
        differs = np.argwhere(abs(colours - np.median(colours.reshape(-1, 3), 0)).sum(2) > 60)
        assert (abs(differs.min(0) / 2 + differs.max(0) / 2 - place) <= 10).all()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["swin_t", "swin_v2_t", "convnext_tiny", "googlenet", "mobilenet_v3_small"])
def test_positions_of_followed_axes_equal_those_of_receptive_fields(name):
    model = fmapviz.load_model(name, weights="random")
    network, pixels = model.module.eval(), torch.randn(1, 3, 64, 96)
    places = PlaceCache(model).at(tuple(pixels.shape[1:]))
    layers = find_layers(network)
    finder, found = LayoutFinder(network, layers), []
    with torch.no_grad(), observe(network, layers, found.append, layouts=finder), finder.following(pixels):
        network(pixels)
    compared = 0
    for feature_map in found:
        field = places.fields.get(feature_map.name)
        if field and field.centres and feature_map.layout.lines:
            compared += 1
            assert field.centres.part(*feature_map.layout.lines) is not None, feature_map.name
    assert compared > 30


@pytest.mark.thorough
def test_maps_of_a_residual_network_are_half_a_step_off_equal_parts():
    found = fmapviz.receptive_field(resnet18(weights=None), 224, types="BasicBlock")["layer4.1"]
    assert found.centres.rows.tolist() == [0.5 + 32 * row for row in range(7)]
    assert [(top + bottom + 1) / 2 for top, bottom in found.rows.T.tolist()] == found.centres.rows.tolist()


class Warped(nn.Module):
    """Its second layer's positions cannot be followed."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 5, 4)
        self.second = nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.first(x)
        grid = torch.nn.functional.affine_grid(torch.eye(2, 3)[None] * 0.5, x.shape, align_corners=False)
        return self.head(self.second(torch.nn.functional.grid_sample(x, grid.to(x), align_corners=False)).mean((2, 3)))


class Pyramid(nn.Module):
    """Enlarges coarse maps and joins each with a finer one, as feature pyramids and U-Nets do."""

    def __init__(self, join, mode):
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(3 if number == 0 else 4, 4, 3, 2, 1) for number in range(4))
        self.mix = nn.ModuleList(nn.Conv2d(8 if join is torch.cat else 4, 4, 3, 1, 1) for _ in range(3))
        self.join, self.mode = join, mode

    def forward(self, batch):
        maps = [batch]
        for each in self.down:
            maps.append(each(maps[-1]))
        found = maps[-1]
        for finer, mix in zip(reversed(maps[1:-1]), self.mix, strict=True):
            enlarged = nn.functional.interpolate(found, finer.shape[2:], mode=self.mode)
            found = mix(torch.cat([enlarged, finer], 1) if self.join is torch.cat else self.join(enlarged, finer))
        return found.mean((2, 3))


class Context(nn.Module):
    """Joins maps with averages of larger parts of the picture, as spatial pyramid pooling does."""

    def __init__(self, join, mode, bins):
        super().__init__()
        self.down, self.mean, self.mix = (
            nn.Conv2d(3, 4, 3, 16, 1),
            nn.Conv2d(4, 4, 1),
            nn.Conv2d(8 if join is torch.cat else 4, 4, 1),
        )
        self.join, self.mode, self.bins = join, mode, bins

    def forward(self, batch):
        fine = self.down(batch)
        coarse = self.mean(nn.functional.adaptive_avg_pool2d(fine, self.bins))
        enlarged = nn.functional.interpolate(coarse, fine.shape[2:], mode=self.mode)
        return self.mix(torch.cat([fine, enlarged], 1) if self.join is torch.cat else self.join(fine, enlarged)).mean((2, 3))


def places_and_maps(network, batch):
    """Return where the maps of a network lie, and the maps by name."""
    maps = {}
    finder = LayoutFinder(network, find_layers(network))
    with (
        observe(network, find_layers(network), lambda found: maps.setdefault(found.name, found), layouts=finder),
        finder.following(batch),
        torch.no_grad(),
    ):
        network(batch)
    return PlaceCache(describe_given(network)).at(tuple(batch.shape[1:])), maps


JOINS = pytest.mark.parametrize("join", [torch.cat, torch.add, lambda a, b: b + a], ids=["cat", "add", "reversed"])
MODES = pytest.mark.parametrize("mode", ["nearest", "bilinear"])


@MODES
@JOINS
@pytest.mark.parametrize("bins", [1, 2])
def test_maps_joined_with_averages_of_the_picture_stay_where_they_are(join, mode, bins):
    places, maps = places_and_maps(Context(join, mode, bins).eval(), torch.rand(1, 3, 64, 96))
    assert places.fields["mix"].centres.equals(places.fields["down"].centres)
    for found, expected in zip(maps["mix"].layout.lines, maps["down"].layout.lines, strict=True):  # as axes are followed
        np.testing.assert_array_equal(found, expected)
    found, expected = (places.of(maps[name], (4, 6)) for name in ("mix", "down"))
    assert expected is None  # laid over the whole input
    assert found is None
    assert not places.unknown


@MODES
@JOINS
def test_maps_of_a_pyramid_lie_where_the_finest_of_the_joined_maps_does(join, mode):
    places, maps = places_and_maps(Pyramid(join, mode).eval(), torch.rand(1, 3, 64, 96))
    for number in range(3):
        mixed, finest = (places.fields[f"{name}.{at}"].centres for name, at in (("mix", number), ("down", 2 - number)))
        assert mixed.equals(finest)
        assert mixed.is_spread
        assert places.of(maps[f"mix.{number}"], mixed.grid) is None  # laid over the whole input
    assert not places.unknown


def test_a_map_of_unknown_position_is_reported(tmp_path):
    save_pixels(tmp_path / "a.png", np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8))
    events = []
    run = runner(Warped, out=tmp_path / "out", preprocessing=AS_IT_IS, to=["png"], on_event=events.append)
    run([tmp_path / "a.png"], views=["mean"], layers=["first", "second"])
    told = [each.message for each in events if "spanned the input" in getattr(each, "message", "")]
    reason = "where their positions lie is not known (through aten.grid_sampler_2d)"
    assert told == [f"drawn as if they spanned the input, because {reason}: second"]
    events.clear()
    run([tmp_path / "a.png"], views=["maps"], layers=["first", "second"])
    assert not [each for each in events if "spanned" in getattr(each, "message", "")]


def test_a_map_of_unknown_position_is_reported_in_python():
    x = torch.rand(1, 3, *SIZE, generator=torch.Generator().manual_seed(0))
    network = Warped().eval()
    with pytest.warns(UserWarning, match="spanned the input") as warned:
        notices = fmapviz.cam(network, x, target=0, layer="second").notices
    assert warned[0].filename == __file__
    (told,) = [each for each in notices if "spanned" in each]
    assert told.endswith("(through aten.grid_sampler_2d): second")
    assert not [each for each in fmapviz.cam(network, x, target=0, layer="first").notices if "spanned" in each]


class Folded(nn.Module):
    """Each position sees a place and its mirror image."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(x + x.flip(-1))


def test_a_map_with_ambiguous_positions_is_reported(tmp_path):
    save_pixels(tmp_path / "a.png", np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8))
    events = []
    run = runner(Folded, out=tmp_path / "out", preprocessing=AS_IT_IS, to=["png"], on_event=events.append)
    run([tmp_path / "a.png"], views=["mean"])
    told = [each.message for each in events if "spanned the input" in getattr(each, "message", "")]
    assert told == ["drawn as if they spanned the input, because where their positions lie is not known: conv"]


class Corners(nn.Module):
    """Sees parts of its input as samples."""

    def __init__(self, parts):
        super().__init__()
        self.parts = parts
        self.conv = nn.Conv2d(3, 4, 5, padding=2)

    def forward(self, x):
        height, width = x.shape[-2] // 2, x.shape[-1] // 2
        corners = [x[..., :height, :width], x[..., height:, :width], x[..., :height, width:], x[..., height:, width:]]
        if self.parts == "windows":
            n, c = x.shape[:2]
            x = x.reshape(n, c, 2, height, 2, width).permute(2, 4, 0, 1, 3, 5).flatten(0, 2)
        elif self.parts != "mirrored":
            x = {"concatenated": torch.cat, "stacked": lambda parts: torch.stack(parts).flatten(0, 1)}[self.parts](corners)
        else:
            x = torch.cat([x, x.flip(-1)])
        return self.conv(x).mean((2, 3))


def test_a_map_of_a_part_of_the_input_is_not_laid_over_all_of_it(tmp_path):
    save_pixels(tmp_path / "a.png", np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8))
    run = runner(lambda: Corners("mirrored"), out=tmp_path / "out", preprocessing=AS_IT_IS, to=["png"])
    summary = run([tmp_path / "a.png"], views=["maps", "mean", "max", "eigencam", "contact"], layers=["conv"])
    assert {each.name for each in summary.directory.rglob("*conv*.png")} == {"00_conv.maps.png"}
    why = "2 samples for 1 image, not a map of the image"
    assert summary.undrawn == dict.fromkeys(["mean of conv", "max of conv", "eigencam of conv", "contact of conv"], why)
    assert "several samples for an image, such as regions, of which the first is drawn: conv" in summary.notices


@pytest.mark.sampled(1)
@pytest.mark.parametrize("place", [(20, 30), (60, 30), (20, 80), (70, 90)])
@pytest.mark.parametrize("parts", ["windows", "concatenated", "stacked"])
def test_reassembled_parts_lie_at_their_origin(tmp_path, parts, place):
    save_pixels(tmp_path / "a.png", (blob(place)[..., None].repeat(3, 2) * 255).astype(np.uint8))
    net = Corners(parts)
    nn.init.constant_(net.conv.weight, 0.1)
    style = Style(alpha=1.0, colormap="gray", norm="layer")
    run = runner(lambda: net, out=tmp_path / "out", preprocessing=AS_IT_IS, to=["png"], style=style)
    summary = run([tmp_path / "a.png"], views=["mean", "top"], layers=["conv"])
    assert not [notice for notice in summary.notices if "samples" in notice or "spanned" in notice]
    heat = pixels_of(next(summary.directory.rglob("*.mean.png")))
    assert (abs(peak_of((heat[..., 0] if heat.ndim == 3 else heat).astype(float)) - place) <= 3).all()
    rows = list(csv.DictReader((summary.directory / "top.csv").read_text().splitlines()))
    assert rows
    assert all(abs(int(row["y"]) - place[0]) <= 3 and abs(int(row["x"]) - place[1]) <= 3 for row in rows)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["mirrored", "warped"])
def test_top_images_report_unknown_contours(tmp_path, kind):
    save_pixels(tmp_path / "a.png", np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8))
    network, layer = {"mirrored": (lambda: Corners("mirrored"), "conv"), "warped": (Warped, "second")}[kind]
    run = runner(network, out=tmp_path / "out", preprocessing=AS_IT_IS, to=["png"])
    summary = run([tmp_path / "a.png"], views=["top"], layers=[layer])
    (page,) = summary.directory.glob(f"_top/*{layer}.top.png")
    contour = (pixels_of(page) == (255, 230, 0)).all(-1).sum()
    spans = [notice for notice in summary.notices if "drawn as if they spanned the input" in notice]
    assert bool(contour) == (kind == "warped") == bool(spans)
    rows = list(csv.DictReader((summary.directory / "top.csv").read_text().splitlines()))
    assert all(("y and x are in sample" in row["note"]) == (kind == "mirrored") for row in rows)


class Unfollowed(nn.Module):
    """Fails while its axes are followed on the CPU, so that they derive from the types of its layers."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        if x.device.type == "cpu" and _get_current_dispatch_mode() is not None:
            raise RuntimeError("no mode is wanted here")
        return self.network(x)


def test_maps_with_swapped_rows_and_columns_are_reported(tmp_path):
    save_pixels(tmp_path / "a.png", np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8))
    run = runner(lambda: Unfollowed(NETWORKS["transposed"]()), out=tmp_path / "out", preprocessing=AS_IT_IS, to=["png"])
    summary = run([tmp_path / "a.png"], views=["maps", "mean"])
    why = "the network exchanges rows and columns of the picture: what is drawn over the input is transposed: network.1"
    assert why in summary.notices


def test_pixels_outside_of_all_fields_have_no_colour(tmp_path):
    """A crop from row 20 on, without the last 30 columns, in patches of 4: its last 2 rows count as seen."""
    network = Classifier(NETWORKS["cropped"]()).eval()
    pixels = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8)
    save_pixels(tmp_path / "a.png", pixels)
    run = runner(
        lambda: network,
        out=tmp_path / "out",
        preprocessing=AS_IT_IS,
        to=["png"],
        layers=["features"],
        style=Style(gray_input=False, alpha=1.0, anchor="40,40"),
    )
    unit = run([tmp_path / "a.png"], views=["mean", "gradcam", "similarity"]).directory / "a.png"
    seen = np.zeros(SIZE, bool)
    seen[20:, :80] = True
    for view in ("mean", "gradcam", "similarity"):
        (file,) = unit.glob(f"*.{view}.png")
        drawn = pixels_of(file)[: SIZE[0], : SIZE[1]]
        assert (drawn == pixels)[~seen].all(), view
        assert (drawn != pixels).any(2)[seen].mean() > 0.9, view
    found = fmapviz.cam(network, torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255, target=0, layer="features")
    assert found.map[0][torch.from_numpy(~seen)].eq(0).all()


class Writer(nn.Module):
    """Changes its weights, and counts, when it runs."""

    def __init__(self, how):
        super().__init__()
        self.how, self.passes = how, 0
        self.conv, self.head = nn.Conv2d(3, 4, 3, stride=2), nn.Linear(4, 3)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.passes += 1
        self.count += 1
        with torch.no_grad():
            if self.how == "in place":
                self.conv.weight.add_(1)
            elif self.how == "data":
                self.conv.weight.data = self.conv.weight.data + 1
            elif self.how == "a part of data":
                self.conv.weight.data[0].mul_(2)
            elif self.how == "a new parameter":
                self.conv.weight = nn.Parameter(self.conv.weight + 1)
        return self.head(self.conv(x).mean((2, 3)))


@pytest.mark.parametrize("how", ["not", "in place", "data", "a part of data", "a new parameter"])
def test_locating_maps_does_not_change_the_network(how):
    network = Writer(how).eval()
    before = {name: values.clone() for name, values in network.state_dict().items()}
    parameters = [*network.parameters()]
    places = PlaceCache(describe_given(network)).at((3, 17, 17))
    assert (
        places.of(SimpleNamespace(name="conv", layout=None), (8, 8)) is not None
    )  # known: the last pixel is not seen by all
    assert network.passes == 0
    assert all(torch.equal(values, before[name]) for name, values in network.state_dict().items())
    assert all(now is then for now, then in zip(network.parameters(), parameters, strict=True))
