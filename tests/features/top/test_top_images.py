"""The top images of a run equal those of a plain sort with NumPy, for any way to execute it."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from itertools import count, product
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import thorough
from extras import needs
from image_files import paint, pixels_of, prepared, save_pixels
from PIL import Image
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_runs import AS_IT_IS
from torch import nn
from trees import difference, problems, snapshot

import fmapviz as facade
from fmapviz import TopImages, top_images, visualize
from fmapviz.config import InputOptions, Part
from fmapviz.errors import NothingToDoError, RefusedError, RequestError
from fmapviz.events import Notice
from fmapviz.features.top.locate import Position
from fmapviz.features.top.options import TopOptions
from fmapviz.features.top.tiles import draw_tile
from fmapviz.images.find import in_natural_order
from fmapviz.images.preprocess import IMAGENET_MEAN, IMAGENET_STD
from fmapviz.observe.layers import find_layers
from fmapviz.observe.receptive_field import trace_fields
from fmapviz.run.plan import make_plan

NUMBERS = ("channel", "rank", "y", "x", "left", "top", "right", "bottom", "copies")
SIDE = 96  # of a tile


class TwoMaps(nn.Module):
    """A convolution, an in-place ReLU, and a convolution that runs twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 5, 3, stride=2, padding=1)
        self.again = nn.Conv2d(5, 5, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.again(self.relu(self.again(self.relu(self.first(x))))))


@pytest.fixture
def pictures(tmp_path):
    """Pictures whose names are not in the order of the alphabet; two are equal."""
    paths = [paint(tmp_path / f"pictures/x{number}.png", number) for number in (1, 2, 10, 3, 21, 4, 5)]
    shutil.copy(paths[0], tmp_path / "pictures/copy.png")
    return tmp_path / "pictures"


def draw(inputs, out, model=None, **options):
    common = {"views": ["top"], "to": ["png"], "types": ["Conv2d", "ReLU"], "preprocessing": AS_IT_IS, "workers": 2}
    return visualize(model or TwoMaps(), inputs, out=out, **{**common, **options})


def table(run):
    with (Path(run) / "top.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{name: int(text) if name in NUMBERS and text else text for name, text in row.items()} for row in rows]


def expected(run, k, by=np.max):
    """Rank the raw values of a run with NumPy, and find where they are."""
    values = {
        path.parent.relative_to(run).as_posix(): load_file(path)
        for path in sorted(Path(run).rglob("raw.safetensors"), key=lambda path: in_natural_order(path.parent.parts))
    }
    names = [name for name in values if name != "x1.png"]  # equal to copy.png, which comes first
    rows = []
    for layer in next(iter(values.values())):
        maps = np.stack([values[name][layer] for name in names])
        scores = by(maps.astype(np.float64 if by is np.mean else np.float32), axis=(2, 3)).astype(np.float32)
        scores = -scores if by is np.min else scores
        for channel in range(maps.shape[1]):
            if (scores[:, channel] == scores[0, channel]).all():
                continue
            order = np.lexsort((np.arange(len(names)), -scores[:, channel]))[:k]
            for rank, place in enumerate(order):
                own = maps[place, channel]
                y, x = divmod(int(own.argmin() if by is np.min else own.argmax()), own.shape[1])
                rows.append((layer, channel, rank, names[place], y, x))
    return rows


def in_order(rows):
    """Sort rows by layer, channel and rank: a file of raw values has its layers in another order."""
    return sorted(rows, key=lambda row: row[:3])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "by"), [("max", np.max), ("mean", np.mean), ("min", np.min)])
def test_the_table_equals_a_sort_of_all_values(pictures, tmp_path, name, by):
    run = draw(pictures, tmp_path / "out", views=["maps"], to=["raw", "stats"]).directory
    summary = top_images(run, k=3, by=name, model=TwoMaps(), preprocessing=AS_IT_IS)
    found = in_order(tuple(row[key] for key in ("layer", "channel", "rank", "image", "y", "x")) for row in table(run))
    wanted = in_order(expected(run, 3, by))
    if by is np.mean:  # sums depend on their order in the last digit, and so may the order of nearly equal images
        assert [row[:3] for row in found] == [row[:3] for row in wanted]
        assert np.mean([own[3:] == other[3:] for own, other in zip(found, wanted, strict=True)]) > 0.95
    else:
        assert found == wanted
    assert not summary.lost
    assert not any(row["note"] for row in table(run))
    assert {row["copies"] for row in table(run) if row["image"] == "copy.png"} == {2}
    assert problems(run.parent) == []


