"""Many images in one directory: its content, with the promises of an image's directory."""

from __future__ import annotations

import io
import json
import shlex
import shutil
import threading
from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from cases import each_once, often
from extras import parquet
from faults import Net
from image_files import paint
from PIL import Image as PillowImage
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_runs import SAID
from trees import difference, snapshot

from fmapviz.config import InputOptions, Part, Style
from fmapviz.errors import DamagedError, RefusedError, RequestError
from fmapviz.events import Notice, Outcome, Staged
from fmapviz.run.loop import visualize
from fmapviz.store import extract
from fmapviz.store.shards.shard import find_shards
from fmapviz.store.unit import read_unit
from fmapviz.store.verify import verify

FORMATS = ["tar", "tensorboard", "stats"]


def draw(inputs, out, *, net=None, **options):
    given = {"to": FORMATS, "shard": 3, "preprocessing": InputOptions(fit="none"), "workers": 2, "name": "run"}
    return visualize(net or Net(), inputs, out=out, **{**given, **options})


@pytest.fixture
def inputs(tmp_path):
    folder = tmp_path / "in"
    for number in range(8):
        paint(folder / ("more" if number < 2 else "") / f"{number}.png", number)
    return folder


def members(run):
    """Return the names of the images in each shard."""
    return {
        shard.name: [image["name"] for image in read_unit(shard)["images"] if "failed" not in image]
        for shard in find_shards(run)
        if read_unit(shard)
    }


def samples(run, shard="shard-000000"):
    """Read a shard's archive with WebDataset from an open file: it may not close a path."""
    from extras import webdataset

    with (run / shard / "pictures.tar").open("rb") as stream:
        found = webdataset.tariterators.tar_file_expander([{"url": shard, "stream": stream}])
        return list(webdataset.tariterators.group_by_keys(found))


def problems(out):
    return [f"{problem.path.name} {problem.message}" for each in verify(out) for problem in each.problems]


ALL = {
    "shard-000000": ["2.png", "3.png", "4.png"],
    "shard-000001": ["5.png", "6.png", "7.png"],
    "shard-000002": ["more/0.png", "more/1.png"],
}

# --- content of a shard


def test_consecutive_images_share_a_directory(inputs, tmp_path):
    reported = []
    summary = draw(inputs, tmp_path / "out", on_event=reported.append)
    assert members(tmp_path / "out/run") == ALL
    assert (summary.found, summary.done, summary.pictures, summary.exit_code) == (8, 8, 24, 0)
    outcomes = [event for event in reported if isinstance(event, Outcome)]
    assert Counter(outcome.unit.name for outcome in outcomes) == {name: len(images) for name, images in ALL.items()}
    assert Counter(event.path for event in reported if isinstance(event, Staged)) == Counter(each.path for each in outcomes)
    assert problems(tmp_path / "out") == []


@pytest.mark.thorough
def test_webdataset_reads_the_pictures_of_a_run_without_shards(inputs, tmp_path):
    draw(inputs, tmp_path / "out")
    draw(inputs, tmp_path / "single", shard=None, to="png")
    for number, (shard, names) in enumerate(ALL.items()):
        read = samples(tmp_path / "out/run", shard)
        assert [sample["__key__"] for sample in read] == [f"{3 * number + place:010}" for place in range(len(names))]
        for sample, name in zip(read, names, strict=True):
            place = tmp_path / "single/run" / name
            assert sample["input.png"] == (place / "input.png").read_bytes()
            assert sample["l00.png"] == (place / "00_first.maps.png").read_bytes()
            assert sample["l01.png"] == (place / "01_second.maps.png").read_bytes()
            described = json.loads(sample["json"])
            assert described["image"] == name
            assert described["path"] == str(inputs / name)
            assert described["pictures"]["l01.png"]["layer"] == "second"


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # its own
def test_webdataset_decodes_the_pictures(inputs, tmp_path):
    from extras import webdataset

    draw(inputs, tmp_path / "out")
    pattern = str(tmp_path / "out/run/shard-{000000..000002}/pictures.tar")
    dataset = webdataset.WebDataset(pattern, shardshuffle=False).decode("rgb8").to_tuple("__key__", "l00.png", "json")
    read = list(dataset)
    assert [key for key, _, _ in read] == [f"{number:010}" for number in range(8)]
    assert read[7][1].dtype == np.uint8
    assert read[7][2]["image"] == "more/1.png"


def test_names_of_files_layers_and_classes_are_not_keys_of_an_archive(tmp_path):
    paint(tmp_path / "in/x%2f evil.name.json.png", 0)

    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("/x y", torch.nn.Conv2d(3, 2, 1))

        def forward(self, x):
            return getattr(self, "/x y")(x)

    draw(tmp_path / "in", tmp_path / "out", net=Odd())
    (sample,) = samples(tmp_path / "out/run")
    assert {key for key in sample if not key.startswith("__")} == {"input.png", "l00.png", "json"}


