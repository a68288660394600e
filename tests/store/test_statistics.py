"""Statistics of a run are NumPy's over all values of all images, in float64."""

from __future__ import annotations

import csv
import json
import shutil
from collections import Counter, defaultdict
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import each_once, often
from extras import needs
from image_files import paint, prepared
from PIL import Image
from races import EIGHT_AT_ONCE
from tiny_models import Regions, Returns, Tokens, as_model
from tiny_runs import AS_IT_IS, SAID
from torch import nn
from trees import problems

from fmapviz import load_model
from fmapviz.cli.options import as_typed
from fmapviz.config import InputOptions, Style
from fmapviz.errors import RefusedError, RequestError
from fmapviz.events import Notice, Outcome
from fmapviz.run.loop import visualize
from fmapviz.store.aggregates.channels import NO_IMAGES, combine
from fmapviz.store.aggregates.statistics import MOST_LINES, describe_dead, merge
from fmapviz.store.aggregates.unit_statistics import read_table, statistics_of, write_table

NAN, INF = torch.nan, torch.inf
HINT = "channels die behind activations, which were not examined: types='ReLU' examines ReLU layers"
HEADING = [
    "layer_index",
    "layer",
    "of",
    "target",
    "type",
    "channel",
    "images",
    "values",
    "min",
    "max",
    "mean",
    "std",
    "zeros",
    "nonfinite",
    "dead",
]


@pytest.fixture
def pictures(tmp_path):
    return [paint(tmp_path / f"pictures/{seed}.png", seed) for seed in range(5)]


@pytest.fixture
def look(tmp_path):
    return partial(visualize, out=tmp_path / "out", preprocessing=AS_IT_IS, to="stats", workers=2, types=["Module"])


def rows_of(directory):
    """Read a table: by layer, what of it and class, a list of its channels' rows, numbers as numbers."""
    with (directory / "stats.csv").open(newline="") as file:
        heading, *rows = csv.reader(file)
    assert heading == HEADING
    table = defaultdict(list)
    for row in rows:
        each = dict(zip(HEADING, row, strict=True))
        key = each.pop("layer"), each.pop("of"), each.pop("target")
        kind = each.pop("type")
        table[key].append({"type": kind, **{name: float(value) if value else np.nan for name, value in each.items()}})
    for channels in table.values():
        assert [row["channel"] for row in channels] == list(range(len(channels)))
    return dict(table)


def refuse(constant):
    raise AssertionError(f"no JSON: {constant}")


def json_of(directory):
    return json.loads((directory / "stats.json").read_bytes(), parse_constant=refuse)


def bytes_of(directory):
    return (directory / "stats.csv").read_bytes(), (directory / "stats.json").read_bytes()


def outputs(model, inputs, dtype=torch.float32):
    """What each layer returns for each image alone: clones, taken by plain hooks."""
    seen = [defaultdict(list) for _ in inputs]
    now = {}

    def keep(name):
        def hook(_module, _args, output):
            if isinstance(output, torch.Tensor):
                now["calls"][name] += 1
                call = now["calls"][name]
                now["values"][name if call == 1 else f"{name}#{call}"].append(output.detach().clone())

        return hook

    hooks = [module.register_forward_hook(keep(name)) for name, module in model.named_modules() if name]
    training = {module: module.training for module in model.modules()}
    model.eval()
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it goes round the layers
    with torch.no_grad():
        for path, values in zip(inputs, seen, strict=True):
            now.update(calls=Counter(), values=values)
            model(prepared(path, dtype))
    torch.backends.mha.set_fastpath_enabled(fast)
    for module, flag in training.items():
        module.training = flag
    for hook in hooks:
        hook.remove()
    return [{name: torch.cat(values) for name, values in each.items()} for each in seen]


def channels_first(values):
    """Make `(C, n)` of maps `(N, C, H, W)` or vectors `(N, C)`, in float64."""
    return values.double().transpose(0, 1).flatten(1).numpy()


def expected_of(images):
    """Return NumPy's statistics of one feature map's channels: `(C, n)` of each image."""
    whole = np.concatenate(images, 1)
    found = defaultdict(list)
    for channel in whole:
        finite = channel[np.isfinite(channel)]
        found["min"].append(finite.min() if finite.size else np.nan)
        found["max"].append(finite.max() if finite.size else np.nan)
        found["mean"].append(finite.mean() if finite.size else np.nan)
        found["std"].append(finite.std() if finite.size else np.nan)
        found["zeros"].append((channel == 0).mean())
        found["nonfinite"].append(channel.size - finite.size)
    return {"images": [len(images)] * len(whole), "values": [whole.shape[1]] * len(whole), **found}


def assert_rows(rows, images, *, rtol=0.0):
    """Compare one feature map's rows with NumPy.

    Extremes and counts are exact; only in a batch a convolution may itself round otherwise, for which there is `rtol`. The
    mean of values of both signs has the precision of the largest.
    """
    expected = expected_of(images)
    for name in ("images", "values", "nonfinite"):
        assert [row[name] for row in rows] == expected[name]
    for name in ("min", "max"):
        np.testing.assert_allclose(np.float32([row[name] for row in rows]), np.float32(expected[name]), rtol=rtol)
    np.testing.assert_allclose([row["zeros"] for row in rows], expected["zeros"], rtol=1e-8)
    largest = np.fmax(np.abs(expected["min"]), np.abs(expected["max"]))
    for name, least in (("mean", 2e-7), ("std", 1e-5)):
        found, target = np.array([row[name] for row in rows]), np.array(expected[name])
        assert (np.isnan(found) == np.isnan(target)).all()
        slack = 2**-23 * largest if name == "mean" or rtol else 0
        away = np.abs(found - target) - max(least, rtol) * np.abs(target) - slack
        assert not (away > 0).any(), (name, found[away > 0], target[away > 0])


