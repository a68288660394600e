from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from functools import partial
from io import BytesIO
from itertools import pairwise

import numpy as np
import pytest
import torch
from cases import thorough
from image_files import pixels_of
from PIL import Image
from report_runs import (
    LAYERS,
    describe,
    input_of,
    layer_picture,
    measured,
    packed,
    report_of,
    values_of,
    write_index,
    write_kernels,
    write_large_run,
    write_run,
    write_statistics,
    write_unit,
)
from torch import nn
from waiting import wait_until

from fmapviz.config import InputOptions, Style
from fmapviz.core.drawings import Tiles
from fmapviz.draw.grid import lay_out
from fmapviz.draw.png import encode
from fmapviz.formats.html.page import render_page, script
from fmapviz.run.loop import visualize

pytest_plugins = ["browser"]  # its fixtures

RUN = {"title": "t", "facts": [], "units": [], "model": None, "statistics": None, "failures": []}
DARK, LIGHT = {"color_scheme": "dark"}, {"color_scheme": "light"}
PHONE = {"viewport": {"width": 390, "height": 800}, "has_touch": True}
NAMES = ("a.png", "b.png", "more/c.png")
FEATURES = "00 features.0"
X = " \N{MULTIPLICATION SIGN} "


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Three images, three layers, statistics and kernels, one image that failed; only read."""
    root = tmp_path_factory.mktemp("report") / "tiny"
    units = write_run(root, NAMES)
    failures = [{"path": "/x/broken.jpg", "message": "cannot be decoded", "code": "E_DECODE"}]
    facts = [["Model", "tiny"], ["Weights", "random, seed 0"]]
    statistics = write_statistics(root, NAMES)
    write_index(root, units, facts=facts, failures=failures, statistics=statistics, model=write_kernels(root))
    return root


@pytest.fixture(scope="module")
def shapes(tmp_path_factory, samples):
    """A real run of two images with several views; only read."""
    images = [samples / f"shapes/{name}.jpg" for name in ("circle", "cross")]
    views = ["maps", "histogram", "grads", "inputs"]
    out = tmp_path_factory.mktemp("shapes")
    return visualize("shapesnet", images, out=out, views=views, to="html", workers=1).directory


def screenshot(page, **options):
    return np.asarray(Image.open(BytesIO(page.screenshot(**options))).convert("RGB"))


def number(text):
    return float(text.removesuffix(" %")) / 100 if text.endswith("%") else float(text)


def middle(tiles, index):
    x, y = tiles.corner(index)
    return x + tiles.width / 2, y + tiles.height / 2


# --- The files


def test_scripts_hold_their_data_and_no_end_of_a_script():
    hostile = {"a": "</script><!--", "b": "\u2028\u2029", "c": "\udce4\x00", "d": [1.5, None, "é"]}
    for name in ("unit", "statistics"):
        text = script(name, hostile).decode("ascii")
        assert not re.search(r"[<>&]", text)
        assert json.loads(text.removeprefix(f"fmapviz.{name}(").removesuffix(");\n")) == hostile


@pytest.mark.parametrize("render", [render_page, partial(script, "unit"), partial(script, "statistics")])
def test_values_that_json_cannot_hold_are_refused(render):
    with pytest.raises(ValueError, match="JSON"):
        render({**RUN, "facts": [["a", float("nan")]]})


def test_the_page_is_deterministic_ascii_with_the_hash_of_its_script():
    run = {**RUN, "title": "é\udce4"}
    page = render_page(run)
    assert page == render_page(run)
    text = page.decode("ascii")
    allowed = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    directives = dict(directive.strip().split(" ", 1) for directive in allowed.split(";"))
    assert {
        "default-src": "'none'",
        "img-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }.items() <= directives.items()
    for tag, sources in (("style", directives["style-src"]), ("script", directives["script-src"])):
        content = re.search(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in sources.split()
    assert "unsafe" not in allowed
    assert not re.search(r"\son\w+=|\sstyle=|https?://", re.sub(r"<(script|style)>.*?</\1>", "", text, flags=re.DOTALL))


# --- Opening and choosing


def test_the_page_opens_with_the_first_picture_and_loads_nothing_else(open_report, run):
    report = open_report(run)
    assert report.text("h1") == "tiny"
    assert report.text("#title") == FEATURES
    maps = values_of("a.png", "features.0", (8, 12, 12))
    finite = maps[np.isfinite(maps)]
    assert report.text("#kind") == f"Conv2d · 8{X}12{X}12 · {finite.min():.4g} to {finite.max():.4g}"
    facts = report.page.locator("#about > :not(.dead-channels)").all_inner_texts()
    assert facts == [f"Mean\n{finite.mean():.4g}"]
    assert report.text("#scaling") == "Each channel"
    assert report.texts("#images .name") == ["a.png", "b.png", "c.png"]
    assert report.texts("#layers .name") == ["features.0", "features.3", "classifier"]
    assert report.texts("#layers .note") == [f"Conv2d · 8{X}12{X}12", f"Conv2d · 12{X}6{X}6", f"Linear · 5{X}3{X}4"]
    thumbnails = [f"{name}/input.png" for name in NAMES]
    expected = [*thumbnails, "_model/report.js", "a.png/report.js", "a.png/00_features.0.maps.png", "stats.js"]
    assert sorted(report.loaded()) == sorted(expected)
    assert report.page.title() == "00 features.0 - a.png - tiny"


@pytest.mark.thorough
def test_files_with_other_names_in_an_object_store_are_loaded(open_report, tmp_path):
    units = write_run(tmp_path, ("a.png",))
    objects = {}
    for file in list((tmp_path / "a.png").iterdir()):
        other = file.with_name(f"{file.stem}.0123456789ab{file.suffix}")
        file.rename(other)
        objects[f"a.png/{file.name}"] = f"a.png/{other.name}"
    write_index(tmp_path, units, objects=objects)
    report = open_report(tmp_path)
    assert report.text("#title") == FEATURES
    loaded = ["a.png/00_features.0.maps.0123456789ab.png", "a.png/input.0123456789ab.png", "a.png/report.0123456789ab.js"]
    assert sorted(report.loaded()) == loaded


def test_an_image_and_a_layer_are_chosen(open_report, run):
    report = open_report(run)
    report.page.get_by_role("option", name="c.png").click()
    report.page.get_by_role("option", name="features.3").click()
    report.settled()
    assert report.text("#title") == "01 features.3"
    assert report.text(".pane h3") == "more/c.png"
    assert report.loaded()[-1] == "more/c.png/01_features.3.maps.png"
    size = report.page.locator(".viewport > img").evaluate("image => [image.naturalWidth, image.naturalHeight]")
    assert size == list(pixels_of(run / "more/c.png/01_features.3.maps.png").T.shape)
    chosen = report.page.locator("[aria-selected=true]")
    assert chosen.locator(".name").all_inner_texts() == ["c.png", "features.3"]


@pytest.mark.thorough
def test_a_view_that_does_not_depend_on_the_image_is_shown(open_report, run):
    report = open_report(run)
    assert report.texts("#views label") == ["input", "maps", "kernels"]
    report.page.get_by_text("kernels").click()
    report.settled()
    assert report.loaded()[-1] == "_model/00_features.0.kernels.png"
    report.press("ArrowRight")
    assert report.text("#title") == FEATURES
    assert "b.png" not in report.text(".pane h3")
    report.point(*middle(lay_out(4, 3, 3), 2))
    weights = np.random.default_rng(5).normal(0, 1, (4, 3, 3)).astype(np.float32)
    assert number(report.numbers(".tip")["minimum"][0]) == pytest.approx(weights[2].min(), rel=1e-4)


@pytest.mark.thorough
def test_views_have_the_requested_order(open_report, tmp_path):
    asked = ["pca", "histogram", "kernels", "maps", "mean"]
    unit = write_unit(tmp_path, "a.png", more=[(view, 0, "features.0", "") for view in ("mean", "pca", "histogram")])
    write_index(tmp_path, [unit], views=asked, model=write_kernels(tmp_path))
    report = open_report(tmp_path)
    assert report.texts("#views label") == ["input", *asked]
    for view in [*asked, "input"]:
        assert report.page.locator("#views :checked").input_value() == view
        report.press("v")


@pytest.mark.thorough
def test_the_list_of_layers_follows_the_view(open_report, tmp_path):
    """Where two views show the same layers its rows look the same."""
    unit = write_unit(
        tmp_path, "a.png", more=[(view, at, name, "") for view in ("mean", "max") for at, name in enumerate("ab")]
    )
    statistics = write_statistics(tmp_path, ["a.png"], [(name, "Conv2d", (4, 3, 3)) for name in "ab"])
    write_index(tmp_path, [unit], views=["mean", "max", "maps"], statistics=statistics)
    report = open_report(tmp_path)
    report.look_at("max")
    assert report.texts("#layers [aria-selected=true] .name") == ["a"]
    report.press("ArrowDown")
    report.page.get_by_role("option", name="a Conv2d").click()
    report.press("ArrowDown")
    assert report.loaded()[-1] == "a.png/01_b.max.png"
    assert report.page.locator("#views :checked").input_value() == "max"
    report.page.locator("[data-dialog=statistics]").click()
    report.page.get_by_role("button", name="a", exact=True).click()
    report.settled()
    assert (report.text("#title"), report.page.locator("#views :checked").input_value()) == ("00 a", "max")


@pytest.fixture(scope="module")
def lacking(tmp_path_factory):
    """Two images of whose layers not every view shows all, and a third without most layers; only read."""
    root = tmp_path_factory.mktemp("lacking")
    heat = [("gradcam", 0, "features", ".top1"), ("gradcam", 1, "features", ".top2")]
    heat += [("contact", 0, "features.0", ""), ("layercam", 4, "features", ".top1"), ("layercam", 5, "features", ".top2")]
    few = [("pca", 0, "features.0", ""), ("pca", 1, "features.3", "")]
    units = [
        write_unit(root, "a.png", more=[*few, *heat]),
        write_unit(root, "b.png", more=[*few, ("pca", 2, "classifier", ""), *heat]),
        write_unit(root, "c.png", layers=LAYERS[:1], more=[*few, *heat]),
    ]
    write_index(root, units, views=["maps", "pca", "gradcam", "contact", "kernels", "layercam"], model=write_kernels(root))
    return root


@pytest.mark.thorough
def test_a_view_without_the_layer_keeps_the_choice(open_report, lacking):
    report = open_report(lacking)
    report.press("End")
    assert report.text("#title") == FEATURES  # no list has the focus
    report.press("ArrowDown", "ArrowDown")
    assert report.text("#title") == "02 classifier"
    for view, title in (
        ("gradcam", "00 features.top1"),
        ("maps", "02 classifier"),
        ("pca", "01 features.3"),
        ("kernels", FEATURES),
        ("maps", "02 classifier"),
        ("input", "input"),
        ("maps", "02 classifier"),
    ):
        report.look_at(view)
        assert report.text("#title") == title, view
        assert report.text("#layers [aria-selected=true] .name") == re.sub(r"^\d+ ", "", title)
    report.look_at("gradcam")
    report.press("ArrowDown")  # chosen by hand, but no layer that the maps have
    for view, title in (("maps", "02 classifier"), ("contact", FEATURES), ("layercam", "05 features.top2")):
        report.look_at(view)
        assert report.text("#title") == title, view
    report.look_at("maps")
    report.press("ArrowUp")
    for view in ("pca", "gradcam", "maps"):
        report.look_at(view)
    assert report.text("#title") == "01 features.3"


@pytest.mark.thorough
def test_an_image_without_the_layer_keeps_the_choice(open_report, lacking):
    report = open_report(lacking)
    report.press("ArrowDown", "ArrowDown")
    report.look_at("pca")
    assert report.text("#title") == "01 features.3"  # the last one of those it has
    report.press("ArrowRight")
    assert report.text("#title") == "02 classifier"  # this image has it
    report.press("ArrowLeft")
    report.look_at("maps")
    report.look_at("pca")
    report.page.get_by_role("option", name="features.3").click()
    report.press("ArrowRight")
    assert report.text("#title") == "01 features.3"  # there for want of the other, but chosen then
    report.look_at("maps")
    report.press("ArrowDown")
    report.look_at("pca")
    report.press("ArrowRight")
    assert report.text(".message") == "c.png has no picture 02 classifier in the view pca."
    report.look_at("maps")
    assert report.text("#title") == FEATURES
    report.press("ArrowLeft")
    assert (report.text("#title"), report.text(".pane h3")) == ("02 classifier", "b.png")
    report.press("ArrowUp", "ArrowLeft")
    assert (report.text("#title"), report.text(".pane h3")) == ("01 features.3", "a.png")


@pytest.mark.thorough
def test_the_back_button_keeps_the_layer(open_report, lacking):
    report = open_report(lacking)
    report.press("ArrowDown", "ArrowDown")
    report.until("location.hash.includes('layer=02')")  # the page writes its address some time after the key
    report.page.evaluate("location.hash = 'view=gradcam&layer=00+features.top1'")
    report.until("document.querySelector('#title').textContent === '00 features.top1'")
    report.look_at("maps")
    assert report.text("#title") == "02 classifier"
    report.press("ArrowUp")
    report.look_at("pca")
    report.until("location.hash.includes('view=pca')")
    report.page.evaluate("location.hash = 'image=b.png&view=pca&layer=02+classifier'")  # which the image before has not
    report.until("document.querySelector('.pane h3').textContent === 'b.png'")
    report.settled()
    assert report.text("#title") == "02 classifier"


@pytest.mark.thorough
def test_keys_in_quick_succession_apply_to_the_new_view(open_report, lacking):
    report = open_report(lacking)
    report.page.evaluate("""() => { for (const key of ["v", "ArrowDown", "v", "v", "v", "ArrowDown", "ArrowDown"])
        document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true})); }""")
    report.settled()
    assert (report.text("#title"), report.text(".pane h3")) == (FEATURES, "The model, the same for all images")
    report.page.evaluate("""() => { for (const key of ["ArrowRight", "v", "v", "v", "ArrowDown"])
        document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true})); }""")
    report.settled()
    assert (report.text("#title"), report.text(".pane h3")) == ("02 classifier", "b.png")


# --- Long names


LONG = tuple(f"features.denseblock4.denselayer16.conv{number}" for number in (1, 2))
ACCENTED = "e\N{COMBINING ACUTE ACCENT}" * 30


@pytest.mark.thorough
def test_long_names_are_cut_in_the_middle(open_report, tmp_path):
    layers = [(name, "Conv2d", (5, 3, 4)) for name in (*LONG, "short.conv1", ACCENTED)]
    image = "2026-11-22 at 12.30 a very  long name.png"
    write_run(tmp_path, (image, f"other {image}"), layers=layers)
    script = """rows => rows.map(row => { const [head, tail] = row.querySelector(".cut").children; return [
        head.scrollWidth > head.clientWidth, tail.scrollWidth > tail.clientWidth, head.clientWidth,
        tail.getBoundingClientRect().left - head.getBoundingClientRect().right, tail.textContent]; })"""
    for options, cut in (({}, True), (PHONE, False)):  # a phone's lists are wider
        report = open_report(tmp_path, **options)
        report.press("/", "Enter", "i", "Enter")
        rows = report.page.locator("#layers .row:has(.cut)")
        seen = rows.evaluate_all(script)
        assert [tail for *_, tail in seen] == ["ayer16.conv1", "ayer16.conv2", "e\N{COMBINING ACUTE ACCENT}" * 12]
        for head_is_cut, tail_is_cut, head_width, gap, _ in seen[:2]:
            assert (head_is_cut, tail_is_cut) == (cut, False)
            assert head_width > 20
            assert gap == pytest.approx(0, abs=0.02)
        assert report.texts("#layers .name") == [*LONG, "short.conv1", ACCENTED]
        titles = report.page.locator("#layers .row .two").evaluate_all("all => all.map(one => one.title)")
        assert titles == [f"{number:02d} {layer[0]}" for number, layer in enumerate(layers)]
        for number, name in enumerate(LONG):
            whole = f"{number:02d} {name} Conv2d · 5{X}3{X}4"
            assert report.page.get_by_role("option", name=whole, exact=True).count() == 1
        pieces = report.page.locator("#images .cut, .pane .cut")
        assert pieces.evaluate_all("all => all.map(one => one.textContent)") == [image, image, f"other {image}", image]
        assert "pre" in pieces.first.evaluate("one => getComputedStyle(one.firstChild).whiteSpace")
        assert report.page.locator(".pane h3").get_attribute("title") == image
        report.press("c")
        for pane in report.page.locator(".pane > header").all():
            whole, said = pane.bounding_box(), pane.locator(".range").bounding_box()
            assert said["x"] + said["width"] <= whole["x"] + whole["width"] - 10


# --- Pointing


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("style", "channels"),
    [(Style(scale=2), (7, 2, 3)), *thorough((Style(), None), (Style(padding=0, columns=3), None), (Style(padding=5), (1,)))],
    ids=["scaled", "plain", "no padding", "one"],
)
def test_the_tip_shows_the_numbers_of_a_tile(open_report, tmp_path, style, channels):
    layers = LAYERS[:1]
    root = tmp_path / "run"
    write_run(root, ("a.png",), layers=layers, style=style, channels=channels)
    report = open_report(root)
    maps = values_of("a.png", *[layers[0][at] for at in (0, 2)])
    shown = list(range(8)) if channels is None else list(channels)
    expected = measured(maps[shown])
    tiles = lay_out(len(shown), 12, 12, style)
    for index in {0, 1, len(shown) // 2, len(shown) - 1} & set(range(len(shown))):
        report.point(*middle(tiles, index))
        assert report.text(".tip caption") == f"Channel {shown[index]}"
        said = {name: number(cells[0]) for name, cells in report.numbers(".tip").items()}
        names = ["minimum", "maximum", "mean", "deviation", "zeros"] + ["not finite"] * bool(expected[5, index])
        assert said == pytest.approx(dict(zip(names, expected[:, index], strict=False)), rel=1e-4, abs=5e-5)
        x, y = tiles.corner(index)
        left, top, scale = report.picture()
        bounds = report.page.locator(".outline.pointed").bounding_box()
        wanted = {"x": left + x * scale, "y": top + y * scale, "width": tiles.width * scale, "height": tiles.height * scale}
        assert bounds == pytest.approx(wanted, abs=0.02)


@pytest.mark.thorough
def test_the_tip_is_hidden_between_tiles_and_outside(open_report, run):
    report = open_report(run)
    tiles = lay_out(8, 12, 12)
    report.point(*middle(tiles, 0))
    assert report.page.locator(".tip").is_visible()
    for place in ((1, 1), (15, 8), (8, 15.5), (tiles.corner(7)[0] + 14, 30), (-3, 8)):
        report.point(*place)
        assert not report.page.locator(".tip").is_visible(), place
        assert not report.page.locator(".outline.pointed").is_visible()


@pytest.mark.thorough
def test_the_tile_under_the_pointer_is_announced_to_screen_readers(open_report, run):
    report = open_report(run)
    report.point(*middle(lay_out(8, 12, 12), 1))
    report.until("document.querySelector('#spoken').textContent.startsWith('channel 1: minimum ')")
    assert "zeros 50 %" in report.page.locator("#spoken").text_content()


@pytest.mark.thorough
def test_the_tip_shows_numbers_over_the_run(open_report, run):
    report = open_report(run)
    report.until("document.querySelector('.badge') !== null")
    assert report.texts(".badge") == ["2 dead"]
    report.point(*middle(lay_out(8, 12, 12), 4))
    together = np.concatenate([values_of(name, "features.0", (8, 12, 12)).reshape(8, -1) for name in NAMES], 1)
    said = report.numbers(".tip")
    assert [number(said[name][1]) for name in ("minimum", "maximum", "mean")] == pytest.approx(
        measured(together)[:3, 4], rel=1e-4
    )
    assert report.text(".tip .dead") == "Dead in all 3 images"
    report.point(*middle(lay_out(8, 12, 12), 5))
    assert report.page.locator(".tip .dead").count() == 0


@pytest.mark.thorough
def test_numbers_over_the_run_are_those_of_the_class(open_report, tmp_path):
    (tmp_path / "a.png").mkdir()
    (tmp_path / "a.png/input.png").write_bytes(encode(input_of("a.png")))
    maps = values_of("a.png", "0", (4, 5, 5))
    picture = layer_picture(tmp_path / "a.png", maps, 0, "0", "Conv2d", view="grads", target=".top2")
    record = {"unit": "a.png", "source": "", "predictions": [], "notices": [], "pictures": [picture]}
    (tmp_path / "a.png/report.js").write_bytes(script("unit", record))
    layers = []
    for factor, of in enumerate(("output", "gradient top1", "gradient top2", "input gradient top2")):
        layer = {"name": "0", "of": of, "type": "Conv2d", "channels": 4, "dead": [0] * factor}
        layers.append(layer | {"data": packed(measured(maps + factor))})
    (tmp_path / "stats.js").write_bytes(script("statistics", {"images": 9, "layers": layers}))
    write_index(tmp_path, [{"unit": "a.png", "href": "a.png/", "predictions": []}], statistics="stats.js")
    report = open_report(tmp_path)
    report.until("document.querySelector('.badge') !== null")
    report.point(*middle(lay_out(4, 5, 5), 2))
    said = report.numbers(".tip")["maximum"]
    assert [number(text) for text in said] == pytest.approx([maps[2].max(), maps[2].max() + 2], rel=1e-4)


@pytest.mark.thorough
def test_channels_that_are_not_finite_have_no_numbers(open_report, tmp_path):
    maps = values_of("a.png", "0", (4, 5, 5))
    rows = measured(maps)
    rows[:, 2] = np.nan, np.nan, np.nan, 0, 0, 1  # as the engine tells it
    (tmp_path / "a.png").mkdir()
    picture = layer_picture(tmp_path / "a.png", maps, 0, "0", "Conv2d")
    picture["statistics"]["data"] = packed(rows)
    record = {"unit": "a.png", "source": "", "predictions": [], "notices": [], "pictures": [picture]}
    (tmp_path / "a.png/report.js").write_bytes(script("unit", record))
    layer = {"name": "0", "of": "output", "type": "Conv2d", "channels": 4, "dead": [2], "data": packed(rows)}
    (tmp_path / "stats.js").write_bytes(script("statistics", {"images": 1, "layers": [layer]}))
    unit = {"unit": "a.png", "href": "a.png/", "predictions": [], "thumbnail": False}
    write_index(tmp_path, [unit], statistics="stats.js")
    report = open_report(tmp_path)
    report.until("document.querySelector('.badge') !== null")
    report.point(*middle(lay_out(4, 5, 5), 2))
    nothing = {name: ["none"] * 2 for name in ("minimum", "maximum", "mean", "deviation")}
    expected = {**nothing, "zeros": ["0 %"] * 2, "not finite": ["100 %"] * 2}
    assert report.numbers(".tip") == expected
    assert report.text(".tip .dead") == "Dead in the only image"
    report.until("document.querySelector('#spoken').textContent.endsWith('mean none, zeros 0 %, not finite 100 %')")
    report.press("]", "]", "]")
    assert report.numbers("#pin") == expected


# --- What real runs leave


class Net(nn.Module):
    """Names that mean something to JavaScript or HTML, maps of one pixel, a vector, and more channels than fit in a row."""

    NAMES = ("__proto__", "constructor", 'quo"te', "<b>bold", "emoji\N{GRINNING FACE}", "one", "head", "wide")

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for at, name in enumerate(self.NAMES[:5]):
                self.add_module(name, nn.Conv2d(8 if at else 3, 8, 3))
            self.one = nn.AdaptiveMaxPool2d(1)
            self.head = nn.Linear(8, 11)
            self.wide = nn.Conv2d(3, 520, 1)

    def forward(self, x):
        y = x
        for name in self.NAMES[:5]:
            y = self.get_submodule(name)(y)
        return self.head(self.one(y).flatten(1)) + self.wide(x).mean()


def save_noise(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (24, 30, 3), np.uint8)).save(path)


def draw(pictures, out, **options):
    options = {"to": ["html", "stats"], "types": ["Conv2d", "Linear", "AdaptiveMaxPool2d"], **options}
    return visualize(
        Net(), pictures, out=out, name="net", preprocessing=InputOptions(fit="none"), workers=1, **options
    ).directory


def reference(path):
    """What each layer returns for a picture."""
    model, kept = Net().eval(), {}
    for name, module in model.named_children():
        module.register_forward_hook(
            lambda _module, _given, result, name=name: kept.update({name: result[0].numpy().copy()})
        )
    with Image.open(path) as image:
        pixels = (np.asarray(image, np.float32) / 255 - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    with torch.no_grad():
        model(torch.from_numpy(pixels).float().permute(2, 0, 1)[None])
    return kept


def tiles_shown(report, unit):
    """Return the positions of the shown tiles, from the page's data."""
    title = report.text("#title")
    text = (report.root / unit / "report.js").read_text("ascii").removeprefix("fmapviz.unit(").removesuffix(");\n")
    picture = next(each for each in json.loads(text)["pictures"] if each["name"] == title)
    return picture["width"], Tiles(**picture["tiles"])


