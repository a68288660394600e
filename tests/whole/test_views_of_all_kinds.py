"""Whole runs with the views mean, max, contact, pca, histogram and kernels, against hooks, NumPy, Pillow and TensorBoard."""

from __future__ import annotations

import json
import math
from base64 import b64decode
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import paint, pixels_of, save_pixels, text_of
from PIL import Image
from safetensors import safe_open
from tensorboard.backend.event_processing.event_accumulator import IMAGES, TENSORS, EventAccumulator
from tensorboard.util.tensor_util import make_ndarray
from tiny_models import TwoConvolutionsAndHead, outputs_of
from tiny_runs import AS_IT_IS, StopError, runner, stop_after_an_image
from torch import nn
from torchvision.utils import make_grid
from trees import difference, problems

from fmapviz import load_model
from fmapviz.config import InputOptions, RunConfig, Style
from fmapviz.errors import RequestError
from fmapviz.run.load import load_session
from fmapviz.run.loop import visualize
from fmapviz.run.model_views import draw_model
from fmapviz.store.remote.destination import LocalDestination

GREY = InputOptions(fit="none", mean=(0.5,), std=(0.25,))
MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
SIZE = (16, 20)


class Net(TwoConvolutionsAndHead):
    def __init__(self, seed=0, channels=3):
        super().__init__(5, 6, 4, seed=seed, channels=channels, padding=1)


class Broken(Net):
    """Its second convolution returns NaN in one column, or everywhere."""

    everything = False

    def forward(self, x):
        first = self.first(x).relu()
        first[..., slice(None) if self.everything else 0] = torch.nan
        return self.second(first)


@pytest.fixture
def look(tmp_path):
    """Draw inputs, and check that nothing failed and that `verify` accepts the run."""
    draw = runner(Net, out=tmp_path / "out", preprocessing=AS_IT_IS, workers=1, to=["png"])

    def run(*args, **options):
        summary = draw(*args, **options)
        assert not summary.failures
        assert problems(summary.directory) == []
        return summary

    return run


def prepared(path):
    with Image.open(path) as image:
        pixels = np.asarray(image, np.float32) / 255
    pixels = (pixels - np.float32(0.5)) / np.float32(0.25) if pixels.ndim == 2 else (pixels - MEAN) / STD
    return torch.from_numpy(pixels if pixels.ndim == 3 else pixels[..., None]).permute(2, 0, 1)[None]


def hooked(path, model=None, layers=("first", "second")):
    return outputs_of(model or Net(), prepared(path), layers)


def reduce(maps, view):
    return maps.mean(0) if view == "mean" else maps.amax(0)


def enlarge(raw, size=SIZE):
    """Interpolate between the centres of what the positions of both layers see: 1.5, 3.5, 5.5, ..."""
    values = raw.double().numpy()
    for axis, side in enumerate(size):
        at, centres = np.arange(side) + 0.5, 1.5 + 2 * np.arange(values.shape[axis])
        values = np.apply_along_axis(lambda line, at=at, centres=centres: np.interp(at, centres, line), axis, values)
    return torch.from_numpy(values)


def stretched(raw, low, high):
    levels = (raw.double().numpy() - low) / (high - low)
    return (levels.clip(0, 1) * 255 + 0.5).astype(np.uint8)


def laid_over(seen, levels, colormap, alpha=0.5):
    from extras import matplotlib as mpl

    colours = Image.fromarray((mpl.colormaps[colormap](levels)[..., :3] * 255 + 0.5).astype(np.uint8))
    return np.asarray(Image.blend(Image.fromarray(seen).convert("L").convert("RGB"), colours, alpha)).astype(int)


def pictures(unit):
    return sorted(path.name for path in Path(unit).glob("*.png"))


def bytes_of(directory):
    """Return every picture."""
    files = (path for path in sorted(directory.rglob("*.png")) if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


# --- mean and max


@pytest.mark.sampled(2)
@pytest.mark.parametrize("view", ["mean", "max"])
@pytest.mark.parametrize(
    ("style", "colormap"),
    [
        ({}, "turbo"),
        ({"norm": "layer"}, "turbo"),
        ({"norm": "fixed:-0.5,1.25"}, "turbo"),
        ({"norm": "signed"}, "coolwarm"),
        ({"norm": "signed", "colormap": "viridis", "alpha": 0.25}, "viridis"),
        ({"channels": "0,3-4", "alpha": 1.0, "colormap": "jet"}, "jet"),
        ({"alpha": 0.0}, "turbo"),
    ],
)
def test_reductions_of_all_channels_lie_over_the_input(tmp_path, look, view, style, colormap):
    path = paint(tmp_path / "a.png")
    unit = look([path], views=view, style=Style(**style)).directory / "a.png"
    for index, (layer, maps) in enumerate(hooked(path).items()):
        large = enlarge(reduce(maps, view))  # whichever channels the grids show
        low, high = float(large.min()), float(large.max())
        if style.get("norm") == "signed":
            low, high = -max(-low, high), max(-low, high)
        elif "fixed" in style.get("norm", ""):
            low, high = -0.5, 1.25
        alpha = style.get("alpha", 0.5)
        expected = laid_over(pixels_of(path), stretched(large, low, high), colormap, alpha)
        found = pixels_of(unit / f"0{index}_{layer}.{view}.png").astype(int)
        assert found.shape == expected.shape
        assert abs(found - expected).max() <= 1 + 4 * alpha
        assert (abs(found - expected) > 1 + alpha).mean() < 0.01


@pytest.mark.sampled(1)
@pytest.mark.parametrize("channels", ["top:2", "top:1:mean", "0,2", "99"])
def test_reductions_use_all_channels_regardless_of_channels(tmp_path, look, channels):
    path = paint(tmp_path / "a.png")
    views = ["mean", "max", "contact", "histogram", "pca"]
    one, other = (
        look([path], views=["maps", *views][shown:], style=Style(**style), to=["png", "raw"], name=name).directory / "a.png"
        for name, shown, style in (("some", 0, {"channels": channels, "labels": False}), ("all", 1, {"labels": False}))
    )
    assert not [file for file in one.glob("*.png") if ".maps" not in file.name and "Channels" in text_of(file)]
    names = [name for name in pictures(other) if ".pca" not in name or channels != "99"]
    assert len(names) > 6
    assert all(np.array_equal(pixels_of(one / name), pixels_of(other / name)) for name in names)
    with safe_open(one / "raw.safetensors", "np") as some, safe_open(other / "raw.safetensors", "np") as every:
        assert set(every.keys()) <= set(some.keys())
        assert all(np.array_equal(some.get_tensor(key), every.get_tensor(key)) for key in every.keys())  # noqa: SIM118


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [(9, 31), (40, 12), (7, 7)])
def test_a_map_has_the_size_of_its_own_picture(tmp_path, look, size):
    path = paint(tmp_path / "a.png", size=size)
    unit = look([path], views=["mean", "max"], style=Style(alpha=1.0, colormap="gray")).directory / "a.png"
    for index, (layer, maps) in enumerate(hooked(path).items()):
        for view in ("mean", "max"):
            large = enlarge(reduce(maps, view), size)
            found = pixels_of(unit / f"0{index}_{layer}.{view}.png")[..., 0].astype(int)
            assert found.shape == size
            assert abs(found - stretched(large, float(large.min()), float(large.max()))).max() <= 1