@pytest.mark.thorough
def test_several_views_and_classes_have_their_own_fields(tmp_path):
    visualize(
        "shapesnet", "sample_images/shapes", out=tmp_path, shard=2, to="tar", views=["maps", "mean", "gradcam"],
        targets=["top2"], layers=["features.7*"], name="run",
    )  # fmt: skip
    fields = [field for field in samples(tmp_path / "run")[0] if not field.startswith("__")]
    assert fields == ["input.png", "l00.png", "l00.mean.png", "l00.gradcam.png", "l00.gradcam.2.png", "json"]
    described = json.loads(samples(tmp_path / "run")[0]["json"])["pictures"]
    assert [each["view"] for each in described.values()] == ["input", "maps", "mean", "gradcam", "gradcam"]


def test_tensorboard_shows_the_images_as_steps(inputs, tmp_path):
    draw(inputs, tmp_path / "out", views=["maps", "histogram"])
    accumulated = EventAccumulator(str(tmp_path / "out/run/shard-000001"), size_guidance={"tensors": 0}).Reload()
    assert set(accumulated.Tags()["tensors"]) >= {"input/input", "maps/00 first", "maps/01 second", "values/00 first"}
    shown = accumulated.Tensors("maps/01 second")
    assert [event.step for event in shown] == [3, 4, 5]
    assert [event.tensor_proto.string_val[2] for event in shown] == [
        sample["l01.png"] for sample in samples(tmp_path / "out/run", "shard-000001")
    ]
    description = accumulated.summary_metadata["maps/01 second"].summary_description
    assert "Conv2d" in description
    assert "Range" not in description  # of one image only
    assert "Image" not in description


@pytest.mark.thorough
def test_statistics_are_those_of_single_images(inputs, tmp_path):
    draw(inputs, tmp_path / "out")
    draw(inputs, tmp_path / "single", shard=None, to="stats")
    ours, theirs = (json.loads((tmp_path / place / "run/stats.json").read_bytes()) for place in ("out", "single"))
    assert ours["images"] == theirs["images"] == 8
    assert len(ours["layers"]) == len(theirs["layers"]) == 2
    for one, other in zip(ours["layers"], theirs["layers"], strict=True):
        for name, value in other.items():
            if name in {"mean", "std"}:
                assert np.allclose(one[name], value, rtol=1e-6)
            else:
                assert one[name] == value, name


def test_a_shard_has_its_own_statistics(inputs, tmp_path):
    draw(inputs, tmp_path / "out")
    rows = parquet.read_table(tmp_path / "out/run/shard-000002/stats.parquet").to_pylist()
    assert [(row["layer"], row["channel"], row["images"]) for row in rows] == [
        ("first", 0, 2), ("first", 1, 2), ("second", 0, 2), ("second", 1, 2), ("second", 2, 2),
    ]  # fmt: skip
    net = Net()
    values = [net.first(tensor_of(inputs / name)) for name in ALL["shard-000002"]]
    found = torch.cat([each[:, 1].flatten() for each in values]).double()
    row = rows[1]
    expected = [found.min(), found.max(), found.mean(), found.std(correction=0)]
    assert [row[name] for name in ("min", "max", "mean", "std")] == pytest.approx(
        [value.item() for value in expected], rel=1e-5
    )
    assert row["values"] == len(found)


def tensor_of(path):
    pixels = torch.from_numpy(np.array(PillowImage.open(path))).permute(2, 0, 1)[None] / 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (pixels - mean[:, None, None]) / std[:, None, None]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("formats", [["tar"], ["tensorboard"], ["tensorboard", "tar"]])
def test_the_index_locates_each_picture(inputs, tmp_path, formats):
    draw(inputs, tmp_path / "out", to=formats)
    run = tmp_path / "out/run"
    rows = parquet.read_table(run / "shard-000001/index.parquet").to_pylist()
    assert [(row["key"], row["image"], row["view"], row["layer"]) for row in rows[:4]] == [
        (3, "5.png", "input", None), (3, "5.png", "maps", "first"), (3, "5.png", "maps", "second"),
        (4, "6.png", "input", None),
    ]  # fmt: skip
    assert rows[1]["shape"] == [2, 14, 18]
    assert rows[1]["type"] == "Conv2d"
    values = Net().first(tensor_of(inputs / "5.png"))
    assert [rows[1][name] for name in ("min", "max", "mean")] == pytest.approx(
        [values.min().item(), values.max().item(), values.mean().item()], rel=1e-5
    )
    for row in rows:
        data = (run / "shard-000001" / row["file"]).read_bytes()[row["offset"] :][: row["bytes"]]
        with PillowImage.open(io.BytesIO(data)) as picture:
            assert picture.size == (row["width"], row["height"])
            assert picture.text["Image"] == row["image"]
            assert picture.text.get("Layer") == row["layer"]


