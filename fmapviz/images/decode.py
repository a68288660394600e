"""Read one image file: upright pixels in as many channels as a network takes, or the reason why not."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import re
import stat
import threading
import warnings
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, BinaryIO

from PIL import Image as PillowImage
from PIL import UnidentifiedImageError
from PIL.ImageFile import ImageFile as PillowFile

from fmapviz.errors import InputError, printable, quote
from fmapviz.orientation import read_orientation, upright
from fmapviz.pixels import MAX_PIXELS, Image, wrong_channels
from fmapviz.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmapviz.pixels import Bands
    from fmapviz.values import ImageFile

# What Pillow may try. Nothing that starts another program or reads another file (PDF, EPS, WMF), nothing that holds
# images of other formats (ICO). TGA has no signature and must come last.
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "AVIF", "TIFF", "BMP", "JPEG2000", "PPM", "QOI", "TGA")

_SIGNATURE = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8|RIFF....WEBP|....ftyp(?:avif|avis|mif1)|....jP  |qoif", re.DOTALL
)
_NPY = b"\x93NUMPY"
_TIFF = re.compile(rb"II[*+]\0|MM\0[*+]")
_HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
# `<unknown>` is what Python calls the header of a .npy file, which NumPy lets it parse.
_DECODERS = re.compile(r"(PIL|pillow_heif|tifffile|fmapviz\.npy|numpy\.lib\._?format\w*)\b|<unknown>$")
_MOST_PASSES = 50  # over the largest picture, more over smaller ones; cameras and encoders make 1 to 20
_HUSHING = threading.Lock()


def read_image(file: ImageFile, *, channels: int = 3) -> Image:
    """Decode the first picture of a file completely, by its content and whatever its name.

    Safe to call from several threads. The decoders' warnings are switched off for the whole process: what matters in them
    is among the notices.

    * Transparency lies over black; an EXIF orientation is applied; a colour profile is not.
    * More than 8 bits per pixel are scaled from their own minimum..maximum to 0..255, NaN is black.
    * For one channel a picture is made grey (ITU-R BT.601).
    * Arrays (.npy) and TIFF files that are no ordinary picture: see `fmapviz.npy` and `fmapviz.tiff`.

    Args:
        file: As it was found.
        channels: What the network takes.

    Raises:
        InputError: `E_MISSING`, `E_PERM`, `E_TYPE` (not a regular file), `E_READ` (any other refusal of the system),
            `E_EMPTY`, `E_FORMAT` (not an image), `E_TOO_LARGE` (found in the header), `E_DECODE` (damaged) or `E_CHANNELS`
            (the network takes others).
    """
    with open_image(file.path, file.size) as stream:
        pixels, notices = decode(stream, file.path, channels=channels)
        return Image(file, pixels.copy() if isinstance(pixels, PillowFile) else pixels, notices)


def open_image(path: str, size: int = 0) -> BinaryIO:
    """Open a file for `decode`, if there is something in it.

    Args:
        path: Of a file on this machine, or its address elsewhere.
        size: Bytes, as far as that is known.

    Raises:
        InputError: `E_MISSING`, `E_PERM`, `E_TYPE`, `E_READ` or `E_EMPTY`.
    """
    with explained(path), ExitStack() as opened:
        stream = opened.enter_context(_open(path, size))
        _require_content(stream, path)
        opened.pop_all()
        return stream


def decode(
    stream: BinaryIO, path: str, *, channels: int, expect: Callable[[int], object] | None = None
) -> tuple[PillowImage.Image | Bands, tuple[str, ...]]:
    """Decode what a file holds, see `read_image`.

    Args:
        stream: At the beginning of the file.
        path: For what is said of it.
        channels: What the network takes.
        expect: Called with the number of pixels, or the largest possible, before they are decoded.

    Returns:
        The pixels, in an object that may hold on to the stream, and the notices.

    Raises:
        InputError: `E_READ`, `E_FORMAT`, `E_TOO_LARGE`, `E_DECODE` or `E_CHANNELS`.
    """
    _hush_decoders()
    with explained(path):
        return _decode(stream, path, channels=channels, expect=expect or _ignore)


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Make an `InputError` of whatever happens between a file and its pixels."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise _explain(error, path) from error


def system_error(error: OSError, path: str) -> InputError:
    """Say what the operating system had against a path.

    Example:
        >>> system_error(FileNotFoundError(2, "No such file or directory"), "lena.png").code
        'E_MISSING'
    """
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return InputError("E_MISSING", f"no such file: {quote(path)}")
    if isinstance(error, PermissionError):
        return InputError("E_PERM", f"no permission to read: {quote(path)}")
    if isinstance(error, IsADirectoryError) or error.errno == errno.ENXIO:  # ENXIO: a socket
        return InputError("E_TYPE", f"not a regular file: {quote(path)}")
    hint = hint_of(path) if error.errno == errno.ENOSYS else None
    return InputError("E_READ", f"cannot be read ({error.strerror}): {quote(path)}", hint=hint)


def hint_of(url: str) -> str | None:
    """Say what is to be installed for an address."""
    if not is_url(url):
        return None
    return "pip install 'fmapviz[remote]'" if url.lower().startswith("s3") else "pip install what is named there"


def _ignore(_pixels: int) -> None:
    """Expect nothing."""


def _hush_decoders() -> None:
    """Put a filter for the decoders' warnings first in line; `warnings.catch_warnings` is not safe in threads."""
    with _HUSHING:
        _hush_libraries()
        if not warnings.filters or warnings.filters[0][3] != _DECODERS:
            warnings.filterwarnings("ignore", module=_DECODERS.pattern)


