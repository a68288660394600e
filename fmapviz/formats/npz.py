"""One NumPy archive per image with the raw values, an array per layer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from zipfile import ZipFile, ZipInfo

import numpy as np

from fmapviz.core import files
from fmapviz.formats import base
from fmapviz.formats.raw_values import collect

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from fmapviz.data import Picture, UnitImage

_FILE = "raw.npz"


def _write(directory: Path, image: UnitImage, _pictures: Iterable[Picture]) -> None:
    """Write the arrays of an image to `raw.npz`; see `fmapviz.formats.raw_values.collect` for their names.

    What safetensors has as metadata is an array `__metadata__` here, a single text in JSON.
    """
    arrays, metadata = collect(image)
    # `numpy.savez` takes names as keyword arguments, and reserves some.
    with files.create(directory / _FILE) as file, ZipFile(file, "w") as archive:
        for name, values in ("__metadata__", np.array(json.dumps(metadata))), *arrays.items():
            with archive.open(ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, values, allow_pickle=False)


open_writer = base.separate_files(_write)
