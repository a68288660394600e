"""Read the tags of a TIFF file that Pillow has opened: which page is the picture, and whether Pillow decodes all of it."""

from __future__ import annotations

from contextlib import suppress
from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from PIL import Image as PillowImage

BITS, PHOTOMETRIC, NODATA = 258, 262, 42113
SMALLEST, LARGEST = (340, 280), (341, 281)  # tags SMinSampleValue and MinSampleValue, and of the largest samples
MOST_REDUCED = 16  # pages that are looked at for one that is no reduced copy
SEVERAL = "holds several pictures: only the first is used"
REDUCED = "the file calls its only picture a reduced copy of another one"
_SUB_DIRECTORIES, _FORMAT = 330, 339


def is_for_pillow(image: PillowImage.Image) -> bool:
    """Return True if Pillow decodes all of a TIFF file: 8 bits, and no reduced copies before the picture.

    Args:
        image: Opened by Pillow; it is moved to the first page that is neither a reduced copy nor a mask.
    """
    tags: Any = getattr(image, "tag_v2", {})
    if _is_reduced(tags):
        full = _full_numbers(image)
        image.seek(full[0] if full else 0)
        tags = getattr(image, "tag_v2", {})
        if not full and _SUB_DIRECTORIES in tags:
            return False
    is_plain = all(bits <= 8 for bits in tags.get(BITS, (1,))) and set(tags.get(_FORMAT, (1,))) <= {1, 4}
    return is_plain and not {NODATA, *SMALLEST, *LARGEST} & {*tags}


def remark_on_pages(image: PillowImage.Image) -> str:
    """Return a notice if a TIFF file that Pillow has opened holds several pictures, or only a reduced copy of one."""
    if getattr(image, "n_frames", 1) == 1:
        return REDUCED if _is_reduced(getattr(image, "tag_v2", {})) else ""
    number = image.tell()
    full = _full_numbers(image)
    image.seek(number)
    return SEVERAL if len(full) > 1 else "" if full else REDUCED


def number_in(value: Any, dtype: np.dtype[Any], pick: Callable[..., Any] = min) -> float | None:  # Any: of a tag
    """Return the number in a tag, which is text, a number or several, in the type of the samples; None if there is none."""
    if isinstance(value, bytes | str):
        text = value.decode("ascii", "replace") if isinstance(value, bytes) else value
        value = text.replace("\0", " ").split()[:1]
    with suppress(TypeError, ValueError, OverflowError):
        number = float(pick(value) if isinstance(value, list | tuple) else value)
        if dtype.kind == "f":
            return float(dtype.type(number)) if isfinite(number) else None
        if dtype.kind in "iu" and number == int(number) and dtype.type(int(number)) == number:
            return number
    return None


def _is_reduced(tags: Any) -> bool:
    """Return True for the tags of a reduced copy or a mask, by the tags NewSubfileType or SubfileType."""
    return bool(int(tags.get(254, 0)) & 5) or tags.get(255) == 2


def _full_numbers(image: PillowImage.Image) -> list[int]:
    """Return the numbers of the first pages that are neither reduced copies nor masks, at most two."""
    full: list[int] = []
    with suppress(EOFError):  # behind the last page
        for number in range(MOST_REDUCED):
            image.seek(number)
            if not _is_reduced(getattr(image, "tag_v2", {})):
                full.append(number)
            if len(full) == 2:
                break
    return full