@pytest.mark.thorough
def test_values_and_boxes_are_those_of_the_layer(pictures, tmp_path):
    run = draw(pictures, tmp_path / "out", to=["raw", "png"], views=["maps", "top"]).directory
    for row in table(run):
        raw = load_file(run / row["image"] / "raw.safetensors")[row["layer"]]
        assert np.float32(row["value"]) == raw[row["channel"], row["y"], row["x"]] == raw[row["channel"]].max()
        reach = {"first": 1, "relu": 1, "again": 3, "relu#2": 3, "again#2": 5, "relu#3": 5}[row["layer"]]
        top, left = 2 * row["y"] - reach, 2 * row["x"] - reach
        box = tuple(row[side] for side in ("left", "top", "right", "bottom"))
        assert box == (max(0, left), max(0, top), min(20, left + 2 * reach + 1), min(16, top + 2 * reach + 1))
        assert box == tuple(int(row[f"file_{side}"]) for side in ("left", "top", "right", "bottom"))


WAYS = {
    "one worker": {"workers": 1},
    "four workers": {"workers": 4},
    "other formats": {"to": ["stats"]},
}


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_top_images_do_not_depend_on_workers_and_batches(pictures, tmp_path, way):
    plain = draw(pictures, tmp_path / "plain").directory
    other = draw([*sorted(pictures.iterdir(), reverse=True)], tmp_path / "other", **WAYS[way]).directory
    assert (plain / "top.csv").read_bytes() == (other / "top.csv").read_bytes()


@pytest.mark.thorough
@needs("pyarrow", "scale")
@pytest.mark.parametrize("size", [1, 3, 100])
def test_shards_keep_the_images_of_top_values(pictures, tmp_path, size):
    plain = draw(pictures, tmp_path / "plain", to=["stats"]).directory
    sharded = draw(pictures, tmp_path / "sharded", to=["stats"], shard=size).directory
    assert (plain / "top.csv").read_bytes() == (sharded / "top.csv").read_bytes()
    assert problems(sharded.parent) == []
    with pytest.raises(RequestError, match="rank 16 images per channel, not 17"):
        top_images(sharded, k=17, model=TwoMaps(), preprocessing=AS_IT_IS)


@pytest.mark.thorough
def test_rounding_of_batches_is_not_reported_as_a_difference(pictures, tmp_path):
    run = draw(pictures, tmp_path / "out", batch_size=3).directory
    assert not any(row["note"] for row in table(run))


@pytest.mark.thorough
def test_parts_have_the_table_of_a_whole_run(pictures, tmp_path):
    plain = draw(pictures, tmp_path / "plain").directory
    for number in (2, 1, 3):
        parted = draw(pictures, tmp_path / "parted", part=Part(number, 3)).directory
    assert (plain / "top.csv").read_bytes() == (parted / "top.csv").read_bytes()
    assert problems(parted.parent) == []


@pytest.mark.thorough
def test_new_images_are_ranked_among_the_old_ones(pictures, tmp_path):
    options = {"types": ["Conv2d"]}
    plain = draw(pictures, tmp_path / "plain", **options).directory
    some = sorted(pictures.iterdir())[:3]
    first = draw(some, tmp_path / "grown", **options)
    assert first.done == 3
    before = (first.directory / "top.csv").read_bytes()
    again = draw(some, tmp_path / "grown", **options)
    assert (again.skipped, again.pictures) == (3, 0)  # nothing is drawn again
    grown = draw(pictures, tmp_path / "grown", **options).directory
    assert before != (grown / "top.csv").read_bytes() == (plain / "top.csv").read_bytes()
    assert problems(grown.parent) == []


@pytest.mark.ray
@needs("ray", "ray")
@pytest.mark.thorough
def test_ray_computes_the_same_table(pictures, tmp_path):
    plain = visualize("shapesnet", pictures, out=tmp_path / "plain", views="top", to="stats", layers="*.3.conv").directory
    engine = facade.types.Engine(workers=2)
    spread = visualize(
        "shapesnet", pictures, out=tmp_path / "ray", views="top", to="stats", engine=engine, layers="*.3.conv"
    ).directory
    assert (plain / "top.csv").read_bytes() == (spread / "top.csv").read_bytes()