def test_the_index_describes_layers_without_pictures(inputs, tmp_path):
    draw(inputs, tmp_path / "out", to="stats")
    rows = parquet.read_table(tmp_path / "out/run/shard-000000/index.parquet").to_pylist()
    assert [(row["image"], row["layer"]) for row in rows] == [
        (name, layer) for name in ALL["shard-000000"] for layer in ("first", "second")
    ]
    assert {row["file"] for row in rows} == {None}


def test_the_index_has_predictions(tmp_path):
    visualize("shapesnet", "sample_images/shapes", out=tmp_path, shard=6, to="stats", name="run")
    rows = parquet.read_table(tmp_path / "run/shard-000000/index.parquet").to_pylist()
    reported = {row["image"]: row["prediction"] for row in rows}
    assert reported == {f"{name}.jpg": name for name in ("circle", "cross", "ring", "square", "star", "triangle")}


@pytest.mark.thorough
def test_files_of_many_images_record_their_number(inputs, tmp_path):
    draw(inputs, tmp_path / "out")
    entries = {entry["name"]: entry for entry in read_unit(tmp_path / "out/run/shard-000002")["files"]}
    assert entries["pictures.tar"]["members"] == 8  # two images: the input, two layers, what they are
    assert entries["events.out.tfevents.fmapviz"]["members"] == 7  # the file's own header
    tar = tmp_path / "out/run/shard-000002/pictures.tar"
    tar.write_bytes(tar.read_bytes()[: 4 * 1024])  # cut between two members: readers do not notice
    assert problems(tmp_path / "out") == ["pictures.tar 4096 bytes instead of 20480"]


def test_a_single_image_can_have_an_archive(inputs, tmp_path):
    draw(inputs / "2.png", tmp_path / "out", shard=None, to="tar")
    (sample,) = samples(tmp_path / "out/run", "2.png")
    assert sample["__key__"] == "0000000000"
    assert {"input.png", "l00.png", "l01.png", "json"} <= set(sample)


# --- the promises


def test_the_same_command_skips_finished_shards(inputs, tmp_path):
    draw(inputs, tmp_path / "out")
    before = snapshot(tmp_path / "out")
    inode = (tmp_path / "out/run/shard-000000").stat().st_ino
    summary = draw(inputs, tmp_path / "out")
    assert (summary.skipped, summary.done, summary.exit_code) == (8, 0, 0)
    assert difference(snapshot(tmp_path / "out"), before) == []
    assert (tmp_path / "out/run/shard-000000").stat().st_ino == inode


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("gone", [["shard-000000"], ["shard-000001"], ["shard-000002"], ["shard-000000", "shard-000002"]])
def test_a_partial_run_is_completed_to_the_same_result(inputs, tmp_path, gone):
    draw(inputs, tmp_path / "whole")
    draw(inputs, tmp_path / "out")
    for name in gone:
        shutil.rmtree(tmp_path / "out/run" / name)
    summary = draw(inputs, tmp_path / "out")
    assert summary.done == sum(len(ALL[name]) for name in gone)
    assert difference(snapshot(tmp_path / "out"), snapshot(tmp_path / "whole")) == []


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [{"workers": 1}, {"workers": 4}, {"batch_size": 3}, {"workers": 3, "batch_size": 2}])
def test_workers_and_batches_do_not_change_the_tree_of_shards(inputs, tmp_path, options):
    class Pointwise(torch.nn.Module):  # comes out of a batch of any size the same
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Conv2d(3, 3, 1, groups=3, bias=False)
            torch.nn.init.constant_(self.first.weight, 0.5)

        def forward(self, x):
            return self.first(x)

    draw(inputs, tmp_path / "whole", net=Pointwise())
    draw(inputs, tmp_path / "out", net=Pointwise(), **options)
    assert difference(snapshot(tmp_path / "out"), snapshot(tmp_path / "whole")) == []


@pytest.mark.thorough
def test_parts_write_the_shards_of_the_whole_run(inputs, tmp_path):
    draw(inputs, tmp_path / "whole")
    summaries = [draw(inputs, tmp_path / "out", part=Part(number, 2)) for number in (2, 1)]
    assert [(summary.found, summary.done) for summary in summaries] == [(3, 3), (5, 5)]
    assert difference(snapshot(tmp_path / "out"), snapshot(tmp_path / "whole")) == []