def assert_numpys(directory, seen, *, layers=None, rtol=0.0):
    """Compare a run's whole table with what plain hooks have seen."""
    table = rows_of(directory)
    names = layers or list(dict.fromkeys(name for each in seen for name in each))
    assert set(table) == {(name, "output", "") for name in names}
    for name in names:
        assert_rows(table[name, "output", ""], [channels_first(each[name]) for each in seen if name in each], rtol=rtol)
    return table


def dead_of(table, layer):
    return [int(row["channel"]) for row in table[layer, "output", ""] if row["dead"]]


# --- networks


class Ordinary(nn.Module):
    """Convolutions, one with a dead channel, one called twice, activations in place, tokens, a pooled vector."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.first = nn.Conv2d(3, 6, 3)
            self.again = nn.Conv2d(6, 6, 3, padding=1)
            self.head = nn.Linear(6, 4)
        with torch.no_grad():
            self.first.weight[2] = 0
            self.first.bias[2] = 0.3
            self.first.weight[4] = 0
            self.first.bias[4] = -1
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        x = self.relu(self.first(x))
        x = self.again(self.relu(self.again(x)))
        return self.head(self.pool(x).flatten(1))


class Makes(nn.Module):
    """Has parts that apply given functions to the input."""

    def __init__(self, **parts):
        super().__init__()
        self.anchor = nn.Conv2d(3, 2, 1)
        for name, make in parts.items():
            self.add_module(name, Returns(make))

    def forward(self, x):
        for name, part in self.named_children():
            if name != "anchor":
                part(x)
        return x


def spoilt(x):
    """Channels with NaN and infinities: some, many, nothing else."""
    maps = x.repeat(1, 3, 1, 1)
    maps[:, 1, 2, 3] = NAN
    maps[:, 2, ::2] = INF
    maps[:, 3, 1:, 1:] = -INF
    maps[:, 4] = NAN
    maps[:, 5] = -INF
    maps[:, 6] = torch.where(maps[:, 6].mean() > 0, 0.0, NAN)
    return maps


# --- NumPy's statistics


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch_size", [None, 1, 2, 8])
@pytest.mark.parametrize("workers", [1, 4])
def test_statistics_of_a_network_equal_numpys(look, pictures, batch_size, workers):
    model = Ordinary()
    summary = look(model, pictures, batch_size=batch_size, workers=workers)
    seen = outputs(model, pictures)
    table = assert_numpys(summary.directory, seen, rtol=1e-5 if (batch_size or 1) > 1 else 0.0)
    assert {rows[0]["type"] for rows in table.values()} == {"Conv2d", "ReLU", "AdaptiveAvgPool2d", "Linear"}
    assert dead_of(table, "first") == [2, 4]
    assert dead_of(table, "relu") == [channel for channel in range(6) if len(np.unique(torch.cat(
        [each["relu"][:, channel] for each in seen]))) == 1]  # fmt: skip
    assert table["relu", "output", ""][4]["zeros"] == 1
    assert (summary.pictures, summary.exit_code) == (0, 0)


@pytest.mark.thorough
def test_statistics_of_a_trained_network_equal_numpys(look, samples):
    inputs = sorted((samples / "shapes").iterdir())
    model = load_model("shapesnet", preprocessing=InputOptions(size=(64, 64)))
    summary = look(model, inputs, preprocessing=InputOptions(), layers="features.*", types=["ReLU", "Conv2d"], predictions=0)
    table = rows_of(summary.directory)
    seen = []
    for path in inputs:
        now = {}
        with torch.no_grad():
            x = model.preparation.apply(Image.open(path).convert("RGB"))[None]
            for name, stage in model.module.features.named_children():
                x = now[f"features.{name}.conv"] = stage.conv(x)
                x = now[f"features.{name}.relu"] = stage.norm(x).relu()
        seen.append(now)
    assert set(table) == {(name, "output", "") for name in seen[0]}
    # Of six images at once the library rounds otherwise than of one: the values are compared, not their digits.
    for (layer, _, _), rows in table.items():
        expected = expected_of([channels_first(each[layer]) for each in seen])
        for name in ("min", "max", "mean", "std", "zeros"):
            np.testing.assert_allclose([row[name] for row in rows], expected[name], rtol=1e-4, atol=1e-4)


def test_values_that_are_not_finite_are_counted_and_ignored(look, pictures):
    model = Makes(spoilt=spoilt, vector=lambda x: spoilt(x)[:, :, 2, 3], halves=lambda x: spoilt(x).half())
    summary = look(model, pictures, layers=["spoilt", "vector", "halves"])
    table = assert_numpys(summary.directory, outputs(model, pictures), layers=["spoilt", "vector", "halves"])
    assert dead_of(table, "spoilt") == []
    for layer in json_of(summary.directory)["layers"]:
        assert layer["min"][4] is layer["max"][5] is layer["mean"][4] is layer["std"][5] is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_value_that_is_not_finite_affects_no_other_value(look, pictures, bad):
    def make(x):
        maps = x.clone()
        if x[0, 0, 0, 0] > prepared(pictures[1])[0, 0, 0, 0] - 1e-6:
            maps[0, 1, 3, 3] = bad
        return maps

    model = Makes(some=make)
    summary = look(model, pictures, layers="some", batch_size=1)
    table = assert_numpys(summary.directory, outputs(model, pictures), layers=["some"])
    bads = [row["nonfinite"] for row in table["some", "output", ""]]
    assert bads[0] == bads[2] == 0 < bads[1]


def test_constant_channels_are_dead(look, pictures):
    """Constant means: the same value everywhere in each of the images, and finite."""

    def make(x):
        maps = x.repeat(1, 2, 1, 1)
        maps[:, 0] = 0
        maps[:, 1] = 0.1
        maps[:, 2] = -7.3e-3
        maps[:, 3] = NAN
        maps[:, 4] = 5
        maps[:, 4, 0, 0] = INF
        return maps

    model = Makes(some=make, single=lambda x: torch.stack([x[:, 0, 0, 0], torch.ones(len(x)), x[:, 0, 0, 0] * NAN], 1))
    summary = look(model, pictures, layers=["some", "single"])
    table = assert_numpys(summary.directory, outputs(model, pictures), layers=["some", "single"])
    assert (dead_of(table, "some"), dead_of(table, "single")) == ([0, 1, 2], [1])
    assert [row["std"] for row in table["some", "output", ""][:3]] == [0, 0, 0]
    assert summary.dead == {"some": (3, 3, 6), "single": (1, 1, 3)}
    assert {layer["layer"]: layer["dead"] for layer in json_of(summary.directory)["layers"]} == {
        "some": [0, 1, 2],
        "single": [1],
    }


def test_a_channel_that_is_constant_in_each_image_is_dead(look, pictures):
    model = Makes(some=lambda x: x[:, :, :1, :1].expand(-1, -1, 5, 6))
    summary = look(model, pictures, layers="some")
    table = assert_numpys(summary.directory, outputs(model, pictures), layers=["some"])
    assert all(row["std"] > 0 for row in table["some", "output", ""])
    assert dead_of(table, "some") == [0, 1, 2]  # constant on every image, though not the same on all
    assert summary.dead == {"some": (0, 3, 3)}


def test_a_single_value_of_a_single_image_is_not_dead(look, pictures):
    model = Makes(vector=lambda x: x[:, :, 0, 0], maps=torch.ones_like)
    assert look(model, pictures[:1], layers=["vector", "maps"]).dead == {"vector": (0, 0, 3), "maps": (3, 3, 3)}


def test_constant_channels_of_varying_sizes_are_dead(look, pictures):
    """A single pixel of one picture shows nothing, but a constant over all pictures does."""
    for number, path in enumerate(pictures):
        paint(path, number, (12, 14 + 100 * (number % 2)))

    def vector(x):
        wide = torch.full_like(x[:, 0, 0, 0], x.shape[-1])
        return torch.stack([wide, torch.full_like(wide, 3), x[:, 0, 0, 0]], 1)

    def maps(x):
        own = x[:, :, :1, ::100].clone()  # one value, or two
        own[:, 0] = 5
        return own

    model = Makes(vector=vector, maps=maps)
    summary = look(model, pictures, layers=["vector", "maps"])
    table = assert_numpys(summary.directory, outputs(model, pictures), layers=["vector", "maps"])
    assert (dead_of(table, "vector"), dead_of(table, "maps")) == ([1], [0])


def test_statistics_of_tokens_equal_numpys(look, pictures):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = Tokens()

        def forward(self, x):
            return self.net(x[:, :, :8, :8])

    model = Net().eval()
    squares = [paint(path, seed, (8, 8)) for seed, path in enumerate(pictures)]
    summary = look(model, squares, layers=["*norm2"], workers=1)
    table = rows_of(summary.directory)
    seen = outputs(model, squares)
    assert len(table) == 2
    for (layer, _, _), rows in table.items():
        assert_rows(rows, [each[layer][:, 1:].transpose(1, 2).flatten(2)[0].double().numpy() for each in seen])


def test_statistics_of_different_sizes_equal_numpys(look, pictures):
    for number, path in enumerate(pictures[:4]):
        paint(path, number, (6 + number % 2, 9 + 3 * number))
    model = Ordinary()
    summary = look(model, pictures)
    assert_numpys(summary.directory, outputs(model, pictures))


class Sometimes(nn.Module):
    """Runs one of two layers, whichever its input decides, between two others."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(2)
            self.first = nn.Conv2d(3, 3, 3)
            self.bright, self.dark = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
            self.last = nn.Conv2d(3, 5, 3)

    def forward(self, x):
        chosen = self.bright if x[0, 0, 0, 0] > 0 else self.dark
        return self.last(chosen(self.first(x)))