def told(report, selector, column=0):
    """Return the numbers of a table: minimum, maximum, mean, deviation."""
    return [number(cells[column]) for cells in list(report.numbers(selector).values())[:4]]


@pytest.fixture(scope="module")
def net_run(tmp_path_factory):
    """Two images of one name in two folders, all channels in one row; only read."""
    root = tmp_path_factory.mktemp("net")
    for seed, folder in enumerate("ab"):
        save_noise(root / f"in/{folder}/x.png", seed)
    return draw([root / "in"], root / "out", style=Style(columns=9999, padding=2))


@pytest.mark.thorough
def test_the_numbers_of_layers_of_any_size_are_shown(open_report, net_run):
    pictures = net_run.parents[1] / "in"
    maps = [reference(pictures / folder / "x.png") for folder in "ab"]
    report = open_report(net_run)
    assert report.texts("#layers .name") == list(Net.NAMES)
    report.press("ArrowRight")
    report.until("document.querySelector('#statistics td') !== null")
    for step, name in enumerate(Net.NAMES):
        assert report.text("#title") == f"{step:02d} {name}"
        channels = [each[name].reshape(len(each[name]), -1) for each in maps]
        width, tiles = tiles_shown(report, "b/x.png")
        assert (width > 16_000) is (name == "wide")
        last = len(channels[0]) - 1
        report.point(*middle(tiles, last))
        assert report.text(".tip caption") == f"Channel {last}"
        for column, values in enumerate((channels[1], np.concatenate(channels, 1))):
            expected = measured(values)[:4, last]
            assert told(report, ".tip", column) == pytest.approx(expected, rel=1e-4, abs=1e-6), name
        viewport = report.page.locator(".viewport").bounding_box()
        left, _, scale = report.picture()
        assert viewport["x"] <= left <= left + width * scale <= viewport["x"] + viewport["width"]
        report.page.mouse.move(1, 1)
        report.press("ArrowDown")
    report.press("[", *"+" * 7, "[")
    kept, viewport = (report.page.locator(part).bounding_box() for part in (".outline.kept", ".viewport"))
    assert report.text("#pin h2") == "Channel 518"
    assert viewport["x"] - 1 <= kept["x"] <= kept["x"] + kept["width"] <= viewport["x"] + viewport["width"] + 1
    report.page.mouse.move(viewport["x"] + viewport["width"] / 2, viewport["y"] + viewport["height"] / 2)
    report.page.mouse.wheel(0, -9000)
    report.until("document.querySelector('#zoom output').textContent === '6400 %'")
    report.page.mouse.move(1, 1)
    report.press("[", "]")
    report.page.mouse.move(viewport["x"] + viewport["width"] / 2, viewport["y"] + viewport["height"] / 2)
    assert report.text(".tip caption") == "Channel 518"
    report.page.locator("[data-dialog=statistics]").click()
    assert report.texts("#statistics td button") == list(Net.NAMES)
    report.page.get_by_role("button", name="__proto__", exact=True).click()
    report.settled()
    assert report.text("#title") == "00 __proto__"


