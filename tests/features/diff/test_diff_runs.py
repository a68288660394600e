"""Comparisons as runs: their files, skipped images and reports."""

import copy
import csv
import gc
import json
import shutil
import weakref
from collections import defaultdict
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from trees import problems, snapshot

import fmapviz
from fmapviz import Style
from fmapviz.config import InputOptions, Part, RunConfig
from fmapviz.errors import NothingToDoError, RequestError
from fmapviz.features.diff import series
from fmapviz.features.diff.run import run_diff
from fmapviz.features.diff.series import list_steps
from fmapviz.features.diff.session import UNRELATED

SHAPES = [f"sample_images/shapes/{name}.jpg" for name in ("circle", "cross", "ring", "star")]


def state(factor=0.0, seed=0):
    """Return the weights of the network that ships with the package, changed by noise."""
    found = fmapviz.load_model("shapesnet").module.state_dict()
    generator = torch.Generator().manual_seed(seed)
    for name, values in found.items():
        if values.ndim > 1:
            found[name] = values + factor * values.std() * torch.randn(values.shape, generator=generator)
    return found


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    for number, factor in enumerate((0, 0.02, 0.3)):
        torch.save(state(factor), folder / f"epoch_{10 * number}.pt")
    return folder


def compare(out, *, inputs=SHAPES, model="shapesnet", against=None, reference=None, **options):
    told = []

    def on_event(event):
        if hasattr(event, "message"):
            told.append(event.message)
        elif isinstance(event, fmapviz.events.Counted):
            told.append(event.images)

    config = RunConfig(model, inputs, views="diff", out=out, on_event=on_event, **{"to": "png", **options})
    summary = run_diff(config, against=against, reference=reference)
    return summary, [message for message in told if message]


