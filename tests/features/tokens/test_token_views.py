"""Whole runs of the views that compare positions: their values, pictures, and what all images of a run share."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial

import extras
import numpy as np
import pytest
import torch
from extras import needs
from image_files import pixels_of, text_of
from PIL import Image, ImageFilter
from safetensors.numpy import load_file
from tiny_models import Tokens
from tiny_runs import AS_IT_IS, StopError, runner, stop_after_an_image, styled
from torch import nn
from trees import difference, problems

import fmapviz
from fmapviz.config import InputOptions, Style
from fmapviz.errors import RequestError
from fmapviz.events import Notice
from fmapviz.features.tokens import CONTRIBUTION, sample
from fmapviz.run.estimate import estimate
from fmapviz.run.kept_passes import KeptPasses
from fmapviz.run.plan import make_plan

SIDE = 64


class Net(nn.Module):
    """Three layers with maps of three sizes, and a vector."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 12, 5, padding=2)
        self.second = nn.Conv2d(12, 16, 4, stride=4)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.second(self.first(x).relu()).relu().mean((2, 3)))


@pytest.fixture
def folder(tmp_path):
    """Pictures of smooth noise."""
    (tmp_path / "in").mkdir()
    for number, name in enumerate("abcd"):
        noise = np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
        Image.fromarray(noise).filter(ImageFilter.GaussianBlur(1.5)).save(tmp_path / "in" / f"{name}.png")
    return tmp_path / "in"


@pytest.fixture
def look(tmp_path):
    return styled(runner(Net, out=tmp_path / "out", preprocessing=AS_IT_IS, to=["png", "raw"], types="Conv2d"))


def values(summary, image):
    return load_file(summary.directory / image / "raw.safetensors")


def captured(path, model):
    picture = torch.from_numpy(pixels_of(path).astype(np.float32) / 255).permute(2, 0, 1)
    mean, std = (torch.tensor(each)[:, None, None] for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    with torch.no_grad(), fmapviz.capture(model, types=["Conv2d"]) as maps:
        model.eval()(((picture - mean) / std)[None])
    return maps


def contents(directory, patterns=("*.png", "*.safetensors", "survey.json")):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for pattern in patterns
        for path in directory.rglob(pattern)
        if path.is_file()
    }


# --- similarity


def test_similarity_equals_torchs_cosine_to_the_position_of_each_image(folder, look):
    summary = look([folder], views="similarity", anchor="20,41")
    for path in sorted(folder.iterdir()):
        maps = captured(path, Net())
        for layer, (row, column) in {"first": (20, 41), "second": (5, 10)}.items():
            found = values(summary, path.name)[f"similarity/{layer}"]
            own = maps[layer].values
            expected = torch.nn.functional.cosine_similarity(own, own[:, :, row, column, None, None], dim=1)[0]
            assert np.allclose(found, expected, atol=1e-5)
            assert found[row, column] == pytest.approx(1, abs=1e-6)
            assert found[row, column] >= found.max() - 1e-6
    assert problems(summary.directory) == []
    assert not (summary.directory / "survey.json").exists()


@pytest.mark.thorough
def test_similarity_compares_all_images_with_a_position_of_one(folder, look):
    summary = look([folder], views="similarity", anchor="b.png:20,41")
    seed = captured(folder / "b.png", Net())["second"].values[:, :, 5, 10, None, None]
    for path in sorted(folder.iterdir()):
        own = captured(path, Net())["second"].values
        expected = torch.nn.functional.cosine_similarity(own, seed, dim=1)[0]
        assert np.allclose(values(summary, path.name)["similarity/second"], expected, atol=1e-5)
        facts = text_of(summary.directory / path.name / "01_second.similarity.png")
        assert facts["Shows"] == "the cosine of each position to the one at row 20, column 41 of b.png"
        assert facts["Scaling"].startswith("-1 to 1: turbo")
    alone = look([folder], views="similarity", anchor="20,41")
    assert not np.allclose(
        values(alone, "a.png")["similarity/second"], values(summary, "a.png")["similarity/second"], atol=0.1
    )
    assert problems(summary.directory) == []