@cache
def _hush_libraries() -> None:
    """Keep from standard error what is logged without being asked and what libtiff prints by itself."""
    for name in ("PIL", "tifffile"):
        logging.getLogger(name).addHandler(logging.NullHandler())
    with suppress(OSError, AttributeError):  # a Pillow without libtiff, or with its names hidden
        libtiff = ctypes.CDLL(import_module("PIL._imaging").__file__)  # finds what it is linked with
        libtiff.TIFFSetErrorHandler(None)
        libtiff.TIFFSetWarningHandler(None)


def _open(path: str, size: int) -> BinaryIO:
    if not is_url(path):
        return open(path, "rb", opener=_open_without_waiting)
    # Only when it is needed: it needs this module.
    opened: BinaryIO = import_module("fmapviz.remote_inputs").open_file(path, size)
    return opened


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe put in the file's place would wait for its writer


def _require_content(stream: BinaryIO, path: str) -> None:
    status = os.fstat(stream.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise InputError("E_TYPE", f"not a regular file: {quote(path)}")
    if not status.st_size:
        raise InputError("E_EMPTY", f"file is empty: {quote(path)}")


def _decode(
    stream: BinaryIO, path: str, *, channels: int, expect: Callable[[int], object]
) -> tuple[PillowImage.Image | Bands, tuple[str, ...]]:
    head = stream.read(64)
    stream.seek(0)
    if head.startswith(_NPY):
        from fmapviz.npy import read_npy

        expect(MAX_PIXELS)
        return read_npy(stream, path, channels=channels)
    is_tiff = _TIFF.match(head) is not None
    image = None if is_tiff and channels not in {1, 3} else _identify(stream, path, head=head)
    if image is None:
        from fmapviz.tiff import read_tiff

        expect(MAX_PIXELS)
        return read_tiff(stream, path, channels=channels)
    if channels not in {1, 3}:
        raise wrong_channels("a picture of grey or RGB", path, channels=channels)
    pixels, notices = _decode_picture(stream, image, path, expect=expect)
    return pixels.convert("L") if channels == 1 else pixels, notices


def _decode_picture(
    stream: BinaryIO, image: PillowImage.Image, path: str, *, expect: Callable[[int], object]
) -> tuple[PillowImage.Image, tuple[str, ...]]:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise InputError("E_TOO_LARGE", f"more than {MAX_PIXELS:,} pixels ({width} x {height}): {quote(path)}")
    expect(width * height)
    if image.format in {"JPEG", "MPO"}:
        _require_few_passes(stream, width * height, path)
    if image.format == "PNG":  # load() skips the checksums of the pixel data
        image.verify()
        image = PillowImage.open(stream, formats=("PNG",))
    image.load()
    orientation, exif_notice = read_orientation(image)
    pixels, depth_notice = _to_rgb(image)
    pixels.info.clear()  # else a profile or text would be saved with whatever is made of the pixels
    pixels = upright(pixels, orientation)
    several = getattr(image, "is_animated", False) and image.format != "MPO"  # MPO: a camera's JPEG and its preview
    frames_notice = "holds several pictures: only the first is used" if several else None
    return pixels, tuple(notice for notice in (frames_notice, exif_notice, depth_notice) if notice)


def _require_few_passes(stream: BinaryIO, pixels: int, path: str) -> None:
    """Refuse a JPEG file that goes over its pixels hundreds of times, which takes a minute for 100 kB.

    https://libjpeg-turbo.org/pmwiki/uploads/About/TwoIssueswiththeJPEGStandard.pdf
    """
    place = stream.tell()
    stream.seek(0)
    passes = sum(chunk.count(b"\xff\xda") for chunk in iter(partial(stream.read, 1 << 20), b""))
    stream.seek(place)
    if passes * pixels > _MOST_PASSES * MAX_PIXELS:
        raise InputError("E_TOO_LARGE", f"goes over its {pixels:,} pixels {passes} times: {quote(path)}")


def _identify(stream: BinaryIO, path: str, *, head: bytes) -> PillowImage.Image | None:
    """Read the header; give None for a TIFF file that Pillow cannot make a picture of."""
    heif = head[4:8] == b"ftyp" and head[8:12] in _HEIF_BRANDS and b"avif" not in head
    if heif:
        _register_heif(path)
    try:
        return PillowImage.open(stream, formats=("HEIF",) if heif else FORMATS)
    except UnidentifiedImageError as error:
        if _TIFF.match(head):
            return None
        if heif or _SIGNATURE.match(head):
            raise InputError("E_DECODE", f"image is damaged at its beginning: {quote(path)}") from error
        raise InputError("E_FORMAT", f"not an image, or of an unknown format: {quote(path)}") from error


def _register_heif(path: str) -> None:
    try:
        import_module("pillow_heif").register_heif_opener()
    except ImportError as error:
        message = f"HEIC needs one more package: {quote(path)}"
        raise InputError("E_FORMAT", message, hint="pip install 'fmapviz[heic]'") from error


def _to_rgb(image: PillowImage.Image) -> tuple[PillowImage.Image, str | None]:
    """Give the picture in mode RGB, itself if it is that already."""
    if image.mode.startswith(("I", "F")):
        from fmapviz.samples import stretch

        return stretch(image)
    if image.mode == "RGB" and not image.has_transparency_data:
        return image, None
    if not image.has_transparency_data:
        return image.convert("RGB"), None
    opaque = PillowImage.new("RGB", image.size)
    with_alpha = image.convert("RGBA")
    opaque.paste(with_alpha, mask=with_alpha)
    return opaque, None


def _explain(error: Exception, path: str) -> InputError:
    """Put what went wrong between the file and its pixels into words."""
    if isinstance(error, OSError) and error.errno == errno.EINVAL:
        return InputError("E_DECODE", f"image is damaged (refers to what is outside the file): {quote(path)}")
    if isinstance(error, OSError) and error.errno:
        return system_error(error, path)
    if isinstance(error, PillowImage.DecompressionBombError):
        return InputError("E_TOO_LARGE", f"more than {MAX_PIXELS:,} pixels: {quote(path)}")
    if isinstance(error, ValueError) and "MAX_TEXT_" in str(error):  # Pillow's limits have no exception of their own
        return InputError("E_TOO_LARGE", f"more than a megabyte of text around the pixels: {quote(path)}")
    if isinstance(error, MemoryError):
        return InputError("E_TOO_LARGE", f"not enough memory: {quote(path)}")
    reason = printable(str(error).partition("\n")[0]) or type(error).__name__
    return InputError("E_DECODE", f"image is damaged ({reason}): {quote(path)}")
