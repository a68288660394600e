"""One NumPy archive per image with the raw values, an array per layer."""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any
from zipfile import ZipFile, ZipInfo

import numpy as np

from fmapviz.core import files
from fmapviz.formats import base
from fmapviz.formats.raw_values import collect

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from fmapviz.data import Picture, UnitImage

_FILE, METADATA = "raw.npz", "__metadata__"


def _write(directory: Path, image: UnitImage, _pictures: Iterable[Picture]) -> None:
    """Write the arrays of an image to `raw.npz`; see `fmapviz.formats.raw_values.collect` for their names.

    What safetensors has as metadata is an array `__metadata__` here, a single text in JSON.
    """
    arrays, metadata = collect(image)
    with files.create(directory / _FILE) as file:
        write_arrays(file, {METADATA: np.array(json.dumps(metadata)), **arrays})


def write_arrays(file: IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays to a NumPy archive. `numpy.savez` takes names as keyword arguments, and reserves some."""
    with ZipFile(file, "w") as archive:
        for name, values in arrays.items():
            with archive.open(ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, values, allow_pickle=False)


open_writer = base.separate_files(_write)
