"""The values themselves, one NumPy archive per image, an array per layer."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING
from zipfile import ZipFile, ZipInfo

import numpy as np

from fmapviz import files
from fmapviz.raw_maps import collect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fmapviz.values import Picture, Unit

NEEDS = "values"


@contextmanager
def open_writer(directory: Path, unit: Unit) -> Iterator[Callable[[Picture], None]]:
    """Write one image's values, `raw.npz`; see `fmapviz.raw_maps.collect` for names.

    What safetensors has as metadata is an array `__metadata__` here, a single text in JSON.

    Yields:
        A function that takes a picture and does nothing with it.

    Raises:
        OSError: The file could not be written.
    """
    yield lambda _: None
    arrays, told = collect(unit)
    # `numpy.savez` takes names as keyword arguments, of which it keeps some for itself.
    with files.create(directory / "raw.npz") as file, ZipFile(file, "w") as archive:
        for name, values in ("__metadata__", np.array(json.dumps(told))), *arrays.items():
            with archive.open(ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, values, allow_pickle=False)
