"""The page of two runs: its files, and both runs in a browser."""

import json
import shutil
from collections import OrderedDict

import pytest
import torch
from cases import thorough
from image_files import paint
from step_runs import add_step, net_at
from torch import nn
from trees import difference, problems, snapshot

from fmapviz.config import InputOptions
from fmapviz.core import checksummed_json
from fmapviz.errors import OutputError, RefusedError, RequestError
from fmapviz.formats.html.two_runs import find_report, write_two_runs
from fmapviz.run.loop import visualize

pytest_plugins = ["browser"]  # its fixtures

DARK, LIGHT = {"color_scheme": "dark"}, {"color_scheme": "light"}
PHONE = {"viewport": {"width": 390, "height": 800}, "has_touch": True}
OPTIONS = {"preprocessing": InputOptions(fit="none"), "types": "Conv2d", "views": "maps,kernels", "to": "html", "workers": 1}
SEPARATE = ("dog.png", "alone.png")  # files that the runs do not share


def net(*layers):
    """Return a network of 1x1 convolutions with the given names and numbers of channels."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(layers))
        channels = [3, *(count for _, count in layers)]
        sizes = zip(layers, channels, channels[1:], strict=False)
        return nn.Sequential(OrderedDict((name, nn.Conv2d(inner, outer, 1)) for (name, _), inner, outer in sizes))


def data_of(page):
    """Return the data in a page."""
    begin = '<script type="application/json" id="run">'
    return json.loads(page.read_text("ascii").partition(begin)[2].partition("</script>")[0])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs and their page, in one directory; only read.

    Both have cat.png, the same file, and a dog.png, a file of each. The layer `first` is the first one of a and the second
    one of b, where it has other channels.
    """
    root = tmp_path_factory.mktemp("two")
    shared = paint(root / "in/cat.png", 1)
    pictures = {
        run: [shared, paint(root / f"in_{run}/dog.png", 2), paint(root / f"in_{run}/{run}.png", seed)]
        for run, seed in (("a", 3), ("b", 4))
    }
    out = root / "runs"
    visualize(net(("first", 6), ("second", 9)), pictures["a"], out=out, name="a", **OPTIONS)
    visualize(net(("stem", 3), ("first", 8), ("third", 4)), pictures["b"], out=out, name="b", **OPTIONS)
    write_two_runs([out / "a", out / "b"])
    return out


def opened(open_report, runs, address="", **options):
    return open_report(runs, address, name="a-b.html", **options)


def files_shown(report):
    """Return the files in both panes, relative to the directory of the runs; None where there is none."""
    pictures = report.page.locator(".viewport > img").evaluate_all("all => all.map(one => one.hidden ? '' : one.src)")
    return [picture.removeprefix(report.root.as_uri() + "/") or None for picture in pictures]


# --- Showing


def test_the_same_layer_of_both_runs_is_shown(open_report, runs):
    report = opened(open_report, runs)
    assert files_shown(report) == ["a/cat.png/00_first.maps.png", "b/cat.png/01_first.maps.png"]
    headings = report.texts(".pane h3")
    assert [heading.split()[0] for heading in headings] == ["a", "b"]
    assert all("sequential (" in heading for heading in headings)
    assert report.texts(".pane .side") == ["A", "B"]
    assert report.text("h1") == "a and b"
    assert "Scaling" not in report.text(".about")
    assert report.texts("#images .name") == ["a.png", "b.png", "cat.png", "dog.png"]
    assert report.texts("#images .note") == ["only in a", "only in b", "", ""]
    assert not report.page.locator("#compare, #beside").first.is_visible()
    report.press("c", "b", "s")  # there are two pictures of each image already
    assert len(files_shown(report)) == 2
    report.press("ArrowRight")
    assert files_shown(report) == ["a/dog.png/00_first.maps.png", "b/dog.png/01_first.maps.png"]
    report.look_at("input")
    assert files_shown(report) == ["a/dog.png/input.png", "b/dog.png/input.png"]
    report.look_at("kernels")
    assert files_shown(report) == ["a/_model/00_first.kernels.png", "b/_model/01_first.kernels.png"]
    assert report.texts(".pane .predictions") == ["The model, the same for all images"] * 2


