"""Decode one image file to upright pixels, with as many channels as the model takes."""

from __future__ import annotations

import ctypes
import logging
import re
import struct
import threading
import warnings
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from PIL import ExifTags, ImageOps, UnidentifiedImageError
from PIL import Image as PillowImage

from fmapviz.core.samples import Samples
from fmapviz.errors import InputError
from fmapviz.images.depth import is_deep, is_read_whole
from fmapviz.images.errors import MAX_PIXELS, require_few_pixels, wrong_channels
from fmapviz.images.notices import TRANSPARENT
from fmapviz.images.tiff_tags import SEVERAL, is_for_pillow, remark_on_pages

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmapviz.images.deep import Stored

# What Pillow may try. Nothing that starts another program or reads another file (PDF, EPS, WMF), nothing that holds
# images of other formats (ICO). TGA has no signature and must come last.
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "AVIF", "TIFF", "BMP", "JPEG2000", "PPM", "QOI", "TGA")

_SIGNATURE = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8|RIFF....WEBP|....ftyp(?:avif|avis|mif1)|....jP  |qoif", re.DOTALL
)
_NPY = b"\x93NUMPY"
_TIFF = re.compile(rb"II[*+]\0|MM\0[*+]")
_HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
# `<unknown>`: NumPy lets Python parse the header of a .npy file under this name.
_DECODERS = re.compile(r"(PIL|pillow_heif|tifffile|fmapviz\.images\.arrays|numpy\.lib\._?format\w*)\b|<unknown>$")
_REDUCED_DEPTH = "more than 8 bits per channel, of which the upper 8 are used"
_MOST_PASSES = 50  # over the largest picture, more over smaller ones; cameras and encoders write 1 to 20
_SILENCING = threading.Lock()


class Image(NamedTuple):
    """A decoded input.

    Attributes:
        pixels: Upright, with the requested number of channels: a Pillow image in mode RGB or L, or the samples of the file.
        notices: Remarks on its decoding, for the user.
        orientation: EXIF orientation, 1 to 8, that made the stored pixels upright; from 5 on it swapped width and height.
    """

    pixels: PillowImage.Image | Samples
    notices: tuple[str, ...] = ()
    orientation: int = 1


def decode(
    stream: BinaryIO, *, channels: int, volume: bool = False, expect: Callable[[int], object] = lambda _pixels: None
) -> Image:
    """Decode the first picture of an open file. The format is that of its content, not of its name.

    Safe to call from several threads. Warnings of the decoders are switched off for the whole process; the notices report
    what matters in them.

    * Transparent pixels are blended with black. The EXIF orientation is applied, a colour profile is not.
    * For one channel, a picture is converted to grey (ITU-R BT.601).
    * For arrays (.npy), and samples of other than 8 bits, see `fmapviz.images.arrays.compose`.

    Args:
        stream: At the beginning of the file.
        channels: Number of channels that the model takes.
        volume: Whether the model takes volumes, which an array may hold.
        expect: Called before decoding, with the number of pixels or an upper limit.

    Returns:
        The image, whose pixels may still refer to the stream.

    Raises:
        InputError: `E_FORMAT` (not an image), `E_TOO_LARGE` (from the header), `E_DECODE` (damaged) or `E_CHANNELS` (the
            model takes another number). The message does not name the file; see `fmapviz.images.errors.explain`.
        Exception: Any other error of a decoder or of the system.
    """
    _silence_decoders()
    head = stream.read(64)
    stream.seek(0)
    if head.startswith(_NPY):
        from fmapviz.images.arrays import read_npy

        expect(MAX_PIXELS)
        return Image(*read_npy(stream, channels=channels, volume=volume))
    is_tiff = _TIFF.match(head) is not None
    image = None if is_tiff and channels not in {1, 3} else _identify(stream, head=head)
    if image is None:
        return _decode_tiff(stream, channels=channels, expect=expect)
    if channels not in {1, 3}:
        raise wrong_channels("a picture of grey or RGB", channels=channels)
    if is_tiff and (decoded := _decode_tiff_samples(stream, image, channels=channels, expect=expect)):
        return decoded
    return _decode_picture(stream, image, channels=channels, expect=expect)


def decode_picture(image: PillowImage.Image, *, channels: int) -> Image:
    """Return the pixels of a Pillow picture as `decode` returns those of its file; the picture is not changed.

    Of several frames it is the current one.

    Raises:
        InputError: `E_TOO_LARGE`, or `E_CHANNELS`: the model takes neither 1 nor 3 channels.
        Exception: Any other error of Pillow.
    """
    if channels not in {1, 3}:
        raise wrong_channels("a picture of grey or RGB", channels=channels)
    require_few_pixels(image)
    own = image.copy()
    orientation, _ = read_orientation(image)  # the copy may lack one that was set in the picture
    if orientation > 1:
        own.getexif()[ExifTags.Base.Orientation] = orientation
    if own.mode.startswith(("I", "F")):
        from fmapviz.images.deep import planes_of

        return _finish(own, planes_of(image), channels=channels)  # a copy has lost the tags of a TIFF file
    return _finish(own, None, channels=channels)