@pytest.mark.thorough
@needs("moto", "oracles")
def test_a_remote_run_has_the_same_table(bucket, pictures, tmp_path):
    plain = visualize("shapesnet", pictures, out=tmp_path / "plain", views="top", to="stats", layers="*.3.conv").directory
    remote = visualize("shapesnet", pictures, out="s3://photos/runs", to="stats", layers="*.3.conv").directory
    summary = top_images(str(remote))
    assert str(summary.table) == "s3://photos/runs/shapesnet/top.csv"
    assert bucket.get("runs/shapesnet/top.csv") == (plain / "top.csv").read_bytes()


def test_the_crop_of_a_top_image_shows_the_template(tmp_path):
    """One of twelve pictures of noise contains what the filter looks for."""
    rng = np.random.default_rng(0)
    template = rng.integers(0, 256, (7, 7, 3)).astype(np.float64)
    kernel = (template - template.mean((0, 1))).transpose(2, 0, 1)
    net = nn.Sequential(nn.Conv2d(3, 2, 7))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor(np.stack([kernel, -kernel])) / 255)
        net[0].bias.zero_()
    for number in range(12):
        pixels = rng.integers(96, 160, (40, 48, 3)).astype(np.uint8)
        if number == 7:
            pixels[21:28, 33:40] = template
        save_pixels(tmp_path / f"noise/{number}.png", pixels)
    run = draw(tmp_path / "noise", tmp_path / "out", net, types=["Conv2d"]).directory
    first = table(run)[0]
    assert (first["image"], first["y"], first["x"]) == ("7.png", 21, 33)
    assert [first[f"file_{side}"] for side in ("left", "top", "right", "bottom")] == ["33", "21", "40", "28"]
    page = pixels_of(next((run / "_top").glob("*.png")))
    tiles = [tile for tile in tiles_of(page, 7, template.astype(np.uint8)) if tile]
    assert tiles == [True]


def tiles_of(page, side, wanted):
    """Return for each place of a page whether the tile there shows the wanted pixels, each as a sharp rectangle."""
    shown = np.asarray(Image.fromarray(wanted).resize((SIDE, SIDE), Image.Resampling.NEAREST))
    views = np.lib.stride_tricks.sliding_window_view(page, shown.shape)[:, :, 0]
    corner = (views[:, :, 0, 0] == shown[0, 0]).all(2)
    return [bool((views[y, x] == shown).all()) for y, x in zip(*np.nonzero(corner), strict=True)]


def test_boxes_are_in_the_pixels_of_the_file(tmp_path):
    """A rotated photo: the crop is of the stored pixels."""
    upright = np.full((60, 120, 3), 40, np.uint8)
    upright[10:20, 70:80] = 255
    (tmp_path / "photos").mkdir()
    exif = Image.Exif()
    exif[274] = 6  # stored on its side
    Image.fromarray(np.rot90(upright, 1)).save(tmp_path / "photos/a.png", exif=exif)
    net = nn.Sequential(nn.Conv2d(3, 1, 5))
    nn.init.ones_(net[0].weight)
    run = draw(tmp_path / "photos", tmp_path / "out", net, types=["Conv2d"], preprocessing=InputOptions(size=60)).directory
    (row,) = table(run)
    left, top, right, bottom = (int(row[f"file_{side}"]) for side in ("left", "top", "right", "bottom"))
    stored = np.asarray(Image.open(tmp_path / "photos/a.png"))
    assert stored[top:bottom, left:right].mean() > 200
    assert 5 <= right - left <= 7
    assert 5 <= bottom - top <= 7


@pytest.mark.thorough
def test_fewer_images_than_requested_leave_blanks(pictures, tmp_path):
    run = draw(sorted(pictures.iterdir())[1:3], tmp_path / "out").directory
    ranks = {(row["layer"], row["channel"]): [] for row in table(run)}
    for row in table(run):
        ranks[row["layer"], row["channel"]].append(row["rank"])
    assert all(listed == [0, 1] for listed in ranks.values())


@pytest.mark.thorough
def test_one_image_is_a_top_image(pictures, tmp_path):
    run = draw(pictures / "x2.png", tmp_path / "out").directory
    assert {row["image"] for row in table(run)} == {"x2.png"}


def test_a_constant_channel_has_no_top_images(pictures, tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 2, 1))
    nn.init.zeros_(net[0].weight[0])
    with torch.no_grad():
        net[0].weight[0] = 0
    run = draw(pictures, tmp_path / "out", net, types=["Conv2d"]).directory
    assert {row["channel"] for row in table(run)} == {1}
    drawn = json.loads((run / "_top/unit.json").read_text())
    assert drawn["unit"]["kind"] == "top"


