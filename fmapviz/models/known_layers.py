"""Names of the layers and classes of models that ran, in the user's cache: the shell completes them without torch."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fmapviz.core import files, registry
from fmapviz.core.platforms import user_caches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_BYTES = 2**20  # of a file; a network with more is not kept
MOST_FILES = 200


@dataclass(frozen=True, slots=True)
class KnownModel:
    """What is known of a model that ran.

    Attributes:
        layers: The types of its layers by their names, in the order of definition.
        classes: Names of its outputs; empty if unknown.
    """

    layers: Mapping[str, str]
    classes: tuple[str, ...] = ()


def cache_folder() -> Path | None:
    """Return the directory of the cache: `FMAPVIZ_CACHE`, or fmapviz in the user's directory of caches.

    Returns:
        None if `FMAPVIZ_CACHE` is empty, or if the user has no home.
    """
    own = os.environ.get("FMAPVIZ_CACHE")
    if own is not None:
        return Path(own) if own else None
    with suppress(RuntimeError):  # no home
        return user_caches()
    return None


def remember(spec: str, layers: Mapping[str, str], classes: Sequence[str] = ()) -> None:
    """Keep the layers and classes of a model. A failure is ignored: the cache is only a convenience.

    Args:
        spec: The model as the user wrote it.
        layers: Types by name.
        classes: Names of the outputs; if empty, those that are known stay.
    """
    with suppress(OSError, ValueError):
        if (path := _path_of(spec)) is None:
            return
        if not classes and (known := recall(spec)):
            classes = known.classes
        record = {"model": spec, "stamp": _stamp(spec), "layers": dict(layers), "classes": list(classes)}
        text = json.dumps(record).encode()
        if len(text) > MOST_BYTES:
            return
        files.make_folders(path.parent)
        files.write_over(path, text)
        _remove_oldest(path.parent)


def recall(spec: str) -> KnownModel | None:
    """Return what is known of a model; None if nothing is, or if its code has changed since.

    Example:
        >>> recall("my_net.py:never_drawn") is None
        True
    """
    with suppress(OSError, ValueError, RecursionError):
        path = _path_of(spec)
        text = files.read(path, most=MOST_BYTES + 1) if path else b""
        record = json.loads(text) if len(text) <= MOST_BYTES else None
        if not isinstance(record, dict) or record.get("model") != spec or record.get("stamp") != _stamp(spec):
            return None
        layers, classes = record.get("layers"), record.get("classes")
        if isinstance(layers, dict) and isinstance(classes, list) and all(map(_is_text, [*layers.values(), *classes])):
            return KnownModel(layers, tuple(classes))
    return None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _path_of(spec: str) -> Path | None:
    """Return the file of a model; models of the same name in other directories have others."""
    folder, code = cache_folder(), _code_of(spec)
    key = json.dumps([spec, os.path.realpath(code) if code else ""])
    return folder / "layers" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json" if folder else None


def _code_of(spec: str) -> Path | None:
    """Return the file or folder that a model's name refers to; None for published models."""
    name = spec.partition("(")[0].removeprefix("hf:")
    if any(name in source.names for source in registry.sources().values()):
        return None
    module = name.partition(":")[0]
    for path in map(Path, (name, module, f"{module.replace('.', '/')}.py", f"{module.replace('.', '/')}/__init__.py")):
        if os.path.exists(path):
            return path
    return None


def _stamp(spec: str) -> list[int]:
    """Return time and size of a model's code."""
    code = _code_of(spec)
    status = code.stat() if code else None
    return [status.st_mtime_ns, status.st_size] if status else []


def _remove_oldest(folder: Path) -> None:
    with os.scandir(folder) as entries:
        found = [Path(entry) for entry in entries if entry.name.endswith(".json")]
    if len(found) > MOST_FILES:
        ages = {path: path.stat().st_mtime_ns for path in found}
        for path in sorted(found, key=ages.__getitem__)[: len(found) - MOST_FILES]:
            files.remove(path)
