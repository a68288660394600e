"""The size of a run is estimated before it begins, and a run that does not fit is refused."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from threading import Event

import pytest
from cases import thorough
from extras import needs
from faults import Net
from image_files import paint

from fmapviz.cli import app
from fmapviz.config import InputOptions, Part, RunConfig
from fmapviz.core.files import BLOCK_BYTES
from fmapviz.errors import RefusedError
from fmapviz.events import Counted, Notice, Outcome, Staged
from fmapviz.images.find import find_images
from fmapviz.run import disk_space, estimate
from fmapviz.run.load import load_session
from fmapviz.run.loop import visualize
from fmapviz.store.unfinished import Unfinished


@pytest.fixture
def inputs(tmp_path):
    for number in range(20):
        paint(tmp_path / f"in/{number}.png", number)
    return tmp_path / "in"


def plan(inputs, out, **options):
    given = {"to": ["png"], "preprocessing": InputOptions(fit="none"), "workers": 2}
    return estimate.estimate(RunConfig(Net(), [inputs], out=out, **{**given, **options}))


def draw(inputs, out, **options):
    return visualize(
        Net(), inputs, out=out, **{"to": ["png"], "preprocessing": InputOptions(fit="none"), "workers": 2, **options}
    )


def room_of(place, formats):
    """Return the bytes in whole blocks that files take, by a part of their names."""
    paths = [path for path in place.rglob("*") if path.is_file() and path.parent != place]
    return {
        form: sum(-(-path.stat().st_size // BLOCK_BYTES) * BLOCK_BYTES for path in paths if ending in path.name)
        for form, ending in formats.items()
    }


def test_the_estimate_equals_the_written_bytes(inputs, tmp_path):
    found = plan(inputs, tmp_path / "out", to=["png", "tensorboard", "stats", "raw"])
    assert not (tmp_path / "out").exists()
    assert (found.images, found.to_draw, found.sampled, found.failing) == (20, 20, 20, 0)
    summary = draw(inputs, tmp_path / "out", to=["png", "tensorboard", "stats", "raw"])
    assert found.directory == summary.directory
    assert found.pictures == summary.pictures == 60
    taken = room_of(summary.directory, {"png": ".png", "tensorboard": "tfevents", "stats": "stats.", "raw": "raw."})
    assert {form: found.bytes[form] for form in taken} == taken
    assert found.files == sum(path.parent != summary.directory or path.is_dir() for path in summary.directory.rglob("*"))
    assert found.fits


@pytest.mark.thorough
def test_pictures_drawn_once_are_counted_once(inputs, tmp_path, monkeypatch):
    """Pages of top images, and pictures of the model, are as many for any number of images."""
    monkeypatch.setattr(estimate, "SAMPLE", 10)
    found = plan(inputs, tmp_path / "out", views=["kernels", "top"])
    summary = draw(inputs, tmp_path / "out", views=["kernels", "top"])
    assert (found.images, found.sampled) == (20, 10)
    assert found.pictures == summary.pictures == 20 + summary.once
    taken = room_of(summary.directory, {"png": ".png"})["png"]
    assert found.bytes["png"] == pytest.approx(taken, rel=0.2)
    assert found.files == sum(path.parent != summary.directory or path.is_dir() for path in summary.directory.rglob("*"))


@pytest.mark.thorough
@needs("pyarrow", "scale")
def test_the_estimate_of_shards_equals_the_written_bytes(inputs, tmp_path):
    found = plan(inputs, tmp_path / "out", to=["tar", "tensorboard", "stats"], shard=20)
    summary = draw(inputs, tmp_path / "out", to=["tar", "tensorboard", "stats"], shard=20)
    shard = summary.directory / "shard-000000"
    assert found.directory == summary.directory
    assert found.bytes["tar"] == (shard / "pictures.tar").stat().st_size
    assert found.bytes["tensorboard"] == (shard / "events.out.tfevents.fmapviz").stat().st_size
    assert found.files == 7


@pytest.mark.thorough
def test_finished_images_are_not_counted(inputs, tmp_path):
    draw([inputs / f"{number}.png" for number in range(15)], tmp_path / "out")
    found = plan(inputs, tmp_path / "out")
    assert (found.to_draw, found.pictures) == (5, 15)


@pytest.mark.parametrize("views", [["kernels"], *thorough(["maps"], ["maps", "kernels", "top"])])
def test_nothing_is_left_to_draw_of_a_finished_run(views, inputs, tmp_path):
    """A run of `kernels` has no images; pages and pictures of the model are drawn once."""
    first = plan(inputs, tmp_path / "out", views=views)
    summary = draw(inputs, tmp_path / "out", views=views)
    assert (first.is_done, first.failing, first.pictures) == (False, 0.0, summary.pictures)
    assert not any("nothing to draw" in line or "could not be drawn" in line for line in first.lines())
    found = plan(inputs, tmp_path / "out", views=views)
    assert (found.to_draw, found.pictures, found.all_bytes, found.files, found.seconds) == (0, 0, 0, 0, 0)
    what = "pictures of the model" if views == ["kernels"] else "20 images"
    assert found.lines() == [f"{what}, already done: nothing to draw", f"{found.model} into {summary.directory}"]
    assert not plan(inputs, tmp_path / "out", views=views, force=True).is_done


def test_an_interrupted_run_is_not_called_done(inputs, tmp_path):
    Unfinished("some inputs").write(draw(inputs, tmp_path / "out", views=["kernels"]).directory)
    assert not plan(inputs, tmp_path / "out", views=["kernels"]).is_done


@pytest.mark.thorough
@needs("pyarrow", "scale")
def test_finished_images_of_shards_are_not_counted(inputs, tmp_path):
    draw(inputs / "0.png", tmp_path / "out")
    draw([inputs / f"{number}.png" for number in range(15)], tmp_path / "out", to=["tar"], shard=5)
    found = plan(inputs, tmp_path / "out", to=["tar"], shard=5)
    assert (found.images, found.to_draw, found.directory.name) == (20, 5, "net-2")


def test_a_part_is_estimated_by_its_share(inputs, tmp_path):
    assert plan(inputs, tmp_path / "out", part=Part(1, 3)).to_draw == 7


def test_failures_of_the_sample_are_reported(inputs, tmp_path):
    for number in range(5):
        (inputs / f"{number}.png").write_bytes(b"no image")
    found = plan(inputs, tmp_path / "out")
    assert (found.images, found.sampled, found.failing, found.pictures) == (20, 15, 0.25, 45)


@pytest.mark.thorough
def test_the_sample_is_spread_over_many_images(tmp_path):
    for number in range(500):
        paint(tmp_path / f"in/{number}.png", number)
    sample, count = estimate._sample(find_images([str(tmp_path / "in")]), None)
    assert (len(sample), count) == (estimate.SAMPLE, 500)
    numbers = sorted(int(file.unit.removesuffix(".png")) for file in sample)
    assert numbers[0] < 100
    assert numbers[-1] > 400
    assert sample == estimate._sample(find_images([str(tmp_path / "in")]), None)[0]


def test_the_sample_ends_in_time(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(estimate, "SAMPLE_SECONDS", -1.0)
    assert plan(inputs, tmp_path / "out", workers=1).sampled < 10


# --- too little room


@pytest.fixture
def full(monkeypatch):
    """Limit the free bytes of the disk."""

    def fill(free, files=None):
        monkeypatch.setattr(disk_space, "free_space", lambda _place: (free, files))
        monkeypatch.setattr(estimate, "free_space", lambda _place: (free, files))

    return fill


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options", [{}, pytest.param({"to": ["tar"], "shard": 12}, marks=[needs("pyarrow", "scale"), pytest.mark.thorough])]
)
def test_a_run_that_will_not_fit_is_refused_with_the_numbers(inputs, tmp_path, full, options):
    full(10_000)
    with pytest.raises(
        RefusedError, match=r"\d+ more images will not fit: [\d.]+ kB at [\d.]+ (kB|bytes) each, and 10 kB are"
    ):
        draw(inputs, tmp_path / "out", **options)
    assert draw(inputs, tmp_path / "out", force=True, **options).exit_code == 0


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["staged", "told when the shard is there"])
def test_images_of_shards_are_counted_once(kind, inputs, tmp_path, full):
    for number in range(20, 100):
        (inputs / f"{number}.png").write_bytes(b"never read")
    summary = draw([inputs / f"{number}.png" for number in range(8)], tmp_path / "out")
    full(10_000)
    counted = Event()
    session, _ = load_session(RunConfig(Net(), [inputs], to=["png"], preprocessing=InputOptions(fit="none")))
    room = disk_space.RunWatch(
        replace(session, directory=summary.directory, inputs=[inputs]),
        lambda event: isinstance(event, Counted) and counted.set(),
    )
    while not counted.is_set():
        room.note(Notice(""))
    for number in range(7):
        if kind == "staged":
            room.note(Staged(str(number), 1000))
        room.note(Outcome(str(number), "done", bytes=1000))
    last = Staged("7", 1000) if kind == "staged" else Outcome("7", "done", bytes=1000)
    with pytest.raises(RefusedError, match="92 more images will not fit: 92 kB at 1 kB each, and 10 kB are free"):
        room.note(last)


@pytest.mark.thorough
def test_a_full_disk_is_refused(inputs, tmp_path, full):
    full(0)
    assert not plan(inputs, tmp_path / "out").fits
    full(10**12, 0)
    assert not plan(inputs, tmp_path / "out").fits


@pytest.mark.thorough
@needs("pyarrow", "scale")
def test_staged_bytes_include_all_formats(inputs, tmp_path):
    told = {}
    for formats in (["tar"], ["tar", "tensorboard"], ["stats"]):
        events = []
        draw(inputs, tmp_path / "out", to=formats, shard=20, on_event=events.append)
        told[len(formats), formats[0]] = sum(event.bytes for event in events if isinstance(event, Staged))
    assert told[2, "tar"] == 2 * told[1, "tar"] > told[1, "stats"] == 0


def test_a_run_that_fits_is_not_refused(inputs, tmp_path, full):
    full(20 * 5 * BLOCK_BYTES)
    assert draw(inputs, tmp_path / "out").done == 20


@pytest.mark.thorough
def test_a_run_whose_rest_is_finished_is_not_refused(inputs, tmp_path, full):
    draw([inputs / f"{number}.png" for number in range(10, 20)], tmp_path / "out")
    full(12 * 5 * BLOCK_BYTES)  # for ten and some more
    assert draw(inputs, tmp_path / "out").exit_code == 0


def test_a_run_of_unknown_length_continues(inputs, tmp_path, full):
    full(10_000)
    assert draw((path for path in sorted(inputs.iterdir())), tmp_path / "out").done == 20


def test_a_run_of_more_files_than_free_inodes_is_refused(inputs, tmp_path, full):
    full(10**9, 50)
    found = plan(inputs, tmp_path / "out")
    assert found.files > 50
    assert not found.fits
    assert any("--shard" in line for line in found.lines())


# --- the command


@pytest.mark.thorough
def test_the_command_prints_the_estimate(fmapviz, inputs, tmp_path):
    done = fmapviz("shapesnet", inputs, "--out", tmp_path / "out", "--plan", "--to", "png,stats")
    assert done.returncode == 0, done.stderr
    told = done.stdout.decode()
    assert told.startswith("20 images\n")
    for word in ("png", "stats", "records", "in all", "free", "images/s"):
        assert word in told
    assert not (tmp_path / "out").exists()
    told = json.loads(fmapviz("shapesnet", inputs, "--out", tmp_path / "out", "--plan", "--json").stdout.splitlines()[0])
    assert (told["event"], told["images"], told["pictures"], told["fits"]) == ("plan", 20, 180, True)


def test_the_command_reports_an_unwritable_directory(fmapviz, inputs, tmp_path):
    done = fmapviz("shapesnet", inputs, "--out", inputs / "0.png", "--plan")
    assert done.returncode == 5, done.stderr


@pytest.mark.thorough
def test_the_command_ends_with_6_where_it_does_not_fit(inputs, tmp_path, full, capsys, monkeypatch):
    full(10_000)
    monkeypatch.setattr(sys, "argv", ["fmapviz", "shapesnet", str(inputs), "--out", str(tmp_path / "out"), "--plan"])
    assert app._main() == 6
    assert "it does not fit" in capsys.readouterr().out
