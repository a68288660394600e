"""Compare two finished runs by the values that they keep, without their networks."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image as PillowImage
from torch import nn

from fmapviz.config import InputOptions, RunConfig, RunInfo
from fmapviz.core import files, registry
from fmapviz.core.file_names import RUN_FILE
from fmapviz.core.files import leftovers
from fmapviz.core.urls import is_url
from fmapviz.core.version import __version__
from fmapviz.draw.picture import make_picture
from fmapviz.draw.png import encode
from fmapviz.errors import NothingToDoError, RequestError, first_few, quote
from fmapviz.events import Notice, Outcome, RunSummary, Started
from fmapviz.features.diff.alignment import draw_alignment
from fmapviz.features.diff.cka import LEAST
from fmapviz.features.diff.difference import compare, means_of
from fmapviz.features.diff.drawer import draw_pair
from fmapviz.features.diff.kept_values import is_chosen, list_types, read_values
from fmapviz.features.diff.networks import Compared
from fmapviz.run.load import formats_of, open_writers
from fmapviz.run.plan import make_plan
from fmapviz.run.publish import Publisher
from fmapviz.run.session import Session
from fmapviz.run.units import write_unit
from fmapviz.store import run_files
from fmapviz.store.aggregates.base import UNREADABLE
from fmapviz.store.failures import append_failure
from fmapviz.store.presence import Presence
from fmapviz.store.remote.destination import open_destination
from fmapviz.store.run import load_run, marked
from fmapviz.store.unfinished import read_unfinished, state_of, unfinished
from fmapviz.store.unit import find_done, images_of, read_unit
from fmapviz.store.unit_key import IMAGE, image_key, key_of
from fmapviz.types import Difference, Failure, ImageResult, LayerResult, Model, Picture, Preparation, UnitImage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from fmapviz.events import Event
    from fmapviz.features.diff.kept_values import KeptValues
    from fmapviz.store.unfinished import CommandRecord
    from fmapviz.store.unit_key import UnitKey


_NOTHING = Model("", nn.Identity(), "", None, Preparation(torch.as_tensor, (), (), ""))  # the network of a finished run


@dataclass(frozen=True, slots=True, eq=False)
class _KeptRun:
    """A finished run.

    Attributes:
        directory: Where it is.
        settings: Its recorded settings.
        units: By name, the units of images.
        is_unfinished: Whether a process writes into it, or was killed.
    """

    directory: Path
    settings: Mapping[str, Any]
    units: Mapping[str, Path]
    is_unfinished: bool


def are_runs(config: RunConfig) -> bool:
    """Return True if the model and the only input are directories of runs."""
    paths = [config.model, *_inputs_of(config)]
    return len(paths) == 2 and all(
        isinstance(path, str | Path) and not is_url(str(path)) and (Path(path) / RUN_FILE).is_file() for path in paths
    )


def compare_runs(config: RunConfig) -> RunSummary:
    """Compare the images of one name in two runs, into a run of its own.

    Raises:
        RequestError: They keep no values, or their images were preprocessed in different ways.
        NothingToDoError: No image is in both.
        OutputError: The output could not be written.
    """
    begun, tell = time.monotonic(), config.on_event or (lambda _: None)
    for name, ignored in {
        "weights": config.weights != RunConfig.weights,
        "preprocessing": config.preprocessing != InputOptions(),
    }.items():
        if ignored:
            raise RequestError(f"{name}= is of a network, and two runs are compared without", hint="draw them with it")
    first, second = (_read(Path(str(path))) for path in (config.model, *_inputs_of(config)))
    prepared = [str(run.settings.get("preparation")) for run in (first, second)]
    if prepared[0] != prepared[1]:
        raise RequestError(
            f"the images of the two runs were preprocessed in different ways: {quote(prepared[0])} and {quote(prepared[1])}",
            hint="draw both with one preprocessing: InputOptions(size=), InputOptions(fit=)",
        )
    common = [name for name in first.units if name in second.units]
    if not common:
        raise NothingToDoError("no image of one name is in both runs", hint="images are matched by the names of their units")
    _check_layers(config, first.units[common[0]], second.units[common[0]])
    with open_destination(config.out) as destination:
        destination.check()
        session = _make_session(config, first, second)
        compared = Compared(_NOTHING, _NOTHING, _names(first, second), related=True)
        directory = destination.open_run(session.info, name=config.name, sync=config.fsync)
        session = replace(session, output=destination, directory=directory)
        tell(Started(directory, session.info))
        for notice in _notices(first, second, common):
            tell(Notice(notice))
        with ExitStack() as stack:
            note = tell
            if destination.is_local:
                stack.enter_context(marked(directory))
                given = [str(run.directory.absolute()) for run in (first, second)]
                command = stack.enter_context(unfinished(directory, given, lambda _: len(common)))
                note = partial(_note, command, tell)
            outcomes = [_compare_image(session, compared, name, (first, second), note) for name in common]
            pictures = draw_alignment(session, compared.names, None)
            publisher = Publisher(session)
            publisher.publish()
            results, highlights = publisher.report()
            presence = Presence(directory, destination.address_of(directory))
            for outcome in outcomes:
                if outcome.unit:
                    presence.note(outcome.unit)
            presence.check()
        for line in highlights:
            tell(Notice(line))
    statuses = [outcome.status for outcome in outcomes]
    failures = tuple(outcome.failure for outcome in outcomes if outcome.failure)
    return RunSummary(
        directory,
        found=len(outcomes),
        done=statuses.count("done"),
        skipped=statuses.count("skipped"),
        failed=statuses.count("failed"),
        pictures=pictures + sum(outcome.pictures for outcome in outcomes),
        layers=0,
        not_executed=(),
        undrawn={},
        failures=failures,
        seconds=time.monotonic() - begun,
        once=pictures,
        results=results,
    )


def _note(command: CommandRecord, tell: Callable[[Event], None], event: Event) -> None:
    tell(event)
    command.note(event)


def _inputs_of(config: RunConfig) -> list[object]:
    given = config.inputs
    return [given] if isinstance(given, str | Path) else list(given) if isinstance(given, list | tuple) else []


def _read(directory: Path) -> _KeptRun:
    record = load_run(directory)
    units = {}
    for unit in run_files.find_units(directory):
        known = read_unit(unit)
        if known and (key := key_of(known)).kind == IMAGE and key.step is None:
            units[key.name] = unit
    is_finished = state_of(directory, read_unfinished(directory))[0] == "finished" and not any(leftovers(directory))
    return _KeptRun(directory, record.get("settings") or {}, units, not is_finished)


def _notices(first: _KeptRun, second: _KeptRun, common: list[str]) -> Iterator[str]:
    for run, other in ((first, second), (second, first)):
        alone = [name for name in run.units if name not in other.units]
        if run.is_unfinished:
            yield f"{quote(run.directory)} is still being written, or was interrupted: what is finished is compared"
        if alone:
            yield f"only in {quote(run.directory)}: {first_few(alone)}"
    if len(common) < LEAST:
        yield f"no CKA: it needs {LEAST} images"


def _make_session(config: RunConfig, first: _KeptRun, second: _KeptRun) -> Session:
    """Return a session of the two runs, without networks."""
    settings = [run.settings for run in (first, second)]
    formats = formats_of(config)
    plan = make_plan(config.views, targets=(), classes=(), output=None, automatic=False)
    info = RunInfo(
        str(settings[0].get("model")),
        str(settings[0].get("weights")),
        settings[0].get("sha256"),
        str(settings[0].get("preparation")),
        replace(config, model="", inputs=(), to=formats, predictions=0, on_event=None, engine=None),
        versions={"fmapviz": __version__},
        against={name: settings[1].get(name) for name in ("model", "weights", "sha256")},
    )
    return Session(
        request=config,
        info=info,
        model=_NOTHING,
        layers=(),
        plan=plan,
        writers=open_writers(formats),
        device=torch.device("cpu"),
        batch_size=1,
        workers=1,
    )


def _names(first: _KeptRun, second: _KeptRun) -> tuple[str, str]:
    names = first.directory.absolute().name, second.directory.absolute().name
    return names if names[0] != names[1] else (str(first.directory), str(second.directory))


def _compare_image(
    session: Session, compared: Compared, name: str, runs: tuple[_KeptRun, _KeptRun], tell: Callable[[Event], None]
) -> Outcome:
    """Compare one image, unless that is done."""
    begun, run, info = time.monotonic(), session.directory, session.info
    units = runs[0].units[name], runs[1].units[name]
    try:
        (file,) = images_of(read_unit(units[0]))
        key = image_key(file, {"first": _checksum(units[0]), "second": _checksum(units[1])})
        if not session.config.force and (done := find_done(run, key, info.fingerprint)):
            outcome = Outcome(file.path, "skipped", unit=done)
        else:
            values = [read_values(unit, session.config) for unit in units]
            pictures, unit = _write(
                session, key, _draw(session, compared, key, first=values[0], second=values[1]), _input(units)
            )
            outcome = Outcome(file.path, "done", pictures=pictures, seconds=time.monotonic() - begun, unit=unit)
    except RequestError:
        raise
    except UNREADABLE as error:
        path = str(units[0])
        reason = f"its values are damaged: {type(error).__name__}"
        failure = Failure(path, "E_VALUES", f"{reason}: {quote(path)}", hint="fmapviz verify lists what is damaged")
        append_failure(run, failure, sync=session.config.fsync)
        outcome = Outcome(path, "failed", failure=failure)
    tell(outcome)
    return outcome


def _checksum(unit: Path) -> str:
    """Return the checksum that ends the record of a unit."""
    return str(json.loads(files.read(unit / "unit.json")).get("sha256"))


def _check_layers(config: RunConfig, *units: Path) -> None:
    """Check that an image has some of the chosen layers.

    Raises:
        RequestError: It has none of them.
    """
    try:
        known = {name: type_ for unit in units for name, type_ in list_types(unit).items()}
    except UNREADABLE:
        return
    if known and not any(is_chosen(name, type_, config) for name, type_ in known.items()):
        raise RequestError("none of the chosen layers is in the runs", hint=f"they have {first_few([*known])}")


def _input(units: Iterable[Path]) -> Picture:
    """Return the picture of the input that one of two units has; a grey one if none does."""
    pixels = np.full((64, 64), 128, np.uint8)
    facts = {"Shows": "nothing: neither of the two runs keeps a picture of the input; to=['npz', 'png'] does"}
    for unit in units:
        with suppress(OSError, SyntaxError, ValueError), PillowImage.open(unit / "input.png") as image:
            pixels = np.asarray(image.convert("L" if image.mode == "L" else "RGB"))
            facts = {"Shows": "the input as the network saw it", "Shape": f"{pixels.shape[0]} x {pixels.shape[1]} pixels"}
            facts |= {name: str(fact) for name, fact in image.info.items() if name == "Scaling"}
            break
    return Picture("input", "input", encode(pixels, facts), pixels.shape[1], pixels.shape[0], facts)


def _draw(
    session: Session,
    compared: Compared,
    key: UnitKey,
    *,
    first: Mapping[str, KeptValues],
    second: Mapping[str, KeptValues],
) -> UnitImage:
    draws = {view: draw for view, draw in session.plan.draws["output"].items() if registry.view(view).networks == 2}
    layers, undrawn = [], dict[str, str]()
    for name in dict.fromkeys((*first, *second)):
        a, b = first.get(name), second.get(name)
        known = b or a
        assert known
        result = LayerResult(name, known.type, 1, known.index, known.array.shape)
        if a is None or b is None or a.array.shape != b.array.shape:
            layers += [replace(result, difference=_alone(each, at)) for at, each in enumerate((a, b)) if each is not None]
            continue
        maps = [_maps(each.array) for each in (a, b)]
        indices = (a.index, b.index)
        if maps[0] is None or maps[1] is None:
            whole = [torch.from_numpy(np.ascontiguousarray(each.array, np.float32)).flatten()[None, None] for each in (a, b)]
            difference = replace(compare(whole[0], whole[1]), channels=None, indices=indices, means=(None, None))
            layers.append(replace(result, difference=difference))
            continue
        difference = replace(compare(maps[0], maps[1]), indices=indices)
        drawn, reason = draw_pair(
            result,
            (maps[0], maps[1]),
            difference,
            draws,
            session.config.style,
            compared=compared,
        )
        layers.append(drawn)
        if reason:
            undrawn[name] = reason
    return UnitImage(key.name, key.path, ImageResult(tuple(layers), (), undrawn), (), session.info)


def _alone(values: KeptValues, network: int) -> Difference:
    maps = _maps(values.array)
    means = None if maps is None else means_of(maps)
    if network == 0:
        return Difference((means, None), indices=(values.index, None))
    return Difference((None, means), indices=(None, values.index))


def _maps(array: NDArray[Any]) -> torch.Tensor | None:
    """Return values as maps `(1, C, h, w)`; None if they are neither maps `(C, h, w)` nor a vector `(K)`."""
    if array.ndim not in {1, 3} or not array.size:
        return None
    values = torch.from_numpy(np.ascontiguousarray(array, np.float32))[None]
    return values[:, :, None, None] if array.ndim == 1 else values


def _write(session: Session, key: UnitKey, image: UnitImage, seen: Picture) -> tuple[int, Path]:
    """Write the unit of an image; return the number of its pictures, and its directory."""
    digits = max(2, len(str(max((layer.index for layer in image.result.layers), default=0))))
    common = {"Image": key.name}
    pictures = [seen] + [
        make_picture(layer, drawing, session.info, common=common, digits=digits)
        for layer in image.result.layers
        for drawing in layer.drawings
        if drawing.content
    ]
    return len(pictures), write_unit(session, key, pictures, image=image)