def test_layers_that_run_for_some_images_only_have_statistics(look, pictures):
    model = Sometimes()
    summary = look(model, pictures, types=["Conv2d"], batch_size=1)
    seen = outputs(model, pictures)
    assert 0 < sum("bright" in each for each in seen) < len(pictures)
    table = assert_numpys(summary.directory, seen)
    assert table["bright", "output", ""][0]["images"] == sum("bright" in each for each in seen)


def test_layers_are_in_the_order_of_execution_though_some_run_for_some_images_only(look, pictures):
    summary = look(Sometimes(), pictures, types=["Conv2d"], batch_size=1)
    order = [layer["layer"] for layer in json_of(summary.directory)["layers"]]
    assert (order[0], order[-1]) == ("first", "last")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_all_samples_of_an_image_count(look, pictures, batch_size):
    model = Regions(3)
    with torch.no_grad():
        model.head.weight[1] = 0
    summary = look(model, pictures, types=["Conv2d"], batch_size=batch_size)
    table = assert_numpys(summary.directory, outputs(model, pictures))
    assert table["head", "output", ""][0]["values"] == 5 * 3 * 14 * 18
    assert dead_of(table, "head") == [1]


def test_statistics_of_clips_equal_numpys(look, pictures):
    model = Makes(clip=lambda x: torch.stack([x, x * 2, x.relu()], 2))
    model.clip = nn.Sequential(model.clip, nn.Conv3d(3, 4, (1, 3, 3)))
    summary = look(model, pictures, types=["Conv3d"])
    table = rows_of(summary.directory)
    seen = outputs(model, pictures)
    assert sorted(table) == [(f"clip.1.t{time}", "output", "") for time in range(3)]
    for time in range(3):
        rows = table[f"clip.1.t{time}", "output", ""]
        assert_rows(rows, [channels_first(each["clip.1"][:, :, time]) for each in seen])


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_networks_of_other_types_are_computed_in_them(look, pictures, dtype):
    model = Ordinary().to(dtype)
    summary = look(model, pictures, batch_size=1)
    seen = [{name: values.float() for name, values in each.items()} for each in outputs(model, pictures, dtype)]
    assert_numpys(summary.directory, seen)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("offset", [1e3, 1e6, -1e6])