@pytest.mark.thorough
def test_the_widest_picture_fits(open_report, tmp_path):
    (tmp_path / "a.png").mkdir()
    pixels = np.zeros((4, 200_000), np.uint8)
    (tmp_path / "a.png/0.png").write_bytes(encode(pixels))
    record = {"unit": "a.png", "source": "", "predictions": [], "notices": []}
    record["pictures"] = [describe("0.png", "maps", "00 0", pixels)]
    (tmp_path / "a.png/report.js").write_bytes(script("unit", record))
    write_index(tmp_path, [{"unit": "a.png", "href": "a.png/", "predictions": [], "thumbnail": False}])
    report = open_report(tmp_path)
    viewport = report.page.locator(".viewport").bounding_box()
    left, _, scale = report.picture()
    assert viewport["x"] <= left <= left + 200_000 * scale <= viewport["x"] + viewport["width"]
    assert report.text("#zoom output") == f"{scale * 100:.3g} %"


@pytest.mark.thorough
def test_a_bar_is_pinned_beside_a_visible_input(open_report, net_run):
    report = open_report(net_run)
    report.page.get_by_role("option", name="head").click()
    report.press("]")
    bar, seen = (report.page.locator(part).bounding_box() for part in ("#pin canvas", "#pin img"))
    assert bar["width"] < bar["height"] / 2
    assert seen["width"] / seen["height"] == pytest.approx(30 / 24, rel=0.01)
    assert max(seen["width"], seen["height"]) == bar["height"] > 100


