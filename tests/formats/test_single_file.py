"""The report as a single file: its content, and its largest size."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from report_runs import report_of, write_unit
from tiny_runs import AS_IT_IS
from torch import nn

from fmapviz.config import RunConfig
from fmapviz.errors import RefusedError, RequestError
from fmapviz.formats.html.single_file import LARGEST, embed
from fmapviz.run.loop import visualize
from fmapviz.store.verify import verify

pytest_plugins = ["browser"]  # its fixtures


@pytest.fixture(scope="module")
def run(tmp_path_factory, samples):
    """A run of two images as a single file; only read."""
    options = {"views": ["maps", "mean", "histogram", "kernels"], "to": ["html", "stats"], "workers": 1}
    images = [samples / f"shapes/{name}.jpg" for name in ("circle", "ring")]
    return visualize("shapesnet", images, out=tmp_path_factory.mktemp("single"), single_file=True, **options).directory


@pytest.mark.thorough
def test_a_single_file_shows_each_picture_without_other_files(open_report, run, tmp_path):
    shutil.copy(run / "index.html", tmp_path)
    report = open_report(tmp_path)
    for image in ("circle.jpg", "ring.jpg"):
        assert f" - {image} - " in report.page.title()
        for view in report.texts("#views label"):
            report.look_at(view)
            assert not report.page.locator(".message").is_visible()
            if view != "histogram":
                whole = report.page.locator(".viewport > img").evaluate("one => [one.naturalHeight, one.naturalWidth]")
                title = report.text("#title")
                pictures = report_of(run / ("_model" if view == "kernels" else image))["pictures"]
                record = next(each for each in pictures if each["view"] == view and title in {each["title"], each["name"]})
                assert whole == [record["height"], record["width"]]
        report.press("ArrowRight")
    report.look_at("maps")
    report.press("]", "c", "b", "o")
    assert report.page.locator(".thumb").first.evaluate("one => one.naturalWidth") > 0
    report.page.locator("[data-dialog=statistics]").click()
    assert report.text("#statistics .summary").startswith("No channel of 8 layers is dead")
    assert report.violations() == []
    assert report.loaded() == []


def test_a_single_file_loads_nothing_and_names_no_local_path(run, samples):
    page = (run / "index.html").read_text("ascii")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    hashed = "'sha256-[^']+'"
    directives = f"img-src data:; script-src {hashed}; style-src {hashed}; base-uri 'none'; form-action 'none'"
    assert re.fullmatch(f"default-src 'none'; {directives}", policy)
    assert str(samples) not in page
    assert [problem for each in verify(run) for problem in each.problems] == []
    assert json.loads((run / "products.json").read_bytes())["variant"] == "single file"


@pytest.mark.thorough
def test_hostile_names_stay_text(open_report, tmp_path):
    picture = tmp_path / "in" / os.fsdecode(b"<b>'\"&\xff #%25.png")
    picture.parent.mkdir()
    Image.new("RGB", (20, 20)).save(picture, format="PNG")
    options = {"out": tmp_path / "out", "name": "net", "to": "html", "preprocessing": AS_IT_IS, "workers": 1}
    root = visualize(nn.Sequential(nn.Conv2d(3, 4, 3)), [picture], single_file=True, **options)
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(root.directory / "index.html", alone)
    report = open_report(alone)
    assert report.page.locator(".viewport > img").evaluate("one => one.naturalWidth") > 0
    assert report.page.locator("b").count() == 0


def test_the_size_of_a_single_file_is_limited(tmp_path):
    write_unit(tmp_path, "a.png")
    write_unit(tmp_path, "b.png")
    units = {f"{name}/": tmp_path / name for name in ("a.png", "b.png")}
    (tmp_path / "a.png/input.png").write_bytes(bytes(LARGEST * 3 // 4 - 100_000))
    (tmp_path / "b.png/input.png").write_bytes(bytes(100_000))
    with pytest.raises(RefusedError, match="the pictures of 2 images exceed the 18 MB of a single file"):
        embed(units, script="report.js")
    (tmp_path / "b.png/report.js").write_bytes(b"fmapviz.unit({")
    assert {name.partition("/")[0] for name in embed(units, script="report.js")} == {"a.png"}  # what is damaged is left out


def noise(path, seed, side=1100):
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)).save(path, compress_level=1)
    return path


@pytest.mark.thorough
def test_a_single_file_that_is_too_large_is_refused_early(tmp_path):
    images = [noise(tmp_path / f"{number}.png", number) for number in range(6)]
    options = {
        "out": tmp_path / "out",
        "name": "net",
        "to": "html",
        "preprocessing": AS_IT_IS,
        "workers": 1,
        "types": "Identity",
    }
    with pytest.raises(RefusedError, match="the pictures of 2 images exceed the 18 MB of a single file") as refused:
        visualize(nn.Sequential(nn.Identity()), images, single_file=True, **options)
    assert "without single_file=True" in refused.value.hint
    units = list((tmp_path / "out/net").glob("*/unit.json"))
    assert 1 < len(units) < len(images)
    summary = visualize(nn.Sequential(nn.Identity()), images[:3], **options)  # finished images are not drawn again
    assert (summary.exit_code, summary.skipped) == (0, min(3, len(units)))


@pytest.mark.thorough
def test_a_finished_run_converts_to_a_single_file_and_back(tmp_path, samples):
    options = {"out": tmp_path, "name": "net", "to": "html", "layers": "features.7*", "workers": 1}
    page = tmp_path / "net/index.html"
    sizes = []
    for single in (False, True, True, False):
        summary = visualize("shapesnet", [samples / "shapes/star.jpg"], single_file=single, **options)
        sizes.append(page.stat().st_size)
    assert summary.skipped == 1
    assert sizes[0] == sizes[3] < sizes[1] == sizes[2] < LARGEST


@pytest.mark.parametrize(
    ("options", "hint"), [({"to": "png"}, "to='html'"), ({"to": "html", "out": "s3://bucket/x"}, "beside")]
)
def test_single_file_is_refused_without_its_requirements(options, hint):
    with pytest.raises(RequestError, match="a single file needs") as refused:
        RunConfig("alexnet", Path("a.png"), single_file=True, **options)
    assert hint in refused.value.hint