def test_deviations_of_large_values_are_accurate(look, tmp_path, offset):
    """A deviation computed from the mean of squares would be lost: float32 has 24 bits, the square takes 40."""
    inputs = [paint(tmp_path / f"{seed}.png", seed, (60, 70)) for seed in range(3)]
    model = Makes(far=lambda x: x + offset)
    summary = look(model, inputs, layers="far")
    table = assert_numpys(summary.directory, outputs(model, inputs), layers=["far"])
    assert all(row["std"] > 0.9 for row in table["far", "output", ""])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shard", [None, pytest.param(3, marks=needs("pyarrow", "scale"))], ids=["images", "shards"])
def test_deviations_that_are_tiny_beside_the_mean_are_accurate(look, tmp_path, dtype, shard):
    """The deviation is that of the last digits of the type, and the levels of images differ by as little."""
    inputs = [paint(tmp_path / "in" / f"{seed}.png", seed, (60, 70)) for seed in range(7)]
    step = 10_000 * torch.finfo(dtype).eps
    model = Makes(
        far=lambda x: 10_000 + (x * step).round(decimals=7),
        near=lambda x: -10_000 + x[:, :1] * step / 2,
        level=lambda x: 10_000 + torch.ones_like(x) * (x[:, :1, :1, :1] * step).round(decimals=7),  # constant in an image
    ).to(dtype)
    summary = look(model, inputs, **({"shard": shard} if shard else {}), batch_size=1)
    seen = [{name: values.float() for name, values in each.items()} for each in outputs(model, inputs, dtype)]
    table = assert_numpys(summary.directory, seen)
    assert all(row["std"] > 0 for row in table["far", "output", ""])
    assert table["level", "output", ""][0]["std"] > 0


def test_statistics_of_images_of_different_levels_are_accurate(look, pictures):
    model = Makes(far=lambda x: x * 1e-3 + x[:, :1, :1, :1].sign() * 1e4)
    summary = look(model, pictures, layers="far", batch_size=1)
    assert_numpys(summary.directory, outputs(model, pictures), layers=["far"])


