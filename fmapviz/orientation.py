"""Turn a picture as its camera was held."""

from __future__ import annotations

import re
import struct

from PIL import ExifTags, ImageOps
from PIL import Image as PillowImage


def read_orientation(image: PillowImage.Image) -> tuple[int, str | None]:
    """Give the EXIF orientation, 1 to 8; after `load()`, since PNG may hold it behind the pixels."""
    try:
        exif = image.getexif()
        orientation = exif.get(ExifTags.Base.Orientation, 1) or 1  # 0: some cameras' way to say nothing
        if orientation in range(1, 9) and _is_whole(image.info.get("exif"), exif.endian):
            return orientation, None
    except Exception:  # noqa: BLE001 - Pillow's EXIF parser raises anything; the pixels are not affected
        orientation = 1
    return orientation if orientation in range(1, 9) else 1, "EXIF data is damaged: the picture may not be upright"


def upright(picture: PillowImage.Image, orientation: object) -> PillowImage.Image:
    """Turn a picture by an EXIF orientation, 2 to 8; anything else leaves it as it is."""
    if orientation in range(2, 9):
        picture.getexif()[ExifTags.Base.Orientation] = orientation
        ImageOps.exif_transpose(picture, in_place=True)
    return picture


def _is_whole(block: bytes | None, endian: str | None) -> bool:
    """Tell whether the first table of an EXIF block lies inside it; Pillow takes what there is."""
    table = re.sub(rb"^(Exif\0\0)+", b"", block or b"")
    if not table:
        return not block
    (start,) = struct.unpack_from(f"{endian}L", table, 4)
    (entries,) = struct.unpack_from(f"{endian}H", table, start)
    return bool(start + 2 + 12 * entries <= len(table))
