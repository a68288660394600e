from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import unicodedata
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import paint
from PIL import Image
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tiny_runs import AS_IT_IS, runner
from torch import nn
from torchvision.utils import make_grid
from trees import problems, stamps
from waiting import PATIENCE

from fmapviz import load_model
from fmapviz.config import InputOptions, RunConfig, Style, options_of
from fmapviz.errors import NothingToDoError, OutputError, RefusedError, RequestError, WeightsError
from fmapviz.events import Notice, Outcome, Started
from fmapviz.images.find import path_hash
from fmapviz.run.estimate import estimate
from fmapviz.run.loop import run, visualize
from fmapviz.run.pipeline import work

SMALL = InputOptions(size=(16, 16), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])


class Net(nn.Module):
    """Two convolutions, one of them called twice and with a dead channel, one never called."""

    def __init__(self, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.first = nn.Conv2d(3, 5, 3)
            self.again = nn.Conv2d(5, 5, 3, padding=1)
            self.spare = nn.Conv2d(5, 5, 3)
            self.norm = nn.BatchNorm2d(5)
        with torch.no_grad():
            self.again.weight[3] = 0
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        x = self.relu(self.norm(self.first(x)))
        return self.again(self.relu(self.again(x)))


@pytest.fixture
def pictures(tmp_path):
    """Three pictures, one of them in a folder, and something that is none."""
    for seed, name in enumerate(["one.png", "two.png", "cats/three.png"]):
        paint(tmp_path / "pictures" / name, seed)
    (tmp_path / "pictures/notes.txt").write_text("not looked at")
    return tmp_path / "pictures"


@pytest.fixture
def look(tmp_path):
    return runner(Net, out=tmp_path / "out", preprocessing=SMALL, workers=2, to=["png"])


def counts(summary):
    assert summary.found == summary.done + summary.skipped + summary.failed
    return summary.done, summary.skipped, summary.failed


def names(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def unit_of(directory):
    return json.loads((directory / "unit.json").read_bytes())


def images_in_events(directory):
    """Read an event file with TensorBoard's own reader, which checks every checksum."""
    (path,) = directory.glob("events.out.tfevents.*")
    values = [value for data in RawEventFileLoader(str(path)).Load() for value in Event.FromString(data).summary.value]
    return {value.tag: bytes(value.tensor.string_val[2]) for value in values}


# --- what lies on disk


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with both formats, and a picture that cannot be read."""
    folder = tmp_path_factory.mktemp("finished")
    for seed, name in enumerate(["one.png", "two.png", "cats/three.png"]):
        paint(folder / "pictures" / name, seed)
    (folder / "pictures/bad.png").write_bytes(b"no image")
    before = stamps(folder / "pictures")
    events = []
    summary = visualize(
        Net(),
        folder / "pictures",
        out=folder / "out",
        to=("tensorboard", "png"),
        preprocessing=AS_IT_IS,
        on_event=events.append,
    )
    assert stamps(folder / "pictures") == before
    return folder / "pictures", summary, events


PICTURES = ["00_first.maps.png", "01_again.maps.png", "02_again#2.maps.png", "input.png"]


def test_there_is_one_directory_per_image_and_folders_keep_their_tree(finished):
    _, summary, _ = finished
    inside = sorted([*PICTURES, "events.out.tfevents.fmapviz", "unit.json"])
    units = ["cats/three.png", "one.png", "two.png"]
    assert summary.directory.name == "net"
    assert names(summary.directory.parent) == sorted(
        ["net/run.json", "net/failures.jsonl", *(f"net/{unit}/{name}" for unit in units for name in inside)]
    )
    assert problems(summary.directory.parent) == []


def test_a_run_records_its_settings_and_versions(finished):
    _, summary, events = finished
    document = json.loads((summary.directory / "run.json").read_bytes())
    settings = document["settings"]
    assert len(settings.pop("sha256")) == 64
    assert settings == {
        "predictions": 0,
        "model": "net",
        "weights": "weights as given",
        "preparation": "size kept, mean (0.485, 0.456, 0.406), std (0.229, 0.224, 0.225)",
        "types": ["Conv2d"],
        "layers": [],
        "exclude": [],
        "views": ["maps"],
        "formats": ["png", "tensorboard"],
        "style": {name: getattr(Style(), name) for name in options_of(Style)},
        "targets": [],
        "output": None,
        "scores": None,
        "confidence": None,
        "patch": 32,
        "stride": None,
        "baseline": "mean",
        "steps": 32,
        "samples": None,
        "off": "zero",
        "dtype": "float32",
        "shard": None,
    }
    assert document["versions"]["torch"] == torch.__version__
    assert set(document["versions"]) == {"fmapviz", "python", "torch", "torchvision"}
    assert document["fingerprint"] == events[0].info.fingerprint


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_frozen", [False, True], ids=["nothing frozen", "frozen by the user"])
def test_garbage_collection_is_restored(is_frozen, pictures, look, monkeypatch):
    monkeypatch.setattr(work, "FREEZING", work.Freezing())
    (gc.freeze if is_frozen else gc.unfreeze)()
    try:
        frozen = []
        assert look(pictures, on_event=lambda _event: frozen.append(gc.get_freeze_count())).done
        assert max(frozen) > 10_000
        assert (gc.get_freeze_count() > 0) == is_frozen
    finally:
        gc.freeze()  # as all tests begin


def test_the_record_of_a_drawn_unit_lists_its_source_and_files(finished):
    pictures, summary, events = finished
    for name in ("one.png", "cats/three.png"):
        directory, record = summary.directory / name, unit_of(summary.directory / name)
        status = (pictures / name).stat()
        version = {"size": status.st_size, "mtime_ns": status.st_mtime_ns}
        key = {"kind": "image", "path": str(pictures / name), "name": name, "version": version}
        assert record["unit"] == key
        assert record["run"] == events[0].info.fingerprint
        assert (record["model"], record["weights"]) == ("net (weights as given)", "weights as given")
        assert (record["not_executed"], record["undrawn"], record["notices"]) == (["spare"], {}, [])
        files = [path for path in directory.iterdir() if path.name != "unit.json"]
        assert {entry["name"]: (entry["size"], entry["sha256"]) for entry in record["files"]} == {
            path.name: (path.stat().st_size, sha256(path.read_bytes()).hexdigest()) for path in files
        }


def forward(path):
    """Compute the feature maps of a picture without anything of ours."""
    pixels = np.asarray(Image.open(path), np.float32) / 255
    x = torch.from_numpy((pixels - MEAN) / STD).permute(2, 0, 1)[None]
    net = Net().eval()
    with torch.no_grad():
        first = net.first(x)
        again = net.again(net.norm(first).relu())
        twice = net.again(again.relu())
    return {"first": first[0], "again": again[0], "again#2": twice[0]}


def test_the_indices_of_layers_are_right(finished):
    pictures, summary, _ = finished
    for name in ("one.png", "two.png", "cats/three.png"):
        layers = unit_of(summary.directory / name)["layers"]
        assert [(layer["index"], layer["name"], layer["type"], layer["call"]) for layer in layers] == [
            (0, "first", "Conv2d", 1),
            (1, "again", "Conv2d", 1),
            (2, "again#2", "Conv2d", 2),
        ]
        for layer, maps in zip(layers, forward(pictures / name).values(), strict=True):
            assert layer["shape"] == list(maps.shape)
            assert layer["min"] == pytest.approx(float(maps.min()), rel=1e-5)
            assert layer["max"] == pytest.approx(float(maps.max()), rel=1e-5)
            assert layer["mean"] == pytest.approx(float(maps.mean()), rel=1e-4)
            dead = [channel for channel, values in enumerate(maps) if values.min() == values.max()]
            assert layer["dead_channels"] == dead
            assert (layer["nonfinite"], layer["samples"]) == (0, 1)
        assert layers[1]["dead_channels"] == [3]


def test_the_pictures_equal_those_of_make_grid(finished):
    pictures, summary, _ = finished
    for name, maps in zip(PICTURES, forward(pictures / "one.png").values(), strict=False):
        grid = make_grid(maps[:, None], nrow=2, padding=2, normalize=True, scale_each=True)[0]
        expected = grid.mul(255).add(0.5).clamp(0, 255).to(torch.uint8).numpy().astype(int)
        drawn = np.asarray(Image.open(summary.directory / "one.png" / name)).astype(int)
        assert abs(drawn - expected).max() <= 1
        assert (drawn != expected).mean() < 0.01  # rounding


def test_the_preprocessed_input_is_in_both_formats(finished):
    pictures, summary, _ = finished
    for name in ("one.png", "cats/three.png"):
        seen = np.asarray(Image.open(summary.directory / name / "input.png"))
        assert np.array_equal(seen, np.asarray(Image.open(pictures / name)))
        assert "input/input" in images_in_events(summary.directory / name)


def test_the_input_is_shown_as_preprocessed(tmp_path, look):
    """Cropped and resized: the prepared tensor with the normalisation undone."""
    model = load_model("alexnet", weights="random")
    path = paint(tmp_path / "picture.png", size=(300, 451))
    summary = look(path, model, preprocessing=InputOptions(), layers=["features.0"])
    prepared = model.preparation.apply(Image.open(path)).permute(1, 2, 0).numpy()
    seen = np.asarray(Image.open(summary.directory / "picture.png/input.png")).astype(float)
    assert seen.shape == (224, 224, 3)
    assert abs(seen / 255 - (prepared * STD + MEAN)).max() <= 0.5 / 255 + 1e-6


def test_both_formats_hold_the_same_bytes(finished):
    _, summary, _ = finished
    for name in ("one.png", "two.png", "cats/three.png"):
        directory = summary.directory / name
        assert images_in_events(directory) == {
            "input/input": (directory / "input.png").read_bytes(),
            "maps/00 first": (directory / "00_first.maps.png").read_bytes(),
            "maps/01 again": (directory / "01_again.maps.png").read_bytes(),
            "maps/02 again#2": (directory / "02_again#2.maps.png").read_bytes(),
        }


def test_each_picture_of_a_run_describes_its_content(finished):
    _, summary, _ = finished
    text = Image.open(summary.directory / "one.png/02_again#2.maps.png").text
    layer = unit_of(summary.directory / "one.png")["layers"][2]
    assert (text["Layer"], text["Type"], text["Shape"]) == ("again#2", "Conv2d", "5 x 14 x 18")
    assert text["Range"] == f"{layer['min']:.4g} to {layer['max']:.4g}"
    assert (text["Model"], text["Weights"], text["Image"]) == ("net (weights as given)", "weights as given", "one.png")
    assert text["Dead channels"] == "3"
    shown = Image.open(summary.directory / "cats/three.png/input.png").text
    assert (shown["Shape"], shown["Image"]) == ("16 x 20 pixels", "cats/three.png")


RUNS = """
import json, sys
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
multiplexer = EventMultiplexer().AddRunsFromDirectory(sys.argv[1])
multiplexer.Reload()
print(json.dumps({run: sorted(content["tensors"]) for run, content in multiplexer.Runs().items()}))
"""


@pytest.mark.thorough
def test_tensorboard_shows_one_run_per_image(finished):
    _, summary, _ = finished
    command = [sys.executable, "-c", RUNS, summary.directory.parent]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE)
    tags = ["input/input", "maps/00 first", "maps/01 again", "maps/02 again#2"]
    assert json.loads(result.stdout) == {f"net/{name}": tags for name in ("one.png", "two.png", "cats/three.png")}


@pytest.mark.thorough
def test_more_runs_than_tensorboard_selects_are_reported(tmp_path, look):
    for number in range(40):
        paint(tmp_path / f"many/{number}.png", number)
    paint(tmp_path / "another.png")
    seen = {"to": ["tensorboard"], "layers": ["first"]}
    assert look(tmp_path / "many", **seen).notices == ()
    notice = "TensorBoard ticks none of more than 40 runs: click TOGGLE ALL RUNS on its page Images"
    assert look(tmp_path / "another.png", name="another", **seen).notices == (notice,), "it shows all runs"
    assert look(tmp_path / "another.png", name="pictures", to=["png"]).notices == ()


def test_failures_are_recorded(finished):
    pictures, summary, _ = finished
    (line,) = (summary.directory / "failures.jsonl").read_text().splitlines()
    noted = json.loads(line)
    assert noted.pop("time") > 1.7e9
    assert len(noted.pop("sha256")) == 64
    assert noted == {
        "path": str(pictures / "bad.png"),
        "code": "E_FORMAT",
        "message": f"not an image, or of an unknown format: '{pictures}/bad.png'",
        "hint": None,
    }


class Alternating(nn.Module):
    """Runs one of two layers, by the brightness of the image."""

    def __init__(self):
        super().__init__()
        self.dark, self.bright, self.head, self.never = (nn.Conv2d(channels, 3, 1) for channels in (3, 3, 3, 3))
        self.attention = nn.MultiheadAttention(3, 1, batch_first=True)

    def forward(self, x):
        x = self.head((self.dark if x.mean() < 0 else self.bright)(x))
        return self.attention(*[x.flatten(2).transpose(1, 2)] * 3)[0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("order", [[0, 255, 0], [255, 0, 0]], ids=str)
def test_layers_that_run_for_some_images_are_not_reported_as_unexecuted(order, tmp_path):
    given = [Image.new("RGB", (8, 8), (level,) * 3) for level in order]
    options = InputOptions(size=8, mean=(0.5,) * 3, std=(0.5,) * 3)
    summary = visualize(
        Alternating(),
        given,
        out=tmp_path,
        to="png",
        types=["Conv2d", "Linear"],
        preprocessing=options,
        progress=False,
        workers=1,
    )
    assert (summary.done, summary.layers, summary.not_executed) == (3, 3, ("never",))
    assert summary.undrawn == {
        "attention.out_proj": "nn.MultiheadAttention uses its weights without calling it",
        "bright": "not executed with some of the images",
        "dark": "not executed with some of the images",
    }


def test_a_summary_accounts_for_everything(finished):
    pictures, summary, events = finished
    assert (summary.found, counts(summary)) == (4, (3, 0, 1))
    assert (summary.pictures, summary.layers) == (12, 3)
    assert (summary.not_executed, summary.undrawn) == (("spare",), {})
    assert [failure.path for failure in summary.failures] == [str(pictures / "bad.png")]
    assert summary.exit_code == 3
    started, *others = events
    assert isinstance(started, Started)
    assert started.directory == summary.directory
    assert sorted(event.path for event in others if isinstance(event, Outcome)) == sorted(map(str, pictures.rglob("*.png")))
    for event in others:
        if isinstance(event, Outcome) and event.status == "done":
            assert (event.unit / "unit.json").is_file()
            assert (event.pictures, event.failure) == (4, None)


# --- the same command again


def test_finished_images_are_skipped_and_not_rewritten(pictures, look):
    first = look(pictures)
    before = stamps(first.directory.parent)
    events = []
    again = look(pictures, on_event=events.append)
    assert (counts(first), counts(again)) == ((3, 0, 0), (0, 3, 0))
    assert (first.directory, again.exit_code, again.pictures) == (again.directory, 0, 0)
    assert stamps(first.directory.parent).keys() == before.keys()
    changed = {name for name, what in stamps(first.directory.parent).items() if what != before[name]}
    assert changed <= {"net"}  # whose time says that something was staged
    assert {event.unit for event in events if isinstance(event, Outcome)} == {
        first.directory / name for name in ("one.png", "two.png", "cats/three.png")
    }


def test_new_and_changed_images_are_drawn(pictures, look):
    first = look(pictures)
    before = stamps(first.directory)
    os.utime(pictures / "one.png", ns=(0, 1))
    status = (pictures / "two.png").stat()
    (pictures / "two.png").write_bytes((pictures / "two.png").read_bytes() + b"\0")  # behind the picture: harmless
    os.utime(pictures / "two.png", ns=(status.st_mtime_ns, status.st_mtime_ns))
    paint(pictures / "cats/four.png", 4)
    assert counts(look(pictures)) == (3, 1, 0)
    after = stamps(first.directory)
    assert {name for name in before if before[name] == after.get(name)} == {
        name for name in before if name.startswith("cats/three.png") or name == "run.json"
    }
    assert unit_of(first.directory / "one.png")["unit"]["version"]["mtime_ns"] == 1
    assert unit_of(first.directory / "two.png")["unit"]["version"]["size"] == status.st_size + 1
    assert counts(look(pictures)) == (0, 4, 0)
    assert problems(first.directory) == []


@pytest.mark.thorough
def test_a_changed_image_has_new_pictures(pictures, look, tmp_path):
    directory = look(pictures).directory
    old = (directory / "one.png/input.png").read_bytes()
    paint(pictures / "one.png", 99)
    look(pictures)
    assert (directory / "one.png/input.png").read_bytes() != old
    fresh = look(pictures, out=tmp_path / "fresh").directory
    assert {name: (directory / name).read_bytes() for name in names(directory)} == {
        name: (fresh / name).read_bytes() for name in names(fresh)
    }


@pytest.mark.thorough
def test_force_redraws_all_images(pictures, look):
    directory = look(pictures).directory
    before = stamps(directory)
    (directory / "two.png/input.png").write_bytes(b"damaged")
    assert counts(look(pictures)) == (0, 3, 0)
    assert counts(look(pictures, force=True)) == (3, 0, 0)
    after = stamps(directory)
    assert {name for name in before if before[name][0] == after[name][0]} <= {"run.json", "cats"}
    assert problems(directory) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("reason", ["force", "changed", "repair"])
def test_a_unit_that_holds_a_foreign_file_is_refused_before_anything_is_drawn(reason, pictures, look):
    directory = look(pictures / "one.png").directory
    (directory / "one.png/mine.txt").write_text("mine")
    if reason == "changed":
        os.utime(pictures / "one.png")
    elif reason == "repair":
        (directory / "one.png/input.png").write_bytes(b"damaged")
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    with pytest.raises(RefusedError, match=r"mine\.txt' was not made by fmapviz") as raised:
        look(pictures / "one.png", force=reason == "force", repair=reason == "repair")
    assert (raised.value.exit_code, raised.value.hint) == (6, "move it away, and the same call continues")
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def test_an_image_that_failed_is_tried_again(pictures, look):
    (pictures / "one.png").write_bytes(b"no image")
    assert counts(look(pictures)) == (2, 0, 1)
    assert counts(look(pictures)) == (0, 2, 1)
    paint(pictures / "one.png")
    summary = look(pictures)
    assert (counts(summary), summary.exit_code) == ((1, 2, 0), 0)
    assert len((summary.directory / "failures.jsonl").read_text().splitlines()) == 2


def test_an_image_that_fails_later_keeps_its_pictures(pictures, look):
    directory = look(pictures).directory
    (pictures / "one.png").write_bytes(b"no image")
    assert counts(look(pictures)) == (0, 2, 1)
    assert (directory / "one.png/unit.json").is_file()


@pytest.mark.thorough
def test_other_settings_never_mix(pictures, look):
    settings = [
        {},
        {"style": Style(scale=2)},
        {"layers": ["first"]},
        {"preprocessing": AS_IT_IS},
        {"to": ["tensorboard"]},
        {"types": ["ReLU"]},
        {"exclude": ["first"]},
    ]
    expected = ["net", *(f"net-{number}" for number in range(2, 8))]
    assert [look(pictures / "one.png", **one).directory.name for one in settings] == expected
    again = [look(pictures / "one.png", **one) for one in settings]
    assert [summary.directory.name for summary in again] == expected
    assert [counts(summary) for summary in again] == [(0, 1, 0)] * 7


@pytest.mark.thorough
def test_settings_that_change_no_picture_share_a_run(pictures, look, tmp_path):
    runs = [{"batch_size": 3}, {"workers": 1}, {"device": "cpu"}, {"strict": True}, {"to": ["png", "png"]}]
    assert {look(pictures, **one).directory for one in runs} == {tmp_path / "out/net"}


def test_a_named_run_has_its_name(pictures, look, tmp_path):
    summary = look(pictures, name="mine")
    assert summary.directory == tmp_path / "out/mine"
    assert counts(look(pictures, name="mine")) == (0, 3, 0)
    before = stamps(tmp_path / "out/mine")
    with pytest.raises(RefusedError, match="mine' holds a run with other settings") as caught:
        look(pictures, name="mine", style=Style(scale=2))
    assert caught.value.exit_code == 6
    assert stamps(tmp_path / "out/mine") == before


def test_layers_left_out_by_type_are_reported_once_in_a_run(pictures, look):
    events = []
    summary = look(pictures, layers="*", on_event=events.append)
    message = "layers= matches 2 layers of other types, which are left out: 1 BatchNorm2d, 1 ReLU; types= chooses others"
    assert summary.notices == (message,)
    assert [event.message for event in events if isinstance(event, Notice)] == [message]
    assert look(pictures, layers="*", types="Conv2d", name="chosen").notices == ()


@pytest.mark.thorough
def test_a_number_in_the_name_of_a_run_is_explained(pictures, look, tmp_path):
    assert look(pictures).notices == ()
    events = []
    for _ in range(2):  # also when it is continued
        summary = look(pictures, style=Style(scale=2), on_event=events.append)
        message = "{0} holds a run with other settings (scale: 1, not 2); this run is {0}-2".format(tmp_path / "out/net")
        assert summary.notices == (message,)
        assert [event.message for event in events if isinstance(event, Notice)][-1] == message


def test_the_number_of_a_run_that_is_refused_is_not_explained(pictures, look, tmp_path):
    look(pictures)
    events = []
    with pytest.raises(RequestError, match="outside the picture"):
        look(pictures, views="similarity", style=Style(anchor="5000,3"), on_event=events.append)
    assert [event for event in events if isinstance(event, Notice)] == []
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["net"]


def test_a_network_that_was_trained_further_is_another_run(pictures, look):
    model = Net()
    look(pictures, model, name="mine")
    with torch.no_grad():
        next(model.parameters()).add_(1)
    with pytest.raises(
        RefusedError, match=r"mine' holds a run with other settings \(network: other weights, code, attributes or hooks\)"
    ) as caught:
        look(pictures, model, name="mine")
    assert "choose another name= for the network as it is now" in caught.value.hint
    assert look(pictures, model, name="mine-2").done == 3


@pytest.mark.sampled(1)
@pytest.mark.parametrize("content", [{"notes.txt": "mine"}, {"run.json": "{}"}])
def test_a_foreign_directory_is_not_changed(content, pictures, look, tmp_path):
    foreign = tmp_path / "out/net"
    foreign.mkdir(parents=True)
    for name, text in content.items():
        (foreign / name).write_text(text)
    before = stamps(foreign)
    with pytest.raises(RefusedError, match="net' holds files that fmapviz did not make"):
        look(pictures, name="net")
    assert look(pictures).directory == tmp_path / "out/net-2"
    assert stamps(foreign) == before


def test_a_run_of_a_newer_version_is_refused(pictures, look):
    record = look(pictures).directory / "run.json"
    record.write_text(json.dumps({**json.loads(record.read_bytes()), "fmapviz": 3}))
    for name in (None, "net"):
        with pytest.raises(RefusedError, match="newer version"):
            look(pictures, name=name)


def test_out_inside_the_inputs_is_not_read(pictures, look):
    for expected in ((3, 0, 0), (0, 3, 0)):
        assert counts(look(pictures, out=pictures / "out")) == expected


# --- names


@pytest.mark.thorough
def test_two_sources_of_one_name_have_different_units(tmp_path, look):
    paths = [paint(tmp_path / folder / "x.png", seed) for seed, folder in enumerate("abc")]
    directory = look(paths).directory
    found = {unit_of(path)["unit"]["path"]: path.name for path in directory.iterdir() if path.is_dir()}
    assert set(found) == set(map(str, paths))
    hashed = {path: f"x.png~{path_hash(path)}" for path in found}
    assert found == {**hashed, str(paths[0]): "x.png"}, "the first has the name"
    for path in paths:
        fresh = look(path, out=tmp_path / f"out {path.parent.name}").directory / "x.png"
        assert (directory / found[str(path)] / "00_first.maps.png").read_bytes() == (
            fresh / "00_first.maps.png"
        ).read_bytes()
    before = stamps(directory)
    assert counts(look(paths)) == (0, 3, 0)
    assert counts(look(paths, force=True)) == (3, 0, 0)
    assert stamps(directory).keys() == before.keys()
    assert problems(directory) == []


@pytest.mark.thorough
def test_a_unit_that_would_lie_inside_another_has_another_name(tmp_path, look):
    outer = paint(tmp_path / "one/cats.png").rename(tmp_path / "one/cats")
    inner = paint(tmp_path / "two/cats/x.png", 1)
    for order in ([outer, inner.parent.parent], [inner.parent.parent, outer]):
        out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        directory = look(order, out=out).directory
        assert len(list(directory.rglob("unit.json"))) == 2
        assert not any((path.parent.parent / "unit.json").exists() for path in directory.rglob("unit.json"))
        assert counts(look(order, out=out)) == (0, 2, 0)
        assert problems(out) == []


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["file", "tree"])
def test_foreign_files_in_place_of_units_are_not_changed(kind, pictures, look):
    directory = look(pictures / "two.png").directory
    if kind == "file":
        (directory / "one.png").write_text("mine")
        (directory / "cats").write_text("mine")
    else:
        (directory / "one.png/deep").mkdir(parents=True)
        (directory / "one.png/deep/notes.txt").write_text("mine")
    before = stamps(directory)
    assert counts(look(pictures)) == (2, 1, 0)
    after = stamps(directory)
    assert {name: after[name] for name in before if name != "one.png"} == {
        name: what for name, what in before.items() if name != "one.png"
    }
    assert unit_of(directory / f"one.png~{path_hash(str(pictures / 'one.png'))}")
    assert counts(look(pictures)) == (0, 3, 0)


ODD = [
    *("run.json", "unit.json", "failures.jsonl", "RUN.JSON", ".hidden.png", "-rf.png", "a\nb.png", "a\x1b[31m.png"),
    *("x.png~0123abcd", "events.out.tfevents.1.png", "a b.png", " .png", "<img src=x onerror=alert(1)>.png", "a\\b.png"),
    *("a\u202eb.png", "\u00e4.png", "a\u0308.png", "b" * 251 + ".png", "%2F.png", "x.png", "X.PNG", "CON.png", "..png"),
    *(os.fsdecode(b"\xe9.png"), "input.png", "'\"$(ls)`.png"),
]


@pytest.mark.thorough
def test_odd_and_reserved_names_are_drawn(tmp_path, look):
    """Every image has a directory of its own whose name can be shown, and is found again."""
    (tmp_path / "odd").mkdir()
    paths = [paint(tmp_path / "picture.png", seed).rename(tmp_path / "odd" / name) for seed, name in enumerate(ODD)]
    pixels = {str(path): np.asarray(Image.open(path, formats=["PNG"])) for path in paths}
    summary = look(paths, preprocessing=AS_IT_IS)
    assert counts(summary) == (len(ODD), 0, 0)
    found = {unit_of(record.parent)["unit"]["path"]: record.parent for record in summary.directory.rglob("unit.json")}
    assert set(found) == set(map(str, paths))
    for path, directory in found.items():
        assert directory.parent == summary.directory
        assert directory.name.isprintable()
        assert not directory.name.startswith(".")
        assert len(os.fsencode(directory.name)) <= 200
        assert not any(unicodedata.category(ch).startswith("C") for ch in directory.name)
        assert "tfevents" not in directory.name
        assert np.array_equal(np.asarray(Image.open(directory / "input.png")), pixels[path])
    assert (summary.directory / "run.json").is_file()
    assert counts(look(paths, preprocessing=AS_IT_IS)) == (0, len(ODD), 0)
    assert problems(summary.directory) == []


# --- when nothing can be done


NOT_THERE = {"weights": "/nowhere/weights.pth"}  # an error as soon as the model is loaded


def test_a_finished_run_ends_before_the_model_is_loaded(tmp_path, look):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/notes.txt").write_text("mine")
    for inputs in ([], tmp_path / "empty", iter(())):
        with pytest.raises(NothingToDoError, match="no image among the inputs") as caught:
            look(inputs, "alexnet", **NOT_THERE)
        assert caught.value.exit_code == 4
    assert not (tmp_path / "out").exists()


NOT_IN_PACKAGE = "sample_images is a folder of fmapviz's repository, and not in the package: take any photo of yours"


@pytest.mark.parametrize(
    ("names", "message", "hint"),
    [
        (["phoot.png"], "no such file: '{}/phoot.png'", "did you mean '{}/photo.png'?"),
        (["imgaes"], "no such file: '{}/imgaes'", "did you mean '{}/images'?"),
        (["zzz", "none/x.png"], "none of the 2 inputs exists: {0}/zzz, {0}/none/x.png", "no similar name in '{}'"),
        (["sample_images/shapes"], "no such file: '{}/sample_images/shapes'", NOT_IN_PACKAGE),
        (["sample_images"], "no such file: '{}/sample_images'", NOT_IN_PACKAGE),
        (["images/sample_images/more/x.jpg"], "no such file: '{}/images/sample_images/more/x.jpg'", NOT_IN_PACKAGE),
        (
            ["own/sample_images/x.jpg"],
            "no such file: '{}/own/sample_images/x.jpg'",
            "no similar name in '{}/own/sample_images'",
        ),
    ],
)
@pytest.mark.parametrize("dry", [False, True])
@pytest.mark.parametrize("as_typed", [list, iter])
def test_inputs_that_do_not_exist_are_refused_before_the_model_is_loaded(*, tmp_path, names, message, hint, as_typed, dry):
    paint(tmp_path / "photo.png")
    for folder in ("images", "own/sample_images"):
        (tmp_path / folder).mkdir(parents=True)
    paths = as_typed([tmp_path / name for name in names])
    config = RunConfig("alexnet", paths, out=tmp_path / "out", **NOT_THERE)
    with pytest.raises(NothingToDoError) as caught:
        (estimate if dry else run)(config)
    assert (str(caught.value), str(caught.value.hint)) == (message.format(tmp_path), hint.format(tmp_path))
    assert caught.value.exit_code == 4
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_one_image_that_exists_is_enough(tmp_path, look, pictures):
    for number, missing in enumerate((["gone.png", pictures], [pictures, "gone.png"], iter(["gone.png", pictures]))):
        summary = look(missing, out=tmp_path / str(number))
        assert [failure.code for failure in summary.failures] == ["E_MISSING"]
        assert (summary.directory / "failures.jsonl").exists()


def test_only_so_many_missing_paths_of_a_stream_are_kept_in_memory(look, monkeypatch):
    monkeypatch.setattr("fmapviz.run.loop.MOST_MISSING", 3)
    summary = look(f"gone{number}.png" for number in range(4))
    assert [Path(failure.path).name for failure in summary.failures] == [f"gone{number}.png" for number in range(4)]


@pytest.mark.parametrize("out", ["file", "file/below", "file/far/below"])
def test_an_unwritable_directory_is_reported_before_the_model_is_loaded(out, pictures, look, tmp_path):
    (tmp_path / "file").write_text("mine")
    before = stamps(tmp_path)
    with pytest.raises(OutputError, match="not a directory") as caught:
        look(pictures, "alexnet", out=tmp_path / out, **NOT_THERE)
    assert caught.value.exit_code == 5
    assert stamps(tmp_path) == before


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"views": ["map"]}, "no such view: 'map'"),
        ({"views": []}, "no view given"),
        ({"to": ["pgn"]}, "no such format: 'pgn'"),
        ({"to": []}, "no format given"),
        ({"layers": ["fisrt"]}, "no layer matches 'fisrt'"),
        ({"types": ["Conv9d"]}, "no layer of this type in the model: 'Conv9d'"),
        ({"exclude": ["*"]}, "no layer is left"),
        ({"batch_size": 0}, "batch size must be at least 1"),
        ({"workers": -1}, "workers must be at least 1"),
        ({"workers": 1025}, "workers must be at most 1024"),
        ({"device": "tpu9"}, "no such device here: 'tpu9'"),
        ({"device": "cuda:99"}, "no such device here: 'cuda:99'"),
        ({"device": "meta"}, "no such device here: 'meta'"),
        ({"name": "a/b"}, "not a directory name"),
    ],
)
def test_a_wrong_request_writes_nothing(wrong, message, pictures, look, tmp_path):
    with pytest.raises(RequestError, match=message) as caught:
        look(pictures, **wrong)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("word", "meant"), [("gpu", "cuda"), ("GPU:1", "cuda:1"), ("0", "cuda:0"), ("metal", "mps")])
def test_a_word_of_other_tools_for_a_device_has_a_hint(word, meant, pictures, look):
    with pytest.raises(RequestError, match="no such device here") as caught:
        look(pictures, device=word)
    assert caught.value.hint.startswith(f"did you mean device='{meant}'? device='auto' uses what is available")


def test_missing_weights_are_an_error(pictures, look, tmp_path):
    with pytest.raises(WeightsError, match=r"/nowhere/weights\.pth"):
        look(pictures, "alexnet", **NOT_THERE)
    with pytest.raises(RequestError, match="no such model: 'alexnt'"):
        look(pictures, "alexnt")
    assert not (tmp_path / "out").exists()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("bad", "good", "code"), [(1, 0, 4), (1, 1, 3), (0, 1, 0)])
def test_the_exit_code_follows_the_outcome(bad, good, code, tmp_path, look):
    paths = [paint(tmp_path / f"{n}.png", n) for n in range(good)]
    for n in range(bad):
        paths.append(tmp_path / f"bad{n}.png")
        paths[-1].write_bytes(b"no image")
    for again in range(2):
        summary = look(paths)
        assert counts(summary) == ((0, good, bad) if again else (good, 0, bad))
        assert summary.exit_code == code


# --- the model


def module_state(module):
    hooks = [
        "_forward_hooks",
        "_forward_pre_hooks",
        "_forward_hooks_always_called",
        "_backward_hooks",
        "_backward_pre_hooks",
    ]
    modules = {
        name: (one.training, *(len(getattr(one, hook)) for hook in hooks), "forward" in vars(one))
        for name, one in module.named_modules()
    }
    parameters = {
        name: (
            id(one),
            one.requires_grad,
            one.grad,
            one.device,
            one.dtype,
            sha256(one.detach().numpy().tobytes()).hexdigest(),
        )
        for name, one in module.named_parameters()
    }
    buffers = {name: sha256(one.numpy().tobytes()).hexdigest() for name, one in module.named_buffers()}
    return modules, parameters, buffers


@pytest.mark.parametrize("ends", ["well", "with an error"])
def test_a_module_is_not_changed(ends, pictures, look):
    net = Net().train()
    net.norm.eval()
    net.first.weight.requires_grad_(False)
    before = module_state(net)
    torch.manual_seed(1)
    random_state = torch.get_rng_state()
    settings = torch.is_grad_enabled(), torch.backends.mha.get_fastpath_enabled()

    def tell(event):
        if isinstance(event, Outcome) and ends != "well":
            raise RuntimeError("mine")

    if ends == "well":
        look(pictures, net, on_event=tell)
    else:
        with pytest.raises(RuntimeError, match="mine"):
            look(pictures, net, on_event=tell)
    assert module_state(net) == before
    assert torch.equal(torch.get_rng_state(), random_state)
    assert (torch.is_grad_enabled(), torch.backends.mha.get_fastpath_enabled()) == settings


def test_different_weights_do_not_share_a_run(pictures, look):
    nets = [Net(0), Net(1), Net(0)]
    with torch.no_grad():
        nets.append(Net(0))
        nets[-1].norm.running_mean[2] = 0.5
    assert [look(pictures, net).directory.name for net in nets] == ["net", "net-2", "net", "net-3"]


@pytest.mark.thorough
def test_different_networks_of_the_same_weights_do_not_share_a_run(pictures, look):
    def network(stride=1, activation=nn.ReLU):
        first, second = Net(0).first, nn.Conv2d(5, 2, 1, bias=False)
        first.stride = (stride, stride)
        nn.init.ones_(second.weight)
        return nn.Sequential(first, activation(), second)

    networks = [network(), network(2), network(1, nn.Sigmoid), network()]
    directories = [look(pictures, net).directory.name for net in networks]
    assert directories == ["sequential", "sequential-2", "sequential-3", "sequential"]


@pytest.mark.thorough
def test_a_network_whose_description_names_an_address_finds_its_run_again(pictures, look):
    class Lambda(Net):
        def extra_repr(self):
            return f"{object()}"

    assert look(pictures, Lambda()).directory == look(pictures, Lambda()).directory


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_network_of_another_precision_is_another_run(dtype, pictures, look):
    summary = look(pictures, Net().to(dtype), batch_size=2)
    assert counts(summary) == (3, 0, 0)
    for layer, expected in zip(
        unit_of(summary.directory / "one.png")["layers"],
        unit_of(look(pictures, Net()).directory / "one.png")["layers"],
        strict=True,
    ):
        assert layer["max"] == pytest.approx(expected["max"], rel=0.05)


@pytest.mark.thorough
def test_a_model_is_loaded_by_name(pictures, look):
    summary = look(pictures / "one.png", "alexnet", weights="random:3", preprocessing=InputOptions(size=(64, 64)))
    assert summary.directory.name == "alexnet"
    assert (summary.layers, summary.pictures) == (5, 6)
    record = unit_of(summary.directory / "one.png")
    assert record["model"] == "alexnet (random weights, seed 3)"
    assert [layer["name"] for layer in record["layers"]] == [f"features.{n}" for n in (0, 3, 6, 8, 10)]
    assert Image.open(summary.directory / "one.png/04_features.10.maps.png").text["Weights"] == "random weights, seed 3"


def test_a_network_of_clips_is_drawn_frame_by_frame(pictures, look):
    class Clip(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv3d(3, 4, (1, 3, 3))

        def forward(self, x):
            return self.conv(x[:, :, None].expand(-1, -1, 2, -1, -1))

    events = []
    summary = look(pictures / "one.png", Clip(), on_event=events.append)
    assert any(isinstance(event, Notice) and "Conv3d" in event.message for event in events)
    assert names(summary.directory / "one.png") == ["00_conv.t0.maps.png", "00_conv.t1.maps.png", "input.png", "unit.json"]
    assert (summary.layers, summary.pictures) == (1, 3)


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("options", "noticed"),
    [({}, True), ({"types": ["Conv2d"]}, False), ({"layers": "0"}, False), ({"views": ["kernels"]}, False)],
)
def test_a_notice_names_the_blocks_of_a_transformer_that_are_drawn_by_default(options, noticed, folder, look):
    def build():
        block = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        return nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.Flatten(2), nn.Linear(16, 4), nn.TransformerEncoder(block, 3))

    events = []
    look([folder], build(), on_event=events.append, **options)
    blocks = (
        "sequential has 1 Conv2d and 3 blocks, TransformerEncoderLayer: both are drawn; types='Conv2d' leaves out the blocks"
    )
    assert (blocks in [event.message for event in events if isinstance(event, Notice)]) == noticed


class Tokens(nn.Module):
    """Returns each position of a map as a token."""

    def forward(self, x):
        return x.flatten(2).transpose(1, 2)


@pytest.mark.thorough
def test_default_blocks_are_not_reported_as_without_kernels(folder, look):
    block = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    network = nn.Sequential(nn.Conv2d(3, 4, 4, 4), Tokens(), nn.Linear(4, 4), nn.TransformerEncoder(block, 2))
    summary = look([folder], network, views=["maps", "kernels"])
    assert (summary.layers, dict(summary.undrawn)) == (3, {})
    summary = look([folder], network, views=["maps", "kernels"], types=["Conv2d", "TransformerEncoderLayer"])
    assert dict(summary.undrawn) == {f"3.layers.{number}": "has no kernels" for number in (0, 1)}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_module_returns_to_its_device(pictures, look):
    net = Net()
    pointers = [id(parameter) for parameter in net.parameters()]
    look(pictures, net, device="cuda")
    assert {values.device.type for values in net.state_dict().values()} == {"cpu"}
    assert [id(parameter) for parameter in net.parameters()] == pointers
    look(pictures, net.cuda(), device="cpu", force=True)
    assert {values.device.type for values in net.state_dict().values()} == {"cuda"}
    look(pictures, net, device="auto", force=True)
    assert {values.device.type for values in net.state_dict().values()} == {"cuda"}


# --- however it is run


@pytest.mark.thorough
def test_batches_and_workers_do_not_change_the_result(tmp_path, look):
    for seed in range(10):
        paint(tmp_path / f"pictures/{seed % 3}/{seed}.png", seed)
    trees = []
    for batch_size, workers in ((1, 1), (8, 4), (8, 1), (3, 4)):
        out = tmp_path / f"out{batch_size}{workers}"
        directory = look(
            tmp_path / "pictures", out=out, batch_size=batch_size, workers=workers, to=["png", "tensorboard"]
        ).directory
        trees.append(directory)
    first, *others = trees
    for other in others:
        assert names(other) == names(first)
        for name in names(first):
            if name.endswith(".png"):
                one, two = (np.asarray(Image.open(directory / name)).astype(int) for directory in (first, other))
                assert abs(one - two).max() <= 1, name
            elif name.endswith("unit.json"):
                one, two = (json.loads((directory / name).read_bytes()) for directory in (first, other))
                assert one["unit"] == two["unit"]
                assert [entry["name"] for entry in one["files"]] == [entry["name"] for entry in two["files"]]
                for layer, same in zip(one["layers"], two["layers"], strict=True):
                    numbers = {key: pytest.approx(layer[key], rel=1e-4, abs=1e-6) for key in ("min", "max", "mean")}
                    assert same == {**layer, **numbers}
        one, two = (json.loads((directory / "run.json").read_bytes()) for directory in (first, other))
        assert (one["fingerprint"], one["settings"]) == (two["fingerprint"], two["settings"])


def test_inputs_may_be_one_path_or_several_of_any_kind(pictures, look):
    assert counts(look(str(pictures / "one.png"))) == (1, 0, 0)
    assert counts(look(pictures / "one.png")) == (0, 1, 0)
    assert counts(look([str(pictures), pictures / "one.png"])) == (2, 1, 0)
    assert counts(look(path for path in [pictures / "cats", pictures / "one.png"])) == (
        1,
        1,
        0,
    )  # named from where it was given


def test_out_is_relative_to_the_working_directory(pictures, look, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert look(["pictures/one.png"], out="here").directory == Path("here/net")
    assert unit_of(tmp_path / "here/net/one.png")["unit"]["path"] == str(pictures / "one.png")


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("damage", [lambda path: path.write_text("{"), lambda path: path.unlink()], ids=["torn", "deleted"])
def test_force_repairs_an_image_whose_record_is_lost(pictures, look, tmp_path, damage):
    first = look(pictures)
    damage(first.directory / "one.png" / "unit.json")
    assert problems(tmp_path / "out")
    again = look(pictures, force=True)
    assert (again.directory, again.done) == (first.directory, 3)
    assert problems(tmp_path / "out") == []
    assert not list(first.directory.glob("*~*")), "it has its own name again"
    assert not list(first.directory.glob(".fmapviz-*")), "nothing was there that is not there now"


def test_nothing_to_draw_is_a_failure_with_the_reason(pictures, look):
    summary = look(pictures, style=Style(channels="100"))
    assert (summary.done, summary.failed, summary.exit_code) == (0, 3, 4)
    assert {failure.code for failure in summary.failures} == {"E_NOTHING"}
    assert "none of those chosen" in summary.failures[0].message
    assert summary.failures[0].hint.startswith("channels='all' draws all channels")
    assert not list(summary.directory.rglob("unit.json"))


def test_one_name_is_a_list_of_one(pictures, look):
    summary = look(pictures / "one.png", to="png", views="maps", types="Conv2d")
    assert summary.pictures == 1 + summary.layers


def test_weights_are_refused_for_modules(pictures, look):
    with pytest.raises(RequestError, match="the model has weights already: 'random'"):
        look(pictures, weights="random")