@pytest.mark.thorough
def test_an_image_that_no_longer_exists_is_named(pictures, tmp_path):
    run = visualize("shapesnet", pictures, out=tmp_path / "out", to="stats", layers="*.3.conv").directory
    (pictures / "x3.png").unlink()
    summary = top_images(run, channels="0-3")
    assert summary.lost == ("x3.png",)
    assert summary.exit_code == 3
    gone = [row for row in table(run) if row["image"] == "x3.png"]
    assert gone
    assert {(row["note"], row["y"]) for row in gone} == {("the file is gone", "")}
    assert top_images(run, channels="0-3").exit_code == 3  # still
    assert {row["note"] for row in table(run) if row["image"] != "x3.png"} == {""}
    assert any("x3.png" in notice for notice in summary.notices)


@pytest.mark.thorough
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("size", [None, 3])
def test_an_image_that_has_changed_is_not_drawn(pictures, tmp_path, inside, size):
    run = visualize("shapesnet", pictures, out=tmp_path / "out", to="stats", shard=size, layers="*.3.conv").directory
    before = (pictures / "x3.png").stat()
    kept = (pictures / "x3.png").read_bytes()
    shutil.copy(pictures / "x4.png", pictures / "x3.png")
    (pictures / "x5.png").unlink()
    summary = top_images(run, inside=inside)
    assert (summary.lost, summary.exit_code) == (("x3.png", "x5.png"), 3)
    notes = {row["note"] for row in table(run) if row["image"] == "x3.png"}
    assert notes == (set() if inside else {"the file has changed"})
    (pictures / "x3.png").write_bytes(kept)
    os.utime(pictures / "x3.png", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert top_images(run, inside=inside).lost == ("x5.png",)
    assert {row["note"] for row in table(run) if row["image"] == "x3.png"} <= {""}


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", ["gone", "unreadable", "changed"])
def test_former_pages_are_kept_if_no_image_can_be_read(pictures, tmp_path, how):
    options = {"views": "top", "to": "png", "layers": "*.3.conv"}
    run = visualize("shapesnet", pictures, out=tmp_path / "out", **options).directory
    before = snapshot(run)
    for path in pictures.iterdir():
        state = path.stat()
        path.unlink()
        if how != "gone":
            path.write_bytes(b"\0" * state.st_size)
        if how == "unreadable":  # a file of the same size and time
            os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    for more in ({}, {"k": 3}, {"inside": True}):
        with pytest.raises(NothingToDoError, match="can be read any more"):
            top_images(run, force=True, **more)
    with pytest.raises(NothingToDoError, match=r"copy\.png, x2\.png, .* and 3 more \(.*\)") as refused:
        top_images(run, k=2)
    assert "restore their files" in refused.value.hint
    assert snapshot(run) == before


@pytest.mark.thorough
def test_a_run_is_complete_if_its_former_images_are_gone(pictures, tmp_path):
    run = draw(pictures, tmp_path / "out").directory
    paint(tmp_path / "new/y.png", 0)
    (pictures / "x5.png").replace(tmp_path / "new/y.png")  # equal to a former image, which is the one that is ranked
    shutil.rmtree(pictures)
    before, told = snapshot(run / "_top"), []
    summary = draw(tmp_path / "new", tmp_path / "out", on_event=told.append)
    assert (summary.done, summary.exit_code) == (1, 0)
    assert [each for each in told if isinstance(each, Notice) and "no top images: none of" in each.message]
    assert snapshot(run / "_top") == before


@pytest.mark.thorough
def test_channels_that_do_not_exist_are_refused(pictures, tmp_path):
    run = visualize("shapesnet", pictures, out=tmp_path / "out", to="stats", layers="*.3.conv").directory
    with pytest.raises(RequestError, match="no layer has channel 999"):
        top_images(run, channels="999")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("chosen", "announced"),
    [
        ({"channels": "3"}, "1 channel on 1 page (png)"),
        *thorough(
            ({"channels": "0,3", "layers": "*.3.conv"}, "2 channels on 1 page (png)"),
            ({"channels": "0,3", "layers": ["*.2.conv", "*.3.conv"]}, "4 channels on 2 pages (png)"),
            ({"layers": ["*.2.conv", "*.3.conv"], "to": "svg,png"}, "80 channels on 3 pages (png, svg)"),
        ),
    ],
)
def test_the_chosen_channels_are_announced(chosen, announced, pictures, tmp_path):
    layers = chosen.get("layers", "*.3.conv")
    run = visualize("shapesnet", pictures, out=tmp_path / "out", to="stats", layers=layers).directory
    told = []
    summary = top_images(run, k=1, **chosen, on_event=told.append)
    (notice,) = [each.message for each in told if isinstance(each, Notice) and "through the network again" in each.message]
    assert notice.startswith(f"top images of {announced}: ")
    assert f" on {summary.pictures} page" in notice


