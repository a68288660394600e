"""The ranking of layers by change, against NumPy, with every kind of layer that has no rank."""

import csv
import io
from math import inf, isnan
from typing import get_type_hints

import numpy as np
import pytest
import torch
from json_lines import schema, types_in, types_of
from torch import nn

import fmapviz
from fmapviz.features.diff import aggregate as differences
from fmapviz.features.diff.difference import compare
from fmapviz.features.diff.layer_ranking import LayerChange, largest_changes, rank_layers, why_apart

NAN, INF = float("nan"), float("inf")


def powers(pairs):
    """Return the sums over images of one layer."""
    total = differences.Powers(0)
    for a, b in pairs:
        found = compare(torch.as_tensor(a)[None, None], torch.as_tensor(b)[None, None])
        total.add(differences.powers_of(0, found.whole, found.powers))
    return total


def test_layers_are_ranked_by_the_relative_change_over_all_images():
    random = np.random.default_rng(0)
    layers = {}
    for number in range(40):
        scale, noise = 10.0 ** random.uniform(-6, 6), 10.0 ** random.uniform(-5, 0)
        a = [scale * random.normal(size=(4, 5)).astype(np.float32) for _ in range(3)]
        layers[f"layer{number}"] = [
            (each, (each + noise * scale * random.normal(size=each.shape)).astype(np.float32)) for each in a
        ]
    found = rank_layers({name: powers(pairs) for name, pairs in layers.items()}, {}, None)
    expected = {}
    for name, pairs in layers.items():
        a, b = (np.concatenate([pair[at].astype(np.float64).ravel() for pair in pairs]) for at in (0, 1))
        expected[name] = np.linalg.norm(b - a) / np.linalg.norm(a)
    assert [each.layer for each in found] == sorted(expected, key=lambda name: -expected[name])
    assert [each.rank for each in found] == list(range(1, 41))
    for each in found:
        assert each.relative_l2 == pytest.approx(expected[each.layer], rel=1e-9)
        assert each.sqnr == pytest.approx(-20 * np.log10(expected[each.layer]), rel=1e-7, abs=1e-7)
        assert each.images == 3


def test_layers_that_cannot_be_ranked_are_listed_separately():
    one, two = np.float32([1, 2]), np.float32([1, 3])
    layers = {
        "changed": [(one, two)],
        "changed, and NaN": [(np.float32([1, NAN]), np.float32([9, 2]))],
        "same": [(one, one)],
        "zeros": [(0 * one, 0 * one)],
        "A zero": [(0 * one, one)],
        "B zero": [(one, 0 * one)],
        "all NaN": [(NAN * one, NAN * one)],
        "NaN in both": [(np.float32([1, NAN]), np.float32([1, NAN]))],
        "infinite": [(np.float32([1, INF]), np.float32([1, INF]))],
        "NaN in one image": [(NAN * one, one), (one, two)],
    }
    apart = why_apart([("only a", True), ("only b", False), ("shape", True), ("shape", False)])
    sums = {name: powers(pairs) for name, pairs in layers.items()}
    sums["huge"] = differences.Powers(0, signal=INF, noise=1e301, largest=1e160, differs=True, images=1, finite=True)
    found = {each.layer: each for each in rank_layers(sums, apart, 7)}
    ranks = {name: each.rank for name, each in found.items() if each.rank}
    assert ranks == {"changed, and NaN": 1, "B zero": 2, "changed": 3, "NaN in one image": 4}
    assert found["changed, and NaN"].note == "1 NaN or infinite values are left out"
    assert {name: each.note for name, each in found.items() if not each.rank} == {
        "same": "no difference",
        "zeros": "no difference",
        "A zero": "A is zero everywhere, B is not",
        "all NaN": "no finite value in both networks",
        "NaN in both": "only values differ that are not finite; 1 NaN or infinite values are left out",
        "infinite": "no difference",
        "huge": "values are too large to compare",
        "only a": "only in A",
        "only b": "only in B",
        "shape": "of other shapes",
    }
    assert found["A zero"].relative_l2 == inf
    assert isnan(found["all NaN"].max_abs)
    assert {each.step for each in found.values()} == {7}


def test_layers_of_a_series_are_ranked_by_their_largest_change():
    one = np.float32([1, 2])
    steps = {0: {"a": one, "b": one}, 10: {"a": 3 * one, "b": 1.1 * one}, 20: {"a": 2 * one, "b": 1.5 * one}}
    changes = [
        each
        for step, layers in steps.items()
        for each in rank_layers({name: powers([(one, np.float32(values))]) for name, values in layers.items()}, {}, step)
    ]
    assert [(each.layer, each.step) for each in largest_changes(changes)] == [("a", 10), ("b", 20)]


def test_the_ranking_is_available_in_python():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
    other = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
    other.load_state_dict(net.state_dict())
    with torch.no_grad():
        other[0].bias += 0.01
        other[2].weight *= 3
    images = torch.rand(3, 3, 16, 16)
    found = fmapviz.diff(net, other, images)
    assert found.layers == ()
    sums = {}
    for layer in found:
        sums.setdefault(layer.layer, []).append(
            (float(layer.delta.double().norm()) ** 2, float(layer.a.double().norm()) ** 2)
        )
    assert [each.layer for each in found.layers] == ["2", "0"]
    for each in found.layers:
        noise, signal = np.sum(sums[each.layer], 0)
        assert each.relative_l2 == pytest.approx(np.sqrt(noise / signal), rel=1e-6)
        assert each.images == 3


def test_the_table_of_a_run_names_layers_of_one_network_and_of_other_shapes(tmp_path):
    from fmapviz.config import InputOptions, RunConfig
    from fmapviz.features.diff.run import run_diff

    class Net(nn.Module):
        def __init__(self, width, own):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.wide = nn.Conv2d(3, 4, 3), nn.Conv2d(4, width, 3)
            self.add_module(own, nn.Conv2d(4, 4, 1))
            self.own = own

        def forward(self, x):
            x = self.first(x)
            self.wide(x)
            return getattr(self, self.own)(x)

    config = RunConfig(
        Net(5, "alone_a"),
        [torch.rand(3, 16, 16)],
        views="diff",
        to="numbers",
        out=tmp_path,
        preprocessing=InputOptions(fit="none"),
        name="x",
    )
    summary = run_diff(config, against=Net(6, "alone_b"))
    rows = list(csv.DictReader(io.StringIO((summary.directory / "layers.csv").read_text())))
    assert {row["layer"]: row["note"] for row in rows} == {
        "first": "no difference", "wide": "of other shapes", "alone_a": "only in A", "alone_b": "only in B",
    }  # fmt: skip
    assert [each["note"] for each in summary.results["layers"]] == [row["note"] for row in rows]


def test_the_schema_of_json_has_the_fields_of_a_change():
    properties = schema()["$defs"]["changed_layer"]["properties"]
    expected = {
        name: types_of(hint) | ({"null"} if hint is float else set()) for name, hint in get_type_hints(LayerChange).items()
    }
    assert {name: types_in(part) for name, part in properties.items()} == expected  # a number that is not finite is null