@pytest.mark.thorough
def test_images_of_the_same_name_are_distinguished(open_report, net_run):
    report = open_report(net_run)
    assert report.texts("#images .name") == ["x.png", "x.png"]
    assert report.texts("#images .note") == ["a/", "b/"]
    assert report.text(".pane h3") == "a/x.png"
    report.page.get_by_role("option", name="x.png b/").click()
    report.settled()
    assert (report.text(".pane h3"), report.page.title().split(" - ")[1]) == ("b/x.png", "b/x.png")
    assert report.loaded()[-1] == "b/x.png/00___proto__.maps.png"
    report.press("c")
    assert report.texts(".pane h3") == ["b/x.png", "a/x.png"]
    report.until("location.hash.includes('with=a%2Fx.png')")
    assert "image=b%2Fx.png" in report.page.url


@pytest.mark.thorough
def test_tiles_with_labels_and_a_colour_bar_are_located(open_report, tmp_path):
    save_noise(tmp_path / "in/x.png", 3)
    style = Style(labels=True, colorbar=True, scale=3, channels="top:5")
    report = open_report(draw([tmp_path / "in"], tmp_path / "out", to=["html"], layers=["<b>bold", "head"], style=style))
    maps = reference(tmp_path / "in/x.png")
    for name in ("<b>bold", "head"):
        values = maps[name].reshape(len(maps[name]), -1)
        numbers = measured(values)
        top = np.argsort(-numbers[1], kind="stable")[:5]
        _, tiles = tiles_shown(report, "x.png")
        assert tiles.count == 5
        for tile, channel in enumerate(top):
            corner = tiles.corner(tile)
            for x, y in ((0.5, 0.5), (tiles.width - 0.5, tiles.height - 0.5)):
                report.point(corner[0] + x, corner[1] + y)
                assert report.text(".tip caption") == f"Channel {channel}"
            assert told(report, ".tip") == pytest.approx(numbers[:4, channel], rel=1e-4, abs=1e-6)
        report.point(tiles.corner(0)[0] + 3, tiles.corner(0)[1] - 6)  # the header
        assert not report.page.locator(".tip").is_visible()
        report.press("]", "]", "]")
        assert report.text("#pin h2") == f"Channel {top[2]}"
        report.press("Escape", "ArrowDown")


@pytest.mark.thorough
def test_a_page_stays_usable_while_its_run_grows(open_report, tmp_path):
    for seed, name in enumerate(("m.png", "z.png", "b/a.png")):
        save_noise(tmp_path / "in" / name, seed)
    root = draw([tmp_path / "in/m.png"], tmp_path / "out", layers=["constructor", "head"])
    report = open_report(root)
    assert report.page.locator("#compare").is_disabled()
    report.press("ArrowDown", "]", "]")
    report.until("location.hash.includes('channel=1')")
    draw([tmp_path / "in"], tmp_path / "out", layers=["constructor", "head"])
    report.press("ArrowUp")  # the old page goes on
    assert report.text("#title") == "00 constructor"
    report.until("location.hash.includes('constructor')")
    report.page.reload()
    report.settled()
    assert report.texts("#images .name") == ["a.png", "m.png", "z.png"]
    assert (report.text(".pane h3"), report.text("#title")) == ("m.png", "00 constructor")
    report.until("document.querySelector('#statistics td') !== null")
    assert report.text("#pin thead th:last-child") == "3 images"
    together = [reference(tmp_path / "in" / name)["constructor"].reshape(8, -1) for name in ("m.png", "z.png", "b/a.png")]
    assert told(report, "#pin", 1) == pytest.approx(measured(np.concatenate(together, 1))[:4, 1], rel=1e-4)
    report.page.go_back()
    report.until("document.querySelector('#title').textContent === '01 head'")
    report.press("ArrowLeft")
    assert report.text(".pane h3") == "b/a.png"


# --- Zooming and moving


@pytest.mark.thorough
def test_the_whole_picture_fits_at_a_whole_scale(open_report, run):
    report = open_report(run)
    viewport = report.page.locator(".viewport").bounding_box()
    left, top, scale = report.picture()
    height, width = pixels_of(run / "a.png/00_features.0.maps.png").shape
    assert scale == int(scale) > 1
    assert viewport["x"] <= left <= left + width * scale <= viewport["x"] + viewport["width"]
    assert viewport["y"] <= top <= top + height * scale <= viewport["y"] + viewport["height"]
    assert (scale + 1) * height > viewport["height"] - 24 or (scale + 1) * width > viewport["width"] - 24


@pytest.mark.thorough
def test_the_wheel_zooms_at_the_pointer(open_report, run):
    report = open_report(run)
    x, y = report.point(10, 20)
    for turn in (-300, -120, 240):
        before = report.picture()[2]
        report.page.mouse.wheel(0, turn)
        assert wait_until(lambda: report.picture()[2] != before)  # noqa: B023  it is called at once
        assert (report.picture()[2] > before) == (turn < 0)
    left, top, scale = report.picture()
    assert ((x - left) / scale, (y - top) / scale) == pytest.approx((10, 20), abs=1 / scale)


@pytest.mark.thorough
def test_zooming_is_limited(open_report, run):
    report = open_report(run)
    fitted = report.picture()
    x, y = report.point(*middle(lay_out(8, 12, 12), 4))
    report.press(*"+" * 14)
    assert report.text("#zoom output") == "6400 %"
    inmost = report.picture()
    assert inmost[2] == 64
    report.press("+")
    for _ in range(3):
        report.page.mouse.wheel(0, -5000)
    report.page.wait_for_timeout(50)
    assert report.picture() == inmost
    report.page.mouse.move(inmost[0] + 64 * 20, inmost[1] + 64 * 20)
    report.press("0", *"-" * 14)
    farthest = report.picture()
    assert farthest[2] == pytest.approx(0.25)
    assert report.text("#zoom output") == "25 %"
    report.press("-")
    report.page.mouse.move(x, y)
    report.page.mouse.wheel(0, 5000)
    report.page.wait_for_timeout(50)
    assert report.picture() == farthest
    report.press("0")
    assert report.picture() == fitted
    report.page.mouse.move(1, 1)
    report.point(*middle(lay_out(8, 12, 12), 4))
    assert report.text(".tip caption") == "Channel 4"


@pytest.mark.thorough
def test_dragging_moves_and_a_double_click_fits(open_report, run):
    report = open_report(run)
    fitted = report.picture()
    x, y = report.point(20, 20)
    report.page.mouse.down()
    report.page.mouse.move(x + 30, y + 10)
    report.page.mouse.move(x + 70, y - 25)
    report.page.mouse.up()
    moved = report.picture()
    assert moved == pytest.approx((fitted[0] + 70, fitted[1] - 25, fitted[2]), abs=1)
    report.page.wait_for_timeout(300)
    assert not report.page.locator("#pin").is_visible()  # a drag is no click
    report.press("+")
    report.page.mouse.dblclick(*report.point(*middle(lay_out(8, 12, 12), 4)))
    assert wait_until(lambda: report.picture() == fitted)
    assert not any(report.page.locator(part).is_visible() for part in ("#pin", ".outline.kept"))


@pytest.mark.thorough
def test_a_double_click_keeps_the_pinned_channel(open_report, run):
    report = open_report(run)
    report.press("]")
    report.page.mouse.dblclick(*report.point(*middle(lay_out(8, 12, 12), 4)))
    report.page.wait_for_timeout(300)
    assert report.text("#pin h2") == "Channel 0"
    left, top, scale = report.picture()
    x, y = lay_out(8, 12, 12).corner(0)
    kept = report.page.locator(".outline.kept").bounding_box()
    assert (kept["x"], kept["y"]) == pytest.approx((left + x * scale, top + y * scale), abs=0.02)