def test_a_reduction_lies_over_a_grey_picture(tmp_path, look):
    path = save_pixels(tmp_path / "a.png", np.random.default_rng(0).integers(0, 256, SIZE, np.uint8))
    unit = look([path], Net(channels=1), views=["mean", "contact"], preprocessing=GREY).directory / "a.png"
    large = enlarge(hooked(path, Net(channels=1))["first"].mean(0))
    expected = laid_over(pixels_of(path), stretched(large, float(large.min()), float(large.max())), "turbo")
    found = pixels_of(unit / "00_first.mean.png").astype(int)
    assert found.shape == (*SIZE, 3)
    assert abs(found - expected).max() <= 3
    assert pixels_of(unit / "contact.png").shape[2] == 3


def test_a_vector_is_reported_as_undrawn(tmp_path, look):
    path = paint(tmp_path / "a.png")
    summary = look([path], views=["mean", "max", "contact", "pca"], types=["Conv2d", "Linear"])
    assert set(summary.undrawn) == {f"{view} of head" for view in ("mean", "max", "contact", "pca")}
    assert all("vector" in reason for reason in summary.undrawn.values())
    assert not [name for name in pictures(summary.directory / "a.png") if "head" in name]
    assert json.loads((summary.directory / "a.png/unit.json").read_bytes())["undrawn"] == dict(summary.undrawn)


def test_a_layer_of_vectors_alone_is_a_failure_not_an_empty_directory(tmp_path):
    path = paint(tmp_path / "a.png")
    summary = visualize(Net(), [path], views="mean", types="Linear", to="png", out=tmp_path / "out", preprocessing=AS_IT_IS)
    assert (summary.exit_code, summary.failures[0].code) == (4, "E_NOTHING")
    assert sorted(entry.name for entry in summary.directory.iterdir()) == ["failures.jsonl", "run.json"]


