"""Record in `run.json` what drawing the same run again needs besides its settings, and read it."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fmapviz.config import InputOptions, RunConfig, Style
from fmapviz.config.changes import CHANGES
from fmapviz.core.file_names import RUN_FILE
from fmapviz.core.own import OwnName
from fmapviz.core.recorded_code import check_plain, located, only_recorded
from fmapviz.core.urls import expand_home, is_url
from fmapviz.core.user_code import imported_files, parse_reference, split_call
from fmapviz.errors import RefusedError, RequestError, printable, quote
from fmapviz.images.memory.image import MemoryImage
from fmapviz.models.load import is_code
from fmapviz.models.weights.file import sha256_of
from fmapviz.store.run import IN_TRAINING, differences

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import nn

    from fmapviz.data import Model, Weights
    from fmapviz.run.session import Session

_VERSION = re.compile(  # PEP 440
    r"\d{1,6}(\.\d{1,6}){0,4}((a|b|rc)\d{1,6})?(\.post\d{1,6})?(\.dev\d{1,6})?(\+[a-z0-9]{1,20}(\.[a-z0-9]{1,20}){0,3})?"
)
_COUNTS, _MOST = ("threads", "workers", "batch_size"), 1024
_MOST_LETTERS = 2**15  # of a model with its arguments
MOST_INPUTS = 1000  # that are recorded; the units of a run name all images
_PACKAGES = {"timm": "timm", "hf": "transformers", "ultralytics": "ultralytics"}  # of the sources of models


def request_of(session: Session, config: RunConfig, inputs: Iterable[str | Path | MemoryImage]) -> dict[str, Any]:
    """Return what `run.json` records to draw a run again, as JSON values.

    Args:
        session: The run.
        config: Its configuration as requested.
        inputs: Its inputs as they were typed.
    """
    model = session.info.request.get("model")  # None of a network given in Python, or of finished runs
    own = [each.reference for each in (*config.views, *config.to) if isinstance(each, OwnName) and each.reference]
    names = [each for each in (model, config.weights, *own) if isinstance(each, str) and each]
    return {
        **session.info.request,
        "predictions": config.predictions,
        "targets": list(config.target_names),
        "inputs": _addresses(inputs),
        "every": config.every,
        "frames": config.frames,
        **({"directory": os.getcwd()} if any(map(_is_relative, names)) else {}),  # noqa: PTH109  as it is
        **({"code": code} if (code := code_files([*_code_of_model(model), *own])) else {}),
        "execution": _execution(session, config),
    }


def _addresses(inputs: Iterable[str | Path | MemoryImage]) -> list[str] | None:
    """Return inputs that can be found again from any directory; None for those of a stream or in memory, or too many."""
    if not isinstance(inputs, Sequence) or len(inputs) > MOST_INPUTS:
        return None
    if any(isinstance(each, MemoryImage) for each in inputs):
        return None
    named = map(str, inputs)
    with suppress(OSError):  # the working directory was removed
        return [each if is_url(each) else os.path.abspath(expand_home(each)) for each in named]  # noqa: PTH100  not resolved
    return None


def _code_of_model(model: object) -> list[str]:
    return [model] if isinstance(model, str) and is_code(model) else []


def _is_relative(name: str) -> bool:
    """Return True for the name of a file, or a reference to code in one, that depends on the working directory."""
    path = name.partition(".py:")[0] + ".py" if ".py:" in name else name
    return not Path(path).is_absolute() and _is_file_in("", path)


def _is_file_in(directory: str, path: str) -> bool:
    return os.path.isfile(Path(directory) / path)


def code_files(references: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the SHA-256 of the files of user code, by the modules of references, and by their paths below its folder.

    Args:
        references: Of code that was imported: its files and those that it has imported.
    """
    found: dict[str, dict[str, str]] = {}
    for module in dict.fromkeys(parse_reference(each).module for each in references):
        if files := imported_files(module):
            _, folder = located(module)
            found[module] = {Path(os.path.relpath(path, folder)).as_posix(): sha256_of(path) for path in files}
    return found


def _execution(session: Session, config: RunConfig) -> dict[str, Any]:
    """Return what changes rounding, and what else may explain a difference."""
    packages = ["numpy", "pillow", *filter(None, [_PACKAGES.get(session.info.model.partition(":")[0])])]
    described: dict[str, Any] = {
        "device": session.device.type,
        "processor": processor_of(session.device),
        "packages": {name: _version(name) for name in packages},
    }
    if config.engine:
        return described | {"engine": "ray"}
    return described | {"threads": torch.get_num_threads(), "workers": session.workers, "batch_size": session.batch_size}


