"""Whole runs with pictures for papers: background, text size, the input beside a grid, SVG, and a file per channel.

Tiles are the same as without these options, value by value; only what is around them differs.
"""

from __future__ import annotations

import re
from base64 import b64decode
from io import BytesIO
from itertools import product
from xml.etree import ElementTree as XmlTree

import numpy as np
import pytest
import torch
from cases import each_once, often
from image_files import paint
from PIL import Image, ImageColor
from report_runs import cut_tiles, report_of
from tiny_models import TwoConvolutionsAndHead
from tiny_runs import AS_IT_IS, runner, styled
from torch import nn
from trees import problems

from fmapviz.config import Style
from fmapviz.core import registry
from fmapviz.errors import RequestError
from fmapviz.events import Notice
from fmapviz.run.loop import visualize

pytest_plugins = ["browser"]  # its fixtures

SVG, LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"


class Net(TwoConvolutionsAndHead):
    def __init__(self):
        super().__init__(12, 7, 40, stride=2)


@pytest.fixture
def look(tmp_path):
    """Draw one image in several formats, and return its directory."""
    picture = paint(tmp_path / "a.png", size=(24, 30))
    defaults = {"preprocessing": AS_IT_IS, "workers": 1, "to": ["html", "svg", "channels"], "types": ["Conv2d", "Linear"]}
    draw = styled(runner(Net, out=tmp_path / "out", **defaults))

    def run(model=None, **options):
        summary = draw([picture], model, **options)
        assert not summary.failures
        assert problems(summary.directory) == []
        return summary.directory / "a.png"

    return run


def opened(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGBA"))


def grids(unit, view="maps"):
    """Return name, pixels RGBA and record of each grid."""
    found = [each for each in report_of(unit)["pictures"] if each["view"] == view and each["tiles"]]
    assert found
    return [(each["name"], opened(unit / each["href"]), each) for each in found]


def outside(pixels, laid):
    """Return the pixels that belong to no tile."""
    mask = np.ones(pixels.shape[:2], bool)
    for number in range(laid["count"]):
        row, column = divmod(number, laid["columns"])
        left, top = laid["left"] + column * laid["across"], laid["top"] + row * laid["down"]
        mask[top : top + laid["height"], left : left + laid["width"]] = False
    return pixels[mask]


COLOURS = {
    "white": (255, 255, 255, 255),
    "gray": (128, 128, 128, 255),
    "#203050": (32, 48, 80, 255),
    "Tomato": (*ImageColor.getrgb("tomato"), 255),
    "transparent": (255, 255, 255, 0),
}


GROUND_STYLES = [{}, {"colormap": "viridis", "channels": "top:5", "padding": 5, "columns": 3}]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "style"), often(each_once(COLOURS, GROUND_STYLES), of=product(COLOURS, GROUND_STYLES)), ids=str
)
def test_the_background_covers_everything_but_tiles(look, name, style):
    plain = look(name="plain", labels=False, **style)
    unit = look(name="x", labels=False, background=name, **style)
    for (_, before, _), (_, pixels, record) in zip(grids(plain), grids(unit), strict=True):
        if "00" in record["name"]:  # the head has bars
            assert np.array_equal(cut_tiles(pixels, record["tiles"]), cut_tiles(before, record["tiles"]))
        assert {*map(tuple, outside(pixels, record["tiles"]).tolist())} == {COLOURS[name]}


def test_grey_backgrounds_keep_grey_pictures_grey(look):
    unit = look(background="white", labels=True)
    with Image.open(unit / "00_first.maps.png") as image:
        assert image.mode == "L"


def test_the_default_background_equals_that_of_make_grid(look):
    for _, pixels, record in grids(look()):
        assert {*map(tuple, outside(pixels, record["tiles"]).tolist())} == {(0, 0, 0, 255)}