@pytest.mark.thorough
def test_new_images_form_new_shards(inputs, tmp_path):
    draw(inputs, tmp_path / "out")
    paint(inputs / "20.png", 20)
    paint(inputs / "0.png", 21)  # comes first
    (inputs / "3.png").unlink()
    summary = draw(inputs, tmp_path / "out")
    assert (summary.skipped, summary.done) == (7, 2)
    assert members(tmp_path / "out/run") == {**ALL, "shard-000003": ["0.png", "20.png"]}
    assert problems(tmp_path / "out") == []


@pytest.mark.thorough
def test_another_folder_joins_the_run(inputs, tmp_path):
    draw(inputs / "more", tmp_path / "out")
    summary = draw(inputs, tmp_path / "out")
    assert (summary.skipped, summary.done) == (2, 6)
    assert [len(names) for names in members(tmp_path / "out/run").values()] == [2, 3, 3]


@pytest.mark.thorough
def test_a_changed_image_redraws_its_whole_shard(inputs, tmp_path):
    draw(inputs, tmp_path / "out")
    paint(inputs / "6.png", 60)
    reference = draw(inputs, tmp_path / "whole")
    summary = draw(inputs, tmp_path / "out")
    # 5.png was passed over before 6.png was found to have changed; 7.png is reported with its shard.
    assert (summary.found, summary.skipped, summary.done) == (8, 6, 2)
    assert reference.done == 8
    shutil.rmtree(tmp_path / "whole/run/shard-000001")
    for tree in ("out", "whole"):
        for name in ("unit.json", "pictures.tar"):
            assert (tmp_path / tree / "run/shard-000000" / name).exists()
    sample = samples(tmp_path / "out/run", "shard-000001")[1]
    with PillowImage.open(io.BytesIO(sample["input.png"])) as seen:
        assert np.array_equal(np.array(seen), np.array(PillowImage.open(inputs / "6.png")))
    assert members(tmp_path / "out/run") == ALL
    assert problems(tmp_path / "out") == []


@pytest.mark.thorough
def test_a_changed_image_whose_neighbour_is_gone_costs_no_picture(inputs, tmp_path):
    draw(inputs, tmp_path / "out")
    paint(inputs / "6.png", 60)
    (inputs / "5.png").unlink()
    before = snapshot(tmp_path / "out/run/shard-000001")
    summary = draw(inputs, tmp_path / "out")
    (failure,) = summary.failures
    assert (failure.code, failure.path, summary.exit_code) == ("E_SHARD", str(inputs / "6.png"), 3)
    assert "5.png" in failure.message
    assert "force=True" in failure.hint
    assert difference(snapshot(tmp_path / "out/run/shard-000001"), before) == []
    summary = draw(inputs, tmp_path / "out", force=True)
    assert (summary.done, summary.exit_code) == (7, 0)
    assert members(tmp_path / "out/run") == {**ALL, "shard-000001": ["6.png", "7.png"]}
    assert problems(tmp_path / "out") == []


@pytest.mark.thorough
def test_a_changed_image_that_cannot_be_drawn_costs_no_picture_of_others(inputs, tmp_path):
    draw(inputs, tmp_path / "out")
    (inputs / "6.png").write_bytes(b"no image")
    before = snapshot(tmp_path / "out/run/shard-000001")
    summary = draw(inputs, tmp_path / "out")
    assert {failure.path: failure.code for failure in summary.failures} == {
        str(inputs / "6.png"): "E_FORMAT", str(inputs / "7.png"): "E_SHARD",
    }  # fmt: skip
    assert difference(snapshot(tmp_path / "out/run/shard-000001"), before) == []


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("reason", ["force", "changed"])
def test_a_shard_that_holds_a_foreign_file_is_not_replaced(inputs, tmp_path, reason):
    draw(inputs, tmp_path / "out")
    notes = tmp_path / "out/run/shard-000001/notes.txt"
    notes.write_text("mine")
    if reason == "changed":
        paint(inputs / "6.png", 60)
    before = snapshot(tmp_path / "out/run/shard-000001")
    drawn = []
    with pytest.raises(RefusedError, match=f"'{notes}' was not made by fmapviz") as raised:
        draw(inputs, tmp_path / "out", force=reason == "force", on_event=drawn.append)
    assert raised.value.exit_code == 6
    assert "move it away" in raised.value.hint
    assert difference(snapshot(tmp_path / "out/run/shard-000001"), before) == []
    notes.unlink()
    assert draw(inputs, tmp_path / "out").exit_code == 0
    assert problems(tmp_path / "out") == []


