"""Top images and receptive fields in the report."""

from __future__ import annotations

import os
import shutil
from io import BytesIO

import numpy as np
import pytest
from cases import thorough
from image_files import pixels_of
from PIL import Image
from report_runs import LAYERS, cut_tiles, report_of, write_run
from slider import shown as shown_step
from step_runs import STEPS, write_step_run
from tiny_runs import AS_IT_IS
from torch import nn

from fmapviz.config import Style
from fmapviz.core.drawings import Tiles
from fmapviz.draw.grid import lay_out
from fmapviz.formats.html.page import script
from fmapviz.run.loop import visualize

pytest_plugins = ["browser"]  # its fixtures

SHAPES = ("circle", "cross", "ring", "square", "star", "triangle")
SECOND = "view=maps&layer=01+features.3.conv"  # layer
X = " \N{MULTIPLICATION SIGN} "
PHONE = {"viewport": {"width": 390, "height": 800}, "has_touch": True}


@pytest.fixture(scope="module")
def run(tmp_path_factory, samples):
    """A real run of six images with top images and maps of two layers; only read."""
    images = [samples / f"shapes/{name}.jpg" for name in SHAPES]
    options = {"views": ["top", "maps", "kernels", "inputs"], "layers": ["features.2.conv", "features.3.conv"], "to": "html"}
    return visualize("shapesnet", images, out=tmp_path_factory.mktemp("top"), workers=1, **options).directory


def pages_of(root, layer):
    return [page for page in report_of(root / "_top")["pictures"] if page["layer"]["name"] == layer]


def strip_of(root, layer, channel):
    """Return the page of a channel, its row there, and its images."""
    page = next(page for page in pages_of(root, layer) if channel in page["strips"]["channels"])
    row = page["strips"]["channels"].index(channel)
    return page, row, page["strips"]["images"][row]


def maps_of(root, image, name="features.3.conv"):
    """Return what the report's data say of an image's maps of a layer."""
    pictures = report_of(root / image)["pictures"]
    return next(each for each in pictures if each["view"] == "maps" and each["layer"]["name"] == name)


def change_top(root, change):
    """Change the data of the top images."""
    record = report_of(root / "_top")
    change(record)
    (root / "_top/report.js").write_bytes(script("unit", record))


def strip_shown(report):
    report.until("document.querySelector('.strip:not(.loading):not([hidden])') !== null")
    return report.page.locator(".strip button")


def frames(report, name, selector="#pin [data-input]"):
    """Return the visible frames of a kind over inputs, in pixels of the input: left, top, right, bottom."""
    measure = f"""boxes => boxes.map(box => {{
        const frame = box.querySelector(".{name}");
        if (frame.hidden) return null;
        const [outer, inner] = [box.querySelector("img").getBoundingClientRect(), frame.getBoundingClientRect()];
        const scale = box.querySelector("img").naturalWidth / outer.width;
        return [inner.left - outer.left, inner.top - outer.top, inner.right - outer.left, inner.bottom - outer.top]
            .map(edge => edge * scale); }})"""
    return report.page.locator(selector).evaluate_all(measure)


def field_at(sees, row, column, side=96):
    """Return the field of a position as the data say, within the picture: left, top, right, bottom."""
    edges = []
    for (start, step, length), position in zip(sees, (row, column), strict=True):
        first = start + step * position
        edges.append((max(first, 0), min(first + length, side)))
    (top, bottom), (left, right) = edges
    return [left, top, right, bottom]


def point_at_position(report, tiles, channel, position, *, size=24, side=0):
    """Move the pointer to a position of a channel's square map in the grid: row, column."""
    x, y = Tiles(**tiles).corner(channel)
    row, column = position
    zoom = tiles["width"] / size
    return report.point(x + (column + 0.5) * zoom, y + (row + 0.5) * zoom, side)


# --- The strip of a pinned channel


