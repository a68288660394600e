"""Class activation maps and their sheet in the report, in a browser."""

import json

import pytest

from fmapviz.run.loop import visualize

pytest_plugins = ["browser"]  # its fixtures


@pytest.fixture(scope="module")
def shapes(tmp_path_factory, samples):
    """A real run of two images with several views; only read."""
    images = [samples / f"shapes/{name}.jpg" for name in ("circle", "cross")]
    views = ["maps", "gradcam", "sheet"]
    out = tmp_path_factory.mktemp("shapes")
    return visualize("shapesnet", images, out=out, views=views, to="html", workers=1).directory


@pytest.mark.thorough
def test_a_notice_about_one_picture_is_shown_with_it(open_report, shapes):
    """Some cell of the sheet shows nothing, which concerns no other picture."""
    notice = "cells of the sheet with nothing to see: features.6 for square"
    assert notice in json.loads((shapes / "circle.jpg/unit.json").read_bytes())["notices"]
    report = open_report(shapes)
    for view in ("maps", "gradcam", "input", "sheet"):
        report.look_at(view)
        assert report.text(".remarks") == (notice if view == "sheet" else "")
        assert not report.page.locator(".notices").is_visible()


@pytest.mark.thorough
def test_each_of_two_images_shows_its_own_class(open_report, shapes):
    report = open_report(shapes)
    report.look_at("gradcam")
    assert (report.text("#title"), report.texts(".own")) == ("08 features: circle", [""])
    report.press("c")
    assert report.text("#title") == "08 features.top1"
    assert report.texts("#layers .name") == ["features.top1"]
    assert "circle" not in report.text(".about")
    records = [
        json.loads((shapes / name / "unit.json").read_bytes())["heat_maps"][0] for name in ("circle.jpg", "cross.jpg")
    ]
    for own, spread, record in zip(report.texts(".own"), report.texts(".pane .range"), records, strict=True):
        assert own.split("\n") == [
            "Class",
            f"{record['class_name']} (number {record['class']}), top1, "
            f"probability {100 * record['probability']:.1f} %, logit {record['logit']:.4g}",
        ]
        assert spread == f"{record['min']:.4g} to {record['max']:.4g}"
    report.press("c")
    assert report.text("#title") == "08 features: circle"


@pytest.mark.thorough
def test_the_input_beside_a_heat_map(open_report, shapes):
    report = open_report(shapes)
    report.look_at("gradcam")
    report.press("b")
    assert report.page.locator(".beside-view:visible").input_value() == "input"
    file_name = "one => one.src.split('/').at(-1)"
    assert [image.evaluate(file_name) for image in report.page.locator(".viewport > img").all()] == [
        "08_features.top1.gradcam.png",
        "input.png",
    ]
    report.press("+")
    assert report.picture(0)[1:] == report.picture(1)[1:]
    report.page.locator(".beside-view:visible").select_option("maps")
    report.settled()
    assert report.page.locator(".viewport > img").nth(1).evaluate(file_name) == "00_features.0.conv.maps.png"
    viewports = report.page.locator(".viewport")
    before = [report.picture(side) for side in (0, 1)]
    viewports.nth(1).focus()
    report.press("+")  # a grid and a heat map are not moved together
    assert report.picture(0) == before[0]
    assert report.picture(1)[2] > before[1][2]
    report.press("ArrowRight")
    assert "cross.jpg/00_features.0.conv.maps.png" in report.loaded()
    report.until("location.hash.includes('beside=maps')")
    other = open_report(shapes, f"#{report.page.url.partition('#')[2]}")
    assert other.page.locator(".beside-view:visible").input_value() == "maps"
    report.press("Escape")
    assert viewports.count() == 1