def upright_rgb(image: PillowImage.Image, orientation: int = 1) -> PillowImage.Image:
    """Return a copy of a decoded picture in mode RGB, blended with black, and turned upright by an EXIF orientation."""
    pixels = _to_rgb(image).copy()
    pixels.info.clear()
    return _upright(pixels, orientation)


def remarks_on_opacity(image: PillowImage.Image) -> tuple[str, ...]:
    """Return a notice if `upright_rgb` blends pixels with black."""
    return (TRANSPARENT,) if _is_transparent(image) else ()


def read_orientation(image: PillowImage.Image) -> tuple[int, str | None]:
    """Return the EXIF orientation of a picture, 1 to 8, and a notice.

    Call it after `load()`: PNG may store it behind the pixels.
    """
    try:
        exif = image.getexif()
        orientation = exif.get(ExifTags.Base.Orientation, 1) or 1  # some cameras write 0
        if orientation in range(1, 9) and _is_complete(image.info.get("exif"), exif.endian):
            return orientation, None
    except Exception:  # noqa: BLE001 - Pillow's EXIF parser raises anything; the pixels are not affected
        orientation = 1
    return _known(orientation), "EXIF data is damaged: the picture may not be upright"


def _silence_decoders() -> None:
    """Insert a filter for the decoders' warnings; `warnings.catch_warnings` is not safe in threads."""
    with _SILENCING:
        _silence_libraries()
        if not warnings.filters or warnings.filters[0][3] != _DECODERS:
            warnings.filterwarnings("ignore", module=_DECODERS.pattern)


@cache
def _silence_libraries() -> None:
    """Keep messages of Pillow, tifffile and libtiff off standard error."""
    for name in ("PIL", "tifffile"):
        logging.getLogger(name).addHandler(logging.NullHandler())
    with suppress(OSError, AttributeError):  # a Pillow without libtiff, or with its names hidden
        libtiff = ctypes.CDLL(import_module("PIL._imaging").__file__)  # finds its linked libraries
        libtiff.TIFFSetErrorHandler(None)
        libtiff.TIFFSetWarningHandler(None)


def _decode_tiff(stream: BinaryIO, *, channels: int, expect: Callable[[int], object]) -> Image:
    from fmapviz.images.tiff import read_tiff

    expect(MAX_PIXELS)
    pixels, tag, notices = read_tiff(stream, channels=channels)
    orientation = _known(tag)
    return Image(_turn(pixels, orientation), notices, orientation)


def _decode_tiff_samples(
    stream: BinaryIO, image: PillowImage.Image, *, channels: int, expect: Callable[[int], object]
) -> Image | None:
    """Decode a TIFF file whose samples Pillow does not decode; None if Pillow decodes it, from its current page.

    Its compressions need another package here; Pillow has its own decoders of these.
    """
    if is_for_pillow(image):
        return None
    try:
        return _decode_tiff(stream, channels=channels, expect=expect)
    except InputError as error:
        if error.code != "E_FORMAT":
            raise
        if is_read_whole(image):
            return None
        raise


def _decode_picture(stream: BinaryIO, image: PillowImage.Image, *, channels: int, expect: Callable[[int], object]) -> Image:
    require_few_pixels(image)
    expect(image.width * image.height)
    if image.format in {"JPEG", "MPO"}:
        _require_few_passes(stream, image.width * image.height)
    if image.format == "PNG":  # load() does not check the checksums of the pixel data
        image.verify()
        image = PillowImage.open(stream, formats=("PNG",))
    # Pillow turns TIFF while loading, and removes the tag.
    applied = read_orientation(image)[0] if image.format == "TIFF" else 1
    stored, remarks = None, [_remark_on_pages(image)]
    if is_deep(stream, image):
        from fmapviz.images.deep import read_deep

        stored = read_deep(stream, image)
        remarks += [_REDUCED_DEPTH] if stored is None else stored[2]
    image.load()
    if stored is None and image.format == "TIFF":
        from fmapviz.images.deep import uninverted

        stored = uninverted(image)
    pixels, notices, orientation = _finish(image, stored, channels=channels)
    return Image(pixels, (*filter(None, remarks), *notices), applied if orientation == 1 else orientation)


def _remark_on_pages(image: PillowImage.Image) -> str:
    """Return a notice if a file holds several pictures; MPO is a camera's JPEG and its preview."""
    if image.format == "TIFF":
        return remark_on_pages(image)
    return SEVERAL if getattr(image, "is_animated", False) and image.format != "MPO" else ""


