"""Write and read `survey.json`, the values that all images of a run share."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fmapviz.core import checksummed_json, files
from fmapviz.core.centres import Centres
from fmapviz.core.checksummed_json import FORMAT
from fmapviz.core.file_names import SURVEY_FILE
from fmapviz.core.files import staging_folder
from fmapviz.draw.grid import Shared
from fmapviz.features.tokens.components import Basis, Foreground
from fmapviz.features.tokens.matches import Reference
from fmapviz.features.tokens.shared import SharedVectors, vectors_in
from fmapviz.features.tokens.survey.collect import Survey
from fmapviz.store.run_files import check_replaceable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.features.tokens.survey.collect import Key

_BASIS = ("mean", "components", "deviations")


def save(run: Path, fingerprint: str, survey: Survey, *, sync: bool) -> None:
    """Store a survey in the run, unless another process was faster.

    Raises:
        RefusedError: There is a file of that name that fmapviz did not make.
        OSError: The disk is full, for example.
    """
    layers = [_record(key, each) for key, each in survey.shared.items()]
    document = {"fmapviz": FORMAT, "run": fingerprint, "images": survey.images, "layers": layers}
    if survey.path:
        document["anchor"] = survey.path
    references = (vectors_in(each).reference for each in survey.shared.values())
    if reference := next(filter(None, references), None):
        document["reference"] = {"image": reference.image, **_array(reference.picture)}
    with staging_folder(run) as staging:
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
    """Return a run's survey; None if it is missing or damaged."""
    document = checksummed_json.load(run / SURVEY_FILE, intact=True)
    if document is None or document.get("run") != fingerprint:
        return None
    try:
        common = document.get("reference")
        picture = None if common is None else (str(common["image"]), _read_array(common, "|u1").astype(np.uint8))
        shared = {(each["of"], each["layer"], each["class"]): _shared(each, picture) for each in document["layers"]}
        return Survey(int(document["images"]), shared, str(document.get("anchor", "")))
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError):  # checksummed, but by another program
        return None


def _record(key: Key, ranges: Shared) -> dict[str, Any]:
    of, layer, label = key
    record: dict[str, Any] = {"of": of, "layer": layer, "class": label, "low": ranges.low, "high": ranges.high}
    shared = vectors_in(ranges)
    if shared.basis:
        record |= _basis_record(shared.basis)
    if shared.foreground:
        split = shared.foreground
        own: dict[str, Any] = {"first": _basis_record(split.first), "threshold": split.threshold, "above": split.above}
        own |= {"positions": list(split.positions)} if split.positions else {}
        record["foreground"] = {**own, **_basis_record(split.basis)}
    if shared.centres is not None:
        record["centres"] = _array(shared.centres.numpy())
        record["centres"] |= {"positions": list(shared.clustered)} if shared.clustered else {}
    if shared.anchor is not None:
        record["anchor"] = _array(shared.anchor.numpy())
    if shared.reference:
        record["reference"] = _array(shared.reference.maps.numpy())
        centres = shared.reference.centres
        record["reference"] |= {"rows": centres.rows.tolist(), "columns": centres.columns.tolist()}
    return record


def _shared(record: Mapping[str, Any], picture: tuple[str, NDArray[np.uint8]] | None) -> Shared:
    shared = SharedVectors()
    if "mean" in record:
        shared = replace(shared, basis=_basis(record))
    if split := record.get("foreground"):
        first = _basis(split["first"])
        found = Foreground(first, float(split["threshold"]), bool(split["above"]), _basis(split), _positions(split))
        shared = replace(shared, foreground=found)
    if "centres" in record:
        shared = replace(shared, centres=_floats(record["centres"]), clustered=_positions(record["centres"]))
    if "anchor" in record:
        shared = replace(shared, anchor=_floats(record["anchor"]))
    if "reference" in record and picture:
        shared = replace(shared, reference=_reference(record["reference"], *picture))
    return Shared(float(record["low"]), float(record["high"]), shared)


def _positions(record: Mapping[str, Any]) -> tuple[int, int] | None:
    used, count = record.get("positions") or (0, 0)
    return (int(used), int(count)) if count else None


def _reference(record: Mapping[str, Any], image: str, picture: NDArray[np.uint8]) -> Reference:
    rows, columns = (np.array(record[name], np.float64) for name in ("rows", "columns"))
    centres = Centres(rows, columns, (picture.shape[0], picture.shape[1]))
    return Reference(_floats(record), image, picture, centres)


def _basis_record(basis: Basis) -> dict[str, str]:
    return {name: _text(getattr(basis, name).cpu().numpy()) for name in _BASIS}


def _basis(record: Mapping[str, Any]) -> Basis:
    mean, components, deviations = (torch.from_numpy(_numbers(record[name], "<f4").astype(np.float32)) for name in _BASIS)
    return Basis(mean, components.view(-1, len(mean)), deviations)


def _array(values: NDArray[Any]) -> dict[str, Any]:
    return {"shape": list(values.shape), "data": _text(values)}


def _read_array(record: Mapping[str, Any], kind: str) -> NDArray[Any]:
    return _numbers(record["data"], kind).reshape(record["shape"])


def _floats(record: Mapping[str, Any]) -> Tensor:
    return torch.from_numpy(_read_array(record, "<f4").astype(np.float32))


def _text(values: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values, "|u1" if values.dtype == np.uint8 else "<f4").tobytes()).decode()


def _numbers(text: str, kind: str) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(text), kind)