def test_the_anchor_is_marked_in_its_image(folder, look):
    """A mark is a white and black ring; the map itself is in colours."""

    def has_mark(summary, image):
        around = pixels_of(summary.directory / image / "00_first.similarity.png")[14:27, 35:48].astype(int)
        return bool((around == 255).all(2).any() and (around == 0).all(2).any())

    each, one = (look([folder], views="similarity", anchor=anchor, alpha=1.0) for anchor in ("20,41", "b.png:20,41"))
    assert [has_mark(each, f"{name}.png") for name in "abcd"] == [True] * 4
    assert [has_mark(one, f"{name}.png") for name in "abcd"] == [False, True, False, False]


def test_values_are_rectangles_unless_they_are_smooth(folder, look):
    sharp, smooth = (
        pixels_of(
            look([folder], views="similarity", anchor="2,2", alpha=1.0, smooth=smooth).directory
            / "a.png/01_second.similarity.png"
        )
        for smooth in (False, True)
    )
    blocks = sharp[16:].reshape(12, 4, 16, 4, 3)
    assert (blocks == blocks[:, :1, :, :1]).all()
    assert not np.array_equal(sharp, smooth)


@pytest.mark.thorough
@pytest.mark.parametrize("norm", ["run", "signed-run"])
def test_the_shared_range_of_similarity_is_that_of_cosines(folder, look, norm):
    plain = look([folder], views=["similarity", "maps"], anchor="2,2")
    other = look([folder], views=["similarity", "maps"], anchor="2,2", norm=norm)
    for name in ("00_first", "01_second"):
        one, two = (run.directory / "a.png" / f"{name}.similarity.png" for run in (plain, other))
        assert np.array_equal(pixels_of(one), pixels_of(two))
        assert text_of(one)["Scaling"] == text_of(two)["Scaling"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("anchor", ["2,2", "b.png:2,2"])
@pytest.mark.parametrize("norm", ["layer", "signed", "signed-layer", "fixed:0.2,0.9"])
def test_a_picture_may_have_its_own_range(folder, look, norm, anchor):
    summary = look([folder], views="similarity", anchor=anchor, norm=norm, alpha=1.0, colormap="gray", gray_input=True)
    for image in "abcd":
        path = summary.directory / f"{image}.png" / "01_second.similarity.png"
        raw = values(summary, f"{image}.png")["similarity/second"]
        low, high = float(raw.min()), float(raw.max())
        if norm.startswith("signed"):
            low, high = -max(abs(low), abs(high)), max(abs(low), abs(high))
        if norm.startswith("fixed"):
            low, high = 0.2, 0.9
        told = text_of(path)["Scaling"]
        assert [float(each) for each in re.findall(r"-?\d[\d.e-]*", told)][:2] == pytest.approx([low, high], rel=1e-3)
        assert ("the range of this picture alone" in told) == (not norm.startswith("fixed"))
        drawn = pixels_of(path)[18::4, 2::4][..., 0][raw.shape[0] // 2 :, raw.shape[1] // 2 :].astype(float)
        own = (raw.clip(low, high) - low) / (high - low) * 255
        assert abs(drawn - own[-drawn.shape[0] :, -drawn.shape[1] :]).max() <= 1


def test_tokens_are_maps_without_their_prefix(folder, look):
    """Class token and registers are left out, as in other views of tokens."""
    summary = look(
        [folder],
        Tokens(),
        views="similarity",
        anchor="0,0",
        types="TransformerEncoderLayer",
        preprocessing=InputOptions(size=(8, 12)),
    )
    found = values(summary, "a.png")
    assert len(found) == 2
    assert all(each.shape == (4, 6) and abs(each[0, 0] - 1) < 1e-6 for each in found.values())


# --- clusters


class Colours(nn.Module):
    """A layer whose vectors are the colours of pixels."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1, bias=False)
        with torch.no_grad():
            self.conv.weight.copy_(torch.eye(3)[..., None, None])

    def forward(self, x):
        return self.conv(x)


PLAIN = InputOptions(fit="none", mean=(0.0,), std=(1.0,))


def patches(seed):
    """Return a picture of patches of four colours, and their numbers."""
    numbers = np.random.default_rng(seed).choice(4, (8, 8), p=[0.4, 0.3, 0.2, 0.1])
    colours = np.array([[220, 0, 0], [0, 180, 0], [0, 0, 200], [150, 150, 0]])
    large = numbers.repeat(4, 0).repeat(4, 1)
    noise = np.random.default_rng(seed + 100).integers(0, 12, (*large.shape, 3))
    return (colours[large] + noise).astype(np.uint8), large


@pytest.mark.thorough
def test_planted_clusters_have_one_colour_in_all_images(tmp_path, look):
    truth = {}
    (tmp_path / "in").mkdir()
    for number in range(5):
        pixels, truth[f"{number}.png"] = patches(number)
        Image.fromarray(pixels).save(tmp_path / "in" / f"{number}.png")
    summary = look([tmp_path / "in"], Colours(), views="clusters", clusters=4, preprocessing=PLAIN)
    found = {name: values(summary, name)["clusters/conv"] for name in truth}
    together = [np.concatenate([each[name].ravel() for name in truth]) for each in (truth, found)]
    assert extras.metrics.adjusted_rand_score(*together) == 1
    assert np.array_equal(*together)  # numbered by their size
    colours = {tuple(pixels_of(summary.directory / name / "00_conv.clusters.png")[found[name] == 0][0]) for name in truth}
    assert len(colours) == 1
    facts = text_of(summary.directory / "0.png/00_conv.clusters.png")
    assert "4 clusters of all images of the run" in facts["Scaling"]
    assert facts["Clusters"].startswith(f"0: {(truth['0.png'] == 0).mean():.1%}".replace("%", " %"))


def test_later_images_have_the_existing_clusters(folder, look):
    first = look([folder / "a.png", folder / "b.png"], views="clusters")
    before = contents(first.directory)
    events = []
    grown = look([folder], views="clusters", on_event=events.append)
    assert (grown.done, grown.skipped, problems(grown.directory)) == (2, 2, [])
    assert {name: each for name, each in contents(grown.directory).items() if name in before} == before
    assert any("also applies to new ones" in event.message for event in events if isinstance(event, Notice))


@pytest.mark.thorough
def test_clusters_are_shared_by_all_images(folder, look, tmp_path):
    together = look([folder], views="clusters", out=tmp_path / "all")
    alone = look([folder / "a.png"], views="clusters", out=tmp_path / "one")
    assert not np.array_equal(*(values(run, "a.png")["clusters/second"] for run in (together, alone)))


# --- correspondence


@pytest.mark.thorough
def test_a_shifted_copy_matches_with_the_shift(tmp_path, look):
    noise = np.random.default_rng(3).integers(0, 256, (80, 80, 3), np.uint8)
    (tmp_path / "in").mkdir()
    for name, (row, column) in {"a.png": (0, 0), "b.png": (4, 8)}.items():
        Image.fromarray(noise[row : row + SIDE, column : column + SIDE]).save(tmp_path / "in" / name)
    summary = look([tmp_path / "in"], views="correspondence", anchor="a.png")
    found = values(summary, "b.png")
    for layer, (down, right) in {"first": (4, 8), "second": (1, 2)}.items():
        index, mutual = found[f"correspondence/{layer}"], found[f"correspondence/{layer}.mutual"]
        cosine = found[f"correspondence/{layer}.cosine"]
        rows, columns = np.divmod(index, index.shape[1])
        at_rows, at_columns = np.indices(index.shape)
        inside = slice(3, -3 - down), slice(3, -3 - right)
        assert (rows - at_rows == down)[inside].all()
        assert (columns - at_columns == right)[inside].all()
        assert mutual[inside].all()
        assert np.allclose(cosine[inside], 1, atol=1e-4)
    wide = pixels_of(summary.directory / "b.png/00_first.correspondence.png")
    assert wide.shape == (384, 2 * 384 + 12, 3)
    assert (
        "mutual nearest neighbours, by cosine, with a.png on the left"
        in (text_of(summary.directory / "b.png/00_first.correspondence.png")["Scaling"])
    )


@pytest.mark.thorough
def test_one_point_matches_the_shifted_point(tmp_path, look):
    noise = np.random.default_rng(3).integers(0, 256, (80, 80, 3), np.uint8)
    (tmp_path / "in").mkdir()
    for name, (row, column) in {"a.png": (0, 0), "b.png": (4, 8)}.items():
        Image.fromarray(noise[row : row + SIDE, column : column + SIDE]).save(tmp_path / "in" / name)
    summary = look([tmp_path / "in"], views="correspondence", anchor="a.png:30,40", labels=True)
    facts = text_of(summary.directory / "b.png/00_first.correspondence.png")
    assert facts["Scaling"] == "the best match, by cosine, of row 30, column 40 of a.png, the best match of each other"
    assert facts["Matches"] == "1: 1.000"


# --- foreground


def disk(place, radius=9):
    rows, columns = np.indices((SIDE, SIDE))
    return np.hypot(rows - place[0], columns - place[1]) <= radius


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("pca", ["image", "shared"])
def test_the_foreground_covers_the_disk(tmp_path, look, pca):
    places = {"a.png": (30, 30), "b.png": (20, 40), "c.png": (41, 25)}
    (tmp_path / "in").mkdir()
    for seed, (name, place) in enumerate(places.items()):
        pixels = np.random.default_rng(seed).integers(80, 120, (SIDE, SIDE, 3))
        pixels[disk(place)] = [230, 60, 20]
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "in" / name)
    summary = look([tmp_path / "in"], views="pca", foreground=True, pca=pca)
    for name, place in places.items():
        found = pixels_of(summary.directory / name / "00_first.pca.png").any(2)
        truth = disk(place)
        assert (found & truth).sum() / (found | truth).sum() > 0.7
        facts = text_of(summary.directory / name / "00_first.pca.png")
        assert facts["Foreground"].startswith(f"{found.sum()} of {SIDE * SIDE} places: the side of the first component")
    whole = look([tmp_path / "in"], views="pca", pca=pca)
    assert pixels_of(whole.directory / "a.png/00_first.pca.png").any(2).mean() > 0.99


def test_the_foreground_of_a_trained_network_covers_the_shape(samples, tmp_path):
    summary = fmapviz.visualize(
        "shapesnet",
        samples / "shapes",
        views="pca",
        to="png",
        layers="features.7.conv",
        out=tmp_path,
        style=Style(foreground=True),
    )
    for name in ("circle.jpg", "square.jpg", "star.jpg"):
        seen = pixels_of(summary.directory / name / "input.png").astype(int)
        corner = np.median(seen[:8].reshape(-1, 3), 0)
        shape = np.abs(seen - corner).sum(2) > 150
        found = pixels_of(next((summary.directory / name).glob("*.pca.png"))).any(2)
        assert (found & shape).sum() / shape.sum() > 0.5
        assert found.mean() < 0.6


@pytest.mark.sampled(1)
@pytest.mark.parametrize("pca", ["image", "shared"])
def test_a_picture_without_foreground_is_reported(tmp_path, look, pca):
    (tmp_path / "in").mkdir()
    pixels = np.random.default_rng(0).integers(80, 120, (SIDE, SIDE, 3))
    pixels[disk((30, 30))] = [230, 60, 20]
    Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "in" / "a.png")
    Image.fromarray(np.full((SIDE, SIDE, 3), 100, np.uint8)).save(tmp_path / "in" / "flat.png")
    summary = look([tmp_path / "in"], Colours(), views="pca", foreground=True, pca=pca, layers=["conv"])
    record = json.loads((summary.directory / "flat.png" / "unit.json").read_text())
    assert "pca of conv is black: no position of this image is foreground" in record["notices"]
    assert not json.loads((summary.directory / "a.png" / "unit.json").read_text())["notices"]
    path = summary.directory / "flat.png" / "00_conv.pca.png"
    assert not pixels_of(path).any()
    assert text_of(path)["Foreground"].startswith("0 of ")


def separated(vectors, at_border):
    """Return the three components of the foreground of vectors `(n, C)`, by NumPy and a search for Otsu's threshold."""
    centred = vectors - vectors.mean(0)
    first = np.linalg.svd(centred, full_matrices=False)[2][0]
    first = first * np.sign(first[abs(first).argmax()])
    scores = np.sort(centred @ first)
    left = np.arange(1, len(scores))
    sums = np.cumsum(scores)[:-1]
    between = left * (len(scores) - left) * (sums / left - (scores.sum() - sums) / (len(scores) - left)) ** 2
    cut = between.argmax()
    above = centred @ first > (scores[cut] + scores[cut + 1]) / 2
    inside = above if (at_border & above).sum() <= (at_border & ~above).sum() else ~above
    mean, deviations = vectors[inside].mean(0), vectors[inside] - vectors[inside].mean(0)
    values, directions = np.linalg.eigh(deviations.T @ deviations / inside.sum())
    components = directions[:, ::-1][:, :3].T
    components = components * np.sign(components[range(3), abs(components).argmax(1)])[:, None]
    levels = ((vectors - mean) @ components.T / np.sqrt(values[::-1][:3]) * 127.5 / 2.5 + 127.5).clip(0, 255).round()
    return np.where(inside[:, None], levels, 0)


@pytest.mark.thorough
def test_a_shared_foreground_is_exact_beyond_the_sample_of_clusters(folder, look):
    """Four images of 64 x 64 positions: 16,384, where clusters take 4096."""
    summary = look([folder], views=["pca", "clusters"], foreground=True, pca="shared", layers=["first"])
    vectors, at_border = [], np.ones((SIDE, SIDE), bool)
    at_border[1:-1, 1:-1] = False
    for image in "abcd":
        own = captured(folder / f"{image}.png", Net())["first"].values[0]
        vectors.append(own.flatten(1).T.double().numpy())
    expected = separated(np.concatenate(vectors), np.tile(at_border.flatten(), 4)).reshape(4, SIDE, SIDE, 3)
    for image, levels in zip("abcd", expected, strict=True):
        path = summary.directory / f"{image}.png" / "00_first.pca.png"
        assert abs(pixels_of(path).astype(int) - levels).max() <= 1
        assert "sample" not in text_of(path)["Scaling"]
        assert "from 2.5 deviations below its mean to 2.5 above" in text_of(path)["Scaling"]
        clusters = text_of(path.with_name("00_first.clusters.png"))["Scaling"]
        assert clusters.endswith("found of a random sample, 4096 of 16384 positions")


@pytest.mark.thorough
def test_a_picture_names_the_sample_of_its_foreground(folder, look, monkeypatch):
    monkeypatch.setattr(sample, "_BYTES", 4 * 12 * 1500)
    summary = look([folder], views="pca", foreground=True, pca="shared", layers=["first"])
    again = look([folder], views="pca", foreground=True, pca="shared", layers=["first"], force=True)  # from survey.json
    for run in (summary, again):
        told = text_of(run.directory / "a.png" / "00_first.pca.png")["Scaling"]
        assert told.endswith("found of a random sample, 6000 of 16384 positions")


# --- however it is run

ALL = {
    "views": ["similarity", "clusters", "correspondence", "pca"],
    "anchor": "c.png:20,41",
    "foreground": True,
    "pca": "shared",
}


@pytest.mark.thorough
def test_workers_orders_and_shards_change_no_byte(folder, look, tmp_path):
    plain = contents(look([folder], out=tmp_path / "plain", workers=1, **ALL).directory)
    assert len(plain) == 4 * (2 * 4 + 1 + 1) + 1
    shuffled = [folder / f"{name}.png" for name in "dbca"]
    for number, (inputs, options) in enumerate(
        [([folder], {"workers": 4}), (shuffled, {"workers": 2}), (iter(shuffled), {"workers": 1})]
    ):
        found = contents(look(inputs, out=tmp_path / str(number), **options, **ALL).directory)
        assert difference(found, plain) == []


@pytest.mark.thorough
@needs("pyarrow", "scale")
def test_shards_hold_the_same_values(folder, look, tmp_path):
    plain = look([folder], out=tmp_path / "plain", to="png", **ALL).directory
    sharded = look([folder], out=tmp_path / "sharded", to="tar", shard=2, **ALL).directory
    assert (sharded / "survey.json").read_bytes().partition(b'"layers"')[2].partition(b'"anchor"')[0] == (
        plain / "survey.json"
    ).read_bytes().partition(b'"layers"')[2].partition(b'"anchor"')[0]
    assert problems(sharded) == []


@pytest.mark.thorough
def test_an_interrupted_run_continues_with_the_same_pictures(folder, look, tmp_path):
    whole = contents(look([folder], out=tmp_path / "whole", **ALL).directory)

    with pytest.raises(StopError):
        look([folder], on_event=stop_after_an_image, workers=1, **ALL)
    summary = look([folder], **ALL)
    assert summary.skipped >= 1
    assert difference(contents(summary.directory), whole) == []


@pytest.mark.thorough
def test_a_run_with_an_anchor_continues_without_its_image(folder, look, tmp_path):
    whole = contents(look([folder], views="correspondence", anchor="c.png", out=tmp_path / "whole").directory)
    look([folder / "c.png"], views="correspondence", anchor="c.png")
    summary = look([folder / "a.png"], views="correspondence", anchor="c.png")
    assert summary.done == 1
    expected = {name: each for name, each in whole.items() if name[0] not in "bd"}
    assert difference(contents(summary.directory), expected) == []


@pytest.mark.thorough
def test_only_the_image_of_the_anchor_is_read_first(folder, look, monkeypatch):
    monkeypatch.setattr(
        "fmapviz.features.tokens.survey.first_pass.KeptPasses", partial(KeptPasses, 0)
    )  # otherwise it is drawn of that pass
    passes = []

    class Counted(Net):
        def forward(self, x):
            if len(x.unique()) > 1:  # where maps lie is found out with a grey picture
                passes.append(len(x))
            return super().forward(x)

    look([folder], Counted(), views="similarity", anchor="c.png:1,1", batch_size=1)
    assert sum(passes) == 5


@pytest.mark.thorough
def test_raw_values_do_not_depend_on_pictures(folder, look, tmp_path):
    both = look([folder], out=tmp_path / "both", **ALL)
    alone = look([folder], out=tmp_path / "alone", to="raw", **ALL)
    for name in ("a.png", "c.png"):
        one, other = values(both, name), values(alone, name)
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[key], other[key], equal_nan=True) for key in one)
    assert problems(alone.directory) == []
    (alone.directory / "survey.json").unlink()
    assert problems(alone.directory)


