"""Read TIFF files of scientific samples without trusting them."""

from __future__ import annotations

import os
import zlib
from dataclasses import replace
from importlib import import_module
from math import ceil, prod
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from tifffile import COMPRESSION, PHOTOMETRIC, TiffFile, TiffPage

from fmapviz.errors import InputError
from fmapviz.images.arrays import Declared, compose, fits, format_shape, require_numbers, require_size
from fmapviz.images.errors import wrong_channels
from fmapviz.images.tiff_tags import LARGEST, MOST_REDUCED, NODATA, REDUCED, SEVERAL, SMALLEST, number_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from PIL import Image as PillowImage

    from fmapviz.core.samples import Samples

_DEFLATE = {8, 32946}
# tifffile decodes these itself. Without imagecodecs it would also unpack LZMA, to any size.
_PLAIN = {1, 32773, *_DEFLATE}
_ORIENTATION = 274
_RGB, _PALETTE, _INKS, _YCBCR, _LABS = 2, 3, 5, 6, (8, 9, 10)  # PhotometricInterpretation


def read_tiff(stream: BinaryIO, *, channels: int) -> tuple[PillowImage.Image | Samples, object, tuple[str, ...]]:
    """Read the channels of a TIFF file: the samples of its first page, or those of several pages of one sample each.

    Reduced copies of a page and masks are skipped; the full picture may be in a sub-directory of its reduced copy. Colours
    of inks and of palettes are converted to RGB, others are not read.

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
        reduced = not pages
        if reduced and file.pages and isinstance(file.pages[0], TiffPage):
            pages = [file.pages[0]]
        if not pages:
            raise InputError("E_DECODE", "image is damaged at its beginning")
        chosen = _choose(pages, channels)
        for page in chosen or pages[:1]:
            _require_sound(page, stream)
        if not chosen:
            raise wrong_channels(_describe(pages, channels), channels=channels)
        require_size((len(chosen), *pages[0].shape), channels=len(chosen) * _samples(pages[0]))
        declared, planes = _read_declared(pages[0], channels), [_planes(page, stream) for page in chosen]
        stored = np.concatenate(planes) if len(planes) > 1 else planes[0]
        if channels in {1, 3}:
            stored, declared = _as_grey_or_rgb(stored, pages[0], declared)
        pixels, notices = compose(stored, channels, declared, is_picture=True)
        orientation = pages[0].tags.valueof(_ORIENTATION)
    several = (SEVERAL,) if len(chosen) < len(pages) else (REDUCED,) if reduced else ()
    return pixels, orientation, (*several, *notices)


def _full_pages(file: TiffFile, most: int) -> Iterator[TiffPage]:
    """Yield the first pages that are not reduced copies; a hostile file has millions of pages."""
    for number in range(most + MOST_REDUCED):
        try:
            page = file.pages[number]
        except IndexError:
            return
        if not isinstance(page, TiffPage):
            continue
        if not page.subfiletype & 5:
            yield page
            most -= 1
        else:
            for below in (page.pages or [])[:MOST_REDUCED]:
                if isinstance(below, TiffPage) and not below.subfiletype & 5:
                    yield below
                    most -= 1
        if most <= 0:
            return


def _choose(pages: list[TiffPage], channels: int) -> list[TiffPage]:
    first = pages[0]
    if _samples(first) == channels:
        return [first]
    alike = all((page.axes, page.shape, page.dtype) == ("YX", first.shape, first.dtype) for page in pages)
    if len(pages) == channels and alike and _colours(first) == 1:
        return pages
    return [first] if fits(_colours(first) if channels in {1, 3} else _samples(first), channels) else []


def _samples(page: TiffPage) -> int:
    """Return the number of channels of a page; 0 for a volume."""
    return 0 if "Z" in page.axes else page.shape[page.axes.index("S")] if "S" in page.axes else 1


def _colours(page: TiffPage) -> int:
    """Return the number of channels of a page once it is grey or RGB."""
    samples, kind = _samples(page), int(page.photometric)
    if kind in {_RGB, _YCBCR, *_LABS} and samples in {3, 4}:
        return 3
    if kind == _INKS and samples in {4, 5}:
        return 3
    if kind == _PALETTE and samples == 1:
        return 3
    if kind in {0, 1} and samples == 2 and _alpha(page):
        return 1
    return samples


def _alpha(page: TiffPage) -> int:
    """Return 1 if the last channel is opacity that the colours have been multiplied by, 2 if they have not; else 0."""
    extra = tuple(map(int, page.extrasamples))
    return extra[-1] if len(extra) == 1 and extra[-1] in {1, 2} else 0


def _read_declared(page: TiffPage, channels: int) -> Declared:
    """Return the declarations of a page's tags about its samples."""
    dtype = page.dtype
    assert dtype is not None
    found, source = None, ""
    if dtype.kind in "iu" and page.bitspersample not in {1, 8, 16, 32, 64}:
        found = (0.0, float(2**page.bitspersample - 1))
    for smallest, largest in zip(SMALLEST, LARGEST, strict=True):
        ends = [number_in(page.tags.valueof(tag), dtype, pick) for tag, pick in ((smallest, min), (largest, max))]
        low, high = ends[0] if ends[0] is not None else 0.0, ends[1]
        if found is None and high is not None and high > low:
            found, source = (low, high), "the smallest and largest samples that the file names"
    alpha = _alpha(page) if channels in {1, 3} else 0
    return Declared(
        found,
        source,
        zero_is_white=int(page.photometric) == 0,
        nodata=number_in(page.tags.valueof(NODATA), dtype),
        alpha=bool(alpha),
        premultiplied=alpha == 1,
    )