@pytest.mark.thorough
def test_a_pinned_channel_shows_its_top_images(open_report, run):
    report = open_report(run, f"#image=star.jpg&{SECOND}", device_scale_factor=1)
    assert not any("_top" in path for path in report.loaded())  # before it is needed
    report.press("]", "]", "]")
    buttons = strip_shown(report)
    page, row, images = strip_of(run, "features.3.conv", 2)
    assert [path for path in report.loaded() if "_top" in path] == ["_top/report.js", f"_top/{page['href']}"]
    assert report.texts(".strip .rank") == [str(rank + 1) for rank in range(len(images))]
    assert [float(text) for text in report.texts(".strip .value")] == pytest.approx(
        [each["value"] for each in images], rel=1e-4
    )
    assert report.texts(".strip .name") == [each["name"].rpartition("/")[2] for each in images]
    assert report.text(".strip header p") == "the images with the largest value, 6 of 6"
    tiles = cut_tiles(pixels_of(run / "_top" / page["href"]), page["tiles"])[row * page["tiles"]["columns"] :]
    for canvas, tile in zip(buttons.locator("canvas").all(), tiles, strict=False):
        shown = np.asarray(Image.open(BytesIO(canvas.screenshot())).convert("RGB"))
        np.testing.assert_array_equal(shown, tile)
    assert report.violations() == []


@pytest.mark.thorough
def test_a_tile_opens_its_image_at_the_layer(open_report, run):
    report = open_report(run, f"#image=star.jpg&{SECOND}&channel=2")
    buttons = strip_shown(report)
    _, _, images = strip_of(run, "features.3.conv", 2)
    rank, entry = next((rank, each) for rank, each in enumerate(images) if each["href"] != "star.jpg/")
    buttons.nth(rank).click()
    report.settled()
    assert report.text(".pane h3") == entry["name"]
    assert (report.text("#title"), report.text("#pin h2")) == ("01 features.3.conv", "Channel 2")
    assert frames(report, "best") == [pytest.approx(entry["box"], abs=0.02)]
    assert report.texts("#pin figcaption") == ["channel", f"input, top image {rank + 1}"]
    current = buttons.evaluate_all("all => all.map(one => one.hasAttribute('aria-current'))")
    assert current == [at == rank for at in range(len(images))]
    report.until(f"location.hash.includes('image={entry['name']}')")
    report.page.go_back()
    report.until("document.querySelector('.pane h3').textContent === 'star.jpg'")
    report.settled()
    assert report.text("#pin h2") == "Channel 2"
    last = buttons.nth(len(images) - 1)
    last.focus()
    assert report.text(".strip header p").startswith(f"{len(images)} · {images[-1]['name']} · ")
    report.press("Enter")
    assert report.text(".pane h3") == images[-1]["name"]
    assert last.evaluate("one => one === document.activeElement")  # it is not drawn again


@pytest.mark.thorough
def test_neighbours_of_the_channel_have_their_own_strips(open_report, run):
    report = open_report(run, f"#{SECOND}&channel=31")
    strip_shown(report)
    for channel in (31, 32):  # on two pages
        _, _, images = strip_of(run, "features.3.conv", channel)
        first = images[0]["name"]
        report.until(f"document.querySelector('.strip .name').textContent === '{first}'")
        values = [float(text) for text in report.texts(".strip .value")]
        assert values == pytest.approx([each["value"] for each in images], rel=1e-4)
        report.press("]")
        strip_shown(report)
    report.press("Escape")
    assert not report.page.locator(".strip").is_visible()


@pytest.mark.thorough
def test_only_outputs_of_layers_have_top_images(open_report, run):
    report = open_report(run, f"#{SECOND}&channel=2")
    strip_shown(report)
    report.look_at("inputs")
    assert report.page.locator("#pin canvas").first.is_visible()
    assert not report.page.locator(".strip").is_visible()
    report.look_at("kernels")
    if report.page.locator("#pin h2").is_visible():
        buttons = strip_shown(report)
        buttons.last.click()
        report.settled()
        assert report.page.locator("#views :checked").input_value() == "maps"


