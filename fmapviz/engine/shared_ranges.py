"""Find out what all images of a run have in common, before the first is drawn, and remember it with the run."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fmapviz.core import checksummed_json, files
from fmapviz.core.checksummed_json import FORMAT
from fmapviz.core.files import stage
from fmapviz.core.layout import SURVEY_FILE
from fmapviz.render.grid import Shared
from fmapviz.render.pca import Basis, Covariance
from fmapviz.runs.run_files import check_replaceable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from fmapviz.core.types import ImageFile, ImageResult

    Key = tuple[str, str, str]


class Surveyor:
    """Takes note of what was found out of each image; its methods may be called in several threads at once."""

    def __init__(self) -> None:
        self.images = 0
        self.paths: set[str] = set()
        self._lock = Lock()
        self._ranges: dict[Key, tuple[float, float]] = {}
        self._covariances: dict[Key, Covariance] = {}

    def note(self, file: ImageFile, drawn: ImageResult) -> None:
        """Take note of an image."""
        with self._lock:
            self.images += 1
            self.paths.add(file.path)
            for layer in drawn.layers:
                if layer.described and layer.statistics:
                    key = (layer.of, layer.layer, layer.target.label if layer.target else "")
                    self._widen(key, layer.statistics.minimum, layer.statistics.maximum)
                    if layer.maps is not None:
                        self._covariances.setdefault(key, Covariance()).add(torch.from_numpy(layer.maps))
            for layer, view, heat in drawn.heat_maps:
                finite = heat.raw[np.isfinite(heat.raw)]
                if heat.limits is not None and finite.size:
                    self._widen((view, layer.layer, ""), float(finite.min()), float(finite.max()))

    def _widen(self, key: Key, low: float | None, high: float | None) -> None:
        if low is not None and high is not None:
            before = self._ranges.get(key, (low, high))
            self._ranges[key] = min(before[0], low), max(before[1], high)

    def finish(self) -> dict[Key, Shared]:
        """Give what the images have in common of each feature map."""
        bases = {key: covariance.basis() for key, covariance in self._covariances.items()}
        return {key: Shared(low, high, bases.get(key)) for key, (low, high) in sorted(self._ranges.items())}


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """What a run remembers.

    Attributes:
        images: Of how many images.
        shared: What they have in common of each feature map.
    """

    images: int
    shared: Mapping[Key, Shared]


def save(run: Path, fingerprint: str, survey: Survey, *, sync: bool = False) -> Survey:
    """Remember what was found out, unless another process was faster.

    Returns:
        What the run remembers from now on.

    Raises:
        RefusedError: There is a file of that name that fmapviz did not make.
        OSError: The disk is full, say.
    """
    layers = [_record(key, each) for key, each in survey.shared.items()]
    document = {"fmapviz": FORMAT, "run": fingerprint, "images": survey.images, "layers": layers}
    with stage(run) as staging:
        content = checksummed_json.dumps(document)
        files.write(staging / SURVEY_FILE, content)
        if sync:
            files.sync(staging / SURVEY_FILE)
        try:
            files.link(staging / SURVEY_FILE, run / SURVEY_FILE)
        except OSError:  # it is there already, or the file system knows no links
            if load(run, fingerprint) is None:
                check_replaceable(run / SURVEY_FILE, content)
                files.replace(staging / SURVEY_FILE, run / SURVEY_FILE)
        if sync:
            files.sync(run)
    known = load(run, fingerprint)
    assert known is not None
    return known


def load(run: Path, fingerprint: str) -> Survey | None:
    """Give what a run remembers; None if there is nothing, or nothing that is whole."""
    document = checksummed_json.load(run / SURVEY_FILE, intact=True)
    if document is None or document.get("run") != fingerprint:
        return None
    try:
        shared = {(each["of"], each["layer"], each["class"]): _shared(each) for each in document["layers"]}
        return Survey(int(document["images"]), shared)
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError):  # sealed, but by another program
        return None


def _record(key: Key, shared: Shared) -> dict[str, Any]:
    of, layer, label = key
    basis = shared.basis
    numbers = {} if basis is None else {
        "mean": _text(basis.mean), "components": _text(basis.components), "deviations": _text(basis.deviations)
    }  # fmt: skip
    return {"of": of, "layer": layer, "class": label, "low": shared.low, "high": shared.high, **numbers}


def _shared(record: Mapping[str, Any]) -> Shared:
    if "mean" not in record:
        return Shared(float(record["low"]), float(record["high"]))
    mean, components, deviations = (_tensor(record[name]) for name in ("mean", "components", "deviations"))
    return Shared(float(record["low"]), float(record["high"]), Basis(mean, components.view(-1, len(mean)), deviations))


def _text(values: Tensor) -> str:
    return base64.b64encode(values.cpu().numpy().astype("<f4").tobytes()).decode()


def _tensor(text: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), "<f4").astype(np.float32))