@pytest.mark.thorough
def test_statistics_of_a_million_values_are_accurate(look, tmp_path):
    inputs = [paint(tmp_path / f"{seed}.png", seed, (600, 700)) for seed in range(2)]
    model = Makes(many=lambda x: x.exp())
    summary = look(model, inputs, layers="many")
    # The squares of an image are added up in float32: of 420,000 values five digits are left.
    assert_numpys(summary.directory, outputs(model, inputs), layers=["many"], rtol=5e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("factor", [1e-12, *(factor for factor in (1e-22, 1e22, 1e37)), 1e18])
def test_statistics_of_very_small_and_large_values_are_accurate(look, pictures, factor):
    model = Makes(scaled=lambda x: x * factor)
    summary = look(model, pictures, layers="scaled")
    assert_numpys(summary.directory, outputs(model, pictures), layers=["scaled"])


def test_a_mean_whose_sum_exceeds_float32_is_right(look, pictures):
    model = Makes(scaled=lambda x: x.clamp(1, 3) * 1e38)
    summary = look(model, pictures, layers="scaled")
    assert_numpys(summary.directory, outputs(model, pictures), layers=["scaled"])


# --- however a run is divided


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The statistics of six pictures, drawn in one run by one worker."""
    folder = tmp_path_factory.mktemp("whole")
    inputs = [paint(folder / f"pictures/{seed}.png", seed) for seed in range(6)]
    summary = visualize(
        Ordinary(), inputs, out=folder / "out", preprocessing=AS_IT_IS, to="stats", workers=1, types=["Module"]
    )
    return inputs, bytes_of(summary.directory)


class StopError(Exception):
    pass


DIVIDED = [[[3, 4, 5], [0, 1, 2]], [[5], [4], [0, 2, 1, 3]], [[4, 1, 5, 0, 3, 2]], [[0, 1, 2], [3, 4, 5]]]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("parts", "workers"), often(each_once(DIVIDED[:3], [4, 1]), of=product(DIVIDED, [1, 4])))
def test_statistics_are_equal_for_any_division_of_a_run(whole, look, parts, workers):
    inputs, expected = whole
    for part in parts:
        summary = look(Ordinary(), [inputs[number] for number in part], workers=workers)
    assert bytes_of(summary.directory) == expected


def test_statistics_of_an_interrupted_run_are_those_of_an_uninterrupted_one(whole, look, tmp_path):
    inputs, expected = whole
    done = []

    def interrupt(event):
        if isinstance(event, Outcome):
            done.append(event)
            if len(done) == 2:
                raise StopError

    with pytest.raises(StopError):
        look(Ordinary(), inputs, on_event=interrupt)
    summary = look(Ordinary(), inputs)
    assert summary.skipped >= 2
    assert bytes_of(summary.directory) == expected
    assert problems(tmp_path / "out") == []


@pytest.mark.thorough
def test_statistics_of_a_run_drawn_again_are_the_same(whole, look):
    inputs, expected = whole
    look(Ordinary(), inputs)
    assert bytes_of(look(Ordinary(), inputs, force=True).directory) == expected


@pytest.mark.thorough
def test_statistics_use_the_current_content_of_a_changed_image(look, pictures):
    look(Ordinary(), pictures)
    paint(pictures[2], 99, (13, 15))
    model = Ordinary()
    summary = look(model, pictures)
    assert (summary.done, summary.skipped) == (1, 4)
    assert_numpys(summary.directory, outputs(model, pictures))


@pytest.mark.thorough
def test_images_of_one_name_are_all_counted_in_either_order(look, tmp_path):
    inputs = [paint(tmp_path / f"{folder}/x.png", folder) for folder in range(4)]
    model = Ordinary()
    one = look(model, inputs, name="one").directory
    other = look(model, inputs[::-1], name="other").directory
    assert_numpys(one, outputs(model, inputs))
    assert bytes_of(one) == bytes_of(other)


AT_ONCE = """
import os, sys
from pathlib import Path
from test_statistics import AS_IT_IS, Ordinary
from fmapviz.run.loop import visualize
import torch

torch.set_num_threads(1)  # with more a convolution rounds otherwise
out, inputs = sys.argv[1], sorted(Path(sys.argv[2]).iterdir())

def work(process):
    for name in ("a", "b"):
        share = inputs[process % 4 :: 3]  # each image is drawn by two processes at least
        visualize(Ordinary(), share, out=out, name=name, preprocessing=AS_IT_IS, to="stats", workers=1, types=["Module"])
"""


@pytest.mark.thorough
def test_processes_that_share_a_run_end_with_the_statistics_of_all_images(whole, fmapviz, tmp_path):
    inputs, expected = whole
    ended = fmapviz("-c", AT_ONCE + EIGHT_AT_ONCE, tmp_path / "out", inputs[0].parent, cwd=Path(__file__).parent)
    assert (ended.returncode, ended.stdout) == (0, b""), ended.stderr.decode()
    assert [bytes_of(tmp_path / "out" / name) == expected for name in "ab"] == [True] * 2
    assert problems(tmp_path / "out") == []


FIRST = """
import sys, time
from pathlib import Path
from fmapviz.store.run_files import publish

begin = time.monotonic() + 0.2

def work(process):
    for number in range(100):
        run = Path(sys.argv[1]) / str(number)
        run.mkdir(parents=True, exist_ok=True)
        while time.monotonic() < begin + number * 0.005:
            pass
        publish(run, lambda _units: ({"stats.csv": b"a", "stats.json": b"b"}, []))
"""


@pytest.mark.thorough
def test_files_that_another_process_publishes_are_accepted(fmapviz, tmp_path):
    ended = fmapviz("-c", f"import os{FIRST}{EIGHT_AT_ONCE}", tmp_path, cwd=Path(__file__).parent)
    assert (ended.returncode, ended.stdout) == (0, b""), ended.stderr.decode()
    assert all((tmp_path / str(number) / "stats.json").read_bytes() == b"b" for number in range(100))


# --- merging


def image_statistics(layers, seed):
    """Statistics of an image with these layers of three channels, as a unit keeps them."""
    texts = {"of": "output", "target": "", "type": "X"}
    maps = [{"layer": layer, **texts, "channels": 3, "values": 9, "index": index} for index, layer in enumerate(layers)]
    numbers = np.random.default_rng(seed).integers(-2, 3, (3, 3 * len(layers))).astype(np.float32)
    low, mean, high = np.sort(numbers, axis=0)
    nonfinite = np.uint32([seed % 3 == 0] * len(low))
    columns = {"low": low, "high": high, "mean": mean, "std": high - low, "zeros": nonfinite + 1, "nonfinite": nonfinite}
    return statistics_of(json.dumps(maps), columns)


@pytest.mark.parametrize("layers", [["a", "b"], ["a", "c", "b"], ["c"], []])
@pytest.mark.parametrize("others", [["a", "b"], ["b", "d"]])
def test_merging_is_associative_and_commutative_up_to_rounding(layers, others):
    parts = [image_statistics(layers, 1), image_statistics(others, 2), image_statistics(layers, 3), NO_IMAGES]
    whole = merge(parts)
    pairs, nested = combine(combine(*parts[:2]), combine(*parts[2:])), combine(parts[0], combine(parts[1], parts[2]))
    for merged in (merge([pairs]), merge([nested]), merge(parts[::-1])):
        rows = {info.key: own for info, own in merged.slices()}  # the order of unrelated layers is that of the parts
        assert (merged.images, rows.keys()) == (3, {info.key for info in whole.maps})
        for info, own in whole.slices():
            for name in whole.columns:
                np.testing.assert_allclose(merged[name][rows[info.key]], whole[name][own], rtol=1e-12, atol=1e-12)


@pytest.mark.thorough
def test_layers_have_the_index_of_their_pictures(look, pictures):
    summary = look(Ordinary(), pictures[:2], to=["stats", "png"], views=["maps", "inputs"])
    record = json.loads((summary.directory / "0.png/unit.json").read_bytes())
    drawn = {(layer["name"], layer.get("of", "output")): layer["index"] for layer in record["layers"]}
    table = rows_of(summary.directory)
    assert {(layer, of): rows[0]["layer_index"] for (layer, of, _), rows in table.items()} == drawn
    assert len(set(drawn.values())) > 3


@needs("pyarrow", "scale")
def test_a_table_is_read_as_it_was_written(tmp_path):
    whole = merge([image_statistics(["a", "b"], 1), image_statistics(["b", "c"], 3)])
    write_table(tmp_path, whole)
    found = read_table(tmp_path)
    assert (found.images, found.maps) == (whole.images, whole.maps)
    for name in whole.columns.keys() - {"dead"}:  # the table has what `flat` returns
        np.testing.assert_array_equal(found[name], np.nan_to_num(whole[name]) if name == "mean" else whole[name])
    np.testing.assert_array_equal(found.flat, whole.flat)


# --- of what, and beside what


class Pools(nn.Module):
    """A small classifier."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.first, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)

    def forward(self, x):
        return self.last(self.first(x).relu()).mean((2, 3))


@pytest.mark.thorough
def test_inputs_and_gradients_are_included(look, pictures):
    model = Pools().eval()
    summary = look(
        model, pictures, types=["Conv2d"], views=["inputs", "grads", "grad-inputs"], targets=[3, "top1"], batch_size=1
    )
    seen = defaultdict(list)
    for path in pictures:
        x = prepared(path).requires_grad_()
        first = model.first(x)
        relu = first.relu()
        last = model.last(relu)
        scores = last.mean((2, 3))
        seen["first", "input", ""].append(x)
        seen["last", "input", ""].append(relu)
        for label, score in (("class3", scores[0, 3]), ("top1", scores.max())):
            gradients = torch.autograd.grad(score, [first, last, x, relu], retain_graph=True)
            names = [("first", "gradient"), ("last", "gradient"), ("first", "input gradient"), ("last", "input gradient")]
            for name, gradient in zip(names, gradients, strict=True):
                seen[*name, label].append(gradient)
    table = rows_of(summary.directory)
    assert set(table) == set(seen)
    for key, images in seen.items():
        assert_rows(table[key], [channels_first(each.detach()) for each in images], rtol=1e-5)
    never = {"last (gradient) class3": (5, 5, 5), "last (gradient) top1": (3, 5, 5)}
    assert {name: each for name, each in summary.dead.items() if each[0]} == never
    assert list(summary.dead)[:2] == ["first (input)", "last (input)"]


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "style", [Style(channels="0,2"), Style(channels="top:2"), Style(channels="top:1:std", norm="layer")]
)
def test_statistics_include_all_channels_regardless_of_channels(look, pictures, style):
    model = Ordinary()
    summary = look(model, pictures, style=style, to=["stats", "png"])
    assert_numpys(summary.directory, outputs(model, pictures))