@pytest.mark.thorough
def test_a_note_of_a_top_image_is_shown(open_report, run, tmp_path):
    root = shutil.copytree(run, tmp_path / "run")
    hostile = "<img src=x onerror=alert(1)>\u202egnp.png"
    _, _, images = strip_of(run, "features.3.conv", 2)

    def change(record):
        page = next(each for each in record["pictures"] if each["layer"]["name"] == "features.3.conv")
        strips = page["strips"]
        strips["images"][2][0] |= {"note": "1.234 when drawn again"}
        strips["images"][2][1] |= {"box": None, "note": f"{hostile} cannot be decoded"}
        strips["images"][2][2] |= {"href": "gone.png/", "name": f"far/{hostile}"}
        strips["images"][3], strips["remarks"][3] = [], "constant in 6 images"
        strips["images"][4], strips["remarks"][4] = [], "0 of 6, 6 without a finite value"

    change_top(root, change)
    report = open_report(root, f"#image={images[1]['name']}&{SECOND}&channel=2")
    buttons = strip_shown(report)
    assert report.texts(".strip .noted") == ["!", "!"]
    buttons.nth(0).hover()
    value = np.float32(images[0]["value"])
    name, number, note = report.text(".strip header p").split(" · ")[1:]
    assert (name, np.float32(number), note) == (images[0]["name"], value, "1.234 when drawn again")
    assert frames(report, "best") == [None]  # it could not be drawn again
    seen = hostile.replace("\u202e", r"\u202e")
    assert report.texts(".strip .name > :last-child")[2] == seen
    buttons.nth(2).hover()
    assert report.text(".strip header p").endswith("not in this report")
    assert buttons.nth(2).get_attribute("aria-disabled") == "true"
    buttons.nth(2).click(force=True)
    report.until("document.querySelector('#spoken').textContent.endsWith('is not in this report.')")
    assert report.text(".pane h3") == images[1]["name"]
    for remark in ("constant in 6 images", "0 of 6, 6 without a finite value"):
        report.press("]")
        report.until(f"document.querySelector('.strip p').textContent === 'None: {remark}'")
        assert buttons.count() == 0
    assert report.page.locator("[onerror]").count() == 0


@pytest.mark.thorough
def test_a_layer_that_was_not_ranked_has_no_strip(open_report, run, tmp_path):
    root = shutil.copytree(run, tmp_path / "run")
    change_top(root, lambda record: record.update(pictures=record["pictures"][:1]))
    report = open_report(root, f"#{SECOND}&channel=2")
    report.until("document.querySelector('.strip:not(.loading)') !== null")
    assert report.page.locator("#pin canvas").first.is_visible()
    assert not report.page.locator(".strip").is_visible()
    report.press("ArrowUp")
    assert strip_shown(report).count() == len(SHAPES)


@pytest.mark.thorough
def test_missing_top_images_are_reported(open_report, run, tmp_path):
    root = shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(root / "_top")
    report = open_report(root, f"#{SECOND}&channel=2", errors=["ERR_FILE_NOT_FOUND"])
    strip_shown(report)
    assert report.text(".strip header p").startswith("_top/report.js cannot be read.")
    report.look_at("top")
    assert report.text(".message").startswith("_top/report.js cannot be read.")
    report.look_at("maps")
    assert report.text("#title") == "01 features.3.conv"


@pytest.mark.thorough
def test_hostile_names_are_shown_as_text(open_report, tmp_path):
    names = [os.fsdecode(b"<b>'\"&\xff #%25.png"), "javascript:alert(1).png"]
    for seed, name in enumerate(names):
        (tmp_path / "in").mkdir(exist_ok=True)
        noise = np.random.default_rng(seed).integers(0, 256, (20, 20, 3), np.uint8)
        Image.fromarray(noise).save(tmp_path / "in" / name, format="PNG")
    options = {
        "out": tmp_path / "out",
        "name": "net",
        "to": "html",
        "preprocessing": AS_IT_IS,
        "workers": 1,
        "views": ["top", "maps"],
    }
    root = visualize(nn.Sequential(nn.Conv2d(3, 4, 3)), [tmp_path / "in"], **options).directory
    report = open_report(root, "#channel=1")
    buttons = strip_shown(report)
    assert buttons.count() == 2
    for number in range(2):
        buttons.nth(number).click()
        report.settled()
        assert report.text(".pane h3 > :last-child") == report.texts(".strip .name > :last-child")[number]
    assert report.page.locator("#pin b").count() == 0


# --- The pages of top images


@pytest.mark.thorough
def test_pages_of_top_images_are_a_view(open_report, run):
    report = open_report(run)
    assert report.text("#images .count") == str(len(SHAPES))
    assert report.texts("#views label") == ["input", "top images", "maps", "kernels", "inputs"]
    report.press("ArrowDown", "]")
    report.look_at("top")
    assert report.texts("#layers .name") == ["features.2.conv", "features.3.conv, page 1", "features.3.conv, page 2"]
    assert report.texts("#layers .note") == ["Conv2d · channels 0 to 31"] * 2 + ["Conv2d · channels 32 to 47"]
    assert (report.text("#title"), report.text(".pane h3")) == ("01 features.3.conv, page 1", "All images of the run")
    assert not report.page.locator("#order").is_visible()
    report.press("ArrowDown")
    assert report.loaded()[-1] == "_top/01_features.3.conv.top.2.png"
    report.until("location.hash.includes('page+2')")
    other = open_report(run, f"#{report.page.url.partition('#')[2]}")
    assert other.text("#title") == "01 features.3.conv, page 2"
    left, _, scale = report.picture()
    report.press("+")
    assert report.picture()[2] > scale
    report.press("0")
    assert report.picture()[::2] == (left, scale)
    assert report.violations() == []
    report.look_at("maps")
    assert report.text("#title") == "01 features.3.conv"


