"""What the page of a run lists of series: images at the steps of a training."""

from __future__ import annotations

import json
import os
import re
import shutil
from base64 import b64decode

import numpy as np
import pytest
import torch
from image_files import paint, prepared
from step_runs import OPTIONS, STEPS, add_step, net_at, page_of, write_step_run
from tiny_models import outputs_of

from fmapviz.core import checksummed_json
from fmapviz.formats.html.page import read_script
from fmapviz.run.loop import visualize
from fmapviz.store.aggregates import images
from fmapviz.store.unit import read_unit
from fmapviz.store.unit_key import key_of
from fmapviz.store.verify import verify

SERIES = ("cat.png", "dog.png")
LAYERS = ("first", "relu", "second")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two series of seven steps, and an ordinary image; only read."""
    return write_step_run(tmp_path_factory.mktemp("steps"), images=SERIES, views=["maps", "histogram"])


def change_record(unit, change):
    record = json.loads((unit / "unit.json").read_bytes())
    record.pop("sha256", None)
    change(record)
    (unit / "unit.json").write_bytes(checksummed_json.dumps({key: record[key] for key in record}))


@pytest.mark.thorough
def test_a_series_is_one_entry_whose_steps_name_units(run):
    page = page_of(run)
    assert [each["unit"] for each in page["units"]] == [*SERIES, "plain.png"]
    for entry in page["units"][:2]:
        assert [each["step"] for each in entry["steps"]] == list(STEPS)
        for each in entry["steps"]:
            key = key_of(read_unit(run / each["href"]))
            assert (key.series, key.step) == (entry["unit"], each["step"])
        assert entry["href"] == entry["steps"][0]["href"]
        assert not any("input" in each for each in entry["steps"])
    assert "steps" not in page["units"][2]
    assert [problem for each in verify(run) for problem in each.problems] == []


@pytest.mark.thorough
def test_curves_equal_the_statistics_of_the_layers(run):
    curves = read_script((run / "steps.js").read_bytes())
    for entry in page_of(run)["units"][:2]:
        found = curves[entry["href"]]
        assert found["steps"] == list(STEPS)
        assert [(each["name"], each["of"]) for each in found["layers"]] == [(name, "output") for name in LAYERS]
        source = read_unit(run / entry["href"])["unit"]["path"]
        returned = [outputs_of(net_at(step), prepared(source), LAYERS) for step in STEPS]
        for layer in found["layers"]:
            mean, dead = np.frombuffer(b64decode(layer["data"]), "<f4").reshape(2, -1)
            maps = [each[layer["name"]] for each in returned]
            torch.testing.assert_close(torch.tensor(mean), torch.stack([each.mean() for each in maps]), rtol=1e-4, atol=1e-6)
            assert dead.tolist() == [float((each.amax((1, 2)) == each.amin((1, 2))).sum()) for each in maps]
    assert dead.tolist() == [0.0] * len(STEPS)  # of the last layer


def test_a_run_without_series_has_no_steps(tmp_path):
    visualize(net_at(0), [paint(tmp_path / "a.png")], out=tmp_path / "out", **OPTIONS)
    run = tmp_path / "out/net"
    text = (run / "index.html").read_text("ascii")
    assert page_of(run)["units"] == [{"unit": "a.png", "href": "a.png/", "predictions": []}]
    assert "curves" not in page_of(run)
    assert not (run / "steps.js").exists()
    assert "step" not in re.sub(r"<(style|script)>.*?</\1>", "", text, flags=re.DOTALL).replace("data-step", "")


@pytest.mark.thorough
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "fields",
    [
        {"name": 5},
        {"name": "step_000010"},
        {"version": {"size": 1, "mtime_ns": 1, "step": "5"}},
        {"version": {"size": 1, "mtime_ns": 1, "step": True}},
        {"version": {"size": 1, "mtime_ns": 1, "step": -1}},
        {"version": {"size": 1, "mtime_ns": 1, "step": 2**53}},
        {"version": {"size": 1, "mtime_ns": 1, "step": 0.5}},
    ],
)
def test_forged_records_are_no_steps(run, tmp_path, fields):
    unit = shutil.copytree(run / "cat.png/step_000010", tmp_path / "unit")
    assert images.summarize(unit)[0].step.number == 10
    change_record(unit, lambda record: record["unit"].update(fields))
    assert all(listed.step is None for listed in images.summarize(unit))


@pytest.mark.thorough
def test_forged_numbers_are_left_out(run, tmp_path):
    unit = shutil.copytree(run / "cat.png/step_000010", tmp_path / "unit")

    def damage(record):
        record["layers"][0] |= {"mean": "1", "dead_channels": 7}
        record["layers"][1] = None

    change_record(unit, damage)
    first, second = images.summarize(unit)[0].step.layers
    assert (np.isnan(first.mean), first.dead) == (True, 0)
    assert second.layer == "second"
    change_record(unit, lambda record: record.update(layers="none"))
    assert images.summarize(unit)[0].step.layers == ()


@pytest.fixture
def few(tmp_path):
    """A run of three steps, which may be changed, and a function that lists its units again."""
    steps = STEPS[:3]
    run = write_step_run(tmp_path, steps=steps)

    def again(**options):
        plain = tmp_path / "in/plain.png"
        return visualize(net_at(steps[-1]), [plain], out=tmp_path / "out", **{**OPTIONS, **options}).directory

    return run, again


@pytest.mark.thorough
def test_a_step_that_was_drawn_twice_is_listed_once(few, tmp_path):
    run, again = few
    other = paint(tmp_path / "other/cat.png", 9)
    drawn = visualize(net_at(10), [other], out=tmp_path / "more", **OPTIONS).directory
    added = add_step(run, drawn / "cat.png", "cat.png", 10)
    assert added.name.startswith("step_000010~")
    os.utime(added / "unit.json", (2**31, 2**31))
    again()
    steps = page_of(run)["units"][0]["steps"]
    assert [each["step"] for each in steps] == list(STEPS[:3])
    assert steps[1] == {"step": 10, "href": f"cat.png/{added.name}/", "input": True}  # of another picture


@pytest.mark.thorough
def test_an_image_named_like_a_series_has_its_folder_in_the_name(few, tmp_path):
    run, _ = few
    visualize(net_at(STEPS[2]), [paint(tmp_path / "x/cat.png", 9)], out=tmp_path / "out", **OPTIONS)
    assert [each["unit"] for each in page_of(run)["units"]] == ["cat.png", "x/cat.png", "plain.png"]