@pytest.mark.thorough
def test_two_fingers_zoom_and_move(open_report, run):
    report = open_report(run, **PHONE)
    session = report.page.context.new_cdp_session(report.page)

    def touch(kind, *points):
        places = [{"x": x, "y": y, "id": finger} for finger, (x, y) in enumerate(points)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})

    left, top, scale = report.picture()
    x, y = left + 20 * scale, top + 15 * scale
    touch("touchStart", (x - 30, y))
    touch("touchStart", (x - 30, y), (x + 30, y))
    for step in range(1, 6):
        touch("touchMove", (x - 30 - 6 * step, y + 4 * step), (x + 30 + 6 * step, y + 4 * step))
    touch("touchEnd")
    assert wait_until(lambda: report.picture()[2] == pytest.approx(2 * scale, rel=0.01))
    after = report.picture()
    assert ((x - after[0]) / after[2], (y + 20 - after[1]) / after[2]) == pytest.approx((20, 15), abs=0.5)


@pytest.mark.parametrize("ratio", [1, 2])
@pytest.mark.thorough
def test_each_pixel_is_a_square_of_one_grey(open_report, run, ratio):
    report = open_report(run, device_scale_factor=ratio)
    while report.text("#zoom output") != "400 %":
        report.page.get_by_role("button", name="Zoom out").click()
    report.page.mouse.move(1, 1)
    pixels = pixels_of(run / "a.png/00_features.0.maps.png")
    left, top, scale = report.picture()
    assert scale == 4 / ratio
    shot = screenshot(report.page)
    x, y = round(left * ratio), round(top * ratio)
    seen = shot[y : y + 4 * pixels.shape[0], x : x + 4 * pixels.shape[1]]
    np.testing.assert_array_equal(seen, pixels.repeat(4, 0).repeat(4, 1)[..., None].repeat(3, 2))


# --- Pinning


@pytest.mark.thorough
def test_a_click_pins_the_tile_beside_the_input(open_report, run):
    report = open_report(run)
    tiles = lay_out(8, 12, 12)
    report.point(*middle(tiles, 5))
    report.page.mouse.down()
    report.page.mouse.up()
    panel = report.page.locator("#pin")
    panel.wait_for()
    report.page.mouse.move(1, 1)
    assert report.text("#pin h2") == "Channel 5"
    maps = values_of("a.png", "features.0", (8, 12, 12))
    said = report.numbers("#pin")
    assert [number(said[name][0]) for name in ("minimum", "maximum", "mean")] == pytest.approx(
        measured(maps)[:3, 5], rel=1e-4
    )
    canvas, seen = panel.locator("canvas"), panel.locator("img")
    boxes = canvas.bounding_box(), seen.bounding_box()
    assert (boxes[0]["width"], boxes[0]["height"]) == (boxes[1]["width"], boxes[1]["height"])
    assert boxes[0]["width"] >= 200
    shot = np.asarray(Image.open(BytesIO(canvas.screenshot())).convert("L"))
    x, y = tiles.corner(5)
    block = pixels_of(run / "a.png/00_features.0.maps.png")[y : y + 12, x : x + 12]
    zoom = shot.shape[0] // 12
    np.testing.assert_array_equal(shot, block.repeat(zoom, 0).repeat(zoom, 1))
    colours = np.asarray(Image.open(BytesIO(seen.screenshot())).convert("RGB"))
    np.testing.assert_array_equal(colours[5, 5], input_of("a.png")[0, 0])
    assert panel.locator("img").get_attribute("alt") == "Input of a.png"


@pytest.mark.thorough
def test_neighbours_of_a_pinned_channel_are_pinned_by_buttons_and_keys(open_report, tmp_path):
    root = tmp_path / "run"
    write_run(root, ("a.png",), layers=LAYERS[:1], channels=(6, 2, 7))
    report = open_report(root)
    for key, expected in (("]", 6), ("]", 2), ("]", 7), ("]", 7), ("[", 2)):
        report.press(key)
        assert report.text("#pin h2") == f"Channel {expected}"
    report.page.get_by_role("button", name="Previous channel").click()
    assert report.text("#pin h2") == "Channel 6"
    report.press("Escape")
    assert not report.page.locator("#pin").is_visible()
    assert not report.page.locator(".outline.kept").is_visible()


@pytest.mark.thorough
def test_the_pinned_channel_is_beside_the_grid_on_wide_pages(open_report, run):
    report = open_report(run, viewport={"width": 1500, "height": 800})
    before = report.page.locator(".viewport").bounding_box()
    report.press("]")
    viewport, panel = (report.page.locator(part).bounding_box() for part in (".viewport", "#pin"))
    assert viewport["height"] == before["height"]
    assert viewport["x"] + viewport["width"] <= panel["x"]
    assert panel["x"] + panel["width"] <= 1500
    left, _, scale = report.picture()
    assert viewport["x"] < left
    assert left + pixels_of(run / "a.png/00_features.0.maps.png").shape[1] * scale < viewport["x"] + viewport["width"]
    report.press("c")
    viewport, panel = (report.page.locator(part).first.bounding_box() for part in (".viewport", "#pin"))
    assert viewport["y"] + viewport["height"] <= panel["y"]


@pytest.mark.thorough
def test_the_pinned_channel_stays_visible(open_report, run):
    report = open_report(run)
    report.press("]", "+", "+", "+", *"]]]]]]]")
    assert report.text("#pin h2") == "Channel 7"
    kept, viewport = (report.page.locator(part).bounding_box() for part in (".outline.kept", ".viewport"))
    for start, size in (("x", "width"), ("y", "height")):
        assert viewport[start] - 1 <= kept[start] <= kept[start] + kept[size] <= viewport[start] + viewport[size] + 1


@pytest.mark.thorough
def test_a_position_in_the_channel_is_marked_in_the_input(open_report, run):
    report = open_report(run)
    report.press("]")
    box = report.page.locator("#pin canvas").bounding_box()
    report.page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + box["height"] * 0.2)
    script = """boxes => boxes.map(box => { const {left, top} = getComputedStyle(box, "::after");
        return [parseFloat(left) / box.clientWidth, parseFloat(top) / box.clientHeight]; })"""
    places = report.page.locator("#pin .box").evaluate_all(script)
    assert places == [pytest.approx([0.75, 0.2], abs=0.01)] * 2
    report.page.mouse.move(5, 5)
    assert report.page.locator(".crossed").count() == 0


# --- Keys and filters


@pytest.mark.thorough
def test_arrow_keys_choose_layers_and_images(open_report, run):
    report = open_report(run)
    report.press("ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp", "ArrowRight")
    assert (report.text("#title"), report.text(".pane h3")) == ("01 features.3", "b.png")
    report.press("ArrowLeft", "ArrowLeft", "v")
    assert (report.text("#title"), report.text(".pane h3")) == (FEATURES, "The model, the same for all images")
    report.press("v")
    assert report.text("#title") == "input"


@pytest.mark.thorough
def test_the_focus_is_kept(open_report, run):
    report = open_report(run)
    report.page.locator(".viewport").focus()
    report.press("ArrowDown", "ArrowRight", "c", "c")
    assert report.text("#title") == "01 features.3"
    assert report.page.evaluate("document.activeElement.className") == "viewport"


@pytest.mark.thorough
def test_keys_zoom_move_and_fit(open_report, run):
    report = open_report(run)
    fitted = report.picture()
    report.press("+")
    assert report.picture()[2] > fitted[2]
    report.press("-", "-")
    assert report.picture()[2] < fitted[2]
    report.press("0")
    assert report.picture() == fitted
    report.press("Shift+ArrowRight", "Shift+ArrowUp")
    assert report.picture() == pytest.approx((fitted[0] - 60, fitted[1] + 60, fitted[2]), abs=1)


@pytest.mark.thorough
def test_help_opens_and_closes(open_report, run):
    report = open_report(run)
    report.press("?")
    assert report.page.get_by_role("dialog", name="Keys and gestures").is_visible()
    report.press("ArrowDown")  # belongs to the dialog now
    assert report.text("#title") == FEATURES
    report.press("Escape")
    assert not report.page.locator("#help").is_visible()


@pytest.mark.thorough
def test_a_list_has_its_own_keys(open_report, run):
    report = open_report(run)
    report.page.get_by_role("listbox", name="Images").focus()
    report.press("ArrowDown")
    assert (report.text("#title"), report.text(".pane h3")) == (FEATURES, "b.png")
    active = report.page.get_by_role("listbox", name="Images").get_attribute("aria-activedescendant")
    assert report.page.locator(f"#{active} .name").inner_text() == "b.png"
    report.press("End")
    assert report.text(".pane h3") == "more/c.png"


@pytest.mark.thorough
def test_filters_reduce_the_lists(open_report, run):
    report = open_report(run)
    report.press("/")
    assert report.page.evaluate("document.activeElement.ariaLabel") == "Filter layers"
    report.page.keyboard.type("CONV2D 3")
    assert report.texts("#layers .name") == ["features.3"]
    assert report.text("#layers .count") == "1 of 3"
    report.press("Enter")
    assert report.text("#title") == "01 features.3"
    report.press("ArrowUp", "ArrowDown")
    assert report.text("#title") == "01 features.3"  # the only one left
    report.press("Escape")
    assert len(report.texts("#layers .name")) == 3
    report.press("i")
    report.page.keyboard.type("nothing like it")
    assert report.text("#images .none") == "No image matches."
    report.press("Escape")
    report.press("i")
    report.page.keyboard.type("more/")
    assert report.texts("#images .name") == ["c.png"]


