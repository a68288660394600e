"""Entries of `torch.hub` in its cache, whose code is run: `hub:facebookresearch/dinov2:dinov2_vits14`, ..."""

from __future__ import annotations

import ast
import os
import re
import sys
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from torch import hub, nn

from fmapviz.core.platforms import python_in_shell
from fmapviz.core.recorded_code import allowing, check_called
from fmapviz.core.user_code import import_module_of, imported_files_beside, parse_reference, split_call
from fmapviz.errors import RequestError, WeightsError, first_few, quote, suggest
from fmapviz.models.initialization import NoInitialization, read_seed, seeded
from fmapviz.models.network import describe_network
from fmapviz.models.sources.python import build_network
from fmapviz.models.weights.file import weights_only
from fmapviz.models.weights.fit import LoadedWeights, load_weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

    from fmapviz.config import InputOptions
    from fmapviz.data import Model


_FORM = re.compile(r"(\w[\w-]*)/(\w[\w.-]*)(?::(\w[\w./-]*))?:([^\W\d]\w*)")
_BRANCHES = ("main", "master")
_LIBRARIES = {"torch", "torchvision", *sys.stdlib_module_names}


def model_names() -> list[str]:
    """List the entries in the cache, without running anything."""
    found = (path.parent for path in Path(hub.get_dir()).glob("*_*/hubconf.py"))
    return sorted(
        f"{spelled}:{entry}" for folder in found for spelled in _spelled(folder.name) for entry in _entries_in(folder)
    )


def load(name: str, *, weights: str | Mapping[str, Any] | None, preprocessing: InputOptions) -> Model:
    """Run a cached repository's code, and fill the network with weights; see `ModelSource`.

    With `default` the weights are those that the entry loads from the cache. For other weights it is called with
    `pretrained=False` if it has that argument.
    """
    full, arguments = split_call(name)
    folder, entry = _find(full)
    is_default = weights == "default"
    seed = None if weights is None or is_default else read_seed(weights)
    with NoInitialization() if weights is None else seeded(seed or 0):
        home, module = _build(name, folder, entry, arguments, pretrained=None if is_default else False)
    notice = f"weights as {quote(full)} loads or builds them; weights='random' and weights=FILE are others"
    loaded = LoadedWeights(module, "weights of the entry", notices=(notice,))
    if not is_default:
        loaded = load_weights(weights, lambda: module)
    code = None if weights is None else imported_files_beside(home)
    return describe_network(loaded, name=f"hub:{name}", preprocessing=preprocessing, code=code, home=home)


def _find(full: str) -> tuple[Path, str]:
    """Return the folder of a repository in the cache, and the name of the entry.

    Raises:
        RequestError: The name is malformed, the repository is not cached, or it has no such entry.
    """
    match = _FORM.fullmatch(full)
    if not match:
        raise RequestError(
            f"not an entry of torch.hub: {quote(full)}",
            hint=suggest(full, model_names())
            or "hub:OWNER/REPOSITORY:ENTRY, such as hub:facebookresearch/dinov2:dinov2_vits14",
        )
    owner, repository, reference, entry = match.groups()
    cache = Path(hub.get_dir())
    references = [reference.replace("/", "_")] if reference else _BRANCHES
    folders = [cache / f"{owner}_{repository}_{branch}" for branch in references]
    folder = next((path for path in folders if os.path.isfile(path / "hubconf.py")), None)
    if folder is None:
        source = f"{owner}/{repository}{f':{reference}' if reference else ''}"
        command = python_in_shell("-c", f'import torch; torch.hub.load("{source}", "{entry}")')
        raise RequestError(
            f"{quote(source)} is not in torch.hub's cache, {quote(cache)}, and is not downloaded: its code would be run",
            hint=f"if you trust it: {command}",
        )
    known = _entries_in(folder)
    if known and entry not in known:
        raise RequestError(
            f"no entry {quote(entry)} in {quote(folder)}", hint=suggest(entry, known) or f"there are: {first_few(known)}"
        )
    return folder, entry


def _build(
    name: str, folder: Path, entry: str, arguments: Mapping[str, Any], *, pretrained: bool | None
) -> tuple[ModuleType, nn.Module]:
    """Return the imported `hubconf.py` and the network.

    Args:
        name: As the user typed it.
        folder: Of the repository.
        entry: The function.
        arguments: The user's.
        pretrained: Passed unless the user passes it or the function has no such argument; None: not passed.
    """
    reference = parse_reference(f"{folder / 'hubconf.py'}:{entry}")
    with _offline(name), allowing(folder):
        home = import_module_of(reference)
        build = getattr(home, entry, None)
        check_called(reference.module, f"hub:{name}", build)
        given = dict(arguments)
        if pretrained is not None and callable(build):
            with suppress(TypeError, ValueError):  # C code
                given = {"pretrained": pretrained, **given} if "pretrained" in signature(build).parameters else given
        there = f"there are: {first_few(_entries_in(folder))}"
        return home, build_network(build, replace(reference, arguments=given), home, hint=there)


@contextmanager
def _offline(name: str) -> Iterator[None]:
    """Refuse downloads through `torch.hub`, and read no pickled objects from files."""

    def refuse(url: str, *_args: object, **_kwargs: object) -> NoReturn:
        raise WeightsError(
            f"{quote(name)} needs {quote(url)}, which is not in torch.hub's cache",
            hint=f"put it into {quote(Path(hub.get_dir()) / 'checkpoints')}, or pass weights='random' or weights=FILE",
        )

    with ExitStack() as stack:
        stack.enter_context(weights_only())
        for function in ("download_url_to_file", "_get_cache_or_reload"):
            stack.callback(partial(setattr, hub, function, getattr(hub, function)))
            setattr(hub, function, refuse)
        yield


def _entries_in(folder: Path) -> list[str]:
    """List the public functions that `hubconf.py` defines or imports, without running it."""
    found: list[str] = []
    with suppress(OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        for statement in ast.parse((folder / "hubconf.py").read_bytes()).body:
            if isinstance(statement, ast.FunctionDef):
                found.append(statement.name)
            elif isinstance(statement, ast.ImportFrom) and (statement.module or "").partition(".")[0] not in _LIBRARIES:
                found += [alias.asname or alias.name for alias in statement.names if alias.name != "*"]
                if any(alias.name == "*" for alias in statement.names):
                    return []  # they are known only when it runs
    return sorted(name for name in found if not name.startswith("_"))


def _spelled(folder: str) -> Iterator[str]:
    """Yield the model name of a folder of the cache, `OWNER_REPOSITORY_REFERENCE`, if it is unambiguous."""
    parts = folder.split("_")
    if len(parts) >= 3 and parts[-1] in _BRANCHES:
        yield f"{parts[0]}/{'_'.join(parts[1:-1])}"
    elif len(parts) == 3:
        yield f"{parts[0]}/{parts[1]}:{parts[2]}"
