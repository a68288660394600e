"""Limits on decoded pixels, and their transfer between processes through shared memory.

Shared memory is a nameless file (`memfd_create`): it is freed however the processes end, and is not bounded by the size of
`/dev/shm`, as `multiprocessing.shared_memory` is. Pixels of 8 bits are stored as Pillow stores them, because its `tobytes`
and `frombytes` take ten times as long as a copy.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PIL import Image as PillowImage

from fmapviz.core.errors import InputError, quote
from fmapviz.core.types import Bands

if TYPE_CHECKING:
    from collections.abc import Sequence
    from mmap import mmap

MAX_PIXELS = 89_478_485  # where Pillow begins to warn: 256 MiB of RGB
MAX_VALUES = 3 * MAX_PIXELS
SHARED_BYTES = 4 * MAX_VALUES
_PIXEL_BYTES = {"L": 1, "RGB": 4, "F": 4}  # as Pillow keeps them


def wrong_channels(found: str, path: str, *, channels: int) -> InputError:
    """Return the error for a file with another number of channels than the model takes."""
    expected = "1 channel" if channels == 1 else f"{channels} channels"
    message = f"the model takes {expected}, this is {found}: {quote(path)}"
    hint = f"{'a picture, or ' if channels in {1, 3} else ''}a .npy or .tif file with {expected}"
    return InputError("E_CHANNELS", message, hint=hint)


@dataclass(frozen=True, slots=True)
class StoredPixels:
    """Planes of one mode and size, stored one after the other from the beginning of the shared memory.

    Attributes:
        mode: `L`, `RGB` or `F`.
        size: Width and height.
        planes: Number of planes; more than one only in mode `F`.
        notices: Notices of the decoder.
    """

    mode: str
    size: tuple[int, int]
    planes: int
    notices: tuple[str, ...] = ()

    @property
    def plane_bytes(self) -> int:
        """Size of one plane."""
        return _PIXEL_BYTES[self.mode] * self.size[0] * self.size[1]

    @property
    def bytes(self) -> int:
        """Size of all planes."""
        return self.plane_bytes * self.planes


def create_shared_memory() -> int:
    """Return the descriptor of a sparse file of `SHARED_BYTES`, whose size is fixed.

    Raises:
        OSError: The system has none, or limits the size of files.
    """
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            file.truncate(SHARED_BYTES)
            return os.dup(file.fileno())
    descriptor = os.memfd_create("fmapviz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, SHARED_BYTES)
        # If a worker shortened the file, reading it would crash the run.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def store_pixels(pixels: PillowImage.Image | Bands, memory: mmap) -> StoredPixels:
    """Copy pixels into shared memory."""
    planes: Sequence[PillowImage.Image] = pixels.planes if isinstance(pixels, Bands) else [pixels]
    planes = planes[:1] if all(plane is planes[0] for plane in planes) else planes  # grey, repeated for a network of RGB
    stored = StoredPixels(planes[0].mode, planes[0].size, len(planes))
    for number, plane in enumerate(planes):
        if stored.mode == "F":
            memory[number * stored.plane_bytes : (number + 1) * stored.plane_bytes] = plane.tobytes()
        else:
            _view(stored, memory).im.paste(plane.im, (0, 0, *plane.size))
    return stored


def load_pixels(stored: StoredPixels, memory: mmap, *, channels: int) -> PillowImage.Image | Bands:
    """Copy pixels out of shared memory."""
    if stored.mode != "F":
        picture = PillowImage.new(stored.mode, stored.size, None)
        picture.im.paste(_view(stored, memory).im, (0, 0, *stored.size))
        return picture
    starts = range(0, stored.bytes, stored.plane_bytes)
    planes = [PillowImage.frombytes("F", stored.size, memory[start : start + stored.plane_bytes]) for start in starts]
    return Bands(tuple(planes * (channels // stored.planes)))


def _view(stored: StoredPixels, memory: mmap) -> PillowImage.Image:
    """Return a picture whose pixels are the shared memory: L, or RGB with an unused fourth byte."""
    mode = "RGBX" if stored.mode == "RGB" else stored.mode
    buffer: Any = memory  # Pillow's types do not accept an mmap, its code accepts any buffer
    return PillowImage.frombuffer(mode, stored.size, buffer, "raw", mode, 0, 1)
