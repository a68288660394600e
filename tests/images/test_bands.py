"""Grey-scale and multispectral files as inputs of networks, against NumPy, Pillow and tifffile."""

from __future__ import annotations

import logging.handlers
import pickle
import queue
import re
import struct
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from bad_images import encoded, flipped, make_zoo, oriented, picture
from PIL import Image as PillowImage
from torchvision import models, transforms
from torchvision.transforms import functional
from waiting import PATIENCE

from fmapviz.config import InputOptions
from fmapviz.core.bands import Bands
from fmapviz.core.samples import Samples
from fmapviz.errors import InputError, RequestError
from fmapviz.images.arrays import read_array, scale
from fmapviz.images.decode_pool import read_image
from fmapviz.images.find import find_images
from fmapviz.images.preprocess import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    as_trained,
    by_callable,
    clip,
    in_steps,
    standard,
    unnormalized,
)
from fmapviz.images.seen import Seen
from fmapviz.types import Image, ImageFile

KEPT = InputOptions(fit="none", mean=(0,), std=(1,))


def read(path: Path, channels: int = 3) -> Image:
    return read_image(ImageFile(str(path), "unit"), channels=channels)


def refusal(path: Path, channels: int = 3) -> InputError:
    with pytest.raises(InputError) as caught:
        read(path, channels)
    assert re.fullmatch(r"[^\n]*: '[^\n]*'", str(caught.value))
    assert str(path) in str(caught.value)
    return caught.value


def values(image: Image) -> np.ndarray:
    """Return the samples that were read, `(C, H, W)`, scaled to 0..1."""
    assert isinstance(image.pixels, Samples)
    bands = scale(image.pixels)
    assert {plane.mode for plane in bands.planes} == {"F"}
    assert {plane.size for plane in bands.planes} == {(image.pixels.width, image.pixels.height)}
    return np.stack([np.asarray(plane) for plane in bands.planes])


def stack(channels: int, dtype: object = np.uint8) -> np.ndarray:
    """Make a picture of 20 rows and 30 columns, no two channels alike."""
    return np.random.default_rng(channels).integers(0, 256, (channels, 20, 30)).astype(dtype)


def save(path: Path, array: np.ndarray) -> Path:
    np.save(path, array)
    return path


def npy(header: str | bytes, data: bytes = b"", version: bytes = b"\1\0") -> bytes:
    """Put a .npy file together from its parts."""
    text = header.encode() if isinstance(header, str) else header
    return b"\x93NUMPY" + version + struct.pack("<H" if version == b"\1\0" else "<I", len(text)) + text + data


def described(shape: object, descr: object = "|u1") -> str:
    return repr({"descr": descr, "fortran_order": False, "shape": shape}) + "\n"


# --- ordinary pictures


@pytest.mark.parametrize("form", ["PNG", "TIFF", "BMP", "WEBP"])
def test_a_picture_is_grey_for_one_channel_and_unchanged_for_three(form, tmp_path):
    options = {"lossless": True} if form == "WEBP" else {}
    (tmp_path / "a").write_bytes(encoded(picture(), form, **options))
    grey = read(tmp_path / "a", 1).pixels
    assert grey.mode == "L"
    assert grey.tobytes() == PillowImage.fromarray(picture()).convert("L").tobytes()
    assert read(tmp_path / "a", 3).pixels.tobytes() == picture().tobytes()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_grey_picture_is_upright(orientation, tmp_path):
    (tmp_path / "a").write_bytes(oriented(picture(), orientation, "PNG"))
    np.testing.assert_array_equal(np.asarray(read(tmp_path / "a", 1).pixels), PillowImage.fromarray(picture()).convert("L"))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_a_grey_picture_keeps_its_grey(dtype, tmp_path):
    """Pictures of more than 8 bits are scaled to 0..1, for one channel as for three."""
    levels = np.arange(256).reshape(8, 32)
    (tmp_path / "a").write_bytes(encoded((levels * (1 if dtype is np.uint8 else 7)).astype(dtype), "TIFF"))
    image = read(tmp_path / "a", 1)
    pixels = image.pixels if dtype is np.uint8 else values(image)[0] * 255
    np.testing.assert_array_equal(np.rint(pixels), levels)
    assert len(image.notices) == (dtype is not np.uint8)


@pytest.mark.sampled
@pytest.mark.parametrize("channels", [2, 4, 6, 13])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_a_picture_is_no_input_for_another_number_of_channels(mode, channels, tmp_path):
    PillowImage.fromarray(picture()).convert(mode).save(tmp_path / "a.png")
    error = refusal(tmp_path / "a.png", channels)
    assert error.code == "E_CHANNELS"
    assert f"the model takes {channels} channels" in str(error)
    assert error.hint.startswith(f"a .npy or .tif file with {channels} channels")


# Their headers are whole and tell the number of channels: the damaged pixels are not looked at.
WHOLE_HEADERS = {"half.jpg", "half.png", "half.gif", "flipped pixel.png", "flipped checksum.png"}


@pytest.mark.thorough
@pytest.mark.parametrize("channels", [1, 6])
def test_a_bad_picture_has_its_code_for_any_number_of_channels(channels, tmp_path, capfd):
    expected = make_zoo(tmp_path)
    if channels == 6:
        expected |= dict.fromkeys(WHOLE_HEADERS, "E_CHANNELS")
    assert {name: refusal(tmp_path / name, channels).code for name in expected} == expected
    assert capfd.readouterr() == ("", "")


# --- arrays: which axis is what


@pytest.mark.sampled
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_channels_first_and_channels_last_are_read_equally(channels, dtype, tmp_path):
    array = stack(channels, dtype) if dtype is np.uint8 else (stack(channels) / 255).astype(dtype)
    arrangements = {
        "first": array,
        "last": np.moveaxis(array, 0, -1),
        "contiguous": np.ascontiguousarray(np.moveaxis(array, 0, -1)),
        "fortran": np.asfortranarray(array),
        "batch": array[np.newaxis],
        "batch, last": np.moveaxis(array, 0, -1)[np.newaxis],
    }
    preparation = standard(KEPT, channels=channels)
    for name, arrangement in arrangements.items():
        image = read(save(tmp_path / f"{name}.npy", arrangement), channels)
        assert image.notices == ()
        prepared = preparation.apply(image.pixels)
        expected = torch.from_numpy(array).to(torch.float32) / (255 if dtype is np.uint8 else 1)
        assert torch.equal(prepared, expected), name