@pytest.mark.thorough
def test_a_notice_names_the_top_images_that_are_replaced(pictures, tmp_path):
    run = visualize("shapesnet", pictures, out=tmp_path / "out", to="stats", layers=["*.2.conv", "*.3.conv"]).directory

    def replaced(**options):
        told = [notice.partition("the earlier top images, of ")[2] for notice in top_images(run, k=1, **options).notices]
        return list(filter(None, told))

    assert replaced(to="png,tensorboard") == []
    assert replaced(to="png,tensorboard", force=True) == []  # the same again
    two = "2 layers (3 files in png, 1 file in tensorboard), were replaced"
    assert replaced(layers="*.3.conv", to="svg") == [two]
    assert replaced(layers="*.3.conv", to="svg", channels="0-3") == ["1 layer (2 files in svg), were replaced"]
    paint(pictures / "new.png", 77)
    visualize("shapesnet", pictures, out=tmp_path / "out", to="stats", layers=["*.2.conv", "*.3.conv"])
    assert replaced(layers="*.3.conv", to="svg,png", channels="0-3") == []  # the same pages, of other images
    assert replaced(layers="*.3.conv", to="svg", channels="0-3") == ["1 layer (1 file in png, 1 file in svg), were replaced"]


@pytest.mark.thorough
def test_pages_have_the_layer_numbers_of_the_run(pictures, tmp_path):
    run = visualize("shapesnet", pictures, out=tmp_path / "out", to="stats").directory
    for inside in (False, True):
        pages = top_images(run, layers="*.7.conv", inside=inside).pages
        assert {path.name.partition("_")[0] for path in pages.glob("*.png")} == {"07"}


PASSES = []  # of the network below, with pictures: fields are followed with a grey one


class Counted(TwoMaps):
    def forward(self, x):
        if len(x.unique()) > 1:
            PASSES.append(len(x))
        return super().forward(x)


@pytest.mark.thorough
def test_each_ranked_image_is_forwarded_once_and_no_other(pictures, tmp_path):
    net = Counted()
    run = draw(pictures, tmp_path / "out", net, to=["stats"], views=["maps"]).directory
    PASSES.clear()
    summary = top_images(run, k=1, model=net, preprocessing=AS_IT_IS)
    ranked = {row["image"] for row in table(run)}
    assert 1 < len(ranked) < 7
    assert [1] * len(ranked) == PASSES
    assert summary.images == len(ranked)
    PASSES.clear()
    top_images(run, k=1, model=net, preprocessing=AS_IT_IS)  # it is drawn
    assert PASSES == []


@pytest.mark.thorough
def test_a_page_has_the_size_of_the_receptive_field_as_a_fact(pictures, tmp_path):
    run = draw(pictures, tmp_path).directory
    with Image.open(next((run / "_top").glob("*.png"))) as page:
        facts = page.text
    assert re.fullmatch(r"\d+ x \d+ pixels", facts["Receptive field"])


@pytest.mark.thorough
def test_pages_are_steps_in_tensorboard(pictures, tmp_path):
    run = visualize("shapesnet", pictures, out=tmp_path, views="top", to="png,tensorboard", layers="*.3.conv").directory
    events = EventAccumulator(str(run / "_top"), size_guidance={"tensors": 0}).Reload()
    (tag,) = events.Tags()["tensors"]
    assert tag == "top/00 features.3.conv"
    steps = events.Tensors(tag)
    assert [step.step for step in steps] == [0, 1]  # 48 channels, 32 on a page
    pages = sorted((run / "_top").glob("*.png"), key=lambda path: path.name.count("."))
    assert [page.name for page in pages] == ["00_features.3.conv.top.png", "00_features.3.conv.top.2.png"]
    assert [step.tensor_proto.string_val[2] for step in steps] == [page.read_bytes() for page in pages]