@pytest.mark.thorough
def test_a_view_may_be_chosen_while_another_loads(open_report, run):
    report = open_report(run)
    report.page.evaluate("""() => { for (const key of ["ArrowRight", "]", "v", "v", "v", "v"])
        document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true})); }""")
    report.settled()
    assert (report.text("#title"), report.text(".pane h3")) == ("00 features.2.conv", "All images of the run")
    assert report.loaded().count("_top/report.js") == 1


@pytest.mark.thorough
def test_a_tile_of_a_page_names_and_opens_its_image(open_report, run):
    report = open_report(run, "#view=top&layer=01+features.3.conv%2C+page+2&channel=34")
    page, row, images = strip_of(run, "features.3.conv", 34)
    tiles = Tiles(**page["tiles"])
    left, top, scale = report.picture()
    x, y = tiles.corner(row * tiles.columns)
    kept = report.page.locator(".outline.kept").bounding_box()  # the row of the pinned channel
    assert (kept["x"], kept["y"]) == pytest.approx((left + x * scale, top + y * scale), abs=0.05)
    x, y = tiles.corner(row * tiles.columns + 1)
    report.point(x + 40, y + 40)
    heading, name, value = report.text(".tip").split("\n\n")
    assert (heading, name) == ("Channel 34, image 2", images[1]["name"])
    assert np.float32(value.removeprefix("value ")) == np.float32(images[1]["value"])
    report.page.mouse.click(*report.point(x + 40, y + 40))
    report.until(f"document.querySelector('.pane h3').textContent === '{images[1]['name']}'")
    report.settled()
    assert (report.text("#title"), report.text("#pin h2")) == ("01 features.3.conv", "Channel 34")
    strip_shown(report)
    assert frames(report, "best") == [pytest.approx(images[1]["box"], abs=0.02)]


@pytest.mark.thorough
def test_a_run_of_top_images_alone_is_shown(open_report, tmp_path, samples):
    images = [samples / f"shapes/{name}.jpg" for name in SHAPES[:2]]
    options = {"views": ["top"], "layers": "features.2.conv", "to": "html", "workers": 1}
    report = open_report(visualize("shapesnet", images, out=tmp_path, **options).directory)
    assert (report.text("#title"), report.text(".pane h3")) == ("00 features.2.conv", "All images of the run")
    page, row, entries = strip_of(report.root, "features.2.conv", 1)
    x, y = Tiles(**page["tiles"]).corner(row * page["tiles"]["columns"] + 1)
    report.page.mouse.click(*report.point(x + 40, y + 40))
    report.until("document.querySelectorAll('.pane').length === 2")
    report.settled()
    script = "viewports => [viewports[1].querySelector('img').naturalWidth, viewports[1].querySelector('.best').hidden]"
    assert report.page.locator(".viewport").evaluate_all(script) == [96, False]
    assert frames(report, "best", ".pane:nth-child(2) .viewport") == [pytest.approx(entries[1]["box"], abs=0.05)]


@pytest.mark.thorough
def test_a_run_without_top_images_shows_none(open_report, tmp_path):
    write_run(tmp_path, ("a.png",))
    report = open_report(tmp_path)
    assert report.texts("#views label") == ["input", "maps"]
    report.press("]")
    assert not report.page.locator(".strip").is_visible()
    assert report.texts("#pin figcaption") == ["channel", "input"]
    assert "Receptive field" not in report.text("#about")
    report.point(*[edge + 3 for edge in lay_out(8, 12, 12).corner(0)])
    assert report.page.locator(".tip .sees").count() == 0
    assert report.page.locator("#pin [data-channel][tabindex]").count() == 0
    report.page.evaluate("location.hash = 'view=top'")
    report.until("document.querySelector('#title').textContent === 'input'")