# --- Comparing


@pytest.mark.thorough
def test_two_images_are_shown_side_by_side(open_report, run):
    report = open_report(run)
    report.press("c")
    assert report.texts(".pane h3") == ["a.png", "b.png"]
    assert report.text("#about").startswith("Dead")  # the mean is not the same
    for side, name in enumerate(("a.png", "b.png")):
        maps = values_of(name, "features.0", (8, 12, 12))
        finite = maps[np.isfinite(maps)]
        assert report.texts(".pane .range")[side] == f"{finite.min():.4g} to {finite.max():.4g}"
    report.page.get_by_role("option", name="c.png").click()
    report.settled()
    assert report.texts(".pane h3") == ["a.png", "more/c.png"]
    report.page.get_by_role("button", name="Image A: choose this one").click()
    report.press("ArrowRight")
    assert report.texts(".pane h3") == ["b.png", "more/c.png"]
    report.press("s", "ArrowLeft", "ArrowRight", "s")
    assert report.texts(".pane h3") == ["b.png", "more/c.png"]
    assert [report.page.locator(".pane .side").nth(side).get_attribute("aria-pressed") for side in (0, 1)] == [
        "true",
        "false",
    ]
    assert report.texts("#images .letter") == ["A", "B"]
    report.press("ArrowDown")
    assert {*report.loaded()[-2:]} == {"b.png/01_features.3.maps.png", "more/c.png/01_features.3.maps.png"}
    report.point(*middle(lay_out(12, 6, 6), 7), side=1)
    assert report.texts(".tip caption") == ["Channel 7", "Channel 7"]
    for side, name in enumerate(("b.png", "more/c.png")):
        said = report.page.locator(".tip table").nth(side).locator("tbody td").first.inner_text()
        assert number(said) == pytest.approx(values_of(name, "features.3", (12, 6, 6))[7].min(), rel=1e-4)
    report.press("+")
    places = [report.picture(side) for side in (0, 1)]
    viewports = [report.page.locator(".viewport").nth(side).bounding_box() for side in (0, 1)]
    assert places[0][2] == places[1][2]
    assert places[0][0] - viewports[0]["x"] == pytest.approx(places[1][0] - viewports[1]["x"], abs=1)
    report.press("c")
    assert report.texts(".pane h3") == ["b.png"]


@pytest.mark.thorough
def test_shift_click_compares(open_report, run):
    report = open_report(run)
    report.page.get_by_role("option", name="c.png").click(modifiers=["Shift"])
    report.settled()
    assert report.texts(".pane h3") == ["a.png", "more/c.png"]
    report.press("]", "]")
    said = report.numbers("#pin")
    expected = [measured(values_of(name, "features.0", (8, 12, 12)))[1, 1] for name in ("a.png", "more/c.png")]
    assert [number(text) for text in said["maximum"][:2]] == pytest.approx(expected, rel=1e-4)
    assert report.page.locator("#pin figure").count() == 4


@pytest.mark.thorough
def test_a_layer_that_the_other_image_lacks_is_reported(open_report, tmp_path):
    units = [write_unit(tmp_path, "a.png"), write_unit(tmp_path, "b.png", layers=LAYERS[:1])]
    write_index(tmp_path, units)
    report = open_report(tmp_path)
    report.press("ArrowDown", "c")
    assert report.texts(".message") == ["", "b.png has no picture 01 features.3 in the view maps."]
    report.press("ArrowUp")
    assert not any(report.texts(".message"))


# --- Two views of one image


@pytest.mark.thorough
def test_the_same_channel_is_pinned_in_two_views(open_report, shapes):
    report = open_report(shapes)
    report.press("b")
    report.page.locator(".beside-view:visible").select_option("grads")
    report.settled()
    tiles = lay_out(16, 48, 48)
    report.point(*middle(tiles, 3))
    assert report.texts(".tip caption") == ["Channel 3", "Channel 3"]
    report.press("]")
    assert report.texts("#pin figcaption") == ["channel", "input", "grads, channel"]
    report.page.locator(".beside-view:visible").select_option("inputs")
    report.settled()
    report.point(*middle(tiles, 3))
    assert [tip.is_visible() for tip in report.page.locator(".tip").all()] == [True, False]


# --- Dead channels, and the order of channels


@pytest.mark.thorough
def test_dead_channels_are_named(open_report, run):
    report = open_report(run)
    report.until("document.querySelector('.badge') !== null")
    assert report.texts("#about .dead-channels") == ["Dead in all 3 images\n2\n4"]
    report.page.locator("#about").get_by_role("button", name="Channel 4").click()
    assert report.text("#pin h2") == "Channel 4"
    report.press("ArrowDown")
    report.page.locator("[data-dialog=statistics]").click()
    report.page.locator("#statistics").get_by_role("button", name="Channel 2").click()
    report.settled()
    assert (report.text("#title"), report.text("#pin h2")) == (FEATURES, "Channel 2")
    name, badge = (report.page.locator(f"#layers {part}").first.bounding_box() for part in (".name", ".badge"))
    assert name["y"] + name["height"] <= badge["y"]  # no badge cuts a name


@pytest.mark.thorough
def test_channels_that_are_dead_in_one_image_are_named(open_report, tmp_path):
    maps = values_of("a.png", "0", (40, 5, 5))
    maps[[0, *range(5, 30)]] = 7
    (tmp_path / "a.png").mkdir()
    record = {"unit": "a.png", "source": "", "predictions": [], "notices": []}
    record["pictures"] = [layer_picture(tmp_path / "a.png", maps, 0, "0", "Conv2d")]
    (tmp_path / "a.png/report.js").write_bytes(script("unit", record))
    write_index(tmp_path, [{"unit": "a.png", "href": "a.png/", "predictions": [], "thumbnail": False}])
    report = open_report(tmp_path)
    listed = report.page.locator("#about .dead-channels")
    assert listed.locator("dt").inner_text() == "Dead in this image"
    listed.get_by_role("button", name="10 more").press("Enter")
    assert listed.get_by_role("button").all_inner_texts() == ["0", *map(str, range(5, 30))]
    assert report.page.evaluate("document.activeElement.ariaLabel") == "Channel 20"


@pytest.mark.thorough
@pytest.mark.parametrize("order", ["mean", *thorough("maximum", "deviation", "zeros")])
def test_channels_are_sorted(open_report, tmp_path, order):
    style = Style(labels=True, columns=3)
    write_run(tmp_path, NAMES[:2], layers=[("0", "Conv2d", (8, 12, 12))], style=style)
    report = open_report(tmp_path)
    report.page.locator("#order").select_option(order)
    report.settled()
    numbers = {name: measured(values_of(name, "0", (8, 12, 12))) for name in NAMES[:2]}
    row = ["minimum", "maximum", "mean", "deviation", "zeros"].index(order)
    expected = np.argsort(-numbers["a.png"][row], kind="stable").tolist()
    tiles = lay_out(8, 12, 12, style)
    for position, channel in enumerate(expected):
        report.point(*middle(tiles, position))
        assert report.text(".tip caption") == f"Channel {channel}"
        assert told(report, ".tip") == pytest.approx(numbers["a.png"][:4, channel], rel=1e-4)
    report.page.mouse.move(1, 1)
    pixels = pixels_of(tmp_path / "a.png/00_0.maps.png")
    size = report.page.locator(".viewport > canvas").evaluate("one => [one.height, one.width]")
    assert size == list(pixels.shape)
    report.press("]", "]")
    assert (report.text("#pin h2"), report.text("#pin .where")) == (f"Channel {expected[1]}", "tile 2 of 8")
    seen = np.asarray(Image.open(BytesIO(report.page.locator("#pin canvas").screenshot())).convert("L"))
    x, y = tiles.corner(expected[1])
    zoom = seen.shape[0] // 12
    np.testing.assert_array_equal(seen, pixels[y : y + 12, x : x + 12].repeat(zoom, 0).repeat(zoom, 1))
    report.press("c")
    report.point(*middle(tiles, 0), side=1)
    assert report.texts(".tip caption") == [f"Channel {expected[0]}"] * 2  # of both, the order of the first
    report.until(f"location.hash.includes('order={order}')")


# --- Histograms


@pytest.mark.thorough
def test_histograms_are_sharp(open_report, shapes):
    report = open_report(shapes, device_scale_factor=2)
    report.look_at("histogram")
    record = next(each for each in report_of(shapes / "circle.jpg")["pictures"] if each["view"] == "histogram")
    counts = np.array(record["histogram"]["counts"])
    heights = report.page.locator(".chart .bin").evaluate_all("all => all.map(one => Number(one.getAttribute('height')))")
    assert heights == pytest.approx(np.maximum(1, counts[counts > 0] / counts.max() * max(heights)), rel=1e-6)
    report.page.mouse.move(1, 1)
    paper = np.asarray(Image.open(BytesIO(report.page.locator(".viewport").screenshot())).convert("L")).astype(int)
    across = abs(np.diff(paper, axis=1))
    assert len(np.unique(paper[across.sum(1).argmax()])) < 40  # few greys between a bar and the paper
    labels = report.page.locator(".chart text")
    assert "0 %" in labels.all_text_contents()
    assert not any(path.endswith("histogram.png") for path in report.loaded())


# --- The address