class Clip(nn.Module):
    """Makes a clip of three frames of a picture."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv3d(3, 4, 3, padding=1)

    def forward(self, x):
        return self.conv(torch.stack([x, x.flip(-1), x / 2], 2))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("view", ["mean", "max", "pca"])
def test_each_frame_has_its_own_reduction(tmp_path, look, view):
    path = paint(tmp_path / "a.png")
    summary = look([path], Clip(), views=[view, "contact", "histogram"], style=Style(alpha=1.0, colormap="gray"))
    unit = summary.directory / "a.png"
    frames = [name for name in pictures(unit) if name.endswith(f".{view}.png")]
    assert frames == [f"00_conv.t{frame}.{view}.png" for frame in range(3)]
    if view != "pca":
        maps = hooked(path, Clip(), ["conv"])["conv"]
        for frame, name in enumerate(frames):
            raw = reduce(maps[:, frame], view)
            found = pixels_of(unit / name)[..., 0].astype(int)
            assert abs(found - stretched(raw, float(raw.min()), float(raw.max()))).max() <= 1
    assert text_of(unit / "contact.png")["Layers"] == "3"


def test_the_recorded_scale_is_the_drawn_one(tmp_path, look):
    path = paint(tmp_path / "a.png", size=(40, 40))
    model = nn.Sequential(nn.Conv2d(3, 2, 4, stride=4))  # sees the equal parts of the input: no pixel is at a centre
    unit = look([path], model, views="max").directory / "a.png"
    raw = hooked(path, model, ["0"])["0"].amax(0)
    large = nn.functional.interpolate(raw[None, None], (40, 40), mode="bilinear", align_corners=False)
    assert float(large.max()) < float(raw.max()) - 0.01  # where it makes a difference
    low, _, high = text_of(unit / "00_0.max.png")["Scaling"].split(", enlarged")[0].split()
    assert (float(low), float(high)) == pytest.approx((float(large.min()), float(large.max())), rel=1e-3)


def nearest(values, size):
    """Take the position whose centre, 1.5, 3.5, 5.5, ..., is nearest to each pixel's."""
    rows, columns = (
        np.minimum((np.arange(side) + 0.5 - 0.5) // 2, count - 1).astype(int)
        for side, count in zip(size, values.shape[:2], strict=True)
    )
    return values[rows[:, None], columns]


@pytest.mark.parametrize("view", ["mean", "max"])
def test_positions_without_a_finite_value_are_a_checkerboard_and_ignored(tmp_path, look, view):
    path = paint(tmp_path / "a.png")
    unit = look([path], Broken(), views=view, style=Style(alpha=1.0, colormap="gray")).directory / "a.png"
    raw = reduce(hooked(path, Broken())["second"], view)
    assert raw.isnan().any(0).tolist() == [True] * 2 + [False] * 7
    # Between a column that is not finite and one that is there is the latter.
    large = enlarge(torch.cat([raw[:, 2:3]] * 2 + [raw[:, 2:]], 1))
    bad = nearest(raw.isnan().numpy(), SIZE)
    low, high = float(large[~bad].min()), float(large[~bad].max())
    found = pixels_of(unit / f"01_second.{view}.png")[..., 0]
    assert abs(found.astype(int) - stretched(large, low, high))[~bad].max() <= 1
    rows, columns = np.indices(SIZE)
    assert np.array_equal(found[bad], ((rows + columns) % 2 * 255)[bad])


def test_a_checkerboard_covers_the_input_in_black_and_white(tmp_path, look):
    path = paint(tmp_path / "a.png")
    unit = look([path], Broken(), views="mean", style=Style(alpha=0.3)).directory / "a.png"
    bad = nearest(hooked(path, Broken())["second"].mean(0).isnan().numpy(), SIZE)
    found = pixels_of(unit / "01_second.mean.png")
    assert {tuple(colour) for colour in found[bad].tolist()} == {(0, 0, 0), (255, 255, 255)}
    assert not {tuple(colour) for colour in found[~bad].tolist()} & {(0, 0, 0), (255, 255, 255)}


class Holes(nn.Module):
    """Returns its input with NaN in all channels of some positions, and infinity in one channel of others."""

    def __init__(self):
        super().__init__()
        self.first = nn.Identity()

    def forward(self, x):
        x = torch.nn.functional.avg_pool2d(x, 4)
        x[:, :, 1:3, 2] = torch.nan
        x[:, 1, 0, 0] = torch.inf
        return self.first(x)


@pytest.mark.parametrize("labels", [None, True])
def test_values_that_are_not_finite_are_reported_in_each_view(tmp_path, look, labels):
    path = paint(tmp_path / "a.png")
    views = ["maps", "mean", "max", "contact", "pca", "histogram"]
    unit = look([path], Holes(), views=views, types="Identity", style=Style(labels=labels)).directory / "a.png"
    said = {view: text_of(unit / f"00_first.{view}.png")["Not finite"] for view in views if view != "contact"}
    values = "7 values are NaN or infinite"
    left_out = f"{values} and take no part; 2 of 20 places, where there is no other, are drawn as a checkerboard"
    assert said == {
        "maps": f"{values}, drawn as a checkerboard",
        "mean": left_out,
        "max": left_out,
        "pca": f"{values}, at 3 of 20 places, drawn as a checkerboard",
        "histogram": f"{values}, not counted",
    }
    assert text_of(unit / "contact.png")["Not finite"].endswith("first: 7 values, no other at 2 of 20 places")
    record = json.loads((unit / "unit.json").read_bytes())
    (layer,) = record["layers"]
    assert (layer["nonfinite"], layer["nonfinite_places"]) == (7, 3)
    finite = hooked(path, Holes(), ["first"])["first"].nan_to_num(nan=-9, posinf=-9).amax(0)
    for heat in record["heat_maps"]:
        assert (heat["nonfinite"], heat["nonfinite_places"]) == (7, 2)
    (largest,) = (heat for heat in record["heat_maps"] if heat["view"] == "max")
    assert (largest["min"], largest["max"]) == pytest.approx((float(finite[finite > -9].min()), float(finite.max())))


def test_finite_values_are_not_reported(tmp_path, look):
    path = paint(tmp_path / "a.png")
    sound = look([path], Net(), views=["mean", "contact", "pca"]).directory / "a.png"
    assert not any("Not finite" in text_of(file) for file in sound.glob("*.png"))


def test_sheets_and_components_have_a_checkerboard_in_their_resolution(tmp_path, look):
    from extras import matplotlib as mpl

    path = paint(tmp_path / "a.png")
    unit = look([path], Holes(), views=["contact", "pca"], types="Identity").directory / "a.png"
    _, cell = boxes(pixels_of(unit / "contact.png"))
    small = np.asarray(Image.fromarray(cell).resize((5, 4), Image.Resampling.NEAREST))
    assert small[1:3, 2].tolist() == [[255] * 3, [0] * 3]
    colours = mpl.colormaps["viridis"](np.arange(256))[:, :3] * 255
    rest = np.delete(small.reshape(-1, 3), [7, 12], 0)
    assert abs(rest[:, None] - colours[None]).max(2).min(1).max() <= 2
    components = pixels_of(unit / "00_first.pca.png")
    assert components.shape == (*SIZE, 3)
    small = components[::4, ::4]
    assert np.array_equal(components, small.repeat(4, 0).repeat(4, 1))
    assert [small[place].tolist() for place in ((0, 0), (1, 2), (2, 2))] == [[0] * 3, [255] * 3, [0] * 3]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scale", [2, 5])
def test_components_are_enlarged_as_grids_are(tmp_path, look, scale):
    path = paint(tmp_path / "a.png")
    model = nn.Sequential(nn.Conv2d(3, 6, 4, stride=4))
    plain, large = (
        pixels_of(look([path], model, views="pca", style=Style(scale=each)).directory / "a.png/00_0.pca.png")
        for each in (1, scale)
    )
    assert plain.shape == (*SIZE, 3)
    assert np.array_equal(large, plain.repeat(scale, 0).repeat(scale, 1))


def test_the_range_of_a_map_is_that_of_its_finite_values(tmp_path, look):
    path = paint(tmp_path / "a.png")
    unit = look([path], Broken(), views=["mean"]).directory / "a.png"
    raw = hooked(path, Broken())["second"].mean(0)
    finite = raw[raw.isfinite()]
    facts = text_of(unit / "01_second.mean.png")
    assert "nan" not in facts["Scaling"]
    low, _, high = facts["Range"].split()
    assert (float(low), float(high)) == pytest.approx((float(finite.min()), float(finite.max())), rel=1e-3)


# --- contact


def boxes(sheet):
    """Find pictures on a sheet by the grey line around each: their pixels without that line, row by row."""
    edge = (sheet == 205).all(-1)
    found = []
    for top in range(1, len(edge) - 1):
        for left in np.flatnonzero(edge[top] & ~edge[top - 1]):
            # An upper left corner: a line to the right and a line down, neither to the left.
            if (left and edge[top, left - 1]) or not (
                edge[top, left : left + 20].all() and edge[top : top + 20, left].all()
            ):
                continue
            right = left + int(np.argmin(edge[top, left:]))
            bottom = top + int(np.argmin(edge[top:, left]))
            if edge[bottom - 1, left:right].all() and edge[top:bottom, right - 1].all():
                found.append(sheet[top + 1 : bottom - 1, left + 1 : right - 1])
    return found


def test_a_contact_sheet_shows_the_input_and_each_layer_in_order(tmp_path, look):
    from extras import matplotlib as mpl

    paths = [paint(tmp_path / "in" / f"{name}.png", seed) for seed, name in enumerate("ab")]
    summary = look([tmp_path / "in"], views="contact", types=["Conv2d", "Linear"])
    assert summary.pictures == 4
    for path in paths:
        unit = summary.directory / path.name
        assert pictures(unit) == ["contact.png", "input.png"]
        cells = boxes(pixels_of(unit / "contact.png"))
        assert len(cells) == 3
        expected = [pixels_of(path)]
        for maps in hooked(path).values():
            raw = maps.mean(0)
            levels = stretched(raw, float(raw.min()), float(raw.max()))
            expected.append((mpl.colormaps["viridis"](levels)[..., :3] * 255 + 0.5).astype(np.uint8))
        for cell, picture in zip(cells, expected, strict=True):
            large = Image.fromarray(picture).resize(cell.shape[1::-1], Image.Resampling.NEAREST)
            assert cell.shape[0] * cell.shape[1] > 10_000
            assert abs(cell.astype(int) - np.asarray(large)).max() <= 4
        assert text_of(unit / "contact.png")["Layers"] == "2"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("norm", ["fixed:-9,9", "run"])
def test_the_contact_sheet_names_the_scaling_of_its_cells(tmp_path, look, norm):
    """The cells do not reach from each one's smallest value to its largest then, so the sheet must not say that they do."""
    paint(tmp_path / "in/a.png")
    paint(tmp_path / "in/b.png", seed=1)
    notes = []
    for each in ("channel", norm):
        unit = look([tmp_path / "in"], views="contact", style=Style(norm=each)).directory / "a.png"
        sheet = pixels_of(unit / "contact.png")
        notes.append(sheet[-45:])  # the note stands below
    assert not np.array_equal(*notes)


@pytest.mark.thorough
def test_a_contact_sheet_does_not_depend_on_other_views(tmp_path, look):
    path = paint(tmp_path / "a.png")
    alone = look([path], views="contact").directory / "a.png/contact.png"
    among = look([path], views=["maps", "contact", "mean"], style=Style(labels=True, colorbar=True)).directory
    assert np.array_equal(pixels_of(alone), pixels_of(among / "a.png/contact.png"))


# --- pca


def test_equal_vectors_have_equal_colours_in_all_images_if_the_basis_is_shared(tmp_path, look):
    """Two pictures that share their left half, for which a 1 x 1 convolution has equal outputs, so shared colours agree."""
    first, second = (np.random.default_rng(seed).integers(0, 256, (*SIZE, 3), np.uint8) for seed in (0, 1))
    second[:, 10:] //= 3
    second[:, :10] = first[:, :10]
    (tmp_path / "in").mkdir()
    for name, pixels in (("a.png", first), ("b.png", second)):
        Image.fromarray(pixels).save(tmp_path / "in" / name)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 1))
    drawn = {}
    for pca in ("image", "shared"):
        run = look([tmp_path / "in"], model, views="pca", style=Style(pca=pca)).directory
        drawn[pca] = [pixels_of(run / name / "00_0.pca.png") for name in ("a.png", "b.png")]
    a, b = drawn["shared"]
    assert a.shape == (*SIZE, 3)
    assert np.array_equal(a[:, :10], b[:, :10])
    assert not np.array_equal(a[:, 10:], b[:, 10:])
    a, b = drawn["image"]
    assert not np.array_equal(a[:, :10], b[:, :10])