def test_statistics_include_layers_without_the_chosen_channels(look, pictures):
    model = Ordinary()
    summary = look(model, pictures, style=Style(channels="4-5"))
    assert_numpys(summary.directory, outputs(model, pictures))


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("views", [["maps"], ["mean"], ["histogram", "maps", "pca"]])
def test_statistics_are_the_same_beside_any_other_format(whole, look, views):
    inputs, (table, document) = whole
    summary = look(Ordinary(), inputs, views=views, to=["stats", "png"])
    assert summary.pictures > 0
    assert (summary.directory / "stats.csv").read_bytes() == table
    assert json_of(summary.directory)["layers"] == json.loads(document)["layers"]


def test_statistics_alone_leave_no_picture(look, pictures):
    summary = look(Ordinary(), pictures)
    names = sorted({path.name for path in summary.directory.rglob("*") if path.is_file()})
    assert names == ["products.json", "run.json", "stats.csv", "stats.json", "stats.safetensors", "unit.json"]


@pytest.mark.thorough
def test_the_document_equals_the_table(look, pictures):
    model = Makes(spoilt=spoilt, plain=lambda x: x)
    summary = look(model, pictures, layers=["spoilt", "plain"])
    document = json_of(summary.directory)
    assert (document["model"], document["images"]) == ("makes", 5)
    table = rows_of(summary.directory)
    for layer in document["layers"]:
        rows = table[layer["layer"], layer["of"], layer["target"] or ""]
        assert (layer["channels"], layer["images"], layer["values"]) == (len(rows), rows[0]["images"], rows[0]["values"])
        assert {layer["layer_index"]} == {row["layer_index"] for row in rows}
        assert layer["dead"] == [row["channel"] for row in rows if row["dead"]]
        for name in ("min", "max", "mean", "std", "zeros", "nonfinite"):
            np.testing.assert_array_equal(np.array(layer[name], float), [row[name] for row in rows])


