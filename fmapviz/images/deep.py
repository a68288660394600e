"""Read the samples of pictures that store more than 8 bits, which Pillow reduces to 8 where there are several channels."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from PIL import Image as PillowImage

from fmapviz.images.arrays import Declared
from fmapviz.images.depth import bits_of_jpeg2000, largest_sample, rawmode_of, significant_bits
from fmapviz.images.errors import classify
from fmapviz.images.tiff_tags import BITS, NODATA, PHOTOMETRIC, number_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Stored = tuple[NDArray[Any], Declared, tuple[str, ...]]  # planes (C, H, W), what the file declares, notices

_COMMENT = re.compile(rb"#[^\n\r]*")


def read_deep(stream: BinaryIO, image: PillowImage.Image) -> Stored | None:
    """Return the samples of a picture of more than 8 bits; None if Pillow reduces them to 8.

    Args:
        stream: The file; its position is changed.
        image: Opened by Pillow from the stream, of a size that is allowed, and not loaded yet; it is loaded.

    Raises:
        Exception: Any error of a decoder.
    """
    match image.format:
        case "PNG":
            return _read_png(stream, image)
        case "PPM" if image.mode != "F":
            return _read_ppm(stream, image, largest_sample(image))
        case "JPEG2000":
            return _read_jpeg2000(image, bits_of_jpeg2000(stream))
        case "TIFF" if not image.mode.startswith(("I", "F")):
            return _read_passes(stream, image)
    return planes_of(image)


def planes_of(image: PillowImage.Image) -> Stored:
    """Return the samples of a Pillow picture in a mode of more than 8 bits, `I;16`, `I` or `F`, which is loaded."""
    planes = np.asarray(image)[np.newaxis]
    if image.mode.startswith("I;16"):
        planes = planes.astype(np.uint16)
    return _with_key(planes, image.info.get("transparency"), _declared_by(image, planes.dtype))


def uninverted(image: PillowImage.Image) -> Stored | None:
    """Return the samples of a loaded grey TIFF file of 8 bits or fewer whose zero is white; None for other pictures.

    Pillow inverts these, but not those of more bits. Samples of fewer bits are stretched to 0..255, as Pillow does it.
    """
    tags: Any = getattr(image, "tag_v2", {})
    if tags.get(PHOTOMETRIC) != 0 or image.mode not in {"1", "L"}:
        return None
    return 255 - np.asarray(image.convert("L"))[np.newaxis], Declared(zero_is_white=True), ()


def _declared_by(image: PillowImage.Image, dtype: np.dtype[Any]) -> Declared:
    """Return the declarations of a TIFF file's tags about its samples; empty for other formats."""
    tags: Any = getattr(image, "tag_v2", {})
    bits = max(tags.get(BITS, (16,)))
    declared = (0.0, float(2**bits - 1)) if bits not in {8, 16, 32, 64} else None
    return Declared(declared, zero_is_white=tags.get(PHOTOMETRIC) == 0, nodata=number_in(tags.get(NODATA), dtype))


def _read_png(stream: BinaryIO, image: PillowImage.Image) -> Stored:
    key, bits = image.info.get("transparency"), significant_bits(stream)
    if rawmode_of(image) == "LA;16B":  # two bytes of grey and two of opacity have the layout of four channels
        image._mode = "RGBA"
        _use_rawmode(image, "RGBA")
        pairs = np.asarray(image)
        planes = _join(pairs[..., 0::2], pairs[..., 1::2])
    elif image.mode.startswith("RGB"):
        planes, *_ = _read_passes(stream, image)
    else:
        planes = np.asarray(image)[np.newaxis].astype(np.uint16)
    has_alpha = len(planes) in {2, 4}
    limits = _range_of_bits(planes[:-1] if has_alpha else planes, bits)
    declared = Declared(limits, f"sBIT of {bits} bits" if limits else "", alpha=has_alpha)
    return _with_key(planes, None if has_alpha else key, declared)


def _read_passes(stream: BinaryIO, image: PillowImage.Image) -> Stored:
    """Return all 16 bits of RGB or RGBA: Pillow unpacks the upper bytes, and in the other byte order the lower ones."""
    rawmode, page = rawmode_of(image), image.tell()
    other = "B" if rawmode.endswith(("L", "N")) else "L"
    with PillowImage.open(stream, formats=(str(image.format),)) as again:
        again.seek(page)
        _use_rawmode(again, rawmode[:-1] + other)
        low = np.asarray(again)
    high = np.asarray(image)
    return _join(high, low), Declared(alpha=high.shape[-1] == 4), ()


def _read_ppm(stream: BinaryIO, image: PillowImage.Image, largest: int) -> Stored:
    count = image.width * image.height * (3 if image.mode == "RGB" else 1)
    (tile,) = image.tile  # type: ignore[attr-defined]  # of an `ImageFile`
    stream.seek(tile.offset)
    if tile.codec_name == "ppm_plain":
        text = _COMMENT.sub(b"", stream.read())
        values = np.fromstring(text.decode("ascii"), np.int64, count, sep=" ").astype(np.uint16)
    else:
        values = np.frombuffer(stream.read(2 * count), ">u2").astype(np.uint16)
    if len(values) < count:
        raise classify(OSError("image file is truncated"))
    image.load()  # which finds what else is wrong with it
    planes = np.moveaxis(values.reshape(image.height, image.width, -1), -1, 0)
    return planes, Declared((0.0, float(largest)) if largest < 65535 else None), ()


def _read_jpeg2000(image: PillowImage.Image, bits: int) -> Stored | None:
    if image.mode != "I;16":
        return None
    stored = np.asarray(image)[np.newaxis]
    bits = min(bits, 16)  # Pillow moves the samples to the upper end
    return stored >> (16 - bits), Declared((0.0, float(2**bits - 1)) if bits < 16 else None), ()


def _use_rawmode(image: Any, rawmode: str) -> None:  # Any: an `ImageFile`
    image.tile = [
        tile._replace(args=(rawmode, *tile.args[1:]) if isinstance(tile.args, tuple) else rawmode) for tile in image.tile
    ]


def _join(high: NDArray[np.uint8], low: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Return the channels `(C, H, W)` of the upper and lower bytes `(H, W, C)`."""
    return np.moveaxis((high.astype(np.uint16) << 8 | low).astype(np.uint16, copy=False), -1, 0)


def _with_key(planes: NDArray[Any], key: object, declared: Declared) -> Stored:
    """Add opacity for the colour that a PNG file declares as transparent."""
    colour = key if isinstance(key, tuple) else (key,)
    if planes.dtype != np.uint16 or len(colour) != len(planes) or not all(isinstance(sample, int) for sample in colour):
        return planes, declared, ()
    is_key = np.all([plane == sample for plane, sample in zip(planes, colour, strict=True)], axis=0)
    opacity = np.where(is_key, 0, 65535).astype(np.uint16)
    return np.concatenate([planes, opacity[np.newaxis]]), Declared(declared.range, declared.source, alpha=True), ()


def _range_of_bits(planes: NDArray[Any], bits: int) -> tuple[float, float] | None:
    """Return the range of samples by the number of significant bits that a PNG file declares, or None.

    By the standard they are moved to the upper end of the 16 bits; some programs leave them at the lower one.
    """
    if not 0 < bits < 16:
        return None
    rest = 16 - bits
    upper = planes >> rest
    moved = ((planes == upper << rest) | (planes == upper << rest | upper >> max(0, bits - rest))).all()
    if moved and planes.any():
        return 0.0, 65535.0
    return 0.0, float(2**bits - 1)