def test_a_shared_basis_equals_numpys_of_all_images(tmp_path, look):
    paths = [paint(tmp_path / "in" / f"{name}.png", seed) for seed, name in enumerate("abc")]
    run = look([tmp_path / "in"], views="pca", style=Style(pca="shared"), layers="second").directory
    maps = [hooked(path)["second"].double().numpy() for path in paths]
    everything = np.concatenate([each.reshape(6, -1) for each in maps], 1)
    mean = everything.mean(1, keepdims=True)
    values, vectors = np.linalg.eigh(np.cov(everything, bias=True))
    order = values.argsort()[::-1][:3]
    components, deviations = vectors[:, order].T, np.sqrt(values[order])
    components = components * np.sign(components[range(3), abs(components).argmax(1)])[:, None]
    for path, each in zip(paths, maps, strict=True):
        scores = components @ (each.reshape(6, -1) - mean) / deviations[:, None]
        levels = ((scores / 2.5 + 1) / 2 * 255).clip(0, 255).T.reshape(*each.shape[1:], 3)
        found = pixels_of(run / path.name / "00_second.pca.png")
        assert abs(found - nearest(levels, SIZE)).max() <= 1


@pytest.mark.thorough
def test_workers_and_interruptions_change_no_colour(tmp_path, look):
    for seed in range(5):
        paint(tmp_path / "in" / f"{seed}.png", seed)
    style = Style(pca="shared", norm="run")
    views = ["pca", "mean", "contact", "maps"]
    whole = look([tmp_path / "in"], views=views, style=style, out=tmp_path / "whole").directory
    several = look([tmp_path / "in"], views=views, style=style, out=tmp_path / "several", workers=4).directory
    assert difference(bytes_of(several), bytes_of(whole)) == []

    with pytest.raises(StopError):
        look([tmp_path / "in"], views=views, style=style, out=tmp_path / "resumed", on_event=stop_after_an_image)
    resumed = look([tmp_path / "in"], views=views, style=style, out=tmp_path / "resumed")
    assert resumed.skipped
    assert difference(bytes_of(resumed.directory), bytes_of(whole)) == []


