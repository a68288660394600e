"""A run of an earlier version is continued: its finished images are skipped, and its files are valid.

Each `run_VERSION` here was made by that version: `fmapviz shapesnet star.jpg --to stats --layers features.0.conv`.
"""

import json
import shutil
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import fmapviz as package
from fmapviz.config import RunConfig
from fmapviz.core import checksummed_json
from fmapviz.run.estimate import estimate
from fmapviz.store.run import open_run
from fmapviz.store.verify import verify

STORED = sorted(Path(__file__).parent.glob("run_*"))
STAR = Path(__file__).parents[2] / "sample_images" / "shapes" / "star.jpg"
OPTIONS = ("--to", "stats", "--layers", "features.0.conv", "--json")


@pytest.fixture(params=STORED, ids=lambda stored: stored.name)
def run(request, tmp_path):
    """A run of one image by an earlier version."""
    run = shutil.copytree(request.param, tmp_path / "out" / "shapesnet")
    assert json.loads((run / "run.json").read_bytes())["versions"]["fmapviz"] != package.__version__
    return run


def test_it_is_complete_and_unchanged(run, fmapviz):
    result = fmapviz("verify", run)
    assert result.returncode == 0, result.stderr


def test_it_is_continued_under_its_automatic_name(run, fmapviz, tmp_path, picture):
    star = Path(shutil.copy(STAR, tmp_path))
    record = json.loads((run / "star.jpg/unit.json").read_bytes())
    record["source"] |= {"path": str(star), "mtime_ns": star.stat().st_mtime_ns}
    (run / "star.jpg/unit.json").write_bytes(checksummed_json.dumps(record))
    before = {name: (run / name).read_bytes() for name in ("run.json", "star.jpg/unit.json", "star.jpg/stats.safetensors")}

    result = fmapviz("shapesnet", star, picture, *OPTIONS, "--out", run.parent)

    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout.splitlines()[-1])
    assert (summary["found"], summary["done"], summary["skipped"], summary["failed"]) == (2, 1, 1, 0)
    assert [path.name for path in run.parent.iterdir()] == ["shapesnet"]
    assert {name: (run / name).read_bytes() for name in before} == before
    assert fmapviz("verify", run).returncode == 0


@pytest.mark.parametrize(
    ("options", "fingerprint"),
    [
        ({"views": "gradcam", "targets": "Star,TOP2"}, "e25efca088ddd6f1"),
        ({"views": "maps", "targets": "star"}, "e14cbe255f737a9f"),
        ({"views": "mean", "style": package.Style(columns=4)}, "b33d9d740af01d05"),
    ],
)
def test_a_run_that_recorded_options_as_they_were_typed_is_continued(tmp_path, options, fingerprint):
    """Versions up to 0.2.0 did, also for views that do not take them; the fingerprints are those of 0.2.0."""
    begun = []

    def draw(name, *, out=tmp_path / "out"):
        return package.visualize("shapesnet", STAR, out=out, to="png", name=name, on_event=begun.append, **options)

    draw(None, out=tmp_path / "elsewhere")
    info = begun[0].info.as_typed
    assert info.fingerprint == fingerprint
    run = open_run(tmp_path / "out", info)
    first, again, named = draw(None), draw(None), draw("shapesnet")
    assert [(each.directory, each.done) for each in (first, again, named)] == [(run, 1), (run, 0), (run, 0)]
    assert estimate(RunConfig("shapesnet", STAR, out=tmp_path / "out", to="png", **options)).to_draw == 0
    settings = json.loads((run / "run.json").read_bytes())["settings"]
    assert settings["targets"] == [options["targets"]] if "targets" in options else settings["style"]["columns"] == 4
    assert not any(unit.problems for unit in verify(run))


def test_a_transformer_that_was_drawn_without_its_blocks_is_drawn_on_as_it_was(tmp_path):
    def build():
        torch.manual_seed(0)
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        return nn.Sequential(nn.Conv2d(3, 8, 32, 32), nn.Flatten(2), nn.Linear(49, 8), encoder)

    run = package.visualize(build(), STAR, to="stats", types="Conv2d", out=tmp_path).directory
    record = json.loads((run / "run.json").read_bytes())
    record["request"]["types"] = []  # the default types of earlier versions
    (run / "run.json").write_text(json.dumps(record))
    package.top_images(run, model=build())
    assert json.loads((run / "run.json").read_bytes())["settings"]["types"] == ["Conv2d"]


def test_a_run_with_heat_maps_is_continued_in_its_look(tmp_path):
    """Versions up to 0.2.0 drew the input in colour below a heat map; the fingerprint is that of 0.2.0."""
    begun = []

    def draw(out, **looks):
        style = package.Style(**looks)
        run = package.visualize(
            "shapesnet", STAR, out=tmp_path / out, to="png", views="gradcam", style=style, on_event=begun.append
        ).directory
        return run, (run / "star.jpg" / "00_features.top1.gradcam.png").read_bytes()

    _, gray = draw("new")
    former = begun[0].info.as_typed
    assert former.fingerprint == "f4d782ae3f753d38"
    _, colour = draw("new", gray_input=False)
    assert [path.name for path in sorted((tmp_path / "new").iterdir())] == ["shapesnet", "shapesnet-2"]
    run = open_run(tmp_path / "old", former)
    continued = draw("old")
    assert continued[0] == run
    pictures = [np.asarray(Image.open(BytesIO(each))) for each in (gray, colour, continued[1])]
    assert np.array_equal(pictures[1], pictures[2])
    assert not np.array_equal(pictures[0], pictures[1])
