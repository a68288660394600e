"""Whole runs with --labels and --colorbar, which do not change the tiles."""

from __future__ import annotations

import json
from base64 import b64decode
from itertools import product

import numpy as np
import pytest
import torch
from cases import often, thorough
from image_files import paint, text_of
from PIL import Image
from report_runs import cut_tiles, report_of
from tiny_models import TwoConvolutionsAndHead
from tiny_runs import AS_IT_IS, runner, styled
from torch import nn
from trees import problems

import fmapviz

SIZE = (24, 30)


class Net(TwoConvolutionsAndHead):
    def __init__(self):
        super().__init__(12, 7, 40, stride=2)


@pytest.fixture
def picture(tmp_path):
    return paint(tmp_path / "a.png", size=SIZE)


@pytest.fixture
def look(tmp_path, picture):
    """Draw one image, and return its directory."""
    draw = styled(
        runner(Net, out=tmp_path / "out", preprocessing=AS_IT_IS, workers=1, to=["html"], types=["Conv2d", "Linear"])
    )

    def run(model=None, inputs=None, **options):
        summary = draw(inputs or [picture], model, **options)
        assert not summary.failures
        assert problems(summary.directory) == []
        return summary.directory / "a.png"

    return run


def opened(path):
    with Image.open(path) as image:
        return np.asarray(image), image.mode


def report(unit):
    return {each["name"]: each for each in report_of(unit)["pictures"] if each["view"] in {"input", "maps"}}


def tiles(unit, record, view="maps"):
    name = record["name"].replace(" ", "_")
    pixels, _ = opened(unit / f"{name}.{view}.png")
    return np.stack(cut_tiles(pixels, record["tiles"]))


LOOKS = [
    {},
    {"padding": 0},
    {"padding": 9, "columns": 5},
    {"columns": 1, "scale": 3},
    {"channels": "0,3,5-6"},
    {"norm": "signed"},
    {"colormap": "viridis"},
    {"norm": "layer", "columns": 40},
]


ADDED = [{"labels": True, "colorbar": True}, {"labels": True}, {"colorbar": True}]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("style", "added"), often([*zip(LOOKS[::3], ADDED, strict=True)], of=product(LOOKS, ADDED)))
def test_labels_do_not_change_the_tiles(look, style, added):
    plain, labelled = look(**style), look(**style, **added)
    before, after = report(plain), report(labelled)
    assert list(after) == list(before) == ["input", "00 first", "01 second", "02 head"]
    for name in list(before)[1:]:
        assert np.array_equal(tiles(labelled, after[name]), tiles(plain, before[name]))
        assert after[name]["tiles"]["count"] == before[name]["tiles"]["count"]
        file = f"{name.replace(' ', '_')}.maps.png"
        assert opened(labelled / file)[1] == opened(plain / file)[1]
        assert opened(labelled / file)[0].size > opened(plain / file)[0].size or name == "02 head"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "style", [{"colorbar": True, "labels": True}, *thorough({"labels": True}, {"norm": "run", "colorbar": True})]
)
def test_grey_stays_grey_and_colour_stays_colour(look, style):
    unit = look(**style)
    assert {opened(unit / f"{name}.maps.png")[1] for name in ("00_first", "01_second", "02_head")} == {"L"}
    unit = look(**style, colormap="magma")
    assert {opened(unit / f"{name}.maps.png")[1] for name in ("00_first", "01_second")} == {"RGB"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("style", "numbered", "headed"),
    [
        ({}, False, False),
        ({"labels": False}, False, False),
        ({"labels": True}, True, True),
        ({"channels": "top:4"}, True, False),
        ({"channels": "top:4", "labels": False}, False, False),
        ({"channels": "top:4", "labels": True}, True, True),
        ({"channels": "0-3"}, False, False),
    ],
)
def test_numbers_and_header_are_drawn_on_request(look, style, numbered, headed):
    unit = look(**style)
    for name in ("00 first", "01 second"):
        laid = report(unit)[name]["tiles"]
        pixels, _ = opened(unit / f"{name.replace(' ', '_')}.maps.png")
        # Plain tiles have 2 pixels around them; a number takes more above its tile, a header once more above them all.
        above_each = laid["down"] - laid["height"]
        assert (above_each > 2) is numbered
        assert (laid["top"] > above_each) is headed
        assert bool(pixels[: laid["top"]].any()) is (numbered or headed)