def _as_grey_or_rgb(planes: NDArray[Any], page: TiffPage, declared: Declared) -> tuple[NDArray[Any], Declared]:
    """Convert the samples of a page to grey or RGB, with opacity behind them if there is any.

    Raises:
        InputError: `E_FORMAT`: its colours are of a kind that is not converted.
    """
    kind = int(page.photometric)
    if kind in {_YCBCR, *_LABS}:
        message = f"colours of {page.bitspersample} bits stored as {PHOTOMETRIC(kind).name} are not read"
        raise InputError("E_FORMAT", message, hint="save the picture as RGB")
    if kind == _PALETTE and len(planes) == 1:
        table = np.asarray(page.colormap)
        return table[:, np.minimum(planes[0], table.shape[1] - 1)], replace(declared, range=(0.0, 65535.0), source="")
    if kind == _INKS and len(planes) in {4, 5}:
        most = (
            float(declared.range[1] if declared.range else np.iinfo(planes.dtype).max) if planes.dtype.kind in "iu" else 1.0
        )
        inks = planes[:4].astype(np.float32) / most
        colours = (1 - inks[:3]) * (1 - inks[3])
        return colours, replace(declared, range=(0.0, 1.0), source="", alpha=False, nodata=None)
    count = _colours(page)
    if len(planes) > count and not declared.alpha:
        planes = planes[:count]  # a channel that is neither a colour nor opacity
    return planes, declared


def _describe(pages: list[TiffPage], channels: int) -> str:
    if len(pages) == 1:
        return format_shape(pages[0].shape)
    return f"{format_shape(pages[0].shape)} in {f'more than {channels}' if len(pages) > channels else len(pages)} pages"


def _require_sound(page: TiffPage, stream: BinaryIO) -> None:
    """Raise an error unless a page holds numbers, all of them, and takes no more memory than its pixels."""
    if page.dtype is None or page.bitspersample not in range(1, 65):
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
    if _is_packed(page):
        return
    try:
        import_module("imagecodecs")
    except ImportError as error:
        stored = f"stored as {COMPRESSION(page.compression).name} of {page.bitspersample} bits"
        message = f"{stored}, which needs one more package"
        raise InputError("E_FORMAT", message, hint="pip install imagecodecs") from error


def _is_packed(page: TiffPage) -> bool:
    """Return True for samples of 2 to 15 bits that follow each other without gaps, which tifffile alone does not unpack."""
    odd = page.bitspersample in {*range(2, 16)} - {8}
    return odd and not page.is_tiled and page.compression in _PLAIN and page.predictor == 1 and page.imagedepth == 1


# Any: the file declares the type.
def _planes(page: TiffPage, stream: BinaryIO) -> NDArray[Any]:
    """Return the samples as `(C, H, W)`."""
    if _is_packed(page):
        return _unpack(page, stream)
    samples = page.asarray(maxworkers=1).reshape(page.shape)
    return samples[np.newaxis] if page.axes == "YX" else np.moveaxis(samples, page.axes.index("S"), 0)


def _unpack(page: TiffPage, stream: BinaryIO) -> NDArray[Any]:
    """Return samples of any number of bits, the highest bit first, each row of a strip from a whole byte on: `(C, H, W)`."""
    bits, together = page.bitspersample, page.samplesperpixel if page.planarconfig == 1 else 1
    powers = (1 << np.arange(bits)[::-1]).astype(np.uint16)
    row_bytes = ceil(page.imagewidth * together * bits / 8)
    rows = []
    for offset, count in zip(page.dataoffsets, page.databytecounts, strict=True):
        stream.seek(offset)
        data = stream.read(count)
        if page.fillorder == 2:
            data = np.packbits(np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")).tobytes()
        if page.compression in _DEFLATE:
            data = zlib.decompressobj().decompress(data, page.rowsperstrip * row_bytes)
        elif page.compression != 1:
            data = page.decode.keywords["decompress"](data) if hasattr(page.decode, "keywords") else data
        whole = np.frombuffer(data, np.uint8, len(data) // row_bytes * row_bytes).reshape(-1, row_bytes)
        for row in whole[: page.rowsperstrip]:
            bits_of_row = np.unpackbits(row)[: page.imagewidth * together * bits].reshape(-1, bits)
            rows.append(bits_of_row @ powers)
    stacked = np.array(rows, np.uint16)
    if page.planarconfig == 1:
        if len(stacked) < page.imagelength:
            raise _damaged("less data than pixels")
        return np.moveaxis(stacked[: page.imagelength].reshape(page.imagelength, page.imagewidth, together), -1, 0)
    if len(stacked) < page.imagelength * page.samplesperpixel:
        raise _damaged("less data than pixels")
    return stacked.reshape(page.samplesperpixel, page.imagelength, page.imagewidth)