@pytest.mark.thorough
def test_an_address_restores_the_page(open_report, run):
    report = open_report(run)
    start = report.page.url
    report.press("ArrowRight")
    report.until("location.hash.includes('b.png')")
    # At once: changes within 0.3 s are one step back.
    report.page.evaluate("""() => { for (const key of ["ArrowDown", "c", "]"])
        document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true})); }""")
    report.until("location.hash.includes('channel=0')")
    copied = report.page.url.partition("#")[2]
    other = open_report(run, f"#{copied}")
    other.page.wait_for_selector("#pin canvas")
    for shown in (report, other):
        assert shown.texts(".pane h3") == ["b.png", "more/c.png"]
        assert (shown.text("#title"), shown.text("#pin h2")) == ("01 features.3", "Channel 0")
    report.page.go_back()
    report.until("document.querySelector('#title').textContent === '00 features.0'")
    assert report.texts(".pane h3") == ["b.png"]
    report.page.go_back()
    report.until("document.querySelector('.pane h3').textContent === 'a.png'")
    assert report.page.url == start


@pytest.mark.thorough
def test_the_back_button_passes_an_address_typed_by_hand(open_report, run):
    report = open_report(run)
    report.page.evaluate("location.hash = 'image=b.png'")
    report.until("document.querySelector('.pane h3').textContent === 'b.png'")
    report.page.wait_for_timeout(400)  # longer than the page waits before it writes its address
    assert report.page.url.endswith("#image=b.png")
    report.press("ArrowDown")
    report.until("location.hash.includes('features.3')")
    for title, name in ((FEATURES, "b.png"), (FEATURES, "a.png")):
        report.page.go_back()
        report.until(f"document.querySelector('.pane h3').textContent === '{name}'")
        report.settled()
        assert report.text("#title") == title
    assert "#" not in report.page.url


@pytest.mark.thorough
@pytest.mark.parametrize(
    "address",
    [
        "#image=gone.png&with=gone.png&view=__proto__&layer=constructor&channel=7",
        *thorough("#%E0%A4%A&&==&channel=99999999999999999999&view=maps&view=pca&layer=%00%3Cb%3E"),
    ],
)
def test_addresses_of_missing_images_and_layers_are_reported(open_report, run, address):
    report = open_report(run, address)
    assert " has no picture " in report.text(".message")
    assert not report.page.locator("#pin").is_visible()
    report.press("]", "+", "c", "c", "ArrowDown")
    report.look_at("maps")
    assert report.text("#title") == FEATURES
    assert not report.page.locator(".message").is_visible()


# --- What others wrote

HOSTILE = (
    "<img src=x onerror=alert(1)>.png",
    '"><script>alert(1)<',
    "two\nlines.png",
    "javascript:alert(1)",
    "100%25 #1 ?q=1&amp;.png",
    "quotes'\"`\\.png",
    "näme 图片.png",
    "exe\u202egnp.png",
    "broken\udce4.png",
)
SCRIPT = "</script><script>alert(1)</script>"


@pytest.mark.thorough
def test_hostile_names_are_shown_as_text(open_report, tmp_path):
    layers = [(name.replace("/", "_"), f"Conv2d{SCRIPT}", (5, 3, 3)) for name in HOSTILE]
    predictions = (f"{SCRIPT} 98 %",)
    units = [write_unit(tmp_path, name, layers=layers, predictions=predictions, notices=predictions) for name in HOSTILE]
    failures = [{"path": SCRIPT, "message": "<b>", "code": "<i>"}]
    facts = [[name, SCRIPT] for name in HOSTILE]
    statistics = write_statistics(tmp_path, HOSTILE, layers)
    write_index(tmp_path, units, title=SCRIPT, facts=facts, failures=failures, statistics=statistics)
    report = open_report(tmp_path, viewport={"width": 1200, "height": 1400})
    page = report.page
    seen = [name.replace("\n", r"\u000a").replace("\u202e", r"\u202e").replace("\udce4", r"\udce4") for name in HOSTILE]
    assert report.texts("#images .name") == seen
    assert report.texts("#layers .name") == seen
    for step, name in enumerate(seen):
        assert report.text(".pane h3 > :last-child") == name
        assert report.text("#title") == f"{step:02d} {name}"
        assert page.locator(".viewport > img").evaluate("image => image.naturalWidth") > 0
        report.press("]")
        report.press("ArrowRight", "ArrowDown")
    assert page.evaluate("[...document.querySelectorAll('.thumb')].every(image => image.naturalWidth > 0)")
    page.locator("[data-dialog=facts]").click()
    assert SCRIPT in report.text("#facts .facts")
    assert report.text("#facts .failures li b") == SCRIPT
    page.keyboard.press("Escape")
    page.locator("[data-dialog=statistics]").click()
    assert report.texts("#statistics td:first-child button") == seen
    assert page.locator("script").count() == 2
    assert page.locator("dialog b, dialog i").count() == len(failures)
    assert page.locator("[onerror]").count() == 0


# --- Size


@pytest.mark.thorough
def test_a_report_of_200_images_of_53_layers_is_shown(open_report, tmp_path):
    root = tmp_path / "run"
    write_large_run(root, 200, 53)
    report = open_report(root)
    rows = report.page.locator(".row")
    in_view = [f"{name}/input.png" for name in report.texts("#images .name")]
    assert 3 < len(in_view) < 15
    expected = ["image0000.png/report.js", "image0000.png/00_layer0.maps.png", *in_view]
    assert sorted(report.loaded()) == sorted(expected)
    report.page.evaluate("""() => { window.gaps = 0; new MutationObserver(() => {
        const image = document.querySelector(".viewport > img");
        if (!image || image.hidden || !image.complete || !image.naturalWidth) window.gaps += 1;
    }).observe(document.querySelector("#panes"), {childList: true, subtree: true, attributes: true}); }""")
    report.requests.clear()
    for step in range(1, 4):
        report.press("ArrowDown")
        assert report.loaded()[-1] == f"image0000.png/{step:02d}_layer{step}.maps.png"
    assert len(report.loaded()) == 3
    report.requests.clear()
    report.press("ArrowRight")
    assert report.loaded() == ["image0001.png/report.js", "image0001.png/03_layer3.maps.png"]
    report.press("ArrowLeft", "ArrowRight")
    assert not any(path.endswith("report.js") for path in report.loaded()[2:])
    for _ in range(60):
        report.page.keyboard.press("ArrowRight")
    report.until("document.querySelector('.pane h3').textContent === 'image0061.png'")
    for _ in range(30):
        report.page.keyboard.press("ArrowDown")
    report.until("document.querySelector('#title').textContent === '33 layer33'")
    assert rows.count() < 40
    report.page.get_by_role("listbox", name="Images").focus()
    report.press("End")
    assert report.text(".pane h3") == "image0199.png"
    report.until("document.querySelector('.row[aria-selected=true] img').naturalWidth > 0")
    chosen = report.page.locator("#images [aria-selected=true]")
    assert (chosen.get_attribute("aria-posinset"), chosen.get_attribute("aria-setsize")) == ("200", "200")
    assert rows.count() < 40
    assert len([path for path in report.loaded() if path.endswith("input.png")]) < 100
    assert report.page.evaluate("window.gaps") == 0


@pytest.mark.thorough
def test_the_report_grows_with_the_run(open_report, tmp_path):
    units = write_run(tmp_path, NAMES[:1])
    report = open_report(tmp_path)
    assert report.texts("#images .name") == ["a.png"]
    assert report.page.locator("#compare").is_disabled()
    write_index(tmp_path, [*units, write_unit(tmp_path, "b.png")])
    report.page.reload()
    report.settled()
    assert report.texts("#images .name") == ["a.png", "b.png"]
    report.press("ArrowRight")
    assert report.text(".pane h3") == "b.png"


# --- Failures


@pytest.mark.thorough
def test_missing_and_damaged_files_are_reported(open_report, tmp_path):
    write_run(tmp_path, NAMES)
    (tmp_path / "a.png/00_features.0.maps.png").unlink()
    (tmp_path / "b.png/report.js").unlink()
    script = tmp_path / "more/c.png/report.js"
    script.write_bytes(script.read_bytes()[:100])
    report = open_report(tmp_path, errors=["ERR_FILE_NOT_FOUND", "SyntaxError|Unexpected|Invalid"])
    assert report.text(".message").startswith("a.png/00_features.0.maps.png cannot be read.")
    report.press("ArrowDown")
    assert not report.page.locator(".message").is_visible()
    report.press("ArrowRight")
    assert report.text(".message").startswith("b.png/report.js cannot be read.")
    report.press("ArrowRight")
    assert report.text(".message").startswith("more/c.png/report.js is damaged")
    report.press("ArrowLeft", "ArrowLeft")
    assert report.text("#title") == "01 features.3"
    assert not report.page.locator(".message").is_visible()


@pytest.mark.thorough
def test_the_page_works_without_statistics_and_kernels(open_report, tmp_path):
    write_index(tmp_path, write_run(tmp_path, NAMES[:1]), statistics="stats.js", model="_model/")
    report = open_report(tmp_path, errors=["ERR_FILE_NOT_FOUND"])
    assert report.text("#title") == FEATURES
    report.page.get_by_role("button", name="Statistics").click()
    report.until("document.querySelector('#statistics .summary').textContent.startsWith('stats.js cannot be read.')")