@pytest.mark.thorough
def test_each_number_is_above_its_tile(look):
    """Of 12 tiles only those of the same number look the same."""

    def numbers(unit, name):
        record = report(unit)[name]
        laid = record["tiles"]
        pixels, _ = opened(unit / f"{name.replace(' ', '_')}.maps.png")
        shown = {}
        for number, channel in enumerate(record["channels"] or range(laid["count"])):
            row, column = divmod(number, laid["columns"])
            left, top = laid["left"] + column * laid["across"], laid["top"] + row * laid["down"]
            strip = pixels[top - (laid["down"] - laid["height"]) + 2 : top, left : left + min(laid["across"], 14)]
            assert strip.any()
            columns = np.flatnonzero(strip.any(0))
            rows = np.flatnonzero(strip.any(1))
            shown[channel] = strip[rows[0] : rows[-1] + 1, : columns[-1] + 1].tobytes()
        return shown

    unit = look(labels=True)
    everything = numbers(unit, "00 first")
    assert len(set(everything.values())) == 12
    some = numbers(look(labels=True, channels="3,5,11"), "00 first")
    assert list(some) == [3, 5, 11]
    top = look(channels="top:4")
    strongest = numbers(top, "00 first")
    record = json.loads((top / "unit.json").read_bytes())["layers"][0]
    assert list(strongest) == record["channels"]
    assert {**some, **strongest} == {number: everything[number] for number in {**some, **strongest}}


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("labels", [None, True])
def test_the_strongest_values_of_a_vector_are_numbered(look, labels):
    plain, unit = look(channels="top:20", labels=False), look(channels="top:20", labels=labels)
    before, record = report(plain)["02 head"], report(unit)["02 head"]
    assert np.array_equal(tiles(unit, record), tiles(plain, before))
    laid, (pixels, _) = record["tiles"], opened(unit / "02_head.maps.png")
    shown = {}
    for position, channel in enumerate(record["channels"]):
        left = laid["left"] + position * laid["across"]
        strip = pixels[laid["top"] - (laid["down"] - laid["height"]) + 2 : laid["top"], left : left + laid["across"] - 2]
        shown[channel] = strip.tobytes()
        assert strip.any()
    assert laid["columns"] == len(set(shown.values())) == 20


