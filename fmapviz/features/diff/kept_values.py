"""Read the outputs of layers that the unit of an image stores in one of the formats of raw values."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
from safetensors import SafetensorError, safe_open

from fmapviz.core import registry
from fmapviz.core.file_names import unit_patterns
from fmapviz.errors import RequestError, quote
from fmapviz.run.load import needs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from fmapviz.config import RunConfig

    Described = Mapping[str, Any]  # Any: JSON values


@dataclass(frozen=True, slots=True, eq=False)
class KeptValues:
    """The stored output of a layer.

    Attributes:
        array: Output of the layer, without the batch axis.
        index: Its position in the order of execution.
        type: Class name of the layer.
    """

    array: NDArray[Any]
    index: int
    type: str


def list_types(unit: Path) -> dict[str, str]:
    """Return the types of the layers of a unit, by their names; the values themselves are not read.

    Raises:
        RequestError: It stores no values.
        OSError, KeyError, TypeError, ValueError: They are damaged.
    """
    with _open(unit) as (layers, _):
        return {str(each["layer"]): str(each["type"]) for each in layers}


def read_values(unit: Path, config: RunConfig) -> dict[str, KeptValues]:
    """Read the stored outputs of the chosen layers, by their names.

    Raises:
        RequestError: It stores no values.
        OSError, KeyError, TypeError, ValueError: They are damaged.
    """
    with _open(unit) as (layers, read):
        return {
            str(each["layer"]): KeptValues(read(each["key"]), int(each["index"]), str(each["type"]))
            for each in layers
            if is_chosen(str(each["layer"]), str(each["type"]), config)
        }


def is_chosen(name: str, type_: str, config: RunConfig) -> bool:
    """Return True if a layer is chosen, by the globs of names, and by the types as they are recorded."""

    def matches(patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    of_type = not config.types or type_ in config.types
    return of_type and (not config.layers or matches(config.layers)) and not matches(config.exclude)


@contextmanager
def _open(unit: Path) -> Iterator[tuple[list[Described], Callable[[str], NDArray[Any]]]]:
    """Open the values of a unit; yield the descriptions of outputs, and a function that reads one by its key."""
    formats = [form for form in registry.formats() if "values" in needs_of(form)]
    name = next((each for form in formats for each in unit_patterns(form) if os.path.isfile(unit / each)), None)
    if name is None:
        hint = f"draw both runs with to={formats[0]!r}"
        raise RequestError(f"a run without stored values of layers: {quote(unit)}", hint=hint)
    try:
        if name.endswith(".npz"):
            with (unit / name).open("rb") as opened, np.load(opened, allow_pickle=False) as archive:
                yield _outputs(json.loads(str(archive["__metadata__"]))["layers"]), archive.__getitem__
        else:
            with safe_open(unit / name, framework="numpy") as file:
                yield _outputs(file.metadata()["layers"]), file.get_tensor
    except (SafetensorError, BadZipFile) as error:
        raise ValueError(name) from error


def _outputs(layers: str) -> list[Described]:
    return [each for each in json.loads(layers) if each.get("of") == "output"]
