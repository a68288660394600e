"""`fmapviz diff` on the command line."""

import json
from pathlib import Path

import pytest
import torch

from fmapviz import load_model
from fmapviz.cli.options import as_typed

ROOT = Path(__file__).parents[2]
SHAPES = [str(ROOT / "sample_images" / "shapes" / f"{name}.jpg") for name in ("circle", "star")]


@pytest.fixture
def tuned(tmp_path):
    state = load_model("shapesnet").module.state_dict()
    state["features.3.conv.weight"] = 1.5 * state["features.3.conv.weight"]
    torch.save(state, tmp_path / "tuned.pth")
    return tmp_path / "tuned.pth"


@pytest.mark.thorough
def test_the_first_layer_that_differs_much_is_named_on_standard_error(fmapviz, tuned, tmp_path):
    result = fmapviz("diff", "shapesnet", *SHAPES, "--against", str(tuned), "--to", "png", "--out", str(tmp_path / "runs"))
    assert result.returncode == 0
    assert "notice: 'features.3.conv' is the first layer below 20 dB" in result.stderr.decode()
    assert result.stdout.decode().splitlines() == [str(tmp_path / "runs" / "shapesnet-diff")]


@pytest.mark.thorough
def test_the_summary_has_a_table_of_the_most_changed_layers(fmapviz, tuned, tmp_path):
    words = ("diff", "shapesnet", *SHAPES, "--against", str(tuned), "--to", "numbers", "--out", str(tmp_path / "runs"))
    lines = fmapviz(*words).stderr.decode().splitlines()
    begin = lines.index("layers that change most")
    table = (tmp_path / "runs" / "shapesnet-diff" / "layers.csv").read_text().splitlines()[1:]
    ranked = [line.split(",")[2:4] for line in table if line.split(",")[1]]
    shown = [line.split()[:2] for line in lines[begin + 2 : begin + 2 + len(ranked)]]
    assert [name for name, _ in shown] == [name for name, _ in ranked]
    assert [float(value) for _, value in shown] == pytest.approx([float(value) for _, value in ranked], rel=1e-2)
    assert lines[begin + 2 + len(ranked)].startswith("relative L2: norm of B - A over that of A")
    assert lines[-1] == "no difference: features.0.conv, features.1.conv, features.2.conv"
    summary = json.loads(fmapviz(*words, "--json").stdout.decode().splitlines()[-1])
    assert [each["layer"] for each in summary["layers"] if each["rank"]] == [name for name, _ in ranked]


@pytest.mark.thorough
def test_json_has_the_differences(fmapviz, tuned, tmp_path):
    result = fmapviz(
        "diff", "shapesnet", *SHAPES, "--against", str(tuned), "--to", "numbers", "--out", str(tmp_path), "--json"
    )
    summary = json.loads(result.stdout.decode().splitlines()[-1])
    assert (summary["event"], summary["exit_code"], summary["done"]) == ("summary", 0, 2)
    (step,) = summary["differences"]
    assert [layer["same"] for layer in step["layers"]][:4] == [True, True, True, False]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (["shapesnet", SHAPES[0]], "the second network or run of the comparison is missing", "--against b.pth"),
        (["shapesnet"], "missing argument", "see `fmapviz diff --help`"),
        (["shapesnet", SHAPES[0], "--against", "dtype:float16", "--norm", "run"], "no range over all images", "--norm"),
        (["shapesnet", SHAPES[0], "--agains", "x"], "no such option", "did you mean --against?"),
    ],
)
def test_a_wrong_request_is_one_error_with_a_hint(fmapviz, tmp_path, words, error, hint):
    result = fmapviz("diff", *words, "--out", str(tmp_path / "runs"))
    assert result.returncode == 2
    assert f"error: {error}" in result.stderr.decode()
    assert hint in result.stderr.decode()
    assert not (tmp_path / "runs").exists()


def test_hints_name_only_options_of_the_command():
    assert as_typed("against='b.pth' or reference='first'") == "--against b.pth or --reference first"
