"""One safetensors file per image with the raw values, a tensor per layer."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

from safetensors.numpy import save

from fmapviz.core import files
from fmapviz.formats import base
from fmapviz.formats.raw_values import collect

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from fmapviz.data import Picture, UnitImage

_FILE = "raw.safetensors"


def _write(directory: Path, image: UnitImage, _pictures: Iterable[Picture]) -> None:
    """Write the tensors of an image to `raw.safetensors`; see `fmapviz.formats.raw_values.collect` for their names."""
    files.write(directory / _FILE, *_sorted(save(*collect(image))))


open_writer = base.separate_files(_write)


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