@pytest.mark.thorough
def test_a_grown_run_keeps_its_basis(tmp_path, look):
    paths = [paint(tmp_path / f"{seed}.png", seed) for seed in range(3)]
    style = Style(pca="shared")
    run = look(paths[:2], views="pca", style=style).directory
    survey = (run / "survey.json").read_bytes()
    summary = look(paths, views="pca", style=style)
    assert (summary.directory, summary.done, summary.skipped) == (run, 1, 2)
    assert (run / "survey.json").read_bytes() == survey
    forced = look(paths, views="pca", style=style, force=True)
    assert forced.done == 3
    assert (run / "survey.json").read_bytes() == survey


@pytest.mark.sampled(1)
@pytest.mark.parametrize("channels", ["0,1,2", "top:3"])
def test_chosen_channels_have_a_shared_basis_too(tmp_path, look, channels):
    paths = [paint(tmp_path / f"{seed}.png", seed) for seed in range(2)]
    summary = look(paths, views=["maps", "pca"], style=Style(pca="shared", channels=channels))
    assert summary.done == 2


class Picky(Net):
    """Fails at bright pictures, after its first convolution."""

    def forward(self, x):
        first = self.first(x)
        if (x.mean((1, 2, 3)) > 0.9).any():
            message = "too bright"
            raise ValueError(message)
        return self.second(first)


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch", [1, 8])
def test_a_failing_image_does_not_affect_the_basis(tmp_path, batch):
    for seed in range(7):
        paint(tmp_path / "in" / f"{seed}.png", seed)
    common = {"views": "pca", "to": "png", "style": Style(pca="shared"), "preprocessing": AS_IT_IS, "workers": 1}
    good = visualize(Picky(), [tmp_path / "in"], out=tmp_path / "good", **common)
    bright = np.random.default_rng(9).integers(200, 256, (*SIZE, 3), np.uint8)
    Image.fromarray(bright).save(tmp_path / "in/9.png")
    some = visualize(Picky(), [tmp_path / "in"], out=tmp_path / "some", batch_size=batch, **common)
    assert (good.failed, some.failed, some.done) == (0, 1, 7)
    known, other = (json.loads((run.directory / "survey.json").read_bytes())["layers"] for run in (good, some))
    for one, two in zip(known, other, strict=True):
        assert (one["low"], one["high"]) == pytest.approx((two["low"], two["high"]), rel=1e-5)
        assert _floats(one["mean"]) == pytest.approx(_floats(two["mean"]), rel=1e-4, abs=1e-5)


def _floats(text):
    return np.frombuffer(b64decode(text), "<f4").tolist()


@pytest.mark.thorough
def test_other_views_do_not_affect_the_basis(tmp_path, look):
    """Heat maps may take several passes over an image, which counts once all the same."""
    for seed in range(3):
        paint(tmp_path / "in" / f"{seed}.png", seed, size=(12 + 4 * seed, 20))
    found = []
    for number, views in enumerate([["pca"], ["pca", "gradcam", "grads", "saliency", "contact"]]):
        run = look([tmp_path / "in"], views=views, style=Style(pca="shared"), out=tmp_path / str(number), types="Conv2d")
        layers = json.loads((run.directory / "survey.json").read_bytes())["layers"]
        found.append({each["layer"]: each for each in layers if each["of"] == "output"})
    assert found[0] == found[1]
    assert list(found[0]) == ["first", "second"]


# --- histogram


