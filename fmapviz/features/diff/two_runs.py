"""Compare two finished runs by the values that they store, without their networks; pair their layers by name and shape."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext, suppress
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
from fmapviz.core.members import load as load_member
from fmapviz.core.platforms import in_shell
from fmapviz.core.urls import is_url
from fmapviz.core.version import __version__
from fmapviz.data import Difference, ImageResult, LayerResult, Model, Preparation
from fmapviz.errors import InputError, NothingToDoError, RequestError, first_few, quote
from fmapviz.features.diff.cka_stage import AlignmentStage
from fmapviz.features.diff.difference import compare, means_of
from fmapviz.features.diff.kept_values import is_chosen, list_types, read_values
from fmapviz.features.diff.layer_pairs import draw_pair
from fmapviz.features.diff.networks import Compared
from fmapviz.observe.hooks import Numbers
from fmapviz.run.kept_passes import ReadImage
from fmapviz.run.load import adapt, check_views, formats_of, open_writers
from fmapviz.run.loop import run
from fmapviz.run.plan import make_plan
from fmapviz.run.session import Session
from fmapviz.store import run_files
from fmapviz.store.aggregates.base import UNREADABLE
from fmapviz.store.run import load_run
from fmapviz.store.unfinished import read_unfinished, state_of
from fmapviz.store.unit import images_of, read_unit
from fmapviz.store.unit_key import IMAGE, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.data import ImageFile
    from fmapviz.events import RunSummary
    from fmapviz.features.diff.kept_values import KeptValues
    from fmapviz.run.plan import Draw


# The network of a finished run, whose inputs are shown as they are.
_NOTHING = Model("", nn.Identity(), "", None, Preparation(torch.as_tensor, (0.0,), (1.0,), ""))


@dataclass(frozen=True, slots=True, eq=False)
class _FinishedRun:
    """A finished run.

    Attributes:
        directory: Its directory.
        settings: Its recorded settings.
        units: By name, the units of images.
        is_unfinished: Whether a process writes into it, or was killed.
    """

    directory: Path
    settings: Mapping[str, Any]
    units: Mapping[str, Path]
    is_unfinished: bool


@dataclass(frozen=True, slots=True, eq=False)
class _StoredPair:
    """The outputs of layers of two networks for an image, by layer name."""

    first: Mapping[str, KeptValues]
    second: Mapping[str, KeptValues]

    @property
    def nbytes(self) -> int:
        """The size of all arrays."""
        return sum(each.array.nbytes for values in (self.first, self.second) for each in values.values())


def are_runs(config: RunConfig) -> bool:
    """Return True if the model and the only input are directories of runs."""
    paths = [config.model, *_inputs_of(config)]
    return len(paths) == 2 and all(
        isinstance(path, str | Path) and not is_url(str(path)) and os.path.isfile(Path(path) / RUN_FILE) for path in paths
    )


def compare_runs(config: RunConfig) -> RunSummary:
    """Compare the images of one name in two runs, into a run of its own.

    Raises:
        RequestError: They store no values, or their images were preprocessed in different ways.
        NothingToDoError: No image is in both.
        OutputError: The output could not be written.
    """
    for options, is_set in {
        "weights=": config.weights != RunConfig.weights,
        "size=, fit=, mean= and std=": config.preprocessing != InputOptions(),
    }.items():
        if is_set:
            message = "two finished runs are compared without their networks, and need neither weights nor preprocessing"
            raise RequestError(message, hint=f"leave out {options}; a run takes them when it is drawn")
    paths = [str(config.model), *map(str, _inputs_of(config))]
    first, second = (_read(Path(path)) for path in paths)
    prepared = [str(run.settings.get("preparation")) for run in (first, second)]
    if prepared[0] != prepared[1]:
        raise RequestError(
            f"the images of the two runs were preprocessed in different ways: {quote(prepared[0])} and {quote(prepared[1])}",
            hint="draw both runs with one size=, fit=, mean= and std= of InputOptions",
        )
    common = [name for name in first.units if name in second.units]
    if not common:
        raise NothingToDoError(
            "no image is in both runs", hint="images are matched by the names of their folders in the runs"
        )
    _check_layers(config, [(run.directory, run.units[common[0]]) for run in (first, second)])
    images = [_list_image((first, second), name, config) for name in common]

    def load(config: RunConfig) -> tuple[Session, list[str]]:
        return _make_session(config, first, second), [*_notices(first, second)]

    return run(replace(config, inputs=paths, engine=None), open_session=load, images=images)


def _inputs_of(config: RunConfig) -> list[object]:
    given = config.inputs
    return [given] if isinstance(given, str | Path) else list(given) if isinstance(given, list | tuple) else []


def _read(directory: Path) -> _FinishedRun:
    record = load_run(directory)
    units = {}
    for unit in run_files.find_units(directory):
        unit_record = read_unit(unit)
        if unit_record and (key := key_of(unit_record)).kind == IMAGE and key.step is None:
            units[key.name] = unit
    is_finished = state_of(directory, read_unfinished(directory))[0] == "finished" and not any(leftovers(directory))
    return _FinishedRun(directory, record.get("settings") or {}, units, not is_finished)


def _notices(first: _FinishedRun, second: _FinishedRun) -> Iterator[str]:
    for one, other in ((first, second), (second, first)):
        alone = [name for name in one.units if name not in other.units]
        if one.is_unfinished:
            yield f"{quote(one.directory)} is still being written, or was interrupted: what is finished is compared"
        if alone:
            yield f"only in {quote(one.directory)}: {first_few(alone)}"


def _make_session(config: RunConfig, first: _FinishedRun, second: _FinishedRun) -> Session:
    """Return a session of the two runs, without networks."""
    check_views(config, pair=True)
    settings = [run.settings for run in (first, second)]
    formats = formats_of(config)
    plan = make_plan(config.views, targets=(), classes=(), output=None, automatic=False)
    plan = adapt(plan, formats, config.dtype, config.views)
    info = RunInfo(
        str(settings[0].get("model")),
        str(settings[0].get("weights")),
        settings[0].get("sha256"),
        str(settings[0].get("preparation")),
        replace(config, model="", inputs=(), to=formats, predictions=0, on_event=None, engine=None),
        versions={"fmapviz": __version__},
        against={name: settings[1].get(name) for name in ("model", "weights", "sha256")},
    )
    compared = Compared(_NOTHING, _NOTHING, _names(first, second), related=True)
    drawer = _StoredPairDrawer(compared, plan.draws["output"], config)
    return Session(
        request=config,
        info=info,
        model=_NOTHING,
        layers=(),
        plan=plan,
        writers=open_writers(formats),
        device=torch.device("cpu"),
        batch_size=1,
        workers=config.threads,
        stages=[AlignmentStage(compared.names), *(load_member(stage)() for stage in registry.stages())],
        attach=lambda *_: nullcontext(drawer),
    )


def _names(first: _FinishedRun, second: _FinishedRun) -> tuple[str, str]:
    names = first.directory.absolute().name, second.directory.absolute().name
    return names if names[0] != names[1] else (str(first.directory), str(second.directory))


def _check_layers(config: RunConfig, units: Sequence[tuple[Path, Path]]) -> None:
    """Check that an image has stored outputs of some of the chosen layers.

    Args:
        config: The choice of layers.
        units: The directory of each run, and the unit of the image in it.

    Raises:
        RequestError: It has none of them.
    """
    types = dict[str, str]()
    for run_directory, unit in units:
        try:
            stored = list_types(unit)
        except UNREADABLE:
            return
        if not stored:
            raise RequestError(
                f"a run without stored outputs of layers: {quote(run_directory)}",
                hint="draw it with views='maps' and to='npz': only outputs of layers are compared",
            )
        types |= stored
    if types and not any(is_chosen(name, type_, config) for name, type_ in types.items()):
        raise RequestError("none of the chosen layers is in the runs", hint=f"they have {first_few([*types])}")


def _list_image(runs: tuple[_FinishedRun, _FinishedRun], name: str, config: RunConfig) -> ImageFile:
    """Return an image of two runs; its version holds the checksums that end the records of its units."""
    (file,) = images_of(read_unit(runs[0].units[name]))
    version = {**file.version, "first": _checksum(runs[0].units[name]), "second": _checksum(runs[1].units[name])}
    return replace(file, version=version, content=ReadImage(partial(_read_pair, runs, name, config)))


def _checksum(unit: Path) -> str:
    return str(json.loads(files.read(unit / "unit.json")).get("sha256"))


def _read_pair(
    runs: tuple[_FinishedRun, _FinishedRun], name: str, config: RunConfig
) -> tuple[Tensor, Mapping[str, str], _StoredPair]:
    """Read the input and the values of an image in two runs.

    Raises:
        RequestError: One of them stores no values.
        InputError: They are damaged.
    """
    values = []
    for run_ in runs:
        try:
            values.append(read_values(run_.units[name], config))
        except UNREADABLE as error:
            hint = f"`fmapviz verify {in_shell(str(run_.directory))}` lists the damaged files"
            raise InputError("E_VALUES", f"the stored values are damaged: {quote(run_.units[name])}", hint=hint) from error
    pixels, facts = _read_input([run_.units[name] for run_ in runs])
    channels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return torch.from_numpy(channels / np.float32(255)), facts, _StoredPair(*values)


def _read_input(units: Iterable[Path]) -> tuple[NDArray[np.uint8], dict[str, str]]:
    """Return the picture of the input that one of the units has, and its facts; a grey picture if none does."""
    for unit in units:
        with suppress(OSError, SyntaxError, ValueError), PillowImage.open(unit / "input.png") as image:
            pixels = np.asarray(image.convert("L" if image.mode == "L" else "RGB"))
            return pixels, {name: str(fact) for name, fact in image.info.items() if name == "Scaling"}
    shows = "nothing: neither of the two runs has a picture of the input; to=['npz', 'png'] writes it"
    return np.full((64, 64), 128, np.uint8), {"Shows": shows}


class _StoredPairDrawer:
    """Draws how the stored values of two networks differ; a `fmapviz.run.session.PassDrawer`."""

    lasting = ()
    numbers = Numbers()

    def __init__(self, compared: Compared, draws: Mapping[str, Draw], config: RunConfig) -> None:
        self._compared = compared
        self._draws = draws
        self._style = config.style

    def draw(self, batch: Tensor, *, keep: object = None, files: object = ()) -> list[ImageResult]:
        """Raise: there is no network."""
        raise NotImplementedError

    def draw_kept(self, _image: Tensor, kept: _StoredPair) -> ImageResult:
        """Draw an image by the values of both units."""
        layers, undrawn = list[LayerResult](), dict[str, str]()
        for name in dict.fromkeys((*kept.first, *kept.second)):
            drawn, reason = self._draw_layer(name, kept.first.get(name), kept.second.get(name))
            layers += drawn
            if reason:
                undrawn[name] = reason
        return ImageResult(tuple(layers), (), undrawn)

    def _draw_layer(self, name: str, a: KeptValues | None, b: KeptValues | None) -> tuple[Sequence[LayerResult], str]:
        """Return the result of a layer, of each network if they cannot be compared, and why nothing is drawn."""
        stored = b or a
        assert stored
        result = LayerResult(name, stored.type, 1, stored.index, stored.array.shape)
        if a is None or b is None or a.array.shape != b.array.shape:
            return [replace(result, difference=_alone(each, at)) for at, each in enumerate((a, b)) if each is not None], ""
        maps, indices = (_maps(a.array), _maps(b.array)), (a.index, b.index)
        if maps[0] is None or maps[1] is None:
            whole = [torch.from_numpy(np.ascontiguousarray(each.array, np.float32)).flatten()[None, None] for each in (a, b)]
            difference = replace(compare(whole[0], whole[1]), channels=None, indices=indices, means=(None, None))
            return [replace(result, difference=difference)], ""
        difference = replace(compare(maps[0], maps[1]), indices=indices)
        drawn, reason = draw_pair(result, (maps[0], maps[1]), difference, self._draws, self._style, compared=self._compared)
        return [drawn], reason


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
