"""Every command and every program in the README does what it says."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
import zipfile
from pathlib import Path

import pytest
from trees import difference, snapshot
from waiting import PATIENCE

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SHELL = "\n".join(re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)).splitlines()
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)

# Commands that this file does not run as they stand, with who does.
ELSEWHERE = {
    "fmapviz alexnet photo.jpg --open": "needs weights from the network; test_open_prints_where_the_report_is",
    "make test": "this is it",
    "make demo": "test_make_demo_prints_where_to_look",
    "pip install .": "test_the_wheel_holds_what_the_package_needs",
    "tensorboard --logdir runs/": "test_tensorboard_serves_what_was_written",
    "fmapviz --install-completion": "test_completion_can_be_installed",
    "fmapviz shapesnet sample_images --shard 4 --to tar,stats --name ray --engine ray --workers 2": "test_ray",
}
RUN = [line for line in SHELL if line.strip() and line not in ELSEWHERE]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory, warm):
    """A directory with the sample pictures, as a reader of the README has it, and the command, started quickly."""
    place = tmp_path_factory.mktemp("readme")
    command = place / ".bin" / "fmapviz"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\nexec '{sys.executable}' -S '{ROOT}/tests/support/warm.py' '{warm}' run \"$@\"\n")
    command.chmod(0o755)
    shutil.copytree(ROOT / "sample_images", place / "sample_images", ignore=shutil.ignore_patterns("*.py", "painting"))
    return place


def shell(command, place, **environment):
    path = os.pathsep.join([str(place / ".bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=place, env={**os.environ, "PATH": path, **environment}, capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip


def test_the_readme_is_read():
    assert len(RUN) >= 12
    assert not set(ELSEWHERE) - set(SHELL)


def test_every_command_of_the_readme(workplace, bucket):
    for path in (workplace / "sample_images").rglob("*.[jp][pn]g"):
        bucket.put(f"in/{path.relative_to(workplace / 'sample_images')}", path.read_bytes())
    for command in RUN:
        result = shell(command, workplace)
        assert result.returncode == 0, (command, result.stderr)
    runs = workplace / "runs"
    units = {path.parent.relative_to(runs / "squeezenet1_1").as_posix() for path in runs.rglob("squeezenet1_1/**/unit.json")}
    pictures = {path for path in (workplace / "sample_images").rglob("*") if path.suffix in {".jpg", ".png"}}
    assert units == {path.relative_to(workplace / "sample_images").as_posix() for path in pictures}
    assert {path.parent.name for path in runs.rglob("listed/*/unit.json")} == {path.name for path in pictures}
    assert (runs / "shapesnet" / "star.jpg" / "00_features.0.conv.maps.png").exists()
    star = json.loads((runs / "shapesnet-2" / "star.jpg" / "unit.json").read_bytes())
    assert [layer["type"] for layer in star["layers"]] == ["Conv2d", "BatchNorm2d", "ReLU"]
    assert len(star["predictions"]) == 5
    assert (runs / "both" / "shapes.png" / "00_features.0.maps.png").exists()
    assert len(list((runs / "shards").glob("shard-*/pictures.tar"))) == 3
    assert difference(snapshot(runs / "parts"), snapshot(runs / "shards")) == []
    assert (workplace / "star.png").read_bytes() == (workplace / "star.jpg.00_features.0.conv.maps.png").read_bytes()
    assert len([key for key in bucket.keys("runs/") if key.endswith("/pictures.tar")]) == 3
    assert (workplace / "star.jpg.00_features.0.conv.maps.png").read_bytes().startswith(b"\x89PNG")
    assert (runs / "both" / "shapes.png" / "events.out.tfevents.fmapviz").exists()


def test_every_program_of_the_readme(workplace, fmapviz):
    printed = ""
    for program in PYTHON:
        strict = f"import warnings\nwarnings.simplefilter('error')\n{program}"
        result = fmapviz("-c", strict, cwd=workplace)
        assert result.returncode == 0, result.stderr.decode()
        printed += result.stdout.decode()
    assert printed.count("torch.Size([2, 512, 7, 7])") == 2
    assert "12 images," in printed
    assert "4 features.10 (256, 13, 13)" in printed
    assert "layer4 (281, 207) torch.Size([2])" in printed
    assert "torch.Size([2, 7, 7]) torch.Size([2, 224, 224])" in printed


def test_tensorboard_serves_what_was_written(workplace):
    shell("fmapviz alexnet sample_images/still_life.jpg --weights random --out runs/", workplace)
    server = subprocess.Popen(
        [Path(sys.executable).parent / "tensorboard", "--logdir", "runs/", "--port", "0", "--host", "localhost"],
        cwd=workplace, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        address = next(match[0] for line in server.stderr if (match := re.search(r"http://localhost:\d+/", line)))
        tags = ""
        deadline = time.monotonic() + PATIENCE
        while "features.10" not in tags and time.monotonic() < deadline:
            with urllib.request.urlopen(f"{address}data/plugin/images/tags") as answer:
                tags = answer.read().decode()
            time.sleep(0.5)
        assert '"alexnet/still_life.jpg"' in tags
        assert '"maps/04 features.10"' in tags
    finally:
        server.terminate()
        server.wait()
        server.stderr.close()


def test_the_array_of_jobs_divides_the_work(workplace):
    (script,) = re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
    script = script.replace("resnet50 /data/images --shard 1000", "shapesnet sample_images --shard 5")
    for number in (1, 2):
        result = shell(script, workplace, SLURM_ARRAY_TASK_ID=str(number), SLURM_ARRAY_TASK_COUNT="2")
        assert result.returncode == 0, result.stderr
    summaries = [json.loads((workplace / f"part-{number}.json").read_bytes().splitlines()[-1]) for number in (1, 2)]
    assert [summary["done"] for summary in summaries] == [7, 5]


def test_make_demo_prints_where_to_look(tmp_path):
    command = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "/fmapviz shapesnet" in line)
    command = command.strip().replace("$(BIN)/", "").replace("--out runs", f"--out {tmp_path}/runs")
    result = shell(command, ROOT)
    assert result.returncode == 0, result.stderr
    assert f"tensorboard --logdir {tmp_path}/runs" in result.stdout
    assert "star.jpg: star 9" in result.stderr
    assert len(list((tmp_path / "runs" / "shapesnet" / "star.jpg").glob("*.maps.png"))) == 8


def test_completion_can_be_installed(tmp_path):
    # `&& true` keeps bash alive meanwhile: the command looks for the shell that it was started from.
    result = shell("fmapviz --install-completion && true", tmp_path, HOME=str(tmp_path), SHELL="/bin/bash")
    assert result.returncode == 0, result.stderr
    assert "fmapviz" in (tmp_path / ".bashrc").read_text()


def test_the_wheel_holds_what_the_package_needs(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        held = set(wheel.namelist())
    kept = {
        path
        for path in (ROOT / "fmapviz").rglob("*")
        if path.suffix in {".py", ".txt", ".safetensors"} or path.name == "py.typed"
    }
    assert {path.relative_to(ROOT).as_posix() for path in kept} <= held
    assert {"fmapviz/py.typed", "fmapviz/models/shapesnet/shapesnet.safetensors"} <= held
    assert not [name for name in held if name.startswith(("tests/", "sample_images/"))]


def test_pictures_and_links_of_the_readme_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target