@pytest.mark.parametrize("shape", [(20, 30), (1, 20, 30), (20, 30, 1), (1, 1, 20, 30)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_grey_is_repeated_for_rgb(shape, dtype, tmp_path):
    array = (stack(1) if dtype is np.uint8 else stack(1) / 255).astype(dtype)
    prepared = standard(KEPT).apply(read(save(tmp_path / "a.npy", array.reshape(shape))).pixels)
    assert torch.equal(prepared, torch.from_numpy(stack(1)).float().div(255).expand(3, -1, -1))


def test_rgb_is_converted_to_grey_for_one_channel(tmp_path):
    expected = np.tensordot([0.299, 0.587, 0.114], stack(3) / 255, 1)
    as_bytes = standard(KEPT, channels=1).apply(read(save(tmp_path / "a.npy", stack(3)), 1).pixels)
    np.testing.assert_allclose(as_bytes[0], expected, atol=0.51 / 255)
    as_floats = read(save(tmp_path / "b.npy", np.moveaxis(stack(3) / 255, 0, -1)), 1)
    np.testing.assert_allclose(values(as_floats)[0], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "channels", "expected"),
    [
        ((4, 5, 4), 4, (4, 4, 5)),  # both fit: the last
        ((3, 5, 3), 3, (3, 3, 5)),
        ((4, 5, 6), 4, (4, 5, 6)),
        ((1, 5, 3), 3, (3, 1, 5)),  # what the network takes goes before what will do
        ((3, 5, 1), 3, (3, 5, 1)),
        ((1, 5, 3), 1, (1, 5, 3)),
        ((3, 5, 6), 1, (1, 5, 6)),
    ],
)
def test_the_axis_of_channels_is_detected(shape, channels, expected, tmp_path):
    array = np.random.default_rng(0).random(shape).astype(np.float32)
    found = values(read(save(tmp_path / "a.npy", array), channels))
    assert found.shape == expected
    if expected == shape:
        np.testing.assert_array_equal(found, array)
    elif channels != 1:
        np.testing.assert_array_equal(found, np.moveaxis(array, -1, 0))


@pytest.mark.parametrize(
    ("shape", "channels"),
    [((20, 30, 5), 4), ((5, 20, 30), 6), ((20, 30), 2), ((1, 20, 30), 4), ((2, 4, 20, 30), 4), ((20,), 1), ((), 3),
     ((2, 20, 30), 3), ((1, 1, 4, 20, 30), 4)],
)  # fmt: skip
def test_an_array_of_another_number_of_channels_is_refused(shape, channels, tmp_path):
    error = refusal(save(tmp_path / "a.npy", np.zeros(shape, np.uint8)), channels)
    assert error.code == "E_CHANNELS"
    assert (" x ".join(map(str, shape)) or "a single value") in str(error)
    assert f"takes {channels} channel" in str(error)
    assert ".npy" in error.hint


# --- arrays: which value is how light


@pytest.mark.parametrize("channels", [1, 3])
def test_an_array_is_the_picture_of_the_same_pixels(channels, tmp_path):
    for name, pixels in (("rgb", picture()), ("grey", picture()[..., 0])):
        PillowImage.fromarray(pixels).save(tmp_path / f"{name}.png")
        as_picture = read(tmp_path / f"{name}.png", channels)
        as_array = read(save(tmp_path / f"{name}.npy", pixels), channels)
        assert as_array.pixels.mode == as_picture.pixels.mode
        for options in (
            InputOptions(),
            InputOptions(size=(40, 33), fit="pad"),
            InputOptions(size=(17, 90), fit="squash"),
            KEPT,
        ):
            preparation = standard(options, channels=channels)
            assert torch.equal(preparation.apply(as_array.pixels), preparation.apply(as_picture.pixels))


def test_bytes_of_many_channels_are_divided_by_255(tmp_path):
    levels = np.arange(256, dtype=np.uint8).reshape(2, 8, 16)
    found = values(read(save(tmp_path / "a.npy", levels), 2))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, functional.convert_image_dtype(torch.from_numpy(levels), torch.float32).numpy())


def test_booleans_are_black_and_white(tmp_path):
    for channels in (1, 2, 3):
        image = read(save(tmp_path / "a.npy", stack(channels) > 127), channels)
        np.testing.assert_array_equal(values(image), stack(channels) > 127)
        assert image.notices == ()


@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f4", "<f8", np.longdouble])
def test_floats_from_0_to_1_are_not_scaled(dtype, tmp_path):
    array = (stack(4) / 512 + 0.25).astype(dtype)  # they do not reach 0 nor 1
    image = read(save(tmp_path / "a.npy", array), 4)
    np.testing.assert_array_equal(values(image), array.astype(np.float32))
    assert image.notices == ()


@pytest.mark.parametrize("dtype", ["<u2", ">u2", "<i2", "<i8", "<u8", "<f4", "<f8", "i1"])
def test_other_numbers_are_scaled_from_the_range_of_all_channels(dtype, tmp_path):
    low, high = (-100, 120) if dtype == "i1" else (100, 4000) if "u" in dtype else (-1000, 3000)
    array = np.random.default_rng(1).integers(low, high, (5, 20, 30)).astype(dtype)
    array[0, 0, 0], array[4, 1, 1] = low, high
    image = read(save(tmp_path / "a.npy", array), 5)
    np.testing.assert_allclose(values(image), (array.astype(float) - low) / (high - low), atol=1e-7)
    what = "values below zero" if dtype == "i1" else "more than 8 bits per channel"
    assert image.notices == (f"{what}: {low}..{high} scaled to 0..1",)


