"""Whole runs with --norm run: one scale for each layer over all images, found out before the first is drawn."""

from __future__ import annotations

import json
import re
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import pixels_of, save_pixels, text_of
from PIL import Image
from safetensors import safe_open
from tiny_models import TwoConvolutionsAndHead, outputs_of
from tiny_runs import AS_IT_IS, runner
from torch import nn
from torchvision.utils import make_grid
from trees import problems

from fmapviz.config import InputOptions, Style
from fmapviz.core.drawings import HeatMap
from fmapviz.draw.facts import why_empty
from fmapviz.errors import RefusedError, RequestError
from fmapviz.events import Notice

MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
GIVEN = InputOptions(fit="none", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
RUN = Style(norm="run")


class Net(TwoConvolutionsAndHead):
    def __init__(self):
        super().__init__(6, 4, 9)


@pytest.fixture
def folder(tmp_path):
    """Four pictures of different contrast."""
    for seed in range(4):
        noise = np.random.default_rng(seed).integers(-128, 128, (16, 20, 3))
        save_pixels(tmp_path / "in" / f"{seed}.png", (128 + noise * (seed + 1) / 4).astype(np.uint8))
    return tmp_path / "in"


@pytest.fixture
def look(tmp_path):
    return runner(Net, out=tmp_path / "out", preprocessing=GIVEN, workers=1, to=["png"], style=RUN)


def hooked(path, layers=("first", "second", "head")):
    pixels = (pixels_of(path).astype(np.float32) / 255 - MEAN) / STD
    return outputs_of(Net(), torch.from_numpy(pixels).permute(2, 0, 1)[None], layers)


def pictures(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*.png") if path.is_file()}


def scales(summary):
    document = json.loads((summary.directory / "survey.json").read_bytes())
    return {(each["of"], each["layer"]): (each["low"], each["high"]) for each in document["layers"]}


def range_of(paths):
    """Return each layer's smallest and largest value over several pictures."""
    every = [hooked(path) for path in paths]
    return {
        layer: (min(float(each[layer].min()) for each in every), max(float(each[layer].max()) for each in every))
        for layer in every[0]
    }


def grid_of(maps, low, high):
    grid = make_grid(maps[:, None], nrow=int(len(maps) ** 0.5), normalize=True, value_range=(low, high))
    return grid[0].mul(255).add(0.5).clamp(0, 255).byte().numpy()


# --- drawings


def test_grids_equal_make_grid_of_one_range(folder, look):
    summary = look([folder])
    paths = sorted(folder.iterdir())
    ranges = range_of(paths)
    assert problems(summary.directory) == []
    for layer in ("first", "second"):
        assert scales(summary)["output", layer] == pytest.approx(ranges[layer], rel=1e-6)
    for path in paths:
        for index, layer in enumerate(["first", "second"]):
            found = pixels_of(summary.directory / path.name / f"0{index}_{layer}.maps.png")
            expected = grid_of(hooked(path)[layer], *ranges[layer])
            assert abs(found.astype(int) - expected).max() <= 1
            assert (found != expected).mean() < 0.001


class Scaled(nn.Module):
    """One convolution without a bias, of a network that takes pixels from 0 to 1 as they are."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 6, 3, bias=False)
        with torch.no_grad():
            self.conv.weight.abs_()

    def forward(self, x):
        return self.conv(x)


@pytest.mark.thorough
def test_an_image_twice_as_bright_is_drawn_twice_as_bright(tmp_path, look):
    dim = np.random.default_rng(0).integers(0, 128, (16, 20, 3), np.uint8)
    (tmp_path / "in").mkdir()
    for name, pixels in (("black.png", dim * 0), ("dim.png", dim), ("bright.png", dim * 2)):
        Image.fromarray(pixels).save(tmp_path / "in" / name)
    options = InputOptions(fit="none", mean=(0.0,), std=(1.0,))
    summary = look([tmp_path / "in"], Scaled(), preprocessing=options)
    one, two, none = (
        pixels_of(summary.directory / name / "00_conv.maps.png").astype(int)
        for name in ("dim.png", "bright.png", "black.png")
    )
    assert not none.any()
    assert two.max() == 255
    assert abs(two - 2 * one).max() <= 1
    alone = look([tmp_path / "in"], Scaled(), preprocessing=options, style=Style(norm="layer"))
    assert pixels_of(alone.directory / "dim.png/00_conv.maps.png").max() == 255


@pytest.mark.thorough
def test_bars_and_maps_over_the_input_have_one_scale_too(folder, look):
    summary = look(
        [folder], views=["maps", "mean"], types=["Conv2d", "Linear"], style=Style(norm="run", alpha=1.0, colormap="gray")
    )
    every = {path.name: hooked(path) for path in sorted(folder.iterdir())}
    low, high = (extreme(each["head"] for each in every.values()) for extreme in (_low, _high))
    low, high = min(low, 0), max(high, 0)
    means = {name: each["first"].mean(0) for name, each in every.items()}
    first, last = _low(means.values()), _high(means.values())
    for name, each in every.items():
        pixels = pixels_of(summary.directory / name / "02_head.maps.png")
        pixels = pixels if pixels.ndim == 2 else pixels[..., 0]
        for number, value in enumerate(each["head"].tolist()):
            column = pixels[2 : 2 + 64, 2 + 12 * number + 3]
            assert abs((column > 64).sum() - round(abs(value) / (high - low) * 64)) <= 1
        large = over_input(means[name].numpy(), (16, 20))
        expected = (((large - first) / (last - first)).clip(0, 1) * 255 + 0.5).astype(np.uint8)
        found = pixels_of(summary.directory / name / "00_first.mean.png")[..., 0]
        assert abs(found.astype(int) - expected).max() <= 1


def over_input(values, size):
    """Interpolate a map of 3 x 3 windows with stride 2, without padding: position n is computed around pixel 2n + 1."""
    rows, columns = (
        np.interp(np.arange(side), 2 * np.arange(count) + 1, np.arange(count))
        for side, count in zip(size, values.shape, strict=True)
    )
    down = np.stack([np.interp(rows, np.arange(len(column)), column) for column in values.T], axis=1)
    return np.stack([np.interp(columns, np.arange(len(row)), row) for row in down])


def _low(values):
    return min(float(each.min()) for each in values)


def _high(values):
    return max(float(each.max()) for each in values)


OF = {"inputs": "input", "grads": "gradient", "grad-inputs": "input gradient", "maps": "output"}


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("views", [["inputs"], ["grads"], ["grad-inputs", "maps"]])
def test_inputs_and_gradients_have_one_scale_too(folder, look, views):
    summary = look([folder], views=views, targets=["top1", 3], layers="second")
    assert (summary.done, problems(summary.directory)) == (4, [])
    records = [json.loads(path.read_bytes())["layers"] for path in summary.directory.rglob("unit.json")]
    own = [layer for layers in records for layer in layers]
    survey = json.loads((summary.directory / "survey.json").read_bytes())["layers"]
    assert {each["of"] for each in survey} == {OF[view] for view in views}
    assert len(survey) == sum(1 if view in {"inputs", "maps"} else 2 for view in views)  # of gradients one for each class
    for each in survey:
        same = [
            layer for layer in own if (layer.get("of", "output"), layer.get("target", "")) == (each["of"], each["class"])
        ]
        assert len(same) == 4
        assert each["low"] == min(layer["min"] for layer in same)
        assert each["high"] == max(layer["max"] for layer in same)
        view = next(view for view in views if OF[view] == each["of"])
        label = f".{each['class']}" if each["class"] else ""
        told = {text_of(path)["Scaling"] for path in summary.directory.rglob(f"*_second{label}.{view}.png")}
        assert told == {f"{each['low']:.4g} to {each['high']:.4g}, the range of all images of the run"}


class Counted(Net):
    """Counts its forward passes."""

    passes = 0

    def forward(self, x):
        type(self).passes += 1
        return super().forward(x)


@pytest.mark.thorough
def test_a_run_without_pictures_has_no_survey(folder, look, monkeypatch):
    passes = []
    for norm in ("layer", "run"):
        monkeypatch.setattr(Counted, "passes", 0)
        look([folder], Counted(), to=["raw"], style=Style(norm=norm), batch_size=1)
        passes.append(Counted.passes)
    assert passes[0] == passes[1]


# --- however it is run


@pytest.mark.thorough
def test_workers_shards_and_parts_do_not_change_the_scale(folder, look, tmp_path):
    plain = pictures(look([folder], out=tmp_path / "plain").directory)
    assert len(plain) == 4 * 3
    shuffled = [folder / f"{seed}.png" for seed in (2, 0, 3, 1)]
    for number, (inputs, options) in enumerate(
        [([folder], {"workers": 4}), ([folder], {"batch_size": 2}), (shuffled, {"workers": 2}), (iter(shuffled), {})]
    ):
        summary = look(inputs, out=tmp_path / f"other{number}", **options)
        if "batch_size" not in options:
            assert pictures(summary.directory) == plain
        else:  # a batch may round otherwise
            found = pictures(summary.directory)
            assert found.keys() == plain.keys()
            for name in found:
                one, other = (
                    pixels_of(run / "net" / name).astype(int) for run in (tmp_path / "plain", tmp_path / f"other{number}")
                )
                assert abs(one - other).max() <= 1


class StopError(Exception):
    pass


@pytest.mark.thorough
def test_an_interrupted_survey_leaves_no_record(folder, look, tmp_path):
    calls = count(1)

    class Stops(Net):
        def forward(self, x):
            if next(calls) == 3:
                raise KeyboardInterrupt
            return super().forward(x)

    model = Stops()
    with pytest.raises(KeyboardInterrupt):
        look([folder], model)
    run = tmp_path / "out/stops"
    assert re.fullmatch(r"run\.json unfinished-[0-9a-f]{12}\.json", " ".join(sorted(path.name for path in run.iterdir())))
    whole = look([folder], model, out=tmp_path / "whole")  # from here on undisturbed
    summary = look([folder], model)
    assert (summary.done, problems(summary.directory)) == (4, [])
    assert pictures(summary.directory) == pictures(whole.directory)
    assert not list(run.glob("unfinished-*"))


@pytest.mark.thorough
def test_an_interrupted_second_pass_is_continued_with_the_same_scale(folder, look, tmp_path):
    whole = look([folder], out=tmp_path / "whole")

    def stop(event):
        if getattr(event, "status", "") == "done":
            raise StopError

    with pytest.raises(StopError):
        look([folder], on_event=stop)
    remembered = (tmp_path / "out/net/survey.json").read_bytes()
    events = []
    summary = look([folder], on_event=events.append)
    assert summary.skipped >= 1
    assert not [event for event in events if isinstance(event, Notice)]  # nothing has to be found out again
    assert (tmp_path / "out/net/survey.json").read_bytes() == remembered
    assert pictures(summary.directory) == pictures(whole.directory)


@pytest.mark.thorough
def test_later_images_are_drawn_on_the_existing_scale(folder, look, tmp_path):
    first = look([folder / "0.png", folder / "1.png"])
    before, known = pictures(first.directory), scales(first)
    grown = look([folder])
    assert (grown.done, grown.skipped, problems(grown.directory)) == (2, 2, [])
    assert scales(grown) == known
    after = pictures(grown.directory)
    assert {name: after[name] for name in before} == before
    ranges = range_of([folder / "0.png", folder / "1.png"])
    for name in ("2.png", "3.png"):
        maps = hooked(folder / name)["first"]
        assert float(maps.max()) > ranges["first"][1]  # beyond the scale: as bright as can be
        expected = grid_of(maps, *ranges["first"])
        assert abs(pixels_of(grown.directory / name / "00_first.maps.png").astype(int) - expected).max() <= 1


def test_a_scale_of_other_images_is_reported(folder, look):
    look([folder / "0.png"])
    events = []
    look([folder], on_event=events.append)
    assert [event for event in events if isinstance(event, Notice)]


def test_the_survey_of_all_images_is_reported(folder, look):
    events = []
    look([folder], on_event=events.append)
    (notice,) = [event.message for event in events if isinstance(event, Notice)]
    assert "4 images" in notice


@pytest.mark.thorough
def test_unreadable_images_do_not_affect_the_scale(folder, look, tmp_path):
    whole = look([folder], out=tmp_path / "whole")
    (folder / "1bad.png").write_bytes(b"no image")
    (folder / "empty.png").write_bytes(b"")
    summary = look([folder, tmp_path / "missing.png"])
    assert (summary.done, summary.failed, summary.exit_code) == (4, 3, 3)
    assert len((summary.directory / "failures.jsonl").read_text().splitlines()) == 3
    assert pictures(summary.directory) == pictures(whole.directory)
    assert (summary.directory / "survey.json").read_bytes() == (whole.directory / "survey.json").read_bytes()
    events = []
    look([folder, tmp_path / "missing.png"], on_event=events.append)
    assert not [event for event in events if isinstance(event, Notice)]


@pytest.mark.thorough
def test_a_run_that_began_without_readable_images_has_a_scale_later(folder, look, tmp_path):
    whole = look([folder], out=tmp_path / "whole")
    (tmp_path / "bad.png").write_bytes(b"no image")
    assert look([tmp_path / "bad.png"]).exit_code == 4
    summary = look([folder])
    assert pictures(summary.directory) == pictures(whole.directory)


def test_a_wrong_request_leaves_no_survey(folder, look, tmp_path):
    with pytest.raises(RequestError):
        look([folder], views="grads", targets=["99999"])
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("damage", ["cut", "changed", "deleted"])
def test_a_lost_scale_is_computed_again(folder, look, damage):
    summary = look([folder])
    survey = summary.directory / "survey.json"
    data = survey.read_bytes()
    before = pictures(summary.directory)
    if damage == "cut":
        survey.write_bytes(data[:-20])
    elif damage == "changed":
        survey.write_bytes(data.replace(b"0.", b"1.", 1))
    else:
        survey.unlink()
    if damage != "deleted":
        assert [problem.message for problem in problems(summary.directory)] == ["damaged"]
    again = look([folder])
    assert (again.skipped, problems(again.directory)) == (4, [])
    assert survey.read_bytes() == data
    assert pictures(again.directory) == before


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("given", [["0.png"], ["0.png", "1.png", "2.png", "3.png"]], ids=["fewer", "more"])
def test_a_lost_scale_is_not_computed_from_other_images(folder, look, given):
    """Existing pictures would have another scale than new ones, without a sign of it."""
    summary = look([folder / "0.png", folder / "1.png"])
    (summary.directory / "survey.json").unlink()
    before = pictures(summary.directory)
    with pytest.raises(RefusedError, match=r"the survey of the 2 images .* survey\.json") as refused:
        look([folder / name for name in given])
    assert "force=True" in refused.value.hint
    assert pictures(summary.directory) == before
    assert not (summary.directory / "survey.json").exists()


@pytest.mark.thorough
def test_force_redraws_all_images_on_a_new_scale(folder, look, tmp_path):
    whole = look([folder], out=tmp_path / "whole")
    summary = look([folder / "0.png", folder / "1.png"])
    (summary.directory / "survey.json").unlink()
    with pytest.raises(RefusedError):  # one of those that are there would stay as it is
        look([folder / "0.png", folder / "2.png"], force=True)
    again = look([folder], force=True)
    assert (again.done, problems(again.directory)) == (4, [])
    assert pictures(again.directory) == pictures(whole.directory)


def test_verify_reports_a_missing_scale(folder, look):
    summary = look([folder])
    (summary.directory / "survey.json").unlink()
    assert problems(summary.directory)


@pytest.mark.thorough
def test_a_foreign_file_named_like_the_survey_is_kept(folder, look, tmp_path):
    look([folder / "0.png"])
    survey = tmp_path / "out/net/survey.json"
    survey.write_text("my own answers")
    with pytest.raises(RefusedError, match=r"survey\.json is missing or damaged"):
        look([folder])
    assert survey.read_text() == "my own answers"


@pytest.mark.thorough
def test_a_list_on_standard_input_is_read_to_its_end_first(fmapviz, folder, look, tmp_path):
    arguments = ["shapesnet", "--norm", "run", "--to", "png", "--fit", "none", "--predictions", "0", "--workers", "1"]
    listed = "".join(f"{folder / name}\n" for name in ("3.png", "1.png", "0.png", "2.png")).encode()
    piped = fmapviz(*arguments, "-", "--out", tmp_path / "piped", stdin=listed)
    assert piped.returncode == 0, piped.stderr
    assert b"surveying 4 images" in piped.stderr
    named = look([folder], "shapesnet", predictions=0, preprocessing=AS_IT_IS)
    assert len(pictures(named.directory)) > 8
    assert pictures(tmp_path / "piped/shapesnet") == pictures(named.directory)


@pytest.mark.thorough
def test_chosen_channels_are_drawn_on_the_whole_scale(folder, look):
    """Chosen channels are drawn as among all channels, so that brightness is comparable."""
    everything, some = look([folder]), look([folder], style=Style(norm="run", channels="1,4"))
    assert scales(everything) == scales(some)
    ranges = range_of(sorted(Path(folder).iterdir()))
    found = pixels_of(some.directory / "2.png/00_first.maps.png")
    expected = grid_of(hooked(folder / "2.png")["first"][[1, 4]], *ranges["first"])
    assert abs(found.astype(int) - expected).max() <= 1


# --- heat maps


class Classifier(nn.Sequential):
    """A network whose maps are as large as its input, so that heat maps are not enlarged."""

    def __init__(self):
        torch.manual_seed(0)
        maps = nn.Conv2d(3, 6, 3, padding=1), nn.ReLU()
        super().__init__(*maps, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))


PLAIN = {"colormap": "gray", "alpha": 1.0, "labels": False}


def heats_of(summary, view):
    """Return the raw maps and the levels of a view, by image."""
    raw, levels = {}, {}
    for path in sorted(summary.directory.rglob(f"*.{view}.png")):
        name = path.parent.name
        with safe_open(path.parent / "raw.safetensors", framework="numpy") as file:
            (key,) = [key for key in file.keys() if key.startswith(f"{view}/")]  # noqa: SIM118  no dictionary
            raw[name] = file.get_tensor(key).squeeze()
        pixels = pixels_of(path)
        levels[name] = pixels[..., 0] if pixels.ndim == 3 else pixels
    return raw, levels


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("norm", ["run", "signed-run"])
@pytest.mark.parametrize("view", ["gradcam", "layercam", "hirescam", "eigencam", "saliency"])
@pytest.mark.parametrize("more", [(), ("maps",)], ids=["alone", "beside maps"])
def test_heat_maps_of_all_images_have_one_range(folder, look, view, norm, more):
    summary = look(
        [folder], Classifier(), views=[view, *more], targets=[2], to=["png", "raw"], style=Style(norm=norm, **PLAIN)
    )
    raw, levels = heats_of(summary, view)
    positive = {name: np.maximum(values, 0) for name, values in raw.items()}
    low, high = min(each.min() for each in positive.values()), max(each.max() for each in positive.values())
    assert len(levels) == 4
    assert len({each.max() for each in positive.values()}) == 4
    for name, found in levels.items():
        expected = np.floor((positive[name] - low) / (high - low) * 255 + 0.5)
        assert abs(found - expected).max() <= 1
    path = sorted(summary.directory.rglob(f"*.{view}.png"))[0]
    assert f"{low:.4g} to {high:.4g}, the range of all images of the run" in text_of(path)["Scaling"]
    assert problems(summary.directory) == []


@pytest.mark.thorough
def test_frames_of_a_film_have_one_range(tmp_path, look):
    noise = np.random.default_rng(0).integers(0, 60, (16, 20, 3))
    frames = [Image.fromarray((noise * factor).astype(np.uint8)) for factor in (1, 2, 4)]
    frames[0].save(tmp_path / "clip.webp", save_all=True, append_images=frames[1:], lossless=True)
    style = Style(norm="run", **PLAIN)
    summary = look([tmp_path / "clip.webp"], Classifier(), views=["gradcam"], targets=[2], to=["png", "raw"], style=style)
    raw, levels = heats_of(summary, "gradcam")
    assert len(levels) == 3
    assert max(each.max() for each in levels.values()) == 255
    assert sum(each.max() == 255 for each in levels.values()) == 1
    assert [*np.argsort([each.max() for each in raw.values()])] == [*np.argsort([each.max() for each in levels.values()])]


@pytest.mark.thorough
def test_other_ranges_and_the_contact_sheet_are_not_changed(folder, look):
    def drawn(norm):
        summary = look([folder], Classifier(), views=["gradcam", "sheet", "maps"], targets=[2], style=Style(norm=norm))
        return {name: content for name, content in pictures(summary.directory).items() if "maps" not in name}

    plain, layer, run = drawn("channel"), drawn("layer"), drawn("run")
    assert plain == layer
    assert {name for name in plain if plain[name] != run[name]} == {name for name in plain if "gradcam" in name}


def test_a_map_below_a_level_of_the_shared_range_is_reported():
    raw = np.full((2, 2), 1e-6, np.float32)
    for common, reason in (((0.0, 1.0), "below half a level"), (None, "the same everywhere")):
        heat = HeatMap(raw, np.zeros((4, 4), np.uint8), True, "turbo", common=common)
        assert why_empty(heat).startswith(reason)