@pytest.mark.thorough
def test_the_page_of_a_run_without_images_reports_it(open_report, tmp_path):
    failures = [{"path": "/x/broken.jpg", "message": "cannot be decoded", "code": "E_DECODE"}]
    write_index(tmp_path, [], failures=failures)
    report = open_report(tmp_path)
    assert report.text(".message").startswith("None of 1 image could be shown")
    report.page.evaluate("location.hash = 'image=a.png'")
    report.press("ArrowDown", "c", "+")
    report.page.get_by_role("button", name="Run 1 failed").click()
    assert report.text("#facts .failures") == "/x/broken.jpg\ncannot be decoded E_DECODE"


@pytest.mark.thorough
def test_a_report_of_kernels_alone_is_shown(open_report, tmp_path):
    entry = {"unit": "the model", "href": write_kernels(tmp_path), "predictions": [], "thumbnail": False}
    write_index(tmp_path, [entry], views=["kernels"])
    report = open_report(tmp_path)
    assert (report.texts("#images .name"), report.text("#images .count")) == (["the model"], "1")
    assert report.page.locator("#images img").count() == 0
    assert (report.text("#title"), report.text(".pane h3")) == (FEATURES, "the model")
    assert not report.page.locator("#views").is_visible()
    assert report.page.locator("#compare").is_disabled()
    report.press("c", "ArrowRight", "ArrowDown", "v", "]")
    assert (report.text(".pane h3"), report.texts("#pin figcaption")) == ("the model", ["filter"])
    weights = np.random.default_rng(5).normal(0, 1, (4, 3, 3)).astype(np.float32)
    assert told(report, "#pin") == pytest.approx(measured(weights)[:4, 0], rel=1e-4)
    assert report.loaded() == ["_model/report.js", "_model/00_features.0.kernels.png"]


# --- Around it


def test_facts_of_the_run_and_its_statistics_are_shown(open_report, run):
    report = open_report(run)
    report.page.get_by_role("button", name="Run 1 failed").click()
    facts = report.page.get_by_role("dialog", name="This run").locator("dl > *").all_inner_texts()
    assert facts == ["Model", "tiny", "Weights", "random, seed 0", "Images", "3, and 1 that failed"]
    report.press("Escape")
    report.page.get_by_role("button", name="Statistics").click()
    assert (
        report.text("#statistics .summary")
        == "2 channels in 1 of 3 layers are dead: the same value everywhere, in all 3 images."
    )
    rows = report.page.locator("#statistics tbody tr")
    assert [row.inner_text().split() for row in rows.all()] == [
        ["features.0", "output", "Conv2d", "2", "of", "8", "2", "4"],
        ["features.3", "output", "Conv2d", "0", "of", "12"],
        ["classifier", "output", "Linear", "0", "of", "5"],
    ]
    report.page.get_by_role("button", name="classifier").click()
    report.settled()
    assert report.text("#title") == "02 classifier"
    assert not report.page.locator("#statistics").is_visible()


@pytest.mark.thorough
def test_the_theme_is_light_or_dark(open_report, run):
    def brightness(report):
        return screenshot(report.page, clip={"x": 150, "y": 4, "width": 200, "height": 30}).mean()

    light, dark = open_report(run, **LIGHT), open_report(run, **DARK)
    assert brightness(light) > 200
    assert brightness(dark) < 60
    light.press("t")
    assert brightness(light) < 60
    light.page.reload()  # remembered, where the browser does that for files
    light.settled()
    dark.page.get_by_role("button", name="Light or dark").click()
    assert brightness(dark) > 200


@pytest.mark.thorough
def test_on_a_phone_lists_are_folded(open_report, tmp_path):
    root = tmp_path / "run"
    write_large_run(root, 2, 40)
    report = open_report(root, **{"reduced_motion": "reduce", **DARK, **PHONE})
    assert report.violations() == []
    assert not report.page.locator(".row").first.is_visible()
    assert report.text("#images .current") == "image0000.png"
    report.page.get_by_role("button", name="Layers").tap()
    parts = [report.page.locator(part).bounding_box() for part in (".bar", "#images", "#layers", ".about", ".viewport")]
    for above, below in pairwise(parts):
        assert above["y"] + above["height"] <= below["y"]
    assert parts[-1]["height"] > 100
    report.page.get_by_role("option", name="layer3").tap()
    report.settled()
    assert report.text("#title") == "03 layer3"
    assert not report.page.locator(".row").first.is_visible()
    assert report.page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.thorough
@pytest.mark.parametrize("options", [LIGHT, *thorough({**DARK, **PHONE})], ids=["light", "dark phone"])
def test_the_page_has_no_accessibility_violations(open_report, run, options):
    report = open_report(run, **{"reduced_motion": "reduce", **options})
    report.until("document.querySelector('#statistics td') !== null")
    assert report.violations() == []
    report.press("]")
    assert report.violations() == []
    report.press("o", "c")
    assert report.violations() == []
    report.press("b")
    assert report.violations() == []
    for opener in ("help", "statistics", "facts"):
        report.page.locator(f"[data-dialog={opener}]").click()
        assert report.violations() == []
        report.press("Escape")
    report.press("/")
    report.page.keyboard.type("nothing like it")
    assert report.violations() == []


ACTIVE = """() => { const active = document.activeElement, shown = active.closest("#views label") ?? active;
    const {outlineStyle, outlineWidth} = getComputedStyle(shown), {width, height} = shown.getBoundingClientRect();
    return [(active.ariaLabel ?? shown.innerText).trim().split(/\\s/)[0],
            outlineStyle !== "none" && parseFloat(outlineWidth) >= 2 && width > 9 && height > 9]; }"""


@pytest.mark.thorough
def test_all_controls_are_reached_by_keyboard_in_order(open_report, run):
    report = open_report(run)
    report.press("]")
    order = "Compare Beside Statistics Run Light Help Images Filter Images Layers maps Filter Layers"
    order += " Channel Channel number Zoom Zoom Fit Picture Previous Next"
    reached = []
    for _ in order.split():
        report.page.keyboard.press("Tab")
        reached.append(report.page.evaluate(ACTIVE))
    assert reached == [[name, True] for name in order.split()]
    report.press("Tab", "Enter")  # Unpin: its button is gone
    assert not report.page.locator("#pin").is_visible()
    assert report.page.evaluate(ACTIVE) == ["Picture", True]
    report.press("Shift+Tab", "Shift+Tab", "Enter")
    assert report.page.evaluate(ACTIVE) == ["Zoom", True]
    report.press("c")
    report.page.locator(".viewport").nth(1).focus()
    report.press("c")
    assert report.page.evaluate("document.activeElement === document.querySelector('.viewport')")


@pytest.mark.thorough
def test_views_are_chosen_by_keyboard(open_report, run):
    report = open_report(run)
    report.page.locator("#views :checked").focus()
    report.press("ArrowRight")
    assert report.page.evaluate(ACTIVE) == ["kernels", True]
    assert report.loaded()[-1] == "_model/00_features.0.kernels.png"
    report.press("ArrowLeft", "ArrowLeft")
    assert (report.page.evaluate(ACTIVE), report.text("#title")) == (["input", True], "input")


@pytest.mark.thorough
def test_keys_with_alt_gr_are_accepted(open_report, run):
    """German keyboards have brackets there; with Ctrl or Alt alone keys belong to the browser."""
    report = open_report(run)
    script = """modifierAltGraph => document.body.dispatchEvent(new KeyboardEvent("keydown",
        {key: "]", bubbles: true, cancelable: true, ctrlKey: true, altKey: true, modifierAltGraph}))"""
    assert report.page.evaluate(script, False)
    assert not report.page.locator("#pin").is_visible()
    assert not report.page.evaluate(script, True)
    assert report.text("#pin h2") == "Channel 0"


@pytest.mark.thorough
def test_nothing_moves_with_reduced_motion(open_report, run):
    report = open_report(run)
    script = """[...document.querySelectorAll("*")].some(one => { const style = getComputedStyle(one);
        return [style.transitionDuration, style.animationDuration].join().split(",").some(time => parseFloat(time) > 0)
            || style.scrollBehavior === "smooth"; })"""
    for motion, moves in (("reduce", False), ("no-preference", True)):
        report.page.emulate_media(reduced_motion=motion)
        assert report.page.evaluate(script) is moves


@pytest.mark.thorough
def test_nothing_is_cut_off_on_a_phone(open_report, net_run):
    report = open_report(net_run, **PHONE)
    within = """() => [...document.querySelectorAll("button, input, .row, .viewport, table, .pinned .box, h3, .range")]
        .filter(one => one.checkVisibility() && !one.closest(".tip")).map(one => [one, one.getBoundingClientRect()])
        .filter(([, {left, right}]) => left < 0 || right > innerWidth + .5).map(([one]) => one.outerHTML)"""
    for keys in (["ArrowDown"], ["]"], ["c"], ["Escape", "i"], ["/"]):
        report.press(*keys)
        assert report.page.evaluate(within) == [], keys
        size = "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
        assert report.page.evaluate(size) == [390, 800]
    for dialog in ("statistics", "facts", "help"):
        report.page.locator(f"[data-dialog={dialog}]").tap()
        bounds = report.page.locator(f"#{dialog}").bounding_box()
        assert 0 <= bounds["x"] <= bounds["x"] + bounds["width"] <= 390
        assert bounds["height"] < 800
        report.page.locator(f"#{dialog} [data-close]").tap()


@pytest.mark.thorough
def test_the_page_needs_only_the_run_directory(open_report, run, tmp_path):
    moved = tmp_path / "moved here"
    shutil.copytree(run, moved)
    report = open_report(moved)
    assert report.text("#title") == FEATURES
