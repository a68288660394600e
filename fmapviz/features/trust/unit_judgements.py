"""The file of a unit with what is found of the maps of its images: `trust.json`."""

from __future__ import annotations

import json
from contextlib import contextmanager
from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fmapviz.core import checksummed_json, files
from fmapviz.core.checksummed_json import FORMAT
from fmapviz.features.trust.trust_sheet import TrustDrawn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from fmapviz.data import Picture, Target, UnitImage
    from fmapviz.features.trust.judgement import JudgedMethod, Judgement

FILE = "trust.json"


class JudgementWriter:
    """Collects the judgements of a unit's images."""

    members: Mapping[str, int] = MappingProxyType({})

    def __init__(self) -> None:
        self.images: list[dict[str, Any]] = []

    def add(self, image: UnitImage, _pictures: Iterable[Picture]) -> tuple[()]:
        """See `fmapviz.formats.base.Writer`."""
        judged = [
            record_of(drawing.content.judgement, layer.target)
            for layer in image.result.layers
            for drawing in layer.drawings
            if isinstance(drawing.content, TrustDrawn) and layer.target
        ]
        self.images.append({"targets": judged})
        return ()


@contextmanager
def open_writer(directory: Path, *, many: bool = False) -> Iterator[JudgementWriter]:  # noqa: ARG001
    """Write `trust.json` of a unit; see `fmapviz.formats.base`."""
    writer = JudgementWriter()
    yield writer
    files.write(directory / FILE, checksummed_json.dumps({"fmapviz": FORMAT, "images": writer.images}))


def record_of(judgement: Judgement, target: Target) -> dict[str, Any]:
    """Return what is found of a class in an image, as JSON has it."""
    chance = judgement.chance
    return {
        "target": target.label,
        "class": target.index,
        "class_name": target.name or None,
        "pixels": judgement.pixels,
        "measure": judgement.measure,
        "whole": judgement.whole,
        "blurred": judgement.blurred,
        "spread": judgement.spread,
        "last_layer": judgement.last_layer or None,
        "chance": {
            "deletion": [each.deletion_area for each in chance],
            "insertion": [each.insertion_area for each in chance],
        },
        "agreement": [[_finite(each) for each in line] for line in judgement.agreement.tolist()],
        "methods": [_method(each) for each in judgement.methods],
        "missing": dict(judgement.missing),
    }


def _method(method: JudgedMethod) -> dict[str, Any]:
    return {
        "method": method.view,
        "layer": method.layer or None,
        "deletion": method.curve.deletion_area,
        "insertion": method.curve.insertion_area,
        "last_random": _finite(method.last.correlation),
        "all_random": _finite(method.all.correlation),
        "of_class": method.of_class,
        "sign": method.sign,
        "shares": method.curve.shares.tolist(),
        "deletion_curve": method.curve.deletion.tolist(),
        "insertion_curve": method.curve.insertion.tolist(),
    }


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def read_judgements(unit: Path) -> list[dict[str, Any]]:
    """Read `trust.json`.

    Raises:
        OSError, KeyError, TypeError, ValueError: It is missing or damaged.
    """
    found: list[dict[str, Any]] = json.loads(files.read(unit / FILE))["images"]
    return found