def processor_of(device: torch.device) -> str:
    """Return the name of a device as far as it changes rounding: of a CPU its vector instructions."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    instructions = re.search(r"CPU \w+ usage: (\S+)", torch.__config__.show())
    return f"{platform.machine()} {instructions[1] if instructions else ''}".rstrip()


def _version(package: str) -> str:
    with suppress(PackageNotFoundError):
        return version(package)
    return "none"


def differing_versions(record: Mapping[str, Any], session: Session) -> list[str]:
    """Return the versions, except Python's, that differ from those that drew a run, such as `torch 2.15.0, not 2.13.0`.

    Args:
        record: The content of `run.json`.
        session: The same run, loaded here.
    """
    here = {**session.info.versions, **_execution(session, session.request)["packages"]}
    there = {**_mapping(record.get("versions")), **_mapping(execution_of(record).get("packages"))}
    names = [name for name in here if name in there and name != "python" and there[name] != here[name]]
    return [f"{name} {here[name]}, not {printable(str(there[name]))}" for name in names]


def differing_device(record: Mapping[str, Any], session: Session) -> list[str]:
    """Return the device or processor, if it is another one than that with which a run was drawn."""
    there, here = execution_of(record), _execution(session, session.request)
    names = [name for name in ("device", "processor") if there.get(name, here[name]) != here[name]]
    return [f"{name} {here[name]}, not {printable(str(there[name]))}" for name in names]


def versions_of(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the recorded versions of packages; not what is no version, see https://peps.python.org/pep-0440."""
    found = _mapping(record.get("versions"))
    return {name: value for name, value in found.items() if isinstance(value, str) and _VERSION.fullmatch(value)}