@pytest.mark.thorough
def test_layers_and_images_of_one_run_only_are_listed(open_report, runs):
    report = opened(open_report, runs, "#image=cat.png&view=maps&layer=00+first")
    assert report.texts("#layers .name") == ["stem", "first", "second", "third"]
    assert report.texts("#layers .number") == ["00", "00", "01", "02"]
    assert report.texts("#layers .badge") == ["only in b", "only in a", "only in b"]
    report.press("ArrowDown")
    assert files_shown(report) == ["a/cat.png/01_second.maps.png", None]
    assert report.texts(".message") == ["", "b has no picture 01 second of cat.png in the view maps."]
    report.press("ArrowDown")
    assert files_shown(report) == [None, "b/cat.png/02_third.maps.png"]
    assert report.texts(".message") == ["a has no picture 02 third of cat.png in the view maps.", ""]
    report.press("ArrowUp", "ArrowUp", "ArrowLeft")
    assert files_shown(report) == [None, "b/b.png/01_first.maps.png"]
    assert report.texts(".message") == ["b.png is not in a.", ""]
    assert report.page.locator("#layers .badge").count() == 0
    report.press("ArrowLeft")
    assert report.texts(".message") == ["", "a.png is not in b."]
    report.look_at("kernels")  # which are of no image
    assert files_shown(report) == ["a/_model/00_first.kernels.png", "b/_model/01_first.kernels.png"]


@pytest.mark.thorough
def test_nothing_but_files_of_the_runs_is_loaded(open_report, runs):
    report = opened(open_report, runs, "#image=cat.png&view=maps&layer=00+first")
    loaded = [path for path in report.loaded() if not path.endswith("/input.png")]
    scripts = ["a/_model/report.js", "a/cat.png/report.js", "b/_model/report.js", "b/cat.png/report.js"]
    assert sorted(loaded) == sorted([*scripts, "a/cat.png/00_first.maps.png", "b/cat.png/01_first.maps.png"])


@pytest.mark.thorough
def test_channels_of_both_runs_are_matched_by_number(open_report, runs):
    report = opened(open_report, runs, "#image=cat.png&view=maps&layer=00+first&channel=4")
    report.page.wait_for_selector("#pin canvas")
    assert report.texts("#pin figcaption") == ["A, channel", "A, input", "B, channel", "B, input"]
    assert report.page.locator("#pin thead th").all_inner_texts() == ["A", "B"]
    assert report.page.locator(".outline.kept:visible").count() == 2
    other = opened(open_report, runs, "#image=cat.png&view=maps&layer=00+first&channel=7")  # a has six, b eight
    other.page.wait_for_selector("#pin canvas")
    assert other.texts("#pin figcaption") == ["B, channel", "B, input"]


@pytest.mark.thorough
def test_the_swipe_shows_both_runs(open_report, runs):
    report = opened(open_report, runs, "#image=cat.png&view=input&layer=input&swipe=50")
    left, right = (report.page.locator(".viewport").nth(side).bounding_box() for side in (0, 1))
    assert left == right
    assert report.picture() == report.picture(1)
    report.press("Escape", "Escape")
    assert not report.page.locator("#divider").is_visible()
    assert len(files_shown(report)) == 2


@pytest.mark.thorough
def test_an_address_restores_the_page(open_report, runs):
    report = opened(open_report, runs, "#image=cat.png&view=maps&layer=00+first")
    report.press("ArrowRight", "w", "]")
    report.until(
        "location.hash.includes('dog.png') && location.hash.includes('swipe') && location.hash.includes('channel=0')"
    )
    assert "with=" not in report.page.url
    other = opened(open_report, runs, f"#{report.page.url.partition('#')[2]}")
    other.page.wait_for_selector("#pin canvas")
    assert files_shown(other) == files_shown(report) == ["a/dog.png/00_first.maps.png", "b/dog.png/01_first.maps.png"]
    assert other.page.locator("#divider").is_visible()