@pytest.mark.thorough
def test_the_crop_of_top_images_may_be_chosen(samples, tmp_path):
    shapes = [samples / "shapes" / f"{name}.jpg" for name in ("ring", "star")]
    run = visualize("shapesnet", shapes, out=tmp_path, to="png,stats", layers="*.[07].conv").directory
    pages = {}
    for crop in ("auto", "field", "whole"):
        folder = top_images(run, crop=crop, k=1, channels="0-3").pages
        for layer in ("00_features.0.conv", "01_features.7.conv"):
            pages[crop, layer] = pixels_of(folder / f"{layer}.top.png")
    for layer, like in (("00_features.0.conv", "field"), ("01_features.7.conv", "whole")):
        np.testing.assert_array_equal(pages["auto", layer], pages[like, layer])
        assert (pages["field", layer] != pages["whole", layer]).any()
    first = next(row for row in table(run) if row["layer"] == "features.7.conv")
    seen = pixels_of(run / first["image"] / "input.png")
    windows = np.lib.stride_tricks.sliding_window_view(pages["whole", "01_features.7.conv"], (SIDE, SIDE, 3))[:, :, 0]
    alike = windows[(windows[:, :, :4, :4] == seen[:4, :4]).mean((2, 3, 4)) > 0.9]
    same = max((window == seen).all(2).mean() for window in alike)
    assert 0.7 < same < 1  # all but the contour


@pytest.mark.thorough
def test_a_killed_command_is_completed_by_the_next(begin, fmapviz, pictures, tmp_path):
    arguments = ["shapesnet", pictures, "--view", "top", "--to", "png,html", "--out"]
    assert fmapviz(*arguments, "plain").returncode == 0
    with begin(*arguments, "out") as command:
        while b"top images of" not in (line := command.stderr.readline()):
            assert line
        command.process.kill()
        command.process.wait()
    run = tmp_path / "out/shapesnet"
    assert not (run / "top.csv").exists()
    assert fmapviz(*arguments, "out").returncode == 0
    assert difference(snapshot(run), snapshot(tmp_path / "plain/shapesnet")) == []
    assert problems(run.parent) == []


@pytest.mark.thorough
def test_a_damaged_page_is_drawn_again(fmapviz, pictures, tmp_path):
    run = visualize("shapesnet", pictures, out=tmp_path / "out", to=["png", "stats"]).directory
    top_images(run, layers="*.3.conv", k=2)
    page = next((run / "_top").glob("*.png"))
    whole, names = page.read_bytes(), sorted(path.name for path in (run / "_top").iterdir())
    page.write_bytes(whole[:-100])
    assert len(problems(run.parent)) == 1
    fmapviz("shapesnet", pictures, "--out", "out", "--to", "png,stats", "--repair", cwd=tmp_path)
    assert problems(run.parent) == []
    assert page.read_bytes() == whole
    assert sorted(path.name for path in (run / "_top").iterdir()) == names


@pytest.mark.thorough
def test_a_run_in_a_store_draws_them_as_it_ends(bucket, pictures, tmp_path):
    options = {"views": ["top"], "to": ["png"], "layers": "*.3.conv"}
    plain = visualize("shapesnet", pictures, out=tmp_path / "plain", **options).directory
    for number in (1, 2):
        visualize("shapesnet", pictures, out="s3://photos/runs", part=Part(number, 2), **options)
    saved = bucket.save("runs/", tmp_path / "saved") / "shapesnet"
    assert (plain / "top.csv").read_bytes() == (saved / "top.csv").read_bytes()
    pages = [path.relative_to(plain) for path in (plain / "_top").glob("*.png")]
    assert pages
    assert all((plain / page).read_bytes() == (saved / page).read_bytes() for page in pages)


@pytest.mark.thorough
def test_formats_that_show_no_pages_are_refused(pictures, tmp_path):
    run = draw(pictures, tmp_path).directory
    for form, match in {"gif": "pages, not films", "stats": "shows no pictures"}.items():
        with pytest.raises(RequestError, match=match):
            top_images(run, model=TwoMaps(), preprocessing=AS_IT_IS, to=form)
    for word in ("nope", "maps"):
        with pytest.raises(RequestError, match="no such format") as refused:
            top_images(run, model=TwoMaps(), preprocessing=AS_IT_IS, to=word)
        assert refused.value.hint == "there are: channels, png, svg, tar, tensorboard"
    with pytest.raises(RequestError, match="channels must be numbers, not 'x'"):
        top_images(run, model=TwoMaps(), preprocessing=AS_IT_IS, channels="x")


def test_a_run_without_statistics_is_refused(fmapviz, pictures, tmp_path):
    visualize("shapesnet", pictures, out=tmp_path / "out", to="png")
    refused = fmapviz("top", "out/shapesnet")
    assert refused.returncode == 2
    assert b"keeps no statistics" in refused.stderr
    assert b"`fmapviz shapesnet INPUT... --to png,stats` makes them" in refused.stderr