@pytest.mark.thorough
@pytest.mark.parametrize("view", ["maps", *thorough("mean", "pca")])
def test_a_header_reports_values_that_are_not_finite(look, view):
    class Hurt(Net):
        def forward(self, x):
            return super().forward(x.index_fill(3, torch.tensor([0]), torch.nan))

    style = {"views": view, "types": ["Conv2d"]}
    heights = []
    for model in (Net(), Hurt()):
        plain, labelled = look(model, **style), look(model, **style, labels=True)
        name = f"00_first.{view}.png"
        heights.append(len(opened(labelled / name)[0]) - len(opened(plain / name)[0]))
    assert heights[1] > heights[0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("norm", ["channel", "signed", *thorough("layer", "run", "fixed:-0.5,2")])
def test_a_colour_bar_is_beside_the_grid(look, norm):
    from extras import matplotlib as mpl

    plain, barred = look(norm=norm), look(norm=norm, colorbar=True)
    grid, mode = opened(plain / "00_first.maps.png")
    framed, same = opened(barred / "00_first.maps.png")
    assert mode == same
    assert np.array_equal(framed[: len(grid), : grid.shape[1]], grid)
    beside = framed[:, grid.shape[1] :]
    # The bar is the column whose levels fall from the top to the bottom through the whole colour map.
    colours = mpl.colormaps["coolwarm" if norm == "signed" else "gray"](np.arange(256))[:, :3] * 255
    column = beside[:, 12 + 7].astype(int)
    column = column if column.ndim == 2 else column[:, None].repeat(3, 1)
    inside = column[8:-8]
    nearest = abs(inside[:, None] - colours[None]).max(2)
    assert nearest.min(1).max() <= 2
    levels = nearest.argmin(1)
    assert (np.diff(levels) <= 0).all()
    assert levels[0] > 235
    assert levels[-1] < 20


@pytest.mark.thorough
def test_marks_of_a_colour_bar_follow_the_scale(look):
    """The text beside the bar is not read, but equal if and only if the scales are."""
    beside = {}
    for norm in ("channel", "layer", "signed", "fixed:-0.5,2", "fixed:-0.5,3"):
        grid, _ = opened(look(norm=norm) / "00_first.maps.png")
        framed, _ = opened(look(norm=norm, colorbar=True) / "00_first.maps.png")
        beside[norm] = framed[:, grid.shape[1] :].tobytes()
    assert len(set(beside.values())) == 5
    # Of one image alone, the range of the run is that of the layer.
    grid, _ = opened(look(norm="run") / "00_first.maps.png")
    framed, _ = opened(look(norm="run", colorbar=True) / "00_first.maps.png")
    assert framed[:, grid.shape[1] :].tobytes() == beside["layer"]


def test_heat_maps_have_a_bar_and_a_header(look):
    style = {"views": ["mean", "pca", "gradcam", "contact", "histogram"], "types": ["Conv2d"]}
    plain, framed = look(**style, labels=False), look(**style, labels=True, colorbar=True)
    for path in sorted(plain.glob("*.png")):
        before, after = opened(path)[0], opened(framed / path.name)[0]
        kind = path.name.split(".")[-2]
        if kind in {"mean", "gradcam"}:
            assert (after.shape[0] > before.shape[0], after.shape[1] > before.shape[1]) == (True, True)
            rows = [
                top for top in range(len(after)) if np.array_equal(after[top : top + len(before), : before.shape[1]], before)
            ]
            assert len(rows) == 1
        elif kind == "pca":  # there are no values that colours stand for
            assert after.shape[0] > before.shape[0]
            assert np.array_equal(after[-len(before) :, : before.shape[1]], before)
        else:
            assert np.array_equal(before, after)
    names = {path.name.split(".")[-2] for path in plain.glob("*.png")}
    assert names >= {"mean", "pca", "gradcam", "histogram"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("view", "alpha"), often([("mean", 0.5), ("gradcam", 1.0)], of=product(["mean", "gradcam"], [0.2, 0.5, 0.9, 1.0]))
)
def test_the_colour_bar_of_an_overlay_has_its_colours(look, view, alpha):
    unit = look(views=[view], types=["Conv2d"], colorbar=True, alpha=alpha, labels=False)
    plain = look(views=[view], types=["Conv2d"], alpha=alpha, labels=False)
    (path,) = plain.glob(f"*second*.{view}.png")
    picture, framed = opened(path)[0], opened(unit / path.name)[0]
    assert np.array_equal(framed[: len(picture), : picture.shape[1]], picture)
    beside = framed[:, picture.shape[1] :].astype(int)
    bar = beside[8:-8, 13:25].reshape(-1, 3)
    for colour in np.unique(picture.reshape(-1, 3), axis=0).astype(int):
        assert abs(bar - colour).max(1).min() <= 14, colour  # half a step of the bar's 14 greys, and of its height


@pytest.mark.thorough
def test_the_caption_describes_the_colour_bar_of_an_overlay(look):
    for gray, told in ((True, "the bar is over black to white"), (False, "the bar is without the input")):
        unit = look(views=["mean"], types=["Conv2d"], colorbar=True, gray_input=gray)
        assert text_of(unit / "01_second.mean.png")["Scaling"].endswith(told)
    assert "bar" not in text_of(look(views=["mean"], types=["Conv2d"]) / "01_second.mean.png")["Scaling"]


NAMES = ["ордер", "層", "a" * 150, "émile ℵ🙂", "x|y<b>&", "%20#?"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", often(NAMES[:2], of=NAMES))
def test_each_layer_name_is_drawn(look, name):
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module(name, nn.Conv2d(3, 4, 3))
    unit = look(model, labels=True, colorbar=True, views=["maps", "mean", "pca", "contact", "histogram"], types=["Conv2d"])
    record = report(unit)[f"00 {name}"]
    assert record["layer"]["name"] == name
    assert {path.name for path in unit.glob("*.png")} >= {"input.png", "contact.png"}
    assert len(list(unit.glob("*.png"))) == 6


def test_tiles_keep_their_numbers(look):
    """The numbers of each tile in the report belong to it."""
    for style in ({"labels": True, "channels": "top:5"}, {"labels": False, "channels": "2,4"}):
        unit = look(**style)
        record = report(unit)["00 first"]
        data = np.frombuffer(b64decode(record["statistics"]["data"]), "<f4").reshape(6, -1)
        assert data.shape[1] == len(record["channels"]) == record["tiles"]["count"]
        for tile, low, high in zip(tiles(unit, record), data[0], data[1], strict=True):
            assert low < high
            assert (tile.min(), tile.max()) == (0, 255)


def test_several_images_have_the_same_header(look, tmp_path, picture):
    """Each picture is headed with its own range; the tiles of two images lie at the same places all the same."""
    other = tmp_path / "b.png"
    Image.fromarray(255 - opened(picture)[0]).save(other)
    unit = look(inputs=[picture, other], labels=True)
    assert report(unit)["00 first"]["tiles"] == report(unit.with_name("b.png"))["00 first"]["tiles"]


# --- names of classes that the font lacks


@pytest.fixture
def draw_classes(picture, tmp_path):
    """Draw one image with a network whose classes have some names."""

    def run(name, classes, **options):
        network = Net().eval()
        network.classes = classes
        options = {"preprocessing": AS_IT_IS, "patch": 6, "progress": False} | options
        return fmapviz.visualize(network, picture, out=tmp_path, name=name, **options)

    return run


OTHER = [f"猫{number}" for number in range(40)]


@pytest.mark.thorough
@pytest.mark.parametrize("labels", [None, True], ids=["captions", "headers"])
def test_a_class_of_other_letters_is_drawn_as_one_without_a_name(draw_classes, labels):
    options = {"views": ["gradcam", "sheet", "occlusion", "effect"], "to": "png", "style": fmapviz.Style(labels=labels)}
    unnamed, named = draw_classes("unnamed", None, **options), draw_classes("named", OTHER, **options)
    expected, drawn = ({each.name: each for each in run.directory.glob("a.png/*.png")} for run in (unnamed, named))
    assert expected.keys() == drawn.keys()
    for name, path in expected.items():
        assert np.array_equal(np.asarray(Image.open(path)), np.asarray(Image.open(drawn[name]))), name
    assert any("猫" in text_of(path).get("Class", "") for path in drawn.values())
    assert [sum("not of Latin letters" in notice for notice in run.notices) for run in (unnamed, named)] == [0, 1]


def test_values_of_a_class_of_other_letters_need_no_remark(draw_classes):
    run = draw_classes("values", OTHER, views="gradcam", to="raw")
    assert not any("not of Latin letters" in notice for notice in run.notices)
