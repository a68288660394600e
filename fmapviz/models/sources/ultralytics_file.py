"""Read the networks that the trainer of ultralytics saves, `best.pt`, as data: no class that the file names is imported."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fmapviz.core.words import counted
from fmapviz.errors import WeightsError, first_few, quote
from fmapviz.models.weights.errors import no_state
from fmapviz.models.weights.read import read_content
from fmapviz.models.weights.stand_ins import Inert
from fmapviz.models.weights.state_dict import is_state, ordered_names

if TYPE_CHECKING:
    from pathlib import Path

# What the trainer saves beside tensors, under its names since the first release.
_SAVED = re.compile(
    r"""torch\.nn\.modules\..+ | torchvision\.transforms\..+
    | ultralytics\.nn\.(tasks|distill_model|modules)\b.+ | ultralytics\.(yolo\.)?utils\.(loss|tal)\..+
    | ultralytics\.(yolo\.)?utils\.IterableSimpleNamespace
    | numpy\.dtype | numpy\.dtypes\.\w+ | numpy\._?core\.multiarray\.scalar
    | pathlib\.(_local\.)?\w+Path | builtins\.getattr""",
    re.VERBOSE,
)
_LONGEST = 16384  # pixels, as of `InputOptions.size`
_NETWORKS = "ultralytics.nn.tasks."
_REPOSITORY = "models.yolo."  # of YOLOv5, whose files name its own modules
_DERIVED = {  # repositories made from it, by modules of theirs
    "YOLOv7": {"models.yolo.IDetect", "models.yolo.IAuxDetect", "models.common.SPPCSPC"},
    "YOLOv9": {"models.yolo.DDetect", "models.yolo.DualDDetect", "models.common.RepNCSPELAN4"},
}


@dataclass(frozen=True, slots=True, eq=False)
class SavedNetwork:
    """A network in a file.

    Attributes:
        network: Stands for it; its state has its modules and tensors.
        names: Of its classes, as they are saved.
        arguments: Of its training.
    """

    network: Inert
    names: object
    arguments: object

    @property
    def classifies(self) -> bool:
        """True if it has a class for the whole picture."""
        return self.network.spelling.endswith(".ClassificationModel")


def read_network(path: Path) -> SavedNetwork:
    """Read a network, averaged over the training where the file has such weights, as ultralytics prefers them.

    Raises:
        WeightsError: The file does not exist, is damaged, has none, or has objects that the trainer does not save.
    """
    content, _, names = read_content(path, single=True)
    saved = content if isinstance(content, dict) else {}
    network = next((each for each in (saved.get("ema"), saved.get("model"), content) if isinstance(each, Inert)), None)
    if network is not None and (own := next((own for own, parts in _DERIVED.items() if not parts.isdisjoint(names)), "")):
        raise WeightsError(
            f"{quote(path)} is of {own}'s repository, whose code ({network.spelling}) is not part of ultralytics",
            hint=f"git clone https://github.com/WongKinYiu/{own.lower()}, and in that folder name its network, such as "
            f"\"models.yolo:{network.spelling.rpartition('.')[2]}(cfg='FILE.yaml')\", with weights={quote(path)}",
        )
    if network is not None and network.spelling.startswith(_REPOSITORY):
        raise WeightsError(
            f"{quote(path)} is of YOLOv5's own repository, whose code ({network.spelling}) is not part of ultralytics",
            hint="git clone https://github.com/ultralytics/yolov5, and in that folder, for a network of size s, MODEL is "
            f"\"models.yolo:DetectionModel(cfg='models/yolov5s.yaml')\" with weights={quote(path)}",
        )
    if network is None and any(map(is_state, (content, *map(saved.get, ("model", "ema", "state_dict"))))):
        raise WeightsError(
            f"{quote(path)} has tensors, but no network",
            hint=f"name its architecture, such as ultralytics:yolo11n.yaml, and pass weights={quote(path)}",
        )
    if network is None or not network.spelling.startswith(_NETWORKS):
        raise (
            no_state(path, content, names)
            if network is None
            else WeightsError(
                f"{quote(path)} has no network of ultralytics, but a {network.spelling}",
                hint=f"{_installed(network.spelling)}name what builds it, such as my_net.py:build, and pass "
                f"weights={quote(path)}",
            )
        )
    if others := [name for name in names if not _SAVED.fullmatch(name)]:
        raise WeightsError(
            f"refused: {quote(path)} has objects that ultralytics does not save: {first_few(others)}",
            hint="none of their code was run; the tensors alone are read with "
            f"ultralytics:ARCHITECTURE.yaml and weights={quote(path)}",
        )
    arguments = network.state.get("args")
    arguments = arguments.state if isinstance(arguments, Inert) else arguments
    return SavedNetwork(network, network.state.get("names"), arguments)


def _installed(spelling: str) -> str:
    """Return the beginning of a hint: where the code of a class comes from, if Python does not find it; nothing is imported.

    Example:
        >>> _installed("yolov6.models.yolo.Model"), _installed("collections.Counter")
        ('get the code of yolov6, which is not installed, then ', '')
    """
    package = spelling.partition(".")[0]
    found = package in sys.modules or not package.isidentifier() or find_spec(package)
    return "" if found else f"get the code of {package}, which is not installed, then "


def read_names(names: object, *, outputs: int | None) -> tuple[tuple[str, ...], str]:
    """Return class names in the order of their indices, and a notice if they are not used.

    Args:
        names: As they are saved: a list, or a mapping from indices.
        outputs: Number of classes of the network; None if it is unknown.

    Example:
        >>> read_names({0: "cat", 1: "dog"}, outputs=2)
        (('cat', 'dog'), '')
        >>> read_names(["cat"], outputs=2)[1]
        '1 class name for 2 classes of the network: none is used, and classes are numbers'
    """
    found = ordered_names(names)
    if found and outputs not in {None, len(found)}:
        given = counted(len(found), "class name")
        return (), f"{given} for {outputs} classes of the network: none is used, and classes are numbers"
    if names and not found:
        return (), f"the class names are not used: no texts by consecutive indices from 0, but {quote(names)}"
    return found, ""


def read_size(arguments: object) -> tuple[tuple[int, int] | None, str]:
    """Return the size in the arguments of a training, and a notice if it is not used.

    Args:
        arguments: A mapping in which `imgsz` is a number of pixels, or height and width.

    Returns:
        Height and width; None if there are none, or none of 1 to 16384 pixels.

    Example:
        >>> read_size({"imgsz": [480, 640]}), read_size({})
        (((480, 640), ''), (None, ''))
        >>> read_size({"imgsz": "large"})[1]
        "the size in the arguments of the training is not used: imgsz = 'large'"
    """
    given = arguments.get("imgsz") if isinstance(arguments, dict) else None
    match [*given] if isinstance(given, list | tuple) else [given]:
        case [int(side)] if _is_side(side):
            return (side, side), ""
        case [int(height), int(width)] if _is_side(height) and _is_side(width):
            return (height, width), ""
    return None, "" if given is None else f"the size in the arguments of the training is not used: imgsz = {quote(given)}"


def _is_side(number: int) -> bool:
    return number is not True and 0 < number <= _LONGEST
