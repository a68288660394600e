"""The values themselves, one safetensors file per image, a tensor per layer."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from safetensors.numpy import save

from fmapviz.raw_maps import collect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fmapviz.values import Picture, Unit

NEEDS = "values"


@contextmanager
def open_writer(directory: Path, unit: Unit) -> Iterator[Callable[[Picture], None]]:
    """Write one image's values, `raw.safetensors`; see `fmapviz.raw_maps.collect` for names and metadata.

    Yields:
        A function that takes a picture and does nothing with it.

    Raises:
        OSError: The file could not be written.
    """
    yield lambda _: None
    arrays, told = collect(unit)
    with (directory / "raw.safetensors").open("xb") as file:
        file.write(save(arrays, told))  # `save_file` hides what went wrong with the disk