@pytest.mark.thorough
def test_force_draws_everything_again(inputs, tmp_path):
    draw(inputs, tmp_path / "out")
    before = snapshot(tmp_path / "out")
    inode = (tmp_path / "out/run/shard-000000").stat().st_ino
    summary = draw(inputs, tmp_path / "out", force=True)
    assert (summary.done, summary.skipped) == (8, 0)
    assert difference(snapshot(tmp_path / "out"), before) == []
    assert (tmp_path / "out/run/shard-000000").stat().st_ino != inode


@pytest.mark.thorough
def test_failures_are_reported_and_the_shard_has_the_other_images(inputs, tmp_path):
    (inputs / "3.png").write_bytes(b"no image")
    (inputs / "5.png").write_bytes(b"no image")
    summary = draw(inputs, tmp_path / "out")
    assert (summary.done, summary.failed, summary.exit_code) == (6, 2, 3)
    record = read_unit(tmp_path / "out/run/shard-000000")
    assert [image.get("failed") for image in record["images"]] == [None, "E_FORMAT", None]
    assert [sample["__key__"] for sample in samples(tmp_path / "out/run")] == ["0000000000", "0000000002"]
    rows = parquet.read_table(tmp_path / "out/run/shard-000000/index.parquet").to_pylist()
    assert [(row["key"], row["image"]) for row in rows if row["error"] == "E_FORMAT"] == [(1, "3.png")]
    assert problems(tmp_path / "out") == []
    before = snapshot(tmp_path / "out")
    again = draw(inputs, tmp_path / "out")
    assert (again.skipped, again.failed, again.exit_code) == (6, 2, 3)
    assert difference(snapshot(tmp_path / "out"), before) == []


@pytest.mark.thorough
def test_repaired_images_form_a_new_shard(inputs, tmp_path):
    (inputs / "3.png").write_bytes(b"no image")
    draw(inputs, tmp_path / "out")
    paint(inputs / "3.png", 30)
    summary = draw(inputs, tmp_path / "out")
    assert (summary.skipped, summary.done, summary.exit_code) == (7, 1, 0)
    assert members(tmp_path / "out/run")["shard-000003"] == ["3.png"]
    again = draw(inputs, tmp_path / "out")
    assert (again.skipped, again.failed) == (8, 0)
    assert json.loads((tmp_path / "out/run/stats.json").read_bytes())["images"] == 8


def test_a_shard_of_failures_only_is_not_written(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(4):
        (tmp_path / f"in/{number}.png").write_bytes(b"no image")
    summary = draw(tmp_path / "in", tmp_path / "out")
    assert (summary.failed, summary.exit_code) == (4, 4)
    assert members(tmp_path / "out/run") == {}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "damage"),
    each_once(
        ["pictures.tar", "index.parquet", "stats.parquet", "events.out.tfevents.fmapviz", "unit.json"],
        ["cut", "flip", "remove"],
    ),
)
def test_repair_repairs_a_shard(inputs, tmp_path, name, damage):
    draw(inputs, tmp_path / "out")
    before = snapshot(tmp_path / "out")
    path = tmp_path / "out/run/shard-000001" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    {"cut": lambda: path.write_bytes(data[:100]), "flip": lambda: path.write_bytes(data), "remove": path.unlink}[damage]()
    assert problems(tmp_path / "out") != []
    summary = draw(inputs, tmp_path / "out", repair=True)
    assert (summary.done, summary.skipped) == (3, 5)
    assert difference(snapshot(tmp_path / "out"), before) == []
    assert problems(tmp_path / "out") == []


@pytest.mark.thorough
def test_repair_removes_obsolete_shards(inputs, tmp_path):
    draw(inputs / "more", tmp_path / "out")
    draw(inputs, tmp_path / "out")
    for number in (0, 1):  # of two images, and of three
        (tmp_path / f"out/run/shard-00000{number}/unit.json").write_bytes(b"")
    (tmp_path / "out/run/shard-000002/unit.json").unlink()
    (tmp_path / "out/run/shard-000002/notes.txt").write_text("mine")
    with pytest.raises(RefusedError, match=r"notes\.txt' was not made by fmapviz"):
        draw(inputs, tmp_path / "out", repair=True)
    assert (tmp_path / "out/run/shard-000002/notes.txt").read_text() == "mine"
    (tmp_path / "out/run/shard-000002/notes.txt").unlink()
    summary = draw(inputs, tmp_path / "out", repair=True)
    assert (summary.found, summary.exit_code) == (8, 0)
    assert members(tmp_path / "out/run") == ALL
    assert problems(tmp_path / "out") == []
    for number in (0, 1, 2):
        (tmp_path / f"out/run/shard-00000{number}/unit.json").write_bytes(b"")
    (tmp_path / "out/run/shard-000002/notes.txt").write_text("mine")
    summary = draw([inputs / f"{number}.png" for number in (2, 3, 4)], tmp_path / "out", repair=True)
    assert summary.done == 3
    assert members(tmp_path / "out/run") == {"shard-000000": ["2.png", "3.png", "4.png"]}
    assert sorted(path.name for path in (tmp_path / "out/run/shard-000002").iterdir() if path.suffix == ".txt") == [
        "notes.txt"
    ]