HOSTILE = ['a,b "c"\n;d', "=1+1", "größe 层", "class", "x#2", "__metadata__", "a/b", "/", "long" * 100]


def test_hostile_names_are_kept(look, pictures):
    model = Makes(**dict.fromkeys(HOSTILE, lambda x: x * 2))
    summary = look(model, pictures, layers=["*"], exclude="anchor")
    assert_numpys(summary.directory, outputs(model, pictures), layers=HOSTILE)
    assert [layer["layer"] for layer in json_of(summary.directory)["layers"]] == HOSTILE


def test_a_name_that_is_no_unicode_is_kept(look, pictures):
    model = as_model(Makes(**{"bad\udcff": lambda x: x * 2}))
    assert look(model, pictures, layers="bad*").exit_code == 0


# --- messages


@pytest.mark.thorough
def test_the_command_reports_the_number_of_dead_channels(fmapviz, tmp_path):
    net = tmp_path / "net.py"
    net.write_text(
        "from torch import nn\n\ndef build():\n    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3))\n"
        "    nn.init.zeros_(net[0].weight[:2])\n    return net\n"
    )
    inputs = [paint(tmp_path / f"{seed}.png", seed) for seed in range(3)]
    common = ["run", "net.py:build", *inputs, "--fit", "none", "--to", "stats", "--out", "out", "--weights", "random"]
    done = fmapviz(*common)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines()[1:] == ["layer 0: 2 of 8 channels are dead: 0, 1", as_typed(HINT)]
    again = fmapviz(*common, "--json")
    summary = json.loads(again.stdout.splitlines()[-1], parse_constant=refuse)
    assert (summary["dead"], summary["skipped"], summary["exit_code"]) == ({"0": [2, 2, 8], "1": [0, 0, 4]}, 3, 0)


def described(*maps):
    """Describe feature maps, each given as name, type, dead ones of its 8 channels, and whose values they are."""
    names = [layer if of == "output" else f"{layer} ({of}) top1" for layer, _, _, of in maps]
    lines = [{"layer": layer, "type": kind, "dead": dead, "of": of, "channels": 8} for layer, kind, dead, of in maps]
    return describe_dead(dict(zip(names, lines, strict=True)))


def test_dead_channels_are_reported_by_layer_up_to_a_limit():
    assert described() == []
    relus = [("act1", "ReLU", [], "output"), ("act2", "SiLU", [], "output")]
    assert described(*relus) == ["no dead channels in 2 layers of types ReLU, SiLU"]
    assert described(relus[0]) == ["no dead channels in 1 layer of type ReLU"]
    assert described(relus[0], ("act1", "ReLU", [], "gradient")) == ["no dead channels in 2 feature maps of type ReLU"]
    assert described(relus[0], ("act2", "ReLU", [2, 5, 7], "output")) == ["act2: 3 of 8 channels are dead: 2, 5, 7"]
    assert described(("act", "ReLU", [*range(6)], "output")) == ["act: 6 of 8 channels are dead: 0, 1, 2, 3 and 2 more"]
    numbers = [("2", "ReLU", [7], "output"), ("0.1", "ReLU", [3], "gradient")]
    assert described(*numbers) == [
        "layer 2: 1 of 8 channels is dead: 7",
        "layer 0.1 (gradient) top1: 1 of 8 channels is dead: 3",
    ]
    lines = described(*((f"act{number}", "ReLU", [1], "output") for number in range(MOST_LINES + 3)))
    assert lines[:2] == ["act0: 1 of 8 channels is dead: 1", "act1: 1 of 8 channels is dead: 1"]
    assert lines[-1] == "... and 3 more such lines: see stats.csv"
    assert len(lines) == MOST_LINES + 1


@pytest.mark.parametrize("kind", ["Conv1d", "Conv2d", "ConvTranspose2d", "LazyConv2d", "Linear", "BatchNorm2d", "LayerNorm"])
def test_channels_in_front_of_activations_are_no_all_clear(kind):
    conv, dead, act = ("a", kind, [], "output"), ("b", kind, [1], "output"), ("c", "ReLU", [], "output")
    assert described(conv) == [f"no dead channels in 1 layer of type {kind}", HINT]
    assert described(conv, dead) == ["b: 1 of 8 channels is dead: 1", HINT]
    assert described(conv, act) == [f"no dead channels in 2 layers of types {', '.join(sorted([kind, 'ReLU']))}"]
    assert described(("a", kind, [], "gradient")) == [f"no dead channels in 1 feature map of type {kind}"]


