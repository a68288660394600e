"""Notebooks: tables with escaped texts, valid links, and a progress bar in kernels only."""

import base64
import io
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
import torch
from cases import thorough
from image_files import paint
from PIL import Image
from torch import nn

import fmapviz
from fmapviz.core.notebook import make_bar
from fmapviz.core.urls import UrlPath
from fmapviz.events import RunSummary
from fmapviz.types import Failure, Layer

HOSTILE = "<img src=x onerror=alert(1)>\"'&"
NET = nn.Sequential(nn.Conv2d(3, 2, 3))


class Reader(HTMLParser):
    """Collects tags, links and texts."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.links, self.texts = [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name == "href"]
        assert not [name for name, _ in attributes if name.startswith("on")]

    def handle_data(self, data):
        self.texts.append(data)


def summary(**fields):
    plain = {"directory": Path("runs/net"), "found": 1, "done": 1, "skipped": 0, "failed": 0, "pictures": 2, "layers": 1,
             "not_executed": (), "undrawn": {}, "failures": (), "seconds": 1.0}  # fmt: skip
    return RunSummary(**plain | fields)


def rows_of(html):
    cells = re.findall(r"<th[^>]*>(.*?)</th><td[^>]*>(.*?)</td>", html)
    return {label: re.sub("<[^>]*>", "", cell) for label, cell in cells}


def test_a_summary_is_shown_as_a_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paint(tmp_path / "a.png")
    drawn = fmapviz.visualize(NET, ["a.png", "none.png"], out="runs", to=["png", "html"], on_event=bool)
    html = drawn._repr_html_()
    rows = rows_of(html)
    assert (rows["images"], rows["pictures"]) == ("1 done, 1 failed", str(drawn.pictures))
    assert rows["failures"].startswith("no such file: ")
    links = Reader(html).links
    assert links == ["runs/sequential", "runs/sequential/index.html"]
    assert all((tmp_path / link).exists() for link in links)
    assert rows["report"].endswith("index.html")
    again = rows_of(fmapviz.visualize(NET, "a.png", out="runs", to=["png", "html"])._repr_html_())
    assert again["images"] == "1 skipped"
    assert "failures" not in again


def images_of(html):
    sources = re.findall('<img src="data:image/png;base64,([^"]+)"', html)
    return [Image.open(io.BytesIO(base64.b64decode(source))) for source in sources]


@pytest.mark.thorough
@pytest.mark.parametrize("to", ["html", *thorough("png")])
def test_a_summary_shows_pictures_of_the_first_images_and_counts_the_others(tmp_path, to):
    inputs = [paint(tmp_path / f"{number}.png", number) for number in range(4)]
    for _ in range(2):  # drawn, then skipped
        drawn = fmapviz.visualize("shapesnet", inputs, out=tmp_path / "runs", to=to, views=["maps", "gradcam"])
        html = drawn._repr_html_()
        shown = images_of(html)
        assert len(shown) == 2 * 6
        assert max(max(each.size) for each in shown) <= 220
        assert len(html) < 400_000
        texts = Reader(html).texts
        for number in range(2):
            assert f"{number}.png, 6 of 10 pictures" in texts
        assert "and 2 more images" in texts
        assert texts.count("input") == 2
        assert any("gradcam" in each for each in texts)
    one = fmapviz.visualize(NET, inputs[0], out=tmp_path / "one", to=to)._repr_html_()
    assert len(images_of(one)) == 2  # input and maps
    assert "pictures" in rows_of(one)
    assert "0.png" in Reader(one).texts
    assert "more image" not in one


def test_a_summary_without_pictures_on_the_disk_shows_none(tmp_path):
    path = paint(tmp_path / "a.png")
    assert "<img" not in fmapviz.visualize(NET, path, out=tmp_path / "runs", to="tensorboard")._repr_html_()
    assert "<img" not in summary(units=(UrlPath("s3://bucket/runs/net/a.png"),))._repr_html_()
    assert "<img" not in summary(units=(tmp_path / "gone",))._repr_html_()


def test_names_are_escaped_and_damaged_pictures_left_out(tmp_path):
    unit = tmp_path / "<b onerror=x>&"
    unit.mkdir()
    Image.new("L", (400, 10)).save(unit / "00_<i>&.maps.png")
    (unit / "01_damaged.maps.png").write_bytes(b"\x89PNG nothing")
    reader = Reader(summary(units=(unit,))._repr_html_())
    assert set(reader.tags) == {"table", "tr", "th", "td", "a", "div", "img", "br"}
    assert "<b onerror=x>&, 1 of 2 pictures" in reader.texts
    assert "00_<i>&.maps" in reader.texts


def test_a_summary_without_a_report_has_no_link(tmp_path):
    drawn = fmapviz.visualize(NET, paint(tmp_path / "a.png"), out=tmp_path / "runs", to="png")
    (link,) = Reader(drawn._repr_html_()).links
    assert link.startswith("file:///")  # not below the working directory
    assert Path(unquote(urlsplit(link).path)) == drawn.directory


def test_texts_of_a_summary_are_escaped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    directory = Path(f"javascript:{HOSTILE}/../{HOSTILE}")
    failures = tuple(Failure(HOSTILE, "E_DECODE", f"{number}: {HOSTILE}") for number in range(7))
    html = summary(directory=directory, failed=7, failures=failures, notices=(HOSTILE, "\udcff"))._repr_html_()
    reader = Reader(html)
    assert set(reader.tags) == {"table", "tr", "th", "td", "a", "br"}
    assert "".join(reader.texts).count(HOSTILE) == 1 + 1 + 4 + 1
    assert "and 3 more" in reader.texts
    (link,) = reader.links
    assert not urlsplit(link).scheme


def test_an_address_is_no_link():
    reader = Reader(summary(directory=UrlPath("s3://bucket/runs/net"))._repr_html_())
    assert reader.links == []
    assert "s3://bucket/runs/net" in reader.texts


# --- progress


@pytest.fixture
def kernel(monkeypatch):
    """Pretend that this process is the kernel of a notebook; return the displayed objects."""
    displayed = []

    def display(shown, *, display_id):
        assert display_id
        displayed.append(repr(shown))
        return SimpleNamespace(update=lambda each: displayed.append(repr(each)))

    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    ipython.display = ModuleType("IPython.display")
    ipython.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    return displayed


def test_a_run_shows_a_bar_in_a_kernel_unless_it_is_switched_off(kernel, tmp_path):
    inputs = [paint(tmp_path / f"{number}.png", number) for number in range(3)]
    fmapviz.visualize(NET, inputs, out=tmp_path / "runs", to="png", progress=False)
    assert kernel == []
    fmapviz.visualize(NET, [*inputs, "none.png"], out=tmp_path / "runs", to="png", on_event=bool)
    assert kernel[0].startswith("0 images, ")
    assert kernel[-1].startswith("4 of 4 images, ")
    kernel.clear()
    fmapviz.visualize(NET, out=tmp_path / "runs", views="kernels", to="png")  # of no image
    assert kernel == []


def test_a_bar_is_html_with_its_share(kernel):
    bar = make_bar("images")
    assert Reader(bar._repr_html_()).tags == ["progress"]
    bar.total = 8
    bar.advance(2)
    assert '<progress value="2" max="8">' in bar._repr_html_()


@pytest.mark.parametrize("shell", [None, SimpleNamespace()])
def test_a_terminal_shows_no_notebook_bar(monkeypatch, kernel, shell):
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: shell)
    assert make_bar("images") is None
    assert kernel == []


@pytest.mark.thorough
def test_nothing_is_imported_outside_of_a_notebook(tmp_path, torch_alone):
    path = paint(tmp_path / "a.png")
    code = (
        "import sys, torch.hub, fmapviz.core.lazy_torchvision\n"
        "others = {*sys.modules}\n"
        "import fmapviz\n"
        "net = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3))\n"
        f"summary = fmapviz.visualize(net, {str(path)!r}, out={str(tmp_path)!r})\n"
        "assert summary.done == 1 and summary._repr_html_()\n"
        "assert not {'IPython', 'ipywidgets', 'tqdm', 'rich'} & sys.modules.keys() - others"
    )
    done = torch_alone(code)
    assert done.returncode == 0, done.stderr


# --- feature maps


def captured(module, *shape):
    with fmapviz.capture(nn.Sequential(module), types="Module") as maps:
        nn.Sequential(module)(torch.rand(*shape))
    return maps["0"]


def test_a_feature_map_is_one_line():
    with torch.no_grad():
        convolution = nn.Conv2d(3, 4, 3)
        convolution.weight.zero_()
        convolution.bias.copy_(torch.tensor([-1.5, 0.0, 2.0, torch.inf]))
    found = captured(convolution, 2, 3, 8, 8)
    assert repr(found) == "FeatureMap('0', Conv2d, (2, 4, 6, 6), float32, cpu, -1.5..2)"


@pytest.mark.parametrize(
    "values",
    [torch.empty(0, 3), torch.full((2, 3), torch.nan), torch.ones(2, 3, device="meta"), torch.ones(2, 3).to_sparse(),
     torch.ones(2, 3, dtype=torch.complex64), torch.tensor(True), torch.ones(2, 3, dtype=torch.int64, requires_grad=False)],
    ids=lambda values: f"{values.dtype} {values.layout}",
)  # fmt: skip
def test_a_feature_map_of_any_values_is_one_line(values):
    shown = repr(fmapviz.types.FeatureMap(Layer("a", "A", nn.Identity()), "a", 1, 0, values))
    assert shown.startswith("FeatureMap('a', A, (")
    assert "\n" not in shown


def test_a_feature_map_is_shown_as_tile_draws_it():
    found = captured(nn.Conv2d(3, 5, 3), 2, 3, 12, 10)
    for style in (None, fmapviz.Style(columns=2, colormap="viridis", scale=2)):
        grids = fmapviz.tile(found.values, style or fmapviz.Style())
        picture = found.show(style)
        assert torch.equal(torch.from_numpy(np.array(picture)), grids.flatten(0, 1))
        assert picture._repr_png_().startswith(b"\x89PNG")


def test_a_vector_is_shown_as_bars_and_a_clip_frame_by_frame():
    assert captured(nn.Linear(6, 5), 2, 6).show().mode == "L"
    clip = captured(nn.Conv3d(3, 4, 3, padding=1), 1, 3, 2, 8, 8)
    assert clip.show().height == 2 * fmapviz.tile(clip.values[:, :, 0]).shape[1]


def test_values_that_are_no_maps_are_refused_and_a_style_is_checked():
    found = captured(nn.Conv2d(3, 5, 3), 2, 3, 12, 10)
    with pytest.raises(fmapviz.errors.RequestError, match="style must be Style or None"):
        found.show(8)
    odd = fmapviz.types.FeatureMap(found.layer, "odd", 1, 0, torch.rand(7))
    with pytest.raises(fmapviz.errors.RequestError, match="odd is no map and no vector: shape"):
        odd.show()
