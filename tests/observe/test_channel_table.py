"""`FeatureMap.statistics` returns the numbers of `stats.csv`, and NumPy's."""

from __future__ import annotations

import csv
import sys
from math import isnan

import numpy as np
import pytest
import torch
from extras import needs
from image_files import paint
from torch import nn

import fmapviz
from fmapviz.core.channel_table import ChannelTable
from fmapviz.types import FeatureMap, Layer


def found(values, module=None, name="a"):
    module = module or nn.Conv2d(1, 1, 1)
    return FeatureMap(Layer(name, type(module).__name__, module), name, 1, 3, values)


def as_written(row):
    """Return a row as `stats.csv` has it."""
    numbers = {name: "" if isnan(row[name]) else f"{row[name]:.9g}" for name in ("min", "max", "mean", "std", "zeros")}
    return {name: str(int(value) if isinstance(value, bool) else value) for name, value in row.items()} | numbers


@pytest.mark.sampled(1)
@pytest.mark.parametrize("types", ["Conv2d", "ReLU", "Linear", "Conv2d,ReLU,Linear"])
def test_a_table_has_the_rows_of_stats_csv(tmp_path, types):
    model = fmapviz.load_model("shapesnet")
    path = paint(tmp_path / "a.png")
    run = fmapviz.visualize(model, path, out=tmp_path, to="stats", types=types)
    with (run.directory / "stats.csv").open(encoding="utf-8", newline="") as file:
        written = list(csv.DictReader(file))
    with fmapviz.capture(model, types=types) as maps, torch.no_grad():
        model.module.eval()(fmapviz.load_image(path, model))
    made = [as_written(row) for each in maps.values() for row in each.statistics()]
    assert len(made) == len(written)
    assert [list(row) for row in made[:1]] == [list(row) for row in written[:1]]
    assert made == written


@pytest.mark.sampled
@pytest.mark.parametrize("images", [1, 2, 5])
@pytest.mark.parametrize("bad", [(), (torch.nan,), (torch.nan, torch.inf)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_statistics_equal_those_of_numpy_over_all_images(images, bad, dtype):
    values = (torch.randn(images, 4, 5, 6, generator=torch.Generator().manual_seed(images)) * 3).to(dtype)
    values[:, 2] = 0
    for place, value in enumerate(bad):
        values[0, 1, 0, place] = value
    for channel, row in enumerate(found(values).statistics()):
        own = values[:, channel].float().double().numpy()
        finite = own[np.isfinite(own)]
        assert (row["channel"], row["images"], row["values"]) == (channel, images, own.size)
        assert (row["min"], row["max"]) == (finite.min(), finite.max())
        assert row["mean"] == pytest.approx(finite.mean(), abs=1e-6)
        assert row["std"] == pytest.approx(finite.std(), abs=1e-6)
        assert row["zeros"] == (own == 0).sum() / own.size
        assert row["nonfinite"] == own.size - finite.size
        assert row["dead"] == (channel == 2)


def test_vectors_tokens_and_clips_have_tables():
    vector = found(torch.randn(3, 7), nn.Linear(1, 7)).statistics()
    assert [row["values"] for row in vector] == [3] * 7
    clip = found(torch.randn(2, 3, 4, 5, 6), nn.Conv3d(1, 3, 1)).statistics()
    assert [row["layer"] for row in clip[::3]] == [f"a.t{time}" for time in range(4)]
    assert repr(clip).splitlines()[0].split()[0] == "layer"


def test_a_channel_without_a_finite_value_has_no_numbers():
    (row,) = found(torch.full((2, 1, 3, 3), torch.nan)).statistics()
    assert all(isnan(row[name]) for name in ("min", "max", "mean", "std"))
    assert row["nonfinite"] == 18
    assert "-" in repr(ChannelTable([row])).splitlines()[-1].split()


def test_a_value_that_is_no_map_is_refused():
    for values in (torch.randn(7), torch.randn(2, 3).to_sparse(), torch.empty(0, 3, 4, 4)):
        with pytest.raises(fmapviz.errors.RequestError, match="a is no map and no vector"):
            found(values).statistics()


@pytest.mark.parametrize("channels", [1, 20, 21, 300])
def test_a_table_prints_itself_in_few_lines(channels):
    lines = repr(found(torch.randn(1, channels, 4, 4)).statistics()).splitlines()
    assert len(lines) == 2 + (channels if channels <= 20 else 21)
    assert ("more channels" in "".join(lines)) == (channels > 20)
    assert len({len(line) for line in lines[1:] if "more" not in line}) == 1
    assert repr(ChannelTable())


@pytest.mark.thorough
@needs("pandas", "test")
def test_a_table_converts_to_a_frame_of_pandas():
    table = found(torch.randn(2, 3, 4, 4)).statistics()
    frame = table.to_frame()
    assert frame.to_dict("records") == table
    assert frame["channel"].tolist() == [0, 1, 2]


def test_without_pandas_a_frame_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(fmapviz.errors.RequestError, match="needs the package pandas"):
        ChannelTable().to_frame()