@pytest.mark.thorough
def test_images_are_written_in_order_though_the_first_is_drawn_last(inputs, tmp_path):
    threads = []

    class Slow(Net):
        def forward(self, x):
            threads.append(threading.current_thread())
            if len(threads) == 2:  # the first was drawn alone
                import time

                time.sleep(0.5)
            return super().forward(x)

    draw(inputs, tmp_path / "out", net=Slow(), workers=3, shard=8)
    keys = [sample["__key__"] for sample in samples(tmp_path / "out/run")]
    assert keys == [f"{number:010}" for number in range(8)]


@pytest.mark.thorough
def test_a_run_that_is_stopped_leaves_nothing_staged(inputs, tmp_path):
    def stop(event):
        if isinstance(event, Staged):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw(inputs, tmp_path / "out", on_event=stop)
    assert [path.name for path in (tmp_path / "out/run").iterdir() if path.name.startswith(".")] == []
    draw(inputs, tmp_path / "out")
    draw(inputs, tmp_path / "whole")
    assert difference(snapshot(tmp_path / "out"), snapshot(tmp_path / "whole")) == []


@pytest.mark.thorough
def test_other_sizes_of_shards_are_other_runs(inputs, tmp_path):
    first = draw(inputs, tmp_path / "out", name=None)
    second = draw(inputs, tmp_path / "out", name=None, shard=4)
    assert first.directory != second.directory
    with pytest.raises(RefusedError):
        draw(inputs, tmp_path / "out", name=first.directory.name, shard=None)


@pytest.mark.thorough
def test_shards_have_a_survey(inputs, tmp_path):
    draw(inputs, tmp_path / "out", to="tar", style=Style(norm="run"))
    draw(inputs, tmp_path / "single", to="png", shard=None, style=Style(norm="run"))
    (second, *_), place = samples(tmp_path / "out/run", "shard-000001"), tmp_path / "single/run/5.png"
    assert second["l01.png"] == (place / "01_second.maps.png").read_bytes()
    assert draw(inputs, tmp_path / "out", to="tar", style=Style(norm="run")).skipped == 8
    (tmp_path / "out/run/survey.json").unlink()
    assert problems(tmp_path / "out") == ["survey.json missing"]


@pytest.mark.thorough
def test_kernels_are_drawn_beside_the_shards(inputs, tmp_path):
    summary = draw(inputs, tmp_path / "out", views=["maps", "kernels"])
    assert summary.done == 8
    assert (tmp_path / "out/run/_model/pictures.tar").exists()
    assert problems(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "png"}, "the format 'png' does not support shards"),
        ({"to": ["tar", "html"]}, "the format 'html' does not support shards"),
        ({"shard": 0}, "shard must be 1 to 100000 images: '0'"),
        ({"shard": 100_001}, "shard must be 1 to 100000 images: '100001'"),
    ],
)
def test_impossible_shards_are_refused_before_anything_is_written(inputs, tmp_path, options, message):
    with pytest.raises(RequestError, match=message):
        draw(inputs, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_missing_package_for_tables_has_a_hint(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr("fmapviz.config.run_config.find_spec", lambda _name: None)
    with pytest.raises(RequestError) as raised:
        draw(inputs, tmp_path / "out")
    assert raised.value.hint == "pip install 'fmapviz[scale]'"


@pytest.mark.thorough
def test_a_foreign_directory_in_place_of_a_shard_is_not_changed(inputs, tmp_path):
    draw(inputs / "2.png", tmp_path / "out")
    shutil.rmtree(tmp_path / "out/run/shard-000000")
    (tmp_path / "out/run/shard-000000").mkdir()
    (tmp_path / "out/run/shard-000000/mine.txt").write_text("mine")
    summary = draw(inputs, tmp_path / "out")
    assert summary.done == 8
    assert (tmp_path / "out/run/shard-000000/mine.txt").read_text() == "mine"
    assert sorted(name.partition("~")[0] for name in members(tmp_path / "out/run") if "~" in name) == ["shard-000000"]
    again = draw(inputs, tmp_path / "out")
    assert (again.skipped, again.done) == (8, 0)


# --- one picture back


ASKED, KEPT = ["more/1.png", "1.png", "7", "path"], [["tar"], ["tensorboard"]]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "formats"), often(each_once(ASKED, KEPT), of=product(ASKED, KEPT)))
def test_one_picture_is_extracted(inputs, tmp_path, formats, name):
    draw(inputs, tmp_path / "out", to=formats)
    draw(inputs, tmp_path / "single", shard=None, to="png")
    image = str(inputs / "more/1.png") if name == "path" else name
    for place in ("out", "out/run", "out/run/shard-000002"):
        found = extract.extract(tmp_path / place, image=image, layer="second")
        assert found.png == (tmp_path / "single/run/more/1.png/01_second.maps.png").read_bytes()
        assert found.name == "more_1.png.01_second.maps.png"
    assert extract.extract(tmp_path / "out", image=image, layer="input").name == "more_1.png.input.png"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("typed", ["in/more/1.png", "./in/more/1.png", "in/../in/more/1.png", "./more/1.png"])
