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

# Each way of `ways.py` of drawing some pictures; they replace functions of the package by name.
WAYS = """
import inspect, sys, torch, fmapviz, ways
from pathlib import Path
folder, out = map(Path, sys.argv[1:])
model = fmapviz.load_model("shapesnet")
measured = [way for way in vars(ways).values() if inspect.isfunction(way) and way.__module__ == "ways"]
for way in measured:
    if list(inspect.signature(way).parameters)[-1].endswith("out") and "attention" not in way.__name__:
        with torch.no_grad():
            way(model, sorted(folder.glob("*.jpg"))[:2], out / way.__name__)
        print(way.__name__)
"""

pytestmark = needs("matplotlib", "oracles")


@pytest.mark.thorough
def test_each_measured_way_draws(samples, tmp_path):
    command = [sys.executable, "-c", WAYS, samples / "shapes", tmp_path]
    done = subprocess.run(command, check=True, cwd=BENCHMARKS, capture_output=True, text=True)
    names = done.stdout.split()
    assert {"tutorial", "forward_alone", "to_tensorboard", "unranked", "unranked_shard"} <= {*names}
    assert {path.name for path in tmp_path.iterdir()} >= {*names} - {"forward_alone", "tutorial"}


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


@pytest.mark.thorough
def test_other_software_draws_the_same_values_and_what_is_missing_is_reported(fmapviz, tmp_path):
    result = fmapviz("-c", RUN, BENCHMARKS / "peers.py", "--quick", "--only", "over the image", "--out", tmp_path)
    assert result.returncode == 0, result.stderr.decode()
    figures = json.loads((tmp_path / "peers.json").read_text())
    rollout, cams = figures["jobs"]
    assert cams["agreement"].keys() == {"grad-cam", "captum", "torchcam"}
    assert min(cams["agreement"].values()) > 0.999
    assert all(len(rounds) == 1 for rounds in cams["seconds"].values())
    lines = [line.strip("| ").split(" | ") for line in result.stdout.decode().splitlines() if line.startswith("| ")]
    titles, _, first, second = lines
    number = figures["versions"]["FeatLens"]
    assert titles[1] == f"FeatLens {number or '(not installed)'}"
    assert (first[2] == "not measured") == (number is None) == ("FeatLens" not in rollout["seconds"])
    assert first[3:] == ["—"] * 4
    assert second[2:4] == ["—"] * 2
    assert all(" to " in cell for cell in second[4:])
