"""Find the file or files that `--weights` names, and compute their digest."""

from __future__ import annotations

import hashlib
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fmapviz.core.synonyms import meant_member
from fmapviz.errors import WeightsError, quote, suggest, suggest_file
from fmapviz.models.weights.download import fetch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

DAMAGED = "if it is damaged or incomplete, delete it and download it again"

INDEX = ".index.json"  # ends the name of an index: Hugging Face's table of which tensor is in which file
_IN_FOLDERS = ("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json", "pytorch_model.bin")
_LONGEST_NAME = 255  # bytes, the limit of common file systems


def find_weights(weights: str, *, known: Sequence[str] = ()) -> tuple[Path, str | None]:
    """Return the path of a weights file or index, downloaded if necessary, and the requested entry.

    Args:
        weights: A file, a folder in Hugging Face's format, or a URL (`http:`, `https:`, `file:`), optionally followed by
            `#ENTRY`. An existing file with a `#` in its name is that file.
        known: Valid words for the hint.

    Raises:
        WeightsError: The file does not exist or cannot be downloaded.
    """
    if "://" in weights:
        if not re.match(r"(https?|file)://", weights):
            raise WeightsError(f"no such weights: {quote(weights)}", hint="URLs may begin with https://, http:// or file://")
        url, _, fragment = weights.partition("#")
        path = fetch(url)
        if not os.path.exists(str(path)):
            raise missing(str(path))
        return _in_folder(path), fragment or None
    before, _, after = weights.rpartition("#")
    for name, entry in ((weights, None), (before, after)):
        if os.path.exists(name) and entry != "":
            return _in_folder(Path(name)), entry
    if not weights.startswith("random:") and re.search(r"[./\\]", weights):
        raise missing(weights)
    raise WeightsError(
        f"no such weights or file: {quote(weights)}",
        hint=meant_member("weights", weights, known)
        or suggest(weights, known)
        or (f"there are: {', '.join(known)}" if known else None),
    )


def missing(path: str) -> WeightsError:
    """Return the error for a weights file that does not exist, or is no regular file."""
    if os.path.exists(path) and not os.path.isdir(path):
        return WeightsError(
            f"not a regular file: {quote(path)}", hint="weights are read several times: copy a pipe's content into a file"
        )
    one = "weights= takes one file, not a pattern: a loop of the shell gives a run of each"
    hint = one if any(ch in path for ch in "*?[") else suggest_file(path)
    return WeightsError(f"no such weights file: {quote(path)}", hint=hint)


def read_index(index: Path) -> dict[str, str]:
    """Return the file name of each tensor. Only files beside the index are accepted.

    `huggingface_hub` 2.4 validates an index like this, but does so only while it loads one into a model; see `read`.

    Raises:
        WeightsError: The index is malformed, or names a file outside its folder.
    """
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        names = set(weight_map.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"cannot read {quote(index)}: not an index of weights", hint=DAMAGED) from error
    for name in names:
        if not isinstance(name, str) or re.search(r"[/\\\0]", name) or name in {"", ".", ".."} or name.endswith(INDEX):
            raise WeightsError(f"refused: {quote(index)} names a file that is not beside it: {quote(name)}", hint=DAMAGED)
        if len(name.encode("utf-8", "surrogatepass")) > _LONGEST_NAME:
            raise WeightsError(f"{quote(index)} names a file with an impossible name: {quote(name)}", hint=DAMAGED)
    return dict(weight_map)


@contextmanager
def digesting(path: Path) -> Iterator[Future[str]]:
    """Compute the SHA-256 of weights in a thread while they are loaded: for VGG-16 each takes as long as the other.

    Of an index and its files it is the output of `cat INDEX FILE FILE ... | sha256sum`, files sorted by name; empty if one
    of them is not a regular file, because a pipe or device may never end.
    """

    def digest() -> str:
        shards = sorted(set(read_index(path).values())) if path.name.endswith(INDEX) else []
        paths = [path, *(path.with_name(name) for name in shards)]
        return sha256_of(*paths) if all(os.path.isfile(part) for part in paths) else ""

    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(digest)


@contextmanager
def weights_only() -> Iterator[None]:
    """Make `torch.load` refuse everything but tensors, also where other code asks for more."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def sha256_of(*paths: Path) -> str:
    """Return the SHA-256 of the concatenated files, hexadecimal."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def _in_folder(path: Path) -> Path:
    """Return the weights file or index in a folder, or the path itself if it is not a folder.

    Raises:
        WeightsError: The folder contains none.
    """
    if not os.path.isdir(path):
        return path
    file = next((path / name for name in _IN_FOLDERS if os.path.isfile(path / name)), None)
    if file is None:
        raise WeightsError(f"no such weights file: {quote(path)}", hint=f"a folder may contain {' or '.join(_IN_FOLDERS)}")
    return file
