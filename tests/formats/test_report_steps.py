"""The report of a run that shows images at the steps of a training: one entry for each series, and a slider."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
from cases import thorough
from image_files import paint, prepared
from report_runs import write_index, write_large_run, write_run
from slider import loads, shown, slide, text_of
from step_runs import DYING, STEPS, net_at, page_of, write_step_run
from tiny_models import outputs_of

from fmapviz.formats.html.page import read_script

pytest_plugins = ["browser"]  # its fixtures

SERIES = ("cat.png", "dog.png")
PHONE = {"viewport": {"width": 390, "height": 800}, "has_touch": True}
RELU = "view=maps&layer=01+relu"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two series of seven steps, and an ordinary image; only read."""
    return write_step_run(tmp_path_factory.mktemp("steps"), images=SERIES, views=["maps", "histogram"])


def is_at(report, position):
    report.until(f"document.querySelector('#step-shown').textContent === '{text_of(position)}'")
    report.settled()


# --- The slider


@pytest.mark.thorough
def test_the_slider_opens_at_the_last_step_and_reaches_all(open_report, run):
    report = open_report(run, f"#{RELU}")
    assert (report.texts("#images .name"), report.text("#images .count")) == ([*SERIES, "plain.png"], "3")
    assert report.texts("#images .note") == ["7 steps", "7 steps", ""]
    slider = report.page.get_by_role("slider", name="Step of the training")
    slider.focus()
    for key, position in [("", 6), ("ArrowLeft", 5), ("Home", 0), ("ArrowRight", 1), ("ArrowUp", 2), ("End", 6), (",", 5)]:
        if key:
            report.press(key)
        step = STEPS[position]
        assert shown(report) == (text_of(position), [f"cat.png/step_{step:06d}/01_relu.maps.png"])
        assert slider.get_attribute("aria-valuetext") == text_of(position)
        assert report.text(".pane h3 > :last-child") == f"cat.png, step {step}"
        assert report.text("#title") == "01 relu"
    report.page.locator(".viewport").focus()
    report.press(".", ".", ".", ",", ",")
    assert shown(report)[0] == text_of(4)
    slide(report, 3)
    assert shown(report) == (text_of(3), ["cat.png/step_000050/01_relu.maps.png"])
    report.press("ArrowRight")
    assert shown(report) == (text_of(3), ["dog.png/step_000050/01_relu.maps.png"])  # at the same step
    report.press("ArrowRight")
    assert shown(report)[1] == ["plain.png/01_relu.maps.png"]
    assert not report.page.locator("#steps").is_visible()
    report.press(".", "p", "ArrowLeft")
    assert shown(report)[0] == text_of(3)


PLACES = """() => [".about", ".viewport", ".viewport > img", "#pin", "#steps", "#step", ".track"].flatMap(selector =>
    [...document.querySelectorAll(selector)].filter(one => one.checkVisibility()).map(one => {
        const {x, y, width, height} = one.getBoundingClientRect(); return [selector, x, y, width, height]; }))"""


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, *thorough(PHONE)], ids=["desktop", "phone"])
@pytest.mark.parametrize("address", ["channel=3", *thorough("with=cat.png&with-step=0&channel=3", "beside=histogram")])
def test_nothing_moves_from_step_to_step(open_report, run, address, options):
    report = open_report(run, f"#{RELU}&step=0&{address}", **options)
    report.until("document.querySelector('#curves path') !== null")
    report.press("+", "+", "Shift+ArrowRight", "Shift+ArrowDown")
    script = "() => [...document.querySelectorAll('.rows, #pin')].map(one => one.scrollTop)"
    places, scrolled = report.page.evaluate(PLACES), report.page.evaluate(script)
    dead = []
    for position in range(len(STEPS)):
        slide(report, position)
        assert report.page.evaluate(PLACES) == places
        assert report.page.evaluate(script) == scrolled
        assert report.text("#title") == "01 relu"
        if "channel" in address:
            assert report.text("#pin h2") == f"Channel {DYING}"
        dead.append("dead" in report.text("#curve-numbers"))
    assert dead == [step >= 50 for step in STEPS]


@pytest.mark.thorough
def test_a_scrolled_list_keeps_its_position(open_report, tmp_path):
    root = tmp_path / "run"
    write_large_run(root, 2, 40)
    steps = [{"step": at, "href": f"image000{at}.png/"} for at in range(2)]
    write_index(root, [{"unit": "cat.png", "href": steps[0]["href"], "steps": steps}])
    report = open_report(root)
    rows = report.page.locator("#layers .rows")
    rows.evaluate("one => { one.scrollTop = 500; }")
    report.press(",", ".")
    assert rows.evaluate("one => one.scrollTop") == 500
    report.press("ArrowDown")  # the selected layer is revealed
    assert rows.evaluate("one => one.scrollTop") < 100