@pytest.mark.thorough
@pytest.mark.parametrize("address", ["#image=gone.png&with=cat.png&beside=input&view=x&layer=y", "#step=5&with-step=3"])
def test_addresses_of_missing_images_show_others(open_report, runs, address):
    report = opened(open_report, runs, address)
    assert report.page.locator(".pane").count() == 2
    report.press("ArrowRight", "ArrowRight")
    report.look_at("maps")
    assert None not in files_shown(report)


@pytest.mark.thorough
def test_the_facts_of_both_runs_are_shown(open_report, runs):
    report = opened(open_report, runs)
    report.page.locator("[data-dialog=facts]").click()
    assert report.texts("#facts h3") == ["a", "b"]
    assert [report.texts("#facts dt").count(name) for name in ("Model", "Weights", "Images")] == [2, 2, 2]
    links = report.page.locator("#facts a")
    assert links.evaluate_all("all => all.map(one => one.href)") == [
        (runs / name / "index.html").as_uri() for name in ("a", "b")
    ]


# --- Steps of a training


def write_series(out, name, steps, images):
    """Draw images at steps, as units `IMAGE/step_000010`; one more image belongs to no series."""
    plain = images[0].with_name("plain.png")
    options = {**OPTIONS, "name": name, "views": "maps"}
    run = visualize(net_at(steps[-1]), [plain], out=out, **options).directory
    for step in steps:
        made = visualize(net_at(step), images, out=out.parent / f"{name}{step}", **options).directory
        for image in images:
            add_step(run, made / image.name, image.name, step)
    visualize(net_at(steps[-1]), [plain], out=out, **options)
    return run


@pytest.mark.thorough
def test_steps_are_matched_by_their_numbers(open_report, tmp_path):
    images = [paint(tmp_path / f"in/{name}.png", seed, (24, 30)) for seed, name in enumerate(("cat", "dog"))]
    paint(tmp_path / "in/plain.png", 5, (24, 30))
    out = tmp_path / "runs"
    write_series(out, "a", (0, 10, 20), images)
    write_series(out, "b", (0, 20, 50), images[:1])
    page = write_two_runs([out / "a", out / "b"])
    listed = {entry["unit"]: [each["step"] for each in entry.get("steps", [])] for entry in data_of(page)["units"]}
    assert listed == {"cat.png": [0, 10, 20, 50], "dog.png": [0, 10, 20], "plain.png": []}
    report = opened(open_report, out, "#image=cat.png&view=maps&layer=00+first&step=0")
    name = "{}/cat.png/step_{:06d}/00_first.maps.png".format
    said = "cat.png, step {} is not in {}.".format
    for key, shown, messages in [
        ("", [name("a", 0), name("b", 0)], ["", ""]),
        (".", [name("a", 10), None], ["", said(10, "b")]),
        (".", [name("a", 20), name("b", 20)], ["", ""]),
        (".", [None, name("b", 50)], [said(50, "a"), ""]),
        (",", [name("a", 20), name("b", 20)], ["", ""]),
    ]:
        report.press(*key)
        assert (files_shown(report), report.texts(".message")) == (shown, messages)
    assert report.text("#step-shown") == "step 20 (3 of 4)"
    report.until("location.hash.includes('step=20')")
    other = opened(open_report, out, f"#{report.page.url.partition('#')[2]}")
    assert files_shown(other) == [name("a", 20), name("b", 20)]
    report.press("ArrowRight")
    assert files_shown(report) == ["a/dog.png/step_000020/00_first.maps.png", None]
    assert report.texts(".message") == ["", "dog.png, step 20 is not in b."]
    report.press("ArrowRight")
    assert files_shown(report) == [f"{run}/plain.png/00_first.maps.png" for run in ("a", "b")]
    assert not report.page.locator("#steps").is_visible()
    report.press("ArrowLeft", "ArrowLeft", "p")
    report.until("document.querySelector('#step-shown').textContent === 'step 50 (4 of 4)'")
    assert report.violations() == []


