"""One safetensors file per image with the raw values, a tensor per layer."""

from __future__ import annotations

import json
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING

from safetensors.numpy import save

from fmapviz.core import files
from fmapviz.writers._raw_values import collect

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from fmapviz.core.types import Picture, UnitImage

NEEDS = "values"
UNIT_FILES = "raw.safetensors"


class SafetensorsFile:
    """Writes the tensors of an image to `raw.safetensors`; see `fmapviz.writers._raw_values.collect` for their names."""

    def __init__(self, directory: Path) -> None:
        self.members: Mapping[str, int] = {}
        self._path = directory / UNIT_FILES

    def add(self, image: UnitImage, _pictures: Iterable[Picture]) -> tuple[()]:
        """See `fmapviz.writers.base.Writer`."""
        arrays, metadata = collect(image)
        files.write(self._path, *_sorted(save(arrays, metadata)))
        return ()


@contextmanager
def open_writer(directory: Path, *, many: bool = False) -> Iterator[SafetensorsFile]:  # noqa: ARG001
    """Write the values of one image."""
    yield SafetensorsFile(directory)


def _sorted(data: bytes) -> tuple[bytes, memoryview]:
    """Sort the metadata, which safetensors writes in another order each time.

    Format: https://huggingface.co/docs/safetensors/index#format
    """
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    sorted_header = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    sorted_header += b" " * (-len(sorted_header) % 8)
    return struct.pack("<Q", len(sorted_header)) + sorted_header, memoryview(data)[8 + length :]