@pytest.mark.parametrize("channels", ["all", "1-2"])
def test_tensorboard_reads_histograms_and_pictures(tmp_path, look, channels):
    path = paint(tmp_path / "a.png")
    summary = look(
        [path], views=["histogram", "mean"], to=["tensorboard", "png"], types=["Conv2d", "Linear"],
        style=Style(channels=channels),
    )  # fmt: skip
    unit = summary.directory / "a.png"
    reader = EventAccumulator(str(unit), size_guidance={IMAGES: 0, TENSORS: 0})
    reader.Reload()
    # The reader's own way to show summaries of today's form: as tensors, of the plugins that they name.
    plugins = {tag: reader.SummaryMetadata(tag).plugin_data.plugin_name for tag in reader.Tags()["tensors"]}
    maps = hooked(path, layers=("first", "second", "head"))
    names = [f"0{index} {layer}" for index, layer in enumerate(maps)]
    assert {tag for tag, plugin in plugins.items() if plugin == "histograms"} == {f"values/{name}" for name in names}
    assert {tag for tag, plugin in plugins.items() if plugin == "images"} == {
        "input/input",
        *(f"histogram/{name}" for name in names),
        *(f"mean/{name}" for name in names[:2]),
    }
    for name, each in zip(names, maps.values(), strict=True):
        values = each  # whichever channels grids would show
        (event,) = reader.Tensors(f"values/{name}")
        rows = make_ndarray(event.tensor_proto)
        counts, edges = np.histogram(values.numpy().ravel(), bins=64, range=(float(values.min()), float(values.max())))
        assert rows.shape == (64, 3)
        assert rows[:, 0] == pytest.approx(edges[:-1], abs=1e-6)
        assert rows[:, 1] == pytest.approx(edges[1:], abs=1e-6)
        assert rows[:, 2].sum() == values.numel()
        assert abs(np.cumsum(rows[:, 2]) - np.cumsum(counts)).max() <= 1  # one value may lie where two bins meet
        (event,) = reader.Tensors(f"histogram/{name}")
        width, height, png = event.tensor_proto.string_val
        stored = (unit / f"{name.replace(' ', '_')}.histogram.png").read_bytes()
        assert png == stored
        assert pixels_of(unit / f"{name.replace(' ', '_')}.histogram.png").shape[1::-1] == (int(width), int(height))


@pytest.mark.parametrize("everything", [False, True])
def test_values_that_are_not_finite_are_not_counted_in_bins(tmp_path, look, monkeypatch, everything):
    monkeypatch.setattr(Broken, "everything", everything)
    path = paint(tmp_path / "a.png")
    unit = look([path], Broken(), views="histogram", to=["tensorboard"]).directory / "a.png"
    reader = EventAccumulator(str(unit), size_guidance={TENSORS: 0})
    reader.Reload()
    values = hooked(path, Broken())["second"].numpy()
    finite = values[np.isfinite(values)]
    assert bool(len(finite)) is not everything
    (event,) = reader.Tensors("values/01 second")
    rows = make_ndarray(event.tensor_proto)
    assert rows[:, 2].sum() == len(finite)
    if not everything:
        assert (rows[0, 0], rows[-1, 1]) == pytest.approx((finite.min(), finite.max()), rel=1e-6)
        assert abs(np.cumsum(rows[:, 2]) - np.cumsum(np.histogram(finite, 64)[0])).max() <= 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("norm", ["channel", "layer", "signed", "run", "fixed:-1,1"])