def _finish(image: PillowImage.Image, stored: Stored | None, *, channels: int) -> Image:
    """Turn the pixels of a decoded picture, or its samples of more than 8 bits, upright.

    Args:
        image: Loaded.
        stored: Its samples, if they are not its pixels.
        channels: Number of channels that the model takes.
    """
    orientation, exif_notice = read_orientation(image)
    remark: tuple[str, ...] = (exif_notice,) if exif_notice else ()
    if stored is None:
        picture = _to_rgb(image)
        remark += remarks_on_opacity(image)
        picture.info.clear()  # otherwise a profile or text would be saved with the drawn pictures
        picture = _upright(picture, orientation)
        return Image(picture.convert("L") if channels == 1 else picture, remark, orientation)
    from fmapviz.images.arrays import compose

    planes, said, _ = stored
    pixels, notices = compose(planes, channels, said, is_picture=True)
    return Image(_turn(pixels, orientation), (*remark, *notices), orientation)


def _require_few_passes(stream: BinaryIO, pixels: int) -> None:
    """Refuse a JPEG file with hundreds of scans over its pixels: 100 kB of them take a minute.

    https://libjpeg-turbo.org/pmwiki/uploads/About/TwoIssueswiththeJPEGStandard.pdf
    """
    position = stream.tell()
    stream.seek(0)
    passes = sum(chunk.count(b"\xff\xda") for chunk in iter(partial(stream.read, 1 << 20), b""))
    stream.seek(position)
    if passes * pixels > _MOST_PASSES * MAX_PIXELS:
        raise InputError("E_TOO_LARGE", f"{passes} scans over {pixels:,} pixels")


def _identify(stream: BinaryIO, *, head: bytes) -> PillowImage.Image | None:
    """Read the header. Return None for a TIFF file that Pillow cannot decode."""
    heif = head[4:8] == b"ftyp" and head[8:12] in _HEIF_BRANDS and b"avif" not in head
    if heif:
        try:
            import_module("pillow_heif").register_heif_opener()
        except ImportError as error:
            raise InputError("E_FORMAT", "HEIC needs one more package", hint="pip install 'fmapviz[heic]'") from error
    try:
        return PillowImage.open(stream, formats=("HEIF",) if heif else FORMATS)
    except UnidentifiedImageError as error:
        if _TIFF.match(head):
            return None
        if heif or _SIGNATURE.match(head):
            raise InputError("E_DECODE", "image is damaged at its beginning") from error
        raise InputError("E_FORMAT", "not an image, or of an unknown format") from error


def _is_complete(block: bytes | None, endian: str | None) -> bool:
    """Return True if the first table of an EXIF block lies inside it; Pillow reads as much as there is."""
    table = re.sub(rb"^(Exif\0\0)+", b"", block or b"")
    if not table:
        return not block
    (start,) = struct.unpack_from(f"{endian}L", table, 4)
    (entries,) = struct.unpack_from(f"{endian}H", table, start)
    return bool(start + 2 + 12 * entries <= len(table))


def _known(orientation: object) -> int:
    """Return an EXIF orientation, 1 to 8; 1 for any other value."""
    return next((known for known in range(1, 9) if known == orientation), 1)


def _upright(picture: PillowImage.Image, orientation: int) -> PillowImage.Image:
    if orientation > 1:
        picture.getexif()[ExifTags.Base.Orientation] = orientation
        ImageOps.exif_transpose(picture, in_place=True)
    return picture


def _turn(pixels: PillowImage.Image | Samples, orientation: int) -> PillowImage.Image | Samples:
    """Turn a picture, or the samples of one, upright."""
    if isinstance(pixels, Samples):
        if orientation > 1:
            pixels.values = _TURNS[orientation](pixels.values).copy()
        return pixels
    return _upright(pixels, orientation)


_TURNS: dict[int, Callable[[Any], Any]] = {  # of arrays (C, H, W)
    2: lambda values: values[..., ::-1],
    3: lambda values: values[..., ::-1, ::-1],
    4: lambda values: values[..., ::-1, :],
    5: lambda values: values.swapaxes(-1, -2),
    6: lambda values: values.swapaxes(-1, -2)[..., ::-1],
    7: lambda values: values.swapaxes(-1, -2)[..., ::-1, ::-1],
    8: lambda values: values.swapaxes(-1, -2)[..., ::-1, :],
}


def _is_transparent(image: PillowImage.Image) -> bool:
    """Return True if a pixel of a picture of 8 bits is not opaque."""
    if not image.has_transparency_data:
        return False
    opacity = (image if image.mode in {"RGBA", "LA"} else image.convert("RGBA")).getchannel("A")
    least, _ = cast("tuple[int, int]", opacity.getextrema())  # of one channel
    return least < 255


def _to_rgb(image: PillowImage.Image) -> PillowImage.Image:
    """Convert a picture of 8 bits to mode RGB."""
    if not _is_transparent(image):
        return image if image.mode == "RGB" else image.convert("RGB")
    opaque = PillowImage.new("RGB", image.size)
    with_alpha = image.convert("RGBA")
    opaque.paste(with_alpha, mask=with_alpha)
    return opaque