def execution_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a run was executed, as far as it is recorded; values are of the right types."""
    found = _mapping(_mapping(record.get("request")).get("execution"))
    return {
        name: value for name, value in found.items() if name not in _COUNTS or (type(value) is int and 0 < value <= _MOST)
    }


@contextmanager
def threads_of(count: int | None) -> Iterator[None]:
    """Set the number of threads that torch computes with; None: as many as now."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device_of(record: Mapping[str, Any]) -> str:
    """Return the kind of device that drew a run, or `auto` if there is none of it here."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    device = str(execution_of(record).get("device"))
    return device if there.get(device) else "auto"


def _mapping(value: Any) -> dict[str, Any]:  # Any: a record may hold anything
    return value if isinstance(value, dict) else {}


def check_same(record: Mapping[str, Any], run: Path | str, session: Session) -> Session:
    """Return a loaded session with the identity of a run.

    Args:
        record: The content of the run's `run.json`.
        run: Its path or address.
        session: The session.

    Raises:
        RefusedError: The network, its weights, code or preprocessing are others than those of the run.
    """
    known = [session.info]
    if session.info.sha256 is not None:  # the same weights may lie in a file of another name by now
        known.append(replace(session.info, weights=str(record["settings"]["weights"])))
    recorded = (record.get("fingerprint"), record.get("settings"))
    info = next((each for each in known if (each.fingerprint, each.settings) == recorded), None)
    if info is None:
        changed = differences(record.get("settings"), session.info.settings)
        raise RefusedError(
            f"{quote(run)} was drawn with something else: {'; '.join(changed) or 'its settings are damaged'}",
            hint="it needs the network, the weights and the preprocessing that it was drawn with",
        )
    return replace(session, info=info)


def explanations(record: Mapping[str, Any], session: Session) -> list[str]:
    """Return what may explain that a run and the same run drawn again differ by rounding.

    Args:
        record: The content of its `run.json`.
        session: The same run, loaded here.
    """
    found = [*differing_versions(record, session), *differing_device(record, session)]
    explained = [f"drawn again with {', '.join(found)}"] if found else []
    if "threads" not in execution_of(record):
        explained.append("the run does not record its number of threads")
    if session.batch_size > 1:
        explained.append("images shared forward passes with others")
    return explained


@contextmanager
def only_recorded_code(record: Mapping[str, Any], run: str | Path, *, model: object = None) -> Iterator[None]:
    """Run no other user code in this thread than that of a run, unchanged; see `fmapviz.core.recorded_code`.

    Args:
        record: The content of the run's `run.json`.
        run: Its path or address.
        model: A network that was given, whose code may be run.

    Raises:
        RequestError: A file or module does not exist.
        RefusedError: A file has changed, or it is of the standard library. Nothing was run.
    """
    typed = [parse_reference(each).module for each in _code_of_model(model)]
    request = _mapping(record.get("request"))
    code = _mapping(request.get("code"))
    if model is not None:  # that of the run is not run
        used = [parse_reference(str(each)).module for each in _mapping(request.get("own")).values() if each]
        code = {module: files for module, files in code.items() if module in used}
    else:
        _check_arguments(_mapping(record.get("settings")).get("model"))
    with only_recorded(code, typed=typed) as changed:
        if changed:
            raise RefusedError(
                f"{quote(run)} was drawn with something else: {'; '.join(changed)}",
                hint="it needs the network, the weights and the preprocessing that it was drawn with",
            )
        yield


def _check_arguments(model: object) -> None:
    """Check the arguments of a recorded model that is no user code, whose arguments are checked when it is called.

    Raises:
        RefusedError: See `fmapviz.core.recorded_code.check_plain`.
    """
    with suppress(RequestError):  # there is no such model, which is reported later
        if isinstance(model, str) and not is_code(model):
            name, arguments = split_call(model)
            check_plain(name, arguments, nested=True)


@contextmanager
def in_recorded_directory(record: Mapping[str, Any]) -> Iterator[None]:
    """Work in the directory in which a run was begun, if it named files relative to it and they are still there."""
    request = _mapping(record.get("request"))
    directory = request.get("directory")
    names = (request.get("model"), request.get("weights"), *_mapping(request.get("own")).values())
    files = [str(name).partition(".py:")[0] + ".py" if ".py:" in str(name) else str(name) for name in names]
    if isinstance(directory, str) and any(_is_file_in(directory, file) for file in files):
        with chdir(directory):
            yield
    else:
        yield


def config_of(
    record: Mapping[str, Any],
    run: str | Path,
    *,
    model: str | nn.Module | Model | None = None,
    weights: Weights | None = None,
    preprocessing: InputOptions | None = None,
) -> RunConfig:
    """Return the recorded configuration of a run.

    Raises:
        RequestError: Something of it is missing.
    """
    request = record.get("request") or {}
    damaged = RequestError(f"the settings of {quote(run)} are not those of a run", hint=f"see {RUN_FILE} in it")
    try:
        settings = record["settings"]
        if not isinstance(settings["model"], str) or len(settings["model"]) > _MOST_LETTERS:
            raise damaged
        if settings["weights"] == IN_TRAINING:
            raise RequestError(
                f"the network of {quote(run)} was drawn while it was trained",
                hint="this needs one network: fmapviz.visualize(model, images, to='stats') of a checkpoint makes such a run",
            )
        if model is None and settings.get("against"):
            hint = "the original command draws it again, with another name="
            raise RequestError(f"{quote(run)} compares two networks", hint=hint)
        if model is None and "model" in request and request["model"] is None:
            raise RequestError(f"the network of {quote(run)} was given in Python", hint="model= takes it again")
        stored = (request.get("preprocessing") or {}).items()
        # Any: of each option its own type.
        prepared: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in stored}
        is_named = model is None or isinstance(model, str)
        return RunConfig(
            settings["model"] if model is None else model,
            layers=settings["layers"],
            exclude=settings["exclude"],
            types=request.get("types", settings["types"]),
            views=_references(settings["views"], request.get("own") or {}, run),
            to=_references(settings["formats"], request.get("own") or {}, run),
            predictions=request.get("predictions", settings["predictions"]),
            targets=request.get("targets", settings["targets"]),
            every=request.get("every", 1),
            frames=request.get("frames"),
            output=settings["output"],
            scores=settings["scores"],
            confidence=settings.get("confidence"),
            **{name: settings[name] for name in CHANGES if name in settings},
            dtype=settings["dtype"],
            shard=settings["shard"],
            style=Style(**settings["style"]),
            preprocessing=preprocessing or InputOptions(**prepared),
            weights=weights if weights is not None else _weights_of(record, run) if is_named else "default",
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise damaged from error


def _references(names: Sequence[str], own: Mapping[str, str | None], run: str | Path) -> list[str]:
    """Return the names of views or formats; those of the user are returned as references to their files.

    Raises:
        RequestError: One was given in Python.
    """
    if given := [name for name in names if name in own and own[name] is None]:
        raise RequestError(
            f"{quote(given[0])} of {quote(run)} was given in Python", hint="this needs a run of views and formats from files"
        )
    return [own.get(name) or name for name in names]


def _weights_of(record: Mapping[str, Any], run: str | Path) -> str:
    """Return the weights of a run as they are given to `load_model`.

    Raises:
        RequestError: They are a file or an address that the run does not record.
    """
    typed = (record.get("request") or {}).get("weights")
    if isinstance(typed, str):
        return typed
    described = str(record["settings"]["weights"])
    if described.startswith("random weights, seed "):
        return f"random:{described.rpartition(' ')[2]}"
    if record["settings"]["sha256"] is None:
        return described
    raise RequestError(f"{quote(run)} does not record where its weights are from", hint=f"weights= names them: {described}")