@pytest.mark.thorough
def test_bars_are_dark_on_a_light_background(look):
    plain, unit = look(name="plain", labels=False), look(name="x", background="white", labels=False)
    (before, record), (pixels, _) = [
        (found, each) for each_unit in (plain, unit) for name, found, each in grids(each_unit) if "head" in name
    ]
    assert np.array_equal(
        255 - np.array(cut_tiles(pixels[..., :3], record["tiles"])), cut_tiles(before[..., :3], record["tiles"])
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["white", "#203050", "transparent"])
def test_texts_are_legible_on_each_background(look, name):
    unit = look(background=name, labels=True, colorbar=True)
    for _, pixels, record in grids(unit):
        around = outside(pixels, record["tiles"]).astype(int)
        background = np.array(COLOURS[name])
        away = around[(around != background).any(1)]
        if name == "transparent":
            assert away[:, 3].max() > 200
            assert away[away[:, 3] > 200][:, :3].min() < 60  # dark ink
        else:
            contrast = abs(away[:, :3].mean(1) - background[:3].mean())
            assert contrast.max() > 150


def test_padding_between_the_cells_of_kernels_is_background(look):
    unit = look(views=["kernels"], background="#ff0000", labels=False).parent / "_model"
    for path in unit.glob("*.kernels.png"):
        pixels = opened(path)
        red = (pixels == (255, 0, 0, 255)).all(2)
        assert not (pixels[~red][:, 0] != pixels[~red][:, 1]).any() or "first" in path.name  # the first is in true colours
        assert red[0].all()
        assert red[:, 0].all()
        assert red[len(red) // 2].any()  # between the cells of a filter's row


@pytest.mark.parametrize("name", ["blak", "#12345", "", "rgba(1,2,3,0.5)", "#00000080"])
def test_values_that_are_no_colours_are_refused(name):
    with pytest.raises(RequestError, match="background"):
        Style(background=name)


@pytest.mark.parametrize("size", [5, 201, 0])
def test_texts_have_a_legible_size(size):
    with pytest.raises(RequestError, match="text size must be 6 to 200 pixels"):
        Style(text_size=size)


@pytest.mark.thorough
def test_texts_have_the_chosen_size(look):
    heights = []
    for size in (8, 13, 26, 52):
        _, pixels, record = grids(look(name=f"s{size}", labels=True, text_size=size))[0]
        heights.append(record["tiles"]["top"])
        assert pixels.shape[1] >= 24 * size
    assert heights == sorted(heights)
    assert heights[3] > 3 * heights[1]
    assert look(name="s13", labels=True) == look(name="plain", labels=True).parent.parent / "s13/a.png"  # 13 is the default


@pytest.mark.sampled(1)
@pytest.mark.parametrize("style", [{}, {"labels": True, "colorbar": True, "background": "white"}, {"scale": 3}], ids=str)
def test_the_input_is_before_the_first_tile(look, style):
    unit = look(with_input=True, views=["maps", "mean"], **style)
    seen, scale = opened(unit / "input.png"), style.get("scale", 1)
    for _, pixels, record in grids(unit):
        laid = record["tiles"]
        high, wide = seen.shape[0] * scale, seen.shape[1] * scale
        lowest = pixels.shape[0] - high
        large = seen.repeat(scale, 0).repeat(scale, 1)
        shown = [top for top in range(lowest + 1) if np.array_equal(pixels[top : top + high, :wide], large)]
        assert len(shown) == 1
        assert laid["left"] >= wide + 4
    plain = look(name="plain", views=["maps", "mean"], **style)
    for (_, pixels, record), (_, before, laid) in zip(grids(unit), grids(plain), strict=True):
        assert np.array_equal(cut_tiles(pixels, record["tiles"])[-1][..., :3], cut_tiles(before, laid["tiles"])[-1][..., :3])


def test_a_file_for_each_channel_has_its_tile(look):
    unit = look(labels=True, background="white", channels="2,5,11", to=["html", "channels"])
    names = [path.name for path in sorted(unit.glob("*.channel*.png"))]
    assert names == [f"00_first.maps.channel{channel:02d}.png" for channel in (2, 5, 11)] + [
        f"01_second.maps.channel{channel}.png" for channel in (2, 5)
    ]
    _, pixels, record = grids(unit)[0]
    for path, tile in zip(sorted(unit.glob("00*.channel*.png")), cut_tiles(pixels, record["tiles"]), strict=True):
        assert np.array_equal(opened(path), tile)
    with Image.open(unit / names[1]) as image:
        assert (image.text["Channel"], image.text["Layer"]) == ("5", "first")


def svg_of(path):
    return XmlTree.fromstring(path.read_bytes())


def images_in(svg):
    """Return left, top and pixels of each picture in a page."""
    for each in svg.iter(f"{SVG}image"):
        data = each.get(LINK).removeprefix("data:image/png;base64,")
        with Image.open(BytesIO(b64decode(data))) as image:
            yield int(each.get("x")), int(each.get("y")), np.asarray(image.convert("RGBA"))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "style", [{}, {"background": "white", "colorbar": True, "text_size": 20}, {"channels": "top:5"}], ids=str
)
def test_svg_has_the_pixels_of_the_png_file_and_its_texts_as_text(look, style):
    unit = look(labels=True, **style)
    for name, pixels, record in grids(unit):
        svg = svg_of(unit / record["href"].replace(".png", ".svg"))
        assert (int(svg.get("width")), int(svg.get("height"))) == (pixels.shape[1], pixels.shape[0])
        left, top, grid = max(images_in(svg), key=lambda each: each[2].size)
        laid = {**record["tiles"], "left": record["tiles"]["left"] - left, "top": record["tiles"]["top"] - top}
        assert np.array_equal(cut_tiles(grid, laid), cut_tiles(pixels, record["tiles"]))
        texts = [each.text for each in svg.iter(f"{SVG}text")]
        facts = dict(record["facts"])
        assert texts[0].startswith(name.partition(" ")[2])
        numbers = record["channels"] or list(range(laid["count"]))
        shown = [int(text) for text in texts if re.fullmatch(r"\d+", text)]
        assert shown == (numbers if laid["across"] > laid["width"] else shown)
        assert facts["Model"] in texts
        assert f"Model: {facts['Model']}" in svg.find(f"{SVG}desc").text


