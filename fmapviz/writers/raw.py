"""The values themselves, one safetensors file per image, a tensor per layer."""

from __future__ import annotations

import json
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING

from safetensors.numpy import save

from fmapviz import files
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
    files.write(directory / "raw.safetensors", *_in_order(save(arrays, told)))


def _in_order(data: bytes) -> tuple[bytes, memoryview]:
    """Sort the metadata, which safetensors writes in another order each time.

    Format: https://huggingface.co/docs/safetensors/index#format
    """
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    sorted_header = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    sorted_header += b" " * (-len(sorted_header) % 8)
    return struct.pack("<Q", len(sorted_header)) + sorted_header, memoryview(data)[8 + length :]