def rows(directory):
    with (directory / "diff.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def layers_of(directory, image="star.jpg", step=""):
    return {row["layer"]: row for row in rows(directory) if (row["channel"], row["image"], row["step"]) == ("", image, step)}


def pixels(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def test_a_run_has_pictures_tables_and_the_alignment_of_layers(checkpoints, tmp_path):
    summary, told = compare(tmp_path, against=str(checkpoints / "epoch_20.pt"), to="png,html,tensorboard")
    run = tmp_path / "shapesnet-diff"
    assert (summary.directory, summary.done, summary.exit_code) == (run, 4, 0)
    assert problems(tmp_path) == []
    pictures = sorted(path.name for path in (run / "star.jpg").glob("*.png"))
    assert pictures == [*(f"{at:02d}_features.{at}.conv.diff.png" for at in range(8)), "input.png"]
    model = fmapviz.load_model("shapesnet")
    x = fmapviz.load_image(SHAPES[3], model)
    expected = list(fmapviz.diff("shapesnet", str(checkpoints / "epoch_20.pt"), x[0]))
    found = layers_of(run)
    assert list(found) == [each.layer for each in expected]
    for each in expected:
        for name, value in each.numbers.items():
            assert float(found[each.layer][name]) == pytest.approx(value, rel=1e-6)
    channels = [
        row for row in rows(run) if (row["layer"], row["image"]) == ("features.0.conv", "star.jpg") and row["channel"]
    ]
    assert [row["channel"] for row in channels] == list(map(str, range(16)))
    assert [float(row["rms"]) for row in channels] == pytest.approx(expected[0].channels[:, 1].tolist(), rel=1e-6)
    document = json.loads((run / "diff.json").read_bytes())
    assert document["images"] == 4
    assert document["against"]["weights"] == "epoch_20.pt"
    (at,) = document["steps"]
    assert at["layers"][0]["sqnr"] < 20
    assert next(message for message in told if "first layer below 20 dB" in str(message)).startswith("'features.0.conv' is")
    with (run / "cka.csv").open(newline="") as file:
        alignment = {(row["first"], row["second"]): float(row["cka"]) for row in csv.DictReader(file)}
    assert len(alignment) == 64
    assert alignment["features.0.conv", "features.0.conv"] > 0.5
    assert (run / "_model" / "cka.png").exists()
    events = EventAccumulator(str(run / "star.jpg"), {"tensors": 0}).Reload()
    assert "diff/00 features.0.conv" in events.Tags()["tensors"]
    (scalar,) = events.Scalars("sqnr/00 features.0.conv")
    assert scalar.value == pytest.approx(expected[0].numbers["sqnr"], rel=1e-6)


@pytest.mark.thorough
def test_a_comparison_continues_and_other_weights_make_another_run(checkpoints, tmp_path):
    file = tmp_path / "other.pt"
    shutil.copy(checkpoints / "epoch_10.pt", file)
    once = partial(compare, tmp_path / "out", against=str(file))
    first, _ = once()
    before = snapshot(first.directory)
    again, _ = once()
    assert (again.done, again.skipped) == (0, 4)
    assert snapshot(first.directory) == before
    shutil.copy(checkpoints / "epoch_20.pt", file)
    changed, told = once()
    assert changed.directory.name == "shapesnet-diff-2"
    assert any("against" in str(message) for message in told)


@pytest.mark.thorough
def test_two_equal_comparisons_have_equal_files(checkpoints, tmp_path):
    trees = []
    for name in ("one", "two"):
        summary, _ = compare(
            tmp_path / name, against=str(checkpoints / "epoch_10.pt"), to="png,html", workers=len(trees) + 1
        )
        trees.append(snapshot(summary.directory))
    assert trees[0] == trees[1]


@pytest.mark.thorough
def test_the_same_weights_do_not_differ(tmp_path, checkpoints):
    summary, told = compare(tmp_path, against=str(checkpoints / "epoch_0.pt"))
    assert "no difference in 8 layers" in told
    assert {row["sqnr"] for row in rows(summary.directory)} == {"inf"}
    assert {float(row["max_abs"]) for row in rows(summary.directory)} == {0}


@pytest.mark.thorough
def test_values_that_are_not_finite_are_not_equal(tmp_path):
    broken = state()
    broken["features.2.conv.weight"][0] = torch.nan
    torch.save(broken, tmp_path / "broken.pt")
    summary, told = compare(tmp_path / "out", against=str(tmp_path / "broken.pt"), to="numbers")
    assert told[-1 if "CKA" not in str(told[-1]) else -2].startswith(
        "NaN or infinite values in 6 of 8 layers, first in 'features.2.conv'"
    )
    assert not any("no difference" in str(message) for message in told)
    document = json.loads((summary.directory / "diff.json").read_bytes())
    layer = document["steps"][0]["layers"][2]
    assert (layer["sqnr"], layer["same"]) == (None, False)
    assert layer["nonfinite"] > 0
    assert layers_of(summary.directory)["features.2.conv"]["sqnr"] == ""


@pytest.mark.thorough
def test_films_are_made_of_the_pictures_of_a_comparison(tmp_path):
    summary = compare(tmp_path, against="random:1", weights="random", layers=["features.0.conv"], to=["gif"])[0]
    assert sorted(path.name for path in summary.directory.glob("_film/*.gif")) == [
        "00_features.0.conv.diff.gif",
        "input.gif",
    ]


@pytest.mark.thorough
def test_networks_without_common_layers_are_drawn_as_means(tmp_path):
    summary, told = compare(
        tmp_path,
        model="squeezenet1_1",
        weights="random",
        against="random:1",
        preprocessing=InputOptions(size=(64, 64)),
        layers="*.0",
    )
    assert UNRELATED in told
    with Image.open(summary.directory / "star.jpg" / "00_features.0.diff.png") as image:
        assert "mean of all channels" in image.text["A"]
        assert image.width < 2 * 200


@pytest.mark.thorough
def test_permuted_channels_differ_and_are_aligned(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 8, 3)).eval()
    order = torch.randperm(16, generator=torch.Generator().manual_seed(1))
    other = nn.Sequential(nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 8, 3)).eval()
    with torch.no_grad():
        other[0].weight.copy_(net[0].weight[order])
        other[0].bias.copy_(net[0].bias[order])
        other[2].weight.copy_(net[2].weight[:, order])
        other[2].bias.copy_(net[2].bias)
    inputs = [torch.rand(3, 20, 20, generator=torch.Generator().manual_seed(seed)) for seed in range(8)]
    summary, _ = compare(tmp_path, model=net, against=other, inputs=inputs)
    with (summary.directory / "cka.csv").open(newline="") as file:
        alignment = {(row["first"], row["second"]): float(row["cka"]) for row in csv.DictReader(file)}
    assert alignment["0", "0"] == pytest.approx(1, abs=1e-5)
    assert alignment["2", "2"] == pytest.approx(1, abs=1e-5)
    differing = defaultdict(list)
    for row in rows(summary.directory):
        differing[row["layer"]].append(float(row["max_abs"]))
    assert max(differing["0"]) > 0.1
    assert max(differing["2"]) < 1e-5