def test_no_view_is_stopped_by_nan(tmp_path, look, monkeypatch, everything, norm):
    monkeypatch.setattr(Broken, "everything", everything)
    path = paint(tmp_path / "a.png")
    views = ["maps", "mean", "max", "contact", "pca", "histogram"]
    style = Style(norm=norm, pca="shared", labels=True, colorbar=True)
    summary = look([path], Broken(), views=views, style=style, to=["html", "tensorboard"])
    assert (summary.done, summary.pictures) == (1, 2 * 5 + 2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("view", ["maps", "mean"])
def test_a_scale_of_infinities_is_not_recorded(tmp_path, look, monkeypatch, view):
    monkeypatch.setattr(Broken, "everything", True)
    unit = look([paint(tmp_path / "a.png")], Broken(), views=view, style=Style(norm="run")).directory / "a.png"
    scaling = text_of(unit / f"01_second.{view}.png")["Scaling"]
    assert "inf" not in scaling
    assert "nan" not in scaling


# --- kernels


def kernel_files(summary):
    return pictures(summary.directory / "_model") if (summary.directory / "_model").exists() else []


def test_kernels_need_no_image_and_are_drawn_once(look):
    model = Net()
    first = look(model=model, views="kernels", to=["png", "html", "tensorboard"])
    assert (first.exit_code, first.found, first.pictures, first.model_pictures) == (0, 0, 2, True)
    assert kernel_files(first) == ["00_first.kernels.png", "01_second.kernels.png"]
    before = (first.directory / "_model").stat().st_ino
    second = look(model=model, views="kernels", to=["png", "html", "tensorboard"])
    assert (second.directory, second.exit_code, second.pictures) == (first.directory, 0, 0)
    assert (second.directory / "_model").stat().st_ino == before
    third = look(model=model, views="kernels", to=["png", "html", "tensorboard"], force=True)
    assert (third.pictures, (third.directory / "_model").stat().st_ino == before) == (2, False)


def test_kernels_equal_make_grid_of_the_weight(look):
    model = Net()
    summary = look(model=model, views="kernels", style=Style(columns=2))
    weight = model.first.weight.detach()
    grid = make_grid(weight, nrow=2, normalize=True, scale_each=True).mul(255).add(0.5).byte().permute(1, 2, 0).numpy()
    found = pixels_of(summary.directory / "_model/00_first.kernels.png")
    # Tiles are magnified, the padding is not: compare the pixels of the tiles alone.
    scale = (found.shape[1] - 6) // 6
    assert found.shape == (3 * 3 * scale + 8, 2 * 3 * scale + 6, 3)
    for number in range(5):
        row, column = divmod(number, 2)
        top, left = 2 + row * (3 * scale + 2), 2 + column * (3 * scale + 2)
        tile = found[top : top + 3 * scale : scale, left : left + 3 * scale : scale]
        small = grid[2 + row * 5 : 5 + row * 5, 2 + column * 5 : 5 + column * 5]
        assert np.array_equal(tile, small)


def test_other_weights_of_the_same_module_have_other_kernels(look):
    model = Net()
    first = look(model=model, views="kernels")
    with torch.no_grad():
        model.second.weight[0, 0, 0, 0] += 1
    second = look(model=model, views="kernels")
    assert (second.directory.name, second.pictures) == ("net-2", 2)
    before, after = bytes_of(first.directory), bytes_of(second.directory)
    assert after["_model/01_second.kernels.png"] != before["_model/01_second.kernels.png"]


@pytest.mark.thorough
def test_kernels_of_changed_weights_replace_the_old_ones(look):
    model = load_model("shapesnet")
    first = look(model=model, views="kernels")
    before = bytes_of(first.directory)
    weight = next(parameter for name, parameter in model.module.named_parameters() if parameter.ndim == 4)
    with torch.no_grad():
        weight.view(-1)[0] += 1
    second = look(model=model, views="kernels")
    assert (second.directory, second.pictures) == (first.directory, first.pictures)
    assert sorted(entry.name for entry in second.directory.iterdir()) == ["_model", "run.json"]
    after = bytes_of(second.directory)
    assert sorted(after) == sorted(before)
    assert [name for name in after if after[name] != before[name]] == ["_model/" + kernel_files(second)[0]]


def test_kernels_are_drawn_beside_images(tmp_path, look):
    paint(tmp_path / "in/a.png")
    summary = look([tmp_path / "in"], views=["kernels", "maps", "mean"])
    assert (summary.done, summary.pictures) == (1, 1 + 2 + 2 + 2)
    assert kernel_files(summary) == ["00_first.kernels.png", "01_second.kernels.png"]
    paint(tmp_path / "in/b.png", seed=1)
    grown = look([tmp_path / "in"], views=["kernels", "maps", "mean"])
    assert (grown.done, grown.skipped, grown.pictures) == (1, 1, 5)


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["_model", "_model/a.png", "_model/x/a.png"])
@pytest.mark.parametrize("kernels_first", [False, True])
def test_an_image_or_a_folder_named_like_the_unit_of_kernels_is_kept(tmp_path, look, name, kernels_first):
    model = Net()
    path = paint(tmp_path / "in" / name)
    given = [path] if name == "_model" else [tmp_path / "in"]
    if kernels_first:
        look([paint(tmp_path / "other.png")], model, views=["kernels", "maps"])
    summary = look(given, model, views=["kernels", "maps"])
    again = look(given, model, views=["kernels", "maps"])
    assert (summary.done, again.done, again.skipped, again.pictures) == (1, 0, 1, 0)
    records = [json.loads(unit.read_bytes()) for unit in summary.directory.rglob("unit.json")]
    assert sorted(record["unit"]["kind"] for record in records) == ["image"] * (1 + kernels_first) + ["model"]
    assert sum(name.endswith("kernels.png") for name in bytes_of(summary.directory)) == 2


def test_layers_without_kernels_are_reported(tmp_path, look):
    path = paint(tmp_path / "a.png")
    summary = look([path], views=["kernels", "maps"], types=["Conv2d", "Linear"])
    assert summary.undrawn == {"head": "has no kernels"}
    again = look([path], views=["kernels", "maps"], types=["Conv2d", "Linear"])
    assert again.undrawn == {"head": "has no kernels"}


def test_filters_that_do_not_exist_are_reported_each_time(look):
    model = Net()
    first, second = (look(model=model, views="kernels", style=Style(channels="5")) for _ in range(2))
    assert (first.pictures, second.pictures) == (1, 0)
    assert list(first.undrawn) == ["first"]
    assert second.undrawn == first.undrawn


def test_a_run_without_pictures_fails(look):
    summary = look(model=Net(), views="kernels", types="Linear")
    assert (summary.pictures, summary.undrawn) == (0, {"head": "has no kernels"})
    assert summary.exit_code != 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("labels", [None, True, False])
@pytest.mark.parametrize("layer", ["first", "second"])
def test_the_largest_filters_are_drawn_and_numbered(look, labels, layer):
    model = Net()
    plain = look(model=model, views="kernels", layers=layer, style=Style(channels="top:3", labels=False))
    summary = look(model=model, views="kernels", layers=layer, style=Style(channels="top:3", labels=labels))
    path = summary.directory / f"_model/00_{layer}.kernels.png"
    order = getattr(model, layer).weight.detach().flatten(1).norm(dim=1).argsort(descending=True)[:3].tolist()
    assert text_of(path)["Channels"] == ", ".join(map(str, order))
    sizes = [pixels_of(each.directory / path.parent.name / path.name).shape for each in (plain, summary)]
    assert (sizes[0] == sizes[1]) is (labels is False)


