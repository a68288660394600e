"""Weights as people have them: find the file, read it without running anything in it, and fill a network with it."""

from __future__ import annotations

import hashlib
import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fmapviz.containers import files_of, in_folder, read_content
from fmapviz.contents import NESTS, find_classes, find_state, list_states
from fmapviz.digests import digest_of
from fmapviz.downloads import fetch
from fmapviz.errors import WeightsError, quote, suggest
from fmapviz.fitting import fit_keys, load_state_dict
from fmapviz.mismatches import some
from fmapviz.refusals import no_state
from fmapviz.tracebacks import sentence_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from torch import nn

    from fmapviz.contents import StateDict


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """What was found in a weights file.

    Attributes:
        state: Tensors on the CPU under their keys, as they are in the file.
        classes: The names of the classes, if the file says them; nobody has compared them with the network yet.
        notices: What had to be decided while reading it, for the person to know.
    """

    state: StateDict
    classes: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """What a network was filled with.

    Attributes:
        name: Of the file, with `#ema` if that part of it was asked for.
        sha256: Of the file; of an index and its files one after the other, in the order of their names.
        classes: The names of the classes, if the file says them.
        notices: What had to be decided, for the person to know.
    """

    name: str
    sha256: str
    classes: tuple[str, ...]
    notices: tuple[str, ...]


def load_weights(module: nn.Module, weights: str, *, known: Sequence[str] = ()) -> LoadedWeights:
    """Fill a network with the weights of a checkpoint.

    Args:
        weights: A file, a folder or a URL, with `#ENTRY` for what is not the usual part of it.
        known: Words that could have been meant instead, for the hint.

    Raises:
        WeightsError: They cannot be had, read or fitted in.
    """
    path, entry = find_weights(weights, known=known)
    with digesting(path) as digest:
        checkpoint = read_checkpoint(path, entry)
        state, notices = fit_keys(checkpoint.state, module.state_dict(), path)
        load_state_dict(module, state, path)
    return LoadedWeights(
        label(path, entry), digest.result(), classes=checkpoint.classes, notices=(*checkpoint.notices, *notices)
    )


def find_weights(weights: str, *, known: Sequence[str] = ()) -> tuple[Path, str | None]:
    """Find the file that is meant, downloading it if need be.

    Args:
        weights: A file, a folder of Hugging Face's, or a URL (`http:`, `https:`, `file:`), with `#ENTRY` behind it for a
            part of it. A file with a `#` in its name is that file.
        known: Words that could have been meant instead, for the hint.

    Returns:
        The file or the index of several, and the entry asked for.

    Raises:
        WeightsError: There is none, or it cannot be had.
    """
    if "://" in weights:
        if not re.match(r"(https?|file)://", weights):
            raise WeightsError(f"no such weights: {quote(weights)}", hint="URLs may begin with https://, http:// or file://")
        url, _, entry = weights.partition("#")
        path = fetch(url)
        if not _exists(str(path)):
            raise WeightsError(f"no such weights file: {quote(path)}")
        return in_folder(path), entry or None
    name, _, entry = weights.rpartition("#")
    if _exists(weights):
        return in_folder(Path(weights)), None
    if entry and _exists(name):
        return in_folder(Path(name)), entry
    if not weights.startswith("random:") and re.search(r"[./\\]", weights):
        raise WeightsError(f"no such weights file: {quote(weights)}")
    raise WeightsError(
        f"no such weights, and no such file: {quote(weights)}",
        hint=suggest(weights, known) or (f"there are: {', '.join(known)}" if known else None),
    )


def read_checkpoint(path: Path, entry: str | None = None) -> Checkpoint:
    """Read the state dict of a file, and the names of the classes that it may hold.

    Args:
        entry: What to take instead of the usual part: a dotted name in the file, or the beginning of keys.

    Raises:
        WeightsError: It is not there, damaged, of another kind, holds no state dict, or would have to run code.
    """
    path = in_folder(path)
    content, header, unread = read_content(path)
    try:
        _require_end(content)
        found = find_state(content, entry)
        if found is None:
            raise no_state(path, content, unread)
        state, name = found
        notices = [] if entry else list(_remarks(content, name, path))
        classes = find_classes(content) or find_classes(_parsed(header))
    except RecursionError as error:
        raise WeightsError(f"no state dict in {quote(path)}: it is nested without end") from error
    if unread:
        notices.append(f"left unread what is Python in {quote(path)}: {some(unread)}")
    return Checkpoint(state, classes, tuple(notices))


def _require_end(content: object) -> None:
    """Refuse dictionaries that lie in each other so often that nobody comes to an end who looks for something in them.

    Raises:
        RecursionError: They do.
    """
    sizes: dict[int, int] = {}

    def size(content: object) -> int:
        if not isinstance(content, dict):
            return 0
        if id(content) not in sizes:
            sizes[id(content)] = 0  # it may lie in itself
            sizes[id(content)] = 1 + sum(size(value) for value in content.values() if isinstance(value, dict))
        return sizes[id(content)]

    if size(content) > 1000 + 10 * len(sizes):
        raise RecursionError


def label(path: Path, entry: str | None) -> str:
    """Give the name of a weights file, with the part of it that was asked for."""
    return f"{path.name}#{entry}" if entry else path.name


def _remarks(content: object, name: str, path: Path) -> Iterator[str]:
    """Say what else could have been taken, and what was taken for want of a usual name."""
    if name and name.rpartition(".")[2] not in NESTS:
        yield f"the weights are those under {quote(name)} in {quote(path)}"
    others = [other for other in list_states(content) if other != name] if name else []
    if others:
        takes = "takes it" if len(others) == 1 else "takes the first"
        yield f"{quote(path)} also holds {some([*map(quote, others)])}: --weights {quote(f'{path}#{others[0]}')} {takes}"


@contextmanager
def digesting(path: Path) -> Iterator[Future[str]]:
    """Compute the SHA-256 of weights while they are loaded: for VGG-16 that takes as long as the loading."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(_digest, in_folder(path))


@contextmanager
def building_for(path: Path) -> Iterator[None]:
    """Say of a network that cannot be built in the sizes of the tensors in a file that these are to blame.

    Raises:
        WeightsError: A tensor may claim more numbers than there is memory for.
    """
    try:
        yield
    except Exception as error:  # RuntimeError, TypeError, ValueError, ...: the network's builder has its own ways to fail
        raise WeightsError(f"no network can be built for the weights in {quote(path)}: {sentence_of(error)}") from error


def _digest(path: Path) -> str:
    """Give what `cat INDEX FILE FILE ... | sha256sum` gives; nothing if one of them is no file."""
    paths = files_of(path)
    if not all(part.is_file() for part in paths):  # a pipe or a device has no end; whoever reads it says what it is
        return ""
    if len(paths) == 1:
        return digest_of(path)
    digest = hashlib.sha256()
    for part in paths:
        with part.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def _exists(name: str) -> bool:
    try:
        return bool(name) and Path(name).exists()
    except OSError:  # a name that is too long
        return False


def _parsed(header: dict[str, str]) -> dict[str, object]:
    """Read the values of a safetensors header that are JSON."""
    parsed: dict[str, object] = {}
    for key, value in header.items():
        try:
            parsed[key] = json.loads(value)
        except ValueError:
            continue
    return parsed