@pytest.mark.thorough
def test_defaults_make_no_other_run(folder, look):
    first = look([folder], views="maps")
    again = look([folder], views="maps", clusters=9, foreground=True, anchor="1,2")
    assert (again.directory, again.skipped) == (first.directory, 4)
    style = json.loads((first.directory / "run.json").read_bytes())["settings"]["style"]
    assert (style["anchor"], style["clusters"], style["foreground"]) == (None, 6, False)


@pytest.mark.thorough
def test_a_plan_draws_the_anchors_image_too(folder, look, tmp_path):
    for number in range(30):
        shutil.copy(folder / "a.png", folder / f"x{number}.png")
    config = fmapviz.config.RunConfig(
        Net(), [folder], views="similarity", style=Style(anchor="d.png:1,2"), out=tmp_path / "out", preprocessing=AS_IT_IS
    )
    assert estimate(config).images == 34


@pytest.mark.ray
@pytest.mark.thorough
@needs("ray", "ray")
def test_ray_draws_the_same_pictures(samples, tmp_path):
    """Workers get what images share; a network by its name, which they can load."""
    style = Style(anchor="star.jpg:40,40", norm="run", pca="shared")
    options = {
        "views": ["similarity", "clusters", "maps", "pca"],
        "to": ["png", "raw"],
        "layers": "features.[07].conv",
        "style": style,
    }
    here = fmapviz.visualize("shapesnet", samples / "shapes", out=tmp_path / "here", **options)
    there = fmapviz.visualize(
        "shapesnet", samples / "shapes", out=tmp_path / "there", engine=fmapviz.types.Engine(workers=1), **options
    )
    assert there.done == here.done
    assert difference(contents(there.directory), contents(here.directory)) == []


