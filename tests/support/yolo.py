"""Let ultralytics save networks: untrained ones at once, and in a process of its own after two steps of a training."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

TASKS = {"detect": "", "segment": "-seg", "pose": "-pose", "classify": "-cls", "obb": "-obb"}
_LABELS = {
    "detect": "0 0.5 0.5 0.4 0.4",
    "pose": "0 0.5 0.5 0.4 0.4 0.3 0.3 2 0.5 0.5 2",
    "segment": "1 0.2 0.2 0.8 0.2 0.8 0.8 0.2 0.8",
    "obb": "1 0.2 0.2 0.8 0.2 0.8 0.8 0.2 0.8",
}
_TRAIN = """
import sys
from ultralytics import YOLO
name, data, out = sys.argv[1:]
quiet = dict(workers=0, device="cpu", plots=False, verbose=False, amp=False, val=False)
YOLO(name).train(data=data, epochs=1, imgsz=64, batch=1, project=out, name="run", **quiet)
"""
CLASSES = ("person", "dog")
TWO_SCALES = """
nc: 3
backbone:
  - [-1, 1, Conv, [8, 3, 2]]
  - [-1, 1, Conv, [16, 3, 2]]
  - [-1, 1, C2f, [16, True]]
  - [-1, 1, Conv, [24, 3, 2]]
head:
  - [[2, 3], 1, Detect, [nc]]
"""  # a small network without attention, whose head reads model.2 and model.3


def train(task, place, family="yolo11n"):
    """Return `best.pt` of a training with two images, of 64 x 64 pixels."""
    data = _dataset(task, place / "data")
    offline = {"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "YOLO_CONFIG_DIR": str(place)}
    command = [sys.executable, "-c", _TRAIN, f"{family}{TASKS[task]}.yaml", data, place / "out"]
    done = subprocess.run(command, env=os.environ | offline, cwd=place, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return place / "out/run/weights/best.pt"


def _dataset(task, root):
    rng = np.random.default_rng(0)

    def paint(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(path)

    if task == "classify":
        for split in ("train", "val"):
            for name in CLASSES:
                paint(root / split / name / "0.png")
        return root
    for number in range(2):
        paint(root / f"images/{number}.png")
        label = root / f"labels/{number}.txt"
        label.parent.mkdir(exist_ok=True)
        label.write_text(_LABELS[task])
    names = "".join(f"\n  {index}: {name}" for index, name in enumerate(CLASSES))
    points = "\nkpt_shape: [2, 3]" if task == "pose" else ""
    described = root / "data.yaml"
    described.write_text(f"path: {root}\ntrain: images\nval: images\nnames:{names}{points}\n")
    return described


def tensors_in(output):
    """Yield the tensors of nested lists, tuples and dicts, in their order."""
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, (list, tuple)):
        for each in output:
            yield from tensors_in(each)
    else:
        yield output


def saved(place, name="yolo11n.yaml", change=None, **options):
    """Return a file of an untrained network, as `YOLO.save` writes it, with its content changed by a function."""
    path = Path(place) / "best.pt"
    if change is confident:
        path.write_bytes(_confident(name, **options))
        return path
    path.write_bytes(_saved(name, **options))
    if change:
        _change(path, change)
    return path


def _change(path, change):
    import torch

    from fmapviz.models.sources.ultralytics import unpatched

    with unpatched():
        content = torch.load(path, weights_only=False)
        torch.save(change(content) or content, path)


@cache
def _confident(name, **options):
    with TemporaryDirectory() as place:
        path = Path(place, "best.pt")
        path.write_bytes(_saved(name, **options))
        _change(path, confident)
        return path.read_bytes()


def confident(content):
    """Let a network find boxes without a training: normalise its layers for noise, and raise the scores of all classes."""
    import torch

    network = content["model"].float().train()
    norms = [module for module in network.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for module in norms:
        module.momentum = 1.0
    head = network.model[-1]
    branches = [head.cv3, *([head.one2one_cv3] if hasattr(head, "one2one_cv3") else [])]
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        batch = torch.rand(48, 3, 96, 96)
        network(batch)
        for module in norms:
            module.momentum = 0.03
        network.half().float().eval()  # as the file will be read
        for last in (scale[-1] for branch in branches for scale in branch):
            seen = []
            with last.register_forward_hook(lambda _module, _given, logits, seen=seen: seen.append(logits)):
                network(batch)
            last.weight.data /= seen[0].std()
            last.bias.data = -seen[0].mean((0, 2, 3)) / seen[0].std() - 1 + last.bias.data / seen[0].std()
    network.half()


@cache
def _saved(name, **options):
    import torch

    from fmapviz.models.sources.ultralytics import ultralytics, unpatched

    with unpatched(), TemporaryDirectory() as place, torch.random.fork_rng():
        torch.manual_seed(0)
        facade = ultralytics.RTDETR if name.startswith("rtdetr") else ultralytics.YOLO
        network = facade(name)
        if options:
            network.model = type(network.model)(network.model.yaml, verbose=False, **options)
        if options.get("nc") == len(CLASSES):
            network.model.names = dict(enumerate(CLASSES))
        network.model.args = {"imgsz": 96}
        network.save(f"{place}/best.pt")
        return Path(place, "best.pt").read_bytes()