@pytest.mark.thorough
def test_the_tip_shows_the_new_step(open_report, run):
    report = open_report(run, f"#{RELU}&step=20")
    tiles = next(each for each in record_of(run, "cat.png/step_000020")["pictures"] if each["name"] == "01 relu")["tiles"]
    row, column = divmod(DYING, tiles["columns"])
    report.point(tiles["left"] + column * tiles["across"] + 5, tiles["top"] + row * tiles["down"] + 5)
    assert float(report.numbers(".tip")["maximum"][0]) > 0
    report.press(".")
    assert report.page.locator(".tip").is_visible()
    assert report.numbers(".tip")["maximum"] == ["0"]


def record_of(run, unit):
    return read_script((run / unit / "report.js").read_bytes())


@pytest.mark.thorough
def test_pictures_of_neighbouring_steps_are_preloaded(open_report, run):
    report = open_report(run, f"#{RELU}&step=20&channel=1")
    report.page.evaluate("""() => { window.gaps = 0; new MutationObserver(() => {
        for (const image of document.querySelectorAll(".viewport > img, #pin img"))
            if (!image.complete || !image.naturalWidth) window.gaps += 1;
    }).observe(document.body, {childList: true, subtree: true, attributes: true}); }""")
    loads(report, *[f"cat.png/step_{step:06d}/01_relu.maps.png" for step in (10, 50)])
    for key in (".", ".", ".", ",", ",", ",", ","):
        report.press(key)
    assert report.page.evaluate("window.gaps") == 0
    assert {file for file in report.loaded() if file.endswith("input.png")} == {
        "cat.png/step_000000/input.png",
        "dog.png/step_000000/input.png",
        "plain.png/input.png",
    }


@pytest.mark.thorough
def test_a_step_without_the_layer_is_reported_and_the_next_one_is_shown(open_report, tmp_path):
    run = write_step_run(tmp_path, steps=STEPS[:3])
    path = run / "cat.png/step_000010/report.js"
    record = read_script(path.read_bytes())
    record["pictures"] = [each for each in record["pictures"] if each["name"] != "01 relu"]
    path.write_bytes(b"fmapviz.unit(" + json.dumps(record).encode("ascii") + b");\n")
    report = open_report(run, f"#{RELU}&step=0")
    report.until("document.querySelector('#curves path') !== null")
    report.press("+", "Shift+ArrowRight")
    before, places = report.picture(), report.page.evaluate(PLACES)
    report.press(".")
    assert report.text(".message") == "cat.png, step 10 has no picture 01 relu in the view maps."
    assert [each for each in report.page.evaluate(PLACES) if "img" not in each[0]] == [
        each for each in places if "img" not in each[0]
    ]
    report.press(".")
    assert (report.picture(), report.page.evaluate(PLACES)) == (before, places)


# --- Playing


@pytest.mark.thorough
def test_steps_are_played_to_the_end_and_from_the_beginning(open_report, run):
    report = open_report(run, f"#{RELU}&step=100")
    report.page.get_by_role("button", name="Play").click()
    assert report.page.get_by_role("button", name="Pause").is_visible()
    is_at(report, 6)
    report.page.get_by_role("button", name="Play").wait_for()  # it has stopped
    report.until("location.hash.includes('step=1500')")
    report.page.evaluate("""() => {
        window.told = [];
        const shown = document.querySelector("#step-shown");
        new MutationObserver(() => window.told.push(shown.textContent)).observe(shown, { childList: true });
    }""")
    report.press("p")
    report.until("window.told.length > 3")
    report.press("p")
    stopped = report.text("#step-shown")
    told = report.page.evaluate("window.told")
    assert list(dict.fromkeys(told))[:3] == [text_of(0), text_of(1), text_of(2)]
    assert stopped in {*told, text_of(6)}
    report.page.wait_for_timeout(900)
    assert report.text("#step-shown") == stopped
    report.press("p")
    report.press(".")  # which pauses
    assert report.page.get_by_role("button", name="Play").is_visible()


# --- The address