def test_channels_that_changed_most_are_chosen(checkpoints, tmp_path):
    style = Style(channels="top:3:change")
    summary, _ = compare(tmp_path, against=str(checkpoints / "epoch_10.pt"), style=style, layers="features.1.*")
    ranked = sorted(
        (row for row in rows(summary.directory) if row["image"] == "star.jpg" and row["channel"]),
        key=lambda row: -float(row["rms"]),
    )
    with Image.open(summary.directory / "star.jpg" / "00_features.1.conv.diff.png") as image:
        assert image.text["Channels"] == ", ".join(row["channel"] for row in ranked[:3])


@pytest.mark.thorough
def test_fewer_than_four_images_have_no_alignment(checkpoints, tmp_path):
    summary, told = compare(tmp_path, against=str(checkpoints / "epoch_10.pt"), inputs=SHAPES[:3])
    assert "no CKA: it needs 4 images" in told
    assert (summary.directory / "cka.csv").read_text().count("\n") == 1
    assert not (summary.directory / "_model").exists()


@pytest.mark.thorough
def test_layers_of_one_network_only_are_reported_once(tmp_path):
    summary, told = compare(
        tmp_path,
        model="resnet18",
        weights="random",
        against="model:resnet34",
        preprocessing=InputOptions(size=(32, 32)),
        to="numbers",
    )
    (apart,) = [message for message in told if "not compared" in str(message)]
    assert "only in B: layer1.2.conv1" in apart
    assert {row["layer"] for row in rows(summary.directory)} >= {"conv1", "layer4.1.conv2"}
    assert "layer1.2.conv1" not in {row["layer"] for row in rows(summary.directory)}
    with (summary.directory / "cka.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert {row["second"] for row in found} > {row["first"] for row in found}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "second network or run of the comparison is missing"),
        ({"against": "dtype:int3"}, "no such type"),
        ({"against": "bfloat16"}, "no such weights or file"),
        ({"against": ""}, "is empty"),
        ({"against": "missing.pth"}, "no such weights file"),
        ({"against": "dtype:float16", "reference": "first"}, "a reference is of a series"),
        ({"weights": "missing_*.pt"}, "no file of this name"),
        ({"weights": "missing_*.pt", "reference": "last"}, "no such reference"),
        ({"weights": "epoch_*.pt", "against": "dtype:float16"}, "compared with one of its own"),
        ({"inputs": ["epoch_10.pt", *SHAPES]}, "second network or run of the comparison is missing"),
        ({"against": "dtype:float16", "style": Style(norm="run")}, "no range over all images"),
        ({"against": "dtype:float16", "to": "stats"}, "describes one network"),
        ({"against": "model:nothing"}, "no such model"),
    ],
)
def test_wrong_arguments_are_refused_and_nothing_is_written(tmp_path, options, match):
    with pytest.raises(RequestError, match=match) as caught:
        compare(tmp_path / "out", **options)
    assert caught.value.hint
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"inputs": ["b.pt", *SHAPES]}, "'b.pt' is an input here: against='b.pt' takes its weights"),
        ({"inputs": ["epoch_10.pt", "epoch_20.pt", *SHAPES]}, "a series of checkpoints is one text"),
        ({"inputs": ["epoch_10.pt", *SHAPES], "weights": "epoch_0.pt"}, "a series of checkpoints is one text"),
    ],
)
def test_checkpoints_among_the_inputs_are_explained(tmp_path, options, start):
    with pytest.raises(RequestError) as caught:
        compare(tmp_path / "out", **options)
    assert caught.value.hint.startswith(start)


def test_a_run_of_one_network_refuses_views_and_formats_of_two(tmp_path):
    for options in ({"views": "diff"}, {"to": "numbers"}, {"style": Style(channels="top:4:change")}):
        with pytest.raises(RequestError, match="two networks"):
            fmapviz.visualize("shapesnet", SHAPES, out=tmp_path, **options)


# --- A series


