"""An animated GIF of each layer and view."""

from __future__ import annotations

from struct import pack
from typing import TYPE_CHECKING

import numpy as np
from PIL import GifImagePlugin
from PIL import Image as PillowImage

from fmapviz.core import files
from fmapviz.formats import base

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from fractions import Fraction
    from pathlib import Path


_SHORTEST = 2  # hundredths of a second; browsers slow down faster films
_ENDLESS = b"!\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"

open_writer = base.separate_files(lambda _directory, _image, _pictures: None)


def write_film(
    target: Path,
    pictures: Iterable[PillowImage.Image],
    *,
    size: tuple[int, int],
    rate: Fraction,
    times: Sequence[float] = (),
) -> None:
    """Write frame by frame, each with its palette; Pillow's writer keeps all frames in memory."""
    files.write_pieces(target, _pieces(pictures, size, rate, times))


def _pieces(
    pictures: Iterable[PillowImage.Image], size: tuple[int, int], rate: Fraction, times: Sequence[float]
) -> Iterator[bytes]:
    yield b"GIF89a" + pack("<HHBBB", *size, 0x70, 0, 0) + _ENDLESS
    shown = 0  # hundredths of a second
    for number, picture in enumerate(pictures, start=1):
        duration = max(_SHORTEST, round(100 * (times[number] if times else number / rate)) - shown)
        shown += duration
        frame = _with_palette(base.padded(picture, size))
        yield from GifImagePlugin.getdata(frame, duration=10 * duration, include_color_table=True)
    yield b";"


def _with_palette(picture: PillowImage.Image) -> PillowImage.Image:
    """Return a picture in mode P, with its own colours if there are at most 256."""
    rgb = np.asarray(picture.convert("RGB"), np.uint32)
    codes = rgb[..., 0] << 16 | rgb[..., 1] << 8 | rgb[..., 2]
    colours, indices = np.unique(codes, return_inverse=True)
    if len(colours) > 256:
        return picture.convert("RGB").quantize(256, PillowImage.Quantize.MEDIANCUT, dither=PillowImage.Dither.NONE)
    exact = PillowImage.fromarray(indices.reshape(codes.shape).astype(np.uint8), "P")
    table = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], 1).astype(np.uint8)
    exact.putpalette(table.tobytes())
    return exact
