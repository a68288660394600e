"""The frames of a film in the report: one image with a slider, in a headless browser."""

from __future__ import annotations

import pytest
from films import write_film
from PIL import Image

from fmapviz.config import InputOptions
from fmapviz.run.loop import visualize

pytest_plugins = ["browser"]  # its fixtures


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Frames 3, 6, 9 and 12 of a film, the first frame of another of that name, and a photo; only read."""
    root = tmp_path_factory.mktemp("films")
    for folder in ("in", "in/more"):
        (root / folder).mkdir()
    film = write_film(root / "in/clip.mp4", 15)
    write_film(root / "in/more/clip.mp4", 15)
    Image.new("RGB", (64, 64), (200, 30, 30)).save(root / "in/photo.png")
    inputs = [f"{film}/{frame:06d}" for frame in (3, 6, 9, 12)]
    inputs += [f"{root}/in/more/clip.mp4/000000", str(root / "in/photo.png")]
    options = {"to": ["html"], "layers": ["features.1*"], "progress": False, "preprocessing": InputOptions()}
    return visualize("shapesnet", inputs, out=root / "out", name="r", **options).directory


@pytest.mark.thorough
def test_a_film_is_one_image_with_a_slider_of_its_frames(open_report, run):
    report = open_report(run, "#image=clip.mp4")
    notes = dict(zip(report.texts("#images .name"), report.texts("#images .note"), strict=True))
    assert len(report.texts("#images .name")) == 3
    assert any("4 frames" in note for note in report.texts("#images .note"))
    assert "4 frames" not in notes["photo.png"]
    names = report.page.locator("#images [role=option]")
    names.filter(has_text="4 frames").click()
    report.settled()
    assert report.text("#step-shown") == "frame 12 (4 of 4)"
    shown = report.page.locator(".viewport > img").get_attribute("src")
    report.press(",")
    assert report.text("#step-shown") == "frame 9 (3 of 4)"
    assert report.page.locator(".viewport > img").get_attribute("src") != shown
    assert "frame 9" in report.page.locator(".pane h3").first.inner_text()
    slider = report.page.locator("#step")
    assert (slider.get_attribute("max"), slider.get_attribute("aria-label")) == ("3", "Frame of the film")
    assert report.page.locator("#curves").is_hidden()


@pytest.mark.thorough
def test_each_frame_has_its_own_input(open_report, run):
    report = open_report(run)
    report.page.locator("#images [role=option]").filter(has_text="4 frames").click()
    report.settled()
    report.look_at("input")
    sources = set()
    for _ in range(4):
        sources.add(report.page.locator(".viewport > img").get_attribute("src"))
        report.press(",")
    assert len(sources) == 4


@pytest.mark.thorough
def test_a_film_is_played(open_report, run):
    report = open_report(run)
    report.page.locator("#images [role=option]").filter(has_text="4 frames").click()
    report.settled()
    report.press("p")
    stopped = "!document.querySelector('#play').classList.contains('playing')"
    report.until(f"document.querySelector('#step-shown').textContent === 'frame 12 (4 of 4)' && {stopped}")


@pytest.mark.thorough
def test_a_photo_among_films_has_no_slider(open_report, run):
    report = open_report(run)
    report.page.locator("#images [role=option]").filter(has_text="photo.png").click()
    report.settled()
    assert report.page.locator("#steps").is_hidden()