# --- bad input


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("views", "anchor", "said"),
    [
        ("similarity", None, "similarity needs a position"),
        ("similarity", "a.png", "similarity needs a position, not only an image: 'a.png'"),
        ("correspondence", None, "correspondence needs an image"),
        ("correspondence", "3,4", "correspondence needs an image to compare with, not only a position: '3,4'"),
        ("similarity", "64,0", "row 64, column 0 is outside the picture"),
        ("similarity", "a.png:3,64", "row 3, column 64 is outside the picture"),
        ("correspondence", "a.png:99,0", "row 99, column 0 is outside the picture"),
        ("similarity", "none.png:3,4", "the image of the anchor is not among the inputs: 'none.png'"),
        ("similarity", "in:3,4", "the image of the anchor is not among the inputs: 'in'"),
        ("correspondence", "-1,4", "the image of the anchor is not among the inputs: '-1,4'"),
        ("correspondence", " ", "no such anchor: ' '"),
    ],
)
def test_a_wrong_anchor_is_refused_and_nothing_written(folder, look, views, anchor, said):
    with pytest.raises(RequestError) as refused:
        look([folder], views=views, anchor=anchor)
    assert str(refused.value).startswith(said)
    assert refused.value.hint
    assert not (folder.parent / "out").exists()


def test_the_hint_for_a_position_names_the_size_of_the_image(folder, look):
    with pytest.raises(RequestError) as refused:
        look([folder], views="similarity", anchor="64,0")
    assert "64 x 64 pixels" in refused.value.hint


