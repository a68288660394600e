"""Read TIFF files of scientific samples without trusting them."""

from __future__ import annotations

import os
import zlib
from importlib import import_module
from math import ceil, prod
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from tifffile import COMPRESSION, TiffFile, TiffPage

from fmapviz.core.errors import InputError
from fmapviz.images.arrays import compose, fits, format_shape, require_numbers, require_size
from fmapviz.images.errors import wrong_channels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from PIL import Image as PillowImage

    from fmapviz.core.bands import Bands

_DEFLATE = {8, 32946}
# tifffile decodes these itself. Without imagecodecs it would also unpack LZMA, to any size.
_PLAIN = {1, 32773, *_DEFLATE}
_ORIENTATION = 274


def read_tiff(stream: BinaryIO, *, channels: int) -> tuple[PillowImage.Image | Bands, object, tuple[str, ...]]:
    """Read the channels of a TIFF file: the samples of its first page, or those of several pages of one sample each.

    Reduced copies of a page are skipped. Colours are not converted.

    Args:
        stream: The open file.
        channels: C, the number of channels that the model takes. Grey is accepted for RGB, and RGB for grey.

    Returns:
        The pixels, the orientation tag as stored, and the notices.

    Raises:
        InputError: `E_DECODE` (damaged or cut off), `E_FORMAT` (no real numbers, or stored in a way that needs another
            package), `E_TOO_LARGE` or `E_CHANNELS`.
    """
    stream.seek(0)
    with TiffFile(stream, name="image") as file:
        pages = list(_full_pages(file, channels + 1))
        if not pages:
            raise InputError("E_DECODE", "image is damaged at its beginning")
        chosen = _choose(pages, channels)
        for page in chosen or pages[:1]:
            _require_sound(page, stream)
        if not chosen:
            raise wrong_channels(_describe(pages, channels), channels=channels)
        require_size((len(chosen), *pages[0].shape), channels=len(chosen) * _samples(pages[0]))
        planes = [_planes(page) for page in chosen]
        pixels, notices = compose(np.concatenate(planes) if len(planes) > 1 else planes[0], channels)
        orientation = pages[0].tags.valueof(_ORIENTATION)
    several = ("holds several pictures: only the first is used",) if len(chosen) < len(pages) else ()
    return pixels, orientation, (*several, *notices)


def _full_pages(file: TiffFile, most: int) -> Iterator[TiffPage]:
    """Yield the first pages that are not reduced copies; a hostile file has millions of pages."""
    for number in range(most):
        try:
            page = file.pages[number]
        except IndexError:
            return
        if isinstance(page, TiffPage) and not page.subfiletype & 1:
            yield page


def _choose(pages: list[TiffPage], channels: int) -> list[TiffPage]:
    first = pages[0]
    if _samples(first) == channels:
        return [first]
    alike = all((page.axes, page.shape, page.dtype) == ("YX", first.shape, first.dtype) for page in pages)
    if len(pages) == channels and alike:
        return pages
    return [first] if fits(_samples(first), channels) else []


def _samples(page: TiffPage) -> int:
    """Return the number of channels of a page; 0 for a volume."""
    return 0 if "Z" in page.axes else page.shape[page.axes.index("S")] if "S" in page.axes else 1


def _describe(pages: list[TiffPage], channels: int) -> str:
    if len(pages) == 1:
        return format_shape(pages[0].shape)
    return f"{format_shape(pages[0].shape)} in {f'more than {channels}' if len(pages) > channels else len(pages)} pages"


def _require_sound(page: TiffPage, stream: BinaryIO) -> None:
    """Raise an error unless a page holds numbers, all of them, and takes no more memory than its pixels."""
    if page.dtype is None or page.bitspersample not in {1, *range(8, 65)}:
        raise InputError("E_FORMAT", f"samples of {page.bitspersample} bits are not read")
    require_numbers(page.dtype)
    require_size(page.shape, channels=max(1, _samples(page)))
    _require_decoder(page)
    piece = _piece(page)
    require_size(piece, channels=piece[0] * piece[3])
    image = (page.imagedepth, page.imagelength, page.imagewidth, page.samplesperpixel)
    pieces = prod(ceil(whole / part) for whole, part in zip(image, piece, strict=True))
    if not pieces == len(page.dataoffsets) == len(page.databytecounts):  # tifffile would return uninitialized memory
        raise _damaged("pieces are missing")
    if (
        sum(page.databytecounts) * 8 < prod(image) * page.bitspersample
        and page.compression == 1
        and all(page.databytecounts)
    ):
        raise _damaged("less data than pixels")
    size, most = os.fstat(stream.fileno()).st_size, prod(piece) * page.dtype.itemsize
    for offset, count in zip(page.dataoffsets, page.databytecounts, strict=True):
        if offset + count > size:
            raise _damaged("cut off")
        if page.compression in _DEFLATE and _inflates_beyond(most, stream, offset=offset, count=count):
            raise _damaged("more data than pixels")


def _damaged(reason: str) -> InputError:
    return InputError("E_DECODE", f"image is damaged ({reason})")


def _piece(page: TiffPage) -> tuple[int, int, int, int]:
    """Return the depth, height, width and samples of a strip or tile."""
    together = page.samplesperpixel if page.planarconfig == 1 else 1
    if page.is_tiled:
        return page.tiledepth, page.tilelength, page.tilewidth, together
    return 1, page.rowsperstrip, page.imagewidth, together


def _inflates_beyond(most: int, stream: BinaryIO, *, offset: int, count: int) -> bool:
    """Check before tifffile, which without imagecodecs unpacks up to a thousand times the size of the file."""
    stream.seek(offset)
    return len(zlib.decompressobj().decompress(stream.read(count), most + 1)) > most


def _require_decoder(page: TiffPage) -> None:
    if page.compression not in set(COMPRESSION):
        raise _damaged("unknown compression")
    if page.compression in _PLAIN and page.predictor in {1, 2} and page.bitspersample in {1, 8, 16, 32, 64}:
        return
    try:
        import_module("imagecodecs")
    except ImportError as error:
        stored = f"stored as {COMPRESSION(page.compression).name} of {page.bitspersample} bits"
        message = f"{stored}, which needs one more package"
        raise InputError("E_FORMAT", message, hint="pip install imagecodecs") from error


# Any: the file declares the type.
def _planes(page: TiffPage) -> NDArray[Any]:
    """Return the samples as `(C, H, W)`."""
    samples = page.asarray(maxworkers=1).reshape(page.shape)
    return samples[np.newaxis] if page.axes == "YX" else np.moveaxis(samples, page.axes.index("S"), 0)