@pytest.mark.thorough
def test_an_address_restores_the_step(open_report, run):
    report = open_report(run, f"#image=cat.png&{RELU}")
    entries = report.page.evaluate("history.length")
    report.press(",", ",")
    report.until("location.hash.includes('step=100&')")
    slide(report, 1)
    report.until("location.hash.includes('step=10&')")
    assert report.page.evaluate("history.length") == entries  # steps are no steps back
    report.page.reload()
    report.settled()
    assert shown(report) == (text_of(1), ["cat.png/step_000010/01_relu.maps.png"])
    report.press("ArrowDown")
    report.until("location.hash.includes('second')")
    report.press(".")
    report.until("location.hash.includes('step=20&')")
    report.page.go_back()
    report.until("document.querySelector('#title').textContent === '01 relu'")
    is_at(report, 1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("address", "position"), [("step=60", 3), *thorough(("step=99999", 6), ("step=0", 0), ("step=x", 6), ("", 6))]
)
def test_an_address_of_a_missing_step_shows_the_nearest(open_report, run, address, position):
    report = open_report(run, f"#image=dog.png&{RELU}&{address}")
    assert shown(report) == (text_of(position), [f"dog.png/step_{STEPS[position]:06d}/01_relu.maps.png"])


# --- Comparing


@pytest.mark.thorough
def test_one_image_is_compared_at_two_steps(open_report, tmp_path):
    run = write_step_run(tmp_path, steps=STEPS[:3])
    shutil.rmtree(run / "plain.png")
    page = page_of(run)
    write_index(run, page["units"][:1], views=["maps"])
    report = open_report(run, f"#{RELU}")
    assert report.text("#images .count") == "1"
    assert not report.page.locator("#compare").is_disabled()
    report.press("c")
    files = [f"cat.png/step_{step:06d}/01_relu.maps.png" for step in STEPS]
    assert shown(report) == ("B: step 0 (1 of 3)", [files[2], files[0]])
    assert report.texts(".pane h3 > :last-child") == ["cat.png, step 20", "cat.png, step 0"]
    report.press(".")
    assert shown(report) == ("B: step 10 (2 of 3)", [files[2], files[1]])
    report.press("s", ",", ",")
    assert shown(report) == ("A: step 0 (1 of 3)", [files[0], files[1]])
    report.until("location.hash.includes('&step=0&') && location.hash.includes('with-step=10')")
    address = report.page.url.partition("#")[2]
    other = open_report(run, f"#{address}")
    assert shown(other)[1] == [files[0], files[1]]
    report.press("c")
    assert shown(report) == ("step 0 (1 of 3)", [files[0]])


@pytest.mark.thorough
def test_two_images_move_together(open_report, run):
    report = open_report(run, f"#{RELU}&step=50")
    report.press("c")
    for key, step in [("", 50), (".", 100), ("s", 100), (",", 50)]:
        if key:
            report.press(key)
        assert shown(report)[1] == [f"{name}/step_{step:06d}/01_relu.maps.png" for name in SERIES]


@pytest.mark.thorough
def test_the_shown_image_is_compared_at_another_step(open_report, run):
    report = open_report(run, f"#{RELU}&step=50")
    report.page.get_by_role("option", name="cat.png").click(modifiers=["Shift"])
    report.settled()
    assert shown(report) == (f"B: {text_of(0)}", [f"cat.png/step_{step:06d}/01_relu.maps.png" for step in (50, 0)])


# --- Size


@pytest.mark.thorough
def test_the_page_of_many_steps_is_no_larger(open_report, tmp_path):
    sizes = []
    for steps in (3, 500):
        root = tmp_path / f"run{steps}"
        write_large_run(root, steps, 20)
        listed = [{"step": 1000 + at, "href": f"image{at:04d}.png/"} for at in range(steps)]
        write_index(root, [{"unit": "cat.png", "href": listed[0]["href"], "steps": listed}])
        report = open_report(root)
        assert report.text("#step-shown") == f"step {999 + steps} ({steps} of {steps})"
        loads(report, f"image{steps - 2:04d}.png/00_layer0.maps.png")
        report.press(",")
        loads(report, f"image{steps - 3:04d}.png/00_layer0.maps.png")
        sizes.append((report.page.locator("*").count(), len({*report.loaded()})))
    assert sizes[0] == sizes[1]
    report.page.get_by_role("slider").focus()
    report.page.keyboard.press("Home")
    for _ in range(40):
        report.page.keyboard.press("ArrowRight")
    report.until("document.querySelector('#step-shown').textContent === 'step 1040 (41 of 500)'")
    report.settled()
    assert shown(report)[1] == ["image0040.png/00_layer0.maps.png"]
    report.page.evaluate("document.activeElement.blur()")
    report.press("ArrowDown")
    assert shown(report)[1] == ["image0040.png/01_layer1.maps.png"]


# --- With the rest of the page


