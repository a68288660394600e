"""Runs over images in memory have the pictures and run-level files of runs over files."""

import gc
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import thorough
from image_files import paint, prepared
from PIL import Image
from tiny_runs import AS_IT_IS, StopError, stop_after_an_image
from trees import problems

import fmapviz
from fmapviz.config import InputOptions
from fmapviz.errors import NothingToDoError
from fmapviz.images.memory import image as memory
from fmapviz.images.preprocess import IMAGENET_MEAN, IMAGENET_STD
from fmapviz.run.estimate import estimate
from fmapviz.store.extract import extract

NET = torch.nn.Sequential(
    torch.nn.Conv2d(3, 4, 3, padding=1),
    torch.nn.ReLU(inplace=True),
    torch.nn.AdaptiveAvgPool2d(1),
    torch.nn.Flatten(),
    torch.nn.Linear(4, 3),
).eval()


@pytest.fixture
def path(tmp_path):
    return paint(tmp_path / "photo.png")


@pytest.fixture
def draw(tmp_path):
    """Return `visualize` with a directory and a format."""

    def run(inputs, **options):
        options = {"out": tmp_path / "runs", "to": "png", "preprocessing": AS_IT_IS, "name": "run"} | options
        return fmapviz.visualize(options.pop("model", NET), inputs, **options)

    return run


def units(summary):
    return sorted(str(path.parent.relative_to(summary.directory)) for path in summary.directory.rglob("unit.json"))


def pixels(unit):
    return {path.name: np.asarray(Image.open(path)) for path in sorted(unit.glob("*.png"))}


def noise(seed, size=(16, 20)):
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)


def test_images_in_memory_have_the_pictures_of_their_files(draw, path):
    picture = Image.open(path)
    array = np.asarray(Image.open(path))
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    batch = torch.cat([prepared(path), prepared(path)])
    given = [path, picture, array, tensor, prepared(path), batch, str(path)]
    options = InputOptions(fit="none", mean=IMAGENET_MEAN, std=IMAGENET_STD)  # else the normalisation would be an assumption
    summary = draw(given, views=["maps", "gradcam"], preprocessing=options)
    assert (summary.done, summary.failed) == (7, 0)
    expected = pixels(summary.directory / "photo.png")
    assert len(expected) == 3
    others = [unit for unit in units(summary) if unit != "photo.png"]
    assert [unit.partition("~")[0] for unit in others] == [*(f"image_{number}" for number in range(2, 7)), "photo.png"]
    for unit in others:
        found = pixels(summary.directory / unit)
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], expected[name]) for name in found), unit
    assert problems(summary.directory) == []


def test_a_repeated_call_skips_finished_images_and_draws_changed_ones(draw, path):
    given = [Image.open(path), noise(1), prepared(path)]
    assert draw(given).done == 3
    again = draw([Image.open(path), noise(1), prepared(path)])
    assert (again.done, again.skipped) == (0, 3)
    changed = draw([Image.open(path), noise(2), prepared(path)])
    assert (changed.done, changed.skipped) == (1, 2)
    names = units(changed)
    assert len(names) == 4  # the earlier picture stays: it is another image
    assert sum(name.startswith("image_1") for name in names) == 2
    assert draw([noise(1)]).done == 1  # under another name
    assert draw(given, force=True).done == 3
    assert problems(changed.directory) == []


@pytest.mark.thorough
def test_pictures_of_one_name_do_not_collide(draw, tmp_path):
    paths = [paint(tmp_path / folder / "photo.png", seed) for seed, folder in enumerate("ab")]
    for _ in range(2):
        summary = draw([*map(Image.open, paths)])
    assert summary.skipped == 2
    first, second = units(summary)
    assert (first, second.partition("~")[0]) == ("photo.png", "photo.png")
    maps = [pixels(summary.directory / unit) for unit in (first, second)]
    assert any(not np.array_equal(maps[0][name], maps[1][name]) for name in maps[0])
    assert draw([*map(Image.open, reversed(paths))]).skipped == 2


def test_a_failed_image_is_named_and_the_others_are_drawn(draw, path, tmp_path):
    damaged = tmp_path / "damaged.png"
    damaged.write_bytes(paint(tmp_path / "whole.png", size=(60, 60)).read_bytes()[:2000])
    with Image.open(damaged) as picture:
        summary = draw([np.zeros((2, 5, 5, 3)), picture, path], on_event=bool)
    assert (summary.done, summary.failed) == (1, 2)
    assert sorted(each.code for each in summary.failures) == ["E_CHANNELS", "E_DECODE"]
    assert all("image_0" in each.message or "damaged.png" in each.message for each in summary.failures)


def test_a_tensor_that_the_network_does_not_take_fails_alone(draw):
    summary = draw([torch.zeros(5, 8, 8), noise(1)], on_event=bool)
    assert (summary.done, summary.failed) == (1, 1)
    assert "image_0" in summary.failures[0].message


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "options",
    [
        {"style": fmapviz.Style(norm="run")},
        {"to": ["png", "raw", "html"]},
        *thorough(
            {"views": ["similarity"], "style": fmapviz.Style(anchor="image_1:3,4")},
            {"workers": 1},
            {"batch_size": 2},
            {"strict": True},
            {"part": fmapviz.types.Part(1, 1)},
        ),
    ],
    ids=str,
)
def test_a_list_and_an_iterator_have_the_same_pictures(draw, options):
    given = [noise(seed) for seed in range(3)]
    of_list = draw(given, **options)
    of_iterator = draw(iter(given), **{**options, "name": "iterator"})
    assert of_list.done == of_iterator.done == 3
    for unit in units(of_list):
        one, other = (pixels(summary.directory / unit) for summary in (of_list, of_iterator))
        assert one
        most = "batch_size" in options  # which images share a pass depends on time, and a pass of two may round differently
        assert all(np.abs(np.subtract(one[name], other[name], dtype=int)).max() <= most for name in one)