@pytest.mark.thorough
def test_svg_looks_like_the_png_file(look, browser, tmp_path):
    unit = look(
        labels=True,
        colorbar=True,
        background="white",
        with_input=True,
        views=["maps", "histogram", "mean"],
        to=["html", "svg"],
    )
    for record in report_of(unit)["pictures"]:
        if not record["layer"]:
            continue
        pixels = opened(unit / record["href"])
        page = browser.new_page(viewport={"width": pixels.shape[1], "height": pixels.shape[0]})
        page.goto((unit / record["href"].replace(".png", ".svg")).as_uri())
        page.screenshot(path=tmp_path / "svg.png")
        page.close()
        shown = opened(tmp_path / "svg.png").astype(int)
        assert shown.shape == pixels.shape
        same = abs(shown - pixels).max(2) <= 2
        assert same.mean() > 0.9  # texts are in another font
        if record["tiles"]:
            assert np.array_equal(cut_tiles(shown, record["tiles"]), cut_tiles(pixels, record["tiles"]))


class Hostile(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module('<script>&"x', nn.Conv2d(3, 4, 3))

    def forward(self, x):
        return next(self.children())(x)


def test_names_are_text_in_svg(look):
    unit = look(Hostile(), labels=True, types=["Conv2d"])
    (path,) = unit.glob("*.svg")
    svg = svg_of(path)
    assert {each.tag.removeprefix(SVG) for each in svg.iter()} <= {
        "svg",
        "title",
        "desc",
        "rect",
        "image",
        "text",
        "polyline",
    }
    assert next(svg.iter(f"{SVG}text")).text.startswith('<script>&"x')


@pytest.mark.thorough
def test_kernels_have_the_chosen_scale(look):
    torch.manual_seed(0)
    for scale in (2, 4, 9):
        unit = look(name=f"k{scale}", views=["kernels"], scale=scale, padding=0, labels=False).parent / "_model"
        with Image.open(next(unit.glob("00*.png"))) as image:
            assert image.width % (3 * scale) == 0
            pixels = np.asarray(image)
        assert np.array_equal(pixels[::scale].repeat(scale, 0), pixels)
        assert image.width // scale <= 12 * 12 * 3


class Attends(nn.Module):
    """Patches, attention among them, and a head."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, stride=4)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        tokens = self.patches(x).flatten(2).mT
        return self.head((tokens + self.attention(tokens, tokens, tokens)[0]).mean(1))


OF_ONE_NETWORK = [name for name, view in registry.views().items() if view.networks == 1 and name != "boxes"]  # no detector


@pytest.mark.parametrize(
    ("view", "form"),
    often(
        [("maps", "svg"), ("kernels", "channels"), ("gradcam", "channels"), ("histogram", "svg")],
        of=product(OF_ONE_NETWORK, ["svg", "channels"]),
    ),
)
def test_a_format_writes_each_view_or_reports_that_it_does_not(tmp_path, view, form):
    inputs = [paint(tmp_path / "a.png", size=(64, 64)), paint(tmp_path / "b.png", seed=1, size=(64, 64))]
    network = Attends() if view in {"attention", "rollout"} else "shapesnet"
    layers = {"attention": (), "rollout": (), "kernels": "features.0.conv"}.get(view, "features")
    seed = {"anchor": "a.png:20,20"} if view in {"similarity", "correspondence"} else {}
    told = []
    run = visualize(
        network, inputs, out=tmp_path / "out", to=form, views=view, layers=layers, style=Style(**seed), on_event=told.append
    )
    assert not run.failures
    messages = [each.message for each in told if isinstance(each, Notice)]
    notices = [each for each in messages if each.startswith(f"to={form!r} writes nothing of")]
    written = [path for path in run.directory.rglob(f"*.{form}" if form == "svg" else "*.channel*.png") if path.is_file()]
    assert bool(written) is not bool(notices)
    if form == "svg":
        assert not notices
        for path in written:
            svg = svg_of(path)
            assert svg.find(f"{SVG}title").text
            assert view == "histogram" or any(pixels.size for _, _, pixels in images_in(svg))
    for notice in notices:
        assert notice.startswith(f"to={form!r} writes nothing of {view}, only of maps, ")
        assert notice.endswith("to='png' or to='svg' writes every view")


def test_a_sheet_in_svg_has_the_pixels_of_the_png_file(look):
    unit = look(views=["contact", "mean"], to=["png", "svg"])
    ((left, top, pixels),) = images_in(svg_of(unit / "contact.svg"))
    assert (left, top) == (0, 0)
    assert np.array_equal(pixels, opened(unit / "contact.png"))
    assert {path.stem for path in unit.glob("*.svg")} == {path.stem for path in unit.glob("*.*.png")} | {"contact"}


@pytest.mark.thorough
def test_unwritten_views_are_reported_only_if_no_other_format_writes_them(look):
    def told(**options):
        events = []
        look(on_event=events.append, force=True, **options)
        return [each.message for each in events if isinstance(each, Notice) and "writes nothing of" in each.message]

    assert told(views=["maps", "mean"], to=["png", "channels"]) == []
    (some,) = told(views=["maps", "mean"], to=["channels"])
    assert some.startswith("to='channels' writes nothing of mean, only of ")
    (none,) = told(views=["mean", "max"], to=["png", "channels"])
    assert none.startswith("to='channels' writes nothing of mean, max, only of ")