@pytest.mark.thorough
def test_films_of_a_series_are_refused(checkpoints, tmp_path):
    with pytest.raises(RequestError, match="no films of a series of checkpoints are written: 'gif'"):
        compare(tmp_path, weights=str(checkpoints / "epoch_*.pt"), to="png,gif")
    assert not [*tmp_path.iterdir()]


@pytest.mark.thorough
def test_the_panels_of_a_series_are_those_of_two_networks(checkpoints, tmp_path):
    options = {"layers": "features.[01].conv"}
    summary, told = compare(tmp_path, weights=str(checkpoints / "epoch_*.pt"), to="png,html,tensorboard", **options)
    assert (summary.done, summary.exit_code) == (12, 0)
    assert {message for message in told if isinstance(message, int)} == {12}
    run = summary.directory
    assert problems(tmp_path) == []
    two, _ = compare(
        tmp_path / "two", weights=str(checkpoints / "epoch_0.pt"), against=str(checkpoints / "epoch_20.pt"), **options
    )
    for picture in sorted((two.directory / "star.jpg").glob("*.png")):
        assert np.array_equal(pixels(picture), pixels(run / "star.jpg" / "step_000020" / picture.name))
    assert np.array_equal(pixels(two.directory / "_model" / "cka.png"), pixels(run / "_model" / "step_000020" / "cka.png"))
    one = layers_of(two.directory)
    at = layers_of(run, step="20")
    assert all({**one[name], "step": "20"} == at[name] for name in one)
    assert {row["sqnr"] for row in layers_of(run, step="0").values()} == {"inf"}
    page = (run / "index.html").read_text()
    assert '"steps"' in page
    events = EventAccumulator(str(run), {"images": 0}).Reload()
    assert [event.step for event in events.Images("diff/00 features.0.conv/star.jpg")] == [0, 10, 20]
    assert [event.step for event in events.Scalars("sqnr/00 features.0.conv")] == [10, 20]
    curve = {event.step: event.value for event in events.Scalars("relative_l2/00 features.0.conv")}
    with (run / "layers.csv").open(newline="") as file:
        own = [row for row in csv.DictReader(file) if row["layer"] == "features.0.conv"]
    assert curve == pytest.approx({int(row["step"]): float(row["relative_l2"]) for row in own}, rel=1e-6)
    assert set(curve) == {0, 10, 20}


@pytest.mark.thorough
def test_a_network_is_freed_before_the_next_one_is_loaded(checkpoints, tmp_path, monkeypatch):
    loaded, alive = [], []
    load = series.load_model

    def load_alone(*args, **options):
        gc.collect()
        alive.append(sum(each() is not None for each in loaded))
        model = load(*args, **options)
        loaded.append(weakref.ref(model.module))
        return model

    monkeypatch.setattr(series, "load_model", load_alone)
    summary, _ = compare(tmp_path / "out", weights=str(checkpoints / "epoch_*.pt"), layers="features.0.conv", to="numbers")
    assert summary.steps == len(alive) + 1 >= 3
    assert not any(alive)


@pytest.mark.thorough
def test_each_file_is_loaded_once_and_a_new_one_is_added(checkpoints, tmp_path, monkeypatch):
    folder = tmp_path / "ckpt"
    folder.mkdir()
    for number in (0, 10):
        shutil.copy(checkpoints / f"epoch_{number}.pt", folder)
    loaded = []
    load = series.load_model
    monkeypatch.setattr(
        series, "load_model", lambda *args, **options: loaded.append(options["weights"]) or load(*args, **options)
    )
    once = partial(compare, tmp_path / "out", weights=str(folder / "epoch_*.pt"), layers="features.[01].conv")
    first, _ = once()
    assert loaded == [str(folder / "epoch_10.pt")]  # the first one is the network of the run
    shutil.copy(checkpoints / "epoch_20.pt", folder)
    second, _ = once()
    assert second.directory == first.directory
    assert (second.done, second.skipped) == (4, 8)
    shutil.copy(checkpoints / "epoch_10.pt", folder / "epoch_20.pt")  # other weights of that step
    assert float(layers_of(second.directory, step="20")["features.0.conv"]["sqnr"]) < 20
    before = pixels(second.directory / "_model" / "step_000020" / "cka.png")
    third, _ = once()
    assert (third.done, third.skipped) == (4, 8)
    at = layers_of(third.directory, step="20"), layers_of(third.directory, step="10")
    assert {name: row["sqnr"] for name, row in at[0].items()} == {name: row["sqnr"] for name, row in at[1].items()}
    assert not np.array_equal(before, pixels(third.directory / "_model" / "step_000020" / "cka.png"))
    assert problems(tmp_path / "out") == []