NET = """
import torch
def build():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
"""


@pytest.mark.thorough
def test_a_network_of_a_file_is_loaded_again(fmapviz, pictures, tmp_path):
    (tmp_path / "net.py").write_text(NET)
    torch.manual_seed(0)
    torch.save(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).state_dict(), tmp_path / "one.pth")
    drawn = fmapviz("net.py:build", "pictures", "--weights", "one.pth", "--to", "stats", "--size", "16", cwd=tmp_path)
    assert drawn.returncode == 0
    run = tmp_path / "runs/net.py_build"
    elsewhere = fmapviz("top", run, cwd=pictures)
    assert elsewhere.returncode == 2
    assert b"relative to the directory where it was made" in elsewhere.stderr
    (tmp_path / "one.pth").rename(tmp_path / "two.pth")
    assert fmapviz("top", run, cwd=tmp_path).returncode == 2
    found = fmapviz("top", run, "--weights", "two.pth", cwd=tmp_path)
    assert found.returncode == 0, found.stderr.decode()
    assert [Path(line).name for line in found.stdout.decode().splitlines()] == ["_top", "top.csv"]
    assert table(run)


@pytest.mark.thorough
def test_other_weights_are_refused(pictures, tmp_path):
    run = visualize("shapesnet", pictures, out=tmp_path / "out", to="stats", layers="*.3.conv").directory
    with pytest.raises(RefusedError, match="drawn with something else"):
        top_images(run, weights="random")
    assert not (run / "_top").exists()


ROLLS = count(1)


