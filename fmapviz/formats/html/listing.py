"""List the images of a run for the report's page.

A series is one entry: one image at the steps of a training, or the frames of a film.
"""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fmapviz.data import percent
from fmapviz.errors import printable
from fmapviz.formats.html.page import link, pack
from fmapviz.images.frames import frames_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from fmapviz.store.aggregates.images import ListedUnit

INPUT = "input.png"


def list_images(
    units: Sequence[ListedUnit], run: Path, films: Mapping[str, str] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Return the entries of the page's list, in the order of the units.

    Args:
        units: The units of images.
        run: The run directory.
        films: The addresses of filmstrips by the series that they show.

    Returns:
        For each image `unit` (its name), `href` and `predictions`. A series has no `predictions`, but `steps`, ascending,
        each with `step` (its number) and `href`, and with `input` True if its input is not that of the first step. The
        `href` of a series is that of its first step; `films` is that of its filmstrips, if it has any. The steps of a film
        are its frames, and its `word` is `frame`.
    """
    entries = list(group_steps(units).values())
    names = name_images([identify(steps[0], run) for steps in entries])
    shown = [{"films": films[step.series]} if (step := steps[0].step) and step.series in films else {} for steps in entries]
    described = (describe_steps(steps, run) for steps in entries)
    return [{"unit": name, **each, **own} for name, each, own in zip(names, described, shown, strict=True)]


def list_steps(units: Sequence[ListedUnit], run: Path) -> list[dict[str, Any]]:
    """Return the steps of a series, such as that of the model, ascending, each as in `list_images`; none if it has none."""
    groups = list(group_steps(unit for unit in units if unit.step).values())
    return describe_steps(groups[0], run)["steps"] if groups else []


def list_curves(units: Sequence[ListedUnit], listed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the recorded numbers of each layer over the steps of each series; none if there is no series.

    Args:
        units: The units of images.
        listed: Their entries of `list_images`.

    Returns:
        By the `href` of the series, its `steps` and `layers`. Each layer has a `name`, `of` (what the map is, and of which
        class) and `data`: the means and the numbers of dead channels at these steps, packed; NaN where the layer is missing.
    """
    series = {
        entry["href"]: steps for entry, steps in zip(listed, group_steps(units).values(), strict=True) if steps[0].step
    }
    return {href: {"steps": [_step(unit) for unit in steps], "layers": _curves(steps)} for href, steps in series.items()}


def repeated_inputs(listed: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the addresses of inputs that the page does not load, because the first step of their series has the same."""
    steps = [each for entry in listed for each in entry.get("steps", [])[1:]]
    return {each["href"] + INPUT for each in steps if "input" not in each}


def href_of(unit: Path, run: Path) -> str:
    """Return the address of a unit's directory in the page."""
    return link(unit.relative_to(run)) + "/"


def number(value: Any) -> float:
    """Return a number of a record, which may hold any JSON value; 0 for other values."""
    return float(value) if isinstance(value, float) or (isinstance(value, int) and abs(value) < 1e300) else 0.0


def group_steps(units: Iterable[ListedUnit]) -> dict[object, list[ListedUnit]]:
    """Group the units of each image, series or film, in the order of steps; the later of two units of one step counts."""
    groups: dict[object, list[ListedUnit]] = {}
    for unit in units:
        frames = None if unit.step else frames_of(unit.path)
        key: object = unit.step.series if unit.step else ("film", frames.film) if frames else unit.directory
        groups.setdefault(key, []).append(unit)
    for key, steps in groups.items():
        latest = {_step(unit): unit for unit in sorted(steps, key=lambda unit: unit.finished)}
        groups[key] = [latest[step] for step in sorted(latest)]
    return groups


def _step(unit: ListedUnit) -> int:
    frames = None if unit.step else frames_of(unit.path)
    return unit.step.number if unit.step else frames.first if frames else 0


class Identity(NamedTuple):
    """The name of an image's unit, and the path of its file; of a series its name, twice."""

    unit: PurePath
    file: PurePath


def identify(unit: ListedUnit, run: Path) -> Identity:
    """Return the identity of an image or a series; of a frame that of its film."""
    if unit.step:
        return Identity(PurePath(unit.step.series), PurePath(unit.step.series))
    name, frames = unit.directory.relative_to(run), frames_of(unit.path)
    return Identity(name.parent, PurePath(frames.film)) if frames else Identity(name, PurePath(unit.path))


def describe_steps(steps: Sequence[ListedUnit], run: Path) -> dict[str, Any]:
    """Return the entry of an image or a series, as in `list_images`, without its name."""
    first, href = steps[0].step, href_of(steps[0].directory, run)
    is_film = first is None and frames_of(steps[0].path) is not None
    if first is None and not is_film:
        return {"href": href, "predictions": _predictions(steps[0].predictions)}
    listed = []
    for unit in steps:
        has_input = unit.step is None or first is None or unit.step.source != first.source
        listed.append({"step": _step(unit), "href": href_of(unit.directory, run), **({"input": True} if has_input else {})})
    return {"href": href, **({"word": "frame"} if is_film else {}), "steps": listed}


def name_images(images: Sequence[Identity]) -> list[str]:
    """Name images after their files, with as many parent folders as make the names differ.

    Args:
        images: Their identities.
    """
    lengths = [len(unit.parts) for unit, _ in images]
    while True:
        names = ["/".join(source.parts[-length:]) for (_, source), length in zip(images, lengths, strict=True)]
        counts = Counter(names)
        most = [len(source.parts) if counts[name] > 1 else 0 for name, (_, source) in zip(names, images, strict=True)]
        longer = [max(length, min(length + 1, limit)) for length, limit in zip(lengths, most, strict=True)]
        if longer == lengths:
            return list(map(printable, names))
        lengths = longer


# Any: a record that was tampered with may hold any JSON value.
def _predictions(records: Any) -> list[str]:
    valid = [each for each in records if isinstance(each, dict)] if isinstance(records, list) else []
    return [printable(_prediction(each)) for each in valid]


def _prediction(record: Mapping[str, Any]) -> str:
    score = number(record.get("score"))
    if record.get("scores") == "value":
        return f"{record.get('class')} {score:.4g} {record.get('unit', '')}".rstrip()
    return f"{record.get('class')} {percent(score)}"


def _curves(units: Sequence[ListedUnit]) -> list[dict[str, Any]]:
    rows: dict[tuple[str, str], Any] = {}
    for column, unit in enumerate(units):
        for layer in unit.step.layers if unit.step else ():
            row = rows.setdefault((layer.layer, layer.of), np.full((2, len(units)), np.nan, np.float32))
            row[:, column] = layer.mean, layer.dead
    return [{"name": printable(layer), "of": printable(of), "data": pack(row)} for (layer, of), row in rows.items()]