@pytest.mark.parametrize(
    "kind", ["ReLU", "MaxPool2d", "EncoderBlock", "Conv2dNormActivation", "BasicConv2d", "BatchNormAct2d"]
)
def test_layers_that_may_end_with_an_activation_need_no_hint(kind):
    assert described(("a", kind, [], "output")) == [f"no dead channels in 1 layer of type {kind}"]


def test_a_run_without_a_drawn_image_has_no_statistics(look, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no image")
    summary = look(Ordinary(), [tmp_path / "bad.png"])
    assert (summary.exit_code, summary.dead) == (4, {})
    assert rows_of(summary.directory) == {}
    assert (json_of(summary.directory)["images"], json_of(summary.directory)["layers"]) == (0, [])
    assert problems(tmp_path / "out") == []


def test_failed_images_do_not_count(look, pictures, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no image")
    model = Ordinary()
    summary = look(model, [*pictures, tmp_path / "bad.png"])
    assert summary.exit_code == 3
    assert_numpys(summary.directory, outputs(model, pictures))


def test_a_view_of_pictures_only_is_reported(look, pictures):
    events = []
    summary = look(
        Ordinary(), pictures[:1], views=["maps", "gradcam", "kernels"], preprocessing=SAID, on_event=events.append
    )
    (notice,) = [event.message for event in events if isinstance(event, Notice)]
    assert notice == "nothing comes of gradcam, kernels: pictures need to='png', to='html' or to='tensorboard' too"
    assert (summary.exit_code, summary.pictures) == (0, 0)


def test_reported_dead_channels_equal_those_of_the_document(look, pictures):
    hostile = 'x", "min": [1]\n  {"layer": "y'
    model = Makes(**{hostile: lambda x: x * 0, "plain": lambda x: x})
    summary = look(model, pictures[:2], layers=["*"], views=["maps", "inputs"])
    layers = json_of(summary.directory)["layers"]
    counts = [(len(each["constant"]), len(each["dead"]), each["channels"]) for each in layers]
    assert list(summary.dead.values()) == counts
    assert summary.dead[hostile] == (3, 3, 3)


@pytest.mark.parametrize("views", [["gradcam"], ["kernels"]])
def test_views_that_have_no_statistics_are_refused(look, pictures, views):
    with pytest.raises(RequestError):
        look(Pools(), pictures, views=views, types=())


# --- damage


FILES = ["stats.csv", "stats.json", "products.json", "0.png/stats.safetensors"]


DAMAGES = ["flip", "cut", "remove"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "damage"), often(each_once(FILES, DAMAGES), of=product(FILES, DAMAGES)))
def test_damaged_statistics_are_found_and_repaired_by_the_same_command(look, pictures, tmp_path, name, damage):
    directory = look(Ordinary(), pictures).directory
    before = bytes_of(directory)
    assert problems(tmp_path / "out") == []
    path = directory / name
    data = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data if damage == "flip" else data[: len(data) // 2])
    assert {problem.path for problem in problems(tmp_path / "out")} == {path}
    if name in FILES[:3]:
        look(Ordinary(), pictures)
        assert problems(tmp_path / "out") == []
        assert bytes_of(directory) == before


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("damage", ["cut", "remove"])
def test_lost_statistics_of_an_image_are_reported_and_repaired_by_force(look, pictures, tmp_path, damage):
    directory = look(Ordinary(), pictures[:4]).directory
    path = directory / "0.png/stats.safetensors"
    data = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(data[:100])
    look(Ordinary(), pictures, force=True)
    assert json_of(directory)["images"] == 5
    assert problems(tmp_path / "out") == []


@pytest.mark.thorough
def test_an_image_is_added_to_a_run_with_a_damaged_one(look, pictures):
    directory = look(Ordinary(), pictures[:4]).directory
    path = directory / "0.png/stats.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    events = []
    summary = look(Ordinary(), pictures, on_event=events.append)
    assert (summary.done, summary.left_out, summary.exit_code) == (1, (directory / "0.png",), 3)
    assert "left out of the results over all images: " in events[-1].message
    assert json_of(directory)["images"] == 4
    whole = look(Ordinary(), pictures, force=True)
    assert (whole.left_out, whole.exit_code, json_of(directory)["images"]) == ((), 0, 5)


@pytest.mark.thorough
def test_a_foreign_statistics_file_is_not_replaced(look, pictures, tmp_path):
    directory = look(Ordinary(), pictures, to="png").directory
    shutil.rmtree(directory)
    directory = look(Ordinary(), pictures[:1]).directory
    for name in ("products.json", "stats.json"):
        (directory / name).unlink()
    (directory / "stats.csv").write_text("mine")
    with pytest.raises(RefusedError):
        look(Ordinary(), pictures)
    assert (directory / "stats.csv").read_text() == "mine"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("what", "by"), [(b'"type', b'"typf'), (b'"channels": 4', b'"channels": 9'), (b"low", b"lox")])
def test_invalid_statistics_are_left_out(look, pictures, what, by):
    directory = look(Ordinary(), pictures).directory
    path = directory / "0.png/stats.safetensors"
    data = path.read_bytes()
    escaped, replacement = (text.replace(b'"', b'\\"') for text in (what, by))
    damaged = data.replace(escaped, replacement, 1)
    path.write_bytes(damaged if damaged != data else data.replace(what, by, 1))
    assert path.read_bytes() != data
    (directory / "stats.csv").unlink()
    assert look(Ordinary(), pictures).left_out == (directory / "0.png",)