@pytest.mark.thorough
def test_a_single_file_holds_the_top_images(open_report, tmp_path, samples):
    images = [samples / f"shapes/{name}.jpg" for name in SHAPES[:3]]
    options = {"views": ["top", "maps"], "layers": "features.2.conv", "to": "html", "workers": 1}
    root = visualize("shapesnet", images, out=tmp_path / "out", single_file=True, **options).directory
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(root / "index.html", alone)
    report = open_report(alone, "#channel=7")
    buttons = strip_shown(report)
    _, _, entries = strip_of(root, "features.2.conv", 7)
    for number, entry in enumerate(entries):
        buttons.nth(number).click()
        report.settled()
        assert report.text(".pane h3") == entry["name"]
        assert frames(report, "best") == [pytest.approx(entry["box"], abs=0.02)]
    colours = buttons.first.locator("canvas").evaluate(
        "one => new Set(one.getContext('2d').getImageData(0, 0, 96, 96).data).size"
    )
    assert colours > 10
    report.look_at("top")
    assert report.page.locator(".viewport > img").evaluate("one => one.naturalWidth") > 500
    assert report.loaded() == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options", [{"color_scheme": "light"}, *thorough({"color_scheme": "dark", **PHONE})], ids=["light", "phone"]
)
def test_the_page_has_no_accessibility_violations(open_report, run, options):
    report = open_report(run, f"#{SECOND}&channel=2", **{"reduced_motion": "reduce", **options})
    strip_shown(report)
    assert report.violations() == []
    report.press("c")
    assert report.violations() == []
    assert report.page.evaluate("document.documentElement.scrollWidth") == report.page.viewport_size["width"]


# --- Receptive fields


@pytest.mark.thorough
def test_a_layer_shows_the_size_of_its_receptive_field(open_report, run):
    report = open_report(run)
    for size, step in ((11, 4), (19, 4)):
        facts = report.page.locator("#about").inner_text().split("\n")
        assert facts[facts.index("Receptive field") + 1] == f"{size}{X}{size} pixels, stride {step}"
        report.press("ArrowDown")
    report.press("c")
    assert "Receptive field" in report.text("#about")  # true of both images


@pytest.mark.thorough
@pytest.mark.parametrize(("row", "column"), [(10, 14), *thorough((0, 0), (23, 5), (7, 23))])
def test_the_receptive_field_of_a_position_is_framed_in_the_input(open_report, run, row, column):
    report = open_report(run, f"#image=star.jpg&{SECOND}&channel=2")
    strip_shown(report)
    picture = maps_of(run, "star.jpg")
    point_at_position(report, picture["tiles"], 9, (row, column))
    expected = field_at(picture["layer"]["sees"], row, column)
    assert frames(report, "seen") == [pytest.approx(expected, abs=0.02)]
    left, top, right, bottom = expected
    words = f"receptive field 19{X}19 pixels"
    if (right - left, bottom - top) != (19, 19):
        words += f", {bottom - top}{X}{right - left} in the picture"
    assert report.text(".tip .sees") == f"Row {row}, column {column}: {words}"
    report.until(f"document.querySelector('#spoken').textContent.endsWith(', {words}')")
    report.page.mouse.move(1, 1)
    assert frames(report, "seen") == [None]
    box = report.page.locator("#pin canvas").first.bounding_box()
    report.page.mouse.move(box["x"] + (column + 0.5) * box["width"] / 24, box["y"] + (row + 0.5) * box["height"] / 24)
    assert frames(report, "seen") == [pytest.approx(expected, abs=0.02)]
    at, sees = report.texts("#pin figcaption")
    assert at.startswith(f"row {row}, column {column}")
    assert sees == f"receptive field 19{X}19 pixels"
    report.page.mouse.move(1, 1)
    assert report.texts("#pin figcaption")[0] == "channel"


@pytest.mark.thorough
def test_the_keyboard_moves_through_positions(open_report, run):
    report = open_report(run, f"#image=star.jpg&{SECOND}&channel=2")
    strip_shown(report)
    sees = maps_of(run, "star.jpg")["layer"]["sees"]
    report.press("Tab")  # what follows is keyboard focus
    report.page.locator("#pin [data-channel]").focus()
    assert frames(report, "seen") == [pytest.approx(field_at(sees, 12, 12), abs=0.02)]
    report.press("ArrowUp", "ArrowUp", "ArrowRight")
    assert frames(report, "seen") == [pytest.approx(field_at(sees, 10, 13), abs=0.02)]
    assert report.text(".pane h3") == "star.jpg"  # the keys of the page do not act
    spoken = f"/^row 10, column 13: (value .*, )?receptive field 19{X}19 pixels$/"
    report.until(f"document.querySelector('#spoken').textContent.match({spoken})")
    report.press(*["ArrowLeft"] * 15)
    assert frames(report, "seen") == [pytest.approx(field_at(sees, 10, 0), abs=0.02)]
    report.press("]")
    assert report.text("#pin h2") == "Channel 3"
    assert report.page.evaluate("document.activeElement.dataset.channel") == "0"
    report.page.locator("#unpin").focus()
    assert frames(report, "seen") == [None]