@pytest.mark.thorough
def test_colormaps_apply_to_kernels_of_one_value_per_pixel(tmp_path, look):
    from extras import matplotlib as mpl

    path = paint(tmp_path / "a.png")
    found = []
    for style in (Style(), Style(colormap="viridis")):
        run = look([path], Net(), views=["maps", "kernels"], style=style).directory
        names = ("_model/00_first.kernels.png", "_model/01_second.kernels.png", "a.png/00_first.maps.png")
        found.append([pixels_of(run / name) for name in names])
        said = text_of(run / names[0])["Scaling"], text_of(run / names[1])["Scaling"]
    (first, *grey), (same, *coloured) = found
    assert np.array_equal(first, same)
    for one, other in zip(grey, coloured, strict=True):
        expected = mpl.colormaps["viridis"](one)[..., :3] * 255
        inside = other.any(-1)
        assert inside.mean() > 0.4
        assert abs(other - expected)[inside].max() <= 2
    assert ("viridis" in said[0], "viridis" in said[1]) == (False, True)


def drawn_kernels(tmp_path, model, style):
    """Draw kernels into a list."""
    found = []

    class Into(nullcontext):
        def __init__(self, *_where, **_how):
            super().__init__(self)
            self.members = {}

        def add(self, _image, pictures):
            found.extend(pictures)
            return ()

    session, _ = load_session(RunConfig(model, views="kernels", to="png", style=style, force=True, device="cpu"))
    output = LocalDestination(tmp_path)
    draw_model(replace(session, writers={"png": Into}, output=output, directory=tmp_path))
    return found


@pytest.mark.parametrize("norm", ["layer", "run"])
@pytest.mark.parametrize(
    "channels",
    [
        "all",
        "0,2",
    ],
)
def test_the_scale_of_kernels_covers_all_filters_regardless_of_channels(tmp_path, norm, channels):
    model = Net()
    pictures = drawn_kernels(tmp_path, model, Style(norm=norm, channels=channels))
    for picture, layer in zip(pictures, (model.first, model.second), strict=True):
        weight = layer.weight.detach()
        assert picture.drawing.content.limits == pytest.approx((float(weight.min()), float(weight.max())))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "norm",
    [
        "channel",
        "layer",
        "run",
        "signed",
    ],
)
def test_colours_of_kernels_have_no_bar_in_other_colours(look, norm):
    sizes = []
    for colorbar in (False, True):
        style = Style(norm=norm, colorbar=colorbar)
        summary = look(model=Net(), views="kernels", layers="first", style=style)
        sizes.append(pixels_of(summary.directory / "_model/00_first.kernels.png").shape)
    assert sizes[0] == sizes[1]


def test_the_described_scaling_of_kernels_is_right(look):
    said = {}
    for norm in ("layer", "run"):
        summary = look(model=Net(), views="kernels", style=Style(norm=norm))
        path = summary.directory / "_model/01_second.kernels.png"
        said[norm] = text_of(path)["Scaling"], pixels_of(path).tobytes()
    assert said["run"] == said["layer"]
    assert "weight's minimum" not in said["layer"][0]


def test_drawing_kernels_does_not_change_the_module(look):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.Conv2d(4, 2, 1), nn.BatchNorm2d(2)).eval(), nn.Dropout())
    model.train()
    model[1][1].eval()
    numbers = {name: values.clone() for name, values in model.state_dict().items()}
    flags, random = [module.training for module in model.modules()], torch.get_rng_state()
    look(model=model, views="kernels")
    assert [module.training for module in model.modules()] == flags
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(values, numbers[name]) for name, values in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    "training",
    [
        False,
        True,
    ],
)
def test_a_parametrized_weight_is_drawn_without_a_change(look, training):
    """Spectral normalization takes a step of a power iteration whenever the weight is read while training."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3))).train(training)
    numbers = {name: values.clone() for name, values in model.state_dict().items()}
    assert look(model=model, views="kernels").pictures == 1
    assert [name for name, values in model.state_dict().items() if not torch.equal(values, numbers[name])] == []
    assert [module.training for module in model.modules()] == [training] * len(list(model.modules()))


@pytest.mark.parametrize(
    "request_",
    [{"to": "raw"}, {"to": "stats"}, {"layers": "nosuch*"}, {"style": {"norm": "odd"}}, {"device": "cuda:77"}],
)
def test_a_wrong_request_leaves_nothing_behind(tmp_path, request_):
    options = {"views": "kernels", "to": "png", "out": tmp_path / "out", **request_}
    with pytest.raises(RequestError):
        visualize(Net(), **{**options, "style": Style(**options.get("style", {}))})
    assert list(tmp_path.iterdir()) == []


def test_weights_that_are_not_finite_are_drawn(look):
    model = Net()
    with torch.no_grad():
        model.first.weight[1] = math.nan
        model.second.weight.fill_(math.inf)
    summary = look(model=model, views="kernels", to=["html", "tensorboard"], style=Style(labels=True, colorbar=True))
    assert (summary.pictures, summary.exit_code) == (2, 0)


@pytest.mark.thorough
def test_the_command_needs_no_image_for_kernels_alone(fmapviz, tmp_path):
    arguments = ["alexnet", "--weights", "random", "--to", "png", "--layers", "features.0", "--out", tmp_path / "out"]
    done = fmapviz(*arguments, "--view", "kernels")
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines() == [str(tmp_path / "out/alexnet")]
    pixels = pixels_of(tmp_path / "out/alexnet/_model/00_features.0.kernels.png")
    assert pixels.ndim == 3
    assert abs(pixels.shape[0] - 546) <= 1
    refused = fmapviz(*arguments, "--view", "kernels,maps")
    assert refused.returncode == 2
    assert b"INPUT" in refused.stderr