class Rolls(nn.Module):
    """Not the same twice."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1)

    def forward(self, x):
        return self.conv(x) * next(ROLLS)


@pytest.mark.thorough
def test_values_that_do_not_reproduce_are_reported(pictures, tmp_path):
    told = []
    net = nn.Sequential(Rolls())
    run = draw(pictures, tmp_path / "out", net, types=["Rolls"], workers=1, on_event=told.append).directory
    notices = [event.message for event in told if isinstance(event, Notice)]
    assert any("were not the same when drawn again" in notice for notice in notices)
    assert all("when drawn again" in row["note"] for row in table(run))


class Nothing(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1)

    def forward(self, x):
        return self.conv(x * torch.nan)


def test_channels_without_a_finite_value_have_no_top_images(pictures, tmp_path):
    summary = draw(pictures, tmp_path / "out", Nothing(), types=["Conv2d"])
    assert table(summary.directory) == []
    assert len([*(summary.directory / "_top").glob("*.png")]) == 1  # it says so
    assert any("no finite one" in notice for notice in summary.notices)
    assert summary.exit_code == 0


@pytest.mark.thorough
def test_inside_ranks_only_positions_whose_field_lies_within_the_picture(pictures, tmp_path):
    run = draw(pictures, tmp_path / "out", views=["maps"], to=["raw", "stats"]).directory
    top_images(run, k=2, inside=True, model=TwoMaps(), preprocessing=AS_IT_IS)
    rows = table(run)
    assert rows
    for row in rows:
        reach = {"first": 1, "relu": 1, "again": 3, "relu#2": 3, "again#2": 5, "relu#3": 5}[row["layer"]]
        box = tuple(row[side] for side in ("left", "top", "right", "bottom"))
        assert box[2] - box[0] == box[3] - box[1] == 2 * reach + 1
        raw = load_file(run / row["image"] / "raw.safetensors")[row["layer"]][row["channel"]]
        ys, xs = (
            [p for p in range(n) if 2 * p >= reach and 2 * p + reach < side]
            for n, side in zip(raw.shape, (16, 20), strict=True)
        )
        inner = max((raw[y, x], -y, -x) for y, x in product(ys, xs))
        assert (np.float32(row["value"]), row["y"], row["x"]) == (inner[0], -inner[1], -inner[2])


@pytest.mark.thorough
def test_the_ranking_in_a_users_loop_equals_that_of_a_run(pictures, tmp_path):
    net = TwoMaps()
    run = draw(pictures, tmp_path / "out", net, to=["stats"]).directory
    own, half, other = TopImages(k=9), TopImages(k=9), TopImages(k=9)
    names = sorted(path.name for path in pictures.iterdir())
    preparing = facade.load_model("shapesnet", preprocessing=InputOptions(fit="none", mean=IMAGENET_MEAN, std=IMAGENET_STD))
    with facade.capture(net, types=["Conv2d", "ReLU"]) as maps, torch.no_grad():
        for number, name in enumerate(names):
            batch = facade.load_image(pictures / name, preparing)
            net(batch)
            own.add([name], maps, inputs=batch)
            (half if number % 2 else other).add(name, maps, inputs=batch)
    half.merge(other)
    read = TopImages.read(run)
    for top in (own, half):
        assert [*top] == [*read]
        for layer in read:
            assert top[layer].images == read[layer].images
            np.testing.assert_array_equal(top[layer].values, read[layer].values)
            assert top[layer].copies == read[layer].copies == {"copy.png": 2}
    shown = [(row["layer"], row["channel"], row["image"]) for row in table(run)]
    assert shown == [
        (layer, channel, name)
        for layer in read
        for channel, listed in enumerate(read[layer].images)
        if not read[layer].constant[channel]
        for name in listed
    ]


def test_wrong_arguments_are_refused_with_a_hint(tmp_path):
    for wrong in ({"k": 0}, {"k": 101}, {"by": "sum"}):
        with pytest.raises(RequestError):
            TopImages(**wrong)
    with pytest.raises(RequestError, match="no run of fmapviz"):
        TopImages.read(tmp_path)
    top = TopImages()
    with pytest.raises(RequestError, match=r"not \(1, C, H, W\)"):
        top.add("x", {"a": torch.zeros(2, 3, 4, 4)})
    with pytest.raises(RequestError, match="other kinds"):
        top.merge(TopImages(k=3))
    with pytest.raises(KeyError):
        top["nothing"]


# --- what must not be taken for right


@pytest.mark.thorough
def test_plain_hooks_have_the_same_values_only_with_a_copy(pictures, tmp_path):
    """The in-place ReLU behind a convolution overwrites what a hook has stored."""
    net = TwoMaps()
    run = draw(pictures, tmp_path / "out", net, to=["stats"]).directory
    names = sorted((path.name for path in pictures.iterdir()), key=lambda name: in_natural_order([name]))
    values = {True: [], False: []}
    for name, copied in product(names, values):
        kept = []
        hook = net.first.register_forward_hook(
            lambda _, __, out, copied=copied, kept=kept: kept.append(out.clone() if copied else out)
        )
        with torch.no_grad():
            net(prepared(pictures / name))
        hook.remove()
        values[copied].append(kept[0][0].amin((1, 2)).numpy())
    lowest = TopImages.read(run, by="min")["first"]
    for copied, found in values.items():
        order = np.lexsort((np.arange(len(names)), np.stack(found)[:, 0]))
        shown = [names[place] for place in order if names[place] != "x1.png"]
        assert (shown == list(lowest.images[0])) == copied


def test_a_contour_follows_the_fields_and_not_aligned_corners():
    """One position of a map is large: the contour surrounds the centre of its field, also near the border."""
    net = nn.Sequential(nn.Conv2d(1, 1, 11, stride=8, padding=0))
    field = find_field(net, (96, 96))
    values = np.zeros((11, 11), np.float32)
    values[0, 9] = 1.0
    position = Position(0, 9, field.box(0, 9), (96, 96))
    plain = np.full((96, 96), 128, np.uint8)
    tile = draw_tile(plain, values, field, position, TopOptions(crop="whole"), centres=field.centres, side=96)
    rows, columns = np.nonzero((tile == (255, 230, 0)).all(2))
    centre = rows.mean() + 0.5, columns.mean() + 0.5
    left, _, right, bottom = field.box(0, 9)
    assert abs(centre[1] - (left + right) / 2) < 1
    assert rows.max() + 0.5 < bottom
    aligned = 95 * 9 / 10
    assert abs(centre[1] - aligned) > 5


def find_field(net, size):
    layers = find_layers(net)
    return trace_fields(net.to("meta"), layers, torch.zeros(1, 1, *size, device="meta"), forward=lambda net, x: net(x))["0"]


@pytest.mark.thorough
def test_a_counter_in_place_of_a_name_would_mix_two_calls(pictures, tmp_path):
    run = draw(pictures, tmp_path / "out", types=["Conv2d"], to=["stats"]).directory
    once, twice = (TopImages.read(run)[name] for name in ("again", "again#2"))
    assert once.images != twice.images
    assert not np.array_equal(once.values, twice.values)


def test_the_plan_has_a_second_pass_and_no_picture_of_an_image():
    plan = make_plan(["top"], targets=(), classes=(), output=None, automatic=True)
    assert plan.second_pass
    assert plan.unscaled == {"top"}
    assert plan.draws == {"output": {"top": None}}