def test_an_image_is_found_by_its_path_as_typed_for_the_run(inputs, tmp_path, monkeypatch, typed):
    draw(inputs, tmp_path / "out", to="tar")
    monkeypatch.chdir(tmp_path)
    expected = extract.extract("out", image=str(inputs / "more/1.png"), layer="second")
    assert extract.extract("out", image=typed, layer="second") == expected
    monkeypatch.chdir(tmp_path / "out")  # not the directory of the run's command
    if ".." not in typed:
        assert extract.extract("../out", image=typed, layer="second").png == expected.png


@pytest.mark.thorough
def test_pictures_of_images_of_one_name_have_two_names(tmp_path):
    paths = [paint(tmp_path / "in" / folder / "cat.png", seed) for seed, folder in enumerate(("a", "b"))]
    draw(tmp_path / "in", tmp_path / "out", name="folder")
    draw(paths, tmp_path / "out", name="files")  # both are named `cat.png` in the run
    for run in ("folder", "files"):
        names = {extract.extract(tmp_path / "out" / run, image=str(path), layer="first").name for path in paths}
        assert len(names) == 2, names
        assert all("cat.png" in name and "/" not in name for name in names)


@pytest.mark.thorough
def test_of_several_runs_with_an_image_the_hint_names_one(inputs, tmp_path, fmapviz):
    for name in ("one", "two words"):
        draw(inputs, tmp_path / "all runs", to="tar", name=name)
    refused = fmapviz("extract", "all runs", "--image", "1.png", "--layer", "second", "--view", "maps")
    assert refused.returncode == 2
    error, hint = refused.stderr.decode().splitlines()
    assert error == "error: 2 runs have the image '1.png': all runs/one, all runs/two words"
    command = shlex.split(hint.removeprefix("hint: name one of them: ").strip("`"))
    assert command[:3] == ["fmapviz", "extract", "all runs/one"]
    assert fmapviz(*command[1:]).returncode == 0


def test_pictures_of_no_single_layer_belong_to_the_input(tmp_path):
    views = ["maps", "saliency", "contact", "sheet"]
    options = {
        "net": "shapesnet",
        "preprocessing": InputOptions(),
        "views": views,
        "targets": "star",
        "layers": "features.7.conv",
    }
    star = "sample_images/shapes/star.jpg"
    draw(star, tmp_path / "shards", to="tar", **options)
    single = draw(star, tmp_path / "single", to="png", shard=None, **options).directory / "star.jpg"
    names = {"saliency": "00_input.star.saliency.png", "contact": "contact.png", "sheet": "sheet.png", "input": "input.png"}
    for view, name in names.items():
        found = extract.extract(tmp_path / "shards", image="star.jpg", layer="input", view=view)
        assert (found.name, found.png) == (f"star.jpg.{name}", (single / name).read_bytes())
    assert extract.extract(tmp_path / "shards", image="star.jpg", layer="input") == found
    of_layer = extract.extract(tmp_path / "shards", image="star.jpg", layer="features.7.conv")  # though a sheet has it too
    assert of_layer.name == "star.jpg.00_features.7.conv.maps.png"