@pytest.mark.thorough
def test_an_ambiguous_anchor_is_refused(folder, look, tmp_path):
    (folder / "more").mkdir()
    shutil.copy(folder / "a.png", folder / "more" / "a.png")
    with pytest.raises(RequestError, match="several inputs have the name of the anchor"):
        look([folder], views="similarity", anchor="a.png:3,4")
    assert look([folder], views="similarity", anchor="more/a.png:3,4").done == 5
    assert look([folder], views="similarity", anchor=f"{folder}/a.png:3,4").done == 5


def test_a_damaged_anchor_image_is_refused_with_the_reason(folder, look):
    (folder / "bad.png").write_bytes(b"no image")
    with pytest.raises(RequestError, match="the image of the anchor could not be drawn: ") as refused:
        look([folder], views="similarity", anchor="bad.png:3,4")
    assert "bad.png" in str(refused.value)


def test_an_image_that_is_too_small_fails_alone(folder, look):
    Image.new("RGB", (SIDE, 16)).save(folder / "z.png")
    summary = look([folder], views="similarity", anchor="30,30", workers=1)
    assert (summary.done, summary.failed, summary.exit_code) == (4, 1, 3)
    assert summary.failures[0].code == "E_POSITION"


@pytest.mark.parametrize("clusters", [0, 1, 21])
def test_a_wrong_number_of_clusters_is_refused(clusters):
    with pytest.raises(RequestError, match="clusters must be 2 to 20"):
        Style(clusters=clusters)


def test_vectors_are_reported_as_undrawn(folder, look):
    summary = look([folder], views=["similarity", "clusters"], anchor="1,1", types=["Conv2d", "Linear"])
    assert set(summary.undrawn) == {"similarity of head", "clusters of head"}


def test_the_plan_marks_drawings_with_values():
    names = [view.name for view in CONTRIBUTION.views]
    plan = make_plan(names, targets=(), classes=(), output=None, automatic=True)
    assert plan.draws["output"].keys() == {"pca", "similarity", "clusters", "correspondence"}
    assert plan.reductions == plan.unscaled == {"similarity", "clusters", "correspondence"}
