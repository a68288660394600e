"""The architectures of ultralytics, with random weights and files made here."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from extras import needs
from sources import check_protocol

from fmapviz.errors import RequestError
from fmapviz.models.load import load_model, model_names, outline_model

pytestmark = needs("ultralytics", "ultralytics")


def test_an_architecture_has_random_weights_or_those_of_a_state_dict(tmp_path):
    first, again, other = (
        load_model("ultralytics:yolo11n.yaml", weights=each) for each in ("default", "random", "random:1")
    )
    weights = [each.module.model[0].conv.weight for each in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert any("random weights" in notice for notice in first.notices)
    torch.save(other.module.state_dict(), tmp_path / "own.pth")
    filled = load_model("ultralytics:yolo11n.yaml", weights=str(tmp_path / "own.pth"))
    assert torch.equal(filled.module.model[0].conv.weight, weights[2])
    with torch.no_grad():
        batch = torch.rand(1, 3, 64, 64)
        assert torch.equal(filled.module.eval()(batch)[0], other.module.eval()(batch)[0])


@pytest.mark.thorough
def test_sizes_and_arguments_reach_the_package():
    small, large = (outline_model(f"ultralytics:yolo11{size}.yaml").module for size in "nm")
    assert sum(each.numel() for each in small.parameters()) < sum(each.numel() for each in large.parameters())
    assert load_model("ultralytics:yolo11n.yaml(nc=5)").module.model[-1].nc == 5
    assert load_model("ultralytics:yolov8n-cls.yaml").preparation.description.startswith("crop to 224x224")
    with pytest.raises(RequestError, match="ultralytics cannot build"):
        load_model("ultralytics:yolo11n.yaml(depth=5)")


@pytest.mark.thorough
def test_a_file_of_the_same_name_in_the_working_directory_is_not_read(tmp_path, monkeypatch):
    """ultralytics evaluates what such a file names as activation."""
    monkeypatch.chdir(tmp_path)
    activation = f"open({str(tmp_path / 'mark')!r}, 'w')"
    for name in ("yolo11n-cls.yaml", "yolo11-cls.yaml"):
        (tmp_path / name).write_text(f'nc: 2\nactivation: "{activation}"\nbackbone: [[-1, 1, Conv, [8, 3, 2]]]\nhead: []\n')
    network = outline_model("ultralytics:yolo11n-cls.yaml").module
    assert len(network.model) > 5
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("yolo11n.pt", "is a pickled network, whose code would be run", "state_dict()"),
        ("yolo11n.yml", "no such architecture", "'yolo11n.yaml'"),
        ("../own.yaml", "no such architecture", ""),
    ],
)
def test_refused_names_have_a_hint(name, message, hint):
    with pytest.raises(RequestError, match=message) as caught:
        load_model(f"ultralytics:{name}")
    assert hint in caught.value.hint


def test_names_equal_those_of_the_package():
    assert {"ultralytics:yolo11n.yaml", "ultralytics:yolov8n-seg.yaml"} <= set(model_names("ultralytics:*"))


@pytest.mark.thorough
def test_other_packages_are_not_affected():
    """Importing ultralytics changes Pillow, PyTorch and the environment; the source puts all back."""
    program = (
        "import os, torch; from PIL import Image; import fmapviz; import fmapviz.models.load; "
        "state = lambda: (Image.open, torch.load, torch.save, torch.backends.nnpack.set_flags(True), "
        "{name: value for name, value in os.environ.items() if not name.startswith('YOLO_')}); "
        "state(); before = state(); fmapviz.load_model('ultralytics:yolo11n.yaml'); print(before == state())"
    )
    shown = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "True"


def test_the_source_has_the_functions_of_the_protocol():
    check_protocol("ultralytics")