@pytest.mark.thorough
def test_only_the_image_under_the_pointer_is_framed(open_report, run):
    report = open_report(run, f"#image=star.jpg&with=ring.jpg&{SECOND}&channel=2")
    strip_shown(report)
    best = [
        next(each["box"] for each in strip_of(run, "features.3.conv", 2)[2] if each["href"] == f"{name}.jpg/")
        for name in ("star", "ring")
    ]
    assert frames(report, "best") == [pytest.approx(box, abs=0.05) for box in best]
    picture = maps_of(run, "ring.jpg")
    point_at_position(report, picture["tiles"], 4, (3, 20), side=1)
    expected = field_at(picture["layer"]["sees"], 3, 20)
    assert frames(report, "seen") == [None, pytest.approx(expected, abs=0.05)]
    assert [report.page.locator(".tip").nth(side).locator(".sees").count() for side in (0, 1)] == [0, 1]


@pytest.mark.thorough
def test_the_receptive_field_is_framed_in_the_input_beside_a_grid(open_report, run):
    report = open_report(run, f"#image=star.jpg&{SECOND}&beside=input")
    picture = maps_of(run, "star.jpg")
    point_at_position(report, picture["tiles"], 4, (6, 20))
    beside = frames(report, "seen", ".viewport")[1]
    assert beside == pytest.approx(field_at(picture["layer"]["sees"], 6, 20), abs=0.05)


def lists(*intervals):
    """Return first and last pixels of intervals of first pixels and lengths."""
    return [[first for first, _ in intervals], [first + length - 1 for first, length in intervals]]


PAIRS = [0, 2, 2]
ALL = lists((-5, 35))
UNEQUAL = lists(*[(2 * at, 3 + at % 2) for at in range(12)])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("shape", "sees", "expected", "said"),
    [
        ((8, 12, 12), [ALL, ALL], [0, 0, 24, 24], ": the whole picture"),
        ((8, 12, 12), [[-40, 2, 3], PAIRS], None, ": padding only"),
        *thorough(
            ((8, 12, 12), [UNEQUAL, PAIRS], [6, 10, 8, 14], f" 4{X}2 pixels"),
            ((12, 12, 8), [PAIRS, PAIRS], [6, 10, 8, 12], f" 2{X}2 pixels"),
        ),
    ],
    ids=["whole picture", "padding", "unequal", "channels last"],
)
def test_irregular_and_whole_fields_are_described(open_report, tmp_path, shape, sees, expected, said):  # noqa: PLR0917  a table
    write_run(tmp_path, ("a.png",), layers=LAYERS[:1], style=Style(scale=2))
    record = report_of(tmp_path / "a.png")
    record["pictures"][1]["layer"] |= {"sees": sees, "shape": shape}
    (tmp_path / "a.png/report.js").write_bytes(script("unit", record))
    report = open_report(tmp_path, "#channel=0")
    report.page.wait_for_selector("#pin canvas")
    point_at_position(report, record["pictures"][1]["tiles"], 0, (5, 3), size=12)
    assert report.text(".tip .sees") == f"Row 5, column 3: receptive field{said}"
    assert frames(report, "seen") == [expected and pytest.approx(expected, abs=0.02)]


@pytest.mark.thorough
def test_a_top_image_opens_at_its_step(open_report, tmp_path):
    run = write_step_run(tmp_path, steps=STEPS[:3], views=["maps", "top"])
    strips = next(each["strips"] for each in report_of(run / "_top")["pictures"] if each["layer"]["name"] == "relu")
    channel, entry = next(
        (channel, row[0])
        for channel, row in zip(strips["channels"], strips["images"], strict=True)
        if row and row[0]["href"] == "cat.png/step_000000/"
    )
    report = open_report(run, f"#image=plain.png&view=maps&layer=01+relu&channel={channel}")
    best = report.page.locator(".strip button").first
    best.hover()
    assert report.text(".strip header p").startswith("1 · cat.png, step 0 · ")
    best.click()
    report.until("document.querySelector('#step-shown').textContent === 'step 0 (1 of 3)'")
    report.settled()
    assert shown_step(report)[1] == ["cat.png/step_000000/01_relu.maps.png"]
    assert (best.get_attribute("aria-current"), entry["name"]) == ("true", "cat.png/step_000000")