@pytest.mark.thorough
def test_a_single_file_holds_each_input_once(open_report, tmp_path):
    run = write_step_run(tmp_path, steps=STEPS[:4], single_file=True)
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(run / "index.html", alone)
    embedded = re.findall(r'data-file="\./([^"]*)"', (run / "index.html").read_text("ascii"))
    assert [name for name in embedded if name.endswith("input.png")] == [
        "cat.png/step_000000/input.png",
        "plain.png/input.png",
    ]
    assert "steps.js" in embedded
    report = open_report(alone, f"#{RELU}&channel={DYING}")
    sources = []
    for position in (3, 2, 1, 0):
        slide(report, position)
        assert report.text("#step-shown") == text_of(position, STEPS[:4])
        sources.append(report.page.locator(".viewport > img").get_attribute("src"))
        assert report.page.locator("#pin img").evaluate("one => one.naturalWidth") == 30
    assert len(set(sources)) == 4
    report.look_at("input")
    report.press(".")
    assert report.page.locator(".viewport > img").evaluate("one => one.naturalWidth") == 30
    report.until("document.querySelector('#curve-numbers').hidden")
    report.look_at("maps")
    assert report.text("#curve-numbers").startswith("mean ")
    assert report.loaded() == []


@pytest.mark.thorough
def test_curves_mark_the_step(open_report, run):
    report = open_report(run, f"#{RELU}&step=0")
    report.until("document.querySelector('#curves path') !== null")
    means = [float(outputs_of(net_at(step), prepared(paint(run.parent / "copy.png", 1, (24, 30))), ["relu"])["relu"].mean())
             for step in STEPS]  # fmt: skip
    for position, mean in enumerate(means):
        slide(report, position)
        words = report.text("#curve-numbers").split()
        assert float(words[1]) == pytest.approx(mean, rel=1e-3)
        assert words[2:] == (["1", "dead"] if STEPS[position] >= 50 else [])
        slider, now = (report.page.locator(one).bounding_box() for one in ("#step", "#curves .now"))
        share = (now["x"] + now["width"] / 2 - slider["x"] - 8) / (slider["width"] - 16)
        assert share == pytest.approx(position / 6, abs=0.005)
    drawn = np.array([[float(each) for each in point.split()] for point in
                      re.split("[ML]", report.page.locator("#curves .mean").get_attribute("d"))[1:]])  # fmt: skip
    assert np.array_equal(np.argsort(-drawn[:, 1]), np.argsort(means))
    assert report.page.locator("#curves title").text_content().startswith("Mean of 01 relu over the steps: ")


@pytest.mark.thorough
def test_the_filter_accepts_the_keys_of_steps(open_report, run):
    report = open_report(run, f"#{RELU}")
    report.press("i")
    report.page.keyboard.type("dog.")
    report.page.keyboard.type(",p")
    assert report.text("#images .none") == "No image matches."
    assert report.text("#step-shown") == text_of(6)
    report.press("Backspace", "Backspace", "Enter")
    assert shown(report) == (text_of(6), ["dog.png/step_001500/01_relu.maps.png"])
    report.press("Escape", "?")
    assert report.texts("#help .keys")[0].count("Previous or next step") == 1


@pytest.mark.thorough
def test_a_run_without_series_leaves_the_keys_of_steps_to_the_browser(open_report, tmp_path):
    write_run(tmp_path, ("a.png", "b.png"))
    report = open_report(tmp_path)
    report.press("?")
    assert "training" not in report.text("#help")
    report.press("Escape")
    script = """key => document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}))"""
    assert [report.page.evaluate(script, key) for key in ",.p"] == [True] * 3  # they belong to the browser
    assert report.page.locator("#steps, #step").count() == 0
    assert report.page.locator(".stepping").count() == 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options", [{"color_scheme": "light"}, *thorough({"color_scheme": "dark", **PHONE})], ids=["light", "dark phone"]
)
def test_the_page_has_no_accessibility_violations(open_report, run, options):
    report = open_report(run, f"#{RELU}&step=50", **{"reduced_motion": "reduce", **options})
    report.until("document.querySelector('#curves path') !== null")
    for keys in (["]"], ["."], ["c"], ["Escape", "Escape"]):
        report.press(*keys)
        assert report.violations() == []
        width = report.page.viewport_size["width"]
        assert report.page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [width, width]
        for selector in ("#play", "#step", "#step-shown"):
            bounds = report.page.locator(selector).bounding_box()
            assert bounds["x"] >= 0
            assert bounds["x"] + bounds["width"] <= width
    report.press("p")
    assert report.violations() == []
