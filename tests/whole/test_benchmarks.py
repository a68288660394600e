from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from extras import needs
from PIL import Image

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
RUN = """
import os, runpy, sys
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""

pytestmark = needs("matplotlib", "oracles")


@pytest.mark.thorough
def test_a_section_of_the_benchmark_runs_and_saves_its_figures(fmapviz, tmp_path):
    result = fmapviz("-c", RUN, BENCHMARKS / "run.py", "--quick", "--only", "early", "--out", tmp_path)
    assert result.returncode == 0, result.stderr.decode()
    assert "resnet50 --layers 'layer1.*'" in result.stdout.decode()
    figures = json.loads((tmp_path / "benchmark.json").read_text())
    assert {"date", "machine", "class", "versions", "fmapviz"} == figures["machine"].keys()
    (ratio,) = figures["ratios"]
    assert 0 < ratio["median"] < 1
    assert min(ratio["rounds"]) <= ratio["median"] <= max(ratio["rounds"])


@pytest.mark.thorough
def test_the_plot_shows_every_network_that_was_measured(tmp_path):
    code = "import json, sys; from plot import draw_plot; draw_plot(json.loads(sys.argv[1]), sys.argv[2])"
    ratios = [
        {"what": f"{name}: time / forward passes alone", "note": "2000, 20.0, 30, 31.5 ms"} for name in ("alexnet", "x")
    ]
    heights = []
    for count in (1, 2):
        path = tmp_path / f"{count}.png"
        command = [sys.executable, "-c", code, json.dumps({"ratios": ratios[:count]}), path]
        subprocess.run(command, check=True, cwd=BENCHMARKS)
        with Image.open(path) as plot:
            heights.append(plot.height)
    assert heights[0] < heights[1]
