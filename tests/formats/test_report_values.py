"""The value under the pointer in the report, and the line on black and white, against the raw values."""

from __future__ import annotations

import http.server
import re
import threading
from functools import partial

import numpy as np
import pytest
from cases import often
from PIL import Image
from report_runs import report_of
from torch import nn

from fmapviz.config import Style
from fmapviz.formats.html.page import pixel_script
from fmapviz.run.loop import visualize

pytest_plugins = ["browser"]  # its fixtures

STYLES = {
    "channel": ({}, "minimum"),
    "layer": ({"norm": "layer"}, "layer"),
    "run": ({"norm": "run"}, "all images of the run"),
    "signed": ({"norm": "signed"}, "ero is in the middle"),
    "fixed": ({"norm": "fixed:-0.2,0.3"}, "-0.2 is black, 0.3 is white"),
    "viridis": ({"colormap": "viridis", "scale": 3, "labels": True}, "in viridis"),
}


class Net(nn.Module):
    """A convolution, whose values may be spoilt, and a head."""

    def __init__(self, spoilt=False):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(6, 4)
        if spoilt:
            self.conv.bias.data[2] = np.nan

    def forward(self, x):
        return self.head(self.conv(x).mean((2, 3)))


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    path = tmp_path_factory.mktemp("in") / "a.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 40, 3), np.uint8)).save(path)
    return path


def draw(net, picture, out, *, types=("Conv2d",), **style):
    visualize(net, picture, out=out, name="r", to=["html", "npz"], types=types, style=Style(**style))
    with np.load(out / "r/a.png/raw.npz") as values:
        return dict(values), report_of(out / "r/a.png")


def value_in(tip):
    """Return the value that a tip shows, and the size of its last digit."""
    shown = re.search(r"Value (?:\N{ALMOST EQUAL TO} |at most |at least )?([-\N{MINUS SIGN}\d.e]+)", tip)[1].replace(
        "\N{MINUS SIGN}", "-"
    )
    return float(shown), 10.0 ** -len(shown.partition(".")[2])


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", often(["channel", "viridis"], of=STYLES))
def test_the_tip_shows_the_value_under_the_pointer(open_report, tmp_path, picture, name):
    style, said = STYLES[name]
    values, record = draw(Net(), picture, tmp_path, **style)
    (grid,) = [each for each in record["pictures"] if each["view"] == "maps"]
    maps, tiles, scale = values["conv"], grid["tiles"], style.get("scale", 1)
    report = open_report(tmp_path / "r")
    assert said in report.text("#scaling")
    for channel, row, column in ((0, 0, 0), (1, 5, 7), (4, 100, 223), (5, 223, 0)):
        across, down = channel % tiles["columns"] * tiles["across"], channel // tiles["columns"] * tiles["down"]
        report.point(tiles["left"] + across + (column + 0.5) * scale, tiles["top"] + down + (row + 0.5) * scale)
        report.until("document.querySelector('.tip .value') !== null")
        tip, true = report.text(".tip .value"), maps[channel, row, column]
        found, digit = value_in(tip)
        span = maps.max() - maps.min() if name in {"layer", "run"} else 2 * abs(maps[channel]).max()
        if "at" in tip:
            assert name == "fixed"
            assert (found, np.sign(true)) in {(-0.2, -1), (0.3, 1)}
        else:
            assert found == pytest.approx(true, abs=float(span) / 510 + digit)


@pytest.mark.thorough
def test_sorted_channels_keep_their_values(open_report, tmp_path, picture):
    values, record = draw(Net(), picture, tmp_path)
    (grid,) = [each for each in record["pictures"] if each["view"] == "maps"]
    report = open_report(tmp_path / "r", "#order=mean")
    report.page.locator("#order").select_option("mean")
    report.settled()
    report.point(grid["tiles"]["left"] + 10.5, grid["tiles"]["top"] + 20.5)
    report.until("document.querySelector('.tip .value') !== null")
    maps = values["conv"]
    first = maps.mean((1, 2)).argmax()
    assert report.text(".tip caption") == f"Channel {first}"
    assert value_in(report.text(".tip .value"))[0] == pytest.approx(
        maps[first, 20, 10], abs=float(np.ptp(maps[first])) / 255
    )


@pytest.mark.thorough
def test_values_of_a_vector_are_exact(open_report, tmp_path, picture):
    values, record = draw(Net(), picture, tmp_path, types=("Linear",))
    (grid,) = [each for each in record["pictures"] if each["view"] == "maps"]
    report = open_report(tmp_path / "r")
    report.point(grid["tiles"]["left"] + 2 * grid["tiles"]["across"] + 2, grid["tiles"]["top"] + 9)
    assert value_in(report.text(".tip .value"))[0] == pytest.approx(values["head"].flat[2], rel=1e-4)


@pytest.mark.thorough
def test_values_that_are_not_finite_are_shown_as_such(open_report, tmp_path, picture):
    _, record = draw(Net(spoilt=True), picture, tmp_path)
    (grid,) = [each for each in record["pictures"] if each["view"] == "maps"]
    report = open_report(tmp_path / "r")
    report.point(grid["tiles"]["left"] + 10, grid["tiles"]["top"] + grid["tiles"]["down"] + 10)
    report.until("document.querySelector('.tip .value') !== null")
    assert report.text(".tip .value") == "Value not finite"


@pytest.mark.thorough
def test_a_single_file_and_a_server_need_no_second_copy(open_report, browser, tmp_path, picture):
    visualize(Net(), picture, out=tmp_path, name="r", to=["html"], types=["Conv2d"], single_file=True)
    report = open_report(tmp_path / "r")
    report.point(30, 30)
    report.until("document.querySelector('.tip .value') !== null")
    assert report.text(".tip .value").startswith("Value \N{ALMOST EQUAL TO}")
    assert not report.loaded()
    visualize(Net(), picture, out=tmp_path, name="s", to=["html"], types=["Conv2d"])
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "s")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page()
        requested = []
        page.on("request", lambda request: requested.append(request.url))
        page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
        page.locator(".viewport > img").wait_for()
        bounds = page.locator(".viewport > img").bounding_box()
        page.mouse.move(bounds["x"] + 0.2 * bounds["width"], bounds["y"] + 0.2 * bounds["height"])
        assert page.locator(".tip .value").inner_text().startswith("Value \N{ALMOST EQUAL TO}")
        page.close()
        server.shutdown()
    assert not [url for url in requested if url.endswith("pixels.js")]


@pytest.mark.parametrize("most", [256, 3])
def test_pixels_grow_by_a_few_per_cent_in_a_script(most):
    noise = np.random.default_rng(1).integers(0, most, 100_000, np.uint8).tobytes()
    assert sum(map(len, pixel_script([("a.png", noise)]))) < 1.02 * len(noise)