def test_extreme_integers_are_scaled(tmp_path):
    for dtype in (np.int64, np.uint64, np.int32):
        limits = np.iinfo(dtype)
        middle = limits.min // 2 + limits.max // 2
        found = values(read(save(tmp_path / "a.npy", np.array([[[limits.min, middle, limits.max]]] * 2, dtype)), 2))
        np.testing.assert_allclose(found[0, 0], [0, 0.5, 1], atol=1e-6)


def test_nan_is_black_and_infinity_is_black_or_white(tmp_path):
    array = np.array([[[np.nan, np.inf, -np.inf, 0.25, 1]]] * 2, np.float32)
    image = read(save(tmp_path / "a.npy", array), 2)
    np.testing.assert_array_equal(values(image)[0, 0], [0, 1, 0, 0.25, 1])
    assert image.notices == ("NaN is shown as black", "infinity is shown as the end of the range")
    image = read(save(tmp_path / "b.npy", array * 8 - 2), 2)
    np.testing.assert_array_equal(values(image)[0, 0], [0, 1, 0, 0, 1])
    assert image.notices == (
        "more than 8 bits per channel: 0..6 scaled to 0..1",
        "NaN is shown as black",
        "infinity is shown as the end of the range",
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, 7.0])
def test_constant_floats_are_drawn(value, tmp_path):
    found = values(read(save(tmp_path / "a.npy", np.full((2, 3, 4), value)), 2))
    assert set(found.flat) == {1.0 if value == np.inf else 0.0}


@pytest.mark.parametrize(
    ("array", "word"),
    [
        (np.zeros((4, 4, 3), complex), "complex"),
        (np.zeros((4, 4), [("a", "u1")]), "records"),
        (np.zeros((4, 4, 3), "S3"), "bytes"),
        (np.zeros((4, 4, 3), "U3"), "str"),
        (np.zeros((4, 4), "M8[s]"), "datetime"),
        (np.zeros((4, 4), "V6"), "records"),
    ],
)
def test_arrays_of_other_than_real_numbers_are_refused(array, word, tmp_path):
    error = refusal(save(tmp_path / "a.npy", array))
    assert error.code == "E_FORMAT"
    assert word in str(error)


# --- hostile arrays


class Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_no_object_is_loaded_from_an_array(tmp_path):
    canary = tmp_path / "sang"
    objects = np.empty((4, 4), object)
    objects.fill(Canary(canary))
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    error = refusal(tmp_path / "a.npy")
    assert (error.code, "Python objects" in str(error)) == ("E_FORMAT", True)
    (tmp_path / "b.npy").write_bytes(pickle.dumps(Canary(canary)))
    assert refusal(tmp_path / "b.npy").code == "E_FORMAT"
    assert not canary.exists()
    np.load(tmp_path / "a.npy", allow_pickle=True)
    assert canary.exists(), "this test does not test anything"


HEADERS = {
    "nothing behind the magic": b"\x93NUMPY",
    "half a length": b"\x93NUMPY\1\0\7",
    "no header": npy(""),
    "no literal": npy("print('hello')"),
    "code": npy("{'descr': __import__('os').getcwd(), 'fortran_order': False, 'shape': (4, 4)}"),
    "brackets": npy("(" * 9000),
    "minus signs": npy("-" * 9000 + "1"),
    "bytes": npy(bytes(range(256))),
    "an escape that is none": npy(r"{'descr': '\d', 'fortran_order': False, 'shape': (4, 4)}"),
    "a number that is none": npy("(1if 2else 3)"),
    "no such type": npy(described((4, 4), "banana")),
    "a negative side": npy(described((-4, 4)), bytes(16)),
    "two negative sides": npy(described((-4, -4)), bytes(16)),
    "no side": npy(described((0, 4))),
    "a side of no whole number": npy(described((4.0, 4)), bytes(16)),
    "a long number": npy("{'descr': '|u1', 'fortran_order': False, 'shape': (" + "9" * 5000 + ", 4)}"),
    "a long header": npy(described((4, 4)) + " " * 20_000, bytes(16)),
    "a longer header": npy(described((4, 4)), bytes(16), b"\2\0")[:8] + b"\xff\xff\xff\xff" + described((4, 4)).encode(),
    "cut off": npy(described((4, 4)), bytes(15)),
    "old Python, cut off": npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4L, 4L)}", bytes(15)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_damaged_array_is_refused(name, channels, tmp_path, capfd, recwarn):
    (tmp_path / "a.npy").write_bytes(HEADERS[name])
    expected = "E_FORMAT" if len(HEADERS[name]) == 6 else "E_DECODE"
    assert refusal(tmp_path / "a.npy", channels).code == expected
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


def test_an_unknown_version_is_refused(tmp_path):
    (tmp_path / "a.npy").write_bytes(npy(described((4, 4)), bytes(16), b"\3\0"))
    assert refusal(tmp_path / "a.npy").code == "E_FORMAT"


def test_the_second_version_and_an_old_pythons_header_are_read(tmp_path, recwarn):
    (tmp_path / "a.npy").write_bytes(npy(described((4, 4)), bytes(range(16)), b"\2\0"))
    assert read(tmp_path / "a.npy", 1).pixels.tobytes() == bytes(range(16))
    (tmp_path / "b.npy").write_bytes(npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4L, 4L)}", bytes(range(16))))
    assert read(tmp_path / "b.npy", 1).pixels.tobytes() == bytes(range(16))
    assert not recwarn.list


def test_a_truncated_array_is_refused(tmp_path):
    content = save(tmp_path / "a.npy", stack(4)).read_bytes()
    for length in (*range(1, 140, 7), *range(140, len(content), 400), len(content) - 1):
        (tmp_path / "b.npy").write_bytes(content[:length])
        assert refusal(tmp_path / "b.npy", 4).code == ("E_DECODE" if length >= 8 else "E_FORMAT")


MEMORY = """
import sys
from pathlib import Path
from fmapviz.errors import InputError
from fmapviz.images.decode_pool import read_image
from fmapviz.types import ImageFile

def peak_memory():  # KiB; not getrusage: in a child it begins with what the parent had
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

good, *bad = (ImageFile(path, "") for path in sys.argv[1:])
read_image(good, channels=6)
for file in bad:
    before = peak_memory()
    try:
        read_image(file, channels=6)
    except InputError as error:
        print(error.code, peak_memory() - before)
"""