@pytest.mark.thorough
def test_an_iterator_is_not_held_in_memory(draw):
    alive = []

    def camera():
        for seed in range(60):
            if seed % 10 == 9:
                gc.collect()
                alive.append(len(memory._known))
            yield noise(seed)

    assert draw(camera(), workers=2).done == 60
    assert max(alive) < 30
    gc.collect()
    assert not memory._known


def test_a_network_and_its_images_are_not_changed(draw, path):
    picture, array, values = Image.open(path), noise(1), torch.randn(1, 3, 8, 8)
    before = array.copy(), values.clone()
    draw([picture, array, values])
    assert np.array_equal(array, before[0])
    assert torch.equal(values, before[1])
    assert picture.filename == str(path)


@pytest.mark.thorough
def test_images_in_memory_are_written_to_shards(draw):
    pytest.importorskip("pyarrow")
    given = [noise(seed) for seed in range(5)]
    options = {"shard": 2, "to": ["tar", "stats"]}
    assert draw(iter(given), **options).done == 5
    again = draw(given, **options)
    assert again.skipped == 5
    (again.directory / "shard-000001" / "pictures.tar").write_bytes(b"")
    repaired = draw(given, **options, repair=True)
    assert (repaired.done, repaired.skipped) == (2, 3)
    assert problems(repaired.directory) == []
    lost = draw(given[:3], **options, force=True, on_event=bool)  # the second shard holds an image that is gone
    assert (lost.done, lost.failed) == (3, 0)


@pytest.mark.thorough
def test_the_report_statistics_and_second_pass_include_images_in_memory(draw, path):
    given = [noise(1), Image.open(path), prepared(paint(path.with_name("b.png"), 5))]
    summary = draw(given, views=["maps", "top"], to=["html", "stats"])
    assert (summary.done, summary.notices) == (3, summary.notices)
    assert (summary.directory / "top.csv").is_file()
    rows = (summary.directory / "top.csv").read_text().splitlines()
    assert {"image_0", "image_2", "photo.png"} <= {cell for row in rows for cell in row.split(",")}
    assert "image_0" in (summary.directory / "index.html").read_text()
    with pytest.raises(NothingToDoError) as refused:  # they were there for the run only
        fmapviz.top_images(summary.directory, model=NET, preprocessing=AS_IT_IS, to="png", force=True)
    assert all(name in str(refused.value) for name in ("image_0", "image_2", "photo.png"))


@pytest.mark.thorough
def test_a_crop_in_the_pixels_of_a_tensor_is_the_preprocessed_region(draw, path):
    """A prepared tensor is its own picture: a box in it is the box in the file if that is not resized."""
    rows = {}
    for name, value in (("file", path), ("tensor", prepared(path))):
        summary = draw([value], views=["maps", "top"], to="stats", name=name)
        table = (summary.directory / "top.csv").read_text().replace("photo.png", "image_0")
        rows[name] = table.splitlines()
    assert rows["file"] == rows["tensor"]
    assert len(rows["file"]) > 2


@pytest.mark.thorough
def test_a_picture_is_extracted_from_a_shard_by_the_name_of_its_image(draw):
    pytest.importorskip("pyarrow")
    given = [noise(3), noise(4)]
    single, shard = draw(given, name="single"), draw(given, name="shard", to="tar", shard=2)
    found = extract(shard.directory, image="image_1", layer="0")
    (expected,) = (single.directory / "image_1").glob("*_0.maps.png")
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(found.png))), np.asarray(Image.open(expected)))


def test_an_interrupted_run_continues(draw):
    given = [noise(seed) for seed in range(4)]
    with pytest.raises(StopError):
        draw(given, on_event=stop_after_an_image, workers=1)
    summary = draw(given)
    assert summary.done + summary.skipped == 4
    assert summary.skipped > 0


def test_images_in_memory_are_refused_for_other_processes_and_dry_runs(draw, tmp_path):
    with pytest.raises(fmapviz.errors.RequestError, match="only this process can read an image in memory: 'image_0'"):
        draw([noise(0)], engine=fmapviz.types.Engine(workers=1))
    from fmapviz.config import RunConfig

    with pytest.raises(fmapviz.errors.RequestError, match="only this process"):
        estimate(RunConfig(NET, [noise(0)], out=tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_the_record_of_an_image_in_memory_names_no_file(draw, path):
    picture = Image.open(path)
    summary = draw([picture], to="stats")
    unit = summary.directory / "photo.png"
    record = json.loads((unit / "unit.json").read_text())
    assert memory.is_in_memory(record["unit"]["path"])
    shutil.rmtree(unit)
    assert draw([picture], to="stats").done == 1
    assert not Path(record["unit"]["path"]).exists()


def test_a_clip_is_drawn_by_a_video_network(draw):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv3d(3, 2, 3, padding=1)

        def forward(self, x):
            return self.conv(x).mean((2, 3, 4))

    summary = draw(torch.rand(2, 3, 4, 8, 8), model=Net())
    assert units(summary) == ["image_0", "image_1"]
    assert len([*(summary.directory / "image_0").glob("*.t*.maps.png")]) == 4
