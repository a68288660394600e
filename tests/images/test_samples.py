"""Samples of every depth, layout and photometry: which become black and white, and what a preprocessing of the user gets.

The files are written by tifffile, Pillow, or here by the letter of the standard; what is expected is computed with NumPy.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from contextlib import suppress

import numpy as np
import pytest
import tifffile
import torch
from bad_images import chunk
from image_files import save_pixels
from PIL import Image as PillowImage
from PIL import UnidentifiedImageError

from fmapviz.core.samples import Samples
from fmapviz.errors import InputError
from fmapviz.images.arrays import scale
from fmapviz.images.decode_pool import DecodePool, read_image
from fmapviz.images.load import read_memory_image
from fmapviz.images.memory.image import MemoryImage
from fmapviz.images.notices import TRANSPARENT
from fmapviz.images.preprocess import by_callable, stored_values
from fmapviz.types import ImageFile

HEIGHT, WIDTH = 5, 7
STRETCHED = "more than 8 bits per channel"


def read(path, channels=3):
    return read_image(ImageFile(str(path), "unit"), channels=channels)


def shown(image):
    """Return the samples that were read, `(C, H, W)`, 0..1."""
    if isinstance(image.pixels, Samples):
        return np.stack([np.asarray(plane) for plane in scale(image.pixels).planes])
    pixels = np.asarray(image.pixels, np.float64) / 255
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)


def noise(bits, samples, dtype, seed=0):
    """Return `(H, W, S)` noise of so many bits that reaches neither zero nor the last sample."""
    top = 2**bits
    return np.random.default_rng(seed).integers(top // 16 + 1, top - 1, (HEIGHT, WIDTH, samples)).astype(dtype)


def stretched(colours):
    """Return `(C, H, W)`, stretched from the minimum to the maximum of all channels."""
    values = np.moveaxis(colours, -1, 0).astype(np.float64)
    return (values - values.min()) / (values.max() - values.min())


def as_channels(values, channels):
    """Return `(C, H, W)` of grey or RGB as a network of so many channels gets it."""
    if len(values) == channels:
        return values
    return np.repeat(values, 3, axis=0) if channels == 3 else np.tensordot([0.299, 0.587, 0.114], values, 1)[None]


def png16(values, *, significant=(), key=b"", interlaced=False):
    """Return a PNG file of 16 bits, https://www.w3.org/TR/png-3/; every kind of filter is used."""
    height, width, samples = values.shape
    size, rows = 2 * samples, []
    before = np.zeros(width * size, np.uint8)
    for number, row in enumerate(values.astype(">u2")):
        data = np.frombuffer(row.tobytes(), np.uint8)
        left = np.concatenate([np.zeros(size, np.uint8), data[:-size]])
        predicted = [np.zeros_like(data), left, before, ((left.astype(int) + before) // 2).astype(np.uint8)]
        kind = number % 4
        rows.append(bytes([kind]) + (data - predicted[kind]).tobytes())
        before = data
    head = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[samples], 0, 0, int(interlaced))
    extra = (chunk(b"sBIT", bytes(significant)) if significant else b"") + (chunk(b"tRNS", key) if key else b"")
    body = chunk(b"IDAT", zlib.compress(b"".join(rows)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + extra + body + chunk(b"IEND", b"")


# --- more than 8 bits, undeclared in the file


TIFFS = {
    "plain": {},
    "big end first": {"byteorder": ">"},
    "planar": {"planarconfig": "separate"},
    "deflated": {"compression": "zlib", "predictor": True},
    "tiles": {"tile": (16, 16)},
    "strips": {"rowsperstrip": 2},
}


def write(path, values, form):
    """Write `(H, W, S)` samples: grey, grey and opacity, RGB, RGB and opacity."""
    samples = values.shape[-1]
    if form == "png":
        path.write_bytes(png16(values))
    else:
        options = {"photometric": "rgb" if samples > 2 else "minisblack", **TIFFS[form]}
        if samples in {2, 4}:
            options["extrasamples"] = ["unassalpha"]
        planar = options.get("planarconfig") == "separate" and samples > 1
        options.pop("planarconfig" if samples == 1 else "", None)
        arranged = np.moveaxis(values, -1, 0) if planar else values if samples > 1 else values[..., 0]
        tifffile.imwrite(path, arranged, **{"planarconfig": "contig"} | options if samples > 1 else options)
    return path


CASES = list(itertools.product(["png", *TIFFS], [1, 2, 3, 4], [10, 12, 16], [1, 3]))
QUICK = [case for number, case in enumerate(CASES) if number % 5 == 0 or case[1:3] == (3, 12)]


def check_stretch(tmp_path, case):
    form, samples, bits, channels = case
    values = noise(bits, samples, np.uint16)
    colours = values
    if samples in {2, 4}:
        values[..., -1] = 2**bits - 1
        colours = values[..., :-1]
    image = read(write(tmp_path / "a.file", values, form), channels)
    np.testing.assert_allclose(shown(image), as_channels(stretched(colours), channels), atol=1e-6)
    said = [f"{STRETCHED}: {colours.min()}..{colours.max()} scaled to 0..1"]
    if samples in {2, 4} and bits < 16:
        said.insert(0, f"the largest opacity, {2**bits - 1}, is taken as opaque")
    assert list(image.notices) == said
    with DecodePool() as pool:
        again = pool.read(ImageFile(str(tmp_path / "a.file"), "unit"), channels=channels, notify=print)
    assert again.notices == image.notices
    np.testing.assert_array_equal(again.pixels.values, image.pixels.values)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", QUICK, ids=str)
def test_samples_of_more_than_8_bits_are_stretched_with_a_notice_in_any_layout(case, tmp_path):
    check_stretch(tmp_path, case)


@pytest.mark.thorough
def test_samples_of_more_than_8_bits_are_stretched_in_every_layout(tmp_path):
    for case in CASES:
        check_stretch(tmp_path, case)


def lzw(data):
    """Return bytes as TIFF's LZW with a clear code before each one or two of them, so that all codes have 9 bits."""
    bits = "".join(f"{256:09b}" + "".join(f"{byte:09b}" for byte in data[at : at + 100]) for at in range(0, len(data), 100))
    bits += f"{257:09b}"
    bits += "0" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("samples", [1, 3, 4])
def test_a_compression_of_pillow_keeps_all_bits_too(order, samples, tmp_path):
    values = noise(12, samples, np.uint16)
    if samples == 4:
        values[..., 3] = 65535
    data = lzw(values.astype(f"{order}u2").tobytes())
    options = {"photometric": "rgb" if samples > 1 else "minisblack", "byteorder": order}
    tifffile.imwrite(
        tmp_path / "b.tif",
        values if samples > 1 else values[..., 0],
        **options,
        extrasamples=["unassalpha"] * (samples == 4) or None,
    )
    content = bytearray((tmp_path / "b.tif").read_bytes())
    with tifffile.TiffFile(tmp_path / "b.tif") as file:
        tags = {code: file.pages[0].tags[code].offset for code in (259, 273, 279)}
    value = struct.Struct(f"{order}I")
    content[tags[259] + 8 : tags[259] + 10] = struct.pack(f"{order}H", 5)
    for code, number in ((273, len(content)), (279, len(data))):
        content[tags[code] + 2 : tags[code] + 12] = struct.pack(f"{order}HI", 4, 1) + value.pack(number)
    (tmp_path / "a.tif").write_bytes(bytes(content) + data)
    image = read(tmp_path / "a.tif")
    np.testing.assert_allclose(shown(image), as_channels(stretched(values[..., :3]), 3), atol=1e-6)


# --- declarations of the file


@pytest.mark.sampled
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("bits", [9, 10, 12, 14])
@pytest.mark.parametrize("binary", [True, False])
def test_the_largest_sample_of_a_portable_pixmap_is_white(samples, bits, binary, tmp_path):
    values, most = noise(bits, samples, ">u2"), 2**bits - 1
    magic = {(1, True): b"P5", (3, True): b"P6", (1, False): b"P2", (3, False): b"P3"}[samples, binary]
    head = b"%b\n# a comment\n%d %d\n%d\n" % (magic, WIDTH, HEIGHT, most)
    (tmp_path / "a.ppm").write_bytes(head + (values.tobytes() if binary else " ".join(map(str, values.ravel())).encode()))
    image = read(tmp_path / "a.ppm")
    np.testing.assert_allclose(shown(image), as_channels(np.moveaxis(values / most, -1, 0), 3), atol=1e-6)
    assert image.notices == ()


@pytest.mark.sampled
@pytest.mark.parametrize("samples", [1, 2, 3, 4])
@pytest.mark.parametrize("way", ["moved up", "filled", "left at the lower end"])
def test_the_significant_bits_of_a_png_file_determine_white(way, samples, tmp_path):
    plain = noise(12, samples, np.uint16)
    if samples in {2, 4}:
        plain[..., -1] = 4095
    stored = {"moved up": plain << 4, "filled": plain << 4 | plain >> 8, "left at the lower end": plain}[way]
    (tmp_path / "a.png").write_bytes(png16(stored, significant=[12] * samples))
    image = read(tmp_path / "a.png")
    colours = np.moveaxis(plain[..., :-1] if samples in {2, 4} else plain, -1, 0)
    np.testing.assert_allclose(shown(image), as_channels(colours / 4095, 3), atol=3e-4)
    assert any("sBIT of 12 bits" in notice for notice in image.notices)


def test_full_significant_bits_have_no_effect(tmp_path):
    values = noise(12, 3, np.uint16)
    (tmp_path / "a.png").write_bytes(png16(values, significant=[16] * 3))
    np.testing.assert_allclose(shown(read(tmp_path / "a.png")), stretched(values), atol=1e-6)


@pytest.mark.parametrize("tags", [(280, 281), (340, 341)], ids=str)
@pytest.mark.parametrize("samples", [1, 3])
def test_the_smallest_and_largest_samples_that_a_tiff_names_are_black_and_white(tags, samples, tmp_path):
    values = noise(12, samples, np.uint16)
    extra = [(tags[0], "H", 1, 16, True), (tags[1], "H", 1, 8191, True)]
    tifffile.imwrite(
        tmp_path / "a.tif", np.squeeze(values), photometric="rgb" if samples == 3 else "minisblack", extratags=extra
    )
    image = read(tmp_path / "a.tif")
    np.testing.assert_allclose(shown(image), as_channels(np.moveaxis((values - 16.0) / 8175, -1, 0), 3), atol=1e-6)
    assert image.notices == ("the smallest and largest samples that the file names: 16..8191 scaled to 0..1",)
    wrong = [(tags[0], "H", 1, 16, True), (tags[1], "H", 1, 100, True)]  # of which the samples know nothing
    tifffile.imwrite(
        tmp_path / "a.tif", np.squeeze(values), photometric="rgb" if samples == 3 else "minisblack", extratags=wrong
    )
    np.testing.assert_allclose(shown(read(tmp_path / "a.tif")), as_channels(stretched(values), 3), atol=1e-6)


def packed(values, bits, order="<", photometric=None):
    """Return a TIFF file of samples that follow each other without gaps, the highest bit first."""
    height, width, samples = values.shape
    rows = []
    for row in values.reshape(height, -1):
        text = "".join(f"{value:0{bits}b}" for value in row)
        rows.append(int(text + "0" * (-len(text) % 8), 2).to_bytes((len(text) + 7) // 8, "big"))
    data = b"".join(rows)
    kind = photometric if photometric is not None else 2 if samples == 3 else 1
    entries = {256: width, 257: height, 259: 1, 262: kind, 273: 1000, 277: samples, 278: height, 279: len(data), 284: 1}
    table = [(tag, 4, 1, struct.pack(f"{order}I", value)) for tag, value in entries.items()]
    depths = struct.pack(f"{order}{samples}H", *[bits] * samples)
    table.append((258, 3, samples, depths.ljust(4, b"\0") if samples < 3 else struct.pack(f"{order}I", 500)))
    directory = struct.pack(f"{order}H", len(table)) + b"".join(
        struct.pack(f"{order}HHI", tag, form, count) + value for tag, form, count, value in sorted(table)
    )
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8) + directory + bytes(4)
    return head.ljust(500, b"\0") + depths.ljust(500, b"\0") + data


@pytest.mark.sampled
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("bits", [1, 2, 4, 6, 10, 12, 14])
def test_samples_without_gaps_have_the_largest_value_as_white(bits, samples, order, tmp_path):
    values = np.random.default_rng(1).integers(0, 2**bits, (HEIGHT, WIDTH, samples))
    (tmp_path / "a.tif").write_bytes(packed(values, bits, order))
    image = read(tmp_path / "a.tif")
    np.testing.assert_allclose(shown(image), as_channels(np.moveaxis(values / (2**bits - 1), -1, 0), 3), atol=0.51 / 255)
    assert image.notices == ()


# --- zero is white


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "f4", "i2"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("form", ["plain", "big end first", "strips", "tiles"])
def test_zero_is_white_if_a_tiff_file_declares_it(form, channels, dtype, tmp_path):
    values = noise(8, 1, dtype)[..., 0] * (1 if dtype == "u1" else 20)
    for kind in ("minisblack", "miniswhite"):
        tifffile.imwrite(tmp_path / f"{kind}.tif", values, photometric=kind, **TIFFS[form])
    black, white = (shown(read(tmp_path / f"{kind}.tif", channels)) for kind in ("minisblack", "miniswhite"))
    np.testing.assert_allclose(white, 1 - black, atol=1e-6)
    with suppress(UnidentifiedImageError), PillowImage.open(tmp_path / "miniswhite.tif") as picture:
        given = read_memory_image(MemoryImage("a", "picture", picture), plain(channels)).values
        np.testing.assert_allclose(given, white, atol=1e-6)


def plain(channels):
    """A preparation that scales to 0..1."""
    from fmapviz.config import InputOptions
    from fmapviz.images.preprocess import standard

    return standard(InputOptions(fit="none", mean=(0,), std=(1,)), channels=channels)


# --- opacity


@pytest.mark.sampled
@pytest.mark.parametrize("form", ["png", "plain", "deflated"])
@pytest.mark.parametrize("samples", [2, 4])
@pytest.mark.parametrize("premultiplied", [False, True])
def test_transparent_samples_lie_over_black(form, samples, premultiplied, tmp_path):
    values = noise(16, samples, np.uint16)
    values[0, :3, -1], values[1, 0, -1] = 0, 65535
    share = values[..., -1:] / 65535
    colours = values[..., :-1] * share
    if premultiplied and form == "png":
        pytest.skip("PNG has no such samples")
    stored = np.concatenate([np.rint(colours), values[..., -1:]], -1).astype(np.uint16) if premultiplied else values
    if form == "png":
        (tmp_path / "a").write_bytes(png16(stored))
    else:
        extra = ["assocalpha" if premultiplied else "unassalpha"]
        tifffile.imwrite(
            tmp_path / "a",
            stored,
            photometric="rgb" if samples == 4 else "minisblack",
            extrasamples=extra,
            planarconfig="contig",
            **TIFFS[form],
        )
    most = np.where(share > 0, stored[..., :-1], 0).max()
    image = read(tmp_path / "a")
    np.testing.assert_allclose(shown(image), as_channels(np.moveaxis(colours / most, -1, 0), 3), atol=2e-5)
    assert TRANSPARENT in image.notices


@pytest.mark.parametrize("samples", [1, 3])
def test_a_transparent_colour_of_16_bits_is_black(samples, tmp_path):
    values = noise(16, samples, np.uint16)
    key = values[2, 3]
    (tmp_path / "a.png").write_bytes(png16(values, key=key.astype(">u2").tobytes()))
    found = shown(read(tmp_path / "a.png"))
    assert not found[:, 2, 3].any()
    assert (found[:, 0, 0] > 0).all()


# --- other colours


def test_inks_and_palettes_of_16_bits_become_rgb(tmp_path):
    inks = noise(16, 4, np.uint16)
    tifffile.imwrite(tmp_path / "inks.tif", inks, photometric="separated")
    expected = (1 - inks[..., :3] / 65535) * (1 - inks[..., 3:] / 65535)
    np.testing.assert_allclose(shown(read(tmp_path / "inks.tif")), np.moveaxis(expected, -1, 0), atol=1e-6)
    table = np.random.default_rng(0).integers(0, 65536, (3, 256), dtype=np.uint16)
    index = noise(8, 1, np.uint8)[..., 0]
    tifffile.imwrite(tmp_path / "palette.tif", index, photometric="palette", colormap=table, planarconfig=None)
    np.testing.assert_allclose(shown(read(tmp_path / "palette.tif")), (table / 65535)[:, index], atol=1.01 / 255)


def test_colours_that_are_not_converted_are_refused(tmp_path):
    tifffile.imwrite(tmp_path / "lab.tif", noise(16, 3, np.uint16), photometric="cielab")
    with pytest.raises(InputError, match="colours of 16 bits stored as CIELAB are not read") as caught:
        read(tmp_path / "lab.tif")
    assert (caught.value.code, caught.value.hint) == ("E_FORMAT", "save the picture as RGB")


# --- signs, floats, no data


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "u4", "f2", "f4", "f8"])
@pytest.mark.parametrize("samples", [1, 3])
def test_signed_samples_and_floats_are_stretched_for_any_number_of_channels(dtype, samples, tmp_path):
    values = (noise(8, samples, np.int64) - (0 if dtype == "u4" else 100)).clip(-120, 120).astype(dtype)
    tifffile.imwrite(tmp_path / "a.tif", np.squeeze(values), photometric="rgb" if samples == 3 else "minisblack")
    image = read(tmp_path / "a.tif")
    np.testing.assert_allclose(shown(image), as_channels(stretched(values), 3), atol=1e-6)
    assert len(image.notices) == 1
    np.save(tmp_path / "a.npy", values)
    np.testing.assert_array_equal(shown(read(tmp_path / "a.npy")), shown(image))


@pytest.mark.parametrize("samples", [1, 3])
def test_floats_from_0_to_1_are_not_scaled_for_any_number_of_channels(samples, tmp_path):
    values = (noise(8, samples, np.float32) / 600).astype(np.float32)
    tifffile.imwrite(tmp_path / "a.tif", np.squeeze(values), photometric="rgb" if samples == 3 else "minisblack")
    image = read(tmp_path / "a.tif")
    np.testing.assert_array_equal(shown(image), as_channels(np.moveaxis(values, -1, 0), 3))
    assert image.notices == ()


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["u1", "u2", "i2", "f4"])
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_no_data_values_are_black_and_outside_the_range(dtype, channels, tmp_path):
    nodata = {"u1": 0, "u2": 65535, "i2": -9999, "f4": -3.4028234663852886e38}[dtype]
    values = noise(8, channels, dtype) * (1 if dtype == "u1" else 4)
    values[0, 0] = nodata
    tag = [(42113, "s", 0, repr(nodata), True)]
    tifffile.imwrite(
        tmp_path / "a.tif",
        np.squeeze(values),
        photometric="rgb" if channels == 3 else "minisblack",
        planarconfig="contig" if channels > 1 else None,
        extratags=tag,
    )
    image = read(tmp_path / "a.tif", channels)
    expected = (values[1:] / 255.0).transpose(2, 0, 1) if dtype == "u1" else stretched(values[1:])
    if dtype != "u1":
        low, high = (
            values[values != np.dtype(dtype).type(nodata)].min(),
            values[values != np.dtype(dtype).type(nodata)].max(),
        )
        expected = np.moveaxis((values[1:].astype(float) - low) / (float(high) - low), -1, 0)
    np.testing.assert_allclose(shown(image)[:, 1:], expected, atol=1e-6)
    assert not shown(image)[:, 0, 0].any()
    assert "no data is shown as black" in image.notices


# --- pages


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_reduced_copy_before_the_picture_is_not_drawn(dtype, tmp_path):
    full = noise(8, 3, dtype)
    for name, sub in (("pages", False), ("sub-directory", True)):
        with tifffile.TiffWriter(tmp_path / f"{name}.tif") as file:
            file.write(full[:2, :2], photometric="rgb", subfiletype=1, **({"subifds": 1} if sub else {}))
            file.write(full, photometric="rgb", subfiletype=0)
        image = read(tmp_path / f"{name}.tif")
        assert (image.pixels.width, image.pixels.height) == (WIDTH, HEIGHT), name
        assert not any("several" in notice for notice in image.notices)
        expected = full / 255 if dtype == np.uint8 else np.moveaxis(stretched(full), 0, -1)
        np.testing.assert_allclose(shown(image), np.moveaxis(expected, -1, 0), atol=1e-6)


def test_a_file_that_calls_its_only_picture_a_reduced_copy_is_drawn_with_a_notice(tmp_path):
    for dtype in (np.uint8, np.uint16):
        tifffile.imwrite(tmp_path / "a.tif", noise(8, 3, dtype), photometric="rgb", subfiletype=1)
        image = read(tmp_path / "a.tif")
        assert image.pixels.width == WIDTH
        assert "the file calls its only picture a reduced copy of another one" in image.notices


def test_jpeg_2000_of_12_bits_has_its_white_and_that_of_16_bits_a_notice(tmp_path):
    values = noise(16, 3, np.uint16)
    PillowImage.fromarray(values[..., 0]).save(tmp_path / "a.jp2")
    np.testing.assert_allclose(shown(read(tmp_path / "a.jp2")), as_channels(stretched(values[..., :1]), 3), atol=1e-6)


# --- what a preprocessing of the user gets


def given(path, channels=3):
    """Return what a preprocessing of the user gets of a file: in this process, and decoded in another one."""
    got = []

    def preprocess(value):
        got.append(value)
        return torch.zeros(channels, 4, 4)

    preparation = by_callable(preprocess, description="", channels=channels, as_stored=True)
    preparation.apply(read(path, channels).pixels)
    with DecodePool() as pool:
        preparation.apply(pool.read(ImageFile(str(path), "unit"), channels=channels, notify=print).pixels)
    assert type(got[0]) is type(got[1])
    assert np.array_equal(np.asarray(got[0]), np.asarray(got[1]), equal_nan=True)
    return got[0]


@pytest.mark.parametrize(("dtype", "mode"), [("u2", "I;16"), ("i2", "I"), ("i4", "I"), ("f4", "F"), ("u1", None)])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_preprocessing_takes_the_values_of_a_grey_file(channels, dtype, mode, tmp_path):
    depth = (noise(8, 1, dtype) * (7 if dtype != "u1" else 1))[..., 0]
    tifffile.imwrite(tmp_path / "a.tif", depth)
    value = given(tmp_path / "a.tif", channels)
    assert value.mode == (mode or {1: "L", 3: "RGB"}[channels])
    np.testing.assert_array_equal(np.asarray(value) if mode or channels == 1 else np.asarray(value)[..., 0], depth)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["?", "u1", "u2", "i2", "u4", "i4", "f4", "f8"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_preprocessing_takes_stored_samples_whose_zero_is_white(channels, dtype, tmp_path):
    values = (noise(8, 1, np.uint8)[..., 0] % 2).astype(bool) if dtype == "?" else noise(8, 1, dtype)[..., 0]
    stored = np.asarray(values, np.uint8) * 255 if dtype == "?" else values
    for kind in ("minisblack", "miniswhite"):
        tifffile.imwrite(tmp_path / f"{kind}.tif", values, photometric=kind)
    black, white = (given(tmp_path / f"{kind}.tif", channels) for kind in ("minisblack", "miniswhite"))
    assert getattr(white, "mode", "") == getattr(black, "mode", "") or isinstance(white, torch.Tensor)
    np.testing.assert_array_equal(np.asarray(white), np.asarray(black))
    own = np.asarray(white)
    np.testing.assert_array_equal(own[..., 0] if own.shape[-1] == 3 else own[0] if own.ndim == 3 else own, stored)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_a_preprocessing_takes_few_bits_with_zero_as_black(bits, tmp_path):
    values = np.random.default_rng(1).integers(0, 2**bits, (HEIGHT, WIDTH, 1))
    for kind in (0, 1):
        (tmp_path / f"{kind}.tif").write_bytes(packed(values, bits, photometric=kind))
    white, black = (np.asarray(given(tmp_path / f"{kind}.tif", 1)) for kind in (0, 1))
    np.testing.assert_array_equal(white, black)
    np.testing.assert_array_equal(white, values[..., 0] * (255 // (2**bits - 1)))
    np.testing.assert_allclose(shown(read(tmp_path / "0.tif")), 1 - shown(read(tmp_path / "1.tif")), atol=1e-6)


def test_a_preprocessing_takes_a_fax_as_stored(tmp_path):
    picture = PillowImage.fromarray(noise(8, 1, np.uint8)[..., 0]).convert("1")
    picture.save(tmp_path / "a.tif", compression="group4", tiffinfo={262: 0})
    with PillowImage.open(tmp_path / "a.tif") as stored:
        assert stored.tag_v2[262] == 0
        inverted = 255 - np.asarray(stored.convert("L"))
    np.testing.assert_array_equal(np.asarray(given(tmp_path / "a.tif", 1)), inverted)


def test_a_preprocessing_takes_the_values_of_a_16_bit_png_file(tmp_path):
    values = noise(12, 3, np.uint16)
    (tmp_path / "a.png").write_bytes(png16(values))
    value = given(tmp_path / "a.png")
    assert value.dtype == torch.float32
    np.testing.assert_array_equal(value, np.moveaxis(values, -1, 0))
    (tmp_path / "b.png").write_bytes(png16(values[..., :1]))
    np.testing.assert_array_equal(np.asarray(given(tmp_path / "b.png")), values[..., 0])


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["u1", "u2", "i2", "i4", "i8", "f2", "f4", "f8", "?"])
@pytest.mark.parametrize("form", ["npy", "tif"])
def test_a_preprocessing_takes_many_channels_as_stored(form, dtype, tmp_path):
    values = noise(8, 5, np.int64).astype(dtype)
    if dtype in {"i8", "f8", "i4"}:
        values[0, 0] = 2**30 + 1  # which float32 does not hold
    if form == "npy":
        np.save(tmp_path / "a.npy", values)
    else:
        tifffile.imwrite(tmp_path / "a.tif", values, planarconfig="contig", photometric="minisblack")
    if form == "tif" and dtype == "?":
        pytest.skip("tifffile writes bytes")
    value = given(tmp_path / f"a.{form}", 5)
    np.testing.assert_array_equal(value, np.moveaxis(values, -1, 0))
    kept = {"u1": torch.uint8, "?": torch.bool, "i4": torch.float64, "i8": torch.float64, "f8": torch.float64}
    assert value.dtype == kept.get(dtype, torch.float32)


def test_depth_maps_of_different_ranges_stay_different(tmp_path):
    near, far = (np.full((4, 4), depth, np.uint16) for depth in (500, 9000))
    far[0, 0] = 1000
    for name, depth in (("near", near), ("far", far)):
        PillowImage.fromarray(depth).save(tmp_path / f"{name}.png")
    metres = by_callable(
        lambda image: torch.from_numpy(np.asarray(image, np.float32))[None] / 1000,
        description="",
        channels=1,
        as_stored=True,
    )
    assert metres.apply(read(tmp_path / "near.png", 1).pixels).max() == pytest.approx(0.5)
    assert metres.apply(read(tmp_path / "far.png", 1).pixels).max() == pytest.approx(9)


def test_a_failure_of_a_preprocessing_names_its_argument(tmp_path):
    PillowImage.fromarray(noise(12, 1, np.uint16)[..., 0]).save(tmp_path / "a.png")
    preparation = by_callable(lambda _: torch.zeros(1, 4, 4), description="", as_stored=True)
    with pytest.raises(InputError) as caught:
        preparation.apply(read(tmp_path / "a.png").pixels)
    assert caught.value.hint == "it is given the values of the file, here a Pillow image in mode I;16"


def test_a_preprocessing_takes_ordinary_pictures_unchanged(tmp_path):
    path = save_pixels(tmp_path / "a.png", noise(8, 3, np.uint8))
    assert (given(path).mode, given(path, 1).mode) == ("RGB", "L")
    assert stored_values(Samples(np.zeros((1, 2, 2), np.uint8), 0, 255, nodata=0, channels=1, is_picture=True)).mode == "L"
