"""Read the networks that the trainer of ultralytics saves, `best.pt`, as data: no class that the file names is imported."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmapviz.errors import WeightsError, first_few, quote
from fmapviz.models.weights.errors import no_state
from fmapviz.models.weights.read import read_content
from fmapviz.models.weights.stand_ins import Inert
from fmapviz.models.weights.state_dict import ordered_names

if TYPE_CHECKING:
    from pathlib import Path

# What the trainer saves beside tensors, under its names since the first release.
_SAVED = re.compile(
    r"""torch\.nn\.modules\..+ | torchvision\.transforms\..+
    | ultralytics\.nn\.(tasks|distill_model|modules)\b.+ | ultralytics\.utils\.(loss|tal)\..+
    | ultralytics\.(yolo\.)?utils\.IterableSimpleNamespace
    | numpy\.dtype | numpy\.dtypes\.\w+ | numpy\._?core\.multiarray\.scalar
    | pathlib\.(_local\.)?\w+Path | builtins\.getattr""",
    re.VERBOSE,
)
_NETWORKS = "ultralytics.nn.tasks."
_REPOSITORY = "models.yolo."  # of YOLOv5, whose files name its own modules


@dataclass(frozen=True, slots=True, eq=False)
class SavedNetwork:
    """A network in a file.

    Attributes:
        network: Stands for it; its state has its modules and tensors.
        classes: Their names; empty if there are none.
        size: Height and width of the images that it was trained with; None if unknown.
    """

    network: Inert
    classes: tuple[str, ...]
    size: tuple[int, int] | None

    @property
    def classifies(self) -> bool:
        """True if it has a class for the whole picture."""
        return self.network.spelling.endswith(".ClassificationModel")


def read_network(path: Path) -> SavedNetwork:
    """Read a network, averaged over the training where the file has such weights, as ultralytics prefers them.

    Raises:
        WeightsError: The file does not exist, is damaged, has none, or has objects that the trainer does not save.
    """
    content, _, names = read_content(path)
    saved = content if isinstance(content, dict) else {}
    network = next((each for each in (saved.get("ema"), saved.get("model"), content) if isinstance(each, Inert)), None)
    if network is not None and network.spelling.startswith(_REPOSITORY):
        raise WeightsError(
            f"{quote(path)} is of YOLOv5's own repository, whose code ({network.spelling}) is not part of ultralytics",
            hint="git clone https://github.com/ultralytics/yolov5, and in that folder, for a network of size s, MODEL is "
            f"\"models.yolo:DetectionModel(cfg='models/yolov5s.yaml')\" with weights={quote(path)}",
        )
    if network is None or not network.spelling.startswith(_NETWORKS):
        raise (
            no_state(path, content, names)
            if network is None
            else WeightsError(
                f"{quote(path)} has no network of ultralytics, but a {network.spelling}",
                hint=f"name its model, such as my_net.py:build, and pass weights={quote(path)}",
            )
        )
    if others := [name for name in names if not _SAVED.fullmatch(name)]:
        raise WeightsError(
            f"refused: {quote(path)} has objects that ultralytics does not save: {first_few(others)}",
            hint="none of their code was run; the tensors alone are read with "
            f"ultralytics:ARCHITECTURE.yaml and weights={quote(path)}",
        )
    return SavedNetwork(network, ordered_names(network.state.get("names")), _size_in(network.state.get("args")))


def _size_in(arguments: object) -> tuple[int, int] | None:
    """Return the size in the arguments of a training: a number, or height and width."""
    known = arguments.state if isinstance(arguments, Inert) else arguments if isinstance(arguments, dict) else {}
    match known.get("imgsz"):
        case int(side) | [int(side)] if side > 0:
            return side, side
        case [int(height), int(width)] if height > 0 < width:
            return height, width
    return None