def answers(*paths: Path) -> list[tuple[str, int]]:
    """Return the code and the KiB of each bad file, read in a fresh process after a good one."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, *map(str, paths)], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stderr == ""
    assert done.stdout.count("\n") == len(paths) - 1
    return [(code, int(memory)) for code, memory in map(str.split, done.stdout.splitlines())]


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_an_array_costs_no_memory_for_what_it_claims(tmp_path):
    claims = {
        "huge": ((6, 10**6, 10**6), "E_TOO_LARGE"),
        "beyond all numbers": ((6, 10**300, 10**300), "E_TOO_LARGE"),
        "one too many": ((6, 44_739_243, 1), "E_TOO_LARGE"),
        "just not": ((6, 44_739_242, 1), "E_DECODE"),
        "hollow": ((6, 7000, 7000), "E_TOO_LARGE"),
    }
    good = save(tmp_path / "good.npy", stack(6))
    for name, (shape, _) in claims.items():
        (tmp_path / name).write_bytes(npy(described(shape)))
    with (tmp_path / "hollow").open("r+b") as file:
        file.truncate(400_000_000)  # a file with holes: the numbers are there and take no room
    (tmp_path / "header").write_bytes(b"\x93NUMPY\2\0\xff\xff\xff\x7f")
    with (tmp_path / "header").open("r+b") as file:
        file.truncate(2_200_000_000)
    found = answers(good, *(tmp_path / name for name in claims), tmp_path / "header")
    assert [code for code, _ in found] == [*(code for _, code in claims.values()), "E_DECODE"]
    assert max(memory for _, memory in found) < 4_000


def test_the_limit_of_pixels_holds_for_a_single_channel_too(tmp_path):
    (tmp_path / "over.npy").write_bytes(npy(described((9_460, 9_459))))
    (tmp_path / "under.npy").write_bytes(npy(described((9_459, 9_459))))
    for channels in (1, 3):
        assert refusal(tmp_path / "over.npy", channels).code == "E_TOO_LARGE"
        assert refusal(tmp_path / "under.npy", channels).code == "E_DECODE"


# --- TIFF


WAYS = {
    "interleaved": {"planarconfig": "contig", "photometric": "minisblack"},
    "planar": {"planarconfig": "separate", "photometric": "minisblack"},
    "pages": {"photometric": "minisblack", "metadata": None},
    "strips": {"planarconfig": "contig", "photometric": "minisblack", "rowsperstrip": 7},
    "tiles": {"planarconfig": "contig", "photometric": "minisblack", "tile": (16, 16)},
    "planar tiles": {"planarconfig": "separate", "photometric": "minisblack", "tile": (16, 16)},
    "deflated": {"planarconfig": "contig", "photometric": "minisblack", "compression": "zlib", "rowsperstrip": 7},
    "deflated differences": {
        "planarconfig": "contig",
        "photometric": "minisblack",
        "compression": "zlib",
        "predictor": True,
    },
    "deflated tiles": {"planarconfig": "separate", "photometric": "minisblack", "compression": "zlib", "tile": (16, 16)},
    "big": {"planarconfig": "contig", "photometric": "minisblack", "bigtiff": True},
    "big end first": {"planarconfig": "contig", "photometric": "minisblack", "byteorder": ">"},
    "ImageJ": {"imagej": True},
}


def save_tiff(path: Path, array: np.ndarray, way: str = "interleaved", **options: object) -> Path:
    arranged = np.moveaxis(array, 0, -1) if WAYS[way].get("planarconfig") == "contig" else array
    tifffile.imwrite(path, arranged, **{**WAYS[way], **options})
    return path


@pytest.mark.sampled
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("channels", [2, 4, 6, 13])
def test_samples_or_pages_of_a_tiff_file_are_channels(way, channels, tmp_path):
    for dtype in (np.uint8, np.uint16):
        path = save_tiff(tmp_path / "a.tif", stack(channels, dtype), way)
        np.testing.assert_array_equal(np.sort(tifffile.imread(path).ravel()), np.sort(stack(channels).ravel()))
        image = read(path, channels)
        low, high = (0, 255) if dtype == np.uint8 else (int(stack(channels).min()), int(stack(channels).max()))
        np.testing.assert_allclose(values(image), (stack(channels) - float(low)) / (high - low), atol=1e-7)
        assert len(image.notices) == (dtype != np.uint8)


@pytest.mark.parametrize("way", ["interleaved", "planar", "pages", "strips", "tiles", "deflated"])
def test_floats_of_a_tiff_file_are_read(way, tmp_path):
    array = (stack(6) / 255).astype(np.float32)
    np.testing.assert_array_equal(values(read(save_tiff(tmp_path / "a.tif", array, way), 6)), array)
    again = read(save_tiff(tmp_path / "b.tif", array * 8 - 4, way), 6)
    np.testing.assert_allclose(values(again), array, atol=1e-6)
    assert again.notices == ("more than 8 bits per channel: -4..4 scaled to 0..1",)


def test_samples_of_one_bit_are_read(tmp_path):
    bits = stack(4) > 127
    path = save_tiff(tmp_path / "a.tif", bits, "pages")
    np.testing.assert_array_equal(tifffile.imread(path), bits)
    np.testing.assert_array_equal(values(read(path, 4)), bits)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_bands_are_upright(orientation, tmp_path):
    array = stack(6)
    path = save_tiff(tmp_path / "a.tif", array, extratags=[(274, 3, 1, orientation, True)])
    PillowImage.fromarray(array[5]).save(tmp_path / "b.tif", tiffinfo={274: orientation})
    expected = np.asarray(read(tmp_path / "b.tif", 1).pixels)
    np.testing.assert_array_equal(values(read(path, 6))[5], expected.astype(np.float32) / np.float32(255))


def test_reduced_copies_are_no_channels_and_other_pages_are_a_notice(tmp_path):
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        file.write(np.moveaxis(stack(6), 0, -1), planarconfig="contig", photometric="minisblack")
        file.write(np.zeros((10, 15, 6), np.uint8), planarconfig="contig", photometric="minisblack", subfiletype=1)
    image = read(tmp_path / "a.tif", 6)
    assert (image.pixels.width, image.notices) == (30, ())
    with tifffile.TiffWriter(tmp_path / "b.tif") as file:
        for _ in range(3):
            file.write(np.moveaxis(stack(6), 0, -1), planarconfig="contig", photometric="minisblack")
    assert read(tmp_path / "b.tif", 6).notices == ("holds several pictures: only the first is used",)


@pytest.mark.sampled
@pytest.mark.parametrize("way", ["interleaved", "planar", "pages"])
@pytest.mark.parametrize("channels", [2, 4, 5, 7])
def test_a_tiff_file_of_other_channels_is_a_failure_with_their_number(way, channels, tmp_path):
    error = refusal(save_tiff(tmp_path / "a.tif", stack(6), way), channels)
    assert error.code == "E_CHANNELS"
    assert f"takes {channels} channels" in str(error)
    assert ("20 x 30" if way == "pages" else "6 x 20 x 30" if way == "planar" else "20 x 30 x 6") in str(error)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_tiff_that_pillow_cannot_open_because_of_its_samples_is_not_damaged(channels, tmp_path, capfd):
    for count in (5, 6, 7, 13):
        assert refusal(save_tiff(tmp_path / "a.tif", stack(count)), channels).code == "E_CHANNELS"
    assert capfd.readouterr() == ("", "")


def test_a_tiff_of_rgb_that_pillow_cannot_open_is_read(tmp_path):
    array = (stack(3) / 255).astype(np.float32)
    path = save_tiff(tmp_path / "a.tif", array, photometric="rgb")
    with pytest.raises(PillowImage.UnidentifiedImageError):
        PillowImage.open(path)
    np.testing.assert_array_equal(values(read(path)), array)
    np.testing.assert_allclose(values(read(path, 1))[0], np.tensordot([0.299, 0.587, 0.114], array, 1), atol=1e-6)


def test_a_volume_is_refused_as_a_picture(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((16, 32, 32), np.uint8), volumetric=True, tile=(16, 16, 16))
    error = refusal(tmp_path / "a.tif", 16)
    assert error.code == "E_CHANNELS"
    assert "16 x 32 x 32" in str(error)


def test_complex_samples_are_refused(tmp_path):
    assert refusal(save_tiff(tmp_path / "a.tif", stack(6, np.complex64)), 6).code == "E_FORMAT"


def test_a_compression_that_needs_a_package_names_it(tmp_path, monkeypatch):
    content = save_tiff(tmp_path / "a.tif", stack(6)).read_bytes()
    entry = struct.pack("<HHII", 259, 3, 1, 1)
    assert content.count(entry) == 1
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    for compression in (5, 7, 34925, 50000):  # LZW, JPEG, LZMA, Zstandard
        (tmp_path / "b.tif").write_bytes(content.replace(entry, struct.pack("<HHII", 259, 3, 1, compression)))
        error = refusal(tmp_path / "b.tif", 6)
        assert (error.code, error.hint) == ("E_FORMAT", "pip install imagecodecs")
    (tmp_path / "b.tif").write_bytes(content.replace(entry, struct.pack("<HHII", 259, 3, 1, 12345)))
    assert refusal(tmp_path / "b.tif", 6).code == "E_DECODE"


@pytest.mark.parametrize("way", ["interleaved", "planar", "pages", "deflated", "tiles", "big"])
def test_a_truncated_tiff_file_is_refused(way, tmp_path):
    path = save_tiff(tmp_path / "a.tif", stack(6), way)
    content, whole = path.read_bytes(), values(read(path, 6))
    codes = []
    for length in (*range(8, 600, 31), *range(600, len(content), 250), *range(len(content) - 8, len(content))):
        (tmp_path / "b.tif").write_bytes(content[:length])
        try:
            image = read(tmp_path / "b.tif", 6)
        except InputError as error:
            codes.append(error.code)
        else:
            np.testing.assert_array_equal(values(image), whole)  # only what is no pixel is missing
    assert len(codes) >= 20
    found = [code for code, _ in groupby(codes)]
    if way == "pages":  # a file that ends between two of its pages looks like one of fewer channels
        assert found == ["E_DECODE", "E_CHANNELS", "E_DECODE"]
    else:
        assert found == ["E_DECODE"]


def test_a_tiff_file_with_flipped_bits_is_read_or_refused_without_output(tmp_path, capfd, recwarn):
    content = save_tiff(tmp_path / "a.tif", stack(6), "deflated").read_bytes()
    codes = set()
    for position in (*range(300), *range(300, len(content), 97)):
        (tmp_path / "b.tif").write_bytes(flipped(content, position))
        try:
            read(tmp_path / "b.tif", 6)
        except InputError as error:
            codes.add(error.code)
    assert codes <= {"E_DECODE", "E_CHANNELS", "E_FORMAT", "E_TOO_LARGE"}
    assert "E_DECODE" in codes
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


def tiff(*entries: tuple[int, int, int, int], data: bytes = b"", following: int = 0) -> bytes:
    """Put a TIFF file of one directory together; the data begins at byte 1000."""
    table = b"".join(struct.pack("<HHII", *entry) for entry in sorted(entries))
    head = b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(entries)) + table + struct.pack("<I", following)
    return head.ljust(1000, b"\0") + data


def samples_tiff(width: int, height: int, data: bytes, *, compression: int = 1, **changes: int) -> bytes:
    tags = {256: (4, width), 257: (4, height), 258: (3, 8), 259: (3, compression), 262: (3, 1), 273: (4, 1000), 277: (3, 6),
            278: (4, height), 279: (4, len(data)), 284: (3, 1)}  # fmt: skip
    return tiff(*((tag, kind, 1, value) for tag, (kind, value) in tags.items()), data=data, **changes)


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_a_tiff_costs_no_memory_for_what_it_claims(tmp_path):
    compressor = zlib.compressobj(1)
    zeros = compressor.compress(bytes(1 << 20)) + compressor.flush(zlib.Z_FULL_FLUSH)
    again = compressor.compress(bytes(1 << 20)) + compressor.flush(zlib.Z_FULL_FLUSH)  # without the header
    checksum = struct.pack(">HH", (100 << 20) % 65521, 1)  # Adler-32 of zeros: their number, and 1
    bomb = zeros + 99 * again + b"\3\0" + checksum
    assert zlib.decompressobj().decompress(bomb[: len(zeros)] + 2 * again) == bytes(3 << 20)
    good = save_tiff(tmp_path / "good.tif", stack(6), "deflated")
    (tmp_path / "bomb").write_bytes(samples_tiff(10, 10, bomb, compression=8))
    (tmp_path / "huge").write_bytes(samples_tiff(50_000, 50_000, bytes(600)))
    (tmp_path / "loop").write_bytes(samples_tiff(10, 10, bytes(600), following=8))
    offset = struct.pack("<HHI", 273, 4, 1), struct.pack("<HHI", 273, 4, 2**32 - 1)
    (tmp_path / "tag").write_bytes(samples_tiff(10, 10, bytes(600)).replace(*offset))
    (tmp_path / "short").write_bytes(samples_tiff(1000, 1000, bytes(600)))
    found = answers(good, *(tmp_path / name for name in ("bomb", "huge", "tag", "short")))
    assert [code for code, _ in found] == ["E_DECODE", "E_TOO_LARGE", "E_DECODE", "E_DECODE"]
    assert max(memory for _, memory in found) < 8_000
    assert read(tmp_path / "loop", 6).notices == ("holds several pictures: only the first is used",)


def test_tiles_that_a_tiff_file_lacks_are_a_failure(tmp_path):
    """tifffile leaves the former content of memory where a tile is missing."""
    path = save_tiff(tmp_path / "a.tif", stack(6), "tiles")
    with tifffile.TiffFile(path) as file:
        tags = [file.pages[0].tags[code] for code in (324, 325)]
        positions = [tag.offset for tag in tags]
    content = bytearray(path.read_bytes())
    for position in positions:
        content[position + 4 : position + 8] = struct.pack("<I", 3)
    path.write_bytes(content)
    error = refusal(path, 6)
    assert (error.code, "pieces are missing" in str(error)) == ("E_DECODE", True)


@pytest.mark.thorough
def test_tifffile_prints_nothing(tmp_path, capfd):
    """Its log messages are printed only if the user configures logging."""
    kind = struct.pack("<HH", 284, 3), struct.pack("<HH", 284, 99)
    (tmp_path / "a.tif").write_bytes(samples_tiff(10, 10, bytes(600)).replace(*kind))
    logger, records = logging.getLogger("tifffile"), queue.SimpleQueue()
    handler = logging.handlers.QueueHandler(records)
    logger.addHandler(handler)
    read(tmp_path / "a.tif", 6)
    logger.removeHandler(handler)
    assert not records.empty(), "this file does not test anything"
    code = "import sys; from fmapviz.images.decode_pool import read_image; from fmapviz.types import ImageFile; "
    code += "read_image(ImageFile(sys.argv[1], ''), channels=6)"
    command = [sys.executable, "-W", "default", "-c", code, str(tmp_path / "a.tif")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert (done.stdout, done.stderr) == ("", "")


# --- inputs of the network


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6])
def test_a_file_of_bands_is_preprocessed_and_shown(channels, tmp_path):
    array = stack(channels)
    for path in (save(tmp_path / "a.npy", array), save(tmp_path / "b.npy", array / 255)):
        preparation = standard(InputOptions(fit="none"), channels=channels)
        prepared = preparation.apply(read(path, channels).pixels)
        assert (prepared.dtype, prepared.shape) == (torch.float32, (channels, 20, 30))
        mean, std = (IMAGENET_MEAN, IMAGENET_STD) if channels == 3 else ((0.449,), (0.226,))
        expected = (array / 255 - np.reshape(mean, (-1, 1, 1))) / np.reshape(std, (-1, 1, 1))
        np.testing.assert_allclose(prepared, expected, atol=1e-5)
        seen = Seen(prepared, preparation).picture
        assert seen.dtype == np.uint8
        np.testing.assert_array_equal(seen, array[0] if channels < 3 else np.moveaxis(array[:3], 0, -1))
        assert preparation.channels == channels


def smooth(channels: int) -> np.ndarray:
    """Make a picture of 60 rows and 80 columns without edges, where 8 bits are as good as any."""
    rows, columns = np.mgrid[0:60, 0:80]
    return np.stack([(rows * 2 + columns + 9 * number) % 256 for number in range(channels)]).astype(np.uint8)


@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
def test_bands_are_fitted_like_pictures_without_rounding(fit, tmp_path):
    array = (smooth(3) // 2).astype(np.uint8)
    preparation = standard(InputOptions(size=(33, 41), fit=fit, mean=(0,), std=(1,)))
    rounded = preparation.apply(read(save(tmp_path / "a.npy", array)).pixels)
    exact = preparation.apply(read(save(tmp_path / "b.npy", array / 255)).pixels)
    torch.testing.assert_close(exact, rounded, rtol=0, atol=1.01 / 255)
    assert (exact * 255 - (exact * 255).round()).abs().max() > 0.2
    assert (exact.min(), exact.max() <= 1) >= (0, True)
    many = standard(InputOptions(size=(33, 41), fit=fit, mean=(0,), std=(1,)), channels=6)
    prepared = many.apply(read(save(tmp_path / "c.npy", np.concatenate([array, array[::-1]]) / 255), 6).pixels)
    assert torch.equal(prepared, torch.cat([exact, exact.flip(0)]))


def test_the_presets_of_torchvision_take_bands_as_tensors(tmp_path):
    array = (stack(3) / 255).astype(np.float32)
    bands = read(save(tmp_path / "a.npy", array)).pixels
    preset = models.AlexNet_Weights.DEFAULT.transforms
    assert torch.equal(as_trained(preset(), InputOptions()).apply(bands), preset()(torch.from_numpy(array)))
    video = models.video.R3D_18_Weights.DEFAULT.transforms
    expected = video()(torch.from_numpy(array).expand(2, -1, -1, -1))
    assert torch.equal(clip(video(), InputOptions(), frames=2).apply(bands), expected)
    fitted = clip(video(), InputOptions(size=(20, 30)), frames=2).apply(bands)
    assert fitted.shape == (3, 2, 20, 30)
    assert torch.equal(unnormalized(InputOptions()).apply(bands), torch.from_numpy(array))
    assert in_steps(InputOptions(), step=8, least=128, box=(520, 960)).apply(bands).shape == (3, 520, 784)
    torch.testing.assert_close(unnormalized(InputOptions(size=(20, 30))).apply(bands), torch.from_numpy(array))


def test_a_strip_of_bands_is_refused_or_cut_like_a_picture(tmp_path):
    strip = read(save(tmp_path / "a.npy", np.random.default_rng(0).random((3, 1, 200_000)))).pixels
    with pytest.raises(InputError, match="a strip of 200000 x 1 pixels"):
        as_trained(models.segmentation.FCN_ResNet50_Weights.DEFAULT.transforms(), InputOptions()).apply(strip)
    assert as_trained(models.AlexNet_Weights.DEFAULT.transforms(), InputOptions()).apply(strip).shape == (3, 224, 224)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_mean_and_deviation_have_one_number_or_one_per_channel(channels):
    bands = Bands(tuple(PillowImage.new("F", (4, 4), 0.5) for _ in range(channels)))
    each = tuple((number + 1) / 10 for number in range(channels))
    prepared = standard(InputOptions(fit="none", mean=each, std=each[::-1]), channels=channels).apply(bands)
    np.testing.assert_allclose(prepared[:, 0, 0], (0.5 - np.array(each)) / np.array(each[::-1]), rtol=1e-6)
    assert standard(InputOptions(mean=(0.5,), std=(0.5,)), channels=channels).apply(bands).abs().max() == 0
    for option in ("mean", "std"):
        wrong = InputOptions(**{option: (*each, 0.5)})
        with pytest.raises(RequestError, match=f"{option} must be 1 (number|or {channels} numbers): '") as caught:
            standard(wrong, channels=channels)
        assert caught.value.hint


def test_presets_refuse_other_numbers_of_channels():
    preset = models.AlexNet_Weights.DEFAULT.transforms
    for wrong in (InputOptions(mean=(0.5, 0.5)), InputOptions(std=(0.5,) * 4), InputOptions(mean=(0.5, 0.5), size=(9, 9))):
        for prepare in (
            lambda options: as_trained(preset(), options),
            unnormalized,
            lambda options: in_steps(options, step=8, least=8, box=(9, 9)),
            lambda options: clip(models.video.R3D_18_Weights.DEFAULT.transforms(), options, frames=2),
        ):
            with pytest.raises(RequestError, match="must be 1 or 3 numbers"):
                prepare(wrong)


def test_the_description_names_the_channels():
    lines = [standard(InputOptions(), channels=channels).description for channels in (1, 2, 3, 4)]
    assert len(set(lines)) == 4
    assert [line.split(",")[0] for line in lines] == ["1 channel", "2 channels", "crop to 224x224", "4 channels"]


def test_an_input_of_unknown_normalisation_is_stretched():
    preparation = by_callable(transforms.ToTensor(), description="own")
    assert (preparation.mean, preparation.std) == ((), ())
    frame = torch.tensor([[[-10.0, 0.0, 10.0, torch.nan, torch.inf, -torch.inf]]])
    assert Seen(frame, preparation).picture.tolist() == [[0, 128, 255, 0, 255, 0]]
    two = torch.cat([frame, frame * 100])
    assert Seen(two, preparation).picture.tolist() == [[0, 128, 255, 0, 255, 0]]
    four = torch.arange(4.0).view(4, 1, 1).expand(4, 1, 2)
    assert Seen(four, preparation).picture.tolist() == [[[0, 128, 255]] * 2]
    assert not Seen(torch.full((3, 2, 2), 7.0), preparation).picture.any()
    assert not Seen(torch.full((3, 2, 2), torch.nan), preparation).picture.any()
    assert frame[0, 0, 0] == -10


# --- the user's own preparation


def test_a_users_function_gets_the_picture(tmp_path):
    seen = []

    def own(given):
        seen.append(given)
        return functional.to_tensor(given) if isinstance(given, PillowImage.Image) else given

    rgb, grey = (read(save(tmp_path / "a.npy", picture()), channels).pixels for channels in (3, 1))
    floats = read(save(tmp_path / "b.npy", stack(6) / 255), 6).pixels
    assert torch.equal(by_callable(own, description="own").apply(rgb), transforms.ToTensor()(rgb))
    assert torch.equal(by_callable(own, description="own", channels=1).apply(grey), transforms.ToTensor()(grey))
    assert torch.equal(
        by_callable(own, description="own", channels=6).apply(floats), torch.from_numpy(stack(6)).float() / 255
    )
    assert [given.mode for given in seen[:2]] == ["RGB", "L"]
    assert (seen[2].dtype, seen[2].shape) == (torch.float32, (6, 20, 30))
    assert by_callable(own, description="own words", channels=6).description == "own words"


def test_results_of_a_users_function_become_plain_floats_on_the_cpu():
    from torchvision.transforms import v2  # imports the compiler

    weight = torch.ones(3, 4, 4, dtype=torch.float64, requires_grad=True)
    for returned in (
        weight * 2,
        (weight * 2)[None],
        weight.detach().half() * 2,
        v2.functional.to_image(weight.detach() * 2),
    ):
        prepared = by_callable(lambda _, returned=returned: returned, description="own").apply(
            PillowImage.new("RGB", (4, 4))
        )
        assert (type(prepared), prepared.dtype, prepared.shape) == (torch.Tensor, torch.float32, (3, 4, 4))
        assert not prepared.requires_grad
        assert (prepared == 2).all()


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "NoneType"),
        ({"pixel_values": torch.zeros(1, 3, 4, 4)}, "dict"),
        (np.zeros((3, 4, 4), np.float32), "ndarray"),
        (torch.zeros(3, 4, 4, dtype=torch.uint8), "uint8 (3, 4, 4)"),
        (torch.zeros(3, 4, 4, dtype=torch.bool), "bool (3, 4, 4)"),
        (torch.zeros(3, 4, 4, dtype=torch.complex64), "complex64"),
        (torch.zeros(1, 4, 4), "(1, 4, 4)"),
        (torch.zeros(2, 3, 4, 4), "(2, 3, 4, 4)"),
        (torch.zeros(4, 4), "(4, 4)"),
        (torch.zeros(3, 0, 4), "(3, 0, 4)"),
        (torch.zeros(4, 4, 3), "(4, 4, 3)"),
    ],
)
def test_wrong_results_of_a_users_function_are_refused(returned, words):
    with pytest.raises(InputError, match="the preprocessing must return") as caught:
        by_callable(lambda _: returned, description="own").apply(PillowImage.new("RGB", (4, 4)))
    assert caught.value.code == "E_PREPARE"
    assert words in str(caught.value)


def test_an_array_from_a_users_function_is_refused_with_the_conversion():
    with pytest.raises(InputError, match="must return a tensor, not ndarray") as caught:
        by_callable(lambda _: np.zeros((3, 4, 4)), description="own").apply(PillowImage.new("RGB", (4, 4)))
    assert "torch.from_numpy" in caught.value.hint


def test_an_error_in_a_users_function_is_reported_with_its_cause():
    def own(_):
        raise KeyError("first line\nsecond line")

    def silent(_):
        raise NotImplementedError

    for function, words in ((own, r"\(KeyError: 'first line"), (silent, r"\(NotImplementedError\)")):
        with pytest.raises(InputError, match=words) as caught:
            by_callable(function, description="own").apply(PillowImage.new("RGB", (4, 4)))
        assert caught.value.code == "E_PREPARE"
        assert isinstance(caught.value.__cause__, KeyError | NotImplementedError)
        assert "\n" not in str(caught.value)


def test_a_users_function_may_declare_its_normalisation():
    from torchvision.transforms import v2  # imports the compiler

    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    normalize = transforms.Normalize(mean, std)
    compose = transforms.Compose([transforms.Normalize((0.9,) * 3, (0.9,) * 3), transforms.ToTensor(), normalize])
    newer = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std), v2.Identity()])
    preset = models.AlexNet_Weights.DEFAULT.transforms()
    scalars = v2.Normalize([0.5], [0.25])
    told = {
        (mean, std): (normalize, compose, newer, transforms.Compose([newer])),
        (IMAGENET_MEAN, IMAGENET_STD): (preset,),
        ((0.5,), (0.25,)): (scalars,),
    }
    for expected, functions in told.items():
        for function in functions:
            preparation = by_callable(function, description="own")
            assert (preparation.mean, preparation.std) == expected
    unknown = (
        transforms.ToTensor(),
        lambda given: given,
        v2.Normalize([123.0, 117.0, 104.0], [1.0, 1.0, 1.0]),  # of values 0..255
        v2.Normalize([0.5, 0.5], [0.5, 0.5]),  # of another number of channels
        np.array([1.0, 2.0]).mean,
    )
    for function in unknown:
        assert by_callable(function, description="own").mean == ()
    shown = by_callable(newer, description="own")
    prepared = shown.apply(PillowImage.fromarray(picture()))
    np.testing.assert_array_equal(Seen(prepared, shown).picture, picture())


# --- finding files, threads


def test_arrays_are_found_in_folders(tmp_path):
    save(tmp_path / "a.npy", stack(3))
    (tmp_path / "B.NPY").write_bytes((tmp_path / "a.npy").read_bytes())
    np.savez(tmp_path / "c.npz", stack(3))
    assert [file.unit for file in find_images([str(tmp_path)])] == ["a.npy", "B.NPY"]
    assert refusal(tmp_path / "c.npz").code == "E_FORMAT"


def test_an_array_is_identified_by_its_content(tmp_path):
    content = save(tmp_path / "a.npy", picture()).read_bytes()
    (tmp_path / "b.png").write_bytes(content)
    assert read(tmp_path / "b.png").pixels.tobytes() == picture().tobytes()
    (tmp_path / "c.npy").write_bytes(encoded(picture(), "PNG"))
    assert read(tmp_path / "c.npy").pixels.tobytes() == picture().tobytes()


def test_several_threads_read_the_same_as_one(tmp_path):
    for number in range(4):
        save(tmp_path / f"{number}.npy", np.roll(stack(6), number, axis=0))
        save_tiff(tmp_path / f"{number}.tif", np.roll(stack(6), number, axis=0), [*WAYS][number])
    (tmp_path / "bad.npy").write_bytes(HEADERS["old Python, cut off"])
    (tmp_path / "bad.tif").write_bytes(samples_tiff(1000, 1000, bytes(600)))

    def answer(path: Path) -> object:
        try:
            return values(read(path, 6)).tobytes()
        except InputError as error:
            return error.code

    paths = sorted(tmp_path.iterdir())
    expected = [answer(path) for path in paths]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(answer, paths * 6)) == expected * 6


@pytest.mark.parametrize(
    ("shape", "channels", "volume", "axes"),
    [
        ((5, 48, 5), 5, False, "height, width, channels"),
        ((1, 5, 48, 5), 5, False, "height, width, channels"),
        ((3, 48, 3), 1, False, "height, width, channels"),
        ((2, 8, 9, 2), 2, True, "channels, depth, height, width"),
        ((5, 48, 6), 5, False, ""),
        ((6, 48, 5), 5, False, ""),
        ((48, 48), 1, False, ""),
        ((8, 9, 8), 1, True, ""),
    ],
)
def test_an_array_of_ambiguous_axes_reports_how_they_were_read(shape, channels, volume, axes):
    values = np.random.default_rng(0).random(shape, np.float32)
    pixels, notices = read_array(values, channels=channels, volume=volume)
    own = values.reshape(shape[-3:]) if len(shape) > 2 and not volume else values
    expected = own if axes.startswith("channels") or not axes else np.moveaxis(own, 2, 0)
    if axes:
        assert np.array_equal(pixels.values, expected) or channels == 1
    assert [notice for notice in notices if "are read as" in notice] == (
        [f"axes of {' x '.join(map(str, shape))} are read as {axes}"] if axes else []
    )