@pytest.mark.thorough
def test_each_checkpoint_may_be_compared_with_the_one_before(checkpoints, tmp_path):
    options = {"layers": "features.[01].conv", "to": "numbers"}
    summary, _ = compare(tmp_path, weights=str(checkpoints / "epoch_*.pt"), reference="previous", **options)
    two, _ = compare(
        tmp_path / "two", weights=str(checkpoints / "epoch_10.pt"), against=str(checkpoints / "epoch_20.pt"), **options
    )
    one, at = layers_of(two.directory), layers_of(summary.directory, step="20")
    assert all({**one[name], "step": "20"} == at[name] for name in one)


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("damaged", [0, 10, 20])
def test_a_damaged_checkpoint_is_named_and_the_others_are_drawn(checkpoints, tmp_path, damaged):
    folder = shutil.copytree(checkpoints, tmp_path / "ckpt")
    (folder / f"epoch_{damaged}.pt").write_bytes(b"damaged")
    summary, told = compare(tmp_path / "out", weights=str(folder / "epoch_*.pt"), layers="features.0.conv")
    told = list(map(str, told))
    assert (summary.exit_code, summary.done, summary.failed) == (3, 8, 1)
    (failure,) = summary.failures
    assert (failure.path, failure.code) == (str(folder / f"epoch_{damaged}.pt"), "E_WEIGHTS")
    steps = {row["step"] for row in rows(summary.directory)}
    assert steps == {"0", "10", "20"} - {str(damaged)}
    assert any("the reference is" in message for message in told) == (damaged == 0)
    assert problems(tmp_path / "out") == []


@pytest.mark.thorough
def test_the_first_step_that_differs_much_is_named(checkpoints, tmp_path):
    folder = tmp_path / "ckpt"
    folder.mkdir()
    for number, name in enumerate((0, 20, 10, 10)):
        shutil.copy(checkpoints / f"epoch_{name}.pt", folder / f"{number}.pt")
    _, told = compare(tmp_path / "out", weights=str(folder / "*.pt"), layers="features.0.conv", to="numbers")
    found = next(message for message in map(str, told) if "first layer below 20 dB" in message)
    assert found.startswith("'features.0.conv' at step 1 is")
    assert found.endswith("; some layer is below it at 1 of 4 steps")


@pytest.mark.thorough
def test_entries_of_checkpoints_are_compared(tmp_path):
    for number, factor in enumerate((0, 0.3)):
        torch.save({"model": state(), "ema": state(factor)}, tmp_path / f"epoch_{number}.pt")
    options = {"layers": "features.0.conv", "to": "numbers"}
    plain, _ = compare(tmp_path / "plain", weights=str(tmp_path / "epoch_*.pt#model"), **options)
    assert {row["sqnr"] for row in rows(plain.directory)} == {"inf"}
    averaged, _ = compare(tmp_path / "averaged", weights=str(tmp_path / "epoch_*.pt#ema"), **options)
    assert float(layers_of(averaged.directory, step="1")["features.0.conv"]["sqnr"]) < 20


def test_names_of_checkpoints_must_have_different_numbers(checkpoints, tmp_path):
    for names, match in {
        ("a.pt", "b.pt"): "no number",
        ("a1.pt", "b1.pt"): "two checkpoints of step 1",
        ("a1.pt",): "one file",
    }.items():
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for name in names:
            shutil.copy(checkpoints / "epoch_0.pt", folder / name)
        with pytest.raises(RequestError, match=match):
            compare(tmp_path / "out", weights=str(folder / "*.pt"))


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (["e01_acc0.90", "e02_acc0.40", "e03_acc0.70"], [1, 2, 3]),
        (["epoch=9-val_loss=0.12", "epoch=10-val_loss=0.08"], [9, 10]),
        (["a1_v2", "a10_v2"], [1, 10]),
        (["ckpt.10", "ckpt.9"], [9, 10]),
        (["net_0.5", "net_0.25"], [5, 25]),
        (["resnet18-3", "resnet18-20"], [3, 20]),
    ],
)
def test_the_step_is_the_last_whole_number_in_which_names_differ(names, steps, tmp_path):
    for name in names:
        (tmp_path / f"{name}.pt").touch()
    assert [step.number for step in list_steps(str(tmp_path / "*.pt"))] == steps


