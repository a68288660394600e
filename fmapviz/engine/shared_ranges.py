"""Survey all images before the first is drawn, for `--norm run` and `--pca shared`; the run stores the result."""

from __future__ import annotations

import base64
from contextlib import closing
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fmapviz.core import checksummed_json, files
from fmapviz.core.checksummed_json import FORMAT
from fmapviz.core.errors import RefusedError
from fmapviz.core.events import Notice
from fmapviz.core.file_names import SURVEY_FILE
from fmapviz.core.files import stage, writing_to
from fmapviz.engine.pipeline.work import Progress, work
from fmapviz.render.grid import Shared
from fmapviz.render.pca import Basis, Covariance
from fmapviz.runs.failures import read_failures
from fmapviz.runs.run import shares_components
from fmapviz.runs.run_files import check_replaceable, find_units
from fmapviz.runs.shard_grouping import Failed
from fmapviz.runs.unit import paths_of, read_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from fmapviz.core.events import Event
    from fmapviz.core.types import Failure, ImageFile
    from fmapviz.engine.pipeline.scheduler import Result
    from fmapviz.engine.session import Session

    Key = tuple[str, str, str]


def survey(
    session: Session, found: Sequence[ImageFile | Failure], on_event: Callable[[Event], None]
) -> Mapping[Key, Shared]:
    """Return what all images of a run share, from its first survey, so that later pictures stay comparable.

    Images that cannot be read or drawn do not count.

    Args:
        session: What is drawn.
        found: All inputs.
        on_event: Called with each `Notice`.

    Raises:
        OutputError: The output could not be written.
        RefusedError: The survey of the images that were drawn is lost, and the images given now are others.
    """
    known = load(session.directory, session.info.fingerprint)
    if known is not None:
        failed = {str(row.get("path")) for row in read_failures(session.directory)}  # not surveyed
        given = sum(each.path not in failed for each in found)
        if known.images < given:
            on_event(Notice(f"the survey of {known.images} images also holds for new ones: {given} are given"))
        return known.shared
    number = f"{len(found)} images" if len(found) > 1 else "the image"
    on_event(Notice(f"surveying {number} first, for what all images of the run share"))
    surveyor = Surveyor()
    plan = session.plan.to_survey(principal=shares_components(session.info.settings))
    with closing(work(replace(session, plan=plan), found, progress=Progress(), on_drawn=surveyor.note)) as events:
        for event in events:
            if isinstance(event, Notice):
                on_event(event)
    if not surveyor.paths:
        return {}
    # Read before the survey, which is saved before the first image is drawn.
    records = filter(None, map(read_unit, find_units(session.directory)))
    drawn = {path for record in records for path in paths_of(record)}
    known = load(session.directory, session.info.fingerprint)
    if known is not None:  # another process was faster
        return known.shared
    if not (drawn <= surveyor.paths if session.config.force else drawn in (set(), surveyor.paths)):
        raise RefusedError(
            f"the survey of the {len(drawn)} images drawn so far is lost, {SURVEY_FILE} is missing or damaged, and "
            f"{len(surveyor.paths)} of these or others are given now",
            hint="force=True, with at least all images of the run, redraws everything; or start another run with name=",
        )
    made = surveyor.finish()
    with writing_to(session.directory):
        save(session.directory, session.info.fingerprint, made, sync=session.config.fsync)
    session.output.share_file(session.directory, SURVEY_FILE)
    return (load(session.directory, session.info.fingerprint) or made).shared


class Surveyor:
    """Collects the ranges and covariances of images; its methods may be called by several threads at once."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self._lock = Lock()
        self._ranges: dict[Key, tuple[float, float]] = {}
        self._covariances: dict[Key, Covariance] = {}

    def note(self, result: Result) -> None:
        """Add the results of an image."""
        if isinstance(result, Failed):
            return
        drawn = result.drawn
        with self._lock:
            self.paths.add(result.image.member.file.path)
            for layer in drawn.layers:
                if layer.statistics:
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

    def finish(self) -> Survey:
        """Return the survey of all images that were added."""
        bases = {key: covariance.basis() for key, covariance in self._covariances.items()}
        shared = {key: Shared(low, high, bases.get(key)) for key, (low, high) in sorted(self._ranges.items())}
        return Survey(len(self.paths), shared)


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """What all images of a run share.

    Attributes:
        images: Number of images surveyed.
        shared: By feature map.
    """

    images: int
    shared: Mapping[Key, Shared]


def save(run: Path, fingerprint: str, survey: Survey, *, sync: bool) -> None:
    """Store a survey in the run, unless another process was faster.

    Raises:
        RefusedError: There is a file of that name that fmapviz did not make.
        OSError: The disk is full, for example.
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


def load(run: Path, fingerprint: str) -> Survey | None:
    """Return a run's survey; None if there is none, or it is damaged."""
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
