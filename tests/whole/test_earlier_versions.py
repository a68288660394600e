"""A run of an earlier version is continued: its finished images are skipped, and its files are valid.

Each `run_VERSION` here was made by that version: `fmapviz shapesnet star.jpg --to stats --layers features.0.conv`.
"""

import json
import shutil
from pathlib import Path

import pytest

import fmapviz as package
from fmapviz.core import checksummed_json

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