@pytest.mark.thorough
def test_of_several_pictures_one_has_to_be_chosen(tmp_path):
    visualize(
        "shapesnet", "sample_images/shapes", out=tmp_path, shard=6, to="tar", views=["maps", "gradcam"], targets=["top2"],
        layers=["features.7*"], name="run",
    )  # fmt: skip
    layer = "features.7.conv"
    with pytest.raises(RequestError, match="several pictures") as raised:
        extract.extract(tmp_path, image="star.jpg", layer=layer)
    assert raised.value.hint.endswith("maps; gradcam top1; gradcam top2")
    found = extract.extract(tmp_path, image="star.jpg", layer=layer, view="gradcam", target="top2")
    assert found.name == "star.jpg.00_features.7.conv.top2.gradcam.png"
    by_class = extract.extract(tmp_path, image="star.jpg", layer=layer, view="gradcam", target="star")
    assert by_class.name == "star.jpg.00_features.7.conv.top1.gradcam.png"
    assert extract.extract(tmp_path, image="star.jpg", layer=layer, view="gradcam", target="STAR") == by_class


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("image", "layer", "message", "hint"),
    [
        ("9.png", "first", "no such image: '9.png'", "did you mean"),
        (
            "photograph",
            "first",
            "no such image: 'photograph'",
            "there are others, such as '2.png', '3.png', '4.png', '5.png'",
        ),
        ("2.png", "frist", "no such layer: 'frist'", "did you mean 'first'"),
        ("3.png", "first", "'3.png' was not drawn: E_FORMAT", None),
    ],
)
def test_a_missing_picture_is_reported(inputs, tmp_path, image, layer, message, hint):  # noqa: PLR0917
    (inputs / "3.png").write_bytes(b"no image")
    draw(inputs, tmp_path / "out")
    with pytest.raises(RequestError) as raised:
        extract.extract(tmp_path / "out", image=image, layer=layer)
    assert str(raised.value) == message
    assert (hint is None and raised.value.hint is None) or hint in raised.value.hint


def test_extraction_from_a_damaged_shard_is_an_error(inputs, tmp_path):
    draw(inputs, tmp_path / "out", to="tar")
    tar = tmp_path / "out/run/shard-000000/pictures.tar"
    tar.write_bytes(b"x" * 2000)
    with pytest.raises(DamagedError):
        extract.extract(tmp_path / "out", image="2.png", layer="first")
    (tar.parent / "index.parquet").write_bytes(b"PAR1 nonsense PAR1")
    with pytest.raises(DamagedError):
        extract.extract(tmp_path / "out", image="2.png", layer="first")


@pytest.mark.thorough
def test_extraction_without_shards_or_pictures_is_refused_with_the_reason(inputs, tmp_path):
    draw(inputs, tmp_path / "single", shard=None, to="png")
    with pytest.raises(RequestError, match="no shards in") as raised:
        extract.extract(tmp_path / "single" / "run", image="2.png", layer="first")
    assert raised.value.hint == "without --shard, pictures are in a directory named like their image"
    packed = draw(inputs, tmp_path / "single", to="tar", name="packed").directory
    with pytest.raises(RequestError, match="no shards in") as raised:
        extract.extract(tmp_path / "single" / "run", image="2.png", layer="first")
    assert raised.value.hint.endswith(f"; there are shards in '{packed}'")
    draw(inputs, tmp_path / "out", to="stats")
    with pytest.raises(RequestError, match="no pictures of 'first' were written"):
        extract.extract(tmp_path / "out", image="2.png", layer="first")


@pytest.mark.thorough
def test_a_forged_index_is_refused(inputs, tmp_path):
    draw(inputs, tmp_path / "out", to="tar")
    path = tmp_path / "out/run/shard-000000/index.parquet"
    table = parquet.read_table(path)
    for name, value in [("file", "../../../in/2.png"), ("file", "/etc/passwd")]:
        column = table.schema.get_field_index(name)
        parquet.write_table(table.set_column(column, name, [[value] * len(table)]), path)
        with pytest.raises(DamagedError):
            extract.extract(tmp_path / "out", image="2.png", layer="first")


@pytest.mark.thorough
def test_a_notice_is_no_picture(inputs, tmp_path):
    reported = []
    draw(inputs, tmp_path / "out", preprocessing=SAID, on_event=reported.append)
    assert not [event for event in reported if isinstance(event, Notice)]


# --- the command


@pytest.mark.thorough
def test_the_command_prints_how_tensorboard_shows_all_images_of_a_shard(fmapviz, inputs, tmp_path):
    done = fmapviz("shapesnet", inputs, "--shard", "5", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert f"tensorboard --logdir {tmp_path}/out --samples_per_plugin images=1000000" in done.stdout.decode().splitlines()
    assert b"%" not in done.stderr  # predictions of so many images are in the index


@pytest.mark.thorough
def test_the_command_extracts_one_picture(fmapviz, inputs, tmp_path):
    fmapviz("shapesnet", inputs, "--shard", "5", "--to", "tar", "--out", tmp_path / "out")
    words = ("extract", tmp_path / "out", "--image", "3.png", "--layer", "features.0.conv")
    first = fmapviz(*words, cwd=tmp_path)
    assert (first.returncode, first.stdout) == (0, b"3.png.00_features.0.conv.maps.png\n")
    png = (tmp_path / "3.png.00_features.0.conv.maps.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    again = fmapviz(*words, cwd=tmp_path)
    assert again.returncode == 6
    assert fmapviz(*words, "--force", cwd=tmp_path).returncode == 0
    assert fmapviz(*words, "--out", "-", cwd=tmp_path).stdout == png
