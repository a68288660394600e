"""Two pictures over each other, with a divider, in a browser."""

from io import BytesIO

import numpy as np
import pytest
from cases import thorough
from image_files import pixels_of
from PIL import Image
from report_runs import LAYERS, values_of, write_index, write_run, write_unit

from fmapviz.draw.grid import lay_out
from fmapviz.run.loop import visualize

pytest_plugins = ["browser"]  # its fixtures

DARK, LIGHT = {"color_scheme": "dark"}, {"color_scheme": "light"}
PHONE = {"viewport": {"width": 390, "height": 800}, "has_touch": True}
TILES = lay_out(8, 12, 12)
PICTURES = [f"{name}.png/00_features.0.maps.png" for name in "ab"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two images of three layers; only read."""
    root = tmp_path_factory.mktemp("swipe") / "tiny"
    write_run(root, ("a.png", "b.png"))
    return root


def middle(tiles, index):
    x, y = tiles.corner(index)
    return x + tiles.width / 2, y + tiles.height / 2


def split(report):
    """Return the position of the divider on the page, in pixels, and in per cent as it is spoken."""
    box = report.page.locator("#divider").bounding_box()
    return box["x"] + box["width"] / 2, report.page.locator("#divider").get_attribute("aria-valuetext")


def box(report, side):
    return report.page.locator(".viewport").nth(side).locator("> img, > canvas").bounding_box()


def assert_swiped(report, run, names=PICTURES, *, away=24):
    """Compare each pixel of the two pictures with the screen: left of the divider A, right of it B, not near its handle."""
    one, other = (pixels_of(run / name) for name in names)
    one = one[: other.shape[0], : other.shape[1]]  # without its caption
    left, top, scale = report.picture()
    assert report.picture(1) == (left, top, scale)
    divider, _ = split(report)
    shot = np.asarray(Image.open(BytesIO(report.page.screenshot())).convert("RGB"))
    seen = [0, 0]
    for row, column in np.ndindex(one.shape[:2]):
        x, y = left + (column + 0.5) * scale, top + (row + 0.5) * scale
        if abs(x - divider) > away:
            side = int(x > divider)
            seen[side] += 1
            expected = np.broadcast_to((one, other)[side][row, column], 3)
            assert shot[int(y), int(x)].tolist() == expected.tolist(), (row, column)
    return seen


@pytest.mark.thorough
def test_the_divider_separates_the_two_pictures(open_report, run):
    report = open_report(run)
    button = report.page.locator("#over")
    assert button.is_disabled()
    report.press("w")  # there is one picture only
    assert not report.page.locator("#divider").is_visible()
    report.press("c", "w")
    assert (button.get_attribute("aria-pressed"), split(report)[1]) == ("true", "50 %")
    assert report.texts(".pane h3") == ["a.png", "b.png"]
    viewports = [report.page.locator(".viewport").nth(side).bounding_box() for side in (0, 1)]
    assert viewports[0] == viewports[1]
    assert viewports[0]["width"] == report.page.locator("#panes").bounding_box()["width"]
    report.page.mouse.move(1, 1)
    assert min(assert_swiped(report, run)) > 500
    button.click()
    assert not report.page.locator("#divider").is_visible()
    viewports = [report.page.locator(".viewport").nth(side).bounding_box() for side in (0, 1)]
    assert viewports[0]["x"] + viewports[0]["width"] <= viewports[1]["x"]


@pytest.mark.thorough
def test_the_divider_is_dragged(open_report, run):
    report = open_report(run)
    report.press("c", "w")
    x, _ = split(report)
    panes = report.page.locator("#panes").bounding_box()
    y = panes["y"] + 100
    report.page.mouse.move(x + 3, y)  # not at its middle
    report.page.mouse.down()
    report.page.mouse.move(x + 103, y + 20)
    assert split(report)[0] == pytest.approx(x + 100, abs=0.5)
    assert assert_swiped(report, run)[0] > assert_swiped(report, run)[1]
    report.page.mouse.move(panes["x"] - 200, y)
    assert split(report) == (panes["x"], "0 %")
    report.page.mouse.move(panes["x"] + panes["width"] + 200, y)
    assert split(report)[1] == "100 %"
    report.page.mouse.move(x + 103, y)
    report.page.mouse.up()
    report.page.mouse.move(x + 200, y)
    assert split(report)[0] == pytest.approx(x + 100, abs=0.5)
    assert report.picture() == report.picture(1)  # the pictures were not dragged


@pytest.mark.thorough
def test_keys_move_the_divider(open_report, run):
    report = open_report(run)
    report.press("c", "w")
    divider = report.page.get_by_role("slider", name="Divider")
    assert report.page.evaluate("document.activeElement.id") == "divider"  # at once
    layer = report.text("#title")
    for key, share in [
        ("ArrowLeft", 49), ("ArrowDown", 48), ("ArrowRight", 49), ("ArrowUp", 50), ("PageUp", 60), ("PageDown", 50),
        ("Home", 0), ("ArrowLeft", 0), ("End", 100), ("ArrowRight", 100), ("PageDown", 90),
    ]:  # fmt: skip
        report.press(key)
        assert (divider.get_attribute("aria-valuenow"), split(report)[1]) == (str(share), f"{share} %")
    assert (report.text("#title"), report.texts(".pane h3")) == (layer, ["a.png", "b.png"])
    panes = report.page.locator("#panes").bounding_box()
    assert split(report)[0] == pytest.approx(panes["x"] + 0.9 * panes["width"], abs=0.5)
    before = report.picture()
    report.press("+", "Shift+ArrowRight")
    assert report.picture() == report.picture(1) != before
    report.press("Escape")
    assert not divider.is_visible()
    assert report.texts(".pane h3") == ["a.png", "b.png"]


@pytest.mark.thorough
def test_both_pictures_are_zoomed_and_moved_together(open_report, run):
    report = open_report(run)
    report.press("c", "w")
    divider, _ = split(report)
    panes = report.page.locator("#panes").bounding_box()
    y = panes["y"] + panes["height"] / 2 - 60
    for x in (divider - 80, divider + 80, divider):  # over A, B and the divider itself
        before = report.picture()
        report.page.mouse.move(x, y)
        report.page.mouse.wheel(0, -120)
        report.until(f"document.querySelector('.viewport > img').getBoundingClientRect().left !== {before[0]}")
        after = report.picture()
        assert after[2] > before[2]
        assert (x - after[0]) / after[2] == pytest.approx((x - before[0]) / before[2], abs=0.5)
        assert report.picture(1) == after
    for x in (divider - 80, divider + 80):
        before = report.picture()
        report.page.mouse.move(x, y)
        report.page.mouse.down()
        report.page.mouse.move(x + 30, y + 20)
        report.page.mouse.up()
        after = report.picture(1)
        assert (after[0] - before[0], after[1] - before[1]) == pytest.approx((30, 20), abs=1)
        assert report.picture() == after
    report.press("0")
    report.page.mouse.move(1, 1)
    assert_swiped(report, run)


@pytest.mark.thorough
def test_the_tip_is_of_the_side_under_the_pointer(open_report, run):
    report = open_report(run, "#with=b.png&swipe=50")
    report.page.locator("#divider").focus()
    report.press("End", "PageDown")
    left, right = 0, 1
    for channel, share, side in [(5, 99, left), (5, 1, right), (0, 99, left)]:
        report.press("Home", *["PageUp"] * (share // 10))
        report.point(*middle(TILES, channel), side=side)
        shown = [tip.is_visible() for tip in (report.page.locator("#swipe .tip").nth(at) for at in (0, 1))]
        assert shown == [side == left, side == right]
        said = report.page.locator("#swipe .tip").nth(side).locator("tbody td").first.inner_text()
        maps = values_of("ab"[side] + ".png", "features.0", (8, 12, 12))
        assert float(said) == pytest.approx(maps[channel].min(), rel=1e-4)
    report.press("w")
    report.point(*middle(TILES, 5))
    assert report.texts(".viewport .tip caption") == ["Channel 5", "Channel 5"]
    x, y = report.point(*middle(TILES, 2))
    report.page.mouse.click(x, y)
    report.until("!document.querySelector('#pin').hidden")
    report.press("w")
    assert report.text("#pin h2") == "Channel 2"


@pytest.mark.thorough
def test_the_address_restores_the_divider(open_report, run):
    report = open_report(run)
    report.press("c", "w")
    report.until("location.hash.includes('swipe=50')")
    length = report.page.evaluate("history.length")
    report.page.locator("#divider").focus()
    report.press("PageUp", "ArrowRight")
    report.until("location.hash.includes('swipe=61')")
    assert report.page.evaluate("history.length") == length
    other = open_report(run, f"#{report.page.url.partition('#')[2]}")
    assert split(other) == split(report)
    assert_swiped(other, run)
    report.press("w")
    report.until("!location.hash.includes('swipe')")
    report.press("w", "c")
    assert not report.page.locator("#divider").is_visible()
    report.until("!location.hash.includes('swipe')")


@pytest.mark.thorough
@pytest.mark.parametrize("swipe", ["101", *thorough("-5", "NaN", "1e9", "%3Cb%3E", "50%25", "")])
def test_invalid_positions_of_the_divider_are_ignored(open_report, run, swipe):
    report = open_report(run, f"#with=b.png&swipe={swipe}")
    on = swipe == "101"
    assert report.page.locator("#divider").is_visible() == on
    if on:
        assert split(report)[1] == "100 %"
    alone = open_report(run, f"#swipe={swipe}")
    assert not alone.page.locator("#divider").is_visible()


@pytest.mark.thorough
def test_pictures_of_different_sizes_share_one_box(open_report, tmp_path):
    other = ((*LAYERS[0][:2], (15, 12, 12)), *LAYERS[1:])
    units = [write_unit(tmp_path, "a.png"), write_unit(tmp_path, "b.png", layers=other)]
    write_index(tmp_path, units)
    report = open_report(tmp_path, "#with=b.png&swipe=50")
    sizes = [pixels_of(tmp_path / name).shape[1::-1] for name in PICTURES]
    assert sizes[0][0] * sizes[1][1] != sizes[0][1] * sizes[1][0]
    for keys in ((), ("+", "Shift+ArrowDown")):
        report.press(*keys)
        assert [*box(report, 1).values()] == pytest.approx([*box(report, 0).values()], abs=0.6)
    tiles = lay_out(15, 12, 12)
    report.page.locator("#divider").focus()
    report.press("Home", "0")
    bounds, (x, y) = box(report, 1), middle(tiles, 13)
    report.page.mouse.move(bounds["x"] + x * bounds["width"] / sizes[1][0], bounds["y"] + y * bounds["height"] / sizes[1][1])
    assert report.text("#swipe .tip:visible caption") == "Channel 13"
    frame = report.page.locator(".outline.pointed:visible").bounding_box()
    assert frame["height"] / frame["width"] == pytest.approx(
        bounds["height"] / sizes[1][1] / (bounds["width"] / sizes[1][0]), rel=0.01
    )
    report.press("w")
    assert report.picture(1)[2] == pytest.approx(report.picture()[2] * sizes[0][0] / sizes[1][0], rel=0.01)
    assert box(report, 1)["height"] / box(report, 1)["width"] == pytest.approx(sizes[1][1] / sizes[1][0], rel=0.01)


@pytest.mark.thorough
def test_a_heat_map_is_swiped_over_the_input(open_report, tmp_path, samples):
    run = visualize(
        "shapesnet", samples / "shapes/circle.jpg", out=tmp_path, views=["maps", "mean"], to="html", workers=1
    ).directory
    report = open_report(run, "#view=mean")
    report.press("b", "w")
    report.page.mouse.move(1, 1)
    names = [f"circle.jpg/{name}" for name in ("00_features.0.conv.mean.png", "input.png")]
    assert min(assert_swiped(report, run, names)) > 1000
    report.page.locator(".beside-view:visible").select_option("maps")  # another area, in the same box while they are swiped
    report.settled()
    assert [*box(report, 1).values()] == pytest.approx([*box(report, 0).values()], abs=0.6)
    report.until("location.hash.includes('beside=maps') && location.hash.includes('swipe=50')")
    report.press("b")
    assert not report.page.locator("#divider").is_visible()


@pytest.mark.thorough
def test_a_missing_picture_is_reported_on_its_side(open_report, tmp_path):
    units = [write_unit(tmp_path, "a.png"), write_unit(tmp_path, "b.png", layers=LAYERS[:1])]
    write_index(tmp_path, units)
    report = open_report(tmp_path, "#with=b.png&view=maps&layer=01+features.3&swipe=50")
    message = report.page.locator(".message:visible")
    assert message.inner_text() == "b.png has no picture 01 features.3 in the view maps."
    bounds, (divider, _) = message.bounding_box(), split(report)
    assert bounds["x"] >= divider
    report.press("ArrowUp")
    report.page.mouse.move(1, 1)
    assert_swiped(report, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("options", [LIGHT, *thorough({**DARK, **PHONE})], ids=["light", "dark phone"])
def test_the_page_has_no_accessibility_violations(open_report, run, options):
    report = open_report(run, "#with=b.png&swipe=50&channel=2", **{"reduced_motion": "reduce", **options})
    report.page.wait_for_selector("#pin canvas")
    assert report.violations() == []
    assert report.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    report.page.locator("#divider").focus()
    assert report.violations() == []
    report.press("w", "b", "w")
    assert report.violations() == []
