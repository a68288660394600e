"""Pixels in memory that two processes share: one lays them down, the other copies them."""

from __future__ import annotations

import fcntl
import os
import tempfile
from dataclasses import dataclass
from mmap import mmap
from typing import TYPE_CHECKING, Any

from PIL import Image as PillowImage

from fmapviz.pixels import MAX_VALUES, Bands

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROOM_BYTES = 4 * MAX_VALUES
_PIXEL_BYTES = {"L": 1, "RGB": 4, "F": 4}  # as Pillow keeps them


@dataclass(frozen=True, slots=True)
class Found:
    """What lies in the shared memory: planes of one mode and size, one after the other."""

    mode: str
    size: tuple[int, int]
    planes: int
    notices: tuple[str, ...]

    @property
    def plane_bytes(self) -> int:
        """How much memory each takes."""
        return _PIXEL_BYTES[self.mode] * self.size[0] * self.size[1]

    @property
    def bytes(self) -> int:
        """How much memory all take."""
        return self.plane_bytes * self.planes


class Shared:
    """Memory of two processes, mapped as far as it is used."""

    def __init__(self, descriptor: int, protection: int) -> None:
        self.descriptor = descriptor
        self._protection = protection
        self._mapped: mmap | None = None

    def first(self, size: int) -> mmap:
        """Give at least so many bytes from the beginning."""
        if self._mapped is None or len(self._mapped) < size:
            try:
                self._mapped = mmap(self.descriptor, size, prot=self._protection)
            except OSError as error:
                raise MemoryError from error
        return self._mapped

    def close(self) -> None:
        """Give it back."""
        self._mapped = None
        os.close(self.descriptor)


def make_memory() -> int:
    """Give a nameless file whose size nobody can change, and which takes memory only where it is written."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            file.truncate(_ROOM_BYTES)
            return os.dup(file.fileno())
    descriptor = os.memfd_create("fmapviz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, _ROOM_BYTES)
        # A helper that made it smaller would crash the run, which reads it.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:  # files may not be so large
        os.close(descriptor)
        raise
    return descriptor


def lay_down(pixels: PillowImage.Image | Bands, memory: Shared) -> list[object]:
    """Put pixels where the other process finds them, and say what they are."""
    planes: Sequence[PillowImage.Image] = pixels.planes if isinstance(pixels, Bands) else [pixels]
    planes = planes[:1] if all(plane is planes[0] for plane in planes) else planes  # grey, for a network of RGB
    found = Found(planes[0].mode, planes[0].size, len(planes), ())
    place = memory.first(found.bytes)
    for number, plane in enumerate(planes):
        if found.mode == "F":
            place[number * found.plane_bytes : (number + 1) * found.plane_bytes] = plane.tobytes()
        else:
            _paste(plane, _borrow(found, place))
    return [found.mode, *found.size, found.planes]


def pick_up(found: Found, memory: Shared, *, channels: int) -> PillowImage.Image | Bands:
    """Copy pixels from where the other process has put them."""
    place = memory.first(found.bytes)
    if found.mode != "F":
        picture = PillowImage.new(found.mode, found.size, None)
        _paste(_borrow(found, place), picture)
        return picture
    starts = range(0, found.bytes, found.plane_bytes)
    planes = [PillowImage.frombytes("F", found.size, place[start : start + found.plane_bytes]) for start in starts]
    return Bands(tuple(planes * (channels // found.planes)))


def _borrow(found: Found, place: mmap) -> PillowImage.Image:
    """Give a picture whose pixels are that memory: grey, or red, green, blue and a byte that means nothing."""
    mode = "RGBX" if found.mode == "RGB" else found.mode
    buffer: Any = place  # any buffer will do, which Pillow's types do not say
    return PillowImage.frombuffer(mode, found.size, buffer, "raw", mode, 0, 1)


def _paste(source: PillowImage.Image, target: PillowImage.Image) -> None:
    """Copy pixels from memory to memory; `tobytes` and `frombytes` take ten times as long."""
    target.im.paste(source.im, (0, 0, *source.size))