@pytest.mark.thorough
def test_a_series_is_compared_with_an_image(open_report, tmp_path):
    """A training and a run of its last weights."""
    images = [paint(tmp_path / "in/cat.png", 1, (24, 30))]
    paint(tmp_path / "in/plain.png", 5, (24, 30))
    out = tmp_path / "runs"
    write_series(out, "a", (0, 10), images)
    visualize(net_at(1500), images, out=out, name="b", **{**OPTIONS, "views": "maps"})
    write_two_runs([out / "a", out / "b"])
    report = opened(open_report, out, "#image=cat.png&view=maps&layer=00+first")
    for step in (10, 0):
        assert files_shown(report) == [f"a/cat.png/step_{step:06d}/00_first.maps.png", "b/cat.png/00_first.maps.png"]
        report.press(",")


# --- Writing


def copy(runs, place):
    shutil.copytree(runs, place, ignore=shutil.ignore_patterns("*.html.tmp"))
    (place / "a-b.html").unlink()
    return place


def test_the_page_is_written_beside_the_runs_and_changes_neither(runs, tmp_path):
    out = copy(runs, tmp_path / "runs")
    before = snapshot(out)
    page = write_two_runs([out / "a", out / "b"])
    assert page == out / "a-b.html"
    assert difference(snapshot(out), before) == ["+ a-b.html"]
    assert problems(out) == problems(out / "a") == problems(out / "b") == []
    text = page.read_text("ascii")
    assert str(tmp_path) not in text
    assert text == (runs / "a-b.html").read_text("ascii")
    data = data_of(page)
    assert [(each["unit"], [of and of["href"] for of in each["of"]]) for each in data["units"]] == [
        ("a.png", ["a/a.png/", None]),
        ("b.png", [None, "b/b.png/"]),
        ("cat.png", ["a/cat.png/", "b/cat.png/"]),
        ("dog.png", ["a/dog.png/", "b/dog.png/"]),
    ]
    assert data["views"] == ["maps", "kernels"]
    assert ["Scaling", "channel"] in data["facts"]
    assert write_two_runs([out / "a", out / "b"]) == page  # in place of its own


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("out", "page"),
    [
        ("mine.html", "mine.html"),
        ("pages", "pages/a-b.html"),
        *thorough(("deep/er/mine.HTM", "deep/er/mine.HTM"), (".", "a-b.html"), ("runs/other.html", "runs/other.html")),
    ],
)
def test_the_page_is_written_to_the_requested_path(open_report, runs, tmp_path, monkeypatch, out, page):  # noqa: PLR0917  a table
    copy(runs, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    assert write_two_runs(["runs/a", "runs/b"], out) == tmp_path / page
    report = open_report(tmp_path, "#image=cat.png&view=maps&layer=00+first", name=page)
    assert files_shown(report) == ["runs/a/cat.png/00_first.maps.png", "runs/b/cat.png/01_first.maps.png"]
    assert not any(report.texts(".message"))


@pytest.mark.thorough
def test_runs_of_the_same_name_are_distinguished(open_report, runs, tmp_path):
    for folder, name in (("x", "a"), ("y", "b")):
        shutil.copytree(runs / name, tmp_path / folder / "net")
    page = write_two_runs([tmp_path / "x/net", tmp_path / "y/net"])
    assert page == tmp_path / "net-net.html"
    report = open_report(tmp_path, "#image=cat.png&view=maps&layer=00+first", name=page.name)
    assert [heading.split()[0] for heading in report.texts(".pane h3")] == ["x/net", "y/net"]


@pytest.mark.thorough
def test_a_run_is_compared_with_itself(open_report, runs, tmp_path):
    out = copy(runs, tmp_path / "runs")
    page = write_two_runs([out / "a", out / "a"])
    report = open_report(out, "#image=cat.png&view=maps&layer=00+first", name="a-a.html")
    assert files_shown(report) == ["a/cat.png/00_first.maps.png"] * 2
    assert page.name == "a-a.html"
    assert report.page.locator(".badge").count() == 0


@pytest.mark.thorough
def test_runs_that_are_being_written_are_compared(open_report, runs, tmp_path):
    """The page has the finished images; neither run has a report yet."""
    out = copy(runs, tmp_path / "runs")
    for run in ("a", "b"):
        for name in ("index.html", "products.json"):
            (out / run / name).unlink()
        (out / run / ".fmapviz-0-1-2-3/cat.png").mkdir(parents=True)
    shutil.rmtree(out / "b/dog.png")
    write_two_runs([out / "a", out / "b"])
    report = opened(open_report, out, "#image=dog.png&view=maps&layer=00+first")
    assert files_shown(report) == ["a/dog.png/00_first.maps.png", None]
    assert report.texts(".message") == ["", "dog.png is not in b."]
    for run in ("a", "b"):
        for path in (out / run).iterdir():
            if path.is_dir():
                shutil.rmtree(path)
    write_two_runs([out / "a", out / "b"])
    assert "no image" in opened(open_report, out).text(".message")


def test_images_are_matched_by_their_files_first(tmp_path):
    network = net(("first", 2))
    one, other, third = (paint(tmp_path / f"{folder}/x.png", seed) for seed, folder in enumerate(("p", "q", "r")))
    out = tmp_path / "runs"
    visualize(network, [one, other], out=out, name="a", **OPTIONS)
    visualize(network, [other, third], out=out, name="b", **OPTIONS)
    (first, second, rest) = data_of(write_two_runs([out / "a", out / "b"]))["units"]
    found = {each["unit"]: [bool(of) for of in each["of"]] for each in (first, second, rest)}
    assert found == {"p/x.png": [True, False], "q/x.png": [True, True], "r/x.png": [False, True]}


@pytest.mark.thorough
def test_runs_of_the_model_alone_are_compared(open_report, tmp_path):
    options = {**OPTIONS, "views": "kernels"}
    for name, network in (("a", net(("first", 3))), ("b", net(("stem", 3), ("first", 4)))):
        visualize(network, [], out=tmp_path, name=name, **options)
    write_two_runs([tmp_path / "a", tmp_path / "b"])
    report = opened(open_report, tmp_path, "#layer=00+first&view=kernels")
    assert report.texts("#images .name") == ["the model"]
    assert files_shown(report) == ["a/_model/00_first.kernels.png", "b/_model/01_first.kernels.png"]


@pytest.mark.thorough
def test_single_files_have_their_pictures_beside_them(open_report, runs, tmp_path):
    visualize(net(("first", 6)), [paint(tmp_path / "cat.png", 1)], out=tmp_path, name="b", single_file=True, **OPTIONS)
    shutil.copytree(runs / "a", tmp_path / "a")
    write_two_runs([tmp_path / "a", tmp_path / "b"])
    report = opened(open_report, tmp_path, "#image=cat.png&view=maps&layer=00+first")
    assert files_shown(report) == ["a/cat.png/00_first.maps.png", "b/cat.png/00_first.maps.png"]


@pytest.mark.thorough
def test_hostile_names_are_shown_as_text(open_report, runs, tmp_path):
    bad = "<img src=x onerror=alert(1)>\u202e&'"
    out = tmp_path / "runs <b>&#%?"
    name = "b<i>x&#%?'"
    shutil.copytree(runs / "a", out / "a")
    visualize(net(("first", 6)), [paint(tmp_path / f"in/{bad}.png", 1)], out=out, name="b", **OPTIONS)
    (out / "b").rename(out / name)  # which name= refuses, as Windows does
    record = json.loads((out / name / "run.json").read_bytes())
    record.pop("sha256")
    record["settings"] |= {"model": bad, "weights": "</script><script>alert(1)</script>", "views": [bad, 7], "style": 3}
    (out / name / "run.json").write_bytes(checksummed_json.dumps({**record, "versions": {bad: bad}}))
    page = write_two_runs([out / "a", out / name])
    assert page.name == f"a-{name}.html"
    report = open_report(out, name=page.name)
    assert sorted(report.texts("#images .note")) == [f"only in {run}" for run in ["a", "a", "a", name]]
    report.page.locator("#images .row", has_text=name).click()
    report.settled()
    assert report.texts(".message") == ["<img src=x onerror=alert(1)>\\u202e&'.png is not in a.", ""]
    report.page.locator("[data-dialog=facts]").click()
    headings = [*report.texts(".pane h3"), *report.texts("#facts h3")]
    assert [name in heading for heading in headings] == [False, True, False, True]
    assert "</script><script>" in headings[1]
    for tag in ("main i", "aside i", "#facts i", "main h3 img", "#facts img", "main h3 script"):
        assert report.page.locator(tag).count() == 0
    assert "\u202e" not in report.page.content()
    assert report.page.locator("#facts a").nth(1).get_attribute("href").startswith("./b%3Ci%3Ex%26%23%25%3F%27/")


@pytest.mark.parametrize("settings", [None, 7, [], {"formats": 5, "views": "maps", "model": {}, "weights": [1]}])
def test_forged_settings_are_shown_as_text(runs, tmp_path, settings):
    out = copy(runs, tmp_path / "runs")
    record = json.loads((out / "b/run.json").read_bytes())
    record.pop("sha256")
    (out / "b/run.json").write_bytes(checksummed_json.dumps({**record, "settings": settings, "versions": settings}))
    assert len(data_of(write_two_runs([out / "a", out / "b"]))["units"]) == 4


def test_a_foreign_page_is_kept(runs, tmp_path):
    out = copy(runs, tmp_path / "runs")
    page = out / "a-b.html"
    for make in (
        lambda: page.write_text("<!doctype html>mine"),
        page.mkdir,
        lambda: page.symlink_to(runs / "a-b.html"),
    ):
        make()
        with pytest.raises(RefusedError, match="not made by fmapviz") as caught:
            write_two_runs([out / "a", out / "b"])
        assert caught.value.hint == "move it away, or choose another out="
        page.rmdir() if page.is_dir() else page.unlink()
    assert write_two_runs([out / "a", out / "b"]).read_text("ascii") == (runs / "a-b.html").read_text("ascii")


def test_a_page_inside_a_run_is_refused(runs, tmp_path):
    out = copy(runs, tmp_path / "runs")
    before = snapshot(out)
    for place in (out / "a", out / "a/index.html", out / "b/cat.png/page.html", out / "b/new"):
        with pytest.raises(RequestError, match="would lie in a run"):
            write_two_runs([out / "a", out / "b"], place)
    assert difference(snapshot(out), before) == []


def test_a_directory_that_cannot_be_written_to_is_an_output_error(runs):
    with pytest.raises(OutputError, match=r"cannot write to '/proc/nowhere/x\.html'"):
        write_two_runs([runs / "a", runs / "b"], "/proc/nowhere/x.html")


def test_a_name_that_is_too_long_is_an_output_error(runs, tmp_path):
    for name in ("a", "b"):
        shutil.copytree(runs / name, tmp_path / (name * 200))
    with pytest.raises(OutputError, match="too long"):
        write_two_runs([tmp_path / (name * 200) for name in "ab"])
    assert write_two_runs([tmp_path / (name * 200) for name in "ab"], tmp_path / "x.html").exists()


def test_the_report_of_one_run_is_opened(runs, tmp_path):
    assert find_report(runs / "a") == runs / "a/index.html"
    shutil.copytree(runs / "a", tmp_path / "a")
    (tmp_path / "a/index.html").unlink()
    with pytest.raises(RequestError, match="no report in"):
        find_report(tmp_path / "a")


# --- Accessibility


@pytest.mark.thorough
@pytest.mark.parametrize("options", [LIGHT, *thorough({**DARK, **PHONE})], ids=["light", "dark phone"])
def test_the_page_has_no_accessibility_violations(open_report, runs, options):
    report = opened(open_report, runs, "#image=cat.png&view=maps", **{"reduced_motion": "reduce", **options})
    assert report.violations() == []
    report.press("ArrowDown", "]")
    assert report.violations() == []
    for opener in ("help", "facts"):
        report.page.locator(f"[data-dialog={opener}]").click()
        assert report.violations() == []
        report.press("Escape")
    report.press("w")
    assert report.violations() == []
    assert report.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