# --- Two finished runs


@pytest.fixture(scope="module", params=["npz", "raw"])
def finished(request, checkpoints, tmp_path_factory):
    place = tmp_path_factory.mktemp(request.param)
    for number in (0, 20):
        fmapviz.visualize(
            "shapesnet",
            SHAPES,
            weights=str(checkpoints / f"epoch_{number}.pt"),
            to=request.param,
            out=place,
            name=f"e{number}",
        )
    return place


@pytest.mark.thorough
@pytest.mark.sampled(1)
def test_two_finished_runs_have_the_differences_of_their_networks(finished, checkpoints, tmp_path):
    options = {"layers": "features.[01].conv"}
    summary, told = compare(tmp_path, model=str(finished / "e0"), inputs=[str(finished / "e20")], **options)
    assert (summary.done, summary.exit_code) == (4, 0)
    assert any("first layer below 20 dB" in str(message) for message in told)
    two, _ = compare(
        tmp_path / "two", weights=str(checkpoints / "epoch_0.pt"), against=str(checkpoints / "epoch_20.pt"), **options
    )
    assert rows(summary.directory) == rows(two.directory)
    assert (summary.directory / "cka.csv").read_bytes() == (two.directory / "cka.csv").read_bytes()
    assert problems(tmp_path) == []
    again, _ = compare(tmp_path, model=str(finished / "e0"), inputs=[str(finished / "e20")], **options)
    assert (again.done, again.skipped) == (0, 4)


@pytest.mark.sampled(1)
def test_the_page_of_two_runs_has_its_pictures(finished, tmp_path):
    first, second = finished / "e0", finished / "e20"
    summary, _ = compare(tmp_path, model=first, inputs=[second], to="html", layers="features.[01].*")
    unit = summary.directory / "star.jpg"
    assert sorted(path.name for path in unit.glob("*.png")) == [
        "00_features.0.conv.diff.png", "01_features.1.conv.diff.png", "input.png",
    ]  # fmt: skip
    assert set(layers_of(summary.directory)) == {"features.0.conv", "features.1.conv"}
    assert (summary.directory / "_model" / "cka.png").exists()
    assert problems(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"weights": "random"}, "neither weights nor preprocessing"),
        ({"preprocessing": InputOptions(size=64)}, "neither weights nor preprocessing"),
        ({"against": "random"}, "with each other"),
        ({"layers": "nothing"}, "none of the chosen layers"),
    ],
)
def test_options_of_networks_are_refused_for_two_runs(finished, tmp_path, options, match):
    first, second = finished / "e0", finished / "e20"
    with pytest.raises(RequestError, match=match):
        compare(tmp_path / "out", model=first, inputs=[second], **options)
    assert not (tmp_path / "out").exists()


def test_a_comparison_with_a_directory_that_is_no_run_is_refused(finished, tmp_path):
    with pytest.raises(RequestError, match="second network or run of the comparison is missing") as caught:
        compare(tmp_path / "out", model=finished / "e0", inputs=["nothing"])
    assert caught.value.hint == "no directory of a run: nothing"


@pytest.mark.sampled(1)
def test_runs_are_compared_by_their_finished_images(finished, tmp_path):
    place = shutil.copytree(finished, tmp_path / "runs")
    shutil.rmtree(place / "e20" / "star.jpg")
    (place / "e20" / ".fmapviz-0-1-abcdef").mkdir()
    summary, told = compare(tmp_path / "out", model=str(place / "e0"), inputs=[str(place / "e20")])
    assert summary.done == 3
    assert any("only in" in str(message) and "star.jpg" in str(message) for message in told)


@pytest.mark.sampled(1)
def test_damaged_values_are_one_failure(finished, tmp_path):
    place = shutil.copytree(finished, tmp_path / "runs")
    file = next((place / "e20" / "star.jpg").glob("raw.*"))
    file.write_bytes(file.read_bytes()[:100])
    summary, _ = compare(tmp_path / "out", model=str(place / "e0"), inputs=[str(place / "e20")])
    assert (summary.exit_code, summary.done, summary.failed) == (3, 3, 1)
    (failure,) = summary.failures
    assert failure.code == "E_VALUES"
    assert str(place / "e20" / "star.jpg") in failure.message
    assert str(place / "e0") not in failure.message
    assert f"verify {place / 'e20'}" in failure.hint


@pytest.mark.sampled(1)
def test_a_comparison_of_runs_has_the_options_of_any_run(finished, tmp_path):
    runs = {"model": str(finished / "e0"), "inputs": [str(finished / "e20")], "layers": "features.0.*", "to": "png"}
    halves = [compare(tmp_path, part=Part(number, 2), **runs)[0] for number in (1, 2)]
    assert [summary.done for summary in halves] == [2, 2]
    assert (halves[0].layers, halves[0].pictures) == (1, 4)
    with pytest.raises(RequestError, match="draws one network"):
        run_diff(RunConfig(runs["model"], runs["inputs"], views="maps", out=tmp_path / "out"), against=None)
    assert not (tmp_path / "out").exists()


@pytest.mark.sampled(1)
def test_runs_that_cannot_be_compared_are_refused(checkpoints, finished, tmp_path):
    options = {"weights": str(checkpoints / "epoch_0.pt"), "layers": "features.0.conv"}
    draw = partial(fmapviz.visualize, "shapesnet", out=tmp_path, **options)
    draw(SHAPES, to="png", name="pictures")
    with pytest.raises(RequestError, match="without stored values") as caught:
        compare(tmp_path / "out", model=str(finished / "e0"), inputs=[str(tmp_path / "pictures")])
    assert "to='npz'" in caught.value.hint
    small = InputOptions(size=(64, 64))
    draw(SHAPES, to="npz", name="small", preprocessing=small)
    with pytest.raises(RequestError, match="preprocessed in different ways"):
        compare(tmp_path / "out", model=str(finished / "e0"), inputs=[str(tmp_path / "small")])
    draw(SHAPES, to="npz", name="cams", views="gradcam")
    with pytest.raises(RequestError, match=r"without stored outputs of layers.*cams"):
        compare(tmp_path / "out", model=str(finished / "e0"), inputs=[str(tmp_path / "cams")])
    (tmp_path / "pictures" / "run.json").write_text("{")
    with pytest.raises(RequestError, match="record of a run is damaged"):
        compare(tmp_path / "out", model=str(finished / "e0"), inputs=[str(tmp_path / "pictures")])
    draw(["sample_images/shapes/square.jpg"], to="npz", name="square")
    with pytest.raises(NothingToDoError, match="no image is in both"):
        compare(tmp_path / "out", model=str(finished / "e0"), inputs=[str(tmp_path / "square")])


class Decoder(nn.Module):
    """Has layers with weights that are no Conv2d."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(4, 2)
        self.up, self.skip = nn.ConvTranspose2d(4, 4, 2, stride=2), nn.ConvTranspose2d(3, 4, 2, stride=2)

    def forward(self, x):
        return self.head((self.up(self.norm(self.body(x))) + self.skip(x)).mean((2, 3)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("changed", "options", "expected"),
    [
        ((), {}, "both networks have the same weights"),
        (("up",), {}, "1 layer of other types, whose weights differ, is not compared: 1 ConvTranspose2d"),
        (("up", "skip", "body"), {}, "2 layers of other types, whose weights differ, are not compared: 2 ConvTranspose2d"),
        (("up",), {"types": "Module"}, ""),
        (("up",), {"layers": "body"}, ""),
        (("body", "norm", "head"), {}, ""),  # heads and norms are not expected to be drawn
    ],
)
def test_differences_that_are_not_compared_are_reported(changed, options, expected, tmp_path):
    torch.manual_seed(0)
    first = Decoder().eval()
    second = copy.deepcopy(first)
    with torch.no_grad():
        for name in changed:
            second.get_submodule(name).weight.mul_(1.5)
    said = compare(tmp_path, inputs=[torch.rand(3, 8, 8)], model=first, against=second, to="numbers", **options)[1]
    found = [str(each) for each in said if "not compared" in str(each) or "same weights" in str(each)]
    assert [each.partition("; ")[0] for each in found] == [expected] * bool(expected)


def test_weights_of_another_type_are_not_reported_as_equal(tmp_path):
    said = compare(tmp_path, inputs=[torch.rand(3, 8, 8)], model=Decoder().eval(), against="dtype:bfloat16", to="numbers")[1]
    assert not any("same weights" in str(each) or "not compared" in str(each) for each in said)
